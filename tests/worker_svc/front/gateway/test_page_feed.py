"""Whoever follows the feed, from any number and at any pace, knows in the end what the table holds."""

from __future__ import annotations

import asyncio
import random

import numpy as np
import pytest

from tandem.worker.engine.integrity import check_pages
from tandem.worker.engine.pages import PageTable
from tandem.worker.engine.process.messages import Pages
from tandem.worker.front.gateway import page_feed
from tandem.worker.front.gateway.page_feed import FIRST_NUMBER, Page, PageFeed

Chains = set[tuple[tuple[int, ...], ...]]


def chains(pages: dict[int, Page]) -> Chains:
    """Each page as the tokens of its chain; every parent must be there."""
    known: dict[int, tuple[tuple[int, ...], ...]] = {0: ()}
    for page in pages.values():
        known[page.serial] = (*known[page.parent], tuple(np.frombuffer(page.tokens, np.int32).tolist()))
    del known[0]
    return set(known.values())


def chains_of(table: PageTable) -> Chains:
    """The same of whole pages, from the table itself."""
    names = {each.serial: each.name for each in table.chains.pages.values() if len(each.name[1]) == 4 * table.page_size}

    def chain(serial: int | str) -> tuple[tuple[int, ...], ...]:
        if isinstance(serial, str):
            return ()
        parent, tokens = names[serial]
        return (*chain(parent), tuple(np.frombuffer(tokens, np.int32).tolist()))

    return {chain(serial) for serial in names}


def use(table: PageTable, draw: random.Random) -> None:
    """One sequence of a few pages, many of which begin alike."""
    tokens = np.array([draw.randrange(2) for _ in range(draw.randrange(1, 20))], np.int32)
    sequence = table.open(tokens)
    if table.reserve(sequence, len(tokens)):
        table.publish_tail(sequence, tokens, len(tokens))
    table.close(sequence, discard=draw.random() < 0.2)
    if draw.random() < 0.05:
        table.clear()
    check_pages(table)


class Follower:
    """A subscriber that comes by now and then."""

    def __init__(self) -> None:
        self.next = 0
        self.pages: dict[int, Page] = {}
        self.snapshots = 0

    def catch_up(self, feed: PageFeed) -> None:
        batches = feed.since(self.next) if self.next else None
        if batches is None:
            self.snapshots += 1
            self.pages = dict(feed.pages)
            self.next = feed.number + 1
            return
        for batch in batches:
            assert batch.number == self.next, "no number is left out"
            self.next += 1
            if batch.cleared:
                self.pages.clear()
            for page in batch.published:
                assert page.parent in (0, *self.pages), "a parent comes before its child"
                self.pages[page.serial] = page
            for serial in batch.forgotten:
                del self.pages[serial]


@pytest.mark.parametrize("seed", range(5))
def test_followers_of_any_pace_see_what_the_table_holds(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page_feed, "HISTORY_PAGES", 30)
    draw = random.Random(seed)
    table = PageTable(12, 4)
    feed = PageFeed(table.chains.watch)
    for _ in range(10):
        use(table, draw)
    assert table.chains.take_events() is None, "nobody watches"
    quick, slow = Follower(), Follower()
    with feed.subscribed():
        for step in range(400):
            use(table, draw)
            if (events := table.chains.take_events()) is not None:
                feed.apply(Pages.of(events))
            assert chains(feed.pages) == chains_of(table)
            quick.catch_up(feed)
            if step % 60 == 0:
                slow.catch_up(feed)
        slow.catch_up(feed)
    assert quick.snapshots == 1 and slow.snapshots > 1, "who lags begins again"
    assert chains(quick.pages) == chains(slow.pages) == chains_of(table)


def test_the_history_is_bounded_and_nothing_is_kept_when_nobody_follows() -> None:
    told: list[bool] = []
    feed = PageFeed(told.append)
    page = Pages(True, *(np.array([n], np.int64).tobytes() for n in (1, 0)), bytes(16), {}, b"")
    feed.apply(page)
    assert feed.number == FIRST_NUMBER and not feed.pages, "on its way from an earlier watch"
    with feed.subscribed(), feed.subscribed():
        feed.apply(page)
        for serial in range(2, 2 * page_feed.HISTORY_PAGES):
            number = np.array([serial], np.int64).tobytes()
            feed.apply(Pages(False, number, np.array([0], np.int64).tobytes(), bytes(16), {}, number))
        assert feed._kept <= page_feed.HISTORY_PAGES and len(feed.pages) == 1
        assert feed.since(FIRST_NUMBER + 1) is None and feed.since(feed.number + 2) is None
        before = feed.number
    assert told == [True, False] and not feed.pages and not feed._history
    assert feed.since(before + 1) is None, "what happened meanwhile is not known"


def test_a_new_engine_begins_with_nothing() -> None:
    feed = PageFeed(lambda wanted: None, always=True)
    feed.start()
    page = Pages(True, *(np.array([n], np.int64).tobytes() for n in (7, 0)), bytes(16), {7: "salt"}, b"")
    feed.apply(page)
    assert [each.salt for each in feed.pages.values()] == ["salt"]
    follower = Follower()
    follower.catch_up(feed)
    feed.lose()
    follower.catch_up(feed)
    assert follower.pages == {} == feed.pages and follower.snapshots == 1


async def test_followers_are_woken() -> None:
    feed = PageFeed(lambda wanted: None)
    with feed.subscribed() as wake:
        feed.apply(Pages(True, b"", b"", b"", {}, b""))
        assert await asyncio.wait_for(wake.wait(), 10)
