"""Cuts text by a pattern: each match is a piece, and so is what lies between two matches."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import chain
from typing import TypeAlias

import regex  # type: ignore[import-untyped]

from tandem.tokenizer.vocabularies.patterns import BEFORE_THREES_OF_DIGITS, DIGITS_IN_THREES

Cutter: TypeAlias = Callable[[str], list[str]]


def cutter_of(pattern: str) -> Cutter:
    """Raises ValueError where the pattern is none."""
    if pattern == DIGITS_IN_THREES:
        return lambda text: _in_threes(text, _NUMBERS, apart=True)
    if pattern == BEFORE_THREES_OF_DIGITS:
        return lambda text: _in_threes(text, _DIGITS, apart=False)
    return by_engine(pattern)


def by_engine(pattern: str) -> Cutter:
    """The same by the regular expression itself, whatever it is."""
    try:
        find = regex.compile(pattern).finditer
    except regex.error as error:
        raise ValueError(f"a pattern is no regular expression: {error}") from None

    return lambda text: _cut_at(text, chain.from_iterable(match.span() for match in find(text)))


_NUMBERS = regex.compile(r"\p{N}+")
_DIGITS = regex.compile(r"\d+")


def _in_threes(text: str, runs: regex.Pattern[str], *, apart: bool) -> list[str]:
    """Each run is cut into threes from its right end; `apart`, from what is around it too."""
    places: list[int] = []
    for match in runs.finditer(text):
        start, end = match.span()
        threes = range(start + (end - start) % 3, end, 3)
        places += (start, *threes, end) if apart else threes
    return _cut_at(text, places)


def _cut_at(text: str, places: Iterable[int]) -> list[str]:
    """`places` rise; where two are the same, or one is at an end, there is no piece between."""
    pieces: list[str] = []
    at = 0
    for place in places:
        if place > at:
            pieces.append(text[at:place])
            at = place
    if at < len(text):
        pieces.append(text[at:])
    return pieces
