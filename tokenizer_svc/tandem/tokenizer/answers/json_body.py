"""Calls that are written as JSON: {"name": ..., "arguments": {...}}, alone, in a list, or one after the other."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

from tandem.tokenizer.answers.reader import BrokenError, Reader, Steps, Write
from tandem.tokenizer.answers.writer import MAX_DEPTH, OF_PYTHON, CallWriter

_NAMES = frozenset(("name", "tool_name", "function", "function_name"))
_ARGUMENTS = frozenset(("arguments", "parameters", "args", "input"))
_IDS = frozenset(("id", "tool_call_id", "call_id"))
_PLAIN = re.compile(r'[^"\\\x00-\x1f]+')
_WORD = re.compile(r"[-+.0-9A-Za-z]+")
_HEX = re.compile(r"[0-9a-fA-F]{4}")
_SCALAR = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][-+]?[0-9]+)?|true|false|null")


def json_calls(reader: Reader, calls: CallWriter, *, sure: bool = True) -> Steps[None]:
    """Reads a list of calls, or calls with nothing, commas or semicolons between them. Where it is not `sure` that this
    is a call, it must have all parts and the name of a tool. Raises BrokenError."""
    first = yield from reader.solid()
    if first == "[":
        reader.take(1)
        yield from json_items(reader, calls, sure=sure)
        return
    while True:
        yield from json_call(reader, calls, sure=sure)
        following = yield from reader.solid()
        if following and following in ",;":
            reader.take(1)
        elif following != "{":
            return


def json_items(reader: Reader, calls: CallWriter, *, sure: bool = True) -> Steps[None]:
    """Reads what is behind the opening bracket of a list of calls. Raises BrokenError."""
    while True:
        yield from json_call(reader, calls, sure=sure)
        if (yield from another(reader, "]")):
            return


def keyed_calls(reader: Reader, calls: CallWriter) -> Steps[None]:
    """Reads a list of objects, or one, whose keys are names and whose values are arguments. Raises BrokenError."""
    in_list = (yield from reader.solid()) == "["
    if in_list:
        reader.take(1)
    while True:
        yield from _is_next(reader, "{")
        reader.take(1)
        while True:
            calls.begin((yield from _key(reader)))
            yield from _arguments(reader, calls.arguments)
            calls.end()
            reader.record()
            if (yield from another(reader, "}")):
                break
        if not in_list or (yield from another(reader, "]")):
            return


def _key(reader: Reader) -> Steps[str]:
    """Takes a key and its colon. Raises BrokenError."""
    yield from _is_next(reader, '"')
    key = yield from _text(reader)
    yield from _is_next(reader, ":")
    reader.take(1)
    return key


def another(reader: Reader, end: str) -> Steps[bool]:
    """Takes the comma behind one of several, or the end, where it returns True. Raises BrokenError."""
    following = yield from reader.solid()
    if not following or following not in ("," + end):
        raise BrokenError
    return reader.take(1) == end


def json_call(reader: Reader, calls: CallWriter, *, sure: bool) -> Steps[None]:
    """Reads one call. Raises BrokenError."""
    yield from reader.solid()
    call = _Call(calls, sure)
    yield from _members(reader, call)
    call.close()
    reader.record()


class _Call:
    """One object, whose members may come in any order."""

    def __init__(self, calls: CallWriter, sure: bool) -> None:
        self._calls = calls
        self._sure = sure
        self.name: str | None = None
        self.id = ""
        self.has_arguments = False
        self._waiting: list[str] = []  # arguments that came before the name

    def named(self, name: str) -> None:
        if self.name is not None or not (self._sure or self._calls.knows(name)):
            raise BrokenError
        self.name = name
        if self.has_arguments:
            self._calls.begin(name, self.id)
            for text in self._waiting:
                self._calls.arguments(text)

    def begin_arguments(self) -> Write:
        if self.has_arguments:
            raise BrokenError
        self.has_arguments = True
        if self.name is None:
            return self._waiting.append
        self._calls.begin(self.name, self.id)
        return self._calls.arguments

    def close(self) -> None:
        if self.name is None:
            raise BrokenError
        if not self.has_arguments:
            if not self._sure:
                raise BrokenError
            self._calls.begin(self.name, self.id)
            self._calls.arguments("{}")
        self._calls.end()


def _members(reader: Reader, call: _Call) -> Steps[None]:
    yield from _is_next(reader, "{")
    reader.take(1)
    nested = False
    while True:
        key = yield from _key(reader)
        first = yield from reader.solid()
        if key == "function" and first == "{" and not nested:
            nested = True
            yield from _members(reader, call)
        elif key in _NAMES:
            yield from _is_next(reader, '"')
            call.named((yield from _text(reader)))
        elif key in _ARGUMENTS:
            yield from _arguments(reader, call.begin_arguments())
        elif key in _IDS and first == '"' and not call.id:
            call.id = yield from _text(reader)
        elif key == "type" and first == '"':
            if (yield from _text(reader)) not in ("function", "tool_call", "tool_use"):
                raise BrokenError
        else:
            raise BrokenError
        if (yield from another(reader, "}")):
            return


def _arguments(reader: Reader, write: Write) -> Steps[None]:
    """Reads an object, an object within a string, or null, which stands for none."""
    first = yield from reader.solid()
    if first == "{":
        yield from json_value(reader, write)
    elif first == '"':
        text = yield from _text(reader)
        try:
            value = json.loads(text)
        except (ValueError, RecursionError):
            raise BrokenError from None
        if not isinstance(value, dict):
            raise BrokenError
        write(text)
    else:
        parts: list[str] = []
        yield from json_value(reader, parts.append)
        if "".join(parts) != "null":
            raise BrokenError
        write("{}")


def json_object(reader: Reader, write: Write) -> Steps[None]:
    """Reads an object, and hands its text on. Raises BrokenError."""
    yield from _is_next(reader, "{")
    yield from json_value(reader, write)


def _is_next(reader: Reader, sign: str) -> Steps[None]:
    if (yield from reader.solid()) != sign:
        raise BrokenError


def _text(reader: Reader) -> Steps[str]:
    parts: list[str] = []
    yield from _string(reader, parts.append)
    value: Any = json.loads("".join(parts))
    if not isinstance(value, str) or any("\ud800" <= each <= "\udfff" for each in value):
        raise BrokenError
    return value


def json_value(reader: Reader, write: Write) -> Steps[None]:
    """Reads one value of JSON and hands its text on, piece by piece: as it is, but for line ends and tabs within
    strings, which get their escapes, and Python's words for true, false and null. Raises BrokenError."""
    closers: list[str] = []
    state = "value"
    while True:
        sign = yield from reader.solid(write if closers else None)
        if not sign:
            raise BrokenError
        if closers and sign == closers[-1] and state in ("first", "first key", "comma"):
            write(reader.take(1))
            closers.pop()
        elif state in ("value", "first"):
            if sign in "{[":
                if len(closers) >= MAX_DEPTH:
                    raise BrokenError
                write(reader.take(1))
                closers.append("}" if sign == "{" else "]")
                state = "first key" if sign == "{" else "first"
                continue
            yield from _string(reader, write) if sign == '"' else _scalar(reader, write)
        elif state in ("key", "first key") and sign == '"':
            yield from _string(reader, write)
            state = "colon"
            continue
        elif state == "colon" and sign == ":":
            write(reader.take(1))
            state = "value"
            continue
        elif state == "comma" and sign == ",":
            write(reader.take(1))
            state = "key" if closers[-1] == "}" else "value"
            continue
        else:
            raise BrokenError
        if not closers:
            return
        state = "comma"


def _string(reader: Reader, write: Write) -> Steps[None]:
    write(reader.take(1))
    while True:
        while not reader.rest:
            if reader.ended:
                raise BrokenError
            yield
        if (match := _PLAIN.match(reader.rest)) is not None:
            write(reader.take(match.end()))
            continue
        sign = reader.rest[0]
        if sign == '"':
            write(reader.take(1))
            return
        if sign != "\\":
            write(json.dumps(reader.take(1))[1:-1])
            continue
        yield from _have(reader, 2)
        if reader.rest[1] in '"\\/bfnrt':
            write(reader.take(2))
            continue
        yield from _have(reader, 6)
        if reader.rest[1] != "u" or _HEX.match(reader.rest, 2) is None:
            raise BrokenError
        write(reader.take(6))


def _have(reader: Reader, count: int) -> Steps[None]:
    while len(reader.rest) < count:
        if reader.ended:
            raise BrokenError
        yield


def _scalar(reader: Reader, write: Write) -> Steps[None]:
    word = yield from word_of(reader, _WORD.match)
    word = OF_PYTHON.get(word, word)
    if _SCALAR.fullmatch(word) is None:
        raise BrokenError
    write(word)


def word_of(reader: Reader, match: Callable[[str], re.Match[str] | None]) -> Steps[str]:
    """Takes all characters that match; "" where the next one does not."""
    parts: list[str] = []
    while True:
        found = match(reader.rest)
        if found is not None:
            parts.append(reader.take(found.end()))
        if reader.rest or reader.ended:
            return "".join(parts)
        yield
