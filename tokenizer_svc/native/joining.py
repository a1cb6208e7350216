"""Ids to bytes by `joining.c`, or else by Python."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tokenizer_svc.arrays import Ids, joined_pieces
from tokenizer_svc.native.library import library
from tokenizer_svc.native.texts import joined_tokens

_FEW = 64  # ids that Python is as quick with


class PieceJoiner:
    """Joins the pieces of ids. Safe to use from many threads at once."""

    def __init__(self, pieces: Sequence[bytes]) -> None:
        self._pieces = pieces
        self._library = library()
        self._bytes, self._starts = joined_tokens(pieces if self._library else [])

    def join(self, ids: Ids) -> bytes:
        """The bytes of all ids, which are those of pieces."""
        if self._library is None or len(ids) <= _FEW:
            return joined_pieces(self._pieces, ids)
        ids = np.ascontiguousarray(ids, np.uint32)
        starts, places, count = self._starts.ctypes.data, ids.ctypes.data, len(ids)
        out = np.empty(self._library.tandem_size(starts, places, count), np.uint8)
        self._library.tandem_join(self._bytes, starts, places, count, out.ctypes.data)
        return out.tobytes()
