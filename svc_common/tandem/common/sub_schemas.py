"""The schemas within a JSON schema."""

from __future__ import annotations

from typing import Any

_NAMED = ("properties", "patternProperties", "$defs", "definitions")
_LISTED = ("anyOf", "allOf", "oneOf", "prefixItems", "items")
_SINGLE = ("items", "additionalProperties", "additionalItems")


def sub_schemas(schema: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    """Returns those directly within it that are objects, with their JSON pointers, which begin at it."""
    found: list[tuple[str, Any]] = []
    for key in _NAMED:
        if isinstance(named := schema.get(key), dict):
            found += [(f"/{key}/{escaped(name)}", each) for name, each in named.items()]
    for key in _LISTED:
        if isinstance(listed := schema.get(key), list):
            found += [(f"/{key}/{index}", each) for index, each in enumerate(listed)]
    found += [(f"/{key}", schema[key]) for key in _SINGLE if key in schema]
    return [(pointer, each) for pointer, each in found if isinstance(each, dict)]


def escaped(name: str) -> str:
    """Returns a name as it stands in a JSON pointer."""
    return name.replace("~", "~0").replace("/", "~1")
