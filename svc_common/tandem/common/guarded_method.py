"""Wraps the handler of one method. Every RPC passes here, whatever its kind.

| what happens                                    | what the client gets                           |
|-------------------------------------------------|------------------------------------------------|
| the handler returns                             | its answer                                     |
| ServiceError                                    | that status with `google.rpc` details          |
| the client cancels, or its deadline passes      | nothing more; the handler sees CancelledError  |
| the server's drain runs out of grace            | UNAVAILABLE, reason SHUTTING_DOWN              |
| a message cannot be parsed                      | INVALID_ARGUMENT, reason MALFORMED_MESSAGE     |
| a large message has too much of something       | INVALID_ARGUMENT, with every such field        |
| any other exception, a Rust panic included      | INTERNAL with an error id that the log has too |

Nothing is sent before the handler's first message: gRPC's transparent retries end with the response headers.

Whatever kind a method is, gRPC takes it for one that reads its messages itself: what is large is counted before it is
parsed, and parsed when its turn has come.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing, nullcontext
from functools import partial
from typing import Any, NoReturn, TypeAlias, TypeVar

import grpc
import grpc.aio

from tandem.common.at_once import AnsweredAtOnce, AtOnce
from tandem.common.callers import Metadata, caller_var
from tandem.common.errors import FieldViolation, ServiceError, invalid_argument, unavailable
from tandem.common.logs import trace_id_var
from tandem.common.message_limits import MalformedMessageError, MessageLimits
from tandem.common.method_metrics import MethodMetrics
from tandem.common.open_calls import OpenCalls, RunningRpc, RunningRpcs
from tandem.common.request_log import begin_facts, level_of, note
from tandem.common.rich_status import to_wire
from tandem.common.rpc_ids import adopt_ids, echo_request_id, ids_in, traceparent_var
from tandem.common.tracing import begin_request, exemplar
from tandem.common.turns import Turns

logger = logging.getLogger("tandem.common.rpc")

_OUR_FAULT = {grpc.StatusCode.INTERNAL, grpc.StatusCode.UNKNOWN, grpc.StatusCode.DATA_LOSS}
_LARGE = 64 << 10  # bytes of a message; what is smaller takes two milliseconds at most

T = TypeVar("T")
Handler: TypeAlias = "grpc.RpcMethodHandler[Any, Any]"  # generic in the stubs only
Context: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"


class GuardedMethod:
    """Wraps the handler of one method of one server."""

    def __init__(
        self,
        path: str,
        handler: Handler,
        metrics: MethodMetrics,
        running: RunningRpcs,
        refusal: Callable[[], ServiceError | None] | None,
        identify: Callable[[Context, Metadata], str],
        calls: OpenCalls | None,
        limits: MessageLimits | None,
        turns: Turns,
        at_once: AtOnce | None,
    ) -> None:
        """Takes the handler of `path`, /package.Service/Method. `refusal` returns the error while no work is let in
        (None: the method is no work), `identify` the caller. The method counts among `calls` (None: it does not).
        Without `limits`, no large message is taken. `at_once` answers what it can instead of the handler."""
        self._path = path
        self._name = path.rpartition("/")[2]
        self._metrics = metrics
        self._running = running
        self._refusal = refusal
        self._identify = identify
        self._calls = calls
        self._limits = limits
        self._turns = turns
        self._quick = None if at_once is None else AnsweredAtOnce(path, at_once, metrics, refusal, identify)
        self._deserialize = handler.request_deserializer or bytes
        self.wrapped = self._wrap(handler)

    def refusal(self) -> ServiceError | None:
        """Returns the error with which an RPC of this method is refused now, or None."""
        error = self._refusal() if self._refusal is not None else None
        return error or (self._calls.refusal() if self._calls is not None else None)

    def refusing(self, error: ServiceError) -> Handler:
        """Returns a handler that ends the RPC with `error` without reading a request."""

        async def refuse(requests: object, context: Context) -> None:
            async def body() -> None:
                raise error

            await self._guard(context, body)

        return grpc.stream_stream_rpc_method_handler(refuse)

    def _wrap(self, handler: Handler) -> Handler:
        behaviour: Any = handler.unary_unary or handler.unary_stream or handler.stream_unary or handler.stream_stream
        serialize = handler.response_serializer or bytes
        streaming = handler.request_streaming

        async def single(first: Any, context: Context) -> bytes | None:
            if self._quick is not None and isinstance(first, bytes):
                quick = self._quick.answer(first, context)
                if quick is not None:
                    return quick

            async def body() -> bytes:
                answer = await behaviour(self._messages(context) if streaming else await self._parsed(first), context)
                # Serialized here, so that an answer of the wrong type is an error like any other. A large one may come
                # as bytes, which a thread has made.
                return answer if isinstance(answer, bytes) else serialize(answer)

            return await self._guard(context, body)

        async def stream(first: Any, context: Context) -> None:
            async def body() -> None:
                request = self._messages(context) if streaming else await self._parsed(first)
                if not inspect.isasyncgenfunction(behaviour):
                    await behaviour(request, context)  # writes through the context
                    return
                # Closed here and now: otherwise an RPC that is cancelled while its message is being written would run
                # its handler's `finally` whenever the garbage collector comes by.
                async with aclosing(behaviour(request, context)) as messages:
                    async for message in messages:
                        await context.write(message)

            await self._guard(context, body)

        def counted(serve: Callable[[Any, Context], Awaitable[T]]) -> Callable[[object, Context], Awaitable[T]]:
            async def call(_: object, context: Context) -> T:
                with self._calls or nullcontext():
                    return await serve(None if streaming else await context.read(), context)

            return call

        wrapped: Handler = (
            grpc.stream_stream_rpc_method_handler(counted(stream), None, serialize)
            if handler.response_streaming
            else grpc.stream_unary_rpc_method_handler(counted(single), None, None)
        )
        return wrapped

    async def _messages(self, context: Context) -> AsyncIterator[object]:
        while (raw := await context.read()) is not grpc.aio.EOF:
            yield await self._parsed(raw)

    async def _parsed(self, raw: Any) -> object:
        """Parses the message when its turn has come. Raises ServiceError."""
        if raw is grpc.aio.EOF:  # a call that needs a message has none
            raise self._malformed()
        try:
            if len(raw) <= _LARGE:
                return self._parse(raw)
            limits = self._limits
            if limits is None:
                raise invalid_argument(
                    [FieldViolation("request", f"has {len(raw)} bytes; at most {_LARGE} are allowed")]
                )
            count = partial(limits.violations, raw)
            if violations := await (self._turns.run(count) if limits.quick else asyncio.to_thread(count)):
                raise invalid_argument(violations)
            return await self._turns.run(partial(self._parse, raw))
        except MalformedMessageError as error:
            raise self._malformed() from error

    def _parse(self, raw: bytes) -> object:
        try:
            return self._deserialize(raw)
        except Exception as error:
            raise self._malformed() from error

    def _malformed(self) -> ServiceError:
        return ServiceError(
            grpc.StatusCode.INVALID_ARGUMENT,
            f"the request message of {self._path} cannot be parsed: broken protobuf, or a string that is not UTF-8",
            reason="MALFORMED_MESSAGE",
        )

    async def _guard(self, context: Context, body: Callable[[], Awaitable[T]]) -> T | None:
        """Runs a handler, records its metrics and log lines, and answers."""
        task = asyncio.current_task()
        assert task is not None
        rpc = RunningRpc(self._path, task, work=self._refusal is not None)
        metadata = tuple(context.invocation_metadata() or ())
        adopt_ids(*ids_in(metadata))
        caller = self._identify(context, metadata)
        caller_var.set(caller)
        facts = begin_facts()
        span = begin_request(self._path[1:], traceparent_var.get()) if self._refusal is not None else None
        if span is not None and not trace_id_var.get():
            trace_id_var.set(span.trace_id)
        echo_request_id(context)
        budget = context.time_remaining()
        begin = time.perf_counter()
        code = "UNKNOWN"
        failure: ServiceError | None = None
        self._metrics.in_flight += 1
        self._running.add(rpc)
        try:
            result = await self._attempt(context, rpc, body)
            code = _name(context.code())
        except ServiceError as error:
            code, failure = error.code.name, error
        except asyncio.CancelledError:
            code = _how_cancelled(context, budget)
            raise
        except grpc.aio.AbortError:
            code = _name(context.code())
            raise
        finally:
            self._running.remove(rpc)
            seconds = time.perf_counter() - begin
            self._metrics.in_flight -= 1
            self._metrics.handled(code, seconds, exemplar())
            note(self._name, code, seconds, caller, context.peer, facts, level_of(code, seconds, rpc.work))
            if span is not None:
                span.end_call(self._path, code, seconds, facts)
        if failure is None:
            echo_request_id(context)
            return result
        # Only here, where the books are closed: behind the messages of a reader that sleeps a status may wait for long.
        if not context.done():
            await _abort(context, failure)
        return None

    async def _attempt(self, context: Context, rpc: RunningRpc, body: Callable[[], Awaitable[T]]) -> T:
        """Runs a handler; whatever goes wrong becomes a ServiceError, an explicit abort or a cancellation."""
        try:
            if self._refusal is not None and (refusal := self._refusal()) is not None:
                raise refusal
            return await body()
        except asyncio.CancelledError as error:
            if rpc.cut:
                raise unavailable("this server is shutting down", reason="SHUTTING_DOWN") from None
            if rpc.task.cancelling():
                raise
            # Something else that the handler waited for was cancelled. gRPC would take it for a cancelled RPC and never
            # send a status.
            raise unexpected(error, self._path) from error
        except ServiceError as error:
            if error.code in _OUR_FAULT:
                logger.error("%s in %s", error, self._path)
            raise
        except grpc.aio.AbortError:
            raise
        except grpc.aio.BaseError as error:
            if isinstance(error, grpc.aio.UsageError) and not context.done():
                raise unexpected(error, self._path) from error
            # A batch failed in gRPC's core because the other side is gone, perhaps before its cancellation reached us.
            raise asyncio.CancelledError from error
        except (KeyboardInterrupt, SystemExit, GeneratorExit):
            raise
        except BaseException as error:
            # A panic in Rust code is no Exception; gRPC would leave its client without an answer for ever.
            raise unexpected(error, self._path) from error


def unexpected(error: BaseException, where: str) -> ServiceError:
    """Logs an unexpected exception; the client gets its error id and none of its text."""
    error_id = secrets.token_hex(6)
    kind = type(error).__name__
    logger.error(
        "unexpected %s in %s, error id %s", kind, where, error_id, exc_info=error, extra={"error_id": error_id}
    )
    return ServiceError(
        grpc.StatusCode.INTERNAL,
        f"internal error; the server's log explains it under error id {error_id}",
        reason="INTERNAL_ERROR",
        metadata={"error_id": error_id},
    )


async def _abort(context: Context, error: ServiceError) -> NoReturn:
    code, message, trailers = to_wire(error)
    echo_request_id(context)
    await context.abort(code, message, (*context.trailing_metadata(), *trailers))


def _name(code: object) -> str:
    if code is None or code == 0:
        return "OK"
    if isinstance(code, grpc.StatusCode):
        return code.name
    return next((each.name for each in grpc.StatusCode if each.value[0] == code), "UNKNOWN")


def _how_cancelled(context: Context, budget: float | None) -> str:
    """Tells whether the deadline passed or the client cancelled: both arrive as the same cancellation.

    The server's own clock for the deadline starts when the request arrives and the wire rounds the time, so the
    cancellation may come a little before it ends: the last 2 %, and the last 50 ms, count as the deadline.
    """
    if budget is None or context.time_remaining() > max(0.05, 0.02 * budget):
        return "CANCELLED"
    return "DEADLINE_EXCEEDED"
