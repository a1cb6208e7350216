"""A short soak: what requests of every kind take returns when they have ended."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest

from tests.soak.__main__ import soak
from tests.soak.judging import complaints
from tests.soak.traffic import Traffic

REQUESTS = 150


@pytest.mark.slow
async def test_pages_processes_descriptors_and_threads_return_when_nothing_runs() -> None:
    def more(traffic: Traffic, share: float) -> Callable[[], bool]:
        enough = traffic.requests + share * REQUESTS
        return lambda: traffic.requests < enough

    watch, quiet, traffic = await soak(more, interval=1.0, seed=1)
    assert traffic.requests >= REQUESTS
    # How memory grows, only a longer run tells.
    assert complaints(watch.samples, *quiet, limit=math.inf) + traffic.unexpected == []
