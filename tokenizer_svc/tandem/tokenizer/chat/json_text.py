"""The JSON that a chat request carries as text: read strictly, its order kept.

It is read in the renderer's process (`renderer_process`): a large one blocks nothing else, and its memory is bounded.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

MAX_DEPTH = 64
_MAX_VIOLATIONS = 32
_OWN_VARIABLES = ("messages", "tools", "add_generation_prompt")


class JsonTextError(ValueError):
    """Some texts are not the JSON that they should be; the error holds pairs of a field and what is wrong with it."""

    def __init__(self, violations: Sequence[tuple[str, str]]) -> None:
        super().__init__("; ".join(f"{field}: {description}" for field, description in violations))
        self.violations = tuple(violations)


def read_question(question: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the question that `template.render` takes, with objects in place of their texts. Raises JsonTextError."""
    reader = _Reader()
    arguments = reader.read(question["arguments"], "template_arguments")
    for name in _OWN_VARIABLES:
        if name in arguments:
            reader.violations.append(("template_arguments", f"has the key {name!r}, which the request itself gives"))
    tools = [reader.read(text, f"tools[{index}]") for index, text in enumerate(question["tools"])]
    messages = [reader.message(message, f"messages[{index}]") for index, message in enumerate(question["messages"])]
    if reader.violations:
        raise JsonTextError(reader.violations[:_MAX_VIOLATIONS])
    return {**question, "arguments": arguments, "tools": tools, "messages": messages}


def parse_object(text: str) -> dict[str, Any]:
    """Reads a JSON object. Raises ValueError, whose text says what is wrong."""
    try:
        value = json.loads(text, object_pairs_hook=_object, parse_constant=_constant)
    except json.JSONDecodeError as error:
        raise ValueError(f"is not JSON: {error.msg} at character {error.pos}") from None
    except RecursionError:
        raise ValueError(f"is nested deeper than {MAX_DEPTH}") from None
    except _RefusedError:
        raise
    except ValueError:  # of int()
        raise ValueError(f"has an integer of more than {sys.get_int_max_str_digits()} digits") from None
    if not isinstance(value, dict):
        raise ValueError("is JSON, but not an object")
    _check(value, 1)
    return value


class _RefusedError(ValueError):
    """Python's reader accepts the text, but the value cannot be used."""


class _Reader:
    """Reads texts and collects what is wrong with them."""

    def __init__(self) -> None:
        self.violations: list[tuple[str, str]] = []

    def read(self, text: str, field: str) -> dict[str, Any]:
        try:
            return parse_object(text)
        except ValueError as error:
            self.violations.append((field, str(error)))
            return {}

    def message(self, message: dict[str, Any], field: str) -> dict[str, Any]:
        calls = message.get("tool_calls")
        if calls is None:
            return message
        return {**message, "tool_calls": [self._call(call, f"{field}.tool_calls[{i}]") for i, call in enumerate(calls)]}

    def _call(self, call: dict[str, Any], field: str) -> dict[str, Any]:
        function = call["function"]
        arguments = self.read(function["arguments"], f"{field}.arguments")
        return {**call, "function": {**function, "arguments": arguments}}


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        seen: set[str] = set()
        twice = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]
        raise _RefusedError(f"has the key {twice[:80]!r} twice in one object")
    return found


def _constant(name: str) -> NoReturn:
    raise _RefusedError(f"has {name}, which is not JSON")


def _check(value: Any, depth: int) -> None:
    if isinstance(value, str):
        if not value.isascii() and any("\ud800" <= each <= "\udfff" for each in value):
            raise _RefusedError("has half a character: an escape of a lone surrogate")
    elif isinstance(value, float):
        if not math.isfinite(value):
            raise _RefusedError("has a number beyond the range of a 64-bit float")
    elif isinstance(value, (dict, list)):
        if depth > MAX_DEPTH:
            raise _RefusedError(f"is nested deeper than {MAX_DEPTH}")
        if isinstance(value, dict):
            for key in value:
                _check(key, depth)
        for each in value.values() if isinstance(value, dict) else value:
            _check(each, depth + 1)
