"""The figures of the CSA paper (Ouyang et al., NeurIPS 2021), as data, and the files that they rest on.

Only figures that were at hand with certainty stand here; what the paper prints and we could not look up is
absent (None), never guessed. `source` says where a figure stands: "paper", or "README" of the authors' code.
mAP in percent, for the settings Medium and Hard.
"""

from __future__ import annotations

from dataclasses import dataclass, field

OXFORD, PARIS = "roxford5k", "rparis6k"
DATASETS = {OXFORD: "ROxf", PARIS: "RPar"}
SETTINGS = {"medium": "M", "hard": "H"}
PLAIN, MILLION = "", "+R1M"
MAIN = "R-GeM"  # the features of every table but the fourth

Column = tuple[str, str, str]  # data set, distractors, setting


def columns(distractors: tuple[str, ...] = (PLAIN,)) -> list[Column]:
    """ROxf M, ROxf H, RPar M, RPar H, and the same with the million distractors."""
    return [(data, more, setting) for more in distractors for data in DATASETS for setting in SETTINGS]


def heading(column: Column) -> str:
    """`ROxf+R1M H`."""
    data, more, setting = column
    return f"{DATASETS.get(data, data)}{more} {SETTINGS.get(setting, setting)}"


def _map(*values: float | None) -> dict[Column, float]:
    """Published mAP in the order of `columns((PLAIN, MILLION))`; what is absent is left out."""
    return {c: v for c, v in zip(columns((PLAIN, MILLION)), values) if v is not None}


@dataclass(frozen=True)
class Features:
    """A kind of features: its dimensions, what made it, and the first round's published mAP."""

    name: str
    files: tuple[str, ...]  # stems of the files that hold it
    dim: int
    weights: str
    first_round: dict[Column, float] = field(default_factory=dict)


FEATURES = {
    kind.name: kind
    for kind in (
        Features(
            "R-GeM",
            ("gl18-tl-resnet101-gem-w", "R-GeM", "rgem"),
            2048,
            "gl18-tl-resnet101-gem-w-a4d43db.pth",
            _map(67.3, 44.3, 80.6, 61.5),
        ),
        Features(
            "V-GeM",
            ("retrievalSfM120k-vgg16-gem", "V-GeM", "vgem"),
            512,
            "retrievalSfM120k-vgg16-gem-b4dcdc6.pth",
            _map(61.6, 34.3, 69.3, 44.9),
        ),
        Features(
            "R-MAC",
            ("dsm-retrained-mac-resnet101", "R-MAC", "rmac"),
            2048,
            "dsm-retrained-mac-resnet101",
            _map(63.3, 35.7, 76.6, 55.5),
        ),
        Features(
            "R-GeM[O]",
            ("imagenet-caffe-resnet101-gem", "R-GeM[O]", "rgem-o"),
            2048,
            "imagenet-caffe-resnet101",
            _map(50.3, 23.0, 73.0, 50.9),
        ),
        Features(
            "R-RMAC[O]",
            ("imagenet-caffe-resnet101-rmac", "R-RMAC[O]", "rrmac-o"),
            2048,
            "imagenet-caffe-resnet101",
            _map(51.2, 21.4, 74.0, 51.7),
        ),
        Features(
            "R50-GeM",
            ("gl18-tl-resnet50-gem-w",),
            2048,
            "gl18-tl-resnet50-gem-w-83fdc30.pth",
            _map(63.6, 40.9, 78.0, 57.5),
        ),
        Features(
            "R152-GeM",
            ("gl18-tl-resnet152-gem-w",),
            2048,
            "gl18-tl-resnet152-gem-w-21278d5.pth",
            _map(68.7, 44.2, 79.7, 60.3),
        ),
    )
}


@dataclass(frozen=True)
class Line:
    """A row of a table: what the paper calls it, the method that gives it here, what was published."""

    label: str
    spec: str  # {csa}, {augmented}, {lattqe}, ...: the method with the model found for that role
    published: dict[Column, float] = field(default_factory=dict)
    source: str = "paper"
    features: str = MAIN
    milliseconds: float | None = None  # published cost a query with a million images
    gigabytes: float | None = None  # published memory with a million images
    precision: dict[Column, tuple[float, float, float]] = field(default_factory=dict)  # mP@1, 5, 10


_CSA = _map(77.92, 58.43, 87.2, 74.41)
# The test log in the README of the authors' code.
_FIRST_PRECISION = dict(
    zip(
        columns(),
        [(95.71, 90.29, 84.57), (87.14, 69.71, 59.86), (100.0, 98.0, 96.86), (97.14, 93.14, 90.57)],
    )
)
_CSA_PRECISION = dict(
    zip(
        columns(),
        [(94.29, 93.14, 89.71), (87.14, 83.43, 73.14), (100.0, 97.14, 96.57), (95.71, 92.86, 90.14)],
    )
)
_AUGMENTED = _map(80.3, 62.4, 90.0, 78.6, 62.8, 39.4, 73.0, 53.0)

COMPARISON = (
    Line("first round", "none", FEATURES[MAIN].first_round),
    Line("AQE", "aqe", _map(72.3, 49.0, 82.7, 65.1)),
    Line("AQEwD", "aqewd"),
    Line("DQE", "dqe"),
    Line("αQE", "alphaqe"),
    Line("LAttQE", "{lattqe}"),
    Line("ADBA + AQE", "adba+aqe"),
    Line("ADBAwD + AQEwD", "adbawd+aqewd"),
    Line("DDBA + DQE", "ddba+dqe"),
    Line("αDBA + αQE", "alphadba+alphaqe"),
    Line("LAttDBA + LAttQE", "{lattdba}+{lattqe}"),
    Line("DSM", "dsm", _map(67.1, 43.7, 80.5, 61.1)),
    Line("RANSAC", "ransac"),
    Line("spatial coding", "spatial"),
    Line("k-reciprocal", "kreciprocal"),
    Line("GNN", "gnn"),
    Line("CDM", "cdm"),
    Line("VisualRank", "visualrank"),
    Line("DFS", "dfs"),
    Line("offline diffusion", "diffusion"),
    Line("FSR", "fsr"),
    Line("GSS", "{gss}", _map(78.0, 60.9, 88.9, 76.5, 57.8, 34.3, 84.8, 69.2)),
    Line("CRL", "{crl}"),
    Line("SSR", "{ssr}"),
    Line("affinity feature", "affinity", _map(72.0, 51.1, 82.9, 66.8, 52.8, 30.5, 66.5, 43.4)),
    Line("CSA", "{csa}", _CSA, "README"),
    Line("CSA, augmented", "{augmented}", _AUGMENTED),
    Line("DFS + CSA", "dfs+{csa}"),
    Line("GSS + CSA", "{gss}+{csa}"),
)

LENGTHS = (64, 128, 256, 512, 1024, 2048)  # K
ANCHORS = (32, 64, 128, 256, 512, 1024)  # L


@dataclass(frozen=True)
class Table:
    """What a table or figure is about."""

    title: str
    lines: tuple[Line, ...] = ()
    distractors: tuple[str, ...] = (PLAIN,)


TABLES: dict[str, Table] = {
    "table1": Table("Re-ranking length K"),
    "table2": Table("Number of anchors L"),
    "table3": Table(
        "Training with and without augmentation",
        (
            Line("first round", "none", FEATURES[MAIN].first_round, precision=_FIRST_PRECISION),
            Line("CSA", "{csa}", _CSA, "README", precision=_CSA_PRECISION),
            Line("CSA, augmented", "{augmented}", _AUGMENTED),
        ),
    ),
    "table4": Table(
        "One model, features that it was not trained on",
        tuple(
            line
            for kind in FEATURES.values()
            for line in (
                Line(f"{kind.name}: first round", "none", kind.first_round, features=kind.name),
                Line(f"{kind.name}: CSA", "{csa}", _CSA if kind.name == MAIN else {}, "README", kind.name),
            )
        ),
    ),
    "table5": Table("Comparison of methods", COMPARISON, (PLAIN, MILLION)),
    "table6": Table(
        "Latency and memory",
        (
            Line("first round", "none"),
            Line("DFS", "dfs", milliseconds=837, gigabytes=7.81),
            Line("GSS", "{gss}", milliseconds=317, gigabytes=15.4),
            Line("CSA", "{csa}", milliseconds=37, gigabytes=7.68),
        ),
        (PLAIN, MILLION),
    ),
    "figures": Table("Depth, width and lambda; and pictures"),
}


@dataclass(frozen=True)
class Wanted:
    """A file that the tables rest on and that cannot be shipped: what it is and where it goes."""

    path: str  # within the data folder
    what: str
    origin: str
    size: int | None = None  # bytes
    sha256: str | None = None  # the whole, or its beginning where the file's name carries it


_CMP = "http://cmp.felk.cvut.cz"
_IMAGES = {OXFORD: (4993, 70), PARIS: (6322, 70)}
_TRUTHS = {
    OXFORD: (149871, "ba7967754bd2d7d2210a5799f9c45ad5835e269a80ef9d3eba44caa35816c471"),
    PARIS: (276508, "d2e729a5293dda7dda8a15c8383424a42e4964a2c4cfea2f32fa85d11d2df499"),
}
DISTRACTORS = 1_001_001


def truth_file(data: str) -> Wanted:
    """The ground truth of a data set; size and checksum are those of the copy that we tested with."""
    size, checksum = _TRUTHS[data]
    origin = f"{_CMP}/revisitop/data/datasets/{data}/gnd_{data}.pkl"
    return Wanted(f"{data}/gnd_{data}.pkl", "ground truth", origin, size, checksum)


def feature_file(data: str, kind: Features) -> Wanted:
    """Features of a data set's queries and images; they are made, since nobody hosts them all."""
    numbers = sum(_IMAGES[data]) * kind.dim
    origin = f"to be extracted with {kind.weights} ({_CMP}/cnnimageretrieval/data/networks)"
    return Wanted(f"{data}/{kind.files[0]}.npz", f"{kind.name} features", origin, 4 * numbers)


def distractor_file(kind: Features) -> Wanted:
    """Features of the million distractors, as float16."""
    origin = f"to be extracted from {_CMP}/revisitop/data/datasets/revisitop1m with {kind.weights}"
    return Wanted(f"r1m/{kind.files[0]}.npy", f"{kind.name} distractors", origin, 2 * DISTRACTORS * kind.dim)


def model_file(role: str) -> Wanted:
    """A trained model; the authors released none."""
    return Wanted(f"models/{role}", f"a trained {role} model", "'kinrank train', or the shipped one")
