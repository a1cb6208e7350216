"""Converts positions of tokens from bytes of UTF-8 to code points."""

from __future__ import annotations

import numpy as np

from tandem.tokenizer.arrays import Ids


def to_code_points(data: bytes, byte_offsets: Ids) -> Ids:
    """Returns the index of the code point in which each byte offset of `data` lies; offsets ascend, and may be the
    end."""
    if data.isascii():
        return byte_offsets
    begun = np.empty(len(data) + 1, np.uint32)  # characters that begin before each byte, or with it
    np.cumsum(np.frombuffer(data, np.int8) >= -64, out=begun[:-1])  # as signed numbers, -128 to -65 go on
    begun[-1] = begun[-2] + 1
    return begun[byte_offsets] - np.uint32(1)


def code_point_ends(data: bytes, starts: Ids, ends: Ids) -> Ids:
    """Returns the index behind the last code point that each token has a part of; that of its start where it has
    none."""
    if data.isascii():
        return ends
    some = ends > starts
    return to_code_points(data, np.where(some, np.maximum(ends, 1) - 1, starts).astype(np.uint32)) + some.astype(
        np.uint32
    )
