"""Server-sent events."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from tandem.client import TandemError
from tandem.http.call import Call, call_of, told_of
from tandem.http.errors import ApiError, shutting_down

_encode = msgspec.json.Encoder().encode

Events = AsyncGenerator[bytes, None]


def event(data: object) -> bytes:
    """One event."""
    return b"data: %b\n\n" % _encode(data)


def named_event(name: bytes, data: object) -> bytes:
    """One event with a name."""
    return b"event: %b\ndata: %b\n\n" % (name, _encode(data))


class EventStream(Response):
    """Sends events as they come. What fails before the first one has a status of its own; later errors are events.

    `send` waits while the connection's buffer is full, and then nothing more is asked for: what a slow reader has not
    taken yet waits in the SDK, as one larger chunk. A caller who is gone cancels the task, which closes the events.
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
        async with aclosing(self._events) as events:
            try:
                body = await anext(events)
                await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
                await send({"type": "http.response.body", "body": body, "more_body": True})
                async for body in events:
                    await send({"type": "http.response.body", "body": body, "more_body": True})
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


def error_event(error: ApiError, call: Call) -> bytes:
    """An error that ends a stream."""
    return call.dialect.event % call.dialect.body(error, call.request_id)
