"""Numbers what happens to the engine's cached pages, keeps some of it for who comes back, and knows what is there.

Every batch has the number after its predecessor's. The last batches are kept, HISTORY_PAGES pages of them; who asks for
one that is gone, or lags behind what is kept, begins again with a snapshot. So each subscriber is a number, and a slow
one costs nothing. Numbers begin high: the chunks of a snapshot are numbered backwards from the last batch.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from tandem.worker.engine.process.messages import Pages

FIRST_NUMBER = 1 << 24
HISTORY_PAGES = 1 << 15
_HISTORY_BATCHES = 1 << 13


class Page(NamedTuple):
    """One cached page. Serials are those of one engine; `parent` is 0 for the first page of a chain."""

    serial: int
    parent: int
    tokens: bytes  # int32
    salt: str


@dataclass(frozen=True, slots=True)
class Batch:
    """What happened together: all pages were forgotten (`cleared`), then some published, then some forgotten."""

    number: int
    time: float  # Unix, seconds
    cleared: bool
    published: Sequence[Page]
    forgotten: Sequence[int]

    @property
    def size(self) -> int:
        """Counts its pages."""
        return len(self.published) + len(self.forgotten)


@dataclass(slots=True)
class PageFeed:
    """The feed of one worker; used from one event loop. `watch` has the engine tell, or stop telling."""

    watch: Callable[[bool], None]
    always: bool = False  # also while nobody subscribes
    pages: dict[int, Page] = field(default_factory=dict)  # all that are cached; parents before their children
    number: int = FIRST_NUMBER  # of the last batch
    known: bool = False  # the engine has told what is there
    _history: deque[Batch] = field(default_factory=deque)
    _kept: int = 0  # pages in the history
    _subscribers: set[asyncio.Event] = field(default_factory=set)

    def start(self) -> None:
        """Begins to follow the pages, where that does not wait for a subscriber."""
        if self.always:
            self.watch(True)

    @property
    def subscribers(self) -> int:
        """Counts those who follow."""
        return len(self._subscribers)

    @contextmanager
    def subscribed(self) -> Iterator[asyncio.Event]:
        """Follows; yields an event that is set whenever something is new."""
        wake = asyncio.Event()
        if not self._subscribers and not self.always:
            self.watch(True)
        self._subscribers.add(wake)
        try:
            yield wake
        finally:
            self._subscribers.remove(wake)
            if not self._subscribers and not self.always:
                self.watch(False)
                self._forget()
                self.known = False

    def apply(self, told: Pages) -> None:
        """Takes what the engine tells."""
        if not self._subscribers and not self.always:
            return  # it was on its way when the last subscriber left
        if told.fresh:
            cleared, self.known = bool(self.pages), True
            self.pages.clear()
        elif not self.known:
            return  # of a watch that has ended
        else:
            cleared = False
        published = list(_unpacked(told, self.pages))
        forgotten = np.frombuffer(told.forgotten, np.int64).tolist()
        for serial in forgotten:
            self.pages.pop(serial, None)
        self._append(cleared, published, forgotten)

    def lose(self) -> None:
        """Forgets all pages: the engine is gone. The next one tells its own."""
        if self.known:
            self.pages.clear()
            self._append(True, (), ())

    def since(self, number: int) -> list[Batch] | None:
        """Returns the batches from `number` on; None where the first of them is not kept any more, or was never
        there."""
        if number == self.number + 1:
            return []
        if not self._history or not self._history[0].number <= number <= self.number:
            return None
        first = self._history[0].number
        return [self._history[place] for place in range(number - first, len(self._history))]

    def _append(self, cleared: bool, published: Sequence[Page], forgotten: Sequence[int]) -> None:
        self.number += 1
        batch = Batch(self.number, time.time(), cleared, published, forgotten)
        self._history.append(batch)
        self._kept += batch.size
        while self._kept > HISTORY_PAGES or len(self._history) > _HISTORY_BATCHES:
            self._kept -= self._history.popleft().size
        for wake in self._subscribers:
            wake.set()

    def _forget(self) -> None:
        self.pages.clear()
        self._history.clear()
        self._kept = 0
        self.number += 1  # what happens while nobody follows is never told


def _unpacked(told: Pages, known: dict[int, Page]) -> Iterator[Page]:
    """Yields the published pages, each added to those that are known."""
    serials = np.frombuffer(told.serials, np.int64).tolist()
    parents = np.frombuffer(told.parents, np.int64).tolist()
    size = len(told.tokens) // len(serials) if serials else 0
    for place, (serial, parent) in enumerate(zip(serials, parents, strict=True)):
        above = known.get(parent)
        salt = told.salts.get(serial, "") if above is None else above.salt
        page = Page(serial, parent, told.tokens[place * size : (place + 1) * size], salt)
        known[serial] = page
        yield page
