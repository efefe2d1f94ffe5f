"""Method specs: what they mean, and what a wrong one says."""

from __future__ import annotations

import inspect
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kinrank.errors import KinrankError, SpecError
from kinrank.registry import ROOMS, describe, load, registry
from kinrank.rerankers.base import Reranker
from kinrank.rerankers.chain import Chain
from kinrank.spec import parameters, reranker, split


def test_a_name_is_a_method_with_its_defaults() -> None:
    method = reranker("alphaqe")
    assert (method.k, method.alpha) == (50, 3.0)  # type: ignore[attr-defined]


def test_values_are_read_by_their_type() -> None:
    method = reranker(" alphaqe:k=7, alpha=1.5 ")
    assert (method.k, method.alpha) == (7, 1.5)  # type: ignore[attr-defined]
    assert reranker("affinity:centre=TRUE,anchors=9").centre is True  # type: ignore[attr-defined]
    assert reranker("affinity:centre=false").centre is False  # type: ignore[attr-defined]


def test_plus_chains_left_to_right() -> None:
    chain = reranker("aqe:k=4+affinity:anchors=8+none")
    assert isinstance(chain, Chain)
    assert [type(stage).__name__ for stage in chain.stages] == ["AQE", "Affinity", "NoRerank"]
    assert chain.stages[0].k == 4  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("", "a method spec is text such as"),
        ("   ", "a method spec is text such as"),
        (None, "got None"),
        (5, "got 5"),
        ("aqee", r"unknown reranker 'aqee' \(did you mean 'aqe'\?\); there are: none, affinity"),
        ("none+zzz", "unknown reranker 'zzz'.* in 'none\\+zzz'"),
        ("+aqe", "'' in '\\+aqe' does not start with a method's name"),
        ("aqe+", "'' in 'aqe\\+' does not start"),
        ("AQE", "'AQE' does not start with a method's name"),
        ("aqe:", "ends after the colon"),
        ("aqe:k", "'k' of 'aqe' is not key=value"),
        ("aqe:k=", "'k=' of 'aqe' is not key=value"),
        ("aqe:=3", "is not key=value"),
        ("aqe:kk=3", r"unknown parameter of aqe 'kk' \(did you mean 'k'\?\); there are: k"),
        ("aqe:k=3.5", "aqe:k=3.5: '3.5' is not a whole number"),
        ("aqe:k=many", "is not a whole number"),
        ("alphaqe:alpha=x", "'x' is not a number"),
        ("affinity:centre=yes", "'yes' must be true or false"),
        ("none:k=1", "unknown parameter of none 'k'.*there are: none"),
        ("aqe:k='3", "the quote ' in .* is never closed"),
        ("aqe:k=0", "k must be at least 1, got 0"),
        ("alphaqe:alpha=-1", "alpha must not be negative"),
        ("affinity:anchors=1", "anchors must be at least 2"),
    ],
)
def test_a_wrong_spec_says_which_part(spec: Any, message: str) -> None:
    with pytest.raises(SpecError, match=message):
        reranker(spec)


def test_quotes_protect_separators() -> None:
    assert split("csa:model='a+b'+none", "+") == ["csa:model='a+b'", "none"]
    assert split('x="1,2",y=3', ",") == ['x="1,2"', "y=3"]


@settings(max_examples=300, deadline=None)
@given(st.text(alphabet="aqenol:=+,'\" 0.k-", max_size=25))
def test_any_text_is_a_method_or_a_spec_error(text: str) -> None:
    try:
        method = reranker(text)
    except SpecError as error:
        assert str(error)
    else:
        assert isinstance(method, Reranker)


@pytest.mark.parametrize("name", list(registry("rerankers")))
def test_every_default_can_be_written_in_a_spec(name: str) -> None:
    """`name:key=default` means the same as `name`, for every parameter that has a plain default."""
    try:
        reranker(name)
    except KinrankError:
        pytest.skip(f"{name} needs more than its name")
    for key, parameter in parameters(load("rerankers", name)).items():
        assert parameter.kind is not inspect.Parameter.VAR_POSITIONAL
        if isinstance(parameter.default, bool | int | float | str) and parameter.default != "":
            text = str(parameter.default)
            text = f"'{text}'" if any(sign in text for sign in "+,") else text
            method = reranker(f"{name}:{key}={text}")
            assert type(method) is load("rerankers", name)
            if hasattr(method, key):
                assert getattr(method, key) == parameter.default


@pytest.mark.parametrize("room", list(ROOMS))
def test_every_registered_name_loads_and_has_a_summary(room: str) -> None:
    rows = describe(room)
    assert [row["name"] for row in rows] == list(registry(room))
    for row in rows:
        assert row["summary"], f"{room}: {row['name']} has no docstring"
        assert row["extra"] is None or isinstance(row["extra"], str)
