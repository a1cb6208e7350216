"""Encodes text so that some tokens never come out of it, whatever the vocabulary does: for the policy PLAIN."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from tandem.tokenizer.arrays import Ids, ids_of
from tandem.tokenizer.vocabulary import TextEncoder, TokenTable, TokenType


class GuardedEncoder:
    """Encodes as `encoder` does, but never returns an id of `kept_out`. Safe to use from many threads."""

    def __init__(self, encoder: TextEncoder, table: TokenTable, kept_out: Iterable[int], unk_id: int | None) -> None:
        self._encoder = encoder
        self._pieces = table.pieces
        self._unknown = [] if unk_id is None else [unk_id]
        self._bytes = {table.pieces[index]: index for index, kind in enumerate(table.types) if kind == TokenType.BYTE}
        self._kept_out = np.zeros(len(table), np.bool_)
        self._kept_out[list(kept_out)] = True
        self._spelt: dict[int, tuple[Ids, Ids]] = {}

    def encode(self, text: str) -> Ids:
        ids = self._encoder.encode(text)
        if not self._kept_out[ids].any():
            return ids
        return self._replaced(ids, np.zeros(len(ids), np.uint32))[0]

    def encode_with_offsets(self, text: str) -> tuple[Ids, Ids]:
        ids, starts = self._encoder.encode_with_offsets(text)
        return self._replaced(ids, starts) if self._kept_out[ids].any() else (ids, starts)

    def _replaced(self, ids: Ids, starts: Ids) -> tuple[Ids, Ids]:
        found: list[tuple[Ids, Ids]] = []
        done = 0
        for place in np.flatnonzero(self._kept_out[ids]).tolist():
            found.append((ids[done:place], starts[done:place]))
            index = int(ids[place])
            if index not in self._spelt:
                self._spelt[index] = self._spell(self._pieces[index].decode("utf-8", "replace"))
            others, offsets = self._spelt[index]
            found.append((others, offsets + starts[place]))
            done = place + 1
        found.append((ids[done:], starts[done:]))
        return np.concatenate([part for part, _ in found]), np.concatenate([part for _, part in found])

    def _spell(self, text: str) -> tuple[Ids, Ids]:
        """Returns other ids for the text, and where each begins in it."""
        if len(text) > 1:
            middle = len(text) // 2
            halves = [self._spell_unless_allowed(half) for half in (text[:middle], text[middle:])]
            shift = np.uint32(len(text[:middle].encode()))
            return np.concatenate([ids for ids, _ in halves]), np.concatenate([halves[0][1], halves[1][1] + shift])
        data = text.encode()
        spelt = [self._bytes.get(data[at : at + 1]) for at in range(len(data))]
        if None in spelt:
            return ids_of(self._unknown), ids_of([0] * len(self._unknown))
        return ids_of([index for index in spelt if index is not None]), np.arange(len(data), dtype=np.uint32)

    def _spell_unless_allowed(self, text: str) -> tuple[Ids, Ids]:
        ids, starts = self._encoder.encode_with_offsets(text)
        return self._spell(text) if self._kept_out[ids].any() else (ids, starts)
