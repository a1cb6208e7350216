"""What every request passes: identity, refusals, its body, its end, and one line in the log.

A request that is let in runs as a task of its own. It is cancelled when its caller goes away, which ends its generation
at both services, and when the server has waited long enough at its end.
"""

from __future__ import annotations

import asyncio
import logging
import re
import secrets
import time
from collections.abc import Collection

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tandem.client import TandemError
from tandem.common.bearer_tokens import BearerTokens
from tandem.common.logs import request_id_var, trace_id_var
from tandem.common.open_calls import RunningRpc, RunningRpcs
from tandem.common.rpc_ids import TRACEPARENT, trace_id_of
from tandem.common.service import Lifecycle
from tandem.common.tracing import begin_request, exemplar
from tandem.http.call import Call, put_call, told_of
from tandem.http.errors import ApiError, internal, shutting_down, unavailable
from tandem.http.metrics import HttpMetrics

logger = logging.getLogger("tandem.http")
access = logging.getLogger("tandem.http.access")

BODY_SECONDS = 60.0  # for a request's body to come in
CALLER_LEFT = 499  # as nginx counts those whose caller went away
_TRACEPARENT_LENGTH = 55  # a later version may say more, in what no metadata can hold
_REQUEST_ID_HEADERS = (b"x-request-id", b"request-id")  # OpenAI's and Anthropic's
_PARAMETER = re.compile(r"\{\w+(:path)?\}")


class Border:
    """ASGI middleware in front of the routes."""

    def __init__(
        self,
        app: ASGIApp,
        *,
        routes: Collection[str],
        open_routes: Collection[str],
        lifecycle: Lifecycle,
        running: RunningRpcs,
        metrics: HttpMetrics,
        tokens: BearerTokens | None,
        max_body_bytes: int,
        max_calls: int,
    ) -> None:
        self._app = app
        self._routes = [(re.compile(_PARAMETER.sub(".+", route)), route.replace(":path", "")) for route in routes]
        self._open_routes = frozenset(open_routes)  # answered in any state, and to callers without a token
        self._lifecycle = lifecycle
        self._running = running
        self._metrics = metrics
        self._tokens = tokens
        self._max_body_bytes = max_body_bytes
        self._max_calls = max_calls
        self._open = 0  # requests, their bodies read or not; open routes aside

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            raise NotImplementedError(scope["type"])  # uvicorn is told to make none
        headers = Headers(scope=scope)
        call = self._identify(scope, headers)
        put_call(scope, call)
        in_flight = self._metrics.in_flight.labels(call.route)
        in_flight.inc()
        counted = call.route not in self._open_routes
        self._open += counted
        try:
            await self._serve(call, scope, headers, receive, self._answering(call, send))
        finally:
            self._open -= counted
            in_flight.dec()
            self._note(call, scope["method"])

    async def _serve(self, call: Call, scope: Scope, headers: Headers, receive: Receive, send: Send) -> None:
        try:
            self._refuse(call, headers)
            await self._work(call, scope, headers, receive, send)
        except ApiError as error:
            await _tell(error, call, send)
        except TandemError as error:
            await _tell(told_of(error, call), call, send)
        except _CallerLeftError:
            call.status = CALLER_LEFT
        except asyncio.CancelledError:
            if not call.cut:
                raise
            await _tell(shutting_down(), call, send)
        except Exception:
            logger.exception("request failed")
            await _tell(internal(call.request_id), call, send)

    async def _work(self, call: Call, scope: Scope, headers: Headers, receive: Receive, send: Send) -> None:
        """Runs the handler until it is done or its caller is gone. Raises what it raises."""
        bodies = [await self._body(scope["method"], headers, receive)]  # taken by the handler, so that nobody keeps it
        gone = asyncio.ensure_future(_disconnected(receive))

        async def receive_body() -> Message:
            if not bodies:
                await asyncio.wait([gone])
                return {"type": "http.disconnect"}
            return {"type": "http.request", "body": bodies.pop(), "more_body": False}

        work = asyncio.ensure_future(self._app(scope, receive_body, send))
        call.running = RunningRpc(call.route, work, work=call.route not in self._open_routes)
        self._running.add(call.running)
        try:
            await asyncio.wait([work, gone], return_when=asyncio.FIRST_COMPLETED)
            if not work.done() and not call.answered:
                raise _CallerLeftError
            await work
        finally:
            gone.cancel()
            work.cancel()
            await asyncio.gather(work, gone, return_exceptions=True)
            self._running.remove(call.running)

    def _identify(self, scope: Scope, headers: Headers) -> Call:
        path = scope["path"]
        route = next((route for pattern, route in self._routes if pattern.fullmatch(path)), "other")
        call = Call(route, request_id=secrets.token_hex(16))
        traceparent = headers.get(TRACEPARENT, "")
        trace_id = trace_id_of(traceparent)
        if trace_id:
            call.trace = {TRACEPARENT: traceparent[:_TRACEPARENT_LENGTH]}
        if route not in self._open_routes:
            call.span = begin_request(f"{_known(scope['method'])} {route}", call.trace.get(TRACEPARENT, ""))
        if call.span is not None:
            call.trace = {TRACEPARENT: call.span.traceparent}
            trace_id = trace_id or call.span.trace_id
        request_id_var.set(call.request_id)
        trace_id_var.set(trace_id)
        client = scope.get("client")
        call.caller = f"address:{client[0]}" if client else ""
        return call

    def _refuse(self, call: Call, headers: Headers) -> None:
        """Raises ApiError where a request is not let in."""
        if call.route in self._open_routes:
            return
        if self._tokens is not None:
            shown = _authorization(headers)
            if self._tokens.refusal(shown) is not None:
                what = (
                    "is not one of this server's"
                    if shown
                    else "is missing: send 'Authorization: Bearer KEY' or 'x-api-key: KEY'"
                )
                raise ApiError(401, f"the API key {what}", code="invalid_api_key")
            call.caller = f"token:{self._tokens.name(shown)}"
        if not self._lifecycle.accepting:
            if self._lifecycle.started:
                raise unavailable("this server is draining and takes no new work", "draining")
            raise unavailable("this server is starting", "starting")
        if self._open > self._max_calls:
            message = f"{self._max_calls} requests are open, which is the limit"
            raise ApiError(429, message, type="rate_limit_error", code="too_many_requests", retry_after=1)

    async def _body(self, method: str, headers: Headers, receive: Receive) -> bytes:
        """The whole body. Raises ApiError for one that is too large, too slow, or is not said to be JSON."""
        if method != "POST":
            return b""
        # Pages of other origins may send other types without asking; for JSON a browser asks first.
        if headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
            raise ApiError(415, "the content-type must be application/json", code="unsupported_media_type")
        if (encoding := headers.get("content-encoding", "identity").strip().lower()) not in ("", "identity"):
            what = f"the content-encoding must be identity, not {encoding[:40]!r}: a body is not unpacked here"
            raise ApiError(415, what, code="unsupported_media_type")
        length = headers.get("content-length", "0")
        if length.isdigit() and int(length) > self._max_body_bytes:
            raise self._too_large()
        parts: list[bytes] = []
        size = 0
        try:
            async with asyncio.timeout(BODY_SECONDS):
                while True:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        raise _CallerLeftError
                    parts.append(message["body"])
                    size += len(message["body"])
                    if size > self._max_body_bytes:
                        raise self._too_large()
                    if not message["more_body"]:
                        return b"".join(parts)
        except TimeoutError:
            raise ApiError(408, f"the body did not come within {BODY_SECONDS:g} s", code="timeout") from None

    def _too_large(self) -> ApiError:
        return ApiError(413, f"the body has more than {self._max_body_bytes} bytes", code="request_too_large")

    def _answering(self, call: Call, send: Send) -> Send:
        async def answer(message: Message) -> None:
            if message["type"] == "http.response.start":
                call.status = message["status"]
                headers = list(message.get("headers", ()))
                headers += [(name, call.request_id.encode()) for name in _REQUEST_ID_HEADERS]
                if not self._lifecycle.serving or call.status in (408, 413):  # 413: the rest of the body is not read
                    headers.append((b"connection", b"close"))
                message = {**message, "headers": headers}
            elif not message.get("more_body"):
                call.answered = True
            await send(message)

        return answer

    def _note(self, call: Call, method: str) -> None:
        seconds = time.monotonic() - call.began
        self._metrics.requests.labels(call.route, str(call.status)).inc()
        self._metrics.seconds.labels(call.route).observe(seconds, exemplar())
        told: dict[str, object] = {"status": call.status, "milliseconds": round(seconds * 1000)}
        told["caller"] = call.caller
        if call.model:
            told |= {"model": call.model, "stream": call.stream}
        if call.usage is not None:
            counted = {
                "prompt": call.usage.prompt_tokens,
                "cached": call.usage.cached_prompt_tokens or 0,
                "completion": call.usage.completion_tokens,
            }
            for kind, count in counted.items():
                self._metrics.tokens.labels(kind).inc(count)
                told[f"{kind}_tokens"] = count
        level = logging.DEBUG if call.route in self._open_routes else logging.INFO
        access.log(level, "%s %s", _known(method), call.route, extra=told)
        if call.span is not None:
            call.span.end_route(_known(method), call.route, call.status, seconds, told)


def _known(method: str) -> str:
    return method if method.isalpha() else "?"


class _CallerLeftError(Exception):
    """Nobody waits for the answer."""


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _tell(error: ApiError, call: Call, send: Send) -> None:
    """An answer that is an error; after the beginning of another answer, nothing, and the connection is closed."""
    if call.status:
        return
    body = call.dialect.body(error, call.request_id)
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode()), *error.headers()]
    await send({"type": "http.response.start", "status": error.status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def _authorization(headers: Headers) -> list[tuple[str, str]]:
    """What the caller shows, as the other services get it; Anthropic's clients show a key of its own."""
    value = headers.get("authorization")
    if value is None and (key := headers.get("x-api-key")) is not None:
        value = f"Bearer {key}"
    return [] if value is None else [("authorization", value)]
