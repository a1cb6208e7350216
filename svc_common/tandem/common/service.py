"""The interface of a service, and the object that decides whether it may take work."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Literal, Protocol

import grpc.aio

from tandem.common.metrics import ServiceMetrics

logger = logging.getLogger("tandem.common.run_service")

State = Literal["starting", "serving", "draining", "stopped"]


class Service(Protocol):
    """The interface of a service.

    These attributes are optional; methods are full names (`/package.Service/Method`):

    - `names: Sequence[str]`: further proto services that take work;
    - `reachable_while_draining: Collection[str]`: methods served in any state;
    - `at_once: Mapping[str, AtOnce]`: what answers requests to a method without its handler (`at_once.py`);
    - `operators: BearerTokens | None` and `operator_methods: Collection[str]`: who else may call (`callers.py`).
    """

    @property
    def name(self) -> str:
        """Returns the full proto service name: its readiness is told, and its new RPCs are refused while draining."""
        ...

    @property
    def metrics(self) -> ServiceMetrics:
        """Returns the service's metrics with their registry."""
        ...

    async def start(self, lifecycle: Lifecycle) -> None:
        """Makes the service ready; the port answers health and admin meanwhile. May be cancelled. Raises StartError.

        Runs on the event loop that also answers probes: long work belongs into threads or processes.
        """
        ...

    def register(self, server: grpc.aio.Server) -> None:
        """Adds the servicers. Called before `start`; until that returns, RPCs of `name` are refused."""
        ...

    async def stop(self) -> None:
        """Releases all resources. Called once, also after a start that failed or was cancelled."""
        ...


class Lifecycle:
    """Tracks readiness and draining. Use it from the event loop only.

    Health is SERVING exactly when the service has started, says that it is ready, and neither drains nor stops.
    New RPCs are accepted from the end of `start` on until draining refuses them; a service that is not ready for a
    while (an engine that restarts) answers for itself.
    """

    def __init__(self) -> None:
        self._started = False
        self._ready = True
        self._draining = False  # asked for by an operator, and can be taken back
        self._stopping = False  # NOT_SERVING for good
        self._refusing = False  # after the propagation delay
        self._stopped = False
        self._stop_requested = asyncio.Event()
        self._listeners: list[Callable[[], None]] = []
        self.exit_code = 0

    @property
    def state(self) -> State:
        """Returns the state: starting -> serving <-> draining -> stopped."""
        if self._stopped:
            return "stopped"
        if self._stopping or self._draining:
            return "draining"
        return "serving" if self._started else "starting"

    @property
    def words(self) -> str:
        """Returns the state for people, who would take "serving" for readiness."""
        return self.state if self.state != "serving" or self._ready else "not ready"

    @property
    def serving(self) -> bool:
        """Tells whether health says SERVING."""
        return self.state == "serving" and self._ready

    @property
    def accepting(self) -> bool:
        """Tells whether new RPCs of the service are let in."""
        return self._started and not self._draining and not self._refusing and not self._stopped

    @property
    def started(self) -> bool:
        """Tells whether `start` has returned."""
        return self._started

    def set_ready(self, ready: bool) -> None:
        """Sets whether the service can work now. While draining it is remembered, not shown."""
        self._ready = ready
        self._changed()

    def set_draining(self, draining: bool) -> None:
        """Refuses new RPCs at once, or takes that back. A stop that has begun cannot be taken back."""
        if draining != self._draining:
            logger.info("draining was requested" if draining else "draining was revoked")
        self._draining = draining
        self._changed()

    def request_stop(self, exit_code: int = 0, why: str = "") -> None:
        """Begins drain and exit. The first caller's exit code counts, unless a later one reports a failure."""
        if not self._stop_requested.is_set():
            logger.info("stopping%s", f": {why}" if why else "")
        self.exit_code = self.exit_code or exit_code
        self._stop_requested.set()

    async def wait_stop_requested(self) -> None:
        """Returns when somebody has asked for the end."""
        await self._stop_requested.wait()

    # For the server that owns this object.

    def on_change(self, listener: Callable[[], None]) -> None:
        """Calls `listener` after every change of state or readiness."""
        self._listeners.append(listener)

    def mark_started(self) -> None:
        """Records that `start` has returned."""
        self._started = True
        self._changed()

    def mark_stopping(self) -> None:
        """Tells NOT_SERVING from now on; RPCs are still let in, as balancers need time to learn of it."""
        self._stopping = True
        self._changed()

    def mark_refusing(self) -> None:
        """Refuses new RPCs from now on."""
        self._refusing = True
        self._changed()

    def mark_stopped(self) -> None:
        """Records that the service has stopped."""
        self._stopped = True
        self._changed()

    def _changed(self) -> None:
        for listener in self._listeners:
            listener()
