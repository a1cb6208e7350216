"""Calls whose parameters are elements that are named after their keys, and may have elements within (MiniMax M3)."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from tandem.tokenizer.answers.plain_values import as_json
from tandem.tokenizer.answers.reader import BrokenError, Reader, Steps
from tandem.tokenizer.answers.writer import LONGEST_NAME, MAX_DEPTH, CallWriter
from tandem.tokenizer.decoding.stop_strings import StopMatcher

_ITEM = "item"  # the name of an element that is one of a list
_INVOKE, _INVOKE_END = "invoke name=", "/invoke"
_END = StopMatcher([">"])

_Value: TypeAlias = str | list[tuple[str, "_Value"]]  # a text, or elements by their names


@dataclass
class _Element:
    """One that has begun."""

    name: str
    texts: list[str] = field(default_factory=list)
    elements: list[tuple[str, _Value]] = field(default_factory=list)

    def value(self) -> _Value:
        """Raises BrokenError where text stands beside elements."""
        text = "".join(self.texts)
        if self.elements and text.strip():
            raise BrokenError
        return self.elements or text


@dataclass(frozen=True)
class Nested:
    """Each tag stands behind the mark: MARK<invoke name="NAME">MARK<KEY>value MARK</KEY> MARK</invoke>."""

    mark: str

    @property
    def markers(self) -> tuple[str, ...]:
        """What may be a control token."""
        return (self.mark,)

    def read(self, reader: Reader, calls: CallWriter, ends: Sequence[str]) -> Steps[None]:
        """Reads what is between the markers of calls; `ends` stay. Raises BrokenError."""
        tag = StopMatcher([self.mark + "<"])
        begin = f"{self.mark}<{_INVOKE}"
        while True:
            yield from reader.solid()
            yield from reader.expect(begin)
            yield from self._call(reader, calls, tag)
            reader.record()
            yield from reader.solid()
            if not (yield from reader.follows(begin)):
                return

    def _call(self, reader: Reader, calls: CallWriter, tag: StopMatcher) -> Steps[None]:
        name, _ = yield from reader.up_to(_END, LONGEST_NAME)
        name = name.strip().strip("\"'")
        calls.begin(name)
        begun: set[str] = set()
        while True:
            yield from reader.solid()
            yield from reader.expect(self.mark + "<")
            key, _ = yield from reader.up_to(_END, LONGEST_NAME)
            if key == _INVOKE_END:
                break
            if key in begun or not key.strip() or key.startswith("/"):
                raise BrokenError
            value = yield from _value(reader, key, tag)
            calls.arguments(f"{', ' if begun else '{'}{json.dumps(key, ensure_ascii=False)}: ")
            calls.arguments(_json(calls, name, key, value))
            begun.add(key)
        calls.arguments("}" if begun else "{}")
        calls.end()


def _value(reader: Reader, name: str, tag: StopMatcher) -> Steps[_Value]:
    """Reads an element behind its opening tag."""
    begun = [_Element(name)]
    while True:
        if not (yield from reader.until(tag, begun[-1].texts.append)):
            raise BrokenError
        name, _ = yield from reader.up_to(_END, LONGEST_NAME)
        if name == f"/{begun[-1].name}":
            ended = begun.pop()
            if not begun:
                return ended.value()
            begun[-1].elements.append((ended.name, ended.value()))
        elif name.startswith("/") or not name.strip() or len(begun) >= MAX_DEPTH:
            raise BrokenError
        else:
            begun.append(_Element(name))


def _json(calls: CallWriter, tool: str, parameter: str, value: _Value) -> str:
    """Returns a value as JSON. What is within one has no schema here: elements named "item" are a list's, and names
    that come again have a list."""
    types = calls.types(tool, parameter) if parameter else frozenset()
    if isinstance(value, str):
        if not value.strip() and types in ({"array"}, {"object"}):
            return "[]" if "array" in types else "{}"
        return as_json(value, types)
    if types == {"array"} or (types != {"object"} and all(name == _ITEM for name, _ in value)):
        return f"[{', '.join(_json(calls, tool, '', each) for _, each in value)}]"
    found: dict[str, list[str]] = {}
    for name, each in value:
        found.setdefault(name, []).append(_json(calls, tool, "", each))
    pairs = (
        f"{json.dumps(name, ensure_ascii=False)}: {each[0] if len(each) == 1 else '[' + ', '.join(each) + ']'}"
        for name, each in found.items()
    )
    return f"{{{', '.join(pairs)}}}"
