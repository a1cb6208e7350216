"""Queues the guides that callers wait to have compiled: callers take turns, and none of them has all compilers."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from tandem.worker.engine.guides.guide import Guide
from tandem.worker.engine.guides.limits import COMPILERS


@dataclass(slots=True)
class Wanted:
    """A guide that a caller waits for."""

    serial: int
    guide: Guide
    output: bytes  # that it must allow
    caller: str
    leads: bool = False  # it takes a compiler; others may wait for the same guide
    deaths: int = 0


class CompileQueue:
    """The queue of a host."""

    def __init__(self) -> None:
        self._queues: OrderedDict[str, deque[Wanted]] = OrderedDict()  # of callers, the next one first

    def __bool__(self) -> bool:
        return bool(self._queues)

    def add(self, wanted: Wanted) -> None:
        """Adds a guide that a caller begins to wait for."""
        self._queues.setdefault(wanted.caller, deque()).append(wanted)

    def forget(self, serial: int) -> None:
        """Drops a guide that nobody waits for any more."""
        for caller, queue in list(self._queues.items()):
            for wanted in [wanted for wanted in queue if wanted.serial == serial]:
                queue.remove(wanted)
            if not queue:
                del self._queues[caller]

    def start(self, begun: Iterable[Wanted]) -> Iterator[Wanted]:
        """Yields the guides that may begin to compile now, beside those that do, and marks them as leading."""
        by_caller: dict[str, int] = {}
        for wanted in begun:
            by_caller[wanted.caller] = by_caller.get(wanted.caller, 0) + wanted.leads
        for caller in list(self._queues):
            if sum(by_caller.values()) >= COMPILERS:
                return
            if by_caller.get(caller, 0) >= max(1, COMPILERS - 1):
                continue
            queue = self._queues.pop(caller)
            wanted = queue.popleft()
            if queue:
                self._queues[caller] = queue  # behind the others
            wanted.leads = True
            by_caller[caller] = by_caller.get(caller, 0) + 1
            yield wanted
