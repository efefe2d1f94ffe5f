"""Stanford Online Products."""

from __future__ import annotations

from pathlib import Path

from kinrank.evaluation.datasets.listing import Listing, table


class Sop:
    """Stanford Online Products: Ebay_test.txt; leave-one-out."""

    layout = "Stanford_Online_Products with Ebay_test.txt"

    @staticmethod
    def recognises(path: Path) -> bool:
        """Its list of test pictures."""
        return (path / "Ebay_test.txt").is_file()

    @staticmethod
    def listing(path: Path) -> Listing:
        """image_id class_id super_class_id path."""
        rows = table(path / "Ebay_test.txt", header=1, columns=4)
        return Listing("sop", [row[3] for row in rows], [row[1] for row in rows])
