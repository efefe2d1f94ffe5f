"""DeepFashion In-shop Clothes Retrieval."""

from __future__ import annotations

from pathlib import Path

from kinrank.evaluation.datasets.listing import Listing, first_file, table

_PARTITIONS = ("list_eval_partition.txt", "Eval/list_eval_partition.txt")


class InShop:
    """In-shop Clothes Retrieval: list_eval_partition.txt; its queries against its gallery."""

    layout = "In-shop with list_eval_partition.txt (or Eval/list_eval_partition.txt), img/"

    @staticmethod
    def recognises(path: Path) -> bool:
        """Its list of the partition."""
        return first_file(path, _PARTITIONS) is not None

    @staticmethod
    def listing(path: Path) -> Listing:
        """After two lines: image_name item_id evaluation_status (train, query or gallery)."""
        file = first_file(path, _PARTITIONS)
        assert file is not None
        rows = [row for row in table(file, header=2, columns=3) if row[2] in ("query", "gallery")]
        return Listing(
            "in-shop",
            [row[0] for row in rows],
            [row[1] for row in rows],
            [i for i, row in enumerate(rows) if row[2] == "query"],
            [i for i, row in enumerate(rows) if row[2] == "gallery"],
        )
