"""Remembers the ids of encoded texts: whole segments, and the texts between special tokens."""

from __future__ import annotations

import threading
from collections.abc import Hashable

from tandem.tokenizer.arrays import Ids

_LARGEST_SHARE = 4  # one entry takes at most a fourth of the bound
_ENTRY_BYTES = 500  # what an entry costs beside its text and ids


class Remembered:
    """The ids of one text, and True in its flag when the text ended in a special token."""

    __slots__ = ("asked", "ends_special", "ids", "size")

    def __init__(self, ids: Ids, ends_special: bool, size: int) -> None:
        self.ids = ids
        self.ends_special = ends_special
        self.size = size
        self.asked = False


class EncodeCache:
    """Holds at most `max_bytes` of texts and ids. Safe to use from many threads."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._entries: dict[Hashable, Remembered] = {}
        self._lock = threading.Lock()
        self.bytes = 0
        self.hits = 0  # two threads may lose a count to each other
        self.misses = 0

    def get(self, key: Hashable) -> Remembered | None:
        """Returns the entry of `key`, or None."""
        entry = self._entries.get(key)
        if entry is None:
            self.misses += 1
            return None
        self.hits += 1
        entry.asked = True
        return entry

    def put(self, key: Hashable, text: str, ids: Ids, ends_special: bool = False) -> None:
        """Stores `ids` under `key`, of which `text` is the larger part, and evicts other entries where it must."""
        # Python keeps text with one, two or four bytes a character; four is the safe side.
        size = (len(text) if text.isascii() else 4 * len(text)) + ids.nbytes + _ENTRY_BYTES
        if size * _LARGEST_SHARE > self._max_bytes:
            return
        with self._lock:
            if key in self._entries:
                return
            # A copy: what is part of a larger array would keep all of it.
            self._entries[key] = Remembered(ids if ids.base is None else ids.copy(), ends_special, size)
            self.bytes += size
            while self.bytes > self._max_bytes:
                oldest = next(iter(self._entries))
                entry = self._entries.pop(oldest)
                if entry.asked:
                    entry.asked = False
                    self._entries[oldest] = entry
                else:
                    self.bytes -= entry.size

    def check(self) -> None:
        """Asserts that the accounting is correct; for tests."""
        assert self.bytes == sum(entry.size for entry in self._entries.values())
        assert 0 <= self.bytes <= self._max_bytes
