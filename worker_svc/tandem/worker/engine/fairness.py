"""Who is next among callers: a virtual token counter for each, after Sheng et al., "Fairness in Serving Large Language
Models" (OSDI 2024).

    charge    a token that is computed for a caller for the first time, prompt or output, counts one: neither what the
              prefix cache had, nor what is computed again after pages were lost, nor a rejected draft
    choice    of equal priority, the request of the caller with the lowest count goes first; of equals the earliest
    lift      a caller that begins to wait has at least the lowest count of those who wait already; where nobody does,
              that of the last who did. So who was idle has saved nothing up, and who comes back is not forgiven

    rest      where steps take the longer the more requests decode, those of callers with more than an equal share of
              them take turns while others have less: at most `crowd` in a step, or as many as the others have
    guest     who had nothing here and comes, or has nothing more and leaves, counts as one of the others for
              GUEST_STEPS: its first step is short too, and a place waits for its next request

Callers that always have something waiting differ by what is in flight at most, and a caller that is alone gets
everything. Whoever asks for little decodes beside `crowd` others, not beside all that somebody else has sent; what that
leaves of its rate is measured (benchmarks/callers.py). Pure integers, the same on every rank.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from tandem.worker.engine.request import Request

MAX_REMEMBERED = 1024  # callers that are gone and had more than others
GUEST_STEPS = 4


@dataclass(slots=True, eq=False)
class Fairness:
    """The callers of the requests in one scheduler."""

    _served: dict[str, int] = field(default_factory=dict)  # tokens, of those who are here or remembered
    _here: Counter[str] = field(default_factory=Counter)  # requests of each that wait or run
    _waiting: Counter[str] = field(default_factory=Counter)
    _gone: dict[str, None] = field(default_factory=dict)  # those who are remembered, the latest last
    _last: str = ""  # who waited last
    _guests: dict[str, int] = field(default_factory=dict)  # for so many more steps
    _many: frozenset[str] = frozenset()  # those with more than an equal share, in a step in which others have less

    @property
    def several(self) -> bool:
        """Whether there is anything to choose."""
        return len(self._here) > 1

    def served(self, caller: str) -> int:
        """The count of a caller."""
        return self._served[caller]

    def enter(self, caller: str) -> None:
        """One more request of a caller is here."""
        if self._here and not self._here[caller]:
            self._guests[caller] = GUEST_STEPS
        self._here[caller] += 1
        self._served.setdefault(caller, 0)
        self._gone.pop(caller, None)

    def leave(self, caller: str) -> None:
        """A request of a caller, which did not wait any more, is over."""
        self._here[caller] -= 1
        if self._here[caller]:
            return
        del self._here[caller]
        if not self._here:  # nobody has waited for what the others had
            self._served.clear()
            self._gone.clear()
            self._guests.clear()
            return
        self._guests[caller] = GUEST_STEPS
        self._gone[caller] = None
        if len(self._gone) > MAX_REMEMBERED:
            oldest = next(iter(self._gone))
            del self._gone[oldest], self._served[oldest]

    def wait(self, caller: str) -> None:
        """A request of a caller that is here begins to wait."""
        if caller not in self._waiting:
            least = min((self._served[other] for other in self._waiting), default=self._served.get(self._last, 0))
            self._served[caller] = max(self._served[caller], least)
        self._waiting[caller] += 1

    def start(self, caller: str) -> None:
        """A request does not wait any more."""
        self._waiting[caller] -= 1
        if not self._waiting[caller]:
            del self._waiting[caller]
            self._last = caller

    def charge(self, request: Request, end: int) -> None:
        """The request is computed up to token `end`."""
        if end > request.turn.charged:
            self._served[request.caller] += end - request.turn.charged
            request.turn.charged = end

    def precedes(self, newcomer: Request, other: Request) -> bool:
        """Whether a waiting request gets its chunk before a running one that owes some."""
        return (
            newcomer.caller != other.caller
            and newcomer.priority >= other.priority
            and self._served[newcomer.caller] <= self._served[other.caller]
        )

    def next_of(self, running: Sequence[Request]) -> Request | None:
        """The next to get a chunk, of running requests in order of service."""
        if not running or not self.several:
            return running[0] if running else None
        return min(running, key=lambda each: (-each.priority, self._served[each.caller], each.turn.arrival))

    def victim(self, running: Sequence[Request]) -> Request:
        """The one that loses its pages when there are none, of running requests in order of service; never the first
        while there is another."""
        last = running[-1]
        if not self.several:
            return last
        lowest = [each for each in running[1:] if each.priority == last.priority]
        return max(lowest, key=self._served_and_late, default=last)

    def ceding(
        self,
        newcomer: Request,
        wanted: int,
        candidates: Sequence[Request],
        running: Sequence[Request],
        holds: Mapping[int, int],
    ) -> Request | None:
        """The candidate that gives up its place, or its pages, for a waiting request that wants so many; `holds`: how
        many each running one has. Its caller had no less, and even afterwards has as many as the other."""
        held: Counter[str] = Counter()
        for each in running:
            held[each.caller] += holds[each.number]
        least = held[newcomer.caller] + wanted
        fair = [
            each
            for each in candidates
            if each.priority <= newcomer.priority
            and self._served[each.caller] >= self._served[newcomer.caller]
            and held[each.caller] - holds[each.number] >= least
        ]
        return max(fair, key=lambda each: (-each.priority, *self._served_and_late(each)), default=None)

    def _served_and_late(self, request: Request) -> tuple[int, int]:
        return self._served[request.caller], request.turn.arrival

    def rest(self, running: Sequence[Request], crowd: int) -> frozenset[int]:
        """The numbers of those that sit the next step out, of running requests in order of service. Nobody does for
        one of a lower priority, and the first never does."""
        self._many = frozenset()
        if len(self._here) < 2 and not self._guests:
            return frozenset()
        active = [request for request in running if not request.complete and not request.held]
        held = Counter(request.caller for request in active)
        callers = len(held.keys() | self._guests.keys())
        self._guests = {caller: steps - 1 for caller, steps in self._guests.items() if steps > 1}
        few = [request for request in active if held[request.caller] * callers < len(active)]
        if not active or (not few and callers == len(held)):
            return frozenset()
        self._many = frozenset(caller for caller, count in held.items() if count * callers > len(active))
        priority = max((request.priority for request in few), default=0)
        many = [each for each in active[1:] if each.caller in self._many and each.priority <= priority]
        many = [each for each in many if each.owed == 1 and each.num_computed and not each.scoring]
        many.sort(key=lambda each: (-each.turn.rested, each.turn.arrival))
        turns: Counter[str] = Counter()
        order: list[tuple[int, Request]] = []  # the first of each caller, then each one's second
        for request in many:
            order.append((turns[request.caller], request))
            turns[request.caller] += 1
        order.sort(key=lambda each: each[0])
        room = max(crowd, len(few)) - (active[0].caller in self._many)
        for place, (_, request) in enumerate(order):
            request.turn.rested = request.turn.rested + 1 if place >= room else 0
        return frozenset(request.number for request in many if request.turn.rested)

    def keeps_from(self, newcomer: Request, places: int) -> bool:
        """Whether the last `places` that are free are not for this one, but for guests."""
        return newcomer.caller in self._many and places <= len(self._guests)

    def check(self, waiting: Iterable[Request], running: Iterable[Request]) -> None:
        """Raises AssertionError where the counts are not those of these requests."""
        waits = Counter(request.caller for request in waiting)
        assert waits == self._waiting, "waiting requests of callers miscounted"
        assert waits + Counter(request.caller for request in running) == self._here, "requests of callers miscounted"
        assert self._served.keys() == {*self._here, *self._gone}, "a caller without a count"
        assert not self._gone.keys() & self._here.keys(), "a caller is here and gone"
