"""Every kind of request that the HTTP door knows, drawn from a seed; and callers who are slow, leave, or mean harm."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Awaitable, Callable
from random import Random
from typing import Any

import httpx

from tests.soak.words import text

SCHEMA = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 12}, "days": {"type": "integer"}},
    "required": ["city", "days"],
    "additionalProperties": False,
}
FUNCTION = {"name": "weather", "description": "Tells the weather.", "parameters": SCHEMA}
SMALL_BUFFER = 4096  # bytes that a slow reader's system takes ahead of it
PATIENCE = 120.0
ENDS = (b"data: [DONE]", b"event: message_stop", b"event: response.completed", b"event: response.incomplete")

Answered = Awaitable[str]


class Door:
    """A door by its address, and what it may answer."""

    def __init__(self, address: str) -> None:
        self._host, _, port = address.rpartition(":")
        self._port = int(port)
        self._http = httpx.AsyncClient(base_url=f"http://{address}", timeout=PATIENCE)

    async def aclose(self) -> None:
        await self._http.aclose()

    async def post(self, path: str, body: dict[str, Any], *allowed: int) -> str:
        """How the answer ended. Raises AssertionError for a status that is neither 200 nor allowed."""
        answer = await self._http.post(path, json={"model": "demo", **body})
        assert answer.status_code in (200, *allowed), f"{path}: {answer.status_code}: {answer.text[:300]}"
        return f"http {answer.status_code}"

    async def stream(self, path: str, body: dict[str, Any], most: float = float("inf"), pause: float = 0.0) -> str:
        """Takes at most so many pieces of a stream, resting before each, and leaves. Raises AssertionError for an
        answer that is an error, or has no end."""
        tail, ended = b"", False
        async with self._http.stream("POST", path, json={"model": "demo", **body, "stream": True}) as answer:
            assert answer.status_code == 200, f"{path}: {answer.status_code}: {(await answer.aread())[:300]!r}"
            async for piece in answer.aiter_raw():
                tail = tail[-40:] + piece
                ended |= any(end in tail for end in ENDS)
                most -= 1
                if most <= 0:
                    return "http left"
                if pause:
                    await asyncio.sleep(pause)
        assert ended, f"{path}: ended with {tail[-300:]!r}"
        return "http streamed"

    async def raw(self, sent: bytes, seconds: float) -> str:
        """Sends bytes on a connection of its own, reads nothing for so long, and drops it."""
        connection = socket.socket()
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, SMALL_BUFFER)
        connection.setblocking(False)
        try:
            loop = asyncio.get_running_loop()
            await loop.sock_connect(connection, (self._host, self._port))
            await loop.sock_sendall(connection, sent)
            await asyncio.sleep(seconds)
        finally:
            connection.close()
        return "http dropped"

    def head(self, path: str, length: int) -> bytes:
        """The first lines of a request."""
        lines = f"POST {path} HTTP/1.1", "Host: door", "Content-Type: application/json", f"Content-Length: {length}"
        return "\r\n".join((*lines, "", "")).encode()


def messages(random: Random, most: int = 30) -> list[dict[str, str]]:
    roles = ["user", "assistant"] * 2
    return [{"role": roles[at], "content": text(random, most)} for at in range(random.choice((1, 3)))]


async def chat(door: Door, random: Random) -> str:
    body: dict[str, Any] = {"messages": messages(random), "max_tokens": random.randint(1, 40)}
    if random.random() < 0.5:
        body |= {"n": random.randint(2, 3), "logprobs": True, "top_logprobs": random.randint(0, 8)}
    if random.random() < 0.3:
        return await door.post("/v1/chat/completions", body)
    return await door.stream("/v1/chat/completions", body | {"stream_options": {"include_usage": True}})


async def tools(door: Door, random: Random) -> str:
    given = [{"type": "function", "function": FUNCTION | {"name": f"weather{random.randrange(8)}"}}]
    body = {"messages": messages(random, 10), "max_tokens": 80, "tools": given}
    body["tool_choice"] = random.choice(("auto", "none", "required"))
    path = "/v1/chat/completions"
    return await (door.stream if random.random() < 0.5 else door.post)(path, body)


async def guided(door: Door, random: Random) -> str:
    named = {"name": "weather", "schema": SCHEMA | {"title": f"{random.randrange(64)}"}}
    choice = random.choice(({"type": "json_object"}, {"type": "json_schema", "json_schema": named}))
    body = {"messages": messages(random, 10), "max_tokens": 60, "response_format": choice}
    return await (door.stream if random.random() < 0.5 else door.post)("/v1/chat/completions", body)


async def completions(door: Door, random: Random) -> str:
    body: dict[str, Any] = {"prompt": [text(random, 40) for _ in range(random.randint(1, 3))], "max_tokens": 20}
    if random.random() < 0.4:
        return await door.post("/v1/completions", body | {"echo": True, "logprobs": 3})
    return await door.stream("/v1/completions", body | {"n": random.randint(1, 2), "stop": ["lord", "\n\n"]})


async def anthropic(door: Door, random: Random) -> str:
    body: dict[str, Any] = {"messages": messages(random), "system": text(random, 10)}
    if random.random() < 0.3:
        return await door.post("/v1/messages/count_tokens", body)
    body["max_tokens"] = random.randint(1, 40)
    if random.random() < 0.3:
        body["tools"] = [{"name": "weather", "input_schema": SCHEMA}]
    return await (door.stream if random.random() < 0.5 else door.post)("/v1/messages", body)


async def responses(door: Door, random: Random) -> str:
    body = {"input": text(random, 40), "instructions": text(random, 10), "max_output_tokens": random.randint(1, 40)}
    return await (door.stream if random.random() < 0.5 else door.post)("/v1/responses", body)


async def tokens(door: Door, random: Random) -> str:
    if random.random() < 0.5:
        return await door.post("/tokenize", random.choice(({"prompt": text(random)}, {"messages": messages(random)})))
    return await door.post("/detokenize", {"tokens": [random.randrange(2048) for _ in range(random.randint(1, 500))]})


def large(random: Random) -> dict[str, Any]:
    """A request whose answer is more than what connections hold."""
    return {"messages": messages(random, 5), "max_tokens": 200, "ignore_eos": True, "n": 2, "logprobs": True,
            "top_logprobs": 64}  # fmt: skip


async def slow(door: Door, random: Random) -> str:
    return await door.stream("/v1/chat/completions", large(random) | {"top_logprobs": 8}, pause=0.02)


async def stalled(door: Door, random: Random) -> str:
    body = json.dumps({"model": "demo", "stream": True, **large(random)}).encode()
    return await door.raw(door.head("/v1/chat/completions", len(body)) + body, random.uniform(1, 6))


async def vanished(door: Door, random: Random) -> str:
    if random.random() < 0.7:
        return await door.stream("/v1/chat/completions", large(random), most=random.randint(1, 8))
    body = b'{"model": "demo", "messages": [' + b" " * random.randint(0, 100_000)
    return await door.raw(door.head("/v1/chat/completions", len(body) + random.randint(1, 1000)) + body, 0.01)


async def hostile(door: Door, random: Random) -> str:
    bodies: tuple[dict[str, Any], ...] = (
        {"messages": [{"role": "user", "content": "a"}], "nobody_knows_this": 1},
        {"messages": [{"role": "user", "content": "a " * random.randint(1000, 200_000)}]},
        {"messages": [{"role": "user", "content": "a"}], "chat_template_kwargs": json.loads("[" * 900 + "]" * 900)},
        {"messages": [{"role": "user", "content": "a"}], "tools": [[]] * 70_000},
        {"messages": [{"role": "user", "content": "a"}], "guided": {"regex": "(" * 150}},
        {"messages": [{"role": "user", "content": "<s>" * random.randint(1, 50)}], "max_tokens": 2},
        {"messages": [{"role": "user", "content": "a"}], "model": "nobody"},
    )
    return await door.post("/v1/chat/completions", random.choice(bodies), 400, 404, 413)


KINDS: dict[Callable[[Door, Random], Answered], int] = {  # and how often of 100
    chat: 30, tools: 8, guided: 8, completions: 12, anthropic: 10, responses: 8, tokens: 6, slow: 3, stalled: 3,
    vanished: 8, hostile: 4,
}  # fmt: skip
