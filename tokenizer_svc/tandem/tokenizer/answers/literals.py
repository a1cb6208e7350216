"""Values as Python writes them, and as Gemma does, made into JSON."""

from __future__ import annotations

import json
import math
import re
from functools import cache
from typing import Any

from tandem.tokenizer.answers.reader import BrokenError
from tandem.tokenizer.answers.writer import MAX_DEPTH, MOST_DIGITS

_READABLE = (
    r"""(?P<text>"[^"\\]*+(?:\\.[^"\\]*+)*+"|'[^'\\]*+(?:\\.[^'\\]*+)*+')"""
    r"""|(?P<number>[-+]?+(?:\d[\d_]*+(?:\.\d*+)?+|\.\d++)(?:[eE][-+]?+\d++)?+)(?![\w.])"""
    r"""|(?P<word>[^\W\d][\w.\-]*)"""
    r"""|(?P<sign>[\[\]{}(),:=])"""
)
# Names are written as they are: $filter, 2fa, page[size]. By the sign behind them.
_NAMES = {sign: re.compile(rf"""\s*+([^\s"'<,{{}}(){sign}][^\n"'<,{{}}(){sign}]*+)(?={sign})""") for sign in ":="}
_WORDS = {"True": True, "true": True, "False": False, "false": False, "None": None, "null": None}
_ESCAPE = re.compile(
    r"\\(?:(?P<line>\n)|x(?P<x>[0-9a-fA-F]{2})|u(?P<u>[0-9a-fA-F]{4})|U(?P<U>[0-9a-fA-F]{8})|(?P<letter>.))", re.DOTALL
)
_LETTERS = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f", "a": "\a", "v": "\v", "0": "\0",
            "\\": "\\", "'": "'", '"': '"'}  # fmt: skip


@cache
def _tokens(delimiter: str) -> re.Pattern[str]:
    raw = rf"|{re.escape(delimiter)}(?P<raw>.*?){re.escape(delimiter)}" if delimiter else ""
    return re.compile(rf"\s*+(?:{_READABLE}{raw})", re.DOTALL)


class Literals:
    """Reads values out of a text; what is between two `delimiter` is a text as it stands there. Every method raises
    BrokenError where another thing follows."""

    def __init__(self, text: str, delimiter: str = "") -> None:
        self._text = text
        self._at = 0
        self._tokens = _tokens(delimiter)
        self._has_delimiter = bool(delimiter)

    def keywords(self, colon: str, end: str) -> str:
        """Reads `name=value, ...` up to `end` (`colon` stands in place of "="), and returns a JSON object."""
        found: dict[str, Any] = {}
        while not self._takes(end):
            name = self._name(colon)
            if name is None:
                match = self._match()
                if match.lastgroup not in ("word", "raw"):
                    raise BrokenError
                name = match[match.lastgroup]
            self._sign(colon)
            if name in found:
                raise BrokenError
            found[name] = self._value(1)
            if not self._takes(","):
                self._sign(end)
                break
        return _json(found)

    def whole(self) -> str:
        """Reads a value with nothing behind it, and returns it as JSON."""
        value = self._value(0)
        self.finish()
        return _json(value)

    def finish(self) -> None:
        """Checks that nothing but white space is left."""
        if self._text[self._at :].strip():
            raise BrokenError

    def _value(self, depth: int) -> Any:
        if depth > MAX_DEPTH:
            raise BrokenError
        match = self._match()
        kind, text = match.lastgroup, match[match.lastgroup or 0]
        if kind == "text":
            value = _unescaped(text[1:-1])
            while (following := self._tokens.match(self._text, self._at)) is not None and following.lastgroup == "text":
                self._at = following.end()
                value += _unescaped(following["text"][1:-1])
            return value
        if kind == "raw":
            return text
        if kind == "number":
            return _number(text)
        if kind == "word" and text in _WORDS:
            return _WORDS[text]
        if kind == "word" and self._has_delimiter:  # that was left out
            return text
        if text in ("[", "("):
            return self._list("]" if text == "[" else ")", depth)
        if text == "{":
            return self._object(depth)
        raise BrokenError

    def _list(self, end: str, depth: int) -> list[Any]:
        values: list[Any] = []
        while not self._takes(end):
            values.append(self._value(depth + 1))
            if not self._takes(","):
                self._sign(end)
                break
        return values

    def _object(self, depth: int) -> dict[str, Any]:
        values: dict[str, Any] = {}
        while not self._takes("}"):
            key = self._name(":") if self._has_delimiter else None
            if key is None:
                match = self._match()
                kind = match.lastgroup
                if kind not in ("text", "raw", "word", "number"):
                    raise BrokenError
                key = _unescaped(match["text"][1:-1]) if kind == "text" else match[kind]
            self._sign(":")
            if key in values:
                raise BrokenError
            values[key] = self._value(depth + 1)
            if not self._takes(","):
                self._sign("}")
                break
        return values

    def _name(self, sign: str) -> str | None:
        """Reads a name in front of this sign, which stays; None where none is."""
        match = _NAMES[sign].match(self._text, self._at)
        if match is None:
            return None
        self._at = match.end()
        return match[1].rstrip()

    def _match(self) -> re.Match[str]:
        match = self._tokens.match(self._text, self._at)
        if match is None:
            raise BrokenError
        self._at = match.end()
        return match

    def _sign(self, sign: str) -> None:
        if not self._takes(sign):
            raise BrokenError

    def _takes(self, sign: str) -> bool:
        match = self._tokens.match(self._text, self._at)
        if match is None or match.lastgroup != "sign" or match["sign"] != sign:
            return False
        self._at = match.end()
        return True


def _number(text: str) -> int | float:
    if len(text) > MOST_DIGITS:
        raise BrokenError
    try:
        return int(text)
    except ValueError:
        pass
    try:
        value = float(text)
    except ValueError:
        raise BrokenError from None
    if not math.isfinite(value):
        raise BrokenError
    return value


def _unescaped(text: str) -> str:
    return _ESCAPE.sub(_escape, text) if "\\" in text else text


def _escape(match: re.Match[str]) -> str:
    if match["line"]:
        return ""
    if match["letter"]:
        return _LETTERS.get(match["letter"], match[0])
    point = int(match["x"] or match["u"] or match["U"], 16)
    return chr(point) if point < 0x110000 else match[0]


def _json(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    try:
        text.encode()
    except UnicodeEncodeError:  # half a character, which only an escape can hold
        return json.dumps(value)
    return text
