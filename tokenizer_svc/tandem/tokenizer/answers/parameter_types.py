"""What schemas say of values, for those that read and those that guide calls: the types, and which are listed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

SHARED = ("$defs", "definitions")
_MOST_STEPS = 16  # from one reference to the next
_TYPE_NAMES = {
    str: "string", int: "integer", float: "number", bool: "boolean", type(None): "null", dict: "object", list: "array",
}  # fmt: skip


def resolved(schema: Mapping[str, Any], root: Mapping[str, Any]) -> Mapping[str, Any]:
    """Returns a schema with what it refers to in the definitions of `root`, or has in an allOf of one."""
    for _ in range(_MOST_STEPS):
        following = _step(schema, root)
        if following is None:
            break
        schema = following
    return schema


def _step(schema: Mapping[str, Any], root: Mapping[str, Any]) -> Mapping[str, Any] | None:
    choices = schema.get("allOf")
    if "$ref" in schema:
        key, told = "$ref", _definition(schema["$ref"], root)
    elif isinstance(choices, list) and len(choices) == 1:
        key, told = "allOf", choices[0]
    else:
        return None
    if not isinstance(told, Mapping):
        return None
    return {**told, **{name: each for name, each in schema.items() if name != key}}


def _definition(reference: object, root: Mapping[str, Any]) -> Any:
    _, _, key_and_name = str(reference).partition("#/")
    key, _, name = key_and_name.partition("/")
    definitions = root.get(key) if key in SHARED else None
    return definitions.get(name) if isinstance(definitions, Mapping) else None


def listed(schema: Mapping[str, Any]) -> list[Any] | None:
    """Returns the values that a schema lists; None where it lists none."""
    if "const" in schema:
        return [schema["const"]]
    values = schema.get("enum")
    return values if isinstance(values, list) and values else None


def alternatives(schema: Mapping[str, Any]) -> list[Any]:
    """Returns the schemas of which a value has to keep one; none where there are none."""
    found = (schema.get(key) for key in ("anyOf", "oneOf"))
    return [choice for choices in found if isinstance(choices, list) for choice in choices]


def types_of_values(schema: Mapping[str, Any], root: Mapping[str, Any]) -> frozenset[str]:
    """Returns the types of JSON that a schema allows; none where it does not say them all. `root` has the definitions
    that it may refer to."""
    found: set[str] = set()
    left: list[Any] = [schema]
    entered: set[str] = set()  # references, each once
    while left:
        each = left.pop()
        if not isinstance(each, Mapping):
            return frozenset()
        if "$ref" in each:
            if (reference := str(each["$ref"])) in entered:
                continue
            entered.add(reference)
        if (following := _step(each, root)) is not None:
            left.append(following)
        elif told := _told(each):
            found |= told
        elif choices := alternatives(each):
            left += choices
        else:
            return frozenset()
    return frozenset(found)


def _told(schema: Mapping[str, Any]) -> set[str]:
    if (values := listed(schema)) is not None:
        return {type_of(value) for value in values}
    given = schema.get("type")
    names = [given] if isinstance(given, str) else given if isinstance(given, list) else []
    return {name for name in names if isinstance(name, str)}


def type_of(value: object) -> str:
    """Returns the type of JSON that a value has."""
    return _TYPE_NAMES[type(value)]
