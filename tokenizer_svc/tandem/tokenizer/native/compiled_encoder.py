"""Encodes texts with one of the C functions that take many texts at once."""

from __future__ import annotations

import ctypes
from array import array
from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import Any

import numpy as np

from tandem.tokenizer.arrays import Ids

_UNKNOWN, _NO_MEMORY = -1, -2


class NotServed(ValueError):  # noqa: N818 - a fact, and no mistake of anybody
    """The compiled functions do not support this, or there are none; another engine has to do it."""


class CompiledEncoder:
    """Encodes with `function` and its arguments. Safe to use from many threads at once."""

    def __init__(
        self, function: Callable[..., int], works_on: ctypes.Structure, learn: Callable[[Ids], None] | None = None
    ) -> None:
        """`learn` looks up what the function does not know about characters; None means that it knows all."""
        self.function = function
        self._learn = learn
        self._works_on = works_on
        self.address = ctypes.addressof(works_on)  # its first argument

    def encode(self, text: str) -> Ids:
        """Returns the ids of a text, which is valid Unicode."""
        data = text.encode()
        out = np.empty(len(data) + 1, np.uint32)
        return out[: self._run(data, array("q", (len(data),)), array("q", (0,)), out, None)]

    def encode_with_offsets(self, text: str) -> tuple[Ids, Ids]:
        """Returns the ids, and where each begins in the UTF-8 of the text, in bytes."""
        data = text.encode()
        out, offsets = np.empty(len(data) + 1, np.uint32), np.empty(len(data) + 1, np.uint32)
        total = self._run(data, array("q", (len(data),)), array("q", (0,)), out, offsets)
        return out[:total], offsets[:total]

    def encode_many(self, texts: Sequence[str]) -> list[Ids]:
        """Returns the ids of each text, by one call."""
        if not texts:
            return []
        parts = list(map(str.encode, texts))
        data = b"".join(parts)
        out = np.empty(len(data) + 1, np.uint32)
        ends = array("q", accumulate(map(len, parts)))
        counts = array("q", ends)
        self._run(data, ends, counts, out, None)
        found: list[Ids] = []
        start = 0
        for end in counts:
            found.append(out[start:end])
            start = end
        return found

    def _run(self, data: bytes, ends: array[int], counts: array[int], out: Ids, offsets: Ids | None) -> int:
        """Returns how many ids there are; fills `counts` with how many there are up to the end of each text."""
        while True:
            total = self.function(
                self.address,
                data,
                pointer(ends),
                len(ends),
                pointer(out),
                None if offsets is None else pointer(offsets),
                pointer(counts),
            )
            if total == _NO_MEMORY:
                raise MemoryError("the text is too long to be encoded in this memory")
            if total != _UNKNOWN:
                return total
            assert self._learn is not None
            self._learn(np.unique(np.frombuffer(data.decode().encode("utf-32-le"), np.uint32)))


def pointer(buffer: Any) -> object:
    """Returns a pointer to a buffer that is not empty. It is quicker than numpy's own, which costs as much as encoding
    fifty characters."""
    return ctypes.byref(ctypes.c_char.from_buffer(buffer))


def joined_tokens(tokens: Sequence[bytes]) -> tuple[bytes, Ids]:
    """Returns the tokens' bytes joined, and the position where each begins, followed by the end of the last."""
    starts = np.zeros(len(tokens) + 1, np.uint32)
    np.cumsum(np.fromiter(map(len, tokens), np.uint32, len(tokens)), out=starts[1:])
    return b"".join(tokens), starts
