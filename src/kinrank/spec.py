"""Method specs: `aqe:k=10+csa` -> a re-ranker.

`name` or `name:key=value,key=value`; `+` chains left to right. Keys are the parameters of the
method's constructor, values are read by its type hints. A value that holds `+` or `,` is quoted:
`csa:model='a+b'`.
"""

from __future__ import annotations

import inspect
import re
import types
from typing import Any, Union, get_args, get_origin, get_type_hints

from kinrank.errors import SpecError
from kinrank.registry import load, unknown
from kinrank.rerankers.base import Reranker
from kinrank.rerankers.chain import Chain

_NAME = re.compile(r"[a-z0-9_]+\Z")


def reranker(spec: str) -> Reranker:
    """The re-ranker that a spec names, for example `csa`, `aqe:k=10`, `dfs+csa`."""
    if not isinstance(spec, str) or not spec.strip():
        raise SpecError(f"a method spec is text such as 'aqe:k=10+csa', got {spec!r}")
    stages = [_stage(part, spec) for part in split(spec, "+")]
    return stages[0] if len(stages) == 1 else Chain(stages)


def split(text: str, separator: str) -> list[str]:
    """Parts between separators that stand outside quotes."""
    parts, quote = [""], ""
    for sign in text:
        if quote:
            quote = "" if sign == quote else quote
        elif sign in "'\"":
            quote = sign
        elif sign == separator:
            parts.append("")
            continue
        parts[-1] += sign
    if quote:
        raise SpecError(f"the quote {quote} in '{text}' is never closed")
    return parts


def _stage(part: str, spec: str) -> Reranker:
    name, colon, tail = part.strip().partition(":")
    where = f" in '{spec}'" if part.strip() != spec.strip() else ""
    if not _NAME.match(name):
        raise SpecError(
            f"'{part}'{where} does not start with a method's name; write name:key=value,key=value"
        )
    try:
        method = load("rerankers", name)
    except SpecError as error:
        raise SpecError(f"{error}{where}") from None
    if colon and not tail.strip():
        raise SpecError(f"'{part}'{where} ends after the colon; write {name}:key=value")
    arguments = dict(_argument(item, name, method) for item in split(tail, ",")) if tail else {}
    made: Reranker = method(**arguments)
    return made


def parameters(method: type[Reranker]) -> dict[str, inspect.Parameter]:
    """What a spec may set of a method, by name."""
    if method.__init__ is object.__init__:
        return {}
    return {p.name: p for p in inspect.signature(method).parameters.values()}


def _argument(item: str, name: str, method: type[Reranker]) -> tuple[str, Any]:
    key, equals, text = (piece.strip() for piece in item.partition("="))
    if not equals or not key or not text:
        raise SpecError(f"'{item}' of '{name}' is not key=value")
    known = parameters(method)
    if key not in known:
        raise SpecError(unknown(f"parameter of {name}", key, known))
    kind = get_type_hints(method.__init__).get(key, str)
    return key, _value(text, kind, f"{name}:{key}={text}")


def _value(text: str, kind: Any, where: str) -> Any:
    if get_origin(kind) in (Union, types.UnionType):
        kinds = [k for k in get_args(kind) if k is not type(None)]
        if text.lower() == "none" and len(kinds) < len(get_args(kind)):
            return None
        kind = kinds[0]
    if text[0] in "'\"" and text[-1] == text[0]:
        return text[1:-1]
    if kind is bool:
        if text.lower() in ("true", "false"):
            return text.lower() == "true"
        raise SpecError(f"{where}: '{text}' must be true or false")
    if kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            what = "a whole number" if kind is int else "a number"
            raise SpecError(f"{where}: '{text}' is not {what}") from None
    return text
