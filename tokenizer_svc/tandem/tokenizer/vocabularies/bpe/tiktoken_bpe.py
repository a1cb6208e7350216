"""Byte-pair encoding by tiktoken: where there is no compiled library, or it does not support a pattern."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from itertools import chain
from typing import TypeAlias

import regex  # type: ignore[import-untyped]
import tiktoken

from tandem.tokenizer.arrays import NONE, Ids, ids_of, starts_of
from tandem.tokenizer.vocabularies.bpe.merges import MergeList, PairMerger
from tandem.tokenizer.vocabularies.bpe.pre_tokenizers import BEFORE_THREES_OF_DIGITS, DIGITS_IN_THREES
from tandem.tokenizer.word_cache import WordCache

Cutter: TypeAlias = Callable[[str], list[str]]  # each match of a pattern is a piece, and so is what lies between two

_ONE_PIECE = r"(?s:.+)"
_LONG_RUN = 100_000  # white-space characters in a row that tiktoken's pattern engine is spared
_LONG_WHITE_SPACE = re.compile(rf"\s{{{_LONG_RUN}}}")
_NUMBERS = regex.compile(r"\p{N}+")
_DIGITS = regex.compile(r"\d+")


def by_tiktokens_engine(patterns: Sequence[str]) -> bool:
    """Returns True when there is a single pattern, which most likely covers all of the text."""
    return len(patterns) == 1 and patterns[0].endswith(r"|\s+")


class TiktokenBpe:
    """Encodes text to merge ranks. `ranks` and `whole_pieces` map bytes to a merge rank each, in the order of merge
    ranks.

    Raises ValueError where a pattern is not a regular expression.
    """

    def __init__(
        self,
        patterns: Sequence[str],
        ranks: Mapping[bytes, int],
        whole_pieces: Mapping[bytes, int],
        merges: MergeList | None = None,
        whole: bool = True,
    ) -> None:
        """`merges` and `whole` are those of CompiledBpe."""
        self._ranks = dict(ranks)
        pairs = None if merges is None else PairMerger(list(ranks), merges)
        self._pairs = None if pairs is None or pairs.is_by_product(whole) else pairs
        self._takes_whole = whole
        self.by_pair = self._pairs is not None
        self._whole_pieces = whole_pieces
        self._cutters = list(map(cutter_of, patterns))
        self._whole = self._encoding(_ONE_PIECE)
        self._by_pattern: tiktoken.Encoding | None = None
        if by_tiktokens_engine(patterns) and not whole_pieces and not self.by_pair:
            with suppress(ValueError):  # written for another engine
                self._by_pattern = self._encoding(patterns[0])
        self._words = WordCache(lambda words: [self._encode_piece(word) for word in words])

    def encode(self, text: str) -> Ids:
        """Returns the merge ranks of a text."""
        if self._by_pattern is not None and not _has_long_white_space(text):
            try:
                found = self._by_pattern.encode_to_numpy(text, disallowed_special=())
            except BaseException as error:
                _raise_unless_panic(error)
            else:
                if self._lengths[found].sum() == len(text.encode()):  # tiktoken drops what its pattern does not match
                    return found
        return ids_of(self._words.encode(self._cut(text)))

    def encode_many(self, texts: Sequence[str]) -> list[Ids]:
        """Returns the merge ranks of each text."""
        return [self.encode(text) if text else NONE for text in texts]

    def encode_with_offsets(self, text: str) -> tuple[Ids, Ids]:
        """Returns the merge ranks, and where each begins in the UTF-8 of the text: they stand for its bytes one after
        the other."""
        ranks = self.encode(text)
        return ranks, starts_of(self._lengths[ranks])

    def _encoding(self, pattern: str) -> tiktoken.Encoding:
        return tiktoken.Encoding("text", pat_str=pattern, mergeable_ranks=self._ranks, special_tokens={})

    @cached_property
    def _lengths(self) -> Ids:
        """The bytes of each merge rank; dictionaries keep the order of ranks."""
        return ids_of(list(map(len, chain(self._ranks, self._whole_pieces))))

    def _encode_piece(self, piece: str) -> list[int]:
        data = piece.encode()
        if (rank := self._whole_pieces.get(data)) is not None:
            return [rank]
        if self._pairs is not None:
            rank = self._ranks.get(data) if self._takes_whole else None
            return self._pairs.merge(data) if rank is None else [rank]
        try:
            return self._whole.encode_ordinary(piece)
        except BaseException as error:
            _raise_unless_panic(error)
            raise ValueError("the text cannot be encoded") from None

    def _cut(self, text: str) -> list[str]:
        pieces = [text]
        for cut in self._cutters:
            pieces = [finer for piece in pieces for finer in cut(piece)]
        return pieces


def _raise_unless_panic(error: BaseException) -> None:
    """Raises the error again unless it is a Rust panic, which arrives as a BaseException of a class that cannot be
    imported."""
    if type(error).__name__ != "PanicException":
        raise error


def _has_long_white_space(text: str) -> bool:
    """Returns True when there is a run of twice `_LONG_RUN` white-space characters (a shorter one may be reported as
    well)."""
    return len(text) >= _LONG_RUN and any(
        text[at].isspace() and _LONG_WHITE_SPACE.match(text, at) is not None
        for at in range(_LONG_RUN - 1, len(text), _LONG_RUN)
    )


def cutter_of(pattern: str) -> Cutter:
    """Returns a function that cuts text by the pattern. Raises ValueError where it is not a regular expression."""
    if pattern == DIGITS_IN_THREES:
        return lambda text: _in_threes(text, _NUMBERS, apart=True)
    if pattern == BEFORE_THREES_OF_DIGITS:
        return lambda text: _in_threes(text, _DIGITS, apart=False)
    return by_engine(pattern)


def by_engine(pattern: str) -> Cutter:
    """Cuts text by the regular expression itself, whatever it is."""
    try:
        find = regex.compile(pattern).finditer
    except regex.error as error:
        raise ValueError(f"a pattern is not a regular expression: {error}") from None

    return lambda text: _cut_at(text, chain.from_iterable(match.span() for match in find(text)))


def _in_threes(text: str, runs: regex.Pattern[str], *, apart: bool) -> list[str]:
    """Cuts each run into threes from its right end; with `apart`, also from the text around it."""
    places: list[int] = []
    for match in runs.finditer(text):
        start, end = match.span()
        threes = range(start + (end - start) % 3, end, 3)
        places += (start, *threes, end) if apart else threes
    return _cut_at(text, places)


def _cut_at(text: str, places: Iterable[int]) -> list[str]:
    """Cuts at `places`, which rise; where two are the same, or one is at an end, there is no piece between."""
    pieces: list[str] = []
    at = 0
    for place in places:
        if place > at:
            pieces.append(text[at:place])
            at = place
    if at < len(text):
        pieces.append(text[at:])
    return pieces
