"""One worker: its channel, its health, its model, and how many of our requests run there."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Iterator
from dataclasses import fields
from enum import Enum

import grpc
import grpc.aio
from grpc_health.v1 import health_pb2, health_pb2_grpc

from tandem.client.affinity import FRESH_SECONDS, Failures, LoadReport
from tandem.client.delta_calls import DeltaCalls, DeltaPlace, Receive, ReceiveIds
from tandem.client.discovery import Target
from tandem.client.errors import UnavailableError
from tandem.client.metrics import ClientMetrics
from tandem.client.rpc import CLOSED, CallContext
from tandem.client.settings import ConnectionSettings, Credentials, open_channel
from tandem.client.types import ModelInfo
from tandem.inference.v1 import admin_pb2, admin_pb2_grpc, inference_pb2, inference_pb2_grpc

SERVICE = "tandem.inference.v1.InferenceService"

SHARED_FROM_REQUESTS = 2  # of this client at the worker; fewer send their deltas themselves, and nothing else is opened
# For so long after there were as many, one alone shares too: it is the first of those that come together again, and by
# itself would double the messages of a step.
CROWDED_SECONDS = 60.0
DESCRIBE_SECONDS = 5.0
# A worker that does not tell what it serves or holds (its control plane is closed to us) is asked again so much later.
ASK_AGAIN_SECONDS = 60.0
PROBE_TIMEOUT_SECONDS = 1.0  # then not even a late answer is of use
WATCH_BACKOFF_SECONDS = (0.1, 2.0)


class Health(Enum):
    UNKNOWN = "unknown"
    SERVING = "serving"
    NOT_SERVING = "not serving"


class Worker:
    """One worker address: a channel, and what is known about the worker behind it."""

    def __init__(
        self, target: Target, connection: ConnectionSettings, credentials: Credentials | None, metrics: ClientMetrics
    ) -> None:
        self.address = target.address
        self.health = Health.UNKNOWN
        self.running = 0  # requests of this client
        self.load: LoadReport | None = None  # what it told last
        self.failures = Failures()
        self.reached = False  # it has answered before
        self._idle = asyncio.Event()
        self._idle.set()
        self._gauges, self._probes = metrics.workers, metrics.probes
        self._gauges.labels(self.health.value).inc()
        self._credentials = credentials
        self._channel = open_channel(target.address, connection, credentials, target.authority)
        self.inference = inference_pb2_grpc.InferenceServiceStub(self._channel)
        self.admin = admin_pb2_grpc.WorkerAdminServiceStub(self._channel)
        self._deltas = DeltaCalls(self.inference)
        self._crowded_until = 0.0
        self._model: ModelInfo | None = None
        self._describing: asyncio.Task[ModelInfo | None] | None = None
        self._describe_after = 0.0
        self._probing: asyncio.Task[None] | None = None
        self._probe_after = 0.0
        self._left = self.closed = False

    @contextlib.contextmanager
    def occupied(self) -> Iterator[None]:
        """Counts a request while it runs there. Raises UnavailableError when the worker was removed."""
        if self.closed:
            raise UnavailableError(f"{self.address} is not a worker any more", service="worker", reason="NO_WORKER")
        self.running += 1
        self._idle.clear()
        try:
            yield
        finally:
            self.running -= 1
            if not self.running:
                self._idle.set()

    def share(
        self, request_id: str, outputs: int, receive: Receive, receive_ids: ReceiveIds, context: CallContext
    ) -> DeltaPlace | None:
        """Returns a place for a request in a call that carries the deltas of many, which is to be closed; None where
        they come by themselves, as those of few do."""
        now = time.monotonic()
        if self.running >= SHARED_FROM_REQUESTS:
            self._crowded_until = now + CROWDED_SECONDS
        elif now >= self._crowded_until:
            return None
        return self._deltas.place(request_id, outputs, receive, receive_ids, context)

    def told_load(self, accepted: inference_pb2.Accepted) -> None:
        """Takes what the worker holds, as it told with an answer."""
        self._told(accepted.running_requests + accepted.waiting_requests)

    def probe(self, in_time: float) -> asyncio.Task[None] | None:
        """Asks it for its load, once for all callers, where that is not known of late. Returns the task that waits for
        the answer, which is counted as late after so many seconds, and never fails; None where it is not asked."""
        now = time.monotonic()
        if self.closed or now < self._probe_after or (self.load is not None and now < self.load.at + FRESH_SECONDS):
            return None
        if self._probing is None or self._probing.done():
            self._probing = asyncio.create_task(self._ask_load(in_time))
        return self._probing

    async def model(self, within: float | None) -> ModelInfo | None:
        """Returns the model that it serves, asked once for all callers. Returns None when it does not answer `within`
        so many seconds, or does not tell."""
        if self._model is not None or time.monotonic() < self._describe_after:
            return self._model
        if self._describing is None or self._describing.done():
            self._describing = asyncio.create_task(self._describe())
        try:
            async with asyncio.timeout(within):
                return await asyncio.shield(self._describing)
        except TimeoutError:
            return None
        except asyncio.CancelledError:
            if self._describing.cancelled():  # by close(), not by whoever cancels us
                return None
            raise

    def forget_model(self) -> None:
        """Drops what is known about the model: the worker went away or contradicted it, so another model may be served
        now."""
        self._model, self._describe_after = None, 0.0

    async def watch(self, changed: asyncio.Event) -> None:
        """Follows its health for ever, and sets `changed` whenever it changes."""
        shortest, longest = WATCH_BACKOFF_SECONDS
        backoff = shortest
        while True:
            call = health_pb2_grpc.HealthStub(self._channel).Watch(
                health_pb2.HealthCheckRequest(service=SERVICE), metadata=self._metadata()
            )
            try:
                async for response in call:
                    backoff = shortest
                    self.reached = True
                    serving = response.status == health_pb2.HealthCheckResponse.SERVING
                    self._set_health(Health.SERVING if serving else Health.NOT_SERVING, changed)
                self._set_health(Health.NOT_SERVING, changed)
            except grpc.aio.AioRpcError as error:
                if error.code() is grpc.StatusCode.UNIMPLEMENTED:
                    self._set_health(Health.SERVING, changed)  # it has no health service: take it at its word
                    return
                self._set_health(Health.NOT_SERVING, changed)
            except asyncio.CancelledError as stop:
                raise stop.with_traceback(None)  # noqa: B904  (see rpc._Errors)
            finally:
                call.cancel()
                del call
            await asyncio.sleep(backoff)
            backoff = min(backoff * 2, longest)

    def leave(self) -> None:
        """Marks the worker as removed; requests that run there go on."""
        if not self._left:
            self._left = True
            self._gauges.labels(self.health.value).dec()

    async def close_when_idle(self) -> None:
        while self.running:
            await self._idle.wait()
        await self.close()

    async def close(self) -> None:
        if self.closed:
            return
        self.closed = True
        self.leave()
        for task in (self._describing, self._probing):
            if task is not None:
                task.cancel()
        await self._deltas.close()
        await self._channel.close()
        self._channel = self.inference = self.admin = CLOSED

    def _set_health(self, health: Health, changed: asyncio.Event) -> None:
        if health is not self.health:
            if health is Health.NOT_SERVING:
                self.forget_model()
            self._gauges.labels(self.health.value).dec()
            self._gauges.labels(health.value).inc()
            self.health = health
            changed.set()

    def _metadata(self) -> tuple[tuple[str, str], ...]:
        return self._credentials.metadata() if self._credentials else ()

    def _told(self, held: int) -> None:
        self.load = LoadReport(max(0, held - self.running), time.monotonic())

    async def _ask_load(self, in_time: float) -> None:
        asked_at = time.monotonic()
        try:
            load = await self.admin.GetLoad(
                admin_pb2.GetLoadRequest(), timeout=PROBE_TIMEOUT_SECONDS, metadata=self._metadata()
            )
        except grpc.aio.AioRpcError as error:
            # Its health and its answers tell whether it works, and nothing is learned here.
            late = error.code() is grpc.StatusCode.DEADLINE_EXCEEDED
            if not late and error.code() is not grpc.StatusCode.UNAVAILABLE:
                self._probe_after = time.monotonic() + ASK_AGAIN_SECONDS
            self._probes.labels("late" if late else "failed").inc()
            return
        self._told(load.held_requests)
        self._probes.labels("late" if time.monotonic() > asked_at + in_time else "answered").inc()

    async def _describe(self) -> ModelInfo | None:
        if self.closed:
            return None
        try:
            response = await self.admin.GetModel(
                admin_pb2.GetModelRequest(), timeout=DESCRIBE_SECONDS, metadata=self._metadata()
            )
        except grpc.aio.AioRpcError as error:
            if error.code() is not grpc.StatusCode.UNAVAILABLE:
                self._describe_after = time.monotonic() + ASK_AGAIN_SECONDS
            return None
        self.reached = True
        self._model = model_info(response)
        return self._model


def model_info(response: admin_pb2.GetModelResponse) -> ModelInfo:
    known = {field.name: getattr(response, field.name) for field in fields(ModelInfo)}
    return ModelInfo(**known | {"eos_ids": list(response.eos_ids), "adapters": list(response.adapters)})
