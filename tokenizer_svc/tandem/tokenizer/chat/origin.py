"""Text whose characters remember their origin, through whatever a template does to them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from enum import IntEnum
from typing import Any

from markupsafe import Markup, escape

_POOL = range(0xF0000, 0x10FFFE)  # the private-use planes; the two non-characters between them are left out
_NON_CHARACTERS = {0xFFFFE, 0xFFFFF}


class Origin(IntEnum):
    """The author of a character."""

    TEMPLATE = 0
    CONTENT = 1  # the content of a message
    DATA = 2  # names, tools, arguments


class TooManyCharactersError(ValueError):
    """A text has more distinct characters than there are private ones."""


class Alphabet:
    """Gives each (character, origin) a private character, when it first comes."""

    def __init__(self, forbidden: Iterable[str] = ()) -> None:
        """Excludes the `forbidden` characters, which the template itself writes."""
        taken = set(map(ord, forbidden)) | _NON_CHARACTERS
        self._free = (chr(point) for point in _POOL if point not in taken)
        self._private: dict[Origin, dict[str, str]] = {Origin.CONTENT: {}, Origin.DATA: {}}
        self._plain: dict[str, tuple[str, Origin]] = {}

    def write(self, text: str, origin: Origin) -> str:
        """Returns `text` in private characters; white space stays as it is."""
        known = self._private[origin]
        for character in set(text) - known.keys():
            if character.isspace():
                known[character] = character
                continue
            private = next(self._free, None)
            if private is None:
                raise TooManyCharactersError("the messages have too many distinct characters")
            known[character] = private
            self._plain[private] = (character, origin)
        return "".join(map(known.__getitem__, text))

    def read(self, text: str) -> str:
        """Returns the plain text of any mixture."""
        plain = self._plain
        return "".join(plain[each][0] if each in plain else each for each in str.__iter__(text))

    def runs(self, text: str) -> list[tuple[Origin, str]]:
        """Yields the stretches of a mixture by origin. White space belongs to the origin on both of its sides, or else
        to the template."""
        runs: list[tuple[Origin, str]] = []
        part: list[str] = []
        space: list[str] = []
        current = Origin.TEMPLATE

        def close() -> None:
            if part:
                runs.append((current, "".join(part)))
                part.clear()

        for each in text:
            if each.isspace():
                space.append(each)
                continue
            character, origin = self._plain.get(each, (each, Origin.TEMPLATE))
            if origin == current:
                part += space
            else:
                if current == Origin.TEMPLATE:
                    part += space
                    close()
                else:
                    close()
                    if origin == Origin.TEMPLATE:
                        part += space
                    elif space:
                        runs.append((Origin.TEMPLATE, "".join(space)))
                current = origin
            space.clear()
            part.append(character)
        if current == Origin.TEMPLATE:
            part += space
            space.clear()
        close()
        if space:
            runs.append((Origin.TEMPLATE, "".join(space)))
        return runs


class Foreign(str):
    """Text from outside in private characters. It compares and splits as the plain text would."""

    __slots__ = ("_alphabet", "_origin")
    _alphabet: Alphabet
    _origin: Origin

    @classmethod
    def of(cls, text: str, alphabet: Alphabet, origin: Origin) -> Foreign:
        return cls._from_private(alphabet.write(text, origin), alphabet, origin)

    @classmethod
    def _from_private(cls, private: str, alphabet: Alphabet, origin: Origin) -> Foreign:
        self = cls(private)
        self._alphabet, self._origin = alphabet, origin
        return self

    @property
    def _plain(self) -> str:
        """The plain text; templates cannot reach names with an underscore."""
        return self._alphabet.read(self)

    def __str__(self) -> str:
        """Filters call str() before they work on a text; the origin must survive that."""
        return self

    def __repr__(self) -> str:
        """Returns what templates show where they print a list or a dictionary that holds it: all of it is foreign."""
        return self._alphabet.write(repr(self._plain), self._origin)

    def __html__(self) -> Markup:
        """Returns the text as it is used beside text that a template marked as safe."""
        return Markup(self._alphabet.write(escape(self._plain), self._origin))  # noqa: S704 - escaped just now

    def __float__(self) -> float:
        """Serves the filters `int` and `float`, which ask for it."""
        return float(self._plain)

    def __iter__(self) -> Iterator[str]:
        return map(self._again, str.__iter__(self))

    def __hash__(self) -> int:
        return hash(self._plain)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, str) and self._plain == self._alphabet.read(other)

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __lt__(self, other: str) -> bool:
        return self._plain < self._alphabet.read(other)

    def __le__(self, other: str) -> bool:
        return self._plain <= self._alphabet.read(other)

    def __gt__(self, other: str) -> bool:
        return self._plain > self._alphabet.read(other)

    def __ge__(self, other: str) -> bool:
        return self._plain >= self._alphabet.read(other)

    def __contains__(self, other: object) -> bool:
        return isinstance(other, str) and self._alphabet.read(other) in self._plain

    def _again(self, value: Any) -> Any:
        """Returns the result of a method of str in the same alphabet."""
        if type(value) is str:
            return Foreign._from_private(value, self._alphabet, self._origin)
        if isinstance(value, (list, tuple)):
            return type(value)(map(self._again, value))
        return value

    def _argument(self, value: Any) -> Any:
        """Returns a text to search for in the alphabet of this one."""
        if isinstance(value, str):
            return self._alphabet.write(self._alphabet.read(value), self._origin)
        return tuple(map(self._argument, value)) if isinstance(value, tuple) else value

    def __getitem__(self, key: Any) -> Any:
        return self._again(str.__getitem__(self, key))

    def replace(self, old: Any, new: Any, count: Any = -1) -> Any:
        """Replaces `old`; the new text keeps its own origin."""
        return self._again(str.replace(self, self._argument(old), new, count))


def on_plain_text(function: Callable[..., Any]) -> Callable[..., Any]:
    """Makes a function work on the plain text; a text that it returns is as foreign as its argument."""

    def call(value: Any, *arguments: Any, **options: Any) -> Any:
        if not isinstance(value, Foreign):
            return function(value, *arguments, **options)
        answer = function(value._plain, *arguments, **options)
        return Foreign.of(answer, value._alphabet, value._origin) if isinstance(answer, str) else answer

    return call


def _searching(name: str) -> Callable[..., Any]:
    """Makes a method of str search for its text arguments in the receiver's alphabet."""
    method = getattr(str, name)

    def call(self: Foreign, *arguments: Any) -> Any:
        return self._again(method(self, *map(self._argument, arguments)))

    call.__name__ = name
    return call


def _of_plain_text(name: str) -> Callable[..., Any]:
    """Makes a method of str that tests or changes letters work on the plain text, because private characters are no
    letters."""
    method = getattr(str, name)

    def call(self: Foreign, *arguments: Any) -> Any:
        value = method(self._plain, *arguments)
        return Foreign.of(value, self._alphabet, self._origin) if isinstance(value, str) else value

    call.__name__ = name
    return call


for _name in (
    *("split", "rsplit", "partition", "rpartition", "strip", "lstrip", "rstrip", "startswith", "endswith"),
    *("find", "rfind", "index", "rindex", "count", "removeprefix", "removesuffix", "splitlines"),
):
    setattr(Foreign, _name, _searching(_name))
for _name in (
    *("upper", "lower", "title", "capitalize", "casefold", "swapcase"),
    *("isalpha", "isdigit", "isalnum", "isnumeric", "isdecimal", "isupper", "islower", "istitle", "isascii"),
    *("isprintable", "isidentifier"),
):
    setattr(Foreign, _name, _of_plain_text(_name))
