"""Runs one service from bind to stop: its gRPC server, health, metrics port and event-loop watch.

Stopping, in this order, so that balancers learn of it before requests fail:

1. health says NOT_SERVING;
2. for the propagation delay new RPCs are still served, while balancers hear of it;
3. new RPCs are refused with UNAVAILABLE; health and admin answer on;
4. running RPCs may finish within the grace; what is left ends with UNAVAILABLE, so that clients resume elsewhere;
5. watchers hear the end, the port closes, the service releases its resources, the metrics port closes last.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import cast

import grpc
import grpc.aio
from google.protobuf.internal import api_implementation

from tandem.common.addresses import check_bindable, is_loopback, join
from tandem.common.admission import Admission
from tandem.common.base_server import BaseServer
from tandem.common.bearer_tokens import BearerTokens
from tandem.common.callers import Callers
from tandem.common.errors import StartError
from tandem.common.health import SERVICE_NAME as HEALTH
from tandem.common.health import Health, add_health
from tandem.common.service import Service
from tandem.common.settings import ServiceSettings
from tandem.common.tls import TlsFiles, server_credentials

logger = logging.getLogger("tandem.common.server")

_PENDING_CALLS = 32_768
_OBEY_SECONDS = 5.0  # for handlers that were told to end
_FLUSH_SECONDS = 2.0  # for statuses on their way out
_RELEASE_SECONDS = 20.0  # for the service's own stop


def server_options(settings: ServiceSettings) -> list[tuple[str, int]]:
    """Returns the channel arguments of every server."""
    return [
        ("grpc.so_reuseport", 0),  # two servers on one port by accident would share it in silence
        ("grpc.max_receive_message_length", settings.max_message_bytes),
        ("grpc.max_send_message_length", -1),
        # Clients ping during long silent phases (a prefill); by default the third ping within 5 minutes gets GOAWAY.
        # (The name is right: it limits received pings. The one with "recv" in it is unknown to gRPC and ignored.)
        ("grpc.http2.min_ping_interval_without_data_ms", 100),
        ("grpc.keepalive_permit_without_calls", 1),
        # A client whose machine vanished never closes its streams: find out, and stop working for it.
        ("grpc.keepalive_time_ms", 60_000),
        ("grpc.keepalive_timeout_ms", 20_000),
        # Calls that have arrived and that our loop has not seen yet. Beyond its default of 1,000 gRPC cancels them,
        # with no advice and in no metric; the queue that refuses is to be ours (max_concurrent_calls), which sees
        # thousands in a second. One that waits takes some 10 KB.
        ("grpc.server.max_pending_requests", _PENDING_CALLS),
        ("grpc.server.max_pending_requests_hard_limit", _PENDING_CALLS),
    ]


class RunningService(BaseServer):
    """Serves one service. Start it with `bind`, then `start`; end it with `drain` and `stop`."""

    def __init__(self, service: Service, settings: ServiceSettings) -> None:
        super().__init__(settings, service.metrics)
        self._service = service
        self._settings = settings
        self._callers = Callers(
            BearerTokens(settings.auth_token_file) if settings.auth_token_file else None,
            getattr(service, "operators", None),
            getattr(service, "operator_methods", ()),
        )
        names = (service.name, *_names(service))
        self._health = Health(names)
        self._admission = Admission(
            service.metrics,
            self.lifecycle,
            self.running,
            work=names,
            reachable=getattr(service, "reachable_while_draining", ()),
            callers=self._callers,
            max_calls=settings.max_concurrent_calls,
            limits=getattr(service, "limits", {}),
            at_once=getattr(service, "at_once", {}),
        )
        self._server = grpc.aio.server(handlers=(self._admission,), options=server_options(settings))

    async def bind(self) -> None:
        """Opens both ports; from here on probes are answered and work is refused. Raises StartError."""
        if api_implementation.Type() != "upb":
            logger.warning(
                "protobuf runs on its slow %r implementation instead of upb: expect half the throughput",
                api_implementation.Type(),
            )
        self._callers.load()
        self._observe()
        host, port = self._settings.host, self._settings.port
        check_bindable(host, port, "gRPC")
        methods = cast(grpc.aio.Server, self._admission)
        add_health(self._health, methods)
        self._service.register(methods)
        if self._settings.reflection:
            from grpc_reflection.v1alpha import reflection, reflection_pb2_grpc  # type: ignore[import-untyped]

            names = (self._service.name, *_names(self._service), HEALTH, reflection.SERVICE_NAME)
            servicer = reflection.aio.ReflectionServicer(names)
            reflection_pb2_grpc.add_ServerReflectionServicer_to_server(servicer, methods)
        try:
            port = self._open(join(host, port))
        except RuntimeError:
            raise StartError(f"cannot serve gRPC on {join(host, port)}: the port cannot be bound") from None
        self.address = join(host, port)
        await self._server.start()

    async def start(self) -> None:
        """Starts the service itself. Raises what its start raises."""
        await self._service.start(self.lifecycle)
        self.lifecycle.mark_started()

    async def _close(self) -> None:
        self._health.close()
        if not await self.running.cut(_OBEY_SECONDS, spare=f"/{HEALTH}/"):
            logger.error("handlers do not end after cancellation", extra={"running": self.running.by_method()})
        await self._server.stop(_FLUSH_SECONDS)
        try:
            async with asyncio.timeout(_RELEASE_SECONDS):
                await self._service.stop()
        except TimeoutError:
            logger.error("the service did not stop within %g s", _RELEASE_SECONDS)
        except Exception:
            logger.exception("the service failed to stop cleanly")

    def _open(self, address: str) -> int:
        settings = self._settings
        if settings.tls_certificate is None or settings.tls_key is None:
            if self._callers.have_tokens and not is_loopback(settings.host):
                logger.warning("bearer tokens travel in clear text on %s: set tls_certificate and tls_key", address)
            return self._server.add_insecure_port(address)
        files = TlsFiles(settings.tls_certificate, settings.tls_key, settings.tls_client_ca)
        return self._server.add_secure_port(address, server_credentials(files))

    def _show_state(self) -> None:
        self._health.set_ready(self.lifecycle.serving)
        super()._show_state()


def _names(service: Service) -> Sequence[str]:
    return tuple(name for name in getattr(service, "names", ()) if name != service.name)
