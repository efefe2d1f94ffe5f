"""retrieval-SfM-120k."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from kinrank.errors import InputError
from kinrank.evaluation import safe_pickle
from kinrank.evaluation.datasets.listing import Listing

FILE = "retrieval-SfM-120k.pkl"


class Sfm120k:
    """retrieval-SfM-120k: retrieval-SfM-120k.pkl; the clusters for validation, leave-one-out."""

    layout = f"retrieval-SfM-120k with {FILE}, ims/"

    @staticmethod
    def recognises(path: Path) -> bool:
        """Its pickle."""
        return (path / FILE).is_file()

    @staticmethod
    def listing(path: Path) -> Listing:
        """The part 'val': cids, and the cluster of each."""
        names, clusters = part(path, "val")
        return Listing("retrieval-sfm-120k", names, clusters)


def part(path: Path, name: str) -> tuple[list[str], list[str]]:
    """(paths of the pictures, their clusters) of 'train' or 'val'."""
    database: Any = safe_pickle.load(path / FILE)
    try:
        cids, clusters = list(database[name]["cids"]), list(database[name]["cluster"])
    except (KeyError, TypeError, IndexError):
        raise InputError(f"'{path / FILE}' has no part '{name}' with cids and cluster") from None
    if len(cids) != len(clusters) or not all(isinstance(cid, str) and len(cid) >= 6 for cid in cids):
        raise InputError(f"'{path / FILE}', '{name}': cids must be names, with a cluster each")
    places = [f"ims/{cid[-2:]}/{cid[-4:-2]}/{cid[-6:-4]}/{cid}" for cid in cids]
    return places, [str(cluster) for cluster in clusters]
