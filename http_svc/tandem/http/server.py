"""One running door: its HTTP port, metrics port and event-loop watch, from bind to the end.

Stopping is as in `tandem.common.server`: health says 503; for the propagation delay requests are still served; then
they are refused with 503; what runs may finish within the grace; what is left ends with an error.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from collections.abc import Iterator
from contextlib import contextmanager

import uvicorn

from tandem.common.addresses import check_bindable, is_loopback, join
from tandem.common.base_server import BaseServer
from tandem.common.bearer_tokens import BearerTokens
from tandem.common.errors import StartError
from tandem.common.tls import TlsFiles
from tandem.http.app import make_app
from tandem.http.metrics import HttpMetrics
from tandem.http.protocol import BoundedProtocol
from tandem.http.settings import HttpSettings
from tandem.http.upstream import Upstream

logger = logging.getLogger("tandem.http")

KEEP_ALIVE_SECONDS = 75  # of a connection without a request: longer than balancers keep theirs, usually 60
_BACKLOG = 2048
_OBEY_SECONDS = 5.0  # for requests that were told to end
_FLUSH_SECONDS = 2.0  # for answers on their way out
_LOOK_AGAIN = 10  # ticks of a tenth of a second between looks at the certificate


class HttpServer(BaseServer):
    """Start with `bind`, then `start`; end with `drain` and `stop`."""

    def __init__(self, settings: HttpSettings) -> None:
        self.metrics = HttpMetrics()
        super().__init__(settings, self.metrics)
        self._settings = settings
        self._tokens = BearerTokens(settings.auth_token_file) if settings.auth_token_file else None
        self._upstream: Upstream | None = None
        self._server: _Server | None = None
        self._serving: asyncio.Task[None] | None = None

    async def bind(self) -> None:
        """Opens both ports; requests are refused until `start` is done. Raises StartError."""
        settings = self._settings
        if self._tokens is not None:
            self._tokens.load()
            if settings.tls_certificate is None and not is_loopback(settings.host):
                logger.warning("API keys travel in clear text on %s: set tls_certificate and tls_key", settings.host)
        try:
            self._upstream = Upstream(settings, self.metrics)
        except (OSError, ValueError) as error:
            raise StartError(f"upstream_token_file: {error}") from None
        self._observe()
        app = make_app(settings, self._upstream, self.metrics, self.lifecycle, self.running, self._tokens)
        listening = self._listen()
        config = uvicorn.Config(
            app,
            http=BoundedProtocol,
            ws="none",
            lifespan="off",
            log_config=None,
            log_level="warning",
            access_log=False,
            server_header=False,
            proxy_headers=False,
            timeout_keep_alive=KEEP_ALIVE_SECONDS,
            timeout_graceful_shutdown=int(_FLUSH_SECONDS),
            backlog=_BACKLOG,
            workers=1,
        )
        config.load()
        files = _tls_files(settings)
        if files is not None:
            files.load()  # says what is wrong with them
            config.ssl = _context(files)
        self._server = _Server(config, files)
        self._serving = asyncio.create_task(self._server.serve(sockets=[listening]))
        await self._server.up.wait()

    async def start(self) -> None:
        """Waits for the services behind the door."""
        assert self._upstream is not None, "bound before"
        await self._upstream.wait()
        self.lifecycle.mark_started()

    async def _close(self) -> None:
        if not await self.running.cut(_OBEY_SECONDS, spare="/health"):
            logger.error("requests do not end when told to", extra={"running": self.running.by_method()})
        if self._server is not None and self._serving is not None:
            self._server.should_exit = True
            await self._serving
        if self._upstream is not None:
            await self._upstream.close()

    def _listen(self) -> socket.socket:
        host, port = self._settings.host, self._settings.port
        check_bindable(host, port, "HTTP")
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listening = socket.socket(family, kind, protocol)
        try:
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                listening.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
            # Connections inherit both. A reader who stands still, or whose machine has vanished, is found out by the
            # kernel; the connection is lost then, and its generation ends.
            stalled = int(self._settings.stalled_reader_seconds * 1000)
            listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, stalled)
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            listening.bind(address)
        except OSError as error:
            listening.close()
            raise StartError(f"cannot serve HTTP on {join(host, port)}: {error.strerror}") from None
        self.address = join(host, listening.getsockname()[1])
        return listening


class _Server(uvicorn.Server):
    """uvicorn's, without signal handlers of its own; new connections get the certificate that the files have now."""

    def __init__(self, config: uvicorn.Config, files: TlsFiles | None) -> None:
        super().__init__(config)
        self.up = asyncio.Event()
        self._files = files
        self._stamp = files.stamp() if files is not None else None

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Signals are the process's."""
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.up.set()

    async def on_tick(self, counter: int) -> bool:
        if self._files is not None and counter % _LOOK_AGAIN == 0:
            self._look(self._files)
        return await super().on_tick(counter)

    def _look(self, files: TlsFiles) -> None:
        try:
            stamp = files.stamp()
            if stamp == self._stamp:
                return
            self._stamp = stamp
            files.load()
            assert self.config.ssl is not None
            self.config.ssl.load_cert_chain(files.certificate, files.key)
        except (OSError, StartError) as error:
            logger.error("%s; the certificate read before stays in use", error)
            return
        logger.info("%s has changed: new connections get the new certificate", files.certificate)


def _tls_files(settings: HttpSettings) -> TlsFiles | None:
    if settings.tls_certificate is None or settings.tls_key is None:
        return None
    return TlsFiles(settings.tls_certificate, settings.tls_key, settings.tls_client_ca)


def _context(files: TlsFiles) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(files.certificate, files.key)
    if files.client_ca is not None:
        context.load_verify_locations(files.client_ca)
        context.verify_mode = ssl.CERT_REQUIRED
    return context
