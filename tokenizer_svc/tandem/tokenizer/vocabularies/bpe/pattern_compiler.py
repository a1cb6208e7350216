"""Compiles patterns for `pre_tokenize.c`: steps over sets of characters, and the sets that each character is in."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import lru_cache
from typing import NamedTuple, TypeAlias

import numpy as np
import regex  # type: ignore[import-untyped]
import tiktoken
from numpy.typing import NDArray

from tandem.tokenizer.vocabularies.bpe.pattern_parser import (
    Both,
    Characters,
    Choice,
    Class,
    Either,
    End,
    Item,
    Look,
    Loop,
    Not,
    NotUnderstood,
    Range,
    Run,
    is_nullable,
    parse,
)
from tandem.tokenizer.vocabularies.bpe.pre_tokenizers import BEFORE_THREES_OF_DIGITS, DIGITS_IN_THREES

Points: TypeAlias = NDArray[np.uint32]
Flags: TypeAlias = NDArray[np.bool_]
Engine: TypeAlias = Callable[[str, Points], Flags]  # which of the code points, which ascend, a class of it has

STEP = np.dtype([("kind", "<i4"), ("mask", "<u4"), ("a", "<i4"), ("b", "<i4"), ("memory", "<i4")])
SET, ATOMIC, RUN, LOOK, END, SPLIT, JUMP, MATCH, FAIL = range(9)
PATTERN, THREES_APART, BEFORE_THREES = range(3)
_KNOWN = 1 << 31
_BLOCK = 10  # bits: an engine is asked for so many code points at once
_THREES = {DIGITS_IN_THREES: (THREES_APART, r"\p{N}"), BEFORE_THREES_OF_DIGITS: (BEFORE_THREES, r"\d")}


def tiktokens(source: str, points: Points) -> Flags:
    """Finds a class's characters with the engine in tiktoken: its tokens are the bytes of the characters in the
    class."""
    found = _class_in_tiktoken(source).encode_to_numpy(_text(points), disallowed_special=())
    taken = np.frombuffer(found.astype(np.uint8).tobytes().decode().encode("utf-32-le"), np.uint32)
    return np.isin(points, taken)


@lru_cache(256)
def _class_in_tiktoken(source: str) -> tiktoken.Encoding:
    ranks = {bytes([byte]): byte for byte in range(256)}
    return tiktoken.Encoding("class", pat_str=f"(?:{source})+", mergeable_ranks=ranks, special_tokens={})


def regexs(source: str, points: Points) -> Flags:
    """Finds a class's characters with the `regex` library."""
    taken = "".join(regex.findall(f"(?:{source})+", _text(points)))
    return np.isin(points, np.frombuffer(taken.encode("utf-32-le"), np.uint32))


def _text(points: Points) -> str:
    return points.tobytes().decode("utf-32-le")


class CharacterMasks:
    """The sets of each code point as bits. They are looked up when a text first has characters of their block: asking
    an engine for all characters would take longer than loading a vocabulary."""

    def __init__(self, sets: tuple[Characters, ...], engine: Engine) -> None:
        self._sets, self._engine = sets, engine
        self._lock = threading.Lock()
        self.masks = np.zeros(0x110000, np.uint32)  # memory is taken where something is written
        self.learn(np.zeros(1, np.uint32))

    def learn(self, points: Points) -> None:
        """Looks up the blocks of these code points; raises what the engine raises where it does not know a class."""
        with self._lock:
            blocks = np.unique(points >> _BLOCK)
            blocks = blocks[self.masks[blocks << _BLOCK] == 0]
            wanted = ((blocks << _BLOCK)[:, None] + np.arange(1 << _BLOCK, dtype=np.uint32)).ravel().astype(np.uint32)
            found = np.full(len(wanted), _KNOWN, np.uint32)
            valid = (wanted < 0xD800) | (wanted >= 0xE000)
            wanted, kept = wanted[valid], found[valid]
            for number, characters in enumerate(self._sets):
                kept |= self._has(characters, wanted).astype(np.uint32) << np.uint32(number)
            self.masks[wanted] = kept

    def _has(self, characters: Characters, points: Points) -> Flags:
        match characters:
            case Range(low, high):
                return (points >= low) & (points <= high)
            case Class(source):
                return self._engine(source, points)
            case Not(inner):
                return ~self._has(inner, points)
            case Both(left, right):
                return self._has(left, points) & self._has(right, points)
            case Either(parts):
                found = _in_ranges([part for part in parts if isinstance(part, Range)], points)
                for part in parts:
                    if not isinstance(part, Range):
                        found |= self._has(part, points)
                return found


def _in_ranges(ranges: list[Range], points: Points) -> Flags:
    """Returns which code points are in the ranges. There may be thousands of ranges, in any order."""
    bounds = np.array([Range(0, 0), *((low + 1, high + 1) for low, high in sorted(ranges))], np.int64)
    last = np.searchsorted(bounds[:, 0], points.astype(np.int64) + 1, "right") - 1  # the last that begins before it
    found: Flags = np.maximum.accumulate(bounds[:, 1])[last] > points
    return found


class Program(NamedTuple):
    """A compiled pattern. `memories` counts its loops whose length can vary."""

    kind: int
    steps: NDArray[np.void]
    memories: int
    characters: CharacterMasks


@lru_cache(32)
def compiled(pattern: str, engine: Engine) -> Program:
    """Compiles patterns. Raises NotUnderstood, and what the engine raises where it does not know a class of
    characters."""
    if pattern in _THREES:
        kind, digits = _THREES[pattern]
        return Program(kind, np.zeros(1, STEP), 0, CharacterMasks((Class(digits),), engine))
    compiler = _Compiler(engine is regexs)
    compiler.pattern(parse(pattern))
    steps = np.array(compiler.steps, STEP)
    return Program(PATTERN, steps, compiler.memories, CharacterMasks(tuple(compiler.sets), engine))


class _Compiler:
    """Writes the steps. A step leads to the one behind it; SPLIT and JUMP lead to the step `a`, which always lies
    behind them."""

    def __init__(self, end_may_be_before_a_line_break: bool) -> None:
        self._end = int(end_may_be_before_a_line_break)
        self.sets: dict[Characters, int] = {}
        self.steps: list[tuple[int, int, int, int, int]] = []
        self.memories = 0

    def pattern(self, choice: Choice) -> None:
        for branch in choice.branches:
            split = self._add(SPLIT, self._first(branch) or 0)
            self._sequence(branch)
            self._add(MATCH)
            self._lead_here(split)
        self._add(FAIL)

    def _add(self, kind: int, mask: int = 0, a: int = 0, b: int = 0, memory: int = -1) -> int:
        self.steps.append((kind, mask, a, b, memory))
        return len(self.steps) - 1

    def _lead_here(self, number: int) -> None:
        kind, mask, _, b, memory = self.steps[number]
        self.steps[number] = (kind, mask, len(self.steps), b, memory)

    def _bit(self, characters: Characters) -> int:
        number = self.sets.setdefault(characters, len(self.sets))
        if number > 30:
            raise NotUnderstood("it has more than 31 sets of characters")
        return 1 << number

    def _sequence(self, items: tuple[Item, ...]) -> None:
        for item in items:
            match item:
                case Loop(characters, least, most, possessive):
                    kind = ATOMIC if possessive else SET
                    memory = -1 if least == most else self.memories
                    self.memories += memory >= 0
                    self._add(kind, self._bit(characters), least, -1 if most is None else most, memory)
                case Run(characters, others, following):
                    self._add(RUN, self._bit(characters), self._bit(others), self._bit(following))
                case Look(characters, negative):
                    self._add(LOOK, self._bit(characters), int(negative))
                case End():
                    self._add(END, 0, self._end)
                case Choice():
                    self._choice(item)

    def _choice(self, choice: Choice) -> None:
        around = self._add(SPLIT, self._first((Choice(choice.branches),)) or 0) if choice.optional else None
        jumps: list[int] = []
        for branch in choice.branches[:-1]:
            split = self._add(SPLIT, self._first(branch) or 0)
            self._sequence(branch)
            jumps.append(self._add(JUMP))
            self._lead_here(split)
        self._sequence(choice.branches[-1])
        for step in [*jumps, *([] if around is None else [around])]:
            self._lead_here(step)

    def _first(self, items: tuple[Item, ...]) -> int | None:
        """Returns the sets that a match can begin with; None where it may be empty."""
        mask = 0
        for item in items:
            if isinstance(item, Loop):
                mask |= self._bit(item.characters)
                if item.least:
                    return mask
            elif isinstance(item, Run):
                mask |= self._bit(item.characters) | self._bit(item.others)
            elif isinstance(item, Choice):
                for branch in item.branches:
                    mask |= self._first(branch) or 0
                if not item.optional and not any(map(is_nullable, item.branches)):
                    return mask
        return None
