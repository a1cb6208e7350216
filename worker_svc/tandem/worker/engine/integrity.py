"""Checks the integrity of the scheduler and its page table: every number is derived anew from the requests, from what
sequences hold and what pages are called."""

from __future__ import annotations

from collections import Counter

from tandem.worker.engine.chains import Chains, Parent
from tandem.worker.engine.pages import PageTable, SequencePages
from tandem.worker.engine.scheduler import Scheduler


def check_scheduler(scheduler: Scheduler) -> None:
    """Raises AssertionError with what is wrong with requests or pages."""
    table, running = scheduler.table, scheduler.running
    check_pages(table)
    waiting = list(scheduler.queue)
    scheduler.fairness.check(waiting, running)
    assert len(waiting) == scheduler.waiting, "a request is neither waiting nor running"
    assert {r.number for r in waiting} | {r.number for r in running} == set(scheduler.requests)
    assert scheduler.queue.tokens == sum(request.owed for request in waiting), "waiting tokens miscounted"
    assert [r.order for r in running] == sorted(r.order for r in running), "running out of order"
    assert len(running) <= scheduler.limits.max_running
    for request in waiting:
        assert request.pages is None and request.num_computed == 0, "a waiting request holds pages"
        assert not request.in_flight.pending and not request.in_flight.ended, "a waiting request is in flight"
    for request in running:
        assert request.pages is not None, "a running request has no pages"
        # Of drafts in flight, all may be rejected.
        assert request.owed >= 0 or (request.in_flight.pending and request.in_flight.waits), "computed and unknown"
        assert request.num_computed <= request.pages.count * table.page_size, "computed tokens without pages"
    held = sum(request.pages is not None for request in scheduler.requests.values())
    assert held == len(running), "pages of a request that does not run"


def check_pages(table: PageTable) -> None:
    """Raises AssertionError with what is wrong with the pages."""
    chains = table.chains
    held = Counter(page for sequence in table._open for page in sequence.held.tolist())
    for page, references in enumerate(table._references):
        assert references == held[page], f"page {page}: {references} references, {held[page]} holders"
        free = not references and page not in chains.pages
        assert (page in table._free) == free, f"page {page}: free is {not free}"
        assert references <= 1 or page in chains.pages, f"page {page} is shared but not published"
    cached = [page for page in chains.pages if not table._references[page]]
    assert table._cached_count == len(cached), f"{table._cached_count} cached pages counted, {len(cached)} found"
    table._free.check()
    parents = {entry.parent for entry in chains.pages.values()}
    listed = sorted(page for children in chains.children.values() for page in children)
    assert listed == sorted(chains.pages), "the lists of children differ from what is published"
    for page, entry in chains.pages.items():
        assert chains.by_name[entry.name] == page, f"page {page} is not found by its name"
        assert page in chains.children[entry.name[0]], f"page {page} is not among its parent's children"
        if entry.parent is not None:
            parent = chains.pages[entry.parent]
            assert parent.serial == entry.name[0], f"page {page} hangs on a page that is not its parent"
            holders = table._references[entry.parent]
            assert holders >= table._references[page], f"page {page} has more holders than its parent"
            # Only cached pages are evicted, so only their order matters.
            newer = table._used_at[page] > table._used_at[entry.parent]
            assert holders or not newer, f"page {page} was used after its parent"
    assert len(chains.by_name) == len(chains.pages), "names and pages differ in number"
    leaves = {(table._used_at[page], page) for page in cached if page not in parents}
    lost = leaves - set(table._leaves)
    assert not lost, f"the heap of leaves lacks {sorted(lost)[:5]}"
    for sequence in table._open:
        _check_sequence(chains, sequence)
    if table.states is not None:
        states = [sequence.state for sequence in table._open if sequence.state is not None]
        assert len(states) == len(table._open), "a sequence without a state"
        lengths = {page: len(entry.tokens) for page, entry in chains.pages.items()}
        table.states.check(states, lengths)


def _check_sequence(chains: Chains, sequence: SequencePages) -> None:
    pages = sequence.held.tolist()
    assert pages == sequence.pages[: sequence.count].tolist(), "a sequence did not notice that its pages have changed"
    assert len(set(pages)) == len(pages), "a sequence holds a page twice"
    parent: Parent = sequence.salt
    for index, page in enumerate(pages):
        assert (page in chains.pages) == (index < sequence.published), f"page {page}: published or not?"
        if index < sequence.published:
            assert chains.pages[page].name[0] == parent, f"page {page} is out of its chain"
            parent = chains.pages[page].serial
    assert sequence.tail == parent, "a sequence forgot where its chain ends"
