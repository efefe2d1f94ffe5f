"""Recipes: the shipped ones build, and a mistake in one is named."""

from __future__ import annotations

import pytest

from kinrank.errors import InputError
from kinrank.training.config import build_model, from_dict, names, needs_vectors, recipe
from kinrank.training.objective import Objective


@pytest.mark.parametrize("name", names())
def test_every_shipped_recipe_builds(name):
    chosen = recipe(name)
    assert chosen.name == name
    if needs_vectors(chosen):  # their length is the data's
        chosen = chosen.with_changes(model={**chosen.model, "dims": 128})
    Objective(build_model(chosen), chosen.loss)


def test_a_recipe_survives_its_own_plain_form(tiny):
    chosen = from_dict(tiny, "tiny")
    assert chosen.with_changes() == chosen
    assert chosen.with_changes(steps=7).steps == 7
    assert recipe("paper").with_changes(steps=7).epochs is None


@pytest.mark.parametrize(
    "change, match",
    [
        ({"bach": 3}, "unknown key 'bach'.*did you mean 'batch'"),
        ({"data": {"kk": 3}}, r"\[data\].*'kk'"),
        ({"data": {"k": [9, 3]}}, "low, high"),
        ({"batch": 12}, "no multiple of micro_batch"),
        ({"epochs": 3}, "either epochs or steps"),
        ({"optimiser": {"name": "adam"}}, "unknown optimiser"),
        ({"precision": "fp8"}, "unknown precision"),
    ],
)
def test_mistakes_are_named(tiny, change, match):
    with pytest.raises(InputError, match=match):
        from_dict(tiny | change, "mine")


def test_unknown_names_list_what_there_is(tiny, tmp_path):
    with pytest.raises(InputError, match="did you mean 'paper'"):
        recipe("papre")
    with pytest.raises(InputError, match="unknown architecture"):
        build_model(from_dict(tiny | {"architecture": "vit"}, "mine"))
    with pytest.raises(InputError, match="unexpected keyword"):
        build_model(from_dict(tiny | {"model": {"depth": 3}}, "mine"))
    (tmp_path / "broken.toml").write_text("batch = ")
    with pytest.raises(InputError, match="not TOML"):
        recipe(str(tmp_path / "broken.toml"))


def test_the_guide_names_every_recipe(root):
    guide = (root / "docs" / "training.md").read_text(encoding="utf-8")
    assert [name for name in names() if f"`{name}`" not in guide] == []
