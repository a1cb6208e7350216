"""Finds published pages by what they hold.

Published pages form chains. A page's name is (its parent, its tokens); the parent of a sequence's first page is the
sequence's salt. Names are compared in full, so that no collision of hashes can hand out a wrong page.

No torch here: numbers only. Who uses a page, and which one is given up, is the business of `pages.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from tandem.worker.engine.page_events import PageEvents

SIMILAR_PAGES = 16  # of a page's children, the latest so many are compared with what a new sequence needs

TOKEN_BYTES = 4
Tokens = npt.NDArray[np.int32]
Parent = int | str  # the serial of the parent page, or the salt
Name = tuple[Parent, bytes]  # the parent and the tokens


@dataclass(slots=True)
class Published:
    """A published page's name and its links in its chain."""

    name: Name
    serial: int  # never used again, so that a stale child cannot find a new parent
    parent: int | None  # page number

    @property
    def tokens(self) -> Tokens:
        """Returns the tokens whose keys and values the page has; a view."""
        return np.frombuffer(self.name[1], dtype=np.int32)


@dataclass(slots=True, eq=False)
class Chains:
    """The published pages, by number, by name and by parent. Others read; only the page table changes it."""

    page_size: int
    pages: dict[int, Published] = field(default_factory=dict)
    children: dict[Parent, list[int]] = field(default_factory=dict)
    by_name: dict[Name, int] = field(default_factory=dict)
    published_ever: int = 0  # pages: a sign of change
    _events: PageEvents | None = None

    def tail(self, chain: list[int], salt: str) -> Parent:
        """Returns the parent of the page that comes behind a chain."""
        return self.pages[chain[-1]].serial if chain else salt

    def longest(self, tokens: Tokens, salt: str) -> list[int]:
        """Returns the longest chain that `tokens` begins with; at least one token is left to compute."""
        found: list[int] = []
        parent: Parent = salt
        data = tokens.tobytes()
        step = self.page_size * TOKEN_BYTES
        for index in range((len(tokens) - 1) // self.page_size):
            page = self.by_name.get((parent, data[index * step : (index + 1) * step]))
            if page is None:
                break
            found.append(page)
            parent = self.pages[page].serial
        return found

    def most_like(self, tokens: Tokens, parent: Parent) -> tuple[int | None, int]:
        """Returns the child of `parent` that begins most like `tokens`, and how many tokens that are."""
        best, most = None, 0
        for page in self.children.get(parent, ())[-SIMILAR_PAGES:]:
            content = self.pages[page].tokens[: len(tokens)]
            differs = np.flatnonzero(content != tokens[: len(content)])
            same = int(differs[0]) if differs.size else len(content)
            if same > most:
                best, most = page, same
        return best, most

    def has_children(self, page: int) -> bool:
        """Tells whether pages hang on a published one."""
        return self.pages[page].serial in self.children

    def add(self, page: int, name: Name, parent: int | None) -> None:
        """Publishes a page by a name that no other has."""
        self.published_ever += 1
        self.pages[page] = Published(name, self.published_ever, parent)
        self.by_name[name] = page
        self.children.setdefault(name[0], []).append(page)
        if self._events is not None:
            self._events.published(self.published_ever, *name)

    def remove(self, page: int) -> int | None:
        """Forgets a page without children; returns its parent if that has none any more."""
        entry = self.pages.pop(page)
        del self.by_name[entry.name]
        if self._events is not None:
            self._events.unpublished(entry.serial, entry.name[1])
        siblings = self.children[entry.name[0]]
        siblings.remove(page)
        if siblings:
            return None
        del self.children[entry.name[0]]
        return entry.parent

    def relabel(self, new: Mapping[int, int]) -> None:
        """Renumbers pages: what page p held is in page `new[p]` now."""
        for entry in self.pages.values():
            entry.parent = None if entry.parent is None else new.get(entry.parent, entry.parent)
        self.pages = {new.get(page, page): entry for page, entry in self.pages.items()}
        self.by_name = {entry.name: page for page, entry in self.pages.items()}
        self.children = {parent: [new.get(page, page) for page in pages] for parent, pages in self.children.items()}

    def watch(self, wanted: bool) -> None:
        """Begins or ends to record what is published and forgotten; a record begins with all that there is."""
        self._events = PageEvents(self.page_size * TOKEN_BYTES, fresh=True) if wanted else None
        if self._events is not None:
            for each in sorted(self.pages.values(), key=lambda each: each.serial):  # parents before their children
                self._events.published(each.serial, *each.name)

    def take_events(self) -> PageEvents | None:
        """Returns what was recorded since the last call; None for nothing."""
        events = self._events
        if not events:
            return None
        self._events = PageEvents(self.page_size * TOKEN_BYTES)
        return events
