"""Tracks which page of the KV cache holds what.

A page holds `page_size` consecutive tokens of a sequence. It is in one of three states:

    free         holds nothing that anybody may use
    referenced   belongs to one or more running sequences; `published` once all of its keys and values are there
    cached       published, referenced by nobody: kept as prompt cache until its place is needed

Published pages form chains, in which they are found by their tokens (`chains.py`). Three rules:

  1. Whoever references a page references all its ancestors. So a cached page has only cached descendants, and every
     cached page can be evicted.
  2. Eviction takes leaves only, the least recently used first. Plain LRU would evict roots as gladly as leaves, and a
     chain without its root can never be matched again. A parent is used whenever its child is, so the oldest leaf
     lies on the chain that was not used for the longest time.
  3. A name is published once. When two sequences complete the same page, the second one takes over the first one's page
     and gives its own back: their contents are the same bits.

A page that begins like what a new sequence needs, but ends otherwise, can be copied: its first keys and values are
right. For this, the last page of a sequence that ends is published too, with the tokens that it has.

Where layers have states instead of keys and values, a chain can be used up to a position whose state was kept;
`states.py` has the rules, and its table belongs to this one.

No torch here: numbers only. Which free page comes next is `free_pages.py`'s business. `integrity.py` derives
everything anew and is meant to be called after every operation in tests.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from tandem.worker.engine.chains import Chains, Parent, Tokens
from tandem.worker.engine.free_pages import FreePages
from tandem.worker.engine.kept_states import Kept, furthest_kept
from tandem.worker.engine.load import EngineStatistics
from tandem.worker.engine.states import SequenceState, StateCopy, StateTable


class PageCopy(NamedTuple):
    """A page whose content goes into another one. Of several copies, all are read before any is written."""

    source: int
    target: int


@dataclass(frozen=True, slots=True)
class SimilarPage:
    """A published page that begins with the tokens that a sequence needs next: a copy of it saves computing them."""

    page: int
    tokens: int


@dataclass(slots=True, eq=False)
class SequencePages:
    """The pages of one sequence, in order. Only the table changes it."""

    salt: str
    bypass: bool
    pages: npt.NDArray[np.int64]  # room for more than `count`
    held: npt.NDArray[np.int64]  # [count] of these, in order; another array whenever they are others
    count: int = 0
    published: int = 0  # of `count`, from the front
    cached_tokens: int = 0  # tokens in whole pages that were there already when it was opened
    similar: SimilarPage | None = None  # how the page after those begins
    state: SequenceState | None = None
    tail: Parent = ""  # name by which the next page to be published knows its parent
    closed: bool = False

    @property
    def found_tokens(self) -> int:
        """Counts the tokens whose keys and values were there when it was opened, a page to be copied included."""
        return self.cached_tokens + (self.similar.tokens if self.similar is not None else 0)


@dataclass(slots=True, eq=False)
class PageTable:
    """Hands out, shares, keeps and evicts the `total` pages of a cache."""

    total: int
    page_size: int
    statistics: EngineStatistics = field(default_factory=EngineStatistics)
    states: StateTable | None = None  # where the model has layers with states
    chains: Chains = field(init=False)  # the published pages
    _references: list[int] = field(init=False)
    _free: FreePages = field(init=False)
    _cached_count: int = field(init=False, default=0)
    _used_at: list[int] = field(init=False)
    _leaves: list[tuple[int, int]] = field(init=False, default_factory=list)  # heap of (used_at, page); may be stale
    _clock: int = field(init=False, default=0)
    _open: set[SequencePages] = field(init=False, default_factory=set)

    def __post_init__(self) -> None:
        if self.total < 1 or self.page_size < 1:
            raise ValueError(f"a page table needs at least one page of one token, not {self.total} of {self.page_size}")
        if self.states is not None:
            self.states.statistics = self.statistics
        self.chains = Chains(self.page_size)
        self._references = [0] * self.total
        self._used_at = [0] * self.total
        self._free = FreePages(self.total)

    # --- what there is

    @property
    def free(self) -> int:
        """Counts the pages that hold nothing."""
        return self._free.count

    @property
    def cached(self) -> int:
        """Counts the pages that hold a prefix and are referenced by nobody."""
        return self._cached_count

    @property
    def referenced(self) -> int:
        """Counts the pages that running sequences use."""
        return self.total - self._free.count - self._cached_count

    @property
    def available(self) -> int:
        """Counts the pages that a sequence could get now."""
        return self._free.count + self._cached_count

    def pages_for(self, tokens: int) -> int:
        """Returns how many pages hold so many tokens."""
        return -(-tokens // self.page_size)

    # --- sequences

    def _similar(
        self, tokens: Tokens, chain: list[int], tail: Parent, bypass: bool, sibling: SequencePages | None, shared: int
    ) -> SimilarPage | None:
        """Returns the page that begins most like what comes behind a chain, one that a sibling still fills included."""
        found, last = len(chain) * self.page_size, len(tokens) - 1  # at least one token is left to compute
        wanted = tokens[found : min(found + self.page_size, last)]
        page, same = (None, 0) if bypass else self.chains.most_like(wanted, tail)
        if sibling is not None and (common := min(shared, last) - found) > same:
            page, same = int(sibling.held[len(chain)]), min(common, self.page_size)
        return SimilarPage(page, same) if page is not None else None

    def _kept(self, tokens: Tokens, chain: list[int], salt: str, sibling: SequencePages | None, shared: int) -> Kept:
        """Returns the furthest position of `tokens` whose state was kept, or is that of a sibling."""
        assert self.states is not None
        size = self.page_size
        best = furthest_kept(self.states, self.chains, tokens, chain, salt)
        if sibling is not None and sibling.state is not None:
            position = sibling.state.position
            if best.position < position <= min(shared, len(tokens) - 1) and position // size <= len(chain):
                best = Kept(
                    position, sibling.state.slot, int(sibling.held[position // size]) if position % size else None
                )
        return best

    def open(
        self,
        tokens: Tokens,
        *,
        salt: str = "",
        bypass: bool = False,
        sibling: SequencePages | None = None,
        shared: int = 0,
        length: int = 0,
    ) -> SequencePages:
        """Begins a sequence with what is cached of `tokens` `[n >= 1]`; takes no other page yet.

        `similar` names a page that the caller may copy into the next one, before anything else is written. It may be
        one that an open `sibling` still fills, which has computed the same first `shared` tokens. `length`: how many
        tokens are known, where that is more than may be found in the cache.
        """
        size, state = self.page_size, None
        chain = [] if bypass else self.chains.longest(tokens, salt)
        if self.states is None:
            tail = self.chains.tail(chain, salt)
            similar = self._similar(tokens, chain, tail, bypass, sibling, shared)
        else:
            kept = Kept() if bypass else self._kept(tokens, chain, salt, sibling, shared)
            end = (max(length, len(tokens)) - 1) // size * size
            marks = [] if bypass else self.states.marks(kept.position, len(chain) * size, end, size)
            state = SequenceState(kept.position, marks, kept.slot)
            chain, rest = chain[: kept.position // size], kept.position % size
            tail = self.chains.tail(chain, salt)
            similar = SimilarPage(kept.page, rest) if kept.page is not None and rest else None
        pages = np.empty(max(4, self.pages_for(len(tokens)) + 1), dtype=np.int64)
        pages[: len(chain)] = chain
        found = len(chain)
        sequence = SequencePages(salt, bypass, pages, pages[:found], found, found, found * size, similar, state, tail)
        self._clock += 1
        for page in chain:
            self._reference(page)
        self._open.add(sequence)
        return sequence

    def reserve(self, sequence: SequencePages, tokens: int) -> bool:
        """Reserves room for `tokens` tokens in all; returns False, and changes nothing, if there is not enough."""
        missing = self.pages_for(tokens) - sequence.count
        if missing <= 0:
            return True
        if missing > self.available:
            return False
        if sequence.count + missing > len(sequence.pages):
            grown = np.empty(max(sequence.count + missing, 2 * len(sequence.pages)), dtype=np.int64)
            grown[: sequence.count] = sequence.held
            sequence.pages = grown
        last = int(sequence.pages[sequence.count - 1]) if sequence.count else -2
        for _ in range(missing):
            last = self._take(last + 1)
            self._references[last] = 1
            sequence.pages[sequence.count] = last
            sequence.count += 1
        sequence.held = sequence.pages[: sequence.count]
        return True

    def seat(self, sequence: SequencePages) -> StateCopy | None:
        """Gives a sequence with a state its own slot; returns the copy that must be made before it is computed."""
        state = sequence.state
        if state is None:
            return None
        assert self.states is not None and state.slot is None
        state.slot = self.states.take()
        return StateCopy(state.source, state.slot) if state.source is not None else None

    def publish(self, sequence: SequencePages, tokens: Tokens, computed: int) -> None:
        """Names the pages that are full now: the keys and values of `tokens[:computed]` are in the cache."""
        if sequence.bypass:
            return
        for _ in range(sequence.published, computed // self.page_size):
            self._publish_next(sequence, tokens, computed)

    def publish_tail(self, sequence: SequencePages, tokens: Tokens, computed: int) -> None:
        """Names all pages, the last one too if it is not full; nothing may be computed for the sequence afterwards."""
        self.publish(sequence, tokens, computed)
        if not sequence.bypass and computed > sequence.published * self.page_size:
            self._publish_next(sequence, tokens, computed)
        state = sequence.state
        if sequence.bypass or state is None or state.slot is None or not 0 < state.position <= computed:
            return
        assert self.states is not None
        index = (state.position - 1) // self.page_size
        self.states.keep(int(sequence.held[index]), state.position - index * self.page_size, state.slot)
        state.slot = None

    def _publish_next(self, sequence: SequencePages, tokens: Tokens, computed: int) -> None:
        index = sequence.published
        page = int(sequence.pages[index])
        start, end = index * self.page_size, (index + 1) * self.page_size
        name = (sequence.tail, tokens[start : min(end, computed)].tobytes())
        twin = self.chains.by_name.get(name)
        if twin is not None:
            self._reference(twin)
            self._give_back(page)
            sequence.pages[index] = page = twin
            sequence.held = sequence.pages[: sequence.count]
            self.statistics.merged_pages += 1
        else:
            self.chains.add(page, name, int(sequence.pages[index - 1]) if index else None)
        sequence.tail = self.chains.pages[page].serial
        sequence.published = index + 1
        # A page that is named before it is full may be passed by what is still being computed.
        if computed >= end and sequence.state is not None and end in sequence.state.saves:
            assert self.states is not None
            self.states.saved -= 1
            self.states.keep(page, self.page_size, sequence.state.saves.pop(end))

    def close(self, sequence: SequencePages, *, discard: bool = False) -> list[int]:
        """Ends a sequence. Its published pages stay cached, the others become free. With `discard`, published pages
        become free too, unless somebody else uses them or pages that hang on them. Returns what became free."""
        assert not sequence.closed, "a sequence is closed once"
        sequence.closed = True
        self._open.remove(sequence)
        self._clock += 1
        dropped: list[int] = sequence.held[sequence.published :].tolist()
        for page in dropped:
            self._give_back(page)
        # From the end, so that each page is a leaf when its turn comes.
        for page in sequence.held[: sequence.published][::-1].tolist():
            self._release(page)
            if discard and not self._references[page] and not self.chains.has_children(page):
                self._unpublish(page)
                self._free.add(page)
                dropped.append(page)
        sequence.count, sequence.held = 0, sequence.pages[:0]
        if self.states is not None and sequence.state is not None:
            self.states.close(sequence.state)
        return dropped

    def clear(self) -> int:
        """Forgets every cached page; returns how many there were."""
        forgotten = self._cached_count
        for _ in range(forgotten):
            self._free.add(self._evict())
        return forgotten

    # --- pages

    def _reference(self, page: int) -> None:
        """Counts one more sequence that uses a published page."""
        if self._references[page] == 0:
            self._cached_count -= 1
        self._references[page] += 1
        self._used_at[page] = self._clock

    def _release(self, page: int) -> None:
        """Counts one sequence less that uses a published page."""
        self._references[page] -= 1
        self._used_at[page] = self._clock
        if self._references[page] == 0:
            self._cached_count += 1
            if not self.chains.has_children(page):
                self._add_leaf(page)

    def _give_back(self, page: int) -> None:
        """Frees a page that was never published, from its only sequence."""
        assert self._references[page] == 1 and page not in self.chains.pages
        self._references[page] = 0
        self._free.add(page)

    def _take(self, preferred: int) -> int:
        """Takes a page for a sequence: a free one, best of all `preferred`, or the oldest leaf."""
        return self._free.take(preferred) if self._free.count else self._evict()

    def _evict(self) -> int:
        """Un-publishes the least recently used leaf that nobody references and returns it."""
        while True:
            used_at, page = heapq.heappop(self._leaves)
            cached = page in self.chains.pages and not self._references[page]
            if cached and not self.chains.has_children(page) and self._used_at[page] == used_at:
                break
        self._unpublish(page)
        self.statistics.evictions += 1
        return page

    def _unpublish(self, page: int) -> None:
        """Forgets a leaf that nobody references."""
        parent = self.chains.remove(page)
        if self.states is not None:
            self.states.drop(page)
        self._cached_count -= 1
        if parent is not None and not self._references[parent]:
            self._add_leaf(parent)

    def _add_leaf(self, page: int) -> None:
        heapq.heappush(self._leaves, (self._used_at[page], page))
        if len(self._leaves) > 2 * self.total:  # mostly stale: pages that were used again
            self._rebuild_leaves()

    def relabel(self, new: Mapping[int, int]) -> None:
        """Renumbers pages: what page p held is in page `new[p]` now (a permutation). No sequence may be open."""
        assert not self._open, "pages are renumbered only when nobody holds one"
        assert set(new) == set(new.values()), "a permutation"
        self.chains.relabel(new)
        used_at = list(self._used_at)
        for old, page in new.items():
            self._used_at[page] = used_at[old]
        if self.states is not None:
            self.states.relabel(new)
        self._free.relabel(new)
        self._rebuild_leaves()

    def _rebuild_leaves(self) -> None:
        self._leaves = [
            (self._used_at[page], page)
            for page in self.chains.pages
            if not self._references[page] and not self.chains.has_children(page)
        ]
        heapq.heapify(self._leaves)
