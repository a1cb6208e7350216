"""Formats with texts in private characters: `%` and `str.format`, whose signs may be a caller's, too."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from jinja2.sandbox import SandboxedEnvironment, SandboxedEscapeFormatter, SandboxedFormatter

from tandem.tokenizer.chat.origin import Alphabet, Origin

_CONVERSION = re.compile(r"%(?:\((?P<key>[^()]*)\))?(?P<flags>[#0\- +]*)(?P<width>\*|\d+)?"
                         r"(?:\.(?P<precision>\*|\d*))?[hlL]?(?P<type>[a-zA-Z%])")  # fmt: skip


def percent(private: str, plain: str, values: Any, alphabet: Alphabet) -> str:
    """Returns `private % values` in private characters; `plain` is what `private` says."""
    arguments = _Arguments(values)
    parts: list[str] = []
    at = 0
    while (start := plain.find("%", at)) >= 0:
        parts.append(str.__getitem__(private, slice(at, start)))
        found = _CONVERSION.match(plain, start)
        if found is None:
            raise ValueError("incomplete or unsupported format")
        at = found.end()
        key = None if found["key"] is None else private[slice(*found.span("key"))]
        parts.append(_converted(found, key, arguments, alphabet, str.__getitem__(private, at - 1)))
    parts.append(str.__getitem__(private, slice(at, None)))
    arguments.check()
    return "".join(parts)


class _Arguments:
    """The values behind a `%`: a tuple of them, a mapping, or one."""

    def __init__(self, values: Any) -> None:
        self._values = values if isinstance(values, tuple) else (values,)
        self._mapping = (
            values if hasattr(type(values), "__getitem__") and not isinstance(values, (tuple, str)) else None
        )
        self._used = 0

    def next(self) -> Any:
        if self._used >= len(self._values):
            raise TypeError("not enough arguments for format string")
        self._used += 1
        return self._values[self._used - 1]

    def named(self, key: str) -> Any:
        if self._mapping is None:
            raise TypeError("format requires a mapping")
        return self._mapping[key]

    def check(self) -> None:
        if self._used < len(self._values) and self._mapping is None:
            raise TypeError("not all arguments converted during string formatting")


def _converted(found: re.Match[str], key: str | None, arguments: _Arguments, alphabet: Alphabet, sign: str) -> str:
    """Returns what stands for one conversion; `sign` is its last character as it stands in the private text."""
    kind, precision = found["type"], found["precision"]
    if found[0] == "%%":
        return sign
    given = [arguments.next()] if found["width"] == "*" else []
    given += [arguments.next()] if precision == "*" else []
    value = arguments.next() if key is None else arguments.named(key)
    form = f"%{found['flags']}{found['width'] or ''}{'' if precision is None else '.' + precision}"
    if kind == "s":
        return _padded(form, given, str(value))
    if kind in "ra":
        shown = repr(value)
        return _padded(form, given, in_ascii(shown, alphabet) if kind == "a" else shown)
    if kind == "c" and isinstance(value, str):
        return _padded(form, given, value) if len(value) == 1 else (form + "c") % (*given, "no character")
    written = (form + kind) % (*given, value)
    return alphabet.write(written, Origin.DATA) if kind == "c" else written


def _padded(form: str, given: list[Any], text: str) -> str:
    return (form + "s") % (*given, str.__getitem__(text, slice(None)))


def in_ascii(shown: str, alphabet: Alphabet) -> str:
    """Returns what ascii() makes of something, whose repr is `shown`."""
    text = alphabet.read(shown).encode("ascii", "backslashreplace").decode()
    return alphabet.write(text, alphabet.origin_of(shown))


class BraceFormatter(SandboxedFormatter):
    """Implements `str.format`."""

    def __init__(self, environment: SandboxedEnvironment, alphabet: Alphabet, **options: Any) -> None:
        super().__init__(environment, **options)
        self._alphabet = alphabet

    def parse(self, private: str) -> Iterator[tuple[str, str | None, str | None, str | None]]:
        """Finds the fields in the plain text; what stands between them stays private."""
        plain = self._alphabet.read(private)
        at = 0
        for literal, field, form, conversion in super().parse(plain):
            text = str.__getitem__(private, slice(at, at + len(literal)))
            at += len(literal)
            if field is None:
                at += literal.endswith(("{", "}"))  # written twice
                yield text, None, None, None
                continue
            at += 1 + len(field) + (2 if conversion else 0)
            start = at + plain.startswith(":", at)
            at = start + len(form or "")
            yield text, field, str.__getitem__(private, slice(start, at)), conversion
            at += 1

    def convert_field(self, value: Any, conversion: Any) -> Any:
        if conversion == "a":
            return in_ascii(repr(value), self._alphabet)
        return super().convert_field(value, conversion)

    def format_field(self, value: Any, format_spec: str) -> str:
        """Formats a value; a character that a caller's text or a number gave is not the template's."""
        origin = self._alphabet.origin_of(format_spec)
        form = self._alphabet.read(format_spec)
        if form.endswith("c"):
            origin = origin or Origin.DATA
        found = super().format_field(value, form)
        return self._alphabet.write(self._alphabet.read(found), origin) if origin else found


class SafeBraceFormatter(BraceFormatter, SandboxedEscapeFormatter):
    """Implements the same of a text that is marked as safe."""
