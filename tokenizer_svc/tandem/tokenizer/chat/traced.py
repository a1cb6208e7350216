"""The text that a template works with: each character keeps its origin, and the methods are those of the plain text.

What such a text holds are private characters (`origin.Alphabet`), so an operation that nobody thought of here cannot
lose an origin; it can only find too little. What looks for characters looks in the plain text, and cuts the private
one at the places found.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import wraps
from operator import index
from typing import Any, ClassVar

from markupsafe import Markup, escape

from tandem.tokenizer.chat.formatting import percent
from tandem.tokenizer.chat.origin import Alphabet, Origin

_ESCAPED = re.compile("[&<>'\"]")


class Traced(str):
    """A text of one rendering (`Texts` makes the classes). Templates cannot reach names with an underscore."""

    __slots__ = ("_known",)
    _known: str
    _alphabet: ClassVar[Alphabet]
    _class: ClassVar[type[Traced]]  # of texts that are not safe

    @property
    def _plain(self) -> str:
        try:
            return self._known
        except AttributeError:
            self._known = self._alphabet.read(self)
            return self._known

    def _again(self, private: str) -> Any:
        return str.__new__(type(self), private)

    def _cut(self, start: int, end: int) -> Any:
        found = self._again(str.__getitem__(self, slice(start, end)))
        found._known = self._plain[start:end]
        return found

    def _whole(self, plain: str) -> Any:
        """Returns what was made of this text in a way that tells nothing of single characters."""
        return self._again(self._alphabet.write(plain, self._alphabet.origin_of(self)))

    def _aligned(self, changed: str, form: Callable[[str], str]) -> Any:
        """Gives each character of `changed` the origin of the one that it was made of, mostly by `form`."""
        alphabet = self._alphabet
        if len(alphabet.origins(self)) <= 1:
            return self._whole(changed)
        parts: list[str] = []
        at = 0
        for private, plain in zip(str.__iter__(self), self._plain, strict=True):
            forms = () if plain.isascii() else (form(plain), plain.lower())
            end = at + next((len(each) for each in forms if changed.startswith(each, at)), 1)
            parts.append(alphabet.write(changed[at:end], alphabet.origin(private)))
            at = end
        return self._again("".join(parts)) if at == len(changed) else self._whole(changed)

    # --- what Python asks of a text

    def __str__(self) -> str:
        """Filters call str() before they work on a text; the origin must survive that."""
        return self

    def __repr__(self) -> str:
        """Returns what templates show where they print a list or a dictionary that holds it."""
        return self._alphabet.write(repr(self._plain), self._alphabet.origin_of(self))

    def __html__(self) -> Markup:
        """Returns the text as it is used beside text that a template marked as safe."""
        parts: list[str] = []
        at = 0
        for found in _ESCAPED.finditer(self._plain):
            origin = self._alphabet.origin(str.__getitem__(self, found.start()))
            parts += str.__getitem__(self, slice(at, found.start())), self._alphabet.write(escape(found[0]), origin)
            at = found.end()
        return Markup("".join(parts) + str.__getitem__(self, slice(at, None)))  # noqa: S704 - escaped just now

    def __iter__(self) -> Iterator[Any]:
        return map(self._again, str.__iter__(self))

    def __hash__(self) -> int:
        return hash(self._plain)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, str):
            return NotImplemented
        return self._plain == self._alphabet.read(other)

    def __ne__(self, other: object) -> bool:
        if not isinstance(other, str):
            return NotImplemented
        return self._plain != self._alphabet.read(other)

    def __lt__(self, other: str) -> bool:
        return self._plain < self._alphabet.read(other) if isinstance(other, str) else NotImplemented

    def __le__(self, other: str) -> bool:
        return self._plain <= self._alphabet.read(other) if isinstance(other, str) else NotImplemented

    def __gt__(self, other: str) -> bool:
        return self._plain > self._alphabet.read(other) if isinstance(other, str) else NotImplemented

    def __ge__(self, other: str) -> bool:
        return self._plain >= self._alphabet.read(other) if isinstance(other, str) else NotImplemented

    def __contains__(self, other: object) -> bool:
        return _plain_of(self._alphabet, other) in self._plain

    def __getitem__(self, key: Any) -> Any:
        return self._again(str.__getitem__(self, key))

    def __add__(self, other: Any) -> Any:
        if not isinstance(other, str) or (isinstance(other, Markup) and not isinstance(self, Markup)):
            return NotImplemented  # safe text escapes what it stands beside
        return self._again(str.__add__(self, other))

    def __radd__(self, other: Any) -> Any:
        if not isinstance(other, str):
            return NotImplemented
        return self._again(str.__add__(other, self))

    def __mul__(self, count: Any) -> Any:
        return self._again(str.__mul__(self, count))

    def __rmul__(self, count: Any) -> Any:
        return self._again(str.__mul__(self, count))

    def __mod__(self, values: Any) -> Any:
        return self._again(percent(self, self._plain, values, self._alphabet))

    def __rmod__(self, form: str) -> Any:
        return self._class(form) % self

    # --- methods that cut

    def split(self, sep: Any = None, maxsplit: Any = -1) -> Any:
        if sep is None:  # white space is the same in private
            return list(map(self._again, str.split(self, None, maxsplit)))
        return self._between(self._plain.split(_plain_of(self._alphabet, sep), maxsplit), len(sep))

    def rsplit(self, sep: Any = None, maxsplit: Any = -1) -> Any:
        if sep is None:
            return list(map(self._again, str.rsplit(self, None, maxsplit)))
        return self._between(self._plain.rsplit(_plain_of(self._alphabet, sep), maxsplit), len(sep))

    def _between(self, parts: Sequence[str], gap: int) -> list[Any]:
        found = []
        at = 0
        for part in parts:
            found.append(self._cut(at, at + len(part)))
            at += len(part) + gap
        return found

    def splitlines(self, keepends: Any = False) -> Any:
        return list(map(self._again, str.splitlines(self, keepends)))

    def partition(self, sep: Any, /) -> Any:
        return self._around(sep, len(self._plain.partition(_plain_of(self._alphabet, sep))[0]))

    def rpartition(self, sep: Any, /) -> Any:
        before, found, _ = self._plain.rpartition(_plain_of(self._alphabet, sep))
        return self._around(sep, len(before)) if found else (self._cut(0, 0), self._cut(0, 0), self)

    def _around(self, sep: str, at: int) -> tuple[Any, Any, Any]:
        end = len(self)
        return self._cut(0, at), self._cut(at, min(at + len(sep), end)), self._cut(at + len(sep), end)

    def strip(self, chars: Any = None, /) -> Any:
        return self._within(self._plain.lstrip, self._plain.rstrip, chars)

    def lstrip(self, chars: Any = None, /) -> Any:
        return self._within(self._plain.lstrip, None, chars)

    def rstrip(self, chars: Any = None, /) -> Any:
        return self._within(None, self._plain.rstrip, chars)

    def _within(self, left: Callable[[Any], str] | None, right: Callable[[Any], str] | None, chars: Any) -> Any:
        chars = _plain_of(self._alphabet, chars)
        start = len(self) - len(left(chars)) if left is not None else 0
        end = len(right(chars)) if right is not None else len(self)
        return self._cut(start, max(start, end))

    def removeprefix(self, prefix: Any, /) -> Any:
        return self._cut(len(self) - len(self._plain.removeprefix(_plain_of(self._alphabet, prefix))), len(self))

    def removesuffix(self, suffix: Any, /) -> Any:
        return self._cut(0, len(self._plain.removesuffix(_plain_of(self._alphabet, suffix))))

    # --- methods that put together

    def replace(self, old: Any, new: Any, /, count: Any = -1) -> Any:
        """Replaces `old`; the new text keeps its own origin."""
        old, count = _plain_of(self._alphabet, old), index(count)
        if old != "":
            return self._again(str.join(new, self._between(self._plain.split(old, count), len(old))))
        characters = [*str.__iter__(self), ""]
        count = len(characters) if count < 0 else count
        parts = [part for each in characters[:count] for part in (new, each)]
        return self._again("".join(parts + characters[count:]))

    def join(self, iterable: Iterable[str], /) -> Any:
        return self._again(str.join(self, iterable))

    def center(self, width: Any, fillchar: Any = " ", /) -> Any:
        return self._again(str.center(self, width, fillchar))

    def ljust(self, width: Any, fillchar: Any = " ", /) -> Any:
        return self._again(str.ljust(self, width, fillchar))

    def rjust(self, width: Any, fillchar: Any = " ", /) -> Any:
        return self._again(str.rjust(self, width, fillchar))

    def zfill(self, width: Any, /) -> Any:
        sign = 1 if self._plain[:1] in ("+", "-") else 0
        zeros = "0" * (index(width) - len(self))
        return self._again(str.__getitem__(self, slice(0, sign)) + zeros + str.__getitem__(self, slice(sign, None)))

    def expandtabs(self, tabsize: Any = 8) -> Any:
        return self._again(str.expandtabs(self, tabsize))

    # --- methods that change characters

    @classmethod
    def maketrans(cls, x: Any, /, *more: Any) -> Any:
        read = cls._alphabet.read
        if isinstance(x, Mapping) and not more:
            return str.maketrans({read(key) if isinstance(key, str) else key: each for key, each in x.items()})
        return str.maketrans(*(read(each) if isinstance(each, str) else each for each in (x, *more)))

    def translate(self, table: Any, /) -> Any:
        """Replaces characters. A number of a table may come from anywhere, so its character is not the template's."""

        def changed(private: str, plain: str) -> str:
            try:
                found = table[ord(plain)]
            except LookupError:
                return private
            if isinstance(found, int):
                return self._alphabet.write(chr(found), Origin.DATA)
            if found is not None and not isinstance(found, str):
                raise TypeError("character mapping must return integer, None or str")
            return found or ""

        return self._again("".join(map(changed, str.__iter__(self), self._plain)))

    def encode(self, encoding: Any = "utf-8", errors: Any = "strict") -> Any:
        read = self._alphabet.read
        return Octets(self._plain.encode(read(encoding), read(errors)), self._class)


def _plain_of(alphabet: Alphabet, value: Any) -> Any:
    if isinstance(value, Traced):
        return value._plain
    if isinstance(value, str):
        return alphabet.read(value)
    return tuple(_plain_of(alphabet, each) for each in value) if isinstance(value, tuple) else value


def _asking(name: str) -> Callable[..., Any]:
    """Makes a method of str whose answer is no text."""
    method = getattr(str, name)

    def call(self: Traced, *arguments: Any) -> Any:
        return method(self._plain, *(_plain_of(self._alphabet, each) for each in arguments))

    call.__name__ = name
    return call


def _changing(name: str) -> Callable[..., Any]:
    """Makes a method of str that changes the case of letters."""
    method = getattr(str, name)

    def call(self: Traced) -> Any:
        return self._aligned(method(self._plain), method)

    call.__name__ = name
    return call


for _name in (
    *("startswith", "endswith", "find", "rfind", "index", "rindex", "count"),
    *("isalpha", "isdigit", "isalnum", "isnumeric", "isdecimal", "isupper", "islower", "istitle", "isspace", "isascii"),
    *("isprintable", "isidentifier"),
):
    setattr(Traced, _name, _asking(_name))
for _name in ("upper", "lower", "title", "capitalize", "casefold", "swapcase"):
    setattr(Traced, _name, _changing(_name))


class SafeTraced(Markup, Traced):
    """Such a text that a template marked as safe: it escapes what is put beside it."""

    __slots__ = ()

    def __str__(self) -> Any:
        return str.__new__(self._class, str.__getitem__(self, slice(None)))

    def __repr__(self) -> str:
        return self._alphabet.write(f"Markup({self._plain!r})", self._alphabet.origin_of(self))

    def __iter__(self) -> Iterator[Any]:
        return iter(str(self))

    def unescape(self) -> Any:
        return self.__str__()._whole(Markup(self._plain).unescape())  # noqa: S704 - is unescaped

    def striptags(self) -> Any:
        return self.__str__()._whole(Markup(self._plain).striptags())  # noqa: S704 - is unescaped


class Octets(bytes):
    """The bytes of a text. What is made of bytes again is a caller's text, whatever they came from."""

    _class: type[Traced]

    def __new__(cls, value: Any = b"", of: type[Traced] | None = None) -> Octets:
        self = super().__new__(cls, value)
        if of is not None:
            self._class = of
        return self

    def __repr__(self) -> str:
        return self._class(self._class._alphabet.write(bytes.__repr__(self), Origin.DATA))

    __str__ = __repr__

    def __getitem__(self, key: Any) -> Any:
        return self._again(bytes.__getitem__(self, key))

    def __add__(self, other: Any) -> Any:
        return self._again(bytes.__add__(self, other))

    def __mul__(self, count: Any) -> Any:
        return self._again(bytes.__mul__(self, count))

    __rmul__ = __mul__

    def _again(self, value: Any) -> Any:
        return Octets(value, self._class) if isinstance(value, bytes) else value


class Texts:
    """Makes the texts of one rendering."""

    def __init__(self, alphabet: Alphabet) -> None:
        self.alphabet = alphabet
        names: dict[str, Any] = {"__slots__": (), "_alphabet": alphabet}
        self._text: type[Traced] = type("Text", (Traced,), names)
        self._safe: type[SafeTraced] = type("Markup", (SafeTraced,), names)
        self._text._class = self._safe._class = self._text

    def of(self, plain: str, origin: Origin) -> Traced:
        """Returns a text of that origin."""
        return self._text(self.alphabet.write(plain, origin))

    def traced(self, value: Any) -> Any:
        """Returns a text in whatever characters as one of ours, and anything else as it is."""
        if isinstance(value, str):
            if isinstance(value, Traced):
                return value
            return self.safe(value) if isinstance(value, Markup) else self._text(value)
        if isinstance(value, bytes) and not (isinstance(value, Octets) and hasattr(value, "_class")):
            return Octets(value, self._text)
        return value

    def safe(self, value: Any) -> Any:
        """Marks a text as safe."""
        text = value if isinstance(value, str) else str(value)
        return str.__new__(self._safe, str.__getitem__(text, slice(None)))

    def of_octets(self, value: Any) -> Any:
        """Returns what a method of bytes returned."""
        if isinstance(value, str):
            return self.of(value, Origin.DATA)
        if isinstance(value, (list, tuple)):
            return type(value)(map(self.of_octets, value))
        return self.traced(value)

    def plain(self, value: Any) -> Any:
        """Returns a value with plain texts, however deep."""
        if isinstance(value, Markup):
            return Markup(self.alphabet.read(value))  # noqa: S704 - as it was
        if isinstance(value, str):
            return self.alphabet.read(value)
        if isinstance(value, Octets):
            return bytes(value)
        if isinstance(value, Mapping):
            return {self.plain(key): self.plain(each) for key, each in value.items()}
        if isinstance(value, (list, tuple)):
            read = map(self.plain, value)
            return list(read) if isinstance(value, list) else tuple(read)
        return value

    def on_plain(self, function: Callable[..., Any], skipped: int = 0) -> Callable[..., Any]:
        """Makes a function work on plain texts; a text that it returns is foreign where one of its arguments is.
        `skipped` arguments in front are left as they are."""

        @wraps(function)
        def call(*arguments: Any, **options: Any) -> Any:
            given = arguments[skipped:]
            answer = function(
                *arguments[:skipped],
                *map(self.plain, given),
                **{name: self.plain(each) for name, each in options.items()},
            )
            if not isinstance(answer, str):
                return answer
            written = self.of(answer, self._origin([*given, *options.values()]))
            return self.safe(written) if isinstance(answer, Markup) else written

        return call

    def _origin(self, value: Any) -> Origin:
        if isinstance(value, str):
            return self.alphabet.origin_of(value)
        if isinstance(value, (Mapping, list, tuple)):
            inner = [*value, *value.values()] if isinstance(value, Mapping) else value
            return next((found for each in inner if (found := self._origin(each))), Origin.TEMPLATE)
        return Origin.DATA if isinstance(value, bytes) else Origin.TEMPLATE
