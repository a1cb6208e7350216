"""Joins the bytes of ids by `join_pieces.c`, or else by Python."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tandem.tokenizer.arrays import Ids, Places, joined_pieces
from tandem.tokenizer.native.compiled_encoder import joined_tokens
from tandem.tokenizer.native.library import library
from tandem.tokenizer.wire import DECODED, TEXT, decoded_field

_FEW = 64  # ids that Python is as quick with
_WIDE, _HEAD = 16, 22  # as in `join_pieces.c`
assert DECODED == TEXT == bytes([1 << 3 | 2])  # which it writes


class IdRuns(NamedTuple):
    """Stretches of an array of ids, one behind the other, each a text. `spaces` says which of them lose a space that
    their first id begins with."""

    ids: Ids
    begins: Places  # [texts]
    ends: Places
    spaces: NDArray[np.bool_]


class PieceJoiner:
    """Joins the pieces of ids, which are all valid. Safe to use from many threads at once."""

    def __init__(self, pieces: Sequence[bytes]) -> None:
        self._pieces = pieces
        self._library = library()
        data, self._starts = joined_tokens(pieces if self._library else [])
        self._bytes = data + bytes(_WIDE)

    def join(self, ids: Ids) -> bytes:
        """Returns the bytes of all ids."""
        if self._library is None or len(ids) <= _FEW:
            return joined_pieces(self._pieces, ids)
        ids = np.ascontiguousarray(ids, np.uint32)
        starts, places, count = self._starts.ctypes.data, ids.ctypes.data, len(ids)
        size = self._library.tandem_size(starts, places, count)
        out = np.empty(size + _WIDE, np.uint8)
        self._library.tandem_join(self._bytes, starts, places, count, out.ctypes.data)
        return out[:size].tobytes()

    def join_fields(self, runs: IdRuns) -> list[bytes | memoryview]:
        """Returns the texts as `decoded` of a response, in parts."""
        ids, begins, ends, spaces = map(np.ascontiguousarray, runs)
        texts, done, at = len(begins), 0, 0
        parts: list[bytes | memoryview] = []
        if self._library is not None and texts:
            starts, low = self._starts.ctypes.data, int(begins[0])
            size = self._library.tandem_size(starts, ids[low:].ctypes.data, int(ends[-1]) - low)
            out = np.empty(size + _HEAD * texts + _WIDE, np.uint8)
        while done < texts:
            if self._library is not None:
                written = ctypes.c_int64()
                arrays = ids, begins[done:], ends[done:], spaces[done:]
                valid = self._library.tandem_texts(
                    self._bytes,
                    *(starts, *(array.ctypes.data for array in arrays), texts - done),
                    *(out[at:].ctypes.data, ctypes.byref(written)),
                )
                parts.append(out[at : at + written.value].data)
                done, at = done + valid, at + written.value
            if done < texts:  # there is no library, or this text is not UTF-8
                of_text = ids[begins[done] : ends[done]]
                text = self.join(of_text)
                spaced = spaces[done] and len(of_text) and self._pieces[of_text[0]][:1] == b" "
                parts.append(decoded_field(text[1:] if spaced else text))
                done += 1
        return parts
