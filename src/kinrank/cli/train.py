"""`kinrank train`: labelled vectors to a model folder."""

from __future__ import annotations

import shlex
import sys
from typing import Any

import click

from kinrank.cli.output import json_option, print_json
from kinrank.errors import MissingExtraError


@click.command("train")
@click.argument("datasets", nargs=-1, metavar="[DATASET]...", type=click.Path())
@click.option("-o", "--output", required=True, type=click.Path(), help="The model's folder.")
@click.option(
    "--recipe", "name", default="universal", show_default=True, help="A recipe's name or .toml file."
)
@click.option("--validation", multiple=True, type=click.Path(), help="An .npz to judge by (may be repeated).")
@click.option("--start", help="A model, by name or folder, whose weights are trained further.")
@click.option("--resume", is_flag=True, help="Go on from the last checkpoint.")
@click.option("--device", default="auto", show_default=True, help="auto, cpu, cuda or mps.")
@click.option("--steps", type=click.IntRange(min=1), help="Steps, in place of the recipe's.")
@click.option("--seed", type=int, help="Seed, in place of the recipe's.")
@click.option("-k", type=click.IntRange(min=2), help="Candidates in a list, in place of the recipe's.")
@click.option("--quiet", is_flag=True, help="No progress.")
@json_option
def command(
    datasets: tuple[str, ...],
    output: str,
    name: str,
    validation: tuple[str, ...],
    start: str | None,
    resume: bool,
    device: str,
    steps: int | None,
    seed: int | None,
    k: int | None,
    quiet: bool,
    as_json: bool,
) -> None:
    """Train a re-ranker on DATASETs: .npz files with `vectors` (N, d) and `labels` (N,).

    Several files of the same images in different features are the paper's augmentation. The recipe
    `universal` also makes synthetic worlds while it trains, and needs no DATASET. Several processes:
    torchrun --nproc-per-node N -m kinrank train ...
    """
    try:
        import torch  # noqa: F401
    except ImportError:
        raise MissingExtraError("training", "train") from None
    from kinrank.training.config import recipe
    from kinrank.training.train import train

    chosen = recipe(name).with_changes(steps=steps, seed=seed)
    if k is not None:
        chosen = chosen.with_changes(data={**chosen.as_dict()["data"], "k": (k, k)})
    line = shlex.join(["kinrank", *sys.argv[1:]])
    config = train(chosen, datasets, output, validation, resume, device, quiet, line, start)
    if config is None:
        return
    if as_json:
        print_json({"model": output, **config})
        return
    _say(output, config)


def _say(output: str, config: dict[str, Any]) -> None:
    """What was trained, and what it does on lists that it never saw."""
    step, steps = config["step"], config["steps"]
    click.echo(f"{output}: {config['parameters']:,} parameters, best of {steps:,} steps at {step:,}")
    for title, q in config["metrics"]["validation"].items():
        click.echo(
            f"  {title}: mAP {q['map_first']:.1f} -> {q['map']:.1f}, "
            f"mP@1 {q['mp1_first']:.1f} -> {q['mp1']:.1f}"
        )
    quality = config["metrics"]["validation"].values()
    if quality and sum(q["map"] - q["map_first"] for q in quality) <= 0:
        click.echo(
            "warning: on lists that it was not trained on it does not improve the first round; "
            "cure: more classes, more steps, or another recipe",
            err=True,
        )
    click.echo(f"Use it: --rerank {config['method']}:model={output}")
