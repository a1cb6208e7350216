"""HTTP/1.1 on a connection, with bounds on what may come before a request is known."""

from __future__ import annotations

import asyncio
from typing import Any

import httptools
from starlette.types import Scope
from uvicorn._types import ASGI3Application
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

MAX_HEADER_BYTES = 64 << 10  # of a request's line and headers together; what is read at once may go beyond it
HEADER_SECONDS = 30.0  # for them to come in, from the connection's or a later request's first byte on
REST_SECONDS = 30.0  # for what is left of a body, of which nothing is kept, when its request is answered
MAX_WAITING = 16  # requests behind the one that is answered; beyond them nothing is read
_INVALID = "Invalid HTTP request received."


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


def _without_chunks(app: ASGI3Application, cycle: RequestResponseCycle) -> ASGI3Application:
    """HTTP/1.0 knows no chunks: where no length is told, the body ends where the connection does."""

    async def plain(scope: Any, receive: Any, send: Any) -> None:
        is_bounded = True

        async def send_plain(message: Any) -> None:
            nonlocal is_bounded
            if message["type"] == "http.response.start":
                is_bounded = any(name.lower() == b"content-length" for name, _ in message["headers"])
                if not is_bounded:
                    cycle.chunked_encoding = False
            elif not is_bounded:
                cycle.expected_content_length = len(message.get("body", b""))
            await send(message)

        await app(scope, receive, send_plain)

    return plain


class BoundedProtocol(HttpToolsProtocol):
    """uvicorn's own, which waits without end for headers and for a body that nobody reads any more, loses the body of
    who offers another protocol, and tells only the last request of a connection that the caller has left."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._header_bytes = 0
        self._patience: asyncio.TimerHandle | None = None  # while headers are to come
        self._rest: asyncio.TimerHandle | None = None  # while more of an answered request is to come
        self._served: RequestResponseCycle | None = None  # the one before those in the pipeline

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._expect_headers()

    def connection_lost(self, exc: Exception | None) -> None:
        self._headers_came()
        self._rest_came()
        served = [] if self._served is None else [self._served]
        for cycle in (*served, *(waiting for waiting, _ in self.pipeline)):
            if not cycle.response_complete:
                cycle.disconnected = True
            cycle.message_event.set()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._patience is not None:
            if self._header_bytes > MAX_HEADER_BYTES:
                self.transport.abort()
                return
            self._header_bytes += len(data)
        self._unset_keepalive_if_required()
        try:
            self._parse(data)
        except httptools.HttpParserError:
            self.logger.warning(_INVALID)
            self.send_400_response(_INVALID)
            return
        if self._is_idle():  # line ends, or the rest of an answered request's body
            self.timeout_keep_alive_task = self.loop.call_later(
                self.timeout_keep_alive, self.timeout_keep_alive_handler
            )

    def on_message_begin(self) -> None:
        super().on_message_begin()
        if self._patience is None:
            self._expect_headers()

    def on_headers_complete(self) -> None:
        if self.parser.should_upgrade():
            return  # they are read again
        self._headers_came()
        super().on_headers_complete()
        self.scope["state"]["writer"] = BodyWriter(self.cycle)  # its task has not begun
        if 0 < len(self.pipeline) <= MAX_WAITING:
            self.flow.resume_reading()  # nobody hears otherwise that the caller leaves

    def on_message_complete(self) -> None:
        if self.parser.should_upgrade():
            return
        self._rest_came()
        super().on_message_complete()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        # uvicorn waits for the rest of the body until nothing comes for a while, or for ever if a byte does.
        if self.cycle.response_complete and self.cycle.more_body and not self.transport.is_closing():
            self._rest = self.loop.call_later(REST_SECONDS, self.transport.abort)

    def _parse(self, data: bytes) -> None:
        """Raises HttpParserError for what is no HTTP."""
        rest = memoryview(data)
        while True:
            try:
                self.parser.feed_data(rest)
                return
            except httptools.HttpParserUpgrade as offer:
                # The parser takes the offer for accepted: all behind the headers would be of another protocol. Nothing
                # but HTTP/1.1 is spoken here, and a server may pass over an offer (RFC 9110, 7.8): without it the same
                # headers are read again, by a parser that goes on with what is behind them.
                method, version = self.parser.get_method(), self.parser.get_http_version().encode()
                if method == b"CONNECT":
                    raise httptools.HttpParserError("there are no tunnels here") from None
                headers = [b"%b: %b\r\n" % pair for pair in self.headers if pair[0] != b"upgrade"]
                head = b"%b %b HTTP/%b\r\n%b\r\n" % (method, self.url, version, b"".join(headers))
                rest = rest[offer.args[0] :]
            self.parser = httptools.HttpRequestParser(self)
            self.parser.set_dangerous_leniencies(lenient_data_after_close=True)  # as uvicorn does
            self.parser.feed_data(head)

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: ASGI3Application) -> None:
        self._served = cycle
        if cycle.scope["http_version"] != "1.1":
            app = _without_chunks(app, cycle)
        super()._start_asgi_task(cycle, app)

    def _is_idle(self) -> bool:
        if self._patience or self._rest or self.timeout_keep_alive_task:
            return False  # its end is known
        return self.cycle.response_complete and not self.transport.is_closing()

    def _expect_headers(self) -> None:
        self._header_bytes = 0
        self._patience = self.loop.call_later(HEADER_SECONDS, self.transport.abort)

    def _headers_came(self) -> None:
        if self._patience is not None:
            self._patience.cancel()
            self._patience = None

    def _rest_came(self) -> None:
        if self._rest is not None:
            self._rest.cancel()
            self._rest = None
