"""The training loop: one process or many, CPU or GPU, killed and resumed, with the same result."""

from __future__ import annotations

import math
import signal
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn
from tqdm import tqdm

from kinrank.errors import InputError, KinrankError
from kinrank.training import checkpoint
from kinrank.training.batch import ListBatch, Source
from kinrank.training.config import Optimiser, Recipe, build_model
from kinrank.training.distributed import Group
from kinrank.training.metrics import evaluate, generator_on, precision_of
from kinrank.training.objective import Objective, takes_mask

REPORT_EVERY = 20  # steps between two lines of the log

Weights = dict[str, torch.Tensor]
Quality = dict[str, dict[str, float]]


@dataclass(frozen=True)
class Trained:
    """What came out: the best weights by validation, with what was measured on the way."""

    weights: Weights
    step: int  # at which they stood
    steps: int
    validation: Quality  # of the best weights, by set, in percent
    seconds: float
    device: str


class Interrupted(KinrankError):
    """The user stopped the training; a checkpoint is kept."""

    exit_code = 130


def steps_of(recipe: Recipe, lists: int | None) -> int:
    """How many steps the recipe takes; epochs are counted in lists."""
    if recipe.steps is not None:
        return recipe.steps
    if not lists:
        raise InputError(f"recipe '{recipe.name}' counts epochs, but worlds have no end; cure: --steps N")
    return max(1, math.ceil((recipe.epochs or 0) * lists / recipe.batch))


def step_size(settings: Optimiser, step: int, steps: int) -> float:
    """Share of the full step size at a step: a linear rise, then a cosine down to `final`."""
    warmup = settings.warmup * steps if settings.warmup < 1 else settings.warmup
    if step < warmup:
        return (step + 1) / (warmup + 1)
    place = (step - warmup) / max(1.0, steps - warmup)
    return settings.final + (1 - settings.final) * 0.5 * (1 + math.cos(math.pi * min(1.0, place)))


def optimiser_of(model: nn.Module, settings: Optimiser) -> torch.optim.Optimizer:
    """SGD or AdamW; weight decay on matrices, not on offsets and norms."""
    trained = [p for p in model.parameters() if p.requires_grad]
    groups = [
        {"params": [p for p in trained if p.ndim >= 2], "weight_decay": settings.weight_decay},
        {"params": [p for p in trained if p.ndim < 2], "weight_decay": 0.0},
    ]
    if settings.name == "adamw":
        return torch.optim.AdamW(groups, lr=settings.lr)
    return torch.optim.SGD(groups, lr=settings.lr, momentum=settings.momentum)


class Training:
    """One training: model, optimiser, averaged weights and the step they stand at."""

    def __init__(
        self,
        recipe: Recipe,
        source: Source,
        validation: Mapping[str, Source],
        folder: Path,
        group: Group,
        steps: int,
        start: Weights | None = None,
    ) -> None:
        parts = recipe.batch // recipe.micro_batch
        if parts % group.size:
            raise InputError(
                f"{group.size} processes cannot share {parts} parts of a batch "
                f"({recipe.batch} lists by {recipe.micro_batch}); cure: a smaller micro_batch"
            )
        # On the CPU this picks oneDNN, twice as fast on AMD; on CUDA it would round similarities to bf16.
        torch.set_float32_matmul_precision("medium" if group.device.type == "cpu" else "highest")
        torch.manual_seed(checkpoint.seed_of(recipe.seed, "weights"))
        self.recipe, self.source, self.validation = recipe, source, validation
        self.group, self.steps, self.parts = group, steps, parts
        self.model: nn.Module = build_model(recipe).to(group.device)
        if start is not None:
            self.model.load_state_dict(start)
        self.objective = group.wrap(Objective(self.model, recipe.loss))
        self.optimiser = optimiser_of(self.model, recipe.optimiser)
        self.average = self._weights() if recipe.optimiser.average else None
        self.best: Weights = self._weights()
        self.best_step, self.best_quality, self.best_gain = 0, Quality(), -math.inf
        self.step, self.seconds = 0, 0.0
        self.folder = folder
        self.path = folder / "checkpoint.pt"

    def run(self, resume: bool = False, quiet: bool = False) -> Trained:
        """Train to the end; `resume` goes on from the checkpoint where there is one."""
        if resume and self.path.is_file():
            self._restore(checkpoint.load(self.path, self.group.device))
        self.group.wait()
        log = checkpoint.Log(self.folder / "metrics.jsonl", self.step) if self.group.leads else None
        bar = tqdm(
            total=self.steps,
            initial=self.step,
            desc=self.recipe.name,
            unit="step",
            disable=True if quiet or not self.group.leads else None,
        )
        with _stop_flag() as stop:
            self._steps(log, bar, stop)
        bar.close()
        if self.group.leads:
            self._save()
        return Trained(
            self.best, self.best_step, self.steps, self.best_quality, self.seconds, _device_name(self.group)
        )

    def _steps(self, log: checkpoint.Log | None, bar: tqdm, stop: threading.Event) -> None:
        recipe, began = self.recipe, time.perf_counter() - self.seconds
        shown: dict[str, str] = {}
        if self.step == 0:
            self._validate(log, shown)  # what the untrained model does
        reported, since = self.step, time.perf_counter()
        while self.step < self.steps:
            parts = self._one_step()
            self.step += 1
            self.seconds = time.perf_counter() - began
            last = self.step == self.steps
            if self.step % REPORT_EVERY == 0 or last:
                values = self._report(parts, log, (self.step - reported) / (time.perf_counter() - since))
                reported, since = self.step, time.perf_counter()
                shown["loss"] = f"{values['loss']:.4f}"
            if self.step % recipe.validate_every == 0 or last:
                self._validate(log, shown)
            bar.set_postfix(shown, refresh=False)
            bar.update()
            stopped = self.group.any(stop.is_set())
            if (self.step % recipe.checkpoint_every == 0 or stopped) and self.group.leads:
                self._save()
            if stopped and not last:
                raise Interrupted(
                    f"stopped at step {self.step} of {self.steps}; the same command with --resume goes on"
                )

    def _one_step(self) -> dict[str, torch.Tensor]:
        """One step on one global batch, of which this process sees its parts."""
        recipe, device = self.recipe, self.group.device
        self.objective.train()
        share = step_size(recipe.optimiser, self.step, self.steps)
        for group in self.optimiser.param_groups:
            group["lr"] = recipe.optimiser.lr * share
        mine = range(self.group.rank, self.parts, self.group.size)
        total: dict[str, torch.Tensor] = {}
        for part in mine:
            batch = self._draw(part)
            torch.manual_seed(checkpoint.seed_of(recipe.seed, self.step, part, "dropout"))
            last = part == mine[-1]
            with self._no_sync() if not last else nullcontext(), precision_of(recipe.precision, device):
                values = self.objective(batch)
                (values["loss"] / len(mine)).backward()
            for name, value in values.items():
                total[name] = total.get(name, 0.0) + value.detach() / len(mine)
        if recipe.optimiser.clip:
            nn.utils.clip_grad_norm_(self.model.parameters(), recipe.optimiser.clip)
        self.optimiser.step()
        self.optimiser.zero_grad(set_to_none=True)
        if self.average is not None:
            decay = min(recipe.optimiser.average, (1 + self.step) / (10 + self.step))
            for name, value in self.model.state_dict().items():
                if value.is_floating_point():
                    self.average[name].lerp_(value, 1 - decay)
                else:
                    self.average[name].copy_(value)
        return total

    def _draw(self, part: int) -> ListBatch:
        recipe, device = self.recipe, self.group.device
        generator = generator_on(device, checkpoint.seed_of(recipe.seed, self.step, part))
        number = self.step * self.parts + part
        batch = self.source.sample(recipe.micro_batch, generator, device, number)
        if not takes_mask(self.model):
            batch = batch.trimmed()
        return batch.rows_shuffled(generator) if recipe.data.shuffle_rows else batch

    def _no_sync(self) -> AbstractContextManager[Any]:
        """Gradients add up over the parts of a batch and are shared with the last one."""
        no_sync = getattr(self.objective, "no_sync", None)
        return no_sync() if no_sync else nullcontext()

    def _report(
        self, parts: dict[str, torch.Tensor], log: checkpoint.Log | None, rate: float
    ) -> dict[str, float]:
        means = self.group.mean(torch.stack([value.float() for value in parts.values()])).tolist()
        values = dict(zip(parts, means))
        if not math.isfinite(values["loss"]):
            raise KinrankError(
                f"the loss became {values['loss']} at step {self.step}; cure: a smaller lr, a longer warmup, "
                "or clipping (clip = 1.0)"
            )
        if log:
            lr = self.optimiser.param_groups[0]["lr"]
            log.write(step=self.step, **values, lr=lr, steps_per_s=round(rate, 3))
        return values

    def _validate(self, log: checkpoint.Log | None, shown: dict[str, str]) -> None:
        """Measure the (averaged) weights on lists never trained on; keep them when they are the best."""
        if self.group.leads:
            current = self._weights()
            if self.average is not None:
                self.model.load_state_dict(self.average)
            quality = {
                name: evaluate(self.model, s, self.recipe, name) for name, s in self.validation.items()
            }
            gain = sum(q["map"] - q["map_first"] for q in quality.values()) / max(1, len(quality))
            if gain > self.best_gain:
                self.best, self.best_step = self._weights(), self.step
                self.best_quality, self.best_gain = quality, gain
            self.model.load_state_dict(current)
            mean = sum(q["map"] for q in quality.values()) / max(1, len(quality))
            shown |= {"mAP": f"{mean:.2f}", "gain": f"{gain:+.2f}"}
            if log:
                log.write(step=self.step, validation=quality, gain=gain)
        self.group.wait()

    def _weights(self) -> Weights:
        return {name: value.detach().clone() for name, value in self.model.state_dict().items()}

    def _save(self) -> None:
        names = ("step", "seconds", "average", "best", "best_step", "best_quality", "best_gain", "steps")
        state = {name: getattr(self, name) for name in names}
        state |= {"model": self.model.state_dict(), "optimiser": self.optimiser.state_dict()}
        checkpoint.save(self.path, state | {"recipe": repr(self.recipe)})

    def _restore(self, state: dict[str, Any]) -> None:
        if state.pop("recipe") != repr(self.recipe) or state.pop("steps") != self.steps:
            raise InputError(
                f"the checkpoint '{self.path}' belongs to another recipe, seed or number of steps; "
                "cure: resume with the same command, or another -o"
            )
        self.model.load_state_dict(state.pop("model"))
        self.optimiser.load_state_dict(state.pop("optimiser"))
        for name, value in state.items():
            setattr(self, name, value)


def _device_name(group: Group) -> str:
    name = torch.cuda.get_device_name(group.device) if group.device.type == "cuda" else group.device.type
    if group.device.type == "cpu":
        name = f"CPU, {torch.get_num_threads()} threads"
    return f"{group.size} x {name}" if group.size > 1 else name


@contextmanager
def _stop_flag() -> Iterator[threading.Event]:
    """Set by the first Ctrl-C or SIGTERM, so that a step is never cut in two; the second one kills."""
    stop = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield stop
        return
    old = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def ask(number: int, frame: Any) -> None:
        stop.set()
        signal.signal(number, old[signal.Signals(number)])

    for number in list(old):
        signal.signal(number, ask)
    try:
        yield stop
    finally:
        for number, handler in old.items():
            signal.signal(number, handler)
