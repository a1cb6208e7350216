"""Calls that are written as Python: [name(key=value), ...], or name(key=value) in a block of code."""

from __future__ import annotations

import re

from tandem.tokenizer.answers.json_body import another, json_items, word_of
from tandem.tokenizer.answers.literals import Literals
from tandem.tokenizer.answers.reader import BrokenError, Reader, Steps
from tandem.tokenizer.answers.writer import LONGEST_NAME, MAX_DEPTH, CallWriter

_NAME = re.compile(r"[\w.\-]+")
_ORDINARY = re.compile(r"""[^()\[\]{}"']+""")
_BEHIND_A_VALUE = ",:)]}"
_IN_STRING = {'"': re.compile(r'[^"\\]+'), "'": re.compile(r"[^'\\]+")}


def python_list(reader: Reader, calls: CallWriter, *, sure: bool = True) -> Steps[None]:
    """Reads calls in brackets. Raises BrokenError."""
    yield from reader.solid()
    yield from reader.expect("[")
    yield from _items(reader, calls, sure=sure)


def _items(reader: Reader, calls: CallWriter, *, sure: bool = True, loose: bool = False) -> Steps[None]:
    while True:
        yield from _call(reader, calls, sure=sure, loose=loose)
        if (yield from another(reader, "]")):
            return


def loose_list(reader: Reader, calls: CallWriter) -> Steps[None]:
    """Reads calls in brackets, in Python or in JSON, whose texts may have their own quotes in them. Raises
    BrokenError."""
    yield from reader.solid()
    yield from reader.expect("[")
    if (yield from reader.solid()) == "{":
        yield from json_items(reader, calls)
    else:
        yield from _items(reader, calls, loose=True)


def python_lines(reader: Reader, calls: CallWriter) -> Steps[None]:
    """Reads calls with white space, commas or semicolons between them, in brackets or not. Raises BrokenError."""
    if (yield from reader.solid()) == "[":
        yield from python_list(reader, calls)
        return
    while True:
        yield from _call(reader, calls)
        following = yield from reader.solid()
        if following and following in ",;":
            reader.take(1)
            following = yield from reader.solid()
        if not _NAME.match(following):
            return


def _call(
    reader: Reader, calls: CallWriter, *, sure: bool = True, printed: bool = False, loose: bool = False
) -> Steps[None]:
    yield from reader.solid()
    name = yield from word_of(reader, _NAME.match)
    if not name or len(name) > LONGEST_NAME or (yield from reader.solid()) != "(":
        raise BrokenError
    if name == "print" and not printed:  # what code does with a result
        reader.take(1)
        yield from _call(reader, calls, sure=sure, printed=True)
        yield from reader.solid()
        yield from reader.expect(")")
        return
    if not sure and not calls.knows(name):
        raise BrokenError
    text = yield from _in_parentheses(reader, loose)
    literals = Literals(text)
    arguments = literals.keywords("=", ")")
    literals.finish()
    calls.begin(name)
    calls.arguments(arguments)
    calls.end()
    reader.record()


def _in_parentheses(reader: Reader, loose: bool) -> Steps[str]:
    """Takes what is behind the opening parenthesis, with the closing one."""
    reader.take(1)
    parts: list[str] = []
    depth = 1
    while depth:
        if not (yield from reader.peek()):
            raise BrokenError
        if (match := _ORDINARY.match(reader.rest)) is not None:
            parts.append(reader.take(match.end()))
            continue
        sign = reader.take(1)
        parts.append(sign)
        if sign in _IN_STRING:
            yield from _string(reader, sign, parts, loose)
        else:
            depth += 1 if sign in "([{" else -1
            if depth > MAX_DEPTH:
                raise BrokenError
    return "".join(parts)


def _string(reader: Reader, quote: str, parts: list[str], loose: bool) -> Steps[None]:
    """Takes a string behind its opening quote. Where it is `loose`, a quote ends it only in front of a sign that may
    stand behind a value; others get a backslash."""
    ordinary = _IN_STRING[quote]
    while True:
        if not (yield from reader.peek()):
            raise BrokenError
        if (match := ordinary.match(reader.rest)) is not None:
            parts.append(reader.take(match.end()))
            continue
        sign = reader.take(1)
        if sign == quote and loose:
            space: list[str] = []
            following = yield from reader.solid(space.append)
            ends = not following or following in _BEHIND_A_VALUE
            parts += [sign if ends else "\\" + sign, *space]
            if ends:
                return
            continue
        parts.append(sign)
        if sign == quote:
            return
        if not (yield from reader.peek()):  # behind a backslash
            raise BrokenError
        parts.append(reader.take(1))
