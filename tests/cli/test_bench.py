"""`kinrank bench`: one registry, one verb, tables or JSON."""

from __future__ import annotations

import json
from importlib import import_module

import pytest
from click.testing import CliRunner

from kinrank.benchmarks import REGISTRY
from kinrank.cli import bench, root
from kinrank.errors import SpecError


def test_every_benchmark_is_there() -> None:
    for place in REGISTRY.values():
        module, _, attribute = place.partition(":")
        assert callable(getattr(import_module(module), attribute))


def test_unknown_benchmark_lists_what_there_is() -> None:
    with pytest.raises(SpecError, match=r"unknown benchmark 'galery' .did you mean 'gallery'"):
        root.main(["bench", "galery"], standalone_mode=False)


def test_imports_are_measured() -> None:
    answer = CliRunner().invoke(root, ["bench", "imports", "--json"])
    assert answer.exit_code == 0
    data = json.loads(answer.stdout)
    seconds = {row["command"]: row["median s"] for row in data["seconds"]}
    assert 0 < seconds["python -c pass"] <= seconds["kinrank --help"] < 30
    packages = {row["package"]: row["MB"] for row in data["core install"]}
    assert packages["numpy"] > 10 and "torch" not in packages and "pytest" not in packages
    assert answer.stderr == "bench imports ...\n"
    assert "numpy" in bench._text(data)


def test_tables_of_any_plain_data() -> None:
    text = bench._text({"n": 3, "rows": [{"a": 1, "b": 2.5}, {"a": 2, "c": "x"}]})
    assert text.splitlines()[-3:] == ["-  ----  -", "1  2.50  -", "2     -  x"]
    assert "n" in text.splitlines()[2]
