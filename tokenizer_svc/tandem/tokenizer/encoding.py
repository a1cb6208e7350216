"""The input and output of encoding: segments of text with a policy each, ids with their positions, errors."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum
from typing import NamedTuple

import numpy as np

from tandem.tokenizer.arrays import Ids
from tandem.tokenizer.vocabulary import SpecialToken

# The fields of an Encoding that have a position for each id.
ARRAYS = ("byte_offset_array", "byte_end_array", "code_point_offset_array", "code_point_end_array")


class Policy(IntEnum):
    """The treatment of text that is the text of a special token. The numbers are those of the contract."""

    TEXT = 1
    PARSE = 2
    PARSE_LISTED = 3
    REJECT = 4
    PLAIN = 5

    __hash__ = int.__hash__  # an enumeration's own is Python code, and policies are part of every key of the cache


class SpecialTokenInText(ValueError):  # noqa: N818 - what it reports is a fact about the text
    """A segment whose policy is REJECT contains the text of a control token."""

    def __init__(self, segment: int, token: SpecialToken, position: int) -> None:
        super().__init__(f"the special token {token.text!r} (id {token.id}) stands at code point {position}")
        self.segment = segment
        self.of_pair = False  # in the second of two texts
        self.token = token
        self.position = position


class TokenIdError(ValueError):
    """An id is not in the vocabulary."""

    def __init__(self, index: int, token_id: int, size: int) -> None:
        super().__init__(f"id {token_id} at index {index} is not below the vocabulary size {size}")
        self.index = index
        self.token_id = token_id


class TruncationError(ValueError):
    """The limit is below the number of tokens that `add_special` adds, which are never cut."""


class Segment(NamedTuple):
    """Text with its own policy; `parse_ids` are the control tokens that PARSE_LISTED parses."""

    text: str
    policy: Policy = Policy.TEXT
    parse_ids: frozenset[int] = frozenset()


@dataclass(slots=True)
class Encoding:
    """Ids and, where asked for, their positions. `front` and `back` count what `add_special` added at either end.

    The service works with the arrays; the other properties are the same values as lists.
    """

    id_array: Ids
    front: int = 0
    back: int = 0
    byte_offset_array: Ids | None = None
    code_point_offset_array: Ids | None = None
    byte_end_array: Ids | None = None
    code_point_end_array: Ids | None = None
    type_id_array: Ids | None = None  # of two texts
    total_tokens: int = field(init=False)  # before truncation

    def __post_init__(self) -> None:
        self.total_tokens = len(self.id_array)

    @property
    def ids(self) -> list[int]:
        found: list[int] = self.id_array.tolist()
        return found

    @property
    def byte_offsets(self) -> list[int] | None:
        return None if self.byte_offset_array is None else self.byte_offset_array.tolist()

    @property
    def code_point_offsets(self) -> list[int] | None:
        return None if self.code_point_offset_array is None else self.code_point_offset_array.tolist()

    @property
    def byte_ends(self) -> list[int] | None:
        return None if self.byte_end_array is None else self.byte_end_array.tolist()

    @property
    def code_point_ends(self) -> list[int] | None:
        return None if self.code_point_end_array is None else self.code_point_end_array.tolist()

    @property
    def type_ids(self) -> list[int] | None:
        return None if self.type_id_array is None else self.type_id_array.tolist()

    @property
    def truncated(self) -> bool:
        return len(self.id_array) < self.total_tokens

    def truncate(self, max_tokens: int, left: bool = False) -> None:
        """Cuts the end (or with `left` the beginning) of the ids between the added special tokens."""
        if max_tokens < self.front + self.back:
            raise TruncationError(
                f"at least {self.front + self.back} tokens are needed, because add_special adds that many"
            )
        excess = len(self.id_array) - max_tokens
        if excess <= 0:
            return
        start = self.front if left else len(self.id_array) - self.back - excess

        def cut(values: Ids) -> Ids:
            return np.concatenate((values[:start], values[start + excess :]))

        self.id_array = cut(self.id_array)
        for name in ARRAYS:
            if (values := getattr(self, name)) is not None:
                setattr(self, name, cut(values))
