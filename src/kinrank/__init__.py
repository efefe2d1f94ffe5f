"""kinrank: images ranked by the company they keep.

    import kinrank
    ranking = kinrank.rerank(query, vectors)      # bring your own embeddings

Names are imported when they are first used, so `import kinrank` costs next to nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kinrank import evaluate as evaluate
    from kinrank.api import rerank as rerank
    from kinrank.api import rerank_many as rerank_many
    from kinrank.errors import KinrankError as KinrankError
    from kinrank.gallery.gallery import Gallery as Gallery
    from kinrank.spec import reranker as reranker
    from kinrank.types import Candidates as Candidates
    from kinrank.types import Ranking as Ranking

__version__ = "0.1.0"

_PUBLIC = {
    "Candidates": "kinrank.types",
    "Gallery": "kinrank.gallery.gallery",
    "KinrankError": "kinrank.errors",
    "Ranking": "kinrank.types",
    "evaluate": "",
    "rerank": "kinrank.api",
    "rerank_many": "kinrank.api",
    "reranker": "kinrank.spec",
}

__all__ = sorted([*_PUBLIC, "__version__"])


def __getattr__(name: str) -> Any:
    if name not in _PUBLIC:
        raise AttributeError(f"module 'kinrank' has no attribute {name!r}")
    value = (
        import_module("kinrank.evaluate")
        if name == "evaluate"
        else getattr(import_module(_PUBLIC[name]), name)
    )
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
