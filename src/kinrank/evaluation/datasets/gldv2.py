"""Google Landmarks v2, retrieval."""

from __future__ import annotations

import csv
from pathlib import Path

from kinrank.errors import InputError
from kinrank.evaluation.datasets.listing import Listing, first_file

_SOLUTIONS = tuple(
    f"{folder}retrieval_solution_v2{minor}.csv" for folder in ("", "metadata/") for minor in (".1", ".0", "")
)


class Gldv2:
    """Google Landmarks v2, retrieval: retrieval_solution_v2.1.csv and index.csv; test against index."""

    layout = "GLDv2 with retrieval_solution_v2.1.csv, index.csv, test/ and index/"

    @staticmethod
    def recognises(path: Path) -> bool:
        """Its solution."""
        return first_file(path, _SOLUTIONS) is not None

    @staticmethod
    def listing(path: Path) -> Listing:
        """Queries that the solution does not ignore; a picture lies in folders of its id's first letters."""
        solution = first_file(path, _SOLUTIONS)
        assert solution is not None
        index = solution.with_name("index.csv")
        if not index.is_file():
            raise InputError(f"'{index}' is missing; it lists the pictures of the index")
        images = [row["id"] for row in _rows(index, ("id",))]
        row_of = {name: i for i, name in enumerate(images)}
        queries, relevant = [], []
        for row in _rows(solution, ("id", "images")):
            names = row["images"].split()
            if row.get("Usage") != "Ignored" and names != ["None"]:
                queries.append(row["id"])
                relevant.append([row_of[name] for name in names if name in row_of])
        pictures = [_place("index", name) for name in images] + [_place("test", name) for name in queries]
        return Listing(
            "gldv2",
            pictures,
            pictures,
            list(range(len(images), len(pictures))),
            list(range(len(images))),
            relevant,
        )


def _place(folder: str, name: str) -> str:
    return f"{folder}/{name[0]}/{name[1]}/{name[2]}/{name}.jpg"


def _rows(path: Path, needed: tuple[str, ...]) -> list[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as file:
        reader = csv.DictReader(file)
        if not set(needed) <= set(reader.fieldnames or ()):
            raise InputError(f"'{path}' needs the columns {', '.join(needed)}; it has {reader.fieldnames}")
        rows = list(reader)
    if any(len(row["id"] or "") < 3 for row in rows):
        raise InputError(f"'{path}' holds an id of fewer than three letters")
    return rows
