"""The models that lie in the package."""

from __future__ import annotations

from pathlib import Path


class Shipped:
    """A model folder in the package (`model.onnx`, `model.safetensors`, `config.json`, `card.md`)."""

    extra = None

    def __init__(self, name: str, summary: str) -> None:
        self.folder = Path(__file__).parent / name
        self.__doc__ = summary


CSA = Shipped("csa", "CSA for embeddings it has never seen: 0.44 M weights, any K from 2 to 2048.")
CRL = Shipped("crl", "CRL, re-implemented: 18 thousand weights, trained on synthetic worlds alone.")
