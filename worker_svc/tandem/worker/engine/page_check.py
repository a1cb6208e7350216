"""Checks the page table's integrity: every number is derived anew from what sequences hold and what pages are
called."""

from __future__ import annotations

from collections import Counter

from tandem.worker.engine.pages import TOKEN_BYTES, PageTable, SequencePages


def check_pages(table: PageTable) -> None:
    """Raises AssertionError with what is wrong."""
    held = Counter(page for sequence in table._open for page in sequence.held.tolist())
    for page, references in enumerate(table._references):
        assert references == held[page], f"page {page}: {references} references, {held[page]} holders"
        free = not references and page not in table._published
        assert (page in table._free) == free, f"page {page}: free is {not free}"
        assert references <= 1 or page in table._published, f"page {page} is shared but not published"
    cached = [page for page in table._published if not table._references[page]]
    assert table._cached_count == len(cached), f"{table._cached_count} cached pages counted, {len(cached)} found"
    table._free.check()
    parents = {entry.parent for entry in table._published.values()}
    listed = sorted(page for children in table._children.values() for page in children)
    assert listed == sorted(table._published), "the lists of children differ from what is published"
    for page, entry in table._published.items():
        assert table._by_name[entry.name] == page, f"page {page} is not found by its name"
        assert page in table._children[entry.name[0]], f"page {page} is not among its parent's children"
        if entry.parent is not None:
            parent = table._published[entry.parent]
            assert parent.serial == entry.name[0], f"page {page} hangs on a page that is not its parent"
            holders = table._references[entry.parent]
            assert holders >= table._references[page], f"page {page} has more holders than its parent"
            # Only cached pages are evicted, so only their order matters.
            newer = table._used_at[page] > table._used_at[entry.parent]
            assert holders or not newer, f"page {page} was used after its parent"
    assert len(table._by_name) == len(table._published), "names and pages differ in number"
    leaves = {(table._used_at[page], page) for page in cached if page not in parents}
    lost = leaves - set(table._leaves)
    assert not lost, f"the heap of leaves lacks {sorted(lost)[:5]}"
    for sequence in table._open:
        _check_sequence(table, sequence)
    if table.states is not None:
        states = [sequence.state for sequence in table._open if sequence.state is not None]
        assert len(states) == len(table._open), "a sequence without a state"
        lengths = {page: len(entry.name[1]) // TOKEN_BYTES for page, entry in table._published.items()}
        table.states.check(states, lengths)


def _check_sequence(table: PageTable, sequence: SequencePages) -> None:
    pages = sequence.held.tolist()
    assert len(set(pages)) == len(pages), "a sequence holds a page twice"
    parent: int | str = sequence.salt
    for index, page in enumerate(pages):
        assert (page in table._published) == (index < sequence.published), f"page {page}: published or not?"
        if index < sequence.published:
            assert table._published[page].name[0] == parent, f"page {page} is out of its chain"
            parent = table._published[page].serial
    assert sequence.tail == parent, "a sequence forgot where its chain ends"
