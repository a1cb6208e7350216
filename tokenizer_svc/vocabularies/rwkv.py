"""RWKV: the longest token that matches the text's bytes, from left to right.

Tokens are found by their first two bytes, which lead to the lengths that occur with them, longest first. Most places
are decided by one or two look-ups.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tokenizer_svc.arrays import Ids, ids_of
from tokenizer_svc.vocabulary import VocabularyType


class RwkvVocabulary:
    """`tokens` lists (bytes, id). Bytes that begin no token become `unk_id`, or are dropped where it is None.

    Text never becomes a control token here: they are left out of `tokens`.
    """

    type = VocabularyType.RWKV
    safe_border = None

    def __init__(self, tokens: Sequence[tuple[bytes, int]], unk_id: int | None) -> None:
        self._ids = {token: index for token, index in tokens if token}
        lengths: dict[bytes, set[int]] = {}
        for token in self._ids:
            if len(token) > 1:
                lengths.setdefault(token[:2], set()).add(len(token))
        # The longest length first; single bytes are the last resort, and stand in a list of their own.
        self._lengths = {start: tuple(sorted(found, reverse=True)) for start, found in lengths.items()}
        self._single = [self._ids.get(bytes([byte]), unk_id) for byte in range(256)]
        self._unk_id = unk_id

    def encode(self, text: str) -> Ids:
        return ids_of(self._match(text.encode(), None))

    def encode_many(self, texts: Sequence[str]) -> list[Ids]:
        return [self.encode(text) for text in texts]

    def encode_with_offsets(self, text: str) -> tuple[Ids, Ids]:
        offsets: list[int] = []
        return ids_of(self._match(text.encode(), offsets)), ids_of(offsets)

    def behaviour(self) -> Iterator[bytes]:
        yield b"unknown " + str(self._unk_id).encode()

    def _match(self, data: bytes, offsets: list[int] | None) -> list[int]:
        ids: list[int] = []
        find, lengths, single = self._ids.get, self._lengths.get, self._single
        at, end = 0, len(data)
        while at < end:
            found = None
            start = at
            for length in lengths(data[at : at + 2], ()):
                found = find(data[at : at + length])
                if found is not None:
                    at += length
                    break
            else:
                found = single[data[at]]
                at += 1
            if found is not None:
                ids.append(found)
                if offsets is not None:
                    offsets.append(start)
        return ids
