"""Records which whole pages were published and forgotten, for who routes requests to the worker with their prefix.

A page is known by its serial, which is never used again; its parent is 0 for the first page of a chain. Nothing is
recorded while nobody watches.
"""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(slots=True)
class PageEvents:
    """What has happened since it was last taken; what was forgotten counts after what was published."""

    page_bytes: int  # of the tokens of a whole page; pages with fewer are not told, nor has one a child
    fresh: bool = False  # begins with all that is there: what was told before is void
    serials: list[int] = field(default_factory=list)
    parents: list[int] = field(default_factory=list)
    tokens: list[bytes] = field(default_factory=list)
    salts: dict[int, str] = field(default_factory=dict)  # of chains that have one, by the serial of their first page
    forgotten: list[int] = field(default_factory=list)

    def __bool__(self) -> bool:
        return self.fresh or bool(self.serials) or bool(self.forgotten)

    def published(self, serial: int, parent: int | str, tokens: bytes) -> None:
        """Records a page; `parent` is its parent's serial, or its chain's salt."""
        if len(tokens) < self.page_bytes:
            return
        if isinstance(parent, str):
            if parent:
                self.salts[serial] = parent
            parent = 0
        self.serials.append(serial)
        self.parents.append(parent)
        self.tokens.append(tokens)

    def unpublished(self, serial: int, tokens: bytes) -> None:
        """Records the end of a page."""
        if len(tokens) == self.page_bytes:
            self.forgotten.append(serial)
