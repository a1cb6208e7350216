"""The interface of vocabularies: typed ids with bytes behind them, and a way from text to ids."""

from __future__ import annotations

import re
from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import NamedTuple, Protocol

import numpy as np

from tandem.tokenizer.arrays import Ids


class VocabularyType(IntEnum):
    """The algorithm that splits text; the names are those of llama.cpp, the numbers those of the contract."""

    SPM = 1
    BPE = 2
    WPM = 3
    UGM = 4
    RWKV = 5


class TokenType(IntEnum):
    """The type of an id; the numbers are those of SentencePiece, GGUF and the contract."""

    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


# Token types that decoding drops unless it is told to unparse them, and that encoding finds only where it may parse.
CONTROL_TYPES = frozenset({TokenType.CONTROL, TokenType.UNKNOWN})


class LoneSurrogateError(ValueError):
    """A text holds a code point that UTF-8 cannot express."""


@dataclass(frozen=True, slots=True)
class SpecialToken:
    """A token that is cut out of the text before the vocabulary sees the rest."""

    id: int
    text: str
    type: TokenType
    lstrip: bool = False  # white space to its left is swallowed
    rstrip: bool = False  # white space to its right is swallowed
    single_word: bool = False  # found only where neither neighbour is a letter, a digit or the like
    normalized: bool = False  # `tokenizers` looks for it after all that are not


@dataclass(frozen=True, slots=True)
class DecodedForms:
    """The text that a file's own decoder makes of each id: that of `first` for the first id of a text that shows
    anything, if it has one, and else that of `rest`. Without a decoder llama.cpp's rule of one stripped space applies.
    """

    first: Mapping[int, bytes]
    rest: Sequence[bytes]

    def without(self, hidden: Sequence[int]) -> DecodedForms:
        """Returns the same forms, with some ids shown as nothing."""
        rest = list(self.rest)
        dropped = set(hidden)
        for index in dropped:
            rest[index] = b""
        return DecodedForms({index: data for index, data in self.first.items() if index not in dropped}, rest)


@dataclass(frozen=True, slots=True)
class TokenTable:
    """The bytes and type of each id, which is the index into each sequence.

    `pieces` are the bytes that an id decodes to, control tokens as their text and unused ids as nothing.
    """

    pieces: Sequence[bytes]
    types: bytes
    specials: tuple[SpecialToken, ...]  # ascending by id
    scores: array[float] | None = None
    forms: DecodedForms | None = None  # how ids are decoded, where `pieces` do not say it
    hidden_pieces: Sequence[bytes] = field(init=False)  # the same with control and unknown tokens as nothing

    def __post_init__(self) -> None:
        if len(self.types) != len(self.pieces) or (self.scores is not None and len(self.scores) != len(self.pieces)):
            raise ValueError("pieces, types and scores must have one entry an id")
        hidden = list(self.pieces)
        for index in self.control_ids():
            hidden[index] = b""
        object.__setattr__(self, "hidden_pieces", hidden)

    def __len__(self) -> int:
        return len(self.pieces)

    def control_ids(self) -> list[int]:
        """The ids that are dropped where control tokens are not shown."""
        found: list[int] = np.flatnonzero(np.isin(np.frombuffer(self.types, np.uint8), list(CONTROL_TYPES))).tolist()
        return found


class Located(NamedTuple):
    """Ids, and where each of them begins and ends in the UTF-8 of its text, in bytes."""

    ids: Ids
    starts: Ids
    ends: Ids


class TextEncoder(Protocol):
    """Encodes text without special tokens. Implementations are safe to call from many threads."""

    def encode(self, text: str) -> Ids:
        """Returns the ids of `text`, which is valid Unicode and not empty."""
        ...

    def encode_with_offsets(self, text: str) -> Located:
        """Returns the ids of `text` and their places."""
        ...


class Vocabulary(TextEncoder, Protocol):
    """A vocabulary of one of the five types."""

    type: VocabularyType

    @property
    def encoder(self) -> str:
        """Names the engine that encodes: `compiled`, or the library that does it, and why."""
        ...

    @property
    def safe_border(self) -> re.Pattern[str] | None:
        """A pattern for the empty text between a line break and an ASCII letter, where text may be cut without changing
        its ids. None means that no such place is known."""
        ...

    def encode_many(self, texts: Sequence[str]) -> list[Ids]:
        """Returns the ids of each of the texts, which may be empty."""
        ...

    def behaviour(self) -> Iterator[bytes]:
        """Everything beyond the token table that decides what `encode` returns, in a canonical form."""
        ...
