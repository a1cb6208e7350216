"""Text to the longest tokens, from left to right, by `longest.c`."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping

import numpy as np

from tandem.tokenizer.arrays import Ids, ids_of
from tandem.tokenizer.native.library import library
from tandem.tokenizer.native.texts import CompiledEncoder, NotServed, joined_tokens

_NO_ID = 0xFFFFFFFF
_MOST_NODES = 1 << 28


class _Tree(ctypes.Structure):
    _fields_ = (
        ("table", ctypes.c_void_p),
        ("table_mask", ctypes.c_uint64),
        ("ids", ctypes.c_void_p),
        ("unknown", ctypes.c_uint32),
    )


class CompiledLongest(CompiledEncoder):
    """`ids` leads from tokens, none of them empty, to their ids. Bytes that begin no token become `unk_id`, or are
    dropped where it is None. Raises NotServed where the library cannot be had, or there are very many tokens."""

    def __init__(self, ids: Mapping[bytes, int], unk_id: int | None) -> None:
        found = library()
        if found is None:
            raise NotServed("there is no compiled library")
        data, starts = joined_tokens(list(ids))
        if len(data) >= _MOST_NODES:
            raise NotServed("the tokens are too many")
        entries = 1 << (2 * len(data) + 1).bit_length()
        table = np.zeros(entries, np.uint64)
        nodes = np.empty(len(data) + 1, np.uint32)
        tree = _Tree(table.ctypes.data, entries - 1, nodes.ctypes.data, _NO_ID if unk_id is None else unk_id)
        values = ids_of(list(ids.values()))
        found.tandem_plant(ctypes.byref(tree), data, starts.ctypes.data, values.ctypes.data, len(ids))
        super().__init__(found.tandem_longest, tree)
        self._kept: tuple[object, Ids] = (table, nodes)
