"""Trainings as a user runs them: killed and resumed, in two processes, refused, and better than nothing."""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file

from kinrank.errors import InputError, KinrankError
from kinrank.training.checkpoint import read_log
from kinrank.training.config import Optimiser, from_dict
from kinrank.training.distributed import Group
from kinrank.training.lists import Labelled, ListSet, prepare
from kinrank.training.loop import Training, step_size, steps_of
from kinrank.training.train import train

ENV = {**os.environ, "OMP_NUM_THREADS": "1"}


def arguments(recipe: Path, data: Path, output: Path, *more: str) -> list[str]:
    fixed = ["--recipe", str(recipe), "--device", "cpu", "--quiet"]
    return ["-m", "kinrank", "train", str(data), "-o", str(output), *fixed, *more]


def test_a_killed_training_resumes_to_the_same_result(tiny, write_recipe, labelled, tmp_path):
    recipe = write_recipe(tiny | {"steps": 120, "checkpoint_every": 20, "validate_every": 50})
    whole = subprocess.Popen([sys.executable, *arguments(recipe, labelled, tmp_path / "whole")], env=ENV)
    killed = tmp_path / "killed"
    process = subprocess.Popen([sys.executable, *arguments(recipe, labelled, killed)], env=ENV)
    checkpoint = killed / "training" / "checkpoint.pt"
    deadline = time.monotonic() + 120
    while not checkpoint.is_file():
        assert process.poll() is None and time.monotonic() < deadline
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    assert not (killed / "config.json").exists()  # it was killed on the way
    fresh = [sys.executable, *arguments(recipe, labelled, killed)]
    refused = subprocess.run(fresh, env=ENV, capture_output=True, text=True)
    assert refused.returncode == 2 and "--resume" in refused.stderr and "Traceback" not in refused.stderr
    subprocess.run([*fresh, "--resume"], env=ENV, check=True)
    assert whole.wait() == 0

    expected, found = (load_file(tmp_path / name / "model.safetensors") for name in ("whole", "killed"))
    for name in expected:
        np.testing.assert_array_equal(expected[name], found[name])
    logs = [read_log(tmp_path / name / "metrics.jsonl") for name in ("whole", "killed")]
    for rows in logs:
        for row in rows:
            row.pop("steps_per_s", None)
    assert logs[0] == logs[1]


def test_two_processes_do_what_one_does(tiny, write_recipe, labelled, tmp_path):
    recipe = write_recipe(tiny | {"steps": 6, "validate_every": 3})
    one = subprocess.Popen([sys.executable, *arguments(recipe, labelled, tmp_path / "one")], env=ENV)
    launch = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--master-port", "0",
              "--rdzv-backend", "c10d", "--rdzv-endpoint", "localhost:0"]  # fmt: skip
    subprocess.run([*launch, *arguments(recipe, labelled, tmp_path / "two")], env=ENV, check=True)
    assert one.wait() == 0
    expected, found = (read_log(tmp_path / name / "metrics.jsonl") for name in ("one", "two"))
    losses = [[row["loss"] for row in rows if "loss" in row] for rows in (expected, found)]
    assert losses[0] and losses[0] == pytest.approx(losses[1], rel=1e-5)
    expected, found = (load_file(tmp_path / name / "model.safetensors") for name in ("one", "two"))
    for name in expected:
        np.testing.assert_allclose(expected[name], found[name], atol=1e-5)
    assert json.loads((tmp_path / "two" / "config.json").read_text())["device"].startswith("2 x CPU")


def test_processes_that_cannot_share_a_batch_are_told(tiny, tmp_path):
    with pytest.raises(InputError, match=r"3 processes cannot share 2 parts.*micro_batch"):
        Training(from_dict(tiny, "t"), None, {}, tmp_path, Group(0, 3, torch.device("cpu")), 5)  # type: ignore[arg-type]


def test_it_learns_what_the_first_round_does_not_know(tiny, tmp_path):
    """Classes on arcs: neighbours know each other, the ends of an arc do not; context must help."""
    random = np.random.default_rng(0)
    planes = np.linalg.qr(random.normal(size=(40, 24, 2)))[0]
    labels = np.repeat(np.arange(40), 12)
    angles = random.uniform(0, 2.4, size=480)
    circle = np.stack([np.cos(angles), np.sin(angles)], axis=1)
    vectors = np.einsum("nij,nj->ni", planes[labels], circle) + 0.12 * random.normal(size=(480, 24))
    path = tmp_path / "arcs.npz"
    np.savez(path, vectors=vectors.astype(np.float32), labels=labels)
    tiny["steps"], tiny["data"]["k"] = 150, [40, 40]
    tiny["model"] |= {"anchors": 41, "dropout": 0.0, "width": 32}
    config = train(from_dict(tiny, "arcs"), [path], tmp_path / "model", device="cpu", quiet=True)
    (quality,) = config["metrics"]["validation"].values()
    assert quality["map"] > quality["map_first"] + 2  # classes that it was never shown


def test_the_folder_holds_what_it_promises(tiny, labelled, tmp_path):
    out = tmp_path / "model"
    config = train(
        from_dict(tiny, "tiny"), [labelled], out, device="cpu", quiet=True, command="kinrank train X"
    )
    files = {"model.onnx", "model.safetensors", "config.json", "card.md", "metrics.jsonl", "curves.png"}
    assert {path.name for path in out.iterdir()} == files | {"training"}
    assert json.loads((out / "config.json").read_text()) == json.loads(json.dumps(config))
    assert (out / "curves.png").read_bytes().startswith(b"\x89PNG")
    card = (out / "card.md").read_text()
    for expected in ("kinrank train X", "recipe `tiny`", "160", "Seed 0", "CPU", "held-out classes"):
        assert expected in card
    assert config["metrics"]["onnx_difference"] < 1e-4
    with pytest.raises(InputError, match="already holds a model"):
        train(from_dict(tiny, "tiny"), [labelled], out, device="cpu", quiet=True)


def test_resume_refuses_another_recipe_and_a_damaged_file(tiny, labelled, tmp_path):
    from kinrank.training.sources import gather

    recipe = from_dict(tiny, "tiny")
    material = gather(recipe, [labelled], [], tmp_path / "lists", quiet=True)
    here = Group(0, 1, torch.device("cpu"))

    def training(recipe):
        return Training(recipe, material.source, material.validation, tmp_path, here, 5)

    training(recipe).run(quiet=True)
    with pytest.raises(InputError, match="another recipe, seed or number of steps"):
        training(recipe.with_changes(seed=1)).run(resume=True, quiet=True)
    (tmp_path / "checkpoint.pt").write_bytes(b"PK\x03\x04 cut off")
    with pytest.raises(InputError, match=r"cannot be read.*delete it"):
        training(recipe).run(resume=True, quiet=True)


def test_an_exploding_loss_is_reported_with_a_cure(tiny, labelled, tmp_path):
    tiny["optimiser"] = {"name": "sgd", "lr": 1e9, "clip": 0.0, "warmup": 0}
    tiny["loss"]["reconstruction"] = "squared"
    with pytest.raises(KinrankError, match=r"loss became nan.*cure"):
        train(from_dict(tiny, "wild"), [labelled], tmp_path / "wild", device="cpu", quiet=True)


def test_step_size_rises_linearly_and_falls_as_a_cosine():
    settings = Optimiser(warmup=10, final=0.1)
    assert step_size(settings, 0, 110) == pytest.approx(1 / 11)
    assert step_size(settings, 10, 110) == pytest.approx(1)
    assert step_size(settings, 60, 110) == pytest.approx(0.1 + 0.9 * 0.5)
    assert step_size(settings, 110, 110) == pytest.approx(0.1)
    assert step_size(Optimiser(warmup=0.5), 49, 100) == pytest.approx(50 / 51)  # a share of all steps
    falling = [step_size(settings, step, 110) for step in range(10, 111)]
    assert falling == sorted(falling, reverse=True)


def test_epochs_are_counted_in_lists(tiny):
    tiny.pop("steps")
    recipe = from_dict(tiny | {"epochs": 3}, "t")
    assert steps_of(recipe, 100) == math.ceil(3 * 100 / 16)
    with pytest.raises(InputError, match="worlds have no end"):
        steps_of(recipe, None)


def test_a_batch_in_parts_has_the_gradient_of_its_mean(tiny, clusters, tmp_path):
    vectors, labels = clusters()
    home = prepare(Labelled("c", vectors, labels), 24, tmp_path, quiet=True)
    tiny["model"]["dropout"] = 0.0
    tiny["optimiser"] = {
        "name": "sgd",
        "lr": 1.0,
        "momentum": 0.0,
        "clip": 0.0,
        "warmup": 0,
        "weight_decay": 0,
    }
    recipe = from_dict(tiny, "t")
    training = Training(
        recipe, ListSet(home, recipe.data), {}, tmp_path, Group(0, 1, torch.device("cpu")), 10**9
    )
    before = {n: p.detach().clone() for n, p in training.model.named_parameters()}
    loss = sum(training.objective(training._draw(part))["loss"] for part in range(2)) / 2
    gradients = torch.autograd.grad(loss, list(training.model.parameters()))
    training._one_step()
    for (name, after), gradient in zip(training.model.named_parameters(), gradients):
        torch.testing.assert_close(before[name] - after, gradient, atol=1e-5, rtol=1e-3)


def test_averaged_weights_are_the_running_mean(tiny, clusters, tmp_path):
    vectors, labels = clusters()
    home = prepare(Labelled("c", vectors, labels), 24, tmp_path, quiet=True)
    recipe = from_dict(tiny, "t")
    training = Training(
        recipe, ListSet(home, recipe.data), {}, tmp_path, Group(0, 1, torch.device("cpu")), 50
    )
    expected = {n: p.detach().clone() for n, p in training.model.named_parameters()}
    for step in range(12):
        training._one_step()
        training.step += 1
        decay = min(0.9, (1 + step) / (10 + step))  # short memory at first, the recipe's later
        for name, value in training.model.named_parameters():
            expected[name] = decay * expected[name] + (1 - decay) * value.detach()
    assert training.average is not None
    for name, value in expected.items():
        torch.testing.assert_close(training.average[name], value, atol=1e-6, rtol=1e-5)


def test_another_models_weights_are_the_start(tiny, labelled, tmp_path):
    recipe = from_dict(tiny, "t")
    first = train(recipe, [labelled], tmp_path / "first", device="cpu", quiet=True)
    assert first is not None and first["step"] > 0
    train(recipe, [labelled], tmp_path / "more", device="cpu", quiet=True, start=str(tmp_path / "first"))
    begun = read_log(tmp_path / "more" / "metrics.jsonl")[0]
    assert begun["step"] == 0 and begun["validation"] == first["metrics"]["validation"]
    tiny["model"]["width"] = 32
    with pytest.raises(InputError, match=r"is of architecture 'paper'.*'width': 24.*'width': 32"):
        train(from_dict(tiny, "t"), [labelled], tmp_path / "x", device="cpu", start=str(tmp_path / "first"))
