"""Parses the patterns by which vocabularies cut text, as far as they use common syntax."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import NamedTuple, NoReturn, TypeAlias

_MOST = 1024  # of a counted loop
_GROUPS = 3  # in one alternative: each of them multiplies the ways through it
_DEPTH = 16
_CLASS = re.compile(r"\\[pP](?:\{([A-Za-z_]+)\}|([A-Z]))")
_HEX = re.compile(r"\\(?:x\{([0-9a-fA-F]{1,6})\}|x([0-9a-fA-F]{2})|u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8}))")
_COUNT = re.compile(r"\{(\d{1,4})(,(\d{1,4})?)?\}")
_NAMED = {"n": "\n", "r": "\r", "t": "\t", "f": "\f"}


class NotUnderstood(ValueError):  # noqa: N818 - a fact about the pattern, which may be right for all that
    """The pattern uses syntax that is not supported."""


class Range(NamedTuple):
    """A range of code points, both ends included."""

    low: int
    high: int


class Class(NamedTuple):
    """A class of characters in the engine's syntax, `source`."""

    source: str


class Not(NamedTuple):
    inner: Characters


class Either(NamedTuple):
    parts: tuple[Characters, ...]


class Both(NamedTuple):
    left: Characters
    right: Characters


Characters: TypeAlias = Range | Class | Not | Either | Both


class Loop(NamedTuple):
    """Characters of a set, at least and at most so many (None: any number)."""

    characters: Characters
    least: int = 1
    most: int | None = 1
    possessive: bool = False


class Run(NamedTuple):
    """Characters of a set, and others in front of one of a third set, any number of them."""

    characters: Characters
    others: Characters
    next: Characters


class Look(NamedTuple):
    """A look-ahead: the next character is in a set; with `negative` it is not, or there is none."""

    characters: Characters
    negative: bool


class End(NamedTuple):
    """The end of the text."""


@dataclass(frozen=True, slots=True)
class Choice:
    """The first of these sequences that leads to a match; with `optional` also nothing."""

    branches: tuple[tuple[Item, ...], ...]
    optional: bool = False


Item: TypeAlias = Loop | Run | Look | End | Choice


def parse(pattern: str) -> Choice:
    """Parses a pattern. Raises NotUnderstood, also for a pattern that matches the empty text."""
    reader = _Reader(pattern)
    choice = reader.choice(0)
    if reader.at < len(pattern):
        reader.refuse()
    if any(map(is_nullable, choice.branches)):
        raise NotUnderstood("it matches the empty text")
    if any(map(_has_early_run, choice.branches)):
        raise NotUnderstood("it goes on behind a loop over more than one character")
    if max(map(_groups, choice.branches)) > _GROUPS:
        raise NotUnderstood(f"it has more than {_GROUPS} groups in one alternative")
    return choice


def is_nullable(items: tuple[Item, ...]) -> bool:
    """Returns True when a sequence matches the empty text."""
    return all(
        item.least == 0
        if isinstance(item, Loop)
        else item.optional or any(map(is_nullable, item.branches))
        if isinstance(item, Choice)
        else True
        for item in items
    )


def _has_early_run(items: tuple[Item, ...], last: bool = True) -> bool:
    """Returns True when something follows a run, which then could be walked again and again."""
    return any(
        any(_has_early_run(branch, last=False) for branch in item.branches)
        if isinstance(item, Choice)
        else isinstance(item, Run) and not (last and place == len(items) - 1)
        for place, item in enumerate(items)
    )


def _groups(items: tuple[Item, ...]) -> int:
    return sum(1 + max(map(_groups, item.branches)) for item in items if isinstance(item, Choice))


class _Reader:
    def __init__(self, pattern: str) -> None:
        self._pattern = pattern
        self._folds = False  # within (?i:...)
        self.at = 0

    def refuse(self) -> NoReturn:
        raise NotUnderstood(f"what stands at character {self.at} of it is not supported")

    def _next(self, text: str) -> bool:
        """Skips `text` if it comes next, and returns whether it did."""
        found = self._pattern.startswith(text, self.at)
        self.at += len(text) * found
        return found

    def _match(self, pattern: re.Pattern[str]) -> re.Match[str] | None:
        match = pattern.match(self._pattern, self.at)
        self.at = match.end() if match else self.at
        return match

    def choice(self, depth: int) -> Choice:
        if depth > _DEPTH:
            self.refuse()
        branches = [self._sequence(depth)]
        while self._next("|"):
            branches.append(self._sequence(depth))
        return Choice(tuple(branches))

    def _sequence(self, depth: int) -> tuple[Item, ...]:
        items: list[Item] = []
        while self.at < len(self._pattern) and self._pattern[self.at] not in "|)":
            item = self._quantified(self._atom(depth))
            if isinstance(item, Choice) and len(item.branches) == 1 and not item.optional:
                items += item.branches[0]
            else:
                items.append(item)
        return tuple(items)

    def _atom(self, depth: int) -> Item:
        if self._next("$"):
            return End()
        if self._next("("):
            return self._group(depth + 1)
        return Loop(self._characters())

    def _group(self, depth: int) -> Item:
        look = "=" if self._next("?=") else "!" if self._next("?!") else ""
        folded = self._folds
        if self._next("?i:"):
            self._folds = True
        elif not look and not self._next("?:") and self._next("?"):
            self.refuse()
        choice = self.choice(depth)
        if not self._next(")"):
            self.refuse()
        self._folds = folded
        characters = _as_characters(choice)
        if look:
            return Look(characters, look == "!") if characters is not None else self.refuse()
        return choice if characters is None else Loop(characters)

    def _count(self) -> tuple[int, int | None] | None:
        """Reads the least and most of a quantifier, if one comes next."""
        if self._next("?"):
            return 0, 1
        if self._next("*"):
            return 0, None
        if self._next("+"):
            return 1, None
        found = self._match(_COUNT)
        if found is None:
            return None
        if self._pattern[self.at : self.at + 1] == "+":  # possessive for one engine, a second loop for another
            self.refuse()
        least = int(found[1])
        return least, least if found[2] is None else int(found[3]) if found[3] else None

    def _quantified(self, item: Item) -> Item:
        count = self._count()
        if count is None:
            return item
        least, most = count
        possessive = self._next("+")
        if self._pattern[self.at : self.at + 1] in ("?", "*", "+", "{"):
            self.refuse()
        if isinstance(item, Loop):
            if max(least, most or 0) > _MOST or (most is not None and (most < least or most == 0)):
                self.refuse()
            return Loop(item.characters, least, most, possessive)
        run = _as_run(item) if isinstance(item, Choice) and (least, most, possessive) == (0, None, False) else None
        if run is not None:
            return run
        empty = isinstance(item, Choice) and any(map(is_nullable, item.branches))
        if isinstance(item, Choice) and (least, most) == (0, 1) and not possessive and not empty:
            return Choice(item.branches, optional=True)
        self.refuse()

    def _characters(self) -> Characters:
        """Reads one character, or a set of them."""
        if self._next("["):
            return self._set()
        if self._next("."):
            return Class(".")
        character = self._pattern[self.at]
        if character == "\\":
            if self._folds:
                self.refuse()
            return self._escape()
        if character in "^*+?{}])":
            self.refuse()
        self.at += 1
        if self._folds and character != "'":
            if not (character.isascii() and character.isalpha()):
                self.refuse()
            return Class(f"(?i:{character})")
        return Range(ord(character), ord(character))

    def _set(self) -> Characters:
        if self._folds:
            self.refuse()
        negated = self._next("^")
        parts: list[Characters] = []
        while not (parts and self._next("]")):
            rest = self._pattern[self.at :]
            # Sets of sets, of which each engine has a way of its own.
            if not rest or rest[0] in "[]" or rest[:2] in ("&&", "--", "~~", "||"):
                self.refuse()
            part = self._one_of_set()
            if self._pattern[self.at : self.at + 1] == "-" and self._pattern[self.at + 1 : self.at + 2] != "]":
                self.at += 1
                rest = self._pattern[self.at :]
                if not rest or rest[0] in "[]-":
                    self.refuse()
                high = self._one_of_set()
                if not (isinstance(part, Range) and isinstance(high, Range) and part.low <= high.low):
                    self.refuse()
                part = Range(part.low, high.high)
            parts.append(part)
        found = parts[0] if len(parts) == 1 else Either(tuple(parts))
        return Not(found) if negated else found

    def _one_of_set(self) -> Characters:
        if self._pattern[self.at] == "\\":
            return self._escape()
        self.at += 1
        return Range(ord(self._pattern[self.at - 1]), ord(self._pattern[self.at - 1]))

    def _escape(self) -> Characters:
        if found := self._match(_CLASS):
            known = Class(rf"\p{{{found[1] or found[2]}}}")
            return Not(known) if found[0][1] == "P" else known
        if found := self._match(_HEX):
            point = int(next(filter(None, found.groups())), 16)
            return Range(point, point) if point < 0x110000 else self.refuse()
        letter = self._pattern[self.at + 1 : self.at + 2]
        if letter and letter in "sdw":
            self.at += 2
            return Class(f"\\{letter}")
        if letter and letter in "SDW":
            self.at += 2
            return Not(Class(f"\\{letter.lower()}"))
        character = _NAMED.get(letter, letter)
        if not character or (character == letter and (letter.isalnum() or not letter.isascii())):
            self.refuse()
        self.at += 2
        return Range(ord(character), ord(character))


def _as_characters(choice: Choice) -> Characters | None:
    """Returns the set that a choice of single characters is, each after at most one look at it; else None."""
    parts: list[Characters] = []
    for branch in choice.branches:
        match branch:
            case (Loop(characters, 1, 1, _),):
                parts.append(characters)
            case (Look(seen, negative), Loop(characters, 1, 1, _)):
                parts.append(Both(Not(seen) if negative else seen, characters))
            case _:
                return None
    return parts[0] if len(parts) == 1 else Either(tuple(parts))


def _as_run(choice: Choice) -> Run | None:
    """Returns the loop that a choice is when it matches one kind of characters, with a look at the next one, any number
    of times."""
    plain: list[Characters] = []
    others: list[tuple[Characters, Characters]] = []
    for branch in choice.branches:
        match branch:
            case (Loop(characters, 1, 1, _),):
                plain.append(characters)
            case (Loop(characters, 1, 1, _), Look(seen, False)):
                others.append((characters, seen))
            case _:
                return None
    if choice.optional or len(others) != 1 or not plain:
        return None
    return Run(plain[0] if len(plain) == 1 else Either(tuple(plain)), *others[0])
