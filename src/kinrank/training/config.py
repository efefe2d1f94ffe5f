"""A recipe: everything that decides what a training gives, read from one TOML file.

Shipped recipes lie in `kinrank/training/recipes`; `--recipe` takes one of their names or a file.
"""

from __future__ import annotations

import tomllib
from dataclasses import asdict, dataclass, field, fields
from importlib import import_module
from pathlib import Path
from typing import Any

from kinrank.errors import InputError
from kinrank.registry import unknown

RECIPES = Path(__file__).parent / "recipes"

# Name of an architecture -> where its module class is; `forward(similarities, mask) -> scores (B, K)`.
ARCHITECTURES: dict[str, str] = {
    "paper": "kinrank.training.encoder:PaperCSA",
    "universal": "kinrank.training.universal:UniversalCSA",
    "crl": "kinrank.training.crl:CRL",
    "lattqe": "kinrank.training.lattqe:LAttQE",
    "ssr": "kinrank.training.ssr:SSR",
}


@dataclass(frozen=True)
class Data:
    """How lists are drawn. A pair (low, high) is drawn log-uniformly, once a batch of lists."""

    k: tuple[int, int] = (512, 512)  # candidates
    anchors: tuple[int, int] | None = None  # columns that are not zeroed; None: all
    shuffle_rows: bool = False  # candidate rows in random order, anchors in rank order
    classes: tuple[float, float] = (1.0, 1.0)  # share of the classes that take part
    positives: tuple[int, int] | None = None  # the most relevant items that a list may hold
    dims: tuple[int, int] | None = None  # random projection to so many dimensions
    noise: tuple[float, float] = (0.0, 0.0)  # Gaussian noise, its length relative to the vector's
    worlds: float = 0.0  # share of the batches that come from synthetic worlds
    world: dict[str, Any] = field(default_factory=dict)  # settings of the worlds
    disturb: bool = False  # galleries drawn from the sets and changed, in place of their plain lists
    held_out: float = 0.1  # share of the classes that are kept for validation


@dataclass(frozen=True)
class Loss:
    """`csa`: L_C + lambda L_M. `smooth_ap`: smooth AP + weight_bce * BCE. Losses of other methods: theirs."""

    name: str = "csa"
    temperature: float = 2.0
    weight_mse: float = 0.2  # the paper's lambda
    with_query: bool = False  # the contrastive sums include the query itself, as in the released code
    reconstruction: str = "squared"  # or "mean_squared", or "normalised" (the released code)
    weight_bce: float = 0.0
    margin: float = 0.1  # distance that negatives must keep (lattqe)


@dataclass(frozen=True)
class Optimiser:
    """The step size rises over `warmup` (steps, or a share of all steps below 1) and falls as a cosine."""

    name: str = "sgd"  # or "adamw"
    lr: float = 0.1
    weight_decay: float = 1e-5  # on matrices only
    momentum: float = 0.9
    warmup: float = 0.05
    final: float = 0.0  # share of the step size that is left at the end
    clip: float = 1.0  # gradient norm; 0: no clipping
    average: float = 0.0  # decay of the averaged weights; 0: none


@dataclass(frozen=True)
class Recipe:
    """One training."""

    name: str
    method: str = "csa"
    architecture: str = "paper"
    model: dict[str, Any] = field(default_factory=dict)  # arguments of the architecture
    data: Data = field(default_factory=Data)
    loss: Loss = field(default_factory=Loss)
    optimiser: Optimiser = field(default_factory=Optimiser)
    seed: int = 0
    batch: int = 256  # lists a step, over all processes
    micro_batch: int = 32  # lists that are drawn and pass the model together
    epochs: float | None = None  # passes over the lists; or give steps
    steps: int | None = None
    precision: str = "auto"  # auto: bf16 on CUDA, fp32 elsewhere
    validate_every: int = 500
    validation_batches: int = 8  # micro-batches of each set or kind of worlds
    checkpoint_every: int = 500

    def as_dict(self) -> dict[str, Any]:
        """Plain data, for `config.json`."""
        return asdict(self)

    def with_changes(self, **changes: Any) -> Recipe:
        """The recipe with some fields replaced and checked again; None leaves a field as it is."""
        changes = {key: value for key, value in changes.items() if value is not None}
        if "steps" in changes or "epochs" in changes:  # one replaces the other
            changes = {"steps": None, "epochs": None} | changes
        plain = {key: value for key, value in (self.as_dict() | changes).items() if key != "name"}
        return from_dict(plain, self.name)


_TABLES = {"data": Data, "loss": Loss, "optimiser": Optimiser}


def from_dict(raw: dict[str, Any], name: str) -> Recipe:
    """A recipe from plain data; a key that does not exist is named."""
    known: dict[str, Any] = {"name": name}
    for key, value in raw.items():
        if key not in {f.name for f in fields(Recipe)}:
            raise InputError(f"recipe '{name}': {unknown('key', key, [f.name for f in fields(Recipe)])}")
        known[key] = _table(_TABLES[key], value, f"recipe '{name}' [{key}]") if key in _TABLES else value
    recipe = Recipe(**known)
    _check(recipe)
    return recipe


def _table(kind: type, raw: Any, where: str) -> Any:
    names = [f.name for f in fields(kind)]
    for key in raw:
        if key not in names:
            raise InputError(f"{where}: {unknown('key', key, names)}")
    values = {}
    for key, value in raw.items():
        values[key] = tuple(value) if isinstance(value, list) else value
        if isinstance(value, list) and (len(value) != 2 or value[0] > value[1]):
            raise InputError(f"{where}: {key} must be [low, high], got {value}")
    return kind(**values)


def _check(recipe: Recipe) -> None:
    where = f"recipe '{recipe.name}'"
    if recipe.batch % recipe.micro_batch:
        raise InputError(f"{where}: batch {recipe.batch} is no multiple of micro_batch {recipe.micro_batch}")
    if (recipe.epochs is None) == (recipe.steps is None):
        raise InputError(f"{where}: give either epochs or steps")
    if (recipe.steps if recipe.steps is not None else recipe.epochs or 0) <= 0:
        raise InputError(f"{where}: epochs or steps must be positive")
    if recipe.optimiser.name not in ("sgd", "adamw"):
        raise InputError(f"{where}: {unknown('optimiser', recipe.optimiser.name, ['sgd', 'adamw'])}")
    forms = ["mean_squared", "squared", "normalised"]
    if recipe.loss.reconstruction not in forms:
        raise InputError(f"{where}: {unknown('reconstruction', recipe.loss.reconstruction, forms)}")
    if recipe.precision not in ("auto", "bf16", "fp32"):
        raise InputError(f"{where}: {unknown('precision', recipe.precision, ['auto', 'bf16', 'fp32'])}")
    if not 1 <= recipe.data.k[0] <= recipe.data.k[1]:
        raise InputError(f"{where}: data.k must be [low, high] with low >= 1, got {list(recipe.data.k)}")
    if not 0 <= recipe.data.worlds <= 1:
        raise InputError(f"{where}: data.worlds is a share between 0 and 1, got {recipe.data.worlds}")


def recipe(name: str) -> Recipe:
    """A shipped recipe by its name, or one from a TOML file."""
    path = Path(name)
    if path.suffix != ".toml":
        path = RECIPES / f"{name}.toml"
    if not path.is_file():
        raise InputError(f"{unknown('recipe', name, names())}; or give the path of a .toml file")
    try:
        raw = tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InputError(f"recipe '{path}' is not TOML: {error}") from None
    return from_dict({key: value for key, value in raw.items() if key != "name"}, path.stem)


def names() -> list[str]:
    """The shipped recipes."""
    return sorted(path.stem for path in RECIPES.glob("*.toml"))


def architecture(recipe: Recipe) -> Any:
    """The architecture's class."""
    if recipe.architecture not in ARCHITECTURES:
        raise InputError(unknown("architecture", recipe.architecture, ARCHITECTURES))
    module, _, attribute = ARCHITECTURES[recipe.architecture].partition(":")
    return getattr(import_module(module), attribute)


def needs_vectors(recipe: Recipe) -> bool:
    """Whether the architecture reads vectors, not only similarities."""
    return bool(getattr(architecture(recipe), "needs_vectors", False))


def build_model(recipe: Recipe) -> Any:
    """The architecture's torch module, with the recipe's sizes."""
    try:
        return architecture(recipe)(**recipe.model)
    except TypeError as error:
        raise InputError(f"recipe '{recipe.name}' [model]: {error}") from None
