"""Describes a guide as it was asked for, and checks what can be checked before it is compiled. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import NamedTuple
from urllib.parse import unquote

from tandem.worker.engine.guides.limits import MAX_REFERENCE_DEPTH, MAX_RULE_DEPTH

NO_VOCABULARY = "the worker does not know its vocabulary"


_ROOT = "#"
_ELSEWHERE = ("$defs", "definitions", "enum", "const")
# Strings and regexes that are not closed end with their line: each sign is looked at once.
_LARK = re.compile(
    r'(?P<skip>"(?:[^"\\\n]|\\.)*"?|//[^\n]*|/(?:[^/\\\n]|\\.)+/?|\#[^\n]*)'
    r"|(?P<rule>^[ \t]*[?!]?[A-Za-z_]\w*+(?=[^:\n\"/]*:))"
    r"|(?P<name>[A-Za-z_]\w*)",
    re.MULTILINE,
)


class Guide(NamedTuple):
    """Says what the output must match."""

    kind: str  # "json_schema", "regex", "choices" (a JSON list), "grammar" (Lark) or "structural_tag" (JSON)
    text: str


def depth_violation(guide: Guide) -> str:
    """Explains how its references or rules are nested too deeply; empty if they are not."""
    if guide.kind == "json_schema" and (depth := reference_depth(guide.text)) > MAX_REFERENCE_DEPTH:
        return f"$ref leads to $ref {depth} times in a row; at most {MAX_REFERENCE_DEPTH} are allowed"
    if guide.kind == "grammar" and (depth := rule_depth(guide.text)) > MAX_RULE_DEPTH:
        return f"rules lead to rules {depth} times in a row; at most {MAX_RULE_DEPTH} are allowed"
    return ""


def reference_depth(schema_text: str) -> int:
    """Returns how many `$ref` a compiler follows into each other at most, when it compiles each definition once; 0 for
    what is no JSON."""
    try:
        root = json.loads(schema_text)
    except (ValueError, RecursionError):
        return 0  # told with its place when it is compiled
    uses: dict[str, list[str]] = {}
    names = [_ROOT]
    while names:
        name = names.pop()
        if name in uses:
            continue
        uses[name] = []
        for node in _nodes(_resolved(root, name)):
            reference = node.get("$ref")
            if isinstance(reference, str) and reference.startswith(_ROOT):
                uses[name].append(reference)
        names += uses[name]
    return _depth(uses, _ROOT)


def _nodes(schema: object) -> Iterator[dict[str, object]]:
    """Yields every object in a schema, but for those of definitions, which count where they are used."""
    remaining = [schema]
    while remaining:
        node = remaining.pop()
        if isinstance(node, list):
            remaining += reversed(node)
        elif isinstance(node, dict):
            yield node
            remaining += [value for key, value in reversed(node.items()) if key not in _ELSEWHERE]


def _resolved(root: object, reference: str) -> object:
    node = root
    for part in reference.removeprefix(_ROOT).split("/")[1:]:
        part = unquote(part).replace("~1", "/").replace("~0", "~")
        if isinstance(node, list) and part.isdecimal() and int(part) < len(node):
            node = node[int(part)]
        elif isinstance(node, dict):
            node = node.get(part)
        else:
            return None
    return node


def rule_depth(grammar: str) -> int:
    """Returns how many rules and terminals of a Lark grammar lead to each other at most."""
    uses: dict[str, list[str]] = {}
    names: list[str] = []
    for found in _LARK.finditer(grammar):
        if found["rule"]:
            names = uses.setdefault(found["rule"].strip(" \t?!"), [])
        elif found["name"]:
            names.append(found["name"])
    known = {name: [used for used in names if used in uses] for name, names in uses.items()}
    return _depth({**known, _ROOT: ["start", *known]}, _ROOT)


def _depth(uses: Mapping[str, list[str]], start: str) -> int:
    """Returns the longest path of a depth-first walk from `start` that enters every name once; an edge counts 1."""
    deepest, entered = 0, {start}
    way = [iter(uses[start])]
    while way:
        following = next((name for name in way[-1] if name not in entered), None)
        if following is None:
            way.pop()
            continue
        entered.add(following)
        way.append(iter(uses.get(following, ())))
        deepest = max(deepest, len(way) - 1)
    return deepest
