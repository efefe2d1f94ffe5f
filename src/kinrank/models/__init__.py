"""Our own trained weights, a folder each with its card."""

REGISTRY: dict[str, str] = {}
