"""A service of all four RPC kinds whose requests say in words what its handlers shall do; also a process of its own."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import grpc
import grpc.aio
from google.protobuf.wrappers_pb2 import StringValue
from pydantic_settings import SettingsConfigDict

from tandem.common.errors import (
    FieldViolation,
    ServiceError,
    StartError,
    internal,
    invalid_argument,
    resource_exhausted,
)
from tandem.common.logs import request_id_var
from tandem.common.message_limits import Limit, MessageLimits
from tandem.common.metrics import ServiceMetrics
from tandem.common.run_service import Lifecycle, run_service
from tandem.common.settings import ServiceSettings, load_settings

NAME = "probe.v1.ProbeService"
ADMIN = "probe.v1.ProbeAdminService"
LONGEST = 12 << 20  # bytes of a word
KINDS = ("UnaryUnary", "UnaryStream", "StreamUnary", "StreamStream")


class PanicException(BaseException):
    """No Exception, as the panics of Rust extensions are not."""


class ProbeService:
    """Obeys words: see `_obey`."""

    name = NAME
    reachable_while_draining = (f"/{NAME}/Reachable",)
    limits = {  # noqa: RUF012
        f"/{NAME}/{kind}": MessageLimits(StringValue.DESCRIPTOR, {"StringValue.value": Limit(size=LONGEST)})
        for kind in (*KINDS, "Writes")
    }

    def __init__(self, start: Callable[[Lifecycle], Awaitable[None]] | None = None) -> None:
        self.metrics = ServiceMetrics("tandem-probe")
        self.lifecycle: Lifecycle | None = None
        self.entered = asyncio.Event()  # a handler began to wait
        self.left = asyncio.Event()  # that handler was cancelled, and its `finally` has run
        self.release = asyncio.Event()  # lets waiting handlers go on
        self.counted_at_the_end = -1.0  # RPCs that were over when a generator's `finally` ran
        self.stopped = False
        self.address = ""
        self._start = start

    async def start(self, lifecycle: Lifecycle) -> None:
        self.lifecycle = lifecycle
        if self._start is not None:
            await self._start(lifecycle)

    async def stop(self) -> None:
        assert not self.stopped, "stop is called once"
        self.stopped = True

    def register(self, server: grpc.aio.Server) -> None:
        behaviours: dict[str, tuple[Any, Any]] = {
            "UnaryUnary": (grpc.unary_unary_rpc_method_handler, self.unary_unary),
            "UnaryStream": (grpc.unary_stream_rpc_method_handler, self.unary_stream),
            "StreamUnary": (grpc.stream_unary_rpc_method_handler, self.stream_unary),
            "StreamStream": (grpc.stream_stream_rpc_method_handler, self.stream_stream),
            "Writes": (grpc.unary_stream_rpc_method_handler, self.writes),
            "Reachable": (grpc.unary_unary_rpc_method_handler, self.unary_unary),
        }
        parse, write = StringValue.FromString, StringValue.SerializeToString
        handlers = {name: make(behaviour, parse, write) for name, (make, behaviour) in behaviours.items()}
        for service in (NAME, ADMIN):
            server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, handlers),))

    async def unary_unary(self, request: StringValue, context: Any) -> StringValue:
        return await self._obey(request.value, context)

    async def unary_stream(self, request: StringValue, context: Any) -> AsyncIterator[StringValue]:
        try:
            for word in request.value.split(","):
                yield await self._obey(word, context)
        finally:
            self.counted_at_the_end = handled_in_all(self.metrics)
            self.left.set()

    async def stream_unary(self, requests: AsyncIterator[StringValue], context: Any) -> StringValue:
        return StringValue(value=",".join([(await self._obey(each.value, context)).value async for each in requests]))

    async def stream_stream(self, requests: AsyncIterator[StringValue], context: Any) -> AsyncIterator[StringValue]:
        async for request in requests:
            yield await self._obey(request.value, context)

    async def writes(self, request: StringValue, context: Any) -> None:
        for word in request.value.split(","):
            await context.write(await self._obey(word, context))

    async def _obey(self, word: str, context: Any) -> StringValue:
        match word:
            case "invalid":
                raise invalid_argument([FieldViolation("sampling.temperature", "must be at least 0, not -1")])
            case "full":
                raise resource_exhausted("the queue is full", reason="QUEUE_FULL", retry_after=1.5)
            case "internal":
                raise internal("the engine answered nonsense", reason="ENGINE_PROTOCOL")
            case "enormous":
                violations = [FieldViolation(f"messages[{i}].text", "ü" * 5000) for i in range(10_000)]
                raise ServiceError(
                    grpc.StatusCode.INVALID_ARGUMENT, "ü" * 50_000, reason="X" * 500, violations=violations
                )
            case "surrogate":
                raise invalid_argument([FieldViolation("text", "lone \ud800 surrogate")])
            case "crash":
                raise RuntimeError("secret prompt text")
            case "panic":
                raise PanicException("secret prompt text")
            case "stray-cancel":
                task = asyncio.ensure_future(asyncio.Event().wait())
                task.cancel()
                await task
            case "wrong-type":
                return "not a message"  # type: ignore[return-value]
            case "abort":
                await context.abort(grpc.StatusCode.DATA_LOSS, "aborted by hand")
            case "set-code":
                context.set_code(grpc.StatusCode.NOT_FOUND)
                context.set_details("set by hand")
            case "trailers":
                context.set_trailing_metadata((("x-mine", "1"),))
            case "rename":
                request_id_var.set("from-the-request-field")
            case "request-id":
                return StringValue(value=request_id_var.get())
            case "release":
                self.release.set()
            case "wait":
                self.entered.set()
                try:
                    await self.release.wait()
                finally:
                    self.left.set()
        return StringValue(value=word)


def handled_in_all(metrics: ServiceMetrics) -> float:
    """RPCs that are over, whatever came of them."""
    name = "tandem_grpc_server_handled"
    families = [family for family in metrics.registry.collect() if family.name == name]
    return sum(each.value for each in families[0].samples if each.name.endswith("_total"))


class FromFlags(ServiceSettings):
    """What the process is told."""

    model_config = SettingsConfigDict(cli_prog_name="tandem-probe", env_prefix="TANDEM_PROBE_")

    fail_start: str = ""
    hang_start: bool = False
    stop_code: int = -1
    block_loop: bool = False
    immortal_task: bool = False


def _block() -> None:
    os.write(2, b"blocked for ever\n")
    while True:  # a signal just before one long sleep would be heard after it
        time.sleep(0.1)


async def _never_end() -> None:
    while True:
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.Event().wait()


async def _start(settings: FromFlags, lifecycle: Lifecycle) -> None:
    if settings.fail_start == "panic":
        raise PanicException("boom")
    if settings.fail_start:
        raise StartError(settings.fail_start)
    if settings.hang_start:
        await asyncio.Event().wait()
    if settings.stop_code >= 0:
        lifecycle.request_stop(settings.stop_code, "told to")
    if settings.block_loop:
        asyncio.get_running_loop().call_later(0.2, _block)
    if settings.immortal_task:
        lifecycle.immortal = asyncio.create_task(_never_end())  # type: ignore[attr-defined]


if __name__ == "__main__":
    settings = load_settings(FromFlags, sys.argv[1:])
    sys.exit(run_service(ProbeService(lambda lifecycle: _start(settings, lifecycle)), settings))
