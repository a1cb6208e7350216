"""What every server has around its own port, whatever protocol it speaks: its state, the requests that run, its metrics
port and its event-loop watch; and the order in which it drains and stops."""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from contextlib import suppress

from tandem.common.loop_lag import watch_event_loop
from tandem.common.metrics import ServerMetrics
from tandem.common.metrics_endpoint import MetricsEndpoint
from tandem.common.open_calls import RunningRpcs
from tandem.common.service import Lifecycle
from tandem.common.settings import ServerSettings

logger = logging.getLogger("tandem.common.server")


class BaseServer(ABC):
    """A server from its ports to its stop. A class of its own calls `_observe` when it binds."""

    def __init__(self, settings: ServerSettings, metrics: ServerMetrics) -> None:
        self.lifecycle = Lifecycle()
        self.running = RunningRpcs()
        self.address = ""
        self.metrics_address: str | None = None
        self._metrics = metrics
        self._endpoint: MetricsEndpoint | None = None
        if settings.metrics_enabled:
            state = self.lifecycle
            self._endpoint = MetricsEndpoint(
                metrics.registry, settings.metrics_host, settings.metrics_port, lambda: (state.serving, state.words)
            )
        self._watch: asyncio.Task[None] | None = None
        self._stopped = False
        self.lifecycle.on_change(self._show_state)

    def _observe(self) -> None:
        """Opens the metrics port and begins to watch the event loop. Raises StartError."""
        self._watch = asyncio.create_task(watch_event_loop(self._metrics.event_loop_lag))
        if self._endpoint is not None:
            self.metrics_address = self._endpoint.start()

    def _show_state(self) -> None:
        self._metrics.ready.set(self.lifecycle.serving)

    async def drain(self, *, propagation: float, grace: float) -> None:
        """Refuses new requests after `propagation` seconds, and waits at most `grace` seconds for those that run."""
        lifecycle = self.lifecycle
        lifecycle.mark_stopping()
        if lifecycle.started:
            await asyncio.sleep(propagation)
        lifecycle.mark_refusing()
        if self.running.work:
            logger.info("waiting up to %g s for running requests", grace, extra={"running": self.running.by_method()})
        if not await self.running.wait_for_work(grace):
            logger.warning(
                "the grace period is over: running requests are ended", extra={"running": self.running.by_method()}
            )

    async def stop(self) -> None:
        """Ends what runs and closes all ports, the metrics port last. Also after a start that failed half-way; a second
        call does nothing."""
        if self._stopped:
            return
        self._stopped = True
        self.lifecycle.mark_stopping()
        self.lifecycle.mark_refusing()
        await self._close()
        self.lifecycle.mark_stopped()
        if self._watch is not None:
            self._watch.cancel()
            with suppress(asyncio.CancelledError):
                await self._watch
        if self._endpoint is not None:
            await asyncio.to_thread(self._endpoint.stop)

    @abstractmethod
    async def _close(self) -> None:
        """Ends what runs, closes the port and releases what the server holds."""
