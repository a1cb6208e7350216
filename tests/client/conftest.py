"""A tokenizer, a worker that counts through TEXT, and a client between them; each test may turn their switches."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest

from tandem.client import AsyncClient
from tests.client.byte_tokenizer import ByteTokenizer
from tests.client.byte_vocabulary import EOS, TEXT, ids_of_text
from tests.client.counting_worker import CountingWorker
from tests.client.fakes import ServersThread, serving_tokenizer, serving_workers


@pytest.fixture
def tokenizer() -> ByteTokenizer:
    return ByteTokenizer()


@pytest.fixture
def worker() -> CountingWorker:
    return CountingWorker([*ids_of_text(TEXT), EOS])


@pytest.fixture
async def tokenizer_address(tokenizer: ByteTokenizer) -> AsyncIterator[str]:
    async with serving_tokenizer(tokenizer) as (_, address):
        yield address


@pytest.fixture
async def client(worker: CountingWorker, tokenizer_address: str) -> AsyncIterator[AsyncClient]:
    async with serving_workers(worker) as addresses, AsyncClient(tokenizer_address, addresses, timeout=30) as client:
        yield client


@pytest.fixture
def servers() -> Iterator[ServersThread]:
    """Both services on an event loop of their own, for what runs in other threads and processes."""
    servers = ServersThread()
    yield servers
    servers.stop()
