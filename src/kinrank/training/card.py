"""The card of a model and the curves of its training: written by the command, from what was recorded."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from kinrank.training.checkpoint import read_log


def card(config: dict[str, Any], command: str) -> str:
    """Markdown: what the model is, from what it was made, what it does, how to make it again."""
    recipe = config["recipe"]
    size = ", ".join(f"{key} {value}" for key, value in config["sizes"].items()) or "as the defaults"
    lines = [
        f"# {config['method']} model, recipe `{recipe['name']}`",
        "",
        f"Made by kinrank {config['kinrank']}; use it with `{config['method']}:model=FOLDER`.",
        "",
        f"- Architecture `{config['architecture']}`: {size}; {config['parameters']:,} parameters.",
        f"- Seed {config['seed']}; {config['steps']:,} steps of {recipe['batch']} lists; "
        f"the weights are those of step {config['step']:,}, the best by validation.",
        f"- Hardware: {config['device']}. Time: {_duration(config['seconds'])}.",
        f"- ONNX opset {config['opset']}; largest difference to torch "
        f"{config['metrics']['onnx_difference']:.1e}.",
        "",
        "## Made again by",
        "",
        f"    {command}",
        "",
        "## Data",
        "",
        "| set | use | images | dimensions | classes | of these held out | content |",
        "|---|---|---|---|---|---|---|",
    ]
    keys = ("name", "use", "images", "dims", "classes", "held_out_classes", "digest")
    for row in config["data"]:
        lines.append("| " + " | ".join(str(row.get(key, "-")) for key in keys) + " |")
    lines += [
        "",
        "## Validation, on lists never trained on (percent, within the list)",
        "",
        "| lists | mAP first round | mAP | gain | mP@1 first round | mP@1 | gain |",
        "|---|---|---|---|---|---|---|",
    ]
    for name, q in config["metrics"]["validation"].items():
        lines.append(
            f"| {name} | {q['map_first']:.1f} | {q['map']:.1f} | {q['map'] - q['map_first']:+.1f} "
            f"| {q['mp1_first']:.1f} | {q['mp1']:.1f} | {q['mp1'] - q['mp1_first']:+.1f} |"
        )
    lines += [
        "",
        "The checkpoint was chosen by these figures, so they flatter; judge it on data of your own.",
    ]
    return "\n".join(lines) + "\n"


def _duration(seconds: float) -> str:
    hours, rest = divmod(round(seconds), 3600)
    minutes, seconds = divmod(rest, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {seconds} s"


def curves(log: Path, picture: Path) -> None:
    """A PNG of the loss and of the validation mAP over the steps."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib.figure import Figure

    rows = read_log(log)
    figure = Figure(figsize=(9, 3.6), layout="constrained")
    left, right = figure.subplots(1, 2)
    losses = [row for row in rows if "loss" in row]
    for name in [key for key in (losses[0] if losses else {}) if key not in ("step", "lr", "steps_per_s")]:
        left.plot([r["step"] for r in losses], [r[name] for r in losses], label=name, linewidth=1)
    left.set(xlabel="step", ylabel="loss")
    judged = [row for row in rows if "validation" in row]
    for name in judged[0]["validation"] if judged else []:
        values = [r["validation"][name]["map"] for r in judged]
        (line,) = right.plot([r["step"] for r in judged], values, label=name, marker=".")
        right.axhline(judged[0]["validation"][name]["map_first"], color=line.get_color(), linestyle=":")
    right.set(xlabel="step", ylabel="mAP, % (dotted: first round)")
    for axis in (left, right):
        if axis.has_data():
            axis.legend(fontsize="small")
    figure.savefig(picture, dpi=120)
