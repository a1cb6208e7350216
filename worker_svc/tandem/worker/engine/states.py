"""Tracks which slot holds which state of sequences in layers that have such.

Such a layer has one state a sequence instead of keys and values a token, and the state of a sequence is that of its
last token: a prefix of it can be used again only where its state was kept. A slot is in one of four places:

    free       holds nothing
    own        the state of a running sequence
    saved      the state at a page border that a running sequence has passed or is passing; its page is not named yet
    kept       the state after some tokens of a published page (the whole page, or its beginning): a *snapshot*

A state is as large as the keys and values of thousands of tokens (2,400 of Qwen3.6-27B, 3,100 of Qwen3.6-35B-A3B), so
not every border gets one, but those at which sequences part or will:

    the prompt's end     its last border: an answer is often not part of the next prompt as it was
    the sequence's end   for nothing, its own slot becomes the snapshot; so too when it is preempted
    a branch             where a prompt leaves what is cached, and nothing was kept: others may leave it there too
    every SPACING        so that a long prompt that is changed near its end is not computed again as a whole

A new snapshot takes the place of the one that was unused for the longest time. A snapshot goes with its page.

There is always a slot for a sequence: of `total`, running sequences have all but `spare` at most, and no more than
`spare` are saved. What else there is are snapshots, which give way.

No torch here: numbers only, like `pages.py`, whose table owns this one.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from tandem.worker.engine.load import EngineStatistics

SPACING = 4096  # tokens; at least so many are computed for a snapshot, which holds as much as about 3,000 take in pages


class Snapshot(NamedTuple):
    """A kept state: the one after the first `tokens` of its page."""

    slot: int
    tokens: int


class StateCopy(NamedTuple):
    """A state that goes into another slot. Copies are made one after the other."""

    source: int
    target: int


class StateStep(NamedTuple):
    """What a chunk does to its sequence's state (`StateWork` of the model's runner); positions in tokens."""

    slot: int
    position: int
    commit: int
    saves: tuple[tuple[int, int], ...]


@dataclass(slots=True, eq=False)
class SequenceState:
    """The state of one open sequence. Only the tables change it."""

    position: int  # tokens that the state has seen, what is launched included; the tokens behind it are in its journal
    marks: list[int]  # borders ahead at which a snapshot is wanted, ascending
    source: int | None = None  # the slot whose content it begins with
    slot: int | None = None  # its own, once it has one
    saves: dict[int, int] = field(default_factory=dict)  # position -> slot, until the page that ends there is named


@dataclass(slots=True, eq=False)
class StateTable:
    """Hands out the `total` slots. `journal` is how many tokens a slot's journal holds."""

    total: int
    spare: int
    journal: int
    statistics: EngineStatistics = field(default_factory=EngineStatistics)
    snapshots: OrderedDict[int, Snapshot] = field(init=False, default_factory=OrderedDict)  # by page, oldest use first
    free: list[int] = field(init=False)
    saved: int = field(init=False, default=0)

    def __post_init__(self) -> None:
        if not 1 <= self.spare < self.total or self.journal < 1:
            raise ValueError(f"{self.total} slots with {self.spare} to spare and {self.journal} tokens of journal")
        self.free = list(range(self.total))[::-1]

    def take(self) -> int:
        """Takes a slot for a sequence."""
        if not self.free:
            assert self.snapshots, "no more sequences run than there are slots for"
            _, oldest = self.snapshots.popitem(last=False)
            self.statistics.state_evictions += 1
            return oldest.slot
        return self.free.pop()

    def give_back(self, slot: int) -> None:
        """Frees a slot that no sequence and no page has."""
        self.free.append(slot)

    def save(self) -> int | None:
        """Takes a slot for a snapshot that is being made; None if there are enough of these."""
        if self.saved >= self.spare:
            return None
        self.saved += 1
        return self.take()

    def unsave(self, slot: int) -> None:
        """Gives back the slot of a snapshot that will not be kept after all."""
        self.saved -= 1
        self.give_back(slot)

    def keep(self, page: int, tokens: int, slot: int) -> None:
        """Makes a slot's content the snapshot of a published page, unless that has one that reaches further."""
        there = self.snapshots.get(page)
        if there is not None and there.tokens >= tokens:
            self.give_back(slot)
        else:
            if there is not None:
                self.give_back(there.slot)
            self.snapshots[page] = Snapshot(slot, tokens)
            self.statistics.state_snapshots += 1
        self.snapshots.move_to_end(page)

    def drop(self, page: int) -> None:
        """Forgets the snapshot of a page that is published no longer, if it has one."""
        snapshot = self.snapshots.pop(page, None)
        if snapshot is not None:
            self.give_back(snapshot.slot)

    def relabel(self, new: Mapping[int, int]) -> None:
        """Renumbers pages: what page p held is in page `new[p]` now."""
        self.snapshots = OrderedDict((new.get(page, page), snapshot) for page, snapshot in self.snapshots.items())

    def marks(self, position: int, branch: int, end: int, page_size: int) -> list[int]:
        """Returns the borders behind `position` at which a sequence wants snapshots; `branch` is where it leaves what
        is cached, `end` its last border."""
        every = -(-SPACING // page_size) * page_size
        borders = {branch, end, *range(position // every * every + every, end, every)}
        return sorted(border for border in borders if position < border <= end)

    def advance(self, state: SequenceState, start: int, length: int, samples: int, *, saves: bool) -> StateStep:
        """Plans a chunk of `length` tokens from `start` on, the last `samples` of which may turn out to be wrong."""
        assert state.slot is not None and state.position <= start <= state.position + self.journal
        commit, taken = start + length - samples, []
        while state.marks and state.marks[0] <= commit:
            mark = state.marks.pop(0)
            slot = self.save() if saves else None
            if slot is not None:
                state.saves[mark] = slot
                taken.append((mark, slot))
        before, state.position = state.position, commit
        return StateStep(state.slot, before, commit, tuple(taken))

    def close(self, state: SequenceState) -> None:
        """Gives back what a sequence that ends still has."""
        for slot in state.saves.values():
            self.unsave(slot)
        state.saves.clear()
        if state.slot is not None:
            self.give_back(state.slot)
            state.slot = None

    def check(self, states: list[SequenceState], published: dict[int, int]) -> None:
        """Raises AssertionError with what is wrong; `states`: those of all open sequences, `published`: the tokens of
        each published page."""
        held = list(self.free)
        held += [state.slot for state in states if state.slot is not None]
        held += [slot for state in states for slot in state.saves.values()]
        held += [snapshot.slot for snapshot in self.snapshots.values()]
        assert sorted(held) == list(range(self.total)), f"slots of states: {sorted(held)} of {self.total}"
        assert self.saved == sum(len(state.saves) for state in states), "saved states miscounted"
        assert self.saved <= self.spare, "more states are saved than there is room for"
        for page, snapshot in self.snapshots.items():
            assert page in published, f"page {page} has a snapshot, but no name"
            assert 1 <= snapshot.tokens <= published[page], f"page {page}: a snapshot behind its end"
