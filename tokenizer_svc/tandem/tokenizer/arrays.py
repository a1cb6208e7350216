"""Ids and positions as arrays: 4 bytes each, made, cut and sent without a Python object for each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

Ids: TypeAlias = NDArray[np.uint32]  # [ids]; positions in bytes or code points have the same type
Places: TypeAlias = NDArray[np.int64]  # in such an array, where it may be that of many texts

NONE: Ids = np.empty(0, np.uint32)
_AT_ONCE = 16_384  # ids that become objects of Python, or arrays that become one, in one go


def ids_of(values: Sequence[int]) -> Ids:
    """Returns the values as an array."""
    return np.array(values, np.uint32) if len(values) else NONE


def joined(parts: Sequence[Ids]) -> Ids:
    """Returns the parts joined; a single part is returned as it is."""
    if len(parts) == 1:
        return parts[0]
    if len(parts) > _AT_ONCE:  # other threads get their turn between them
        return joined([joined(parts[at : at + _AT_ONCE]) for at in range(0, len(parts), _AT_ONCE)])
    return np.concatenate(parts) if parts else NONE


def starts_of(lengths: NDArray[np.integer]) -> Ids:
    """Returns the position where each part begins when parts of these lengths follow one another."""
    starts = np.zeros(len(lengths), np.uint32)
    np.cumsum(lengths[:-1], out=starts[1:], dtype=np.uint32)
    return starts


def joined_pieces(pieces: Sequence[bytes], ids: Ids) -> bytes:
    """Returns the bytes of all ids. Joins them in parts, so that other threads get their turn in between."""
    piece = pieces.__getitem__
    parts = [b"".join(map(piece, ids[at : at + _AT_ONCE].tolist())) for at in range(0, len(ids), _AT_ONCE)]
    return parts[0] if len(parts) == 1 else b"".join(parts)
