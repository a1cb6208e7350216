"""Chooses the worker that gets a prompt: one that has most likely cached its prefix and is not busier than others.
Pure.

1. **Who has it.** Workers stand in rendezvous order: each scores hash(key, worker), and the key is made of the prompt's
   first tokens. A worker that leaves moves only its own keys, and clients that know nothing of each other agree.
2. **Who is busy.** Load is bounded (Mirrokni et al., "Consistent Hashing with Bounded Loads", 2016): a worker with more
   than its fair share of the load of all, times a slack, is passed over.
3. **A conversation sticks.** The client remembers where it sent the pages of earlier prompts (`PrefixMemory`). A prompt
   that goes on from one of them goes there too, unless that worker has 1.6 times its fair share.
4. **A common beginning spreads.** Prompts that part ways behind the same system prompt are no conversation. A key that
   is a share of the client's requests gets that share of the workers and some room, at least two. Some of them are
   drawn, and the least loaded gets it ("The Power of Two Choices", Mitzenmacher, 2001). While nothing runs anywhere,
   the first in order gets it.
5. **What is not known is asked.** In a large fleet a client meets a worker so seldom that what that one told is old.
   So the three that seem least loaded are asked before one of them is chosen ("Load is not what you should balance",
   Wydrowski et al., 2024, asks ahead; here a prompt costs so much more than a question that the choice waits for it).
"""

from __future__ import annotations

import hashlib
import math
import random
from array import array
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from operator import mul
from typing import NamedTuple

# Prompts that share this many first tokens have one order of workers. Fewer would give one order to every prompt with
# one common opening phrase; more would part the turns of a short conversation.
PREFIX_TOKENS = 64
SLACK = 1.25
STICKY_SLACK = 1.6  # of the worker that has an earlier part: what it has cached is worth some load
ROOM = 3.5  # workers for a key, times its share of the requests
DRAWN = 12  # of them, for a prompt that begins something new
CANDIDATES = 3  # of those drawn, the least loaded as far as is known: they are asked
RECENT_KEYS = 256  # of which shares are counted
# Below this many running requests a worker is never called overloaded.
FREE_REQUESTS = 4

HALF_LIFE = 15.0  # of a told load, seconds. It shows who is loaded for long; how loaded now, those that are asked tell
FRESH_SECONDS = 0.25  # in which a worker that told its load is not asked for it
FAILURE_FACTOR = 4.0
FAILURE_HALF_LIFE = 4.0  # seconds
MOST_FAILURES = 3  # that count: more would drown the mean of the fleet, by which others are bounded

PAGE_TOKENS = 16  # of a name in a client's memory
MOST_NAMES = 512  # of a prompt; what is behind them counts no more
MOST_REMEMBERED = 1 << 16  # names, some 20 MB
_PAGE_BYTES = PAGE_TOKENS * array("I").itemsize


def prefix_key(salt: str, prompt_ids: Sequence[int]) -> str:
    """Returns a key that is equal for prompts that may share cached pages: 16 hexadecimal digits of the salt and the
    first tokens."""
    digest = hashlib.blake2b(salt.encode(), digest_size=8)
    digest.update(b"\0" + array("I", prompt_ids[:PREFIX_TOKENS]).tobytes())
    return digest.hexdigest()


class Pages(NamedTuple):
    """The whole pages of a prompt: a name for each, which is of all tokens up to its end, and the tokens. Names differ
    from process to process."""

    names: list[int]
    tokens: bytes

    @classmethod
    def of(cls, salt: str, prompt_ids: Sequence[int]) -> Pages:
        """Cuts a prompt into pages."""
        data = array("I", prompt_ids[: MOST_NAMES * PAGE_TOKENS]).tobytes()
        name, names = hash(salt), []
        for start in range(0, len(data) - _PAGE_BYTES + 1, _PAGE_BYTES):
            name = hash((name, data[start : start + _PAGE_BYTES]))
            names.append(name)
        return cls(names, data)

    def after(self, count: int) -> bytes:
        """Returns the tokens of the page behind the first `count`, as many as it has."""
        return self.tokens[count * _PAGE_BYTES : (count + 1) * _PAGE_BYTES]


NO_PAGES = Pages([], b"")


@dataclass(slots=True)
class _Known:
    worker: str  # the last one that got it
    after: bytes  # the tokens that followed
    parted: bool = False  # others followed too: it is a common beginning

    def goes_on(self, after: bytes) -> bool:
        """Tells whether these tokens go on from those that followed, or are a part of them."""
        return after.startswith(self.after) or self.after.startswith(after)


@dataclass(slots=True)
class PrefixMemory:
    """Where the pages of earlier prompts were sent, the last MOST_REMEMBERED of them."""

    _known: OrderedDict[int, _Known] = field(default_factory=OrderedDict)
    _recent: deque[str] = field(default_factory=deque)  # keys
    _counts: Counter[str] = field(default_factory=Counter)

    def __len__(self) -> int:
        return len(self._known)

    def worker_of(self, pages: Pages) -> str | None:
        """Returns the worker that a prompt goes on at; None where it goes on from no earlier one, or only from what
        others have in common with it."""
        known, depth = None, 0
        for name in pages.names:
            found = self._known.get(name)
            if found is None:
                break
            known, depth = found, depth + 1
        if known is None or known.parted or not known.goes_on(pages.after(depth)):
            return None
        return known.worker

    def remember(self, pages: Pages, worker: str) -> None:
        """Records that a prompt went to a worker."""
        for depth, name in enumerate(pages.names, start=1):
            after = pages.after(depth)
            known = self._known.pop(name, None) or _Known(worker, after)
            known.parted |= not known.goes_on(after)
            known.worker, known.after = worker, after
            self._known[name] = known
        while len(self._known) > MOST_REMEMBERED:
            self._known.popitem(last=False)

    def share_of(self, key: str) -> float:
        """Counts a request with this key; returns the key's share of the last RECENT_KEYS requests."""
        self._recent.append(key)
        self._counts[key] += 1
        if len(self._recent) > RECENT_KEYS:
            oldest = self._recent.popleft()
            self._counts[oldest] -= 1
            if not self._counts[oldest]:
                del self._counts[oldest]
        return self._counts[key] / len(self._recent)


@dataclass(frozen=True, slots=True)
class LoadReport:
    """What a worker told with an answer: how many requests of others it held, and when (seconds, a steady clock)."""

    others: float
    at: float


def estimated_loads(own: Sequence[int], reports: Sequence[LoadReport | None], now: float) -> list[float]:
    """Returns how many requests each worker is likely to hold: our own, and those of others. What was told fades, by
    half every HALF_LIFE, into the mean of what all have told, which also stands for who has told nothing."""
    weights = [0.0 if report is None else 0.5 ** ((now - report.at) / HALF_LIFE) for report in reports]
    told = [0.0 if report is None else report.others for report in reports]
    total = sum(weights)
    mean = sum(map(mul, weights, told)) / total if total else 0.0
    mean *= min(1.0, total)  # and the mean into nothing
    return [
        mine + weight * others + (1 - weight) * mean for mine, weight, others in zip(own, weights, told, strict=True)
    ]


@dataclass(slots=True)
class Failures:
    """The requests that failed at a worker, fading by half every FAILURE_HALF_LIFE. One that fails all at once holds
    none, and would look like the one with most room: each failure weighs as if it had FAILURE_FACTOR times as many."""

    _count: float = 0.0
    _at: float = 0.0

    def add(self, now: float) -> None:
        """Counts one."""
        self._count, self._at = min(self._left(now) + 1, MOST_FAILURES), now

    def weigh(self, load: float, now: float) -> float:
        """Returns the load as it counts for a choice."""
        return (load + 1) * FAILURE_FACTOR ** self._left(now) - 1 if self._count else load

    def _left(self, now: float) -> float:
        return float(self._count * 0.5 ** ((now - self._at) / FAILURE_HALF_LIFE))


def score(key: str, worker: str) -> int:
    return int.from_bytes(hashlib.blake2b(f"{key}\0{worker}".encode(), digest_size=8).digest(), "big")


def candidates(
    key: str,
    names: Sequence[str],
    loads: Sequence[float],
    *,
    sticks_to: str | None = None,
    share: float | None = None,
    draw: Callable[[], float] = random.random,
) -> list[int]:
    """Returns the places among the workers, of which there must be one, that a prompt may go to: the least loaded of
    them gets it, and of equals the first. `loads` are their requests; `sticks_to` names the worker that has an earlier
    part; `share` is the key's share of this client's requests, without which the first in order with room is taken.
    `draw` is uniform in [0, 1)."""
    mean = (sum(loads) + 1) / len(names)
    capacity: float = max(FREE_REQUESTS, math.ceil(SLACK * mean))
    capacity = max(capacity, math.nextafter(min(loads), math.inf))  # where nobody has room: the least loaded
    stays = names.index(sticks_to) if sticks_to in names else None
    if stays is not None and loads[stays] < max(capacity, STICKY_SLACK * mean):
        return [stays]
    order = sorted(range(len(names)), key=lambda place: score(key, names[place]), reverse=True)
    free = [place for place in order if loads[place] < capacity]
    if share is None:
        return free[:1]
    few = free[: max(2, math.ceil(ROOM * share * len(order)))]
    # Where nothing is known to run, equal beginnings meet at the first in order.
    drawn = [few.pop(0)] if sum(loads) < 1 else []
    while few and len(drawn) < DRAWN:
        drawn.append(few.pop(int(draw() * len(few))))
    return sorted(drawn, key=loads.__getitem__)[:CANDIDATES]  # as far as they are known
