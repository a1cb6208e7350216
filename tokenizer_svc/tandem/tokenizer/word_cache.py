"""A bounded cache of encoded words."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import chain

_MAX_WORDS = 65_536
_MAX_CHARACTERS = 64


class WordCache:
    """Encodes lists of words with `encode_many`, each word once. Safe to share between threads: a full cache is
    replaced as a whole, and every call keeps its own reference to what it needs."""

    def __init__(self, encode_many: Callable[[list[str]], Sequence[Sequence[int]]]) -> None:
        self._encode_many = encode_many
        self._known: dict[str, Sequence[int]] = {}

    def encode(self, words: list[str]) -> list[int]:
        known = self._known
        missing = list(dict.fromkeys(word for word in words if word not in known))
        if not missing:
            return list(chain.from_iterable(map(known.__getitem__, words)))
        fresh = dict(zip(missing, self._encode_many(missing), strict=True))
        result: list[int] = []
        for word in words:
            ids = fresh.get(word)
            result += known[word] if ids is None else ids
        kept = {word: ids for word, ids in fresh.items() if len(word) <= _MAX_CHARACTERS}
        if len(known) + len(kept) > _MAX_WORDS:
            self._known = kept if len(kept) <= _MAX_WORDS else {}
        else:
            known.update(kept)
        return result
