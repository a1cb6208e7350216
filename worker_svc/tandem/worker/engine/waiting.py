"""Orders the waiting requests by priority, then by what their callers had (`fairness.py`), then by arrival.

Overtaking is bounded: after MAX_OVERTAKES later arrivals of higher priority went first, a request gets the highest one.
Within a priority callers take turns, which their counts bound.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from dataclasses import dataclass, field

from tandem.inference.v1 import inference_pb2 as pb
from tandem.limits.fields import limits_of
from tandem.worker.engine.fairness import Fairness
from tandem.worker.engine.request import Request

MAX_OVERTAKES = 64
_MAX_PRIORITY = int(limits_of(pb.GenerateRequest.DESCRIPTOR)["priority"].high)


@dataclass(slots=True)
class WaitingQueue:
    """The queue of a scheduler."""

    fairness: Fairness
    tokens: int = 0  # that its requests owe
    # By priority and caller, heaps by arrival.
    _queues: dict[int, dict[str, list[tuple[int, Request]]]] = field(default_factory=dict)

    def __iter__(self) -> Iterator[Request]:
        return (request for queues in self._queues.values() for queue in queues.values() for _, request in queue)

    def add(self, request: Request) -> None:
        """Adds a request that begins to wait."""
        self.tokens += request.owed
        self.fairness.wait(request.caller)
        queues = self._queues.setdefault(request.priority, {})
        heapq.heappush(queues.setdefault(request.caller, []), (request.turn.arrival, request))

    def remove(self, request: Request) -> None:
        """Removes a request that does not wait any more."""
        self.tokens -= request.owed
        self.fairness.start(request.caller)
        queues = self._queues[request.priority]
        queue = queues[request.caller]
        if queue[0][1] is request:
            heapq.heappop(queue)
        else:
            queue.remove((request.turn.arrival, request))
            heapq.heapify(queue)
        if not queue:
            del queues[request.caller]
            if not queues:
                del self._queues[request.priority]

    @property
    def head(self) -> Request | None:
        """Returns the request that is next."""
        if not self._queues:
            return None
        queues = self._queues[max(self._queues)]
        caller = min(queues, key=lambda each: (self.fairness.served(each), queues[each][0][0]))
        return queues[caller][0][1]

    def count_overtaking(self, admitted: Request) -> None:
        """Counts one more request that has gone first. Only the oldest one that it overtook in each priority counts it,
        since those behind it become the oldest."""
        for priority in [priority for priority in self._queues if priority < admitted.priority]:
            arrival, request = min(queue[0] for queue in self._queues[priority].values())
            if arrival < admitted.turn.arrival:
                request.turn.overtaken += 1
                if request.turn.overtaken >= MAX_OVERTAKES:
                    self.remove(request)
                    request.priority = _MAX_PRIORITY
                    self.add(request)
