"""Numbers of JSON schemas as llguidance holds them: it keeps each as a float, and its ranges have two holes.

const, enum    an integer that a float cannot tell from its neighbours would be written as another: it is refused
bounds         of more than 64 bits, and the least of 64 bits, cannot be read: they are the furthest that can
(n, n + 1)     where n is whole, n itself would be allowed: from the next number on instead
"""

from __future__ import annotations

import json
import math
from typing import Any

from tandem.common.sub_schemas import escaped, sub_schemas

_INTEGER_MIN, _INTEGER_MAX = -(1 << 63), (1 << 63) - 1
_FURTHEST = (1 << 63) - 1024  # a float
_JUST_ABOVE_ZERO = 1e-15
_MOST_EXACT = 1 << 53


class NotHeldError(ValueError):
    """A schema has a number that cannot be held; the message begins with its JSON pointer."""


def with_held_numbers(schema_text: str) -> str:
    """Returns a schema whose numbers llguidance holds as they are meant; what is no JSON as it is. Raises
    NotHeldError."""
    try:
        root = json.loads(schema_text, parse_constant=_refused)
    except (ValueError, RecursionError):
        return schema_text  # told by the compiler
    changed = False
    left: list[tuple[str, dict[str, Any]]] = [("", root)] if isinstance(root, dict) else []
    while left:
        place, schema = left.pop()
        _check_listed(place, schema)
        changed |= _move_bounds(schema)
        left += [(place + pointer, each) for pointer, each in sub_schemas(schema)]
    return json.dumps(root, ensure_ascii=False) if changed else schema_text


def _refused(name: str) -> Any:
    raise ValueError(f"{name} is no number of JSON")


def _check_listed(place: str, schema: dict[str, Any]) -> None:
    left = [(f"{place}/{key}", schema[key]) for key in ("const", "enum") if key in schema]
    while left:
        place, value = left.pop()
        if isinstance(value, dict):
            left += [(f"{place}/{escaped(name)}", each) for name, each in value.items()]
        elif isinstance(value, list):
            left += [(f"{place}/{index}", each) for index, each in enumerate(value)]
        elif isinstance(value, int) and not _is_held(value):
            raise NotHeldError(f"{place}: {_shown(value)} has more digits than are held; it could be a string")


def _is_held(value: int) -> bool:
    if not _INTEGER_MIN <= value <= _INTEGER_MAX:
        return False
    return min(int(float(value)), _INTEGER_MAX) == value


def _shown(value: int) -> str:
    return str(value) if abs(value) < 10**40 else "an integer"


def _move_bounds(schema: dict[str, Any]) -> bool:
    """Writes a schema's bounds as they are held, in place; returns whether it has."""
    is_integer = schema.get("type") == "integer"
    moved = False
    for key, sign in (("minimum", -1), ("exclusiveMinimum", -1), ("maximum", 1), ("exclusiveMaximum", 1)):
        bound = _number(schema.get(key))
        if bound is not None and bound * sign > _FURTHEST and not (is_integer and sign == 1):
            schema[key], moved = sign * _FURTHEST, True
    if is_integer:
        return moved
    for side, other, sign in (("Minimum", "Maximum", 1), ("Maximum", "Minimum", -1)):
        edge = _number(schema.get(f"exclusive{side}"))
        if edge is None or edge * sign < 0 or abs(edge) > _MOST_EXACT or edge != int(edge):
            continue
        following = math.nextafter(abs(edge), math.inf) if edge else _JUST_ABOVE_ZERO
        if any(following <= bound * sign < abs(edge) + 1 for bound in _bounds(schema, other)):
            schema[side.lower()] = sign * max(following, *(bound * sign for bound in _bounds(schema, side)))
            del schema[f"exclusive{side}"]
            moved = True
    return moved


def _bounds(schema: dict[str, Any], side: str) -> list[float]:
    found = (_number(schema.get(key)) for key in (side.lower(), f"exclusive{side}"))
    return [bound for bound in found if bound is not None]


def _number(value: object) -> float | None:
    return value if isinstance(value, int | float) and not isinstance(value, bool) else None
