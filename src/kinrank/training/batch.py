"""What a training step eats: a few lists of one length, as similarities and labels."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch


@dataclass(frozen=True)
class ListBatch:
    """B ranked lists of up to K candidates, the query first; shorter lists are zero-padded and masked.

    `similarities (B, 1+K, 1+K)` float32, `relevant (B, K)` bool, `mask (B, 1+K)` bool (True: a real item).
    `vectors (B, 1+K, d)` unit rows, for the methods that read vectors; None from sources that have none.
    """

    similarities: torch.Tensor
    relevant: torch.Tensor
    mask: torch.Tensor
    vectors: torch.Tensor | None = None

    def __len__(self) -> int:
        return len(self.similarities)

    def to(self, device: torch.device) -> ListBatch:
        """The same lists on a device."""
        vectors = None if self.vectors is None else self.vectors.to(device)
        return ListBatch(
            self.similarities.to(device), self.relevant.to(device), self.mask.to(device), vectors
        )

    def trimmed(self) -> ListBatch:
        """Every list cut to the shortest one, for models that know no padding."""
        size = int(self.mask.sum(dim=1).min())
        vectors = None if self.vectors is None else self.vectors[:, :size]
        return ListBatch(
            self.similarities[:, :size, :size], self.relevant[:, : size - 1], self.mask[:, :size], vectors
        )

    def rows_shuffled(self, generator: torch.Generator) -> ListBatch:
        """Candidate rows in random order, columns (the anchors) still in rank order, as the paper trains.

        Only for models that read the first columns of each row; the table is not symmetric afterwards.
        """
        b, k = self.relevant.shape
        keys = torch.rand(b, k, generator=generator, device=generator.device).to(self.relevant.device)
        order = keys.argsort(dim=1)  # (B, K)
        rows = torch.cat([torch.zeros_like(order[:, :1]), order + 1], dim=1)  # (B, 1+K), the query stays
        wide = rows[:, :, None]
        vectors = self.vectors
        if vectors is not None:
            vectors = vectors.gather(1, wide.expand_as(vectors))
        return ListBatch(
            self.similarities.gather(1, wide.expand_as(self.similarities)),
            self.relevant.gather(1, order),
            self.mask.gather(1, rows),
            vectors,
        )


class Source(Protocol):
    """Where training lists come from: real sets (`lists.ListSet`), synthetic worlds, or a mix."""

    def sample(
        self, batch_size: int, generator: torch.Generator, device: torch.device, number: int = 0
    ) -> ListBatch:
        """About `batch_size` lists that depend on the generator's state and the batch's number alone."""
        ...
