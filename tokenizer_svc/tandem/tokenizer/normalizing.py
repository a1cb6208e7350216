"""Normalizes text as the `tokenizers` library does, and tells where each character comes from."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Sequence
from typing import Literal, TypeAlias, cast

import regex  # type: ignore[import-untyped]

from tandem.tokenizer.library_characters import FORMLESS, MAYBE_FORMLESS, ONE_OF_MARKS, YOUNG_CAPITALS

Form: TypeAlias = Literal["NFC", "NFD", "NFKC", "NFKD"]
Origins: TypeAlias = list[int]  # for each character of a text the number of the one that it comes from
# A character, and how many more than one it adds to the text: 1 beside the one before it, -n where it is made of n + 1.
_Made: TypeAlias = tuple[str, int]

FORMS = ("NFC", "NFD", "NFKC", "NFKD")
STEPS = (*FORMS, "Lowercase", "StripAccents")
# Two characters that are no marks become some in NFKC and NFKD.
_MANY_MARKS = regex.compile(r"[\p{M}\uff9e\uff9f]{64}")
_FORMLESS = re.compile(f"([{FORMLESS}]+)")
_MAYBE_FORMLESS = re.compile(f"[{MAYBE_FORMLESS}]")
_MARK = regex.compile(ONE_OF_MARKS)
_YOUNG_CAPITAL = re.compile(f"[{''.join(YOUNG_CAPITALS)}]")


class Normalizer:
    """Applies steps of STEPS, one after the other."""

    def __init__(self, steps: Sequence[str]) -> None:
        self.steps = tuple(steps)
        self._plain: list[Callable[[str], str]] = [_plain(step) for step in steps]

    def apply(self, text: str) -> str:
        """Returns the normalized text."""
        for step in self._plain:
            text = step(text)
        return text

    def locate(self, text: str) -> tuple[str, Origins]:
        """Returns the normalized text, and for each of its characters the index of the character of `text` that it
        comes from."""
        origins = list(range(len(text)))
        for step in self.steps:
            text, found = _located(step, text)
            origins = [origins[place] for place in found]
        return text, origins


def _plain(step: str) -> Callable[[str], str]:
    if step == "Lowercase":
        return lowered_by_library
    if step == "StripAccents":
        return lambda text: str(_MARK.sub("", text))
    form = cast(Form, step)
    return lambda text: normalized_by_library(form, text)


def normalized(form: Form, text: str) -> str:
    """Normalizes as `unicodedata` does, whose time for marks in a row grows with the square of their number and holds
    up all threads."""
    if text.isascii() or unicodedata.is_normalized(form, text):
        return text
    if _MANY_MARKS.search(text) is None:
        return unicodedata.normalize(form, text)
    return "".join(character for character, _ in _formed(form, text))


def normalized_by_library(form: Form, text: str) -> str:
    """Normalizes as the library does, whose tables are older."""
    if text.isascii() or unicodedata.is_normalized(form, text):
        return text  # the library's forms are those of its parts, which are normalized, too
    return "".join(part if formless else normalized(form, part) for part, formless in _parts(text))


def lowered_by_library(text: str) -> str:
    """Lower-cases each character by itself, as the library does: Python knows a final sigma."""
    if text.isascii():
        return text.lower()
    return _YOUNG_CAPITAL.sub(lambda found: YOUNG_CAPITALS[found[0]], text.replace("\u03a3", "\u03c3").lower())


def _parts(text: str) -> list[tuple[str, bool]]:
    """Returns the parts of a text, and of each whether it is what the library's normal forms leave alone."""
    if _MAYBE_FORMLESS.search(text) is None:
        return [(text, False)]
    return [(part, number % 2 == 1) for number, part in enumerate(_FORMLESS.split(text))]


def _formed(form: Form, text: str) -> list[_Made]:
    apart: Form = "NFKD" if "K" in form else "NFD"
    made = _ordered([each for character in text for each in _apart(unicodedata.normalize(apart, character))])
    return made if form == apart else _composed(made)


def _located(step: str, text: str) -> tuple[str, Origins]:
    if step == "StripAccents":
        kept = [place for place, character in enumerate(text) if _MARK.match(character) is None]
        return "".join(text[place] for place in kept), kept
    if step == "Lowercase":
        made = [each for character in text for each in _apart(lowered_by_library(character))]
    else:
        form = cast(Form, step)
        if unicodedata.is_normalized(form, text):
            return text, list(range(len(text)))
        made = []
        for part, formless in _parts(text):
            made += [(character, 0) for character in part] if formless else _formed(form, part)
    origins: Origins = []
    at = 0
    for _, change in made:
        origins.append(max(0, at - 1) if change > 0 else at)
        at += 1 - change
    return "".join(character for character, _ in made), origins


def _apart(characters: str) -> list[_Made]:
    return [(character, min(1, number)) for number, character in enumerate(characters)]


def _ordered(made: list[_Made]) -> list[_Made]:
    """Returns marks that follow one another, sorted by combining class."""
    ordered: list[_Made] = []
    marks: list[_Made] = []
    for each in [*made, ("", 0)]:
        if each[0] and unicodedata.combining(each[0]):
            marks.append(each)
            continue
        ordered += sorted(marks, key=lambda mark: unicodedata.combining(mark[0]))
        marks = []
        ordered.append(each)
    return ordered[:-1]


def _composed(made: list[_Made]) -> list[_Made]:
    """Joins characters to the last starter, unless one of the same or a higher combining class is between."""
    composed: list[_Made] = []
    base = -1
    last = 0  # the class of what stands behind the base
    for character, change in made:
        kind = unicodedata.combining(character)
        if base >= 0 and (base == len(composed) - 1 or last < kind):
            together = unicodedata.normalize("NFC", composed[base][0] + character)
            if len(together) == 1:
                composed[base] = together, composed[base][1] + change - 1
                continue
        composed.append((character, change))
        if kind == 0:
            base = len(composed) - 1
        last = kind
    return composed
