"""Detects an engine that neither steps nor answers.

    silence   time since the engine's last step, answer or report of progress while an answer is owed

The front pings an engine between its steps, so an answer is owed at all times. Silence is counted in ticks of the
front's own event loop, a late one as two at most: a front that was stopped itself (a paused container) or that starves
has learned nothing about its engine meanwhile. Time in which the engine's processes compute, or wait for nothing but a
processor, can be given less weight: on a CPU a step of a large model on a busy machine may take minutes, and a process
that is stopped, or waits for what will never come, does neither.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass

from tandem.common.cpu_time import Work

_TICKS = 10  # in the time after which an engine counts as stalled
_SHORTEST_TICK, _LONGEST_TICK = 0.05, 5.0  # seconds
_LATE = 2.0  # ticks that a late one counts as
_COMPUTING = 0.01  # of a processor; below, a process does nothing


@dataclass(slots=True)
class Silence:
    """Measures how long an engine has said nothing."""

    limit: float  # seconds after which it counts as stalled
    computing: float  # how much of the time in which it computes is counted, 0 to 1
    seconds: float = 0.0
    _used: float | None = None  # its processor time at the last tick of this silence

    @property
    def tick_seconds(self) -> float:
        """Returns the time between two ticks."""
        return min(_LONGEST_TICK, max(_SHORTEST_TICK, self.limit / _TICKS))

    def heard(self) -> None:
        """Resets the silence: the engine has answered."""
        self.seconds, self._used = 0.0, None

    def tick(self, elapsed: float, work: Work) -> bool:
        """Adds `elapsed` seconds in which an answer was owed; `work` is the engine's since it began. Returns whether it
        has stalled."""
        elapsed = min(elapsed, _LATE * self.tick_seconds)
        computes = work.ready or (self._used is not None and work.seconds - self._used >= _COMPUTING * elapsed)
        self._used = work.seconds
        self.seconds += elapsed * (self.computing if computes else 1.0)
        return self.seconds >= self.limit


async def until_stalled(silence: Silence, work: Callable[[], Work], ping: Callable[[], None]) -> None:
    """Waits until an engine has stalled. `work` looks at it, `ping` asks it for an answer; whoever receives it calls
    `silence.heard`."""
    before = time.monotonic()
    while True:
        ping()
        await asyncio.sleep(silence.tick_seconds)
        now = time.monotonic()
        if silence.tick(now - before, work()):
            return
        before = now
