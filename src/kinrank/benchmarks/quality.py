"""All methods over all data sets of a folder: mAP and mP@1 beside the first round's.

The folder is named by the environment variable KINRANK_DATA (`../shared/data` otherwise): .npz files of
labelled vectors and folders with a revisited ground truth. Of a labelled set, some images are taken out
and query the rest, so that no method that is fitted to the gallery has seen them.

    kinrank bench quality [--full] [--json]
    python -m kinrank.benchmarks.quality docs/quality.md
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
from tqdm import tqdm

from kinrank.errors import KinrankError
from kinrank.evaluation.array_gallery import ArrayGallery
from kinrank.evaluation.datasets import open_dataset
from kinrank.evaluation.datasets.base import Dataset, Judgement
from kinrank.evaluation.run import evaluate
from kinrank.registry import registry
from kinrank.spec import reranker
from kinrank.types import Candidates, unit_rows

CHAINS = ("adba+aqe", "adbawd+aqewd", "alphadba+alphaqe", "ddba+dqe", "dfs+csa", "gss+csa")
LOCAL = ("ransac", "spatial", "dsm")  # these look at pictures, not at vectors
EVERY, EVERY_FULL = 50, 10  # of a labelled set, one image in so many becomes a query
K = 1024


def run(full: bool = False) -> dict[str, list[dict[str, Any]]]:
    """A table a data set, a row a method, in percent; `full` asks five times the queries."""
    folder = Path(os.environ.get("KINRANK_DATA", "../shared/data"))
    sets = _data_sets(folder)
    if not sets:
        said = f"no data set in '{folder}'; cure: set KINRANK_DATA to a folder of labelled .npz files"
        return {"quality": [{"said": said}]}
    methods = ["none", *(name for name in (*registry("rerankers"), *CHAINS) if name not in (*LOCAL, "none"))]
    tables: dict[str, list[dict[str, Any]]] = {}
    with tqdm(total=len(sets) * len(methods), unit="method", leave=False) as bar:
        for path in sets:
            dataset = held_out(open_dataset(path), EVERY_FULL if full else EVERY)
            rows: list[dict[str, Any]] = []
            for method in methods:
                bar.set_description(f"{dataset.name} {method}")
                rows.append(_row(dataset, method, rows[0] if rows else None))
                bar.update()
            tables[f"{dataset.name}, {len(dataset.queries)} queries, {len(dataset.gallery)} images"] = rows
    return tables


def _data_sets(folder: Path) -> list[Path]:
    paths = sorted(folder.glob("*.npz")) if folder.is_dir() else []
    if folder.is_dir():
        paths += [p for p in sorted(folder.iterdir()) if list(p.glob("gnd_*")) and list(p.glob("*.npz"))]
    return paths


def held_out(dataset: Dataset, every: int) -> Dataset:
    """A leave-one-out set as queries against the others; one with queries of its own as it is."""
    if dataset.own is None:
        return dataset
    setting = dataset.settings["all"]
    some = np.arange(0, len(dataset.own), every)
    queries = dataset.own[some]
    stays = np.ones(len(dataset.gallery), bool)
    stays[queries] = False
    rows = np.concatenate([vectors for _, vectors in dataset.gallery.blocks()])
    number = np.cumsum(stays) - 1
    positives = [number[kept[stays[kept]]] for kept in (setting.positives[i] for i in some)]
    asked = np.array([len(p) > 0 for p in positives])
    judgement = Judgement([p for p in positives if len(p)], [np.zeros(0, np.int64)] * int(asked.sum()))
    gallery = ArrayGallery(rows[stays])
    return Dataset(dataset.name, unit_rows(rows[queries[asked]]), gallery, {"all": judgement})


def trained_on(spec: str) -> set[str]:
    """The data sets that the models of a spec were trained on, by their cards."""
    learned = (getattr(reranker(name), "learned", None) for name in spec.split("+"))
    return {
        str(data["name"])
        for model in learned
        if model is not None
        for data in model.config.get("data", [])
        if data.get("use") == "train"
    }


def _needs(spec: str) -> str | None:
    """What a stage says that has no trained model, before a costly stage beside it is fitted."""
    for name in spec.split("+"):
        method = reranker(name)
        try:
            if not method.needs_fit:
                method.rerank(Candidates.from_vectors(np.ones(2), np.eye(3, 2) + 1))
        except KinrankError as error:
            return str(error)
    return None


def _row(dataset: Dataset, method: str, first: dict[str, Any] | None) -> dict[str, Any]:
    said = _needs(method)
    if said is not None:
        return {"method": method, "said": said}
    try:
        answer = evaluate(dataset, [method], [K]).rows[0].as_json()
    except KinrankError as error:
        return {"method": method, "said": str(error)}
    setting = "medium" if "medium" in answer["map"] else "all"
    row: dict[str, Any] = {"method": method, "mAP": round(answer["map"][setting], 1)}
    if first is not None:
        row["by mAP"] = round(row["mAP"] - first["mAP"], 1)
    for kappa in ("1", "10"):
        row[f"mP@{kappa}"] = round(answer["mp"][setting][kappa], 1)
    if first is not None:
        row["by mP@1"] = round(row["mP@1"] - first["mP@1"], 1)
    return {**row, "ms": round(answer["latency_ms"]["p50"], 1), "fit s": round(answer["fit_s"], 1)}


def markdown(tables: dict[str, list[dict[str, Any]]]) -> str:
    """One table: a row a method; of each set, the change of mAP and of mP@1 against the first round."""
    names = list(tables)
    lines = ["| method | " + " | ".join(name.split(",")[0] for name in names) + " |"]
    lines.append("|---|" + "---|" * len(names))
    for i, row in enumerate(tables[names[0]]):
        seen = set() if _needs(row["method"]) else trained_on(row["method"])
        cells = [
            _cell(tables[name][i], first=i == 0)
            + (" †" if name.split(",")[0] in seen and "mAP" in tables[name][i] else "")
            for name in names
        ]
        lines.append(f"| `{row['method']}` | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def _cell(row: dict[str, Any], first: bool) -> str:
    if "said" in row:
        return "needs a trained model" if "train" in row["said"] else "-"
    return f"{row['mAP']} / {row['mP@1']}" if first else f"{row['by mAP']:+} / {row['by mP@1']:+}"


def _write(path: Path) -> None:
    tables = run()
    sets = "\n".join(f"- {name}" for name in tables)
    text = (
        "Written by `python -m kinrank.benchmarks.quality docs/quality.md`; `kinrank bench quality` prints\n"
        "the same figures with mP@10 and latency. Methods have their defaults, K = 1024. The first\n"
        "row is mAP / mP@1 of the first round in percent, every other row the change against it (of the\n"
        "revisited sets, Medium); `-` was not measured. †: the model was trained on this very set, so the\n"
        "figure says how well it learnt, not how it does on others."
    )
    path.write_text(f"# Quality of the methods\n\n{text}\n\n{sets}\n\n{markdown(tables)}")


if __name__ == "__main__":
    _write(Path(sys.argv[1]))
