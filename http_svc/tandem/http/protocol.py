"""HTTP/1.1 on a connection, with bounds on what may come before a request is known."""

from __future__ import annotations

import asyncio
from typing import Any

from starlette.types import Scope
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

MAX_HEADER_BYTES = 64 << 10  # of a request's line and headers together; what is read at once may go beyond it
HEADER_SECONDS = 30.0  # for them to come in, from the connection's or a later request's first byte on


class BodyWriter:
    """Writes more of an answer's body at once, past everything that is around its handler."""

    def __init__(self, cycle: RequestResponseCycle) -> None:
        self._cycle = cycle

    def write(self, body: bytes) -> bool:
        """Returns False, with nothing written, where the handler has to `send` it: before the answer's beginning is
        sent, and while the reader is behind or gone. `body` is not empty."""
        cycle = self._cycle
        if not cycle.response_started or not cycle.chunked_encoding or cycle.flow.write_paused or cycle.disconnected:
            return False
        cycle.transport.write(b"%x\r\n%b\r\n" % (len(body), body))
        return True


def writer_of(scope: Scope) -> BodyWriter:
    """Of the answer to this request."""
    writer = scope["state"]["writer"]
    assert isinstance(writer, BodyWriter)
    return writer


class BoundedProtocol(HttpToolsProtocol):
    """uvicorn's own, which takes headers of any length for as long as they come."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._header_bytes = 0
        self._patience: asyncio.TimerHandle | None = None  # while headers are to come

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._expect_headers()

    def connection_lost(self, exc: Exception | None) -> None:
        self._headers_came()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._patience is not None:
            if self._header_bytes > MAX_HEADER_BYTES:
                self.transport.abort()
                return
            self._header_bytes += len(data)
        super().data_received(data)

    def on_message_begin(self) -> None:
        super().on_message_begin()
        if self._patience is None:
            self._expect_headers()

    def on_headers_complete(self) -> None:
        self._headers_came()
        super().on_headers_complete()
        self.scope["state"]["writer"] = BodyWriter(self.cycle)  # its task has not begun

    def _expect_headers(self) -> None:
        self._header_bytes = 0
        self._patience = self.loop.call_later(HEADER_SECONDS, self.transport.abort)

    def _headers_came(self) -> None:
        if self._patience is not None:
            self._patience.cancel()
            self._patience = None
