"""How late the event loop is: the one number that shows blocking calls and starvation."""

from __future__ import annotations

import asyncio
import time

from prometheus_client import Histogram

_INTERVAL = 0.25  # seconds


async def watch_event_loop(lag: Histogram) -> None:
    """Observes, until cancelled, by how many seconds a timer was late."""
    while True:
        due = time.perf_counter() + _INTERVAL
        await asyncio.sleep(_INTERVAL)
        lag.observe(max(0.0, time.perf_counter() - due))
