"""Server-sent events.

A handler makes them as an asynchronous generator. Where it yields a `Relay`, its streams' chunks become events where
they arrive: in one call from the message that brought them to the connection, without a task that is woken, a generator
or anything that is around the handler in between, which for one token would cost several times what its event does.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import TypeAlias, cast

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from tandem.client import AsyncStream, Chunk, TandemError
from tandem.http.call import Call, call_of, told_of
from tandem.http.errors import ApiError, shutting_down
from tandem.http.protocol import BodyWriter, writer_of

_encode = msgspec.json.Encoder().encode

Told: TypeAlias = bytes | Callable[[], Awaitable[bytes]]
"""Events, or what makes them where that takes longer; empty where there is nothing to tell."""


@dataclass(frozen=True, slots=True)
class Relay:
    """Tells what comes of some streams; then the generator goes on."""

    streams: Sequence[AsyncStream]
    tell: Callable[[int, Chunk | None], Told]  # of a chunk of the stream in this place; None: it has ended


Events = AsyncGenerator[bytes | Relay, None]


def event(data: object) -> bytes:
    """One event."""
    return b"data: %b\n\n" % _encode(data)


def named_event(name: bytes, data: object) -> bytes:
    """One event with a name."""
    return b"event: %b\ndata: %b\n\n" % (name, _encode(data))


HOLE = cast(str, msgspec.Raw(b"\0"))
"""In place of the text of an event of which a stream has many: no JSON has this byte anywhere else."""


def cut(told: bytes) -> tuple[bytes, bytes]:
    """Returns what is around the hole."""
    before, behind = told.split(b"\0")
    return before, behind


def filled(around: tuple[bytes, bytes], text: str) -> bytes:
    """The same event with a text."""
    return b"%b%b%b" % (around[0], _encode(text), around[1])


class EventStream(Response):
    """Sends events as they come. What fails before the first one has a status of its own; later errors are events.

    While the connection's buffer is full, nothing more is asked for: what a slow reader has not taken yet waits in the
    SDK, as one larger chunk. A caller who is gone cancels the task, which closes the events.
    """

    def __init__(self, request: Request, events: Events) -> None:
        super().__init__(
            media_type="text/event-stream", headers={"cache-control": "no-cache", "x-accel-buffering": "no"}
        )
        # The length of a stream is not known.
        self.raw_headers = [pair for pair in self.raw_headers if pair[0] != b"content-length"]
        self._call = call_of(request)
        self._events = events

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        outlet = _Outlet(writer_of(scope), send, self.raw_headers)
        async with aclosing(self._events) as events:
            try:
                async for told in events:
                    await (outlet.relay(told) if isinstance(told, Relay) else outlet.send(told))
                end = self._call.dialect.end
            except (TandemError, ApiError) as error:
                end = self._failed(error)
            except asyncio.CancelledError:
                if not (self._call.cut and self._call.status):
                    raise
                end = error_event(shutting_down(), self._call)
            await send({"type": "http.response.body", "body": end})

    def _failed(self, error: TandemError | ApiError) -> bytes:
        if not self._call.status:
            raise error
        return error_event(error if isinstance(error, ApiError) else told_of(error, self._call), self._call)


class _Outlet:
    """Where the events of one answer go."""

    def __init__(self, writer: BodyWriter, send: Send, headers: list[tuple[bytes, bytes]]) -> None:
        self._writer = writer
        self._send = send
        self._headers = headers
        self._begun = False
        self._waiting: list[Told] = []  # one of each stream at most, and its stream waits too
        self._turn = asyncio.Lock()

    async def send(self, body: bytes) -> None:
        """Sends events, if there are any, when the connection takes them."""
        if not body:
            return
        if not self._begun:
            self._begun = True
            await self._send({"type": "http.response.start", "status": 200, "headers": self._headers})
        await self._send({"type": "http.response.body", "body": body, "more_body": True})

    async def relay(self, relay: Relay) -> None:
        """Tells what comes until all streams have ended. Raises the error of the first one that fails."""
        if len(relay.streams) == 1:
            await self._relay(relay, 0)
            return
        tasks = [asyncio.ensure_future(self._relay(relay, place)) for place in range(len(relay.streams))]
        try:
            await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _relay(self, relay: Relay, place: int) -> None:
        stream, tell = relay.streams[place], relay.tell

        def receive(chunk: Chunk) -> bool:
            return self._take(tell(place, chunk))

        try:
            while not await stream.pass_on(receive):
                await self._flush()
        except TandemError as error:
            if len(relay.streams) > 1:
                error.prompt_index = place  # as in a batch of the SDK's
            raise
        self._take(tell(place, None))
        await self._flush()

    def _take(self, told: Told) -> bool:
        """Writes events at once, or keeps them for `_flush`; returns whether more may come."""
        if not told or (isinstance(told, bytes) and self._writer.write(told)):
            return True
        self._waiting.append(told)
        return False

    async def _flush(self) -> None:
        """Sends what waits. What is done here for one stream is not ready before what came earlier of others."""
        async with self._turn:
            waiting, self._waiting = self._waiting, []
            if waiting:
                await self.send(b"".join([told if isinstance(told, bytes) else await told() for told in waiting]))


def error_event(error: ApiError, call: Call) -> bytes:
    """An error that ends a stream."""
    if call.failed is not None:
        return call.failed(error)
    return call.dialect.event % call.dialect.body(error, call.request_id)
