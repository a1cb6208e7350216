"""Measures how late the event loop is: blocking calls and starvation show here."""

from __future__ import annotations

import asyncio
import time

from prometheus_client import Histogram

_INTERVAL = 0.25  # seconds


async def watch_event_loop(lag: Histogram) -> None:
    """Records in seconds, until cancelled, how late a timer was."""
    while True:
        due = time.perf_counter() + _INTERVAL
        await asyncio.sleep(_INTERVAL)
        lag.observe(max(0.0, time.perf_counter() - due))
