"""`kinrank evaluate`: methods side by side on a data set."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path

import click

from kinrank.cli.output import json_option, print_json, table


@click.command("evaluate")
@click.argument("dataset", type=click.Path(path_type=Path))
@click.option(
    "--methods",
    metavar="SPEC,SPEC,...",
    help="Methods to compare, in this order; a part that starts with key= belongs to the spec before it "
    "(none,alphaqe:k=5,alpha=2,csa is three). By default the first round and the default method.",
)
@click.option("-k", "--k", "ks", metavar="K[,K...]", default="1024", help="Length of the re-ranked list.")
@click.option("--save-ranking", type=click.Path(path_type=Path), help="Write full rankings to this .npz.")
@click.option("--report", type=click.Path(path_type=Path), help="Write a page, plots and pictures here.")
@json_option
def command(
    dataset: Path, methods: str | None, ks: str, save_ranking: Path | None, report: Path | None, as_json: bool
) -> None:
    """Compare methods: mAP, mP@1, 5, 10, latency and memory, a row each, in percent, ms a query and MB.

    DATASET is an .npz of labelled vectors, a folder with a revisited ground truth (gnd_<name>.pkl or .json)
    and features, or another data set that `kinrank list datasets` names, with features in its folder. The
    first row is the measure for the others in the report.
    """
    from tqdm import tqdm

    from kinrank.api import DEFAULT
    from kinrank.evaluation import report as reports
    from kinrank.evaluation.datasets import open_dataset
    from kinrank.evaluation.run import evaluate, split_methods
    from kinrank.evaluation.saved import SavedRankings

    specs = split_methods(methods) if methods is not None else ["none", DEFAULT]
    lengths = _lengths(ks)
    data = open_dataset(dataset)

    saved = SavedRankings(save_ranking, len(data.queries), data.size) if save_ranking else nullcontext()
    total = len(data.queries) * len(specs) * len(set(lengths))
    with saved as rankings, tqdm(desc=data.name, total=total, leave=False, unit="list") as bar:
        answer = evaluate(data, specs, lengths, bar.update, rankings.keep if rankings else None)
    if report is not None:
        reports.write(answer, report)
    if as_json:
        print_json(answer.as_json())
    else:
        click.echo(f"{data.name}: {len(data.queries)} queries, {data.size} images")
        click.echo(table(*reports.table(answer)))
        if report is not None:
            click.echo(f"report: {report / 'index.html'}")


def _lengths(text: str) -> list[int]:
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise click.BadParameter(
            f"'{text}' is not a whole number or several with commas", param_hint="-k"
        ) from None
