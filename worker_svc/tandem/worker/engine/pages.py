"""Tracks which page of the KV cache holds what.

A page holds `page_size` consecutive tokens of a sequence. It is in one of three states:

    free         holds nothing that anybody may use
    referenced   belongs to one or more running sequences; `published` once all of its keys and values are there
    cached       published, referenced by nobody: kept as prompt cache until its place is needed

Published pages form chains. A page's name is (its parent, its tokens); the parent of a sequence's first page is the
sequence's salt. Names are compared in full, so that no collision of hashes can hand out a wrong page. Three rules:

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

No torch here: numbers only. Which free page comes next is `free_pages.py`'s business. `page_check.py` derives
everything anew and is meant to be called after every operation in tests.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from tandem.worker.engine.free_pages import FreePages
from tandem.worker.engine.load import EngineStatistics
from tandem.worker.engine.page_events import PageEvents
from tandem.worker.engine.states import SequenceState, StateCopy, StateTable

SIMILAR_PAGES = 16  # of a page's children, the latest so many are compared with what a new sequence needs

TOKEN_BYTES = 4
Tokens = npt.NDArray[np.int32]
Name = tuple[int | str, bytes]  # (serial of the parent page, or the salt; the tokens)


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
    count: int = 0
    published: int = 0  # of `count`, from the front
    cached_tokens: int = 0  # tokens in whole pages that were there already when it was opened
    similar: SimilarPage | None = None  # how the page after those begins
    state: SequenceState | None = None
    tail: int | str = ""  # name by which the next page to be published knows its parent
    closed: bool = False

    @property
    def found_tokens(self) -> int:
        """Counts the tokens whose keys and values were there when it was opened, a page to be copied included."""
        return self.cached_tokens + (self.similar.tokens if self.similar is not None else 0)

    @property
    def held(self) -> npt.NDArray[np.int64]:
        """Returns page numbers in order, `[count]`; a view that the next operation may invalidate."""
        return self.pages[: self.count]


class _Kept(NamedTuple):
    """How much of a sequence was computed before, where its layers have states."""

    position: int = 0
    slot: int | None = None  # that has the state there
    page: int | None = None  # that has the tokens from the last border to `position`, where that is no border


@dataclass(slots=True)
class _Published:
    """A published page's name and its links in its chain."""

    name: Name
    serial: int  # never used again, so that a stale child cannot find a new parent
    parent: int | None  # page number


@dataclass(slots=True, eq=False)
class PageTable:
    """Hands out, shares, keeps and evicts the `total` pages of a cache."""

    total: int
    page_size: int
    statistics: EngineStatistics = field(default_factory=EngineStatistics)
    states: StateTable | None = None  # where the model has layers with states
    _references: list[int] = field(init=False)
    _published: dict[int, _Published] = field(init=False, default_factory=dict)
    _by_name: dict[Name, int] = field(init=False, default_factory=dict)
    _children: dict[int | str, list[int]] = field(init=False, default_factory=dict)  # by the parent's serial, or salt
    _free: FreePages = field(init=False)
    _cached_count: int = field(init=False, default=0)
    _used_at: list[int] = field(init=False)
    _leaves: list[tuple[int, int]] = field(init=False, default_factory=list)  # heap of (used_at, page); may be stale
    _clock: int = field(init=False, default=0)
    _next_serial: int = field(init=False, default=1)
    _open: set[SequencePages] = field(init=False, default_factory=set)
    _events: PageEvents | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        if self.total < 1 or self.page_size < 1:
            raise ValueError(f"a page table needs at least one page of one token, not {self.total} of {self.page_size}")
        if self.states is not None:
            self.states.statistics = self.statistics
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

    @property
    def published_ever(self) -> int:
        """Counts the pages published so far: a sign of change."""
        return self._next_serial - 1

    def pages_for(self, tokens: int) -> int:
        """Returns how many pages hold so many tokens."""
        return -(-tokens // self.page_size)

    # --- sequences

    def cached_prefix(self, tokens: Tokens, salt: str) -> list[int]:
        """Returns the longest cached chain that `tokens` begins with; at least one token is left to compute."""
        found: list[int] = []
        parent: int | str = salt
        size = self.page_size
        data = tokens.tobytes()
        step = size * tokens.itemsize
        for index in range((len(tokens) - 1) // size):
            page = self._by_name.get((parent, data[index * step : (index + 1) * step]))
            if page is None:
                break
            found.append(page)
            parent = self._published[page].serial
        return found

    def _similar_page(self, tokens: Tokens, prefix: int, parent: int | str) -> SimilarPage | None:
        """Returns the child of `parent` most like `tokens[prefix:]`; at least one token is left to compute."""
        wanted = tokens[prefix : min(prefix + self.page_size, len(tokens) - 1)]
        best: SimilarPage | None = None
        for page in self._children.get(parent, ())[-SIMILAR_PAGES:]:
            content = np.frombuffer(self._published[page].name[1], dtype=tokens.dtype)[: len(wanted)]
            differs = np.flatnonzero(content != wanted[: len(content)])
            same = int(differs[0]) if differs.size else len(content)
            if same > (best.tokens if best else 0):
                best = SimilarPage(page, same)
        return best

    def _kept(self, tokens: Tokens, chain: list[int], salt: str, sibling: SequencePages | None, shared: int) -> _Kept:
        """Returns the furthest position of `tokens` whose state was kept, or is that of a sibling; `chain` are the
        cached pages that `tokens` begins with."""
        assert self.states is not None
        size, snapshots = self.page_size, self.states.snapshots
        best = _Kept()
        for level in range(len(chain), -1, -1):
            parent = self._published[chain[level - 1]].serial if level else salt
            wanted = tokens[level * size : len(tokens) - 1]
            for page in self._children.get(parent, ()):
                snapshot = snapshots.get(page)
                if snapshot is None or snapshot.tokens > len(wanted):
                    continue
                position = level * size + snapshot.tokens
                content = np.frombuffer(self._published[page].name[1], dtype=tokens.dtype)[: snapshot.tokens]
                if position > best.position and np.array_equal(content, wanted[: snapshot.tokens]):
                    best = _Kept(position, snapshot.slot, page)
            if best.page is not None:
                snapshots.move_to_end(best.page)
                break
        if sibling is not None and sibling.state is not None:
            position = sibling.state.position
            if best.position < position <= min(shared, len(tokens) - 1) and position // size <= len(chain):
                beside = int(sibling.held[position // size]) if position % size else None
                best = _Kept(position, sibling.state.slot, beside)
        return best if best.position % size else best._replace(page=None)

    def _open_state(
        self, tokens: Tokens, chain: list[int], salt: str, sibling: SequencePages | None, shared: int, length: int
    ) -> tuple[list[int], SimilarPage | None, SequenceState]:
        """Returns the pages of the chain that can be used, the page to be copied behind them, and the state."""
        assert self.states is not None
        kept = self._kept(tokens, chain, salt, sibling, shared)
        whole, rest = divmod(kept.position, self.page_size)
        similar = SimilarPage(kept.page, rest) if kept.page is not None else None
        end = (length - 1) // self.page_size * self.page_size
        marks = self.states.marks(kept.position, len(chain) * self.page_size, end, self.page_size)
        return chain[:whole], similar, SequenceState(kept.position, marks, kept.slot)

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
        prefix = [] if bypass else self.cached_prefix(tokens, salt)
        similar, state = None, None
        if self.states is not None:
            if bypass:
                state = SequenceState(0, [])
            else:
                known = max(length, len(tokens))
                prefix, similar, state = self._open_state(tokens, prefix, salt, sibling, shared, known)
        pages = np.empty(max(4, self.pages_for(len(tokens)) + 1), dtype=np.int64)
        pages[: len(prefix)] = prefix
        tail = self._published[prefix[-1]].serial if prefix else salt
        cached_tokens = len(prefix) * self.page_size
        sequence = SequencePages(
            salt=salt,
            bypass=bypass,
            pages=pages,
            count=len(prefix),
            published=len(prefix),
            cached_tokens=cached_tokens,
            similar=similar,
            state=state,
            tail=tail,
        )
        if state is None and not bypass:
            sequence.similar = self._similar_page(tokens, cached_tokens, tail)
        if state is None and sibling is not None:
            common = min(shared, len(tokens) - 1) - cached_tokens
            if common > (sequence.similar.tokens if sequence.similar else 0):
                sequence.similar = SimilarPage(int(sibling.held[len(prefix)]), min(common, self.page_size))
        self._clock += 1
        for page in prefix:
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
        start = index * self.page_size
        name = (sequence.tail, tokens[start : min(start + self.page_size, computed)].tobytes())
        twin = self._by_name.get(name)
        if twin is not None:
            self._reference(twin)
            self._give_back(page)
            sequence.pages[index] = page = twin
            self.statistics.merged_pages += 1
        else:
            parent = int(sequence.pages[index - 1]) if index else None
            self._published[page] = _Published(name, self._next_serial, parent)
            self._by_name[name] = page
            self._children.setdefault(sequence.tail, []).append(page)
            if self._events is not None:
                self._events.published(self._next_serial, *name)
            self._next_serial += 1
        sequence.tail = self._published[page].serial
        sequence.published = index + 1
        if sequence.state is not None and start + self.page_size in sequence.state.saves:
            assert self.states is not None
            self.states.saved -= 1
            self.states.keep(page, self.page_size, sequence.state.saves.pop(start + self.page_size))

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
            if discard and not self._references[page] and not self._has_children(page):
                self._unpublish(page)
                self._free.add(page)
                dropped.append(page)
        sequence.count = 0
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
            if not self._has_children(page):
                self._add_leaf(page)

    def _give_back(self, page: int) -> None:
        """Frees a page that was never published, from its only sequence."""
        assert self._references[page] == 1 and page not in self._published
        self._references[page] = 0
        self._free.add(page)

    def _take(self, preferred: int) -> int:
        """Takes a page for a sequence: a free one, best of all `preferred`, or the oldest leaf."""
        return self._free.take(preferred) if self._free.count else self._evict()

    def _evict(self) -> int:
        """Un-publishes the least recently used leaf that nobody references and returns it."""
        while True:
            used_at, page = heapq.heappop(self._leaves)
            cached = page in self._published and not self._references[page]
            if cached and not self._has_children(page) and self._used_at[page] == used_at:
                break
        self._unpublish(page)
        self.statistics.evictions += 1
        return page

    def _unpublish(self, page: int) -> None:
        """Forgets a leaf that nobody references."""
        entry = self._published.pop(page)
        del self._by_name[entry.name]
        if self._events is not None:
            self._events.unpublished(entry.serial, entry.name[1])
        if self.states is not None:
            self.states.drop(page)
        self._cached_count -= 1
        siblings = self._children[entry.name[0]]
        siblings.remove(page)
        if not siblings:
            del self._children[entry.name[0]]
            if entry.parent is not None and not self._references[entry.parent]:
                self._add_leaf(entry.parent)

    def _has_children(self, page: int) -> bool:
        return self._published[page].serial in self._children

    def _add_leaf(self, page: int) -> None:
        heapq.heappush(self._leaves, (self._used_at[page], page))
        if len(self._leaves) > 2 * self.total:  # mostly stale: pages that were used again
            self._rebuild_leaves()

    def _rebuild_leaves(self) -> None:
        self._leaves = [
            (self._used_at[page], page)
            for page in self._published
            if not self._references[page] and not self._has_children(page)
        ]
        heapq.heapify(self._leaves)
