"""Where each character of a text comes from: an alphabet of private characters that stand for (character, origin)."""

from __future__ import annotations

from collections.abc import Iterable
from enum import IntEnum

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
    """Gives each (character, origin) a private character, when it first comes.

    A private character stands for one character, so places and lengths are those of the plain text."""

    def __init__(self, forbidden: Iterable[str] = ()) -> None:
        """Excludes the `forbidden` characters, which the template itself writes."""
        self._taken = set(map(ord, forbidden)) | _NON_CHARACTERS
        self._free = (chr(point) for point in _POOL if point not in self._taken)
        self._private: dict[Origin, dict[str, str]] = {origin: {} for origin in Origin}
        self._plain: dict[str, tuple[str, Origin]] = {}
        self._reading = _Reading()

    def forbid(self, characters: Iterable[str]) -> None:
        """Excludes more characters; before anything is written."""
        self._taken.update(map(ord, characters))

    def write(self, text: str, origin: Origin) -> str:
        """Returns a plain `text` as one of that origin. White space stays as it is, and so does what the template says,
        but for characters that would be read as private ones."""
        known = self._private[origin]
        found = known.get(text)
        if found is not None:
            return found
        for character in set(text) - known.keys():
            if self._stays(character, origin):
                known[character] = character
                continue
            private = next(self._free, None)
            if private is None:
                raise TooManyCharactersError("the messages have too many distinct characters")
            known[character] = private
            self._plain[private] = (character, origin)
            self._reading[private] = character
        return "".join(map(known.__getitem__, text))

    def mark(self) -> str:
        """Returns a character of contents that no text has."""
        mark = next(self._free, None)
        if mark is None:
            raise TooManyCharactersError("the template has too many distinct characters")
        for known in self._private.values():
            known[mark] = mark
        self._plain[mark] = (mark, Origin.CONTENT)
        return mark

    def _stays(self, character: str, origin: Origin) -> bool:
        if origin == Origin.TEMPLATE:
            return ord(character) not in _POOL or ord(character) in self._taken
        return character.isspace()

    def read(self, text: str) -> str:
        """Returns the plain text of any mixture."""
        if str.isascii(text):  # a text that reads itself through this may have an answer of its own
            return str.__str__(text)
        return "".join(map(self._reading.__getitem__, str.__iter__(text)))

    def origin(self, character: str) -> Origin:
        """Returns the origin of one character."""
        found = self._plain.get(character)
        return Origin.TEMPLATE if found is None else found[1]

    def origin_of(self, text: str) -> Origin:
        """Returns the origin of a text that is taken as a whole: one character of a caller's makes all of it such."""
        origins = self.origins(text)
        return next((each for each in (Origin.CONTENT, Origin.DATA) if each in origins), Origin.TEMPLATE)

    def origins(self, text: str) -> set[Origin]:
        """Returns the origins of a text's characters; white space has none."""
        plain = self._plain
        return {
            plain[each][1] if each in plain else Origin.TEMPLATE
            for each in set(str.__iter__(text))
            if not each.isspace()
        }

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


class _Reading(dict[str, str]):
    """The plain character of each private one; of others themselves."""

    def __missing__(self, character: str) -> str:
        return character
