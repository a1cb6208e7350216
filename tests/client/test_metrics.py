"""What the SDK counts and measures, in the registry that it is given."""

from __future__ import annotations

import pytest
from prometheus_client import REGISTRY, CollectorRegistry

from tandem.client import AsyncClient, UnavailableError
from tandem.client.settings import FailoverSettings
from tests.client.counting_worker import CountingWorker
from tests.client.fakes import serving_workers


async def test_answers_are_counted_and_their_first_token_is_timed_by_hop(
    worker: CountingWorker, tokenizer_address: str
) -> None:
    registry = CollectorRegistry()

    def value(name: str, **labels: str) -> float | None:
        return registry.get_sample_value(f"tandem_client_{name}", labels)

    async with serving_workers(worker) as addresses:
        clients = [
            AsyncClient(tokenizer_address, addresses, registry=registry, failover=FailoverSettings(attempts=0))
            for _ in range(2)
        ]
        await clients[0].generate("Hi", seed=0)
        async with clients[1].stream("Hi", seed=0) as stream:
            async for _ in stream:
                pass
        worker.pause_at = 5
        async with clients[0].stream("Hi", seed=0) as stream:
            await anext(stream)
        worker.pause_at, worker.lose_at = None, 5
        with pytest.raises(UnavailableError):
            await clients[1].generate("Hi", seed=0)
        for client in clients:
            await client.close()

    assert value("requests_total", method="generate", outcome="ok") == 1
    assert value("requests_total", method="stream", outcome="ok") == 1
    assert value("requests_total", method="stream", outcome="cancelled") == 1
    assert value("requests_total", method="generate", outcome="unavailable") == 1
    assert value("time_to_first_token_seconds_count") == 2
    assert value("hop_seconds_count", hop="encode") == 4
    assert value("hop_seconds_count", hop="first_token") == 2
    assert value("hop_seconds_count", hop="first_text") == 1, "generate makes its text at the end"
    assert value("time_to_first_token_seconds_sum") > 0


async def test_without_a_registry_nothing_is_registered(client: AsyncClient) -> None:
    await client.generate("Hi")
    assert "tandem_client_requests_total" not in REGISTRY._names_to_collectors
