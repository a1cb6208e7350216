"""Serves GET /metrics and /healthz on a port of their own, from threads: a busy event loop still answers a scrape."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterable
from socketserver import ThreadingMixIn
from time import sleep
from typing import TYPE_CHECKING, Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from prometheus_client import CollectorRegistry, make_wsgi_app

from tandem.common.addresses import check_bindable, join
from tandem.common.errors import StartError

if TYPE_CHECKING:
    from wsgiref.types import StartResponse, WSGIEnvironment

    App = Callable[[WSGIEnvironment, StartResponse], Iterable[bytes]]

_OPENMETRICS = "application/openmetrics-text"
# prometheus_client, asked for OpenMetrics as Prometheus asks for it, writes `vllm_` for `vllm:`, though colons are
# allowed in names. It leaves names as they are for who takes all of UTF-8.
_AS_THEY_ARE = f"{_OPENMETRICS}; version=1.0.0; escaping=allow-utf-8"
_POLL = 0.1  # seconds between looks for a stop
_PATIENCE = 10.0  # seconds that a client may be silent
_PAUSE = 0.1  # seconds until a connection is tried again for which there was no descriptor


class MetricsEndpoint:
    """Serves two pages over HTTP.

    `/metrics` speaks Prometheus' or OpenMetrics' format, as the scraper asks. `/healthz` answers 200 with the state in
    words; `/healthz?ready` answers 503 while the service is not ready.
    """

    def __init__(
        self, registry: CollectorRegistry, host: str, port: int, state: Callable[[], tuple[bool, str]]
    ) -> None:
        self._registry = registry
        self._host, self._port = host, port
        self._state = state
        self._server: WSGIServer | None = None
        self._thread: threading.Thread | None = None

    def start(self) -> str:
        """Listens and returns "host:port". Raises StartError when the port cannot be bound."""
        check_bindable(self._host, self._port, "metrics")
        try:
            server = make_server(self._host, self._port, self._app(), _server_class(self._host), _Handler)
        except OSError as error:
            raise StartError(f"cannot serve metrics on {join(self._host, self._port)}: {error.strerror}") from None
        self._server = server
        self._thread = threading.Thread(target=server.serve_forever, args=(_POLL,), name="metrics", daemon=True)
        self._thread.start()
        return join(self._host, int(server.server_address[1]))

    def stop(self) -> None:
        """Closes the port; scrapes in progress are not waited for."""
        if self._server is not None and self._thread is not None:
            self._server.shutdown()
            self._server.server_close()
            self._thread.join()
        self._server = self._thread = None

    def _app(self) -> App:
        metrics: App = make_wsgi_app(self._registry)

        def app(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
            path = environ.get("PATH_INFO", "")
            if environ["REQUEST_METHOD"] not in ("GET", "HEAD"):
                return _text(start_response, "405 Method Not Allowed", "GET only")
            if path == "/metrics":
                if _OPENMETRICS in environ.get("HTTP_ACCEPT", ""):
                    environ["HTTP_ACCEPT"] = _AS_THEY_ARE
                return metrics(environ, start_response)
            if path == "/healthz":
                ready, words = self._state()
                asks_readiness = "ready" in environ.get("QUERY_STRING", "")
                return _text(
                    start_response, "503 Service Unavailable" if asks_readiness and not ready else "200 OK", words
                )
            return _text(start_response, "404 Not Found", "here are /metrics and /healthz")

        return app


def _text(start_response: StartResponse, status: str, words: str) -> list[bytes]:
    start_response(status, [("Content-Type", "text/plain; charset=utf-8")])
    return [f"{words}\n".encode()]


class _Handler(WSGIRequestHandler):
    timeout = _PATIENCE  # a client that connects and says nothing does not keep a thread for ever

    def log_message(self, format: str, *args: object) -> None:
        """Logs nothing: scrapes come every few seconds."""


def _server_class(host: str) -> type[WSGIServer]:
    class Server(ThreadingMixIn, WSGIServer):
        daemon_threads = True
        block_on_close = False
        address_family = socket.AF_INET6 if ":" in host else socket.AF_INET

        def server_bind(self) -> None:
            # http.server would look the host's name up, which may take seconds where DNS is slow.
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            self.socket.bind(self.server_address)
            self.server_address = self.socket.getsockname()
            self.server_name, self.server_port = self._text_host(), self.server_address[1]
            self.setup_environ()

        def get_request(self) -> Any:
            try:
                return super().get_request()
            except OSError:  # it still waits, and would be tried at once, over and over: all streams would feel that
                sleep(_PAUSE)
                raise

        def _text_host(self) -> str:
            return host

        def handle_error(self, request: object, client_address: object) -> None:
            """Ignores scrapers that hang up in the middle."""

    return Server
