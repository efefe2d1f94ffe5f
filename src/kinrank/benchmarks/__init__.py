"""Speed and memory, as ratios measured side by side in one run: one file a benchmark, one line here.

A benchmark is `run(full: bool = False)`; it returns plain data (a table is a list of rows with the same
keys; a mapping may hold several), shows its progress on stderr, and `full` adds what takes minutes.
"""

REGISTRY: dict[str, str] = {
    "csa": "kinrank.benchmarks.csa:run",
    "embed": "kinrank.benchmarks.embed:run",
    "gallery": "kinrank.benchmarks.gallery:run",
    "geometry": "kinrank.benchmarks.geometry:run",
    "gpu": "kinrank.benchmarks.gpu:run",
    "graphs": "kinrank.benchmarks.graphs:run",
    "imports": "kinrank.benchmarks.imports:run",
    "million": "kinrank.benchmarks.million:run",
    "methods": "kinrank.benchmarks.methods:run",
    "quality": "kinrank.benchmarks.quality:run",
    "pooling": "kinrank.benchmarks.pooling:run",
    "universal": "kinrank.benchmarks.universal:run",
}
