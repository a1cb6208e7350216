"""Remembers what texts between special tokens were encoded to.

Special tokens are the only places where a text can be cut without changing its ids. A conversation's earlier messages
lie between them, so its next turn costs its new text only. Texts are kept in memory up to a bound in bytes, and the
least recently used go first.
"""

from __future__ import annotations

import threading
from array import array
from collections import OrderedDict
from collections.abc import Iterator, Sequence

from tokenizer_svc.vocabulary import Vocabulary

_SHORTEST = 32  # characters; shorter texts are encoded as quickly as they are found
_LARGEST_SHARE = 4  # one entry takes at most a fourth of the bound
_ENTRY_BYTES = 300  # what an entry costs beside its text and ids


class EncodeCache:
    """Text to ids, at most `max_bytes` of both. Safe to use from many threads."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._entries: OrderedDict[str, array[int]] = OrderedDict()
        self._lock = threading.Lock()
        self.bytes = 0
        self.hits = 0
        self.misses = 0

    def get(self, text: str) -> Sequence[int] | None:
        """The ids of `text`, where they are known."""
        with self._lock:
            ids = self._entries.get(text)
            if ids is None:
                self.misses += 1
                return None
            self._entries.move_to_end(text)
            self.hits += 1
            return ids

    def put(self, text: str, ids: Sequence[int]) -> None:
        """Remembers `ids`, and forgets what was not used for longest."""
        size = self._size(text, len(ids))
        if size * _LARGEST_SHARE > self._max_bytes:
            return
        kept = array("I", ids)
        with self._lock:
            if text in self._entries:
                return
            self._entries[text] = kept
            self.bytes += size
            while self.bytes > self._max_bytes:
                oldest, its_ids = self._entries.popitem(last=False)
                self.bytes -= self._size(oldest, len(its_ids))

    def check(self) -> None:
        """Asserts that the books are right; for tests."""
        assert self.bytes == sum(self._size(text, len(ids)) for text, ids in self._entries.items())
        assert 0 <= self.bytes <= self._max_bytes

    @staticmethod
    def _size(text: str, ids: int) -> int:
        # Python keeps text with one, two or four bytes a character; four is the safe side.
        return (len(text) if text.isascii() else 4 * len(text)) + 4 * ids + _ENTRY_BYTES


class CachedVocabulary:
    """A vocabulary with a cache in front of it."""

    def __init__(self, vocabulary: Vocabulary, cache: EncodeCache) -> None:
        self._vocabulary = vocabulary
        self._cache = cache
        self.type = vocabulary.type

    def encode(self, text: str) -> Sequence[int]:
        if len(text) < _SHORTEST:
            return self._vocabulary.encode(text)
        known = self._cache.get(text)
        if known is None:
            known = self._vocabulary.encode(text)
            self._cache.put(text, known)
        return known

    def encode_with_offsets(self, text: str) -> tuple[list[int], list[int]]:
        return self._vocabulary.encode_with_offsets(text)

    def behaviour(self) -> Iterator[bytes]:
        return self._vocabulary.behaviour()
