"""tiktoken behind what its pattern engine cannot take: text is cut by one pattern, and byte pairs merge by rank.

It works without the interpreter lock and answers with an array, so threads use the cores.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import numpy as np
import tiktoken

from tandem.tokenizer.arrays import Ids

_LONG_RUN = 100_000  # white-space characters in a row that the pattern engine is spared: it overflows its stack
_BORDER = "\0"  # keeps ASCII what is ASCII; texts that hold it are encoded one by one
_AT_ONCE = 128 * 1024  # characters in one call: joining them, and handing them over, is done with the interpreter lock
_ONLY_BORDER = {_BORDER}
_LONG_WHITE_SPACE = re.compile(rf"\s{{{_LONG_RUN}}}")


class RankMerger:
    """`ranks` leads from bytes to their rank, the numbers from 0 on; every single byte has one.

    `backtracking`: the pattern looks ahead, so that long runs of white space are not for it. Raises ValueError where
    the pattern is not for tiktoken's engine.
    """

    def __init__(self, pattern: str, ranks: dict[bytes, int], *, backtracking: bool) -> None:
        self._border = len(ranks)
        self._backtracking = backtracking
        self._encoding = tiktoken.Encoding(
            "text", pat_str=pattern, mergeable_ranks=ranks, special_tokens={_BORDER: self._border}
        )

    def encode(self, text: str) -> Ids | None:
        """The ranks; None where the text is not for this engine."""
        if self._backtracking and _has_long_white_space(text):
            return None
        try:
            return self._encoding.encode_to_numpy(text, disallowed_special=())
        except BaseException as error:
            raise_unless_panic(error)
            return None

    def encode_many(self, texts: Sequence[str]) -> list[Ids] | None:
        """The ranks of each text; None where one of them is not for this engine, or for one call.

        Many go through tiktoken in one call, with a border between them that it treats as a special token: it cuts
        there before anything else.
        """
        found: list[Ids] = []
        start = size = 0
        for end, text in enumerate(texts, 1):
            size += len(text)
            if size >= _AT_ONCE or end == len(texts):
                together = self._encode_together(texts[start:end])
                if together is None:
                    return None
                found += together
                start, size = end, 0
        return found

    def _encode_together(self, texts: Sequence[str]) -> list[Ids] | None:
        joined = _BORDER.join(texts)
        if joined.count(_BORDER) != len(texts) - 1 or (self._backtracking and _has_long_white_space(joined)):
            return None
        try:
            ranks = self._encoding.encode_to_numpy(joined, allowed_special=_ONLY_BORDER, disallowed_special=())
        except BaseException as error:
            raise_unless_panic(error)
            return None
        parts: list[Ids] = []
        at = 0
        for end in np.flatnonzero(ranks == self._border).tolist():
            parts.append(ranks[at:end])
            at = end + 1
        return [*parts, ranks[at:]]

    def encode_piece(self, piece: str) -> list[int]:
        """The ranks of what the pattern would not cut. With the interpreter lock: for short ones."""
        return self._encoding._encode_single_piece(piece)


def whole_merger(ranks: Mapping[bytes, int]) -> tiktoken.Encoding:
    """tiktoken that takes any text for one piece."""
    return tiktoken.Encoding("pieces", pat_str=r"(?s:.+)", mergeable_ranks=dict(ranks), special_tokens={})


def raise_unless_panic(error: BaseException) -> None:
    """A Rust panic arrives as a BaseException of a class that cannot be imported; it is not allowed out."""
    if type(error).__name__ != "PanicException":
        raise error


def _has_long_white_space(text: str) -> bool:
    """Whether there is a run of twice `_LONG_RUN` white-space characters (a shorter one may be reported as well)."""
    return len(text) >= _LONG_RUN and any(
        text[at].isspace() and _LONG_WHITE_SPACE.match(text, at) is not None
        for at in range(_LONG_RUN - 1, len(text), _LONG_RUN)
    )
