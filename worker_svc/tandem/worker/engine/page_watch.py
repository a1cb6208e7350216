"""Has a page table record its events, and takes them: what `Watch` and `Pages` of the engine's messages are about."""

from __future__ import annotations

import numpy as np

from tandem.worker.engine.page_events import PageEvents
from tandem.worker.engine.pages import PageTable


def watch(table: PageTable, wanted: bool) -> None:
    """Begins or ends to record; a record begins with all pages that are published now."""
    table._events = events = PageEvents(_page_bytes(table), fresh=True) if wanted else None
    if events is not None:
        for each in sorted(table._published.values(), key=lambda each: each.serial):  # parents before their children
            events.published(each.serial, *each.name)


def take_events(table: PageTable) -> PageEvents | None:
    """Returns what has happened since the last call; None for nothing."""
    events = table._events
    if not events:
        return None
    table._events = PageEvents(_page_bytes(table))
    return events


def _page_bytes(table: PageTable) -> int:
    return table.page_size * np.dtype(np.int32).itemsize
