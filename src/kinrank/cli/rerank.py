"""`kinrank rerank`: lists in a file, no gallery."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from kinrank.cli.output import json_option, print_json, table
from kinrank.errors import InputError

if TYPE_CHECKING:
    from kinrank.types import Array, Candidates, Ranking

SHOWN = 10


@click.command("rerank")
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--rerank", "spec", metavar="SPEC", help="The method, such as csa or aqe:k=5+csa.")
@click.option("-k", "--k", type=click.IntRange(min=1), help="Re-rank the first K; all by default.")
@click.option(
    "-o", "--output", type=click.Path(path_type=Path), help="Write ids and scores (Q, N) to this .npz."
)
@json_option
def command(file: Path, spec: str | None, k: int | None, output: Path | None, as_json: bool) -> None:
    """Re-rank lists of vectors from an .npz.

    FILE holds `query (d,)` or `queries (Q, d)`, `vectors` that all share `(N, d)` or one list each
    `(Q, K, d)`, and optionally `ids` of the same lengths. In place of these, `similarities (1+K, 1+K)` or
    `(Q, 1+K, 1+K)`, the query first.
    """
    from kinrank.api import DEFAULT
    from kinrank.rerankers.base import with_tail
    from kinrank.spec import reranker

    method = reranker(spec or DEFAULT)
    lists, shared = _lists(file)
    if method.needs_fit:
        method = method.fit(_gallery(shared, spec or DEFAULT))
    heads = method.rerank_many([candidates.head(k) for candidates in lists])
    rankings = [with_tail(head, candidates) for head, candidates in zip(heads, lists)]
    if output is not None:
        _write(output, rankings)
    if as_json:
        print_json({"rankings": [{"ids": r.ids, "scores": r.scores} for r in rankings]})
    elif output is None:
        _show(lists, rankings)


def _lists(file: Path) -> tuple[list[Candidates], tuple[Array, Array] | None]:
    """The lists, and (ids, vectors) where all queries share them."""
    import numpy as np

    from kinrank.evaluation.datasets.base import read_npz
    from kinrank.types import Candidates

    if not file.exists():
        raise InputError(f"there is no file '{file}'")
    names = ("query", "queries", "vectors", "ids", "similarities")
    data = read_npz(file, (), names)
    ids = data.get("ids")
    if "similarities" in data:
        tables = data["similarities"] if data["similarities"].ndim == 3 else data["similarities"][None]
        rows = _ids_by_query(ids, len(tables))
        return [Candidates.from_similarities(t, row) for t, row in zip(tables, rows)], None
    if "vectors" not in data or ("query" in data) == ("queries" in data):
        raise InputError(
            f"'{file}' must hold vectors and one of query and queries, or similarities; "
            f"it holds: {', '.join(data) or 'nothing of these'}"
        )
    queries = data["queries"] if "queries" in data else data["query"][None]
    vectors = data["vectors"]
    if queries.ndim != 2:
        raise InputError(f"'{file}': query must be (d,) or queries (Q, d), got {queries.shape}")
    if vectors.ndim == 2:
        names_of = np.arange(len(vectors)) if ids is None else ids
        return [Candidates.from_vectors(q, vectors, names_of) for q in queries], (names_of, vectors)
    if vectors.ndim != 3 or len(vectors) != len(queries):
        raise InputError(
            f"'{file}': vectors have shape {vectors.shape} for {len(queries)} queries; "
            "cure: (N, d) for all of them, or (Q, K, d) with a list each"
        )
    rows = _ids_by_query(ids, len(queries))
    return [Candidates.from_vectors(q, v, row) for q, v, row in zip(queries, vectors, rows)], None


def _ids_by_query(ids: Array | None, queries: int) -> Any:
    if ids is None or ids.ndim == 1:
        return [ids] * queries
    if len(ids) != queries:
        raise InputError(f"{len(ids)} rows of ids for {queries} lists; one each is needed")
    return ids


def _gallery(shared: tuple[Array, Array] | None, spec: str) -> Any:
    """The vectors that all queries share, as the gallery that a method is fitted to."""
    from kinrank.gallery.gallery import Gallery

    if shared is None:
        raise InputError(
            f"'{spec}' works on a whole gallery; cure: give vectors (N, d) that all queries share"
        )
    ids, vectors = shared
    gallery = Gallery.create("memory:", dim=vectors.shape[1])
    gallery.add(ids, vectors)
    return gallery


def _write(path: Path, rankings: list[Ranking]) -> None:
    import numpy as np

    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file:
        np.savez(file, ids=np.stack([r.ids for r in rankings]), scores=np.stack([r.scores for r in rankings]))


def _show(lists: list[Candidates], rankings: list[Ranking]) -> None:
    for number, (candidates, ranking) in enumerate(zip(lists, rankings)):
        before = {identity: rank for rank, identity in enumerate(candidates.ids.tolist(), 1)}
        if len(rankings) > 1:
            click.echo(f"{chr(10) if number else ''}query {number}")
        rows = [
            [rank, identity, float(score), before[identity]]
            for rank, (identity, score) in enumerate(zip(ranking.ids.tolist(), ranking.scores), 1)
        ]
        click.echo(table(["rank", "id", "score", "was"], rows[:SHOWN], left=0))
        if len(rows) > SHOWN:
            click.echo(f"... and {len(rows) - SHOWN} more (--json or -o for all)")
