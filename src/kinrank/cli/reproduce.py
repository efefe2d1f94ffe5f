"""`kinrank reproduce`: the paper's tables, measured beside published."""

from __future__ import annotations

from pathlib import Path

import click

from kinrank.cli.output import json_option, print_json, table

TABLES = ("table1", "table2", "table3", "table4", "table5", "table6", "figures")


@click.command("reproduce")
@click.argument("tables", metavar="[TABLE]...", nargs=-1, type=click.Choice(TABLES))
@click.option(
    "--data",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path("data"),
    show_default=True,
    help="Folder with ground truths, features, distractors and models.",
)
@click.option("--report", type=click.Path(path_type=Path), help="Write a page with plots and pictures here.")
@click.option("--fetch", is_flag=True, help="Fetch the ground truths into --data first.")
@json_option
def command(tables: tuple[str, ...], data: Path, report: Path | None, fetch: bool, as_json: bool) -> None:
    """Run the CSA paper's experiments, all of them or the tables that are named: table1 ... table6, figures.

    Every cell shows what was measured and, in brackets, what was published and the difference. What the
    files in --data do not allow is left out; the missing files are listed at the end, with their origin.
    """
    from tqdm import tqdm

    from kinrank.evaluation import reproduce_report
    from kinrank.evaluation.reproduce import Runner

    if fetch:
        _fetch(data)
    with tqdm(unit="run", leave=False) as bar:

        def step(text: str) -> None:
            bar.set_description_str(text)
            bar.update()

        runner = Runner(data, step)
        result = runner.reproduce(tables or TABLES)
        written = reproduce_report.write(runner, report) if report is not None else None
    if as_json:
        print_json(result.as_json())
        return
    for name, rows in result.tables.items():
        click.echo(table(*reproduce_report.rows_of(name, rows)) + "\n")
    for note in result.folder.notes:
        click.echo(f"note: {note}")
    for method, why in result.failed.items():
        click.echo(f"could not run {method}: {why}")
    if result.folder.missing:
        click.echo("\n" + table(*reproduce_report.missing_of(result), left=5))
        click.echo(f"Paths are within '{data}'.")
    if written is not None:
        click.echo(f"report: {written}")


def _fetch(data: Path) -> None:
    """Download what is there to download as it is; features have to be extracted."""
    from kinrank.evaluation import paper
    from kinrank.features.download import RemoteFile, fetch

    for name in paper.DATASETS:
        wanted = paper.truth_file(name)
        target = data.resolve() / wanted.path
        fetch(RemoteFile(wanted.origin, str(target), wanted.sha256 or "", wanted.size or 0, "not stated"))
        click.echo(f"{target}", err=True)
