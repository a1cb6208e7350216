"""A TCP proxy on loopback that can be as bad as a network is."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
from types import TracebackType
from typing import Self

_CHUNK = 65_536


class Proxy:
    """Forwards what comes to `port` to another port of loopback."""

    def __init__(self, target: int) -> None:
        self._target = target
        self._server: asyncio.Server | None = None
        self._links: dict[asyncio.StreamWriter, asyncio.StreamWriter] = {}  # the client's side: the server's
        self._open = asyncio.Event()
        self._open.set()
        self._mute: set[asyncio.StreamWriter] = set()
        self.delay = 0.0  # seconds, of each piece in each direction
        self.port = 0

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._server is not None
        self._server.close()
        self.cut()

    def cut(self) -> None:
        """Resets all connections."""
        for near, far in list(self._links.items()):
            for writer in (near, far):
                with contextlib.suppress(OSError):
                    connection = writer.get_extra_info("socket")
                    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                writer.transport.abort()

    def half_close(self) -> None:
        """Ends the direction to the client of all connections; the server hears nothing of it."""
        for near in self._links:
            self._mute.add(near)
            with contextlib.suppress(OSError, RuntimeError):
                near.write_eof()

    def hold(self, held: bool) -> None:
        """Lets nothing through, and ends nothing; or everything again."""
        if held:
            self._open.clear()
        else:
            self._open.set()

    async def _serve(self, reader: asyncio.StreamReader, near: asyncio.StreamWriter) -> None:
        try:
            far_reader, far = await asyncio.open_connection("127.0.0.1", self._target)
        except OSError:
            near.transport.abort()
            return
        self._links[near] = far
        try:
            await asyncio.gather(self._pump(reader, far), self._pump(far_reader, near))
        except OSError:
            pass
        finally:
            del self._links[near]
            self._mute.discard(near)
            near.transport.abort()
            far.transport.abort()

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while piece := await reader.read(_CHUNK):
            if self.delay:
                await asyncio.sleep(self.delay)
            await self._open.wait()
            if writer not in self._mute:
                writer.write(piece)
                await writer.drain()
        if writer not in self._mute:
            with contextlib.suppress(OSError, RuntimeError):
                writer.write_eof()
