"""CRL: a small CNN reads the ranked list's affinity map and says which candidates are relevant.

Ouyang et al., Collaborative image relevance learning for visual re-ranking, IEEE TMM 2020. No
code and few details were published: this is a re-implementation (network: `kinrank.training.crl`).
"""

from __future__ import annotations

from kinrank.rerankers.learned import SimilarityModel


class CRL(SimilarityModel):
    """A CNN over the rank-ordered affinity map, trained; a re-implementation, details unpublished."""

    reports_harm = "where the top of the list holds few true matches"

    def __init__(self, model: str = "crl", limit: int = 200, device: str = "auto") -> None:
        super().__init__(model, "crl", limit, device)
