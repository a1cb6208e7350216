"""Structural tags: text in which a trigger begins one of several structures, each JSON of its own schema.

    {"structures": [{"begin": "<f>", "schema": {...}, "end": "</f>"}], "triggers": ["<"]}                 or
    {"format": {"type": "triggered_tags", "triggers": ["<"],
                "tags": [{"begin": "<f>", "content": {"type": "json_schema", "json_schema": {...}}, "end": "</f>"}]}}

A tag begins with one of the triggers. With `at_least_one` the answer begins with a tag, and no text stands between
tags; with `stop_after_first` it ends behind the first.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, NamedTuple

from tandem.common.lark import TEXT, Rules, json_value

ALLOWED = (
    "must be JSON with structures and triggers, or with a format of the type triggered_tags whose contents are "
    "json_schema; each begin starts with a trigger"
)
_FLAGS = ("at_least_one", "stop_after_first")
_FIELDS = {"type", "structures", "tags", "triggers", *_FLAGS}


class Tag(NamedTuple):
    """One structure."""

    trigger: str
    begin: str
    schema: Any
    end: str


class StructuralTags(NamedTuple):
    """What an answer may hold beside text."""

    tags: list[Tag]
    at_least_one: bool
    stop_after_first: bool


def read_tags(text: str) -> StructuralTags:
    """Raises ValueError for what is not allowed."""
    try:
        content = json.loads(text)
        shape = content.get("format", content)
        if shape.get("type", "structural_tag") not in ("structural_tag", "triggered_tags") or shape.keys() - _FIELDS:
            raise ValueError
        flags = [shape.get(flag, False) for flag in _FLAGS]
        if "structures" in shape:
            given = [(tag["begin"], tag["schema"], tag["end"]) for tag in shape["structures"]]
        else:
            given = [(tag["begin"], tag["content"]["json_schema"], tag["end"]) for tag in shape["tags"]]
        tags = [_tag(*each, shape["triggers"]) for each in given]
        if not tags or not all(isinstance(flag, bool) for flag in flags):
            raise ValueError
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, StopIteration):
        raise ValueError(ALLOWED) from None
    return StructuralTags(tags, *flags)


def _tag(begin: str, schema: Any, end: str, triggers: list[str]) -> Tag:
    return Tag(next(each for each in triggers if each and begin.startswith(each)), begin, schema, end + "")


def lark_of(tags: StructuralTags, control: Mapping[str, int]) -> str:
    """Returns the grammar; `control` are the texts of control tokens."""
    rules = Rules(control)
    bodies = [
        f"{rules.literal(tag.begin[len(tag.trigger) :])} {json_value(tag.schema)} {rules.literal(tag.end)}"
        for tag in tags.tags
    ]
    at_once = " | ".join(f"{rules.literal(tag.trigger)} {body}" for tag, body in zip(tags.tags, bodies, strict=True))
    behind_text = " | ".join(f"{rules.up_to(tag.trigger)} {body}" for tag, body in zip(tags.tags, bodies, strict=True))
    match tags.at_least_one, tags.stop_after_first:
        case True, True:
            return rules.grammar(at_once)
        case True, False:
            return rules.grammar(f"({at_once})+")
        case False, True:
            return rules.grammar(f"{behind_text} | {TEXT}")
    return rules.grammar(f"({behind_text})* {TEXT}")
