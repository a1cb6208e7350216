"""How a connection comes about."""

from __future__ import annotations

import asyncio

from tandem.client import AsyncClient

SLOW_SECONDS = 0.5  # that a server takes for a new connection


async def test_a_server_that_is_slow_to_answer_a_new_connection_is_waited_for(tokenizer_address: str) -> None:
    given_up = []

    async def pump(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
        while data := await source.read(1 << 16):
            target.write(data)
        target.close()

    async def relay(client: asyncio.StreamReader, to_client: asyncio.StreamWriter) -> None:
        said = b""
        try:
            async with asyncio.timeout(SLOW_SECONDS):
                while data := await client.read(1 << 16):
                    said += data
        except TimeoutError:
            server, to_server = await asyncio.open_connection(*tokenizer_address.rsplit(":", 1))
            to_server.write(said)
            await asyncio.gather(pump(client, to_server), pump(server, to_client))
        else:
            given_up.append(said)
            to_client.close()

    async with await asyncio.start_server(relay, "127.0.0.1", 0) as listening:
        port = listening.sockets[0].getsockname()[1]
        async with AsyncClient(f"127.0.0.1:{port}", timeout=30) as client:
            assert (await client.encode("Hi")).ids
    assert not given_up
