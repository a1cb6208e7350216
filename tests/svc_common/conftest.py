"""A probe service on a loopback port, in the test's own event loop."""

from __future__ import annotations

from collections.abc import AsyncIterator

import grpc.aio
import pytest

from tandem.common.run_service import run_in_loop
from tandem.common.settings import ServiceSettings
from tests.svc_common.probe_service import ProbeService


@pytest.fixture
async def probe() -> AsyncIterator[ProbeService]:
    """A service that serves; its address is in `probe.address`."""
    service = ProbeService()
    async with run_in_loop(service, ServiceSettings()) as address:
        service.address = address
        yield service
    assert service.stopped


@pytest.fixture
async def channel(probe: ProbeService) -> AsyncIterator[grpc.aio.Channel]:
    """A channel to it."""
    async with grpc.aio.insecure_channel(probe.address) as channel:
        yield channel
