"""`kinrank train` at the command line: what it prints, and one line for what it refuses."""

from __future__ import annotations

import json

import numpy as np
import pytest

import kinrank
from kinrank.cli import main


def run(capsys, *arguments: str) -> tuple[int, str, str]:
    code = 0
    try:
        main(["train", *arguments])
    except SystemExit as end:
        code = int(end.code or 0)
    out, err = capsys.readouterr()
    return code, out, err


def test_train_and_use(tiny, write_recipe, labelled, tmp_path, capsys):
    out = tmp_path / "model"
    common = ["--recipe", str(write_recipe(tiny)), "--device", "cpu"]
    code, text, _ = run(capsys, str(labelled), "-o", str(out), *common, "--steps", "5", "--json")
    config = json.loads(text)
    assert code == 0 and config["steps"] == 5 and config["model"] == str(out)
    assert config["recipe"]["name"] == "tiny" and config["data"][0]["images"] == 160

    vectors = np.load(labelled)["vectors"]
    ranking = kinrank.rerank(vectors[0], vectors[1:40], method=f"csa:model={out}")
    assert sorted(ranking.ids) == list(range(39))

    code, text, _ = run(
        capsys, str(labelled), "-o", str(tmp_path / "m2"), *common, "--steps", "2", "-k", "12"
    )
    assert code == 0 and "mAP" in text and f"csa:model={tmp_path / 'm2'}" in text


@pytest.mark.parametrize(
    "arguments, said",
    [
        (["nowhere.npz"], "nowhere.npz"),
        (["--recipe", "papre"], "did you mean 'paper'"),
        (["--device", "cpu"], "learns from labelled vectors"),
        (["--resume"], "no interrupted training"),
        (["--device", "gpu"], "no device 'gpu' on this machine; there are: auto"),
        (["."], "is no .npz"),
        ([__file__], "is no .npz"),
    ],
)
def test_what_cannot_be_is_refused_in_a_line(arguments, said, tmp_path, capsys):
    with_recipe = arguments if "--recipe" in arguments else [*arguments, "--recipe", "paper"]
    code, out, err = run(capsys, *with_recipe, "-o", str(tmp_path / "model"))
    assert code != 0 and not out
    assert said in err and len(err.strip().splitlines()) == 1
    assert not (tmp_path / "model").exists()


def test_too_long_lists_are_refused(labelled, tmp_path, capsys):
    code, _, err = run(capsys, str(labelled), "-o", str(tmp_path / "m"), "--recipe", "paper")
    assert code == 2 and "too few for K=512" in err and "-k 159" in err
