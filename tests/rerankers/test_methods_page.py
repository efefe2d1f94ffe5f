"""docs/methods.md has a section for every registered method, with its defaults and its harm as they are."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import pytest

from kinrank.registry import load, registry
from kinrank.spec import parameters

PAGE = Path(__file__).resolve().parents[2] / "docs" / "methods.md"


def sections() -> dict[str, str]:
    parts = re.split(r"^## `(\w+)`$", PAGE.read_text(encoding="utf-8"), flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2]))


@pytest.mark.parametrize("name", registry("rerankers"))
def test_every_method_has_a_true_section(name: str) -> None:
    text = sections().get(name)
    assert text, f"docs/methods.md has no section '## `{name}`'"
    method = load("rerankers", name)
    for what in ("Source", "Defaults", "Harm", "Cost"):
        assert f"- {what}: " in text
    assert (method.reports_harm or "none of its own") in text
    for parameter in parameters(method).values():
        value = parameter.default
        if parameter.name != "device" and value is not inspect.Parameter.empty and value is not None:
            assert f"`{parameter.name}={value}`" in text


def test_no_section_is_left_over() -> None:
    assert set(sections()) <= {*registry("rerankers"), "ssr"}
