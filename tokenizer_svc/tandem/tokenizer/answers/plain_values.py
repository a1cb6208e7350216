"""Parameters that came as plain text, as JSON."""

from __future__ import annotations

import json

from tandem.tokenizer.answers.literals import Literals
from tandem.tokenizer.answers.parameter_types import type_of
from tandem.tokenizer.answers.reader import BrokenError
from tandem.tokenizer.answers.writer import MOST_DIGITS, OF_PYTHON

TEXT = frozenset({"string"})
_CONTAINERS = {"array": "[", "object": "{"}  # what a value of these types begins with


def as_json(text: str, types: frozenset[str]) -> str:
    """Returns a parameter's text as JSON: as one of its types, or as what it looks like where these are not known."""
    if types == TEXT:
        return json.dumps(text, ensure_ascii=False)
    stripped = text.strip()
    stripped = OF_PYTHON.get(stripped, stripped)
    try:
        value = json.loads(stripped, parse_constant=_refuse, parse_int=_integer)
    except (ValueError, RecursionError):
        return _literal(stripped, types) or json.dumps(text, ensure_ascii=False)
    name = type_of(value)
    others = types | {"integer"} if "number" in types else types
    if "string" in types and (name == "string" or name not in others):  # quotes belong to a text
        return json.dumps(text, ensure_ascii=False)
    return stripped


def _literal(text: str, types: frozenset[str]) -> str:
    """Returns a list or an object that is written as Python does, where it has to be one; "" where it is not."""
    if "string" in types or not any(name in types and text.startswith(_CONTAINERS[name]) for name in _CONTAINERS):
        return ""
    try:
        return Literals(text).whole()
    except BrokenError:
        return ""


def _integer(text: str) -> int:
    if len(text) > MOST_DIGITS:
        raise ValueError
    return int(text)


def _refuse(name: str) -> None:
    raise ValueError(name)
