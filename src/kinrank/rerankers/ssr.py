"""SSR: a trained network guesses how the similarities of a list should change, and one step follows it.

Shen et al., Re-ranking for image retrieval and transductive few-shot classification, NeurIPS 2021.
The network, written on similarities alone, is in `kinrank.training.ssr`.
"""

from __future__ import annotations

from kinrank.rerankers.learned import SimilarityModel


class SSR(SimilarityModel):
    """One refinement step along gradients that a trained network guesses from subgraphs."""

    reports_harm = "where a query has few true matches in the list"

    def __init__(self, model: str = "ssr", limit: int = 500, device: str = "auto") -> None:
        super().__init__(model, "ssr", limit, device)
