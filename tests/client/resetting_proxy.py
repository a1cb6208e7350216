"""A proxy of HTTP/2 on loopback that ends streams without a status, as proxies do when the server behind them goes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

_DATA, _HEADERS, _RST_STREAM = 0, 1, 3
_END_STREAM = 1


class ResettingProxy:
    """Passes frames on to a server. Use `proxy_of`."""

    def __init__(self, target: str) -> None:
        self.address = ""
        self._target = target
        self._open: dict[int, asyncio.StreamWriter] = {}  # streams that the server answers, of the one connection

    def end_streams(self, code: int | None) -> None:
        """Resets what is open with a code of HTTP/2; None: ends it without trailers, and reads no more of it."""
        for stream, client in self._open.items():
            if code is None:
                client.write(_frame(_DATA, _END_STREAM, stream, b""))
            client.write(_frame(_RST_STREAM, 0, stream, (code or 0).to_bytes(4, "big")))
        self._open.clear()

    async def serve(self, reader: asyncio.StreamReader, client: asyncio.StreamWriter) -> None:
        """Serves one connection."""
        host, port = self._target.split(":")
        answers, server = await asyncio.open_connection(host, int(port))
        with suppress(OSError, asyncio.IncompleteReadError):
            await asyncio.gather(self._requests(reader, server), self._answers(answers, client))
        client.close()

    async def _requests(self, reader: asyncio.StreamReader, server: asyncio.StreamWriter) -> None:
        while piece := await reader.read(65536):
            server.write(piece)
        server.close()  # which ends the answers

    async def _answers(self, answers: asyncio.StreamReader, client: asyncio.StreamWriter) -> None:
        ended = set[int]()
        while True:
            head = await answers.readexactly(9)
            body = await answers.readexactly(int.from_bytes(head[:3], "big"))
            kind, flags, stream = head[3], head[4], int.from_bytes(head[5:], "big")
            if stream in ended:
                continue
            if kind == _HEADERS and not flags & _END_STREAM:
                self._open[stream] = client
            elif kind in (_DATA, _HEADERS) and stream not in self._open:
                ended.add(stream)  # by us
                continue
            elif flags & _END_STREAM and kind == _HEADERS:
                del self._open[stream]
            client.write(head + body)


def _frame(kind: int, flags: int, stream: int, body: bytes) -> bytes:
    return len(body).to_bytes(3, "big") + bytes([kind, flags]) + stream.to_bytes(4, "big") + body


@asynccontextmanager
async def proxy_of(target: str) -> AsyncIterator[ResettingProxy]:
    """A proxy of the server at "host:port"."""
    proxy = ResettingProxy(target)
    server = await asyncio.start_server(proxy.serve, "127.0.0.1", 0)
    host, port = server.sockets[0].getsockname()
    proxy.address = f"{host}:{port}"
    try:
        yield proxy
    finally:
        server.close()
