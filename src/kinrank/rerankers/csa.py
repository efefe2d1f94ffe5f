"""Contextual similarity aggregation (CSA): a set transformer reads how the list's items stand to each other.

Ouyang et al., NeurIPS 2021. Here only the runtime: the trained graph goes from similarities to scores
(`kinrank train` writes it), and needs neither torch nor vectors.
"""

from __future__ import annotations

from kinrank.rerankers.learned import SimilarityModel


class CSA(SimilarityModel):
    """A transformer over the list's similarities, trained; works on any embedding."""

    reports_harm = "where the list holds no true match, or the model was trained on too little"

    def __init__(self, model: str = "csa", limit: int = 2048, device: str = "auto") -> None:
        super().__init__(model, "csa", limit, device)
