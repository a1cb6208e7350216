"""Moves cached chains into contiguous runs while nothing runs.

Attention reads pages that follow each other where they lie, and gathers scattered ones. Sequences that grow side by
side interleave their pages; once they are only prompt cache, their chains can be laid out anew: the i-th page of
`layout` goes to place i, by swaps, a bounded number at a time so that a request that arrives meanwhile does not wait.
"""

from __future__ import annotations

from tandem.worker.engine.chains import Chains
from tandem.worker.engine.pages import PageCopy, PageTable

WORTHWHILE_SHARE = 0.1  # of all links between parent and child are broken
WORTHWHILE_BREAKS = 4


def is_fragmented(table: PageTable) -> bool:
    """Tells whether laying the chains out anew is worth its copies. Takes time in proportion to the published pages."""
    breaks = _breaks(table.chains)
    return breaks >= WORTHWHILE_BREAKS and breaks >= WORTHWHILE_SHARE * table.cached


def defragment(table: PageTable, limit: int) -> list[PageCopy]:
    """Moves up to `limit` pages to their places; returns the copies that must follow. No sequence may be open."""
    content: dict[int, int] = {}  # place -> page whose content it gets; what is not named stays
    where: dict[int, int] = {}  # page -> place of its content
    for place, page in enumerate(layout(table.chains)):
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


def layout(chains: Chains) -> list[int]:
    """Returns every published page, each chain in order from its root: a parent is followed by its latest child's
    chain, then by those of the other children."""
    order: list[int] = []
    roots = [pages for parent, pages in chains.children.items() if isinstance(parent, str)]
    stack = [page for pages in roots for page in pages]
    while stack:
        page = stack.pop()
        order.append(page)
        stack.extend(chains.children.get(chains.pages[page].serial, ()))
    return order


def _breaks(chains: Chains) -> int:
    """Counts the pages that do not lie right behind their parent, though the parent has no other child there."""
    total = 0
    for siblings in chains.children.values():
        parent = chains.pages[siblings[0]].parent
        total += parent is not None and parent + 1 not in siblings
    return total
