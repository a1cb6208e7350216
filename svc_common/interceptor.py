"""The border between gRPC and our handlers. Every RPC of a server passes here, whatever its kind.

| what happens in the handler                      | what the client gets                         |
|--------------------------------------------------|----------------------------------------------|
| it returns                                       | its answer                                   |
| ServiceError                                     | that status with `google.rpc` details        |
| the client cancels, or its deadline passes       | nothing more; the handler sees CancelledError |
| the server's drain runs out of grace             | UNAVAILABLE, reason SHUTTING_DOWN            |
| any other exception, a Rust panic included       | INTERNAL with an error id that the log has too |
| (before it) a message that cannot be parsed      | INVALID_ARGUMENT                             |
| (before it) starting, draining                   | UNAVAILABLE, reason STARTING or DRAINING     |
| (before it) no bearer token, where one is asked  | UNAUTHENTICATED                              |

Nothing is sent before the handler's first message: gRPC's transparent retries end with the response headers.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import re
import secrets
import time
from collections.abc import Awaitable, Callable, Collection
from contextlib import aclosing
from typing import Any, NoReturn, TypeAlias, TypeVar

import grpc
import grpc.aio

from svc_common.errors import ServiceError, unavailable
from svc_common.health import SERVICE_NAME as HEALTH
from svc_common.logs import request_id_var, trace_id_var
from svc_common.metrics import MethodMetrics, ServiceMetrics
from svc_common.rich_status import to_wire
from svc_common.running import RunningRpc, RunningRpcs
from svc_common.state import Lifecycle
from svc_common.tokens import BearerTokens

logger = logging.getLogger("svc_common.rpc")

REQUEST_ID = "x-request-id"
_REQUEST_ID = re.compile(r"[!-~]{1,128}")
_TRACEPARENT = re.compile(r"[0-9a-f]{2}-([0-9a-f]{32})-[0-9a-f]{16}-[0-9a-f]{2}(-.*)?")
_OUR_FAULT = {grpc.StatusCode.INTERNAL, grpc.StatusCode.UNKNOWN, grpc.StatusCode.DATA_LOSS}
_OPEN = f"/{HEALTH}/"  # probes come from the platform, which has no token
_MALFORMED = object()

T = TypeVar("T")
Handler: TypeAlias = "grpc.RpcMethodHandler[Any, Any]"  # generic in the stubs only
Context: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"


class Border(grpc.aio.ServerInterceptor):
    """Errors, request ids, metrics, logs and admission of one server.

    `work` are the proto services whose new RPCs are refused while the server does not accept; methods in `reachable`
    are let in nevertheless. With `tokens`, every RPC but health's must carry one of them.
    """

    def __init__(
        self,
        metrics: ServiceMetrics,
        lifecycle: Lifecycle,
        running: RunningRpcs,
        work: Collection[str],
        reachable: Collection[str] = (),
        tokens: BearerTokens | None = None,
    ) -> None:
        self._metrics = metrics
        self._lifecycle = lifecycle
        self._running = running
        self._work = frozenset(work)
        self._reachable = frozenset(reachable)
        self._tokens = tokens
        self._methods: dict[str, _Method] = {}

    async def intercept_service(
        self, continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Any]], handler_call_details: Any
    ) -> Any:
        path: str = handler_call_details.method
        method = self._methods.get(path)
        if method is None:
            handler = await continuation(handler_call_details)
            if handler is None:
                self._metrics.unknown_method()
                return None
            service, _, name = path.strip("/").rpartition("/")
            work = service in self._work and path not in self._reachable
            method = _Method(self, path, work, self._metrics.method(service, name), handler)
            self._methods[path] = method
        refusal = None
        if self._tokens is not None and not path.startswith(_OPEN):
            refusal = self._tokens.refusal(handler_call_details.invocation_metadata)
        refusal = refusal or method.refusal()
        return method.wrapped if refusal is None else method.refusing(refusal)

    def refusal(self) -> ServiceError | None:
        """Why new work is not let in now."""
        if self._lifecycle.accepting:
            return None
        if self._lifecycle.state == "starting":
            return unavailable("this server is still starting", reason="STARTING")
        return unavailable("this server is draining and takes no new work", reason="DRAINING")

    @property
    def running(self) -> RunningRpcs:
        """The RPCs inside."""
        return self._running


class _Method:
    """One method of one server: its handler, wrapped."""

    def __init__(self, border: Border, path: str, work: bool, metrics: MethodMetrics, handler: Handler) -> None:
        self.path = path
        self._border = border
        self._work = work
        self._metrics = metrics
        self.wrapped = self._wrap(handler)

    def refusal(self) -> ServiceError | None:
        return self._border.refusal() if self._work else None

    def refusing(self, error: ServiceError) -> Handler:
        """A handler that ends the RPC with `error`.

        Whatever the method is, it is of the kind that reads no message: a refusal need not wait for a request.
        """

        async def refuse(requests: object, context: Context) -> None:
            async def body() -> None:
                raise error

            await self._guard(context, body)

        return grpc.stream_stream_rpc_method_handler(refuse)

    def _wrap(self, handler: Handler) -> Handler:
        behaviour: Any = handler.unary_unary or handler.unary_stream or handler.stream_unary or handler.stream_stream
        serialize = handler.response_serializer or bytes
        parse = handler.request_deserializer

        def parse_or_mark(raw: bytes) -> object:
            """For kinds whose message gRPC parses before it calls us: the error must come from the handler's place."""
            try:
                return parse(raw) if parse else raw
            except Exception:
                return _MALFORMED

        def parse_or_raise(raw: bytes) -> object:
            """For kinds whose handler reads: the error passes through it."""
            try:
                return parse(raw) if parse else raw
            except Exception as error:
                raise self._malformed() from error

        async def single(request: Any, context: Context) -> bytes | None:
            async def body() -> bytes:
                if request is _MALFORMED:
                    raise self._malformed()
                # Serialized here, so that an answer of the wrong type is an error like any other.
                return serialize(await behaviour(request, context))

            return await self._guard(context, body)

        async def stream(request: Any, context: Context) -> None:
            async def body() -> None:
                if request is _MALFORMED:
                    raise self._malformed()
                if not inspect.isasyncgenfunction(behaviour):
                    await behaviour(request, context)  # writes through the context
                    return
                # Closed here and now: otherwise an RPC that is cancelled while its message is being written would run
                # its handler's `finally` whenever the garbage collector comes by.
                async with aclosing(behaviour(request, context)) as messages:
                    async for message in messages:
                        await context.write(message)

            await self._guard(context, body)

        make: Any
        if handler.request_streaming:
            deserialize: Callable[[bytes], object] = parse_or_raise
            make = grpc.stream_stream_rpc_method_handler, grpc.stream_unary_rpc_method_handler
        else:
            deserialize = parse_or_mark
            make = grpc.unary_stream_rpc_method_handler, grpc.unary_unary_rpc_method_handler
        wrapped: Handler = (
            make[0](stream, deserialize, serialize)
            if handler.response_streaming
            else make[1](single, deserialize, None)
        )
        return wrapped

    def _malformed(self) -> ServiceError:
        return ServiceError(
            grpc.StatusCode.INVALID_ARGUMENT,
            f"the request message of {self.path} cannot be parsed: broken protobuf, or a string that is not UTF-8",
            reason="MALFORMED_MESSAGE",
        )

    async def _guard(self, context: Context, body: Callable[[], Awaitable[T]]) -> T | None:
        """Runs a handler; turns its end into a status, a count and, where somebody should know, a log line."""
        task = asyncio.current_task()
        assert task is not None
        rpc = RunningRpc(self.path, task, self._work)
        _read_metadata(context)
        _echo_request_id(context)
        budget = context.time_remaining()
        begin = time.perf_counter()
        code = "UNKNOWN"
        self._metrics.in_flight.inc()
        self._border.running.add(rpc)
        try:
            if (refusal := self.refusal()) is not None:
                raise refusal
            result = await body()
            code = _name(context.code())
            _echo_request_id(context)
            return result
        except asyncio.CancelledError as error:
            if rpc.cut:
                code = "UNAVAILABLE"
                await _abort(context, unavailable("this server is shutting down", reason="SHUTTING_DOWN"))
            elif task.cancelling():
                code = _how_cancelled(context, budget)
                raise
            else:
                # Not ours: something that the handler waited for was cancelled. gRPC would take it for a cancelled RPC
                # and never send a status.
                code = "INTERNAL"
                await self._unexpected(context, error)
        except ServiceError as error:
            code = error.code.name
            if error.code in _OUR_FAULT:
                logger.error("%s in %s", error, self.path)
            if context.done():
                raise
            await _abort(context, error)
        except grpc.aio.AbortError:
            code = _name(context.code())
            raise
        except grpc.aio.BaseError as error:
            if isinstance(error, grpc.aio.UsageError) and not context.done():
                code = "INTERNAL"
                await self._unexpected(context, error)
            # A batch failed in gRPC's core because the other side is gone, perhaps before its cancellation reached us.
            code = "CANCELLED"
            raise asyncio.CancelledError from error
        except (KeyboardInterrupt, SystemExit, GeneratorExit):
            raise
        except BaseException as error:
            # A panic in Rust code is no Exception; gRPC would leave its client without an answer for ever.
            code = "INTERNAL"
            await self._unexpected(context, error)
        finally:
            self._border.running.remove(rpc)
            seconds = time.perf_counter() - begin
            self._metrics.in_flight.dec()
            self._metrics.handled(code, seconds)
            logger.debug("%s %s in %.1f ms", self.path, code, seconds * 1000)
        raise AssertionError("an abort always raises")

    async def _unexpected(self, context: Context, error: BaseException) -> NoReturn:
        error_id = secrets.token_hex(6)
        logger.error(
            "unexpected %s in %s, error id %s",
            type(error).__name__,
            self.path,
            error_id,
            exc_info=error,
            extra={"error_id": error_id},
        )
        if context.done():
            raise error
        await _abort(
            context,
            ServiceError(
                grpc.StatusCode.INTERNAL,
                f"internal error; the server's log explains it under error id {error_id}",
                reason="INTERNAL_ERROR",
                metadata={"error_id": error_id},
            ),
        )


async def _abort(context: Context, error: ServiceError) -> NoReturn:
    code, message, trailers = to_wire(error)
    _echo_request_id(context)
    await context.abort(code, message, (*context.trailing_metadata(), *trailers))


def _read_metadata(context: Context) -> None:
    """The ids that the log shows: the client's own where they are well formed."""
    request_id = trace_id = ""
    for key, value in context.invocation_metadata() or ():
        if key == REQUEST_ID and isinstance(value, str) and _REQUEST_ID.fullmatch(value):
            request_id = value
        elif key == "traceparent" and isinstance(value, str) and (match := _TRACEPARENT.fullmatch(value)):
            trace_id = match[1]
    request_id_var.set(request_id or secrets.token_hex(8))
    trace_id_var.set(trace_id)


def _echo_request_id(context: Context) -> None:
    """Adds the request id to the trailing metadata; a handler may have changed either."""
    others = tuple(pair for pair in context.trailing_metadata() or () if pair[0] != REQUEST_ID)
    context.set_trailing_metadata((*others, (REQUEST_ID, request_id_var.get())))


def _name(code: object) -> str:
    if code is None or code == 0:
        return "OK"
    if isinstance(code, grpc.StatusCode):
        return code.name
    return next((each.name for each in grpc.StatusCode if each.value[0] == code), "UNKNOWN")


def _how_cancelled(context: Context, budget: float | None) -> str:
    """A client that gives up at its deadline sends the same cancellation as one that has changed its mind.

    The server's own clock for the deadline starts when the request arrives and the wire rounds the time, so the
    cancellation may come a little before it ends: the last 2 % count as the deadline.
    """
    if budget is None or context.time_remaining() > 0.02 * budget + 0.01:
        return "CANCELLED"
    return "DEADLINE_EXCEEDED"
