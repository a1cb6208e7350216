"""RWKV: the longest token that matches the text's bytes, from left to right.

`longest_match.c` does the work, or else Python.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from tandem.tokenizer.arrays import NONE, Ids, ids_of
from tandem.tokenizer.native.compiled_encoder import CompiledEncoder, NotServed, joined_tokens
from tandem.tokenizer.native.library import library
from tandem.tokenizer.vocabulary import Located, VocabularyType

_NO_ID = 0xFFFFFFFF
_MOST_NODES = 1 << 28


class RwkvVocabulary:
    """A vocabulary of `tokens`, which lists (bytes, id). Bytes that begin no token become `unk_id`, or are dropped
    where it is None.

    Text never becomes a control token here: they are left out of `tokens`.
    """

    type = VocabularyType.RWKV
    safe_border = None

    def __init__(self, tokens: Sequence[tuple[bytes, int]], unk_id: int | None) -> None:
        ids = {token: index for token, index in tokens if token}
        self._unk_id = unk_id
        self._lengths = np.ones(max([0 if unk_id is None else unk_id, *ids.values()]) + 1, np.uint32)
        self._lengths[list(ids.values())] = list(map(len, ids))
        self._encoder: CompiledLongest | PlainLongest
        try:
            self._encoder = CompiledLongest(ids, unk_id)
            self.encoder = "compiled"
        except NotServed as reason:
            self._encoder = PlainLongest(ids, unk_id)
            self.encoder = f"Python ({reason})"

    @property
    def compiled(self) -> CompiledEncoder | None:
        return self._encoder if isinstance(self._encoder, CompiledLongest) else None

    def encode(self, text: str) -> Ids:
        return self._encoder.encode(text)

    def encode_many(self, texts: Sequence[str]) -> list[Ids]:
        return self._encoder.encode_many(texts)

    def encode_with_offsets(self, text: str) -> Located:
        ids, starts = self._encoder.encode_with_offsets(text)
        return Located(ids, starts, starts + self._lengths[ids])

    def behaviour(self) -> Iterator[bytes]:
        yield b"unknown " + str(self._unk_id).encode()


class _Tree(ctypes.Structure):
    _fields_ = (
        ("table", ctypes.c_void_p),
        ("table_mask", ctypes.c_uint64),
        ("ids", ctypes.c_void_p),
        ("unknown", ctypes.c_uint32),
    )


class CompiledLongest(CompiledEncoder):
    """Encodes by the C function. `ids` maps tokens, none of them empty, to their ids. Bytes that begin no token become
    `unk_id`, or are dropped where it is None. Raises NotServed where there is no library, or there are very many
    tokens."""

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


class PlainLongest:
    """Encodes as CompiledLongest does, in Python."""

    def __init__(self, ids: dict[bytes, int], unk_id: int | None) -> None:
        self._ids = ids
        self._single = [ids.get(bytes([byte]), unk_id) for byte in range(256)]
        lengths: dict[bytes, set[int]] = {}
        for token in ids:
            if len(token) > 1:
                lengths.setdefault(token[:2], set()).add(len(token))
        # Of the tokens that begin with the same two bytes, the longest first.
        self._lengths = {start: tuple(sorted(found, reverse=True)) for start, found in lengths.items()}

    def encode(self, text: str) -> Ids:
        return self.encode_with_offsets(text)[0]

    def encode_many(self, texts: Sequence[str]) -> list[Ids]:
        return [self.encode(text) if text else NONE for text in texts]

    def encode_with_offsets(self, text: str) -> tuple[Ids, Ids]:
        data = text.encode()
        ids: list[int] = []
        offsets: list[int] = []
        find, lengths_of, single = self._ids.get, self._lengths.get, self._single
        at, end = 0, len(data)
        while at < end:
            found, size = single[data[at]], 1
            for length in lengths_of(data[at : at + 2], ()):
                token = find(data[at : at + length])
                if token is not None and at + length <= end:  # a slice at the end may be shorter
                    found, size = token, length
                    break
            if found is not None:
                ids.append(found)
                offsets.append(at)
            at += size
        return ids_of(ids), ids_of(offsets)
