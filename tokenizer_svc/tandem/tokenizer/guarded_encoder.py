"""Encodes text so that some tokens never come out of it, whatever the vocabulary does: for the policy PLAIN."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from tandem.tokenizer.arrays import Ids, ids_of
from tandem.tokenizer.vocabulary import Located, TextEncoder, TokenTable, TokenType


class GuardedEncoder:
    """Encodes as `encoder` does, but never returns an id of `kept_out`. Safe to use from many threads."""

    def __init__(self, encoder: TextEncoder, table: TokenTable, kept_out: Iterable[int], unk_id: int | None) -> None:
        self._encoder = encoder
        self._pieces = table.pieces
        self._unknown = [] if unk_id is None else [unk_id]
        self._bytes = {table.pieces[index]: index for index, kind in enumerate(table.types) if kind == TokenType.BYTE}
        self._kept_out = np.zeros(len(table), np.bool_)
        self._kept_out[list(kept_out)] = True
        self._spelt: dict[int, Located] = {}

    def encode(self, text: str) -> Ids:
        ids = self._encoder.encode(text)
        if not self._kept_out[ids].any():
            return ids
        nowhere = np.zeros(len(ids), np.uint32)
        return self._replaced(Located(ids, nowhere, nowhere)).ids

    def encode_with_offsets(self, text: str) -> Located:
        located = self._encoder.encode_with_offsets(text)
        return self._replaced(located) if self._kept_out[located.ids].any() else located

    def _replaced(self, located: Located) -> Located:
        found: list[Located] = []
        done = 0
        for place in np.flatnonzero(self._kept_out[located.ids]).tolist():
            found.append(Located(*(part[done:place] for part in located)))
            index, start, end = (part[place] for part in located)
            if int(index) not in self._spelt:
                self._spelt[int(index)] = self._spell(self._pieces[index].decode("utf-8", "replace"))
            others, starts, ends = self._spelt[int(index)]
            found.append(Located(others, starts + start, np.minimum(ends + start, end)))
            done = place + 1
        found.append(Located(*(part[done:] for part in located)))
        return _joined(found)

    def _spell(self, text: str) -> Located:
        """Returns other ids for the text."""
        if len(text) > 1:
            middle = len(text) // 2
            first, (ids, starts, ends) = map(self._spell_unless_allowed, (text[:middle], text[middle:]))
            shift = np.uint32(len(text[:middle].encode()))
            return _joined([first, Located(ids, starts + shift, ends + shift)])
        data = text.encode()
        spelt = [self._bytes.get(data[at : at + 1]) for at in range(len(data))]
        if None in spelt:
            return Located(*map(ids_of, ([self._unknown, [0], [len(data)]] if self._unknown else [[], [], []])))
        places = np.arange(len(data), dtype=np.uint32)
        return Located(ids_of([index for index in spelt if index is not None]), places, places + np.uint32(1))

    def _spell_unless_allowed(self, text: str) -> Located:
        located = self._encoder.encode_with_offsets(text)
        return self._spell(text) if self._kept_out[located.ids].any() else located


def _joined(parts: Sequence[Located]) -> Located:
    return Located(*map(np.concatenate, zip(*parts, strict=True)))
