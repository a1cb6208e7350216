"""Brings cached chains into contiguous runs while nothing runs.

Attention reads pages that follow each other where they lie, and gathers scattered ones. Sequences that grow side by
side interleave their pages; once they are only prompt cache, their chains can be laid out anew: the i-th page of
`chains()` goes to place i, by swaps, a bounded number at a time so that a request that arrives meanwhile does not wait.
"""

from __future__ import annotations

from tandem.worker.engine.pages import PageCopy, PageTable

WORTHWHILE_SHARE = 0.1  # of all links between parent and child are broken
WORTHWHILE_BREAKS = 4


def is_fragmented(table: PageTable) -> bool:
    """Whether laying the chains out anew is worth its copies. Takes time in proportion to the published pages."""
    breaks = table.breaks()
    return breaks >= WORTHWHILE_BREAKS and breaks >= WORTHWHILE_SHARE * table.cached


def defragment(table: PageTable, limit: int) -> list[PageCopy]:
    """Puts up to `limit` pages in their places; returns the copies that make it true. No sequence may be open."""
    content: dict[int, int] = {}  # place -> page whose content it gets; what is not named stays
    where: dict[int, int] = {}  # page -> place of its content
    for place, page in enumerate(table.chains()):
        current = where.get(page, page)
        if current == place:
            continue
        other = content.get(place, place)
        content[place], content[current] = page, other
        where[page], where[other] = place, current
        limit -= 1
        if limit <= 0:
            break
    moved = {page: place for page, place in where.items() if page != place}
    table.relabel(moved)
    table.statistics.moved_pages += len(moved)
    return [PageCopy(source, target) for source, target in moved.items()]
