"""Connections by their bytes: offers of other protocols, requests behind one another, bodies that do not come, and
HTTP/1.0."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from tandem.http import protocol
from tandem.http.server import HttpServer
from tests.http_svc.conftest import Stack
from tests.http_svc.test_serving import LONG, SHORT, idle, left, running_door, until, works

pytestmark = pytest.mark.slow

OFFER = ("connection: Upgrade, HTTP2-Settings", "upgrade: h2c", "http2-settings: AAMAAABkAAQAAP__")
HEALTH = b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n"


def post(body: bytes, *headers: str, path: str = "/v1/chat/completions", version: str = "1.1") -> tuple[bytes, bytes]:
    """The head of a request with the length of its body, and the body."""
    told = ("host: x", "content-type: application/json", f"content-length: {len(body)}", *headers)
    return "\r\n".join((f"POST {path} HTTP/{version}", *told, "", "")).encode(), body


def chat(**asked: Any) -> bytes:
    return json.dumps({**SHORT, **asked}).encode()


@asynccontextmanager
async def connected(server: HttpServer) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    host, _, port = server.address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    try:
        async with asyncio.timeout(60):
            yield reader, writer
    finally:
        writer.close()


async def answer(reader: asyncio.StreamReader) -> tuple[int, dict[str, str], bytes]:
    """The status, the headers and the body of the next answer that tells its length."""
    status, *lines = (await reader.readuntil(b"\r\n\r\n")).decode().splitlines()
    headers = dict(line.split(": ", 1) for line in lines if line)
    return int(status.split()[1]), headers, await reader.readexactly(int(headers["content-length"]))


async def test_who_offers_another_protocol_is_served_in_this_one(stack: Stack) -> None:
    head, body = post(chat(), *OFFER)
    plain, _ = post(b"", *OFFER, "transfer-encoding: chunked")
    chunked = plain.replace(b"content-length: 0\r\n", b"")
    parts = b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body)
    get = HEALTH[:-2] + "".join(f"{line}\r\n" for line in OFFER).encode() + b"\r\n"
    ways: dict[str, list[bytes]] = {
        "at once": [head + body],
        "the body later": [head, body[:5], body[5:]],
        "byte by byte": [(head + body)[place : place + 1] for place in range(len(head + body))],
        "in chunks": [chunked + parts[:9], parts[9:]],
        "behind one another": [get + head + body + get + head + body],
    }
    async with running_door(stack) as server, connected(server) as (reader, writer):
        for way, packets in ways.items():
            for packet in packets:
                writer.write(packet)
                await writer.drain()
                await asyncio.sleep(0)  # the door reads on the same event loop
            for expected in ("ok", "chat", "ok", "chat") if way == "behind one another" else ("chat",):
                status, _, told = await answer(reader)
                assert status == 200, (way, told)
                assert expected == "ok" or json.loads(told)["usage"]["completion_tokens"] == 4, way
            writer.write(HEALTH)
            assert (await answer(reader))[0] == 200, way


async def test_tunnels_are_refused(stack: Stack) -> None:
    async with running_door(stack) as server, connected(server) as (reader, writer):
        writer.write(b"CONNECT /x HTTP/1.1\r\nhost: x\r\n\r\nabc")
        assert (await reader.read()).startswith(b"HTTP/1.1 400 ")


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("at_once", [True, False])
async def test_who_leaves_is_noticed_with_requests_behind_the_one_that_runs(
    stack: Stack, stream: bool, at_once: bool
) -> None:
    await until(lambda: works(stack, 0))
    async with running_door(stack) as server, connected(server) as (_, writer):
        writer.write(b"".join([*post(json.dumps({**LONG, "n": 8, "stream": stream}).encode()), HEALTH * at_once]))
        await until(lambda: works(stack, 8))
        if not at_once:
            writer.write(HEALTH)
            await writer.drain()
        writer.close()
        await until(lambda: idle(server))
        assert left(server) == 1
    await until(lambda: works(stack, 0))


async def test_a_body_that_nobody_reads_does_not_keep_a_connection(
    stack: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(protocol, "REST_SECONDS", 0.1)
    head = post(b"")[0].replace(b"application/json", b"text/plain").replace(b"length: 0", b"length: 4000000")
    async with running_door(stack) as server, connected(server) as (reader, writer):
        writer.write(head)
        assert (await answer(reader))[0] == 415
        writer.write(b"x")
        with pytest.raises((ConnectionResetError, asyncio.IncompleteReadError)):
            await reader.readexactly(1)


async def test_the_rest_of_a_body_that_nobody_reads_may_come(stack: Stack) -> None:
    refused, body = post(b"x" * 1_000_000)
    async with running_door(stack) as server, connected(server) as (reader, writer):
        for last in (body[1:], body[1:] + b"".join(post(chat()))):
            writer.write(refused.replace(b"application/json", b"text/plain") + body[:1])
            status, headers, _ = await answer(reader)
            assert status == 415 and "connection" not in headers
            writer.write(last)
        assert (await answer(reader))[0] == 200


async def test_a_connection_on_which_line_ends_come_does_not_stay(stack: Stack) -> None:
    async with running_door(stack) as server, connected(server) as (reader, writer):
        writer.write(HEALTH)
        assert (await answer(reader))[0] == 200
        assert server._server is not None
        [connection] = server._server.server_state.connections
        connection.timeout_keep_alive = 0  # type: ignore[union-attr]
        writer.write(b"\r\n")
        assert await reader.read() == b""


async def test_http_1_0_gets_no_chunks(stack: Stack) -> None:
    texts = []
    async with running_door(stack) as server:
        for version in ("1.0", "1.1"):
            async with connected(server) as (reader, writer):
                writer.write(b"".join(post(chat(stream=True, seed=3), "connection: close", version=version)))
                raw = await reader.read()
            head, _, rest = raw.partition(b"\r\n\r\n")
            assert (b"chunked" in head) == (version == "1.1") and b"content-length" not in head
            assert version == "1.1" or rest.endswith(b"data: [DONE]\n\n")
            events = [json.loads(line[6:]) for line in rest.splitlines() if line.startswith(b"data: {")]
            texts.append("".join(choice["delta"].get("content", "") for each in events for choice in each["choices"]))
        async with connected(server) as (reader, writer):
            writer.write(b"".join(post(chat(), version="1.0")))
            status, headers, body = await answer(reader)
            assert (status, headers["connection"]) == (200, "close") and json.loads(body)["choices"]
            assert await reader.read() == b""
    assert texts[0] == texts[1] != ""
