"""Keeps the free pages and chooses which of them is handed out next.

A sequence's next page is the one behind its last, where that is free: attention reads a run of pages where it lies,
and gathers scattered ones. Else it is the lowest, so that what is free stays together.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping


class FreePages:
    """The free pages out of `total`; at first all are."""

    def __init__(self, total: int) -> None:
        self.count = total
        self._total = total
        self._is_free = bytearray(b"\x01" * total)
        self._heap = list(range(total))  # lowest first; may hold pages that are not free any more

    def __contains__(self, page: int) -> bool:
        return bool(self._is_free[page])

    def add(self, page: int) -> None:
        """Adds a page that holds nothing any more."""
        self._is_free[page] = 1
        self.count += 1
        heapq.heappush(self._heap, page)
        if len(self._heap) > 2 * self._total:  # mostly stale: pages that were taken as preferred
            self._rebuild()

    def take(self, preferred: int) -> int:
        """Takes a page for a sequence: `preferred` if it is free, else the lowest. There must be one."""
        if not (0 <= preferred < self._total and self._is_free[preferred]):
            # Pages that were taken as preferred are still in the heap; each is skipped once.
            preferred = heapq.heappop(self._heap)
            while not self._is_free[preferred]:
                preferred = heapq.heappop(self._heap)
        self._is_free[preferred] = 0
        self.count -= 1
        return preferred

    def relabel(self, new: Mapping[int, int]) -> None:
        """Renumbers the pages: what was page p is page `new[p]` now (a permutation)."""
        before = bytes(self._is_free)
        for old, page in new.items():
            self._is_free[page] = before[old]
        self._rebuild()

    def check(self) -> None:
        """Derives every number anew; raises AssertionError with what is wrong."""
        assert self.count == sum(self._is_free), "free pages miscounted"
        lost = {page for page in range(self._total) if self._is_free[page]} - set(self._heap)
        assert not lost, f"the heap of free pages lacks {sorted(lost)[:5]}"

    def _rebuild(self) -> None:
        self._heap = [page for page in range(self._total) if self._is_free[page]]
