"""DecodeStream calls that many answers share: a message costs both sides far more than what is in it.

An answer has a place in a call and at most one request that waits for its response. The sender takes all requests that
have come since its last turn into one message: one that is alone leaves at once, and while a message is being written
others are queued. The receiver hands each response to its place without waiting, so a slow answer delays no other.

Ids whose text is known already (`known_texts.py`) are not sent.

What is wrong with one request is told in its response and ends its stream alone. Whatever ends a call reaches every
place in it; each goes on by itself, in another call. A call takes no new streams once it is old or its server drains,
and ends with its last stream.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import grpc.aio

from tandem.client.errors import (
    ClientClosedError,
    InternalError,
    TandemError,
    deadline_exceeded,
    from_rpc_error,
    from_status,
)
from tandem.client.known_texts import KnownTexts, Texts
from tandem.client.rpc import CLOSED, CallContext, Metadata
from tandem.client.tracing import StreamTrace
from tandem.tokenizer.v1 import tokenizer_pb2 as pb
from tandem.tokenizer.v1 import tokenizer_pb2_grpc

if TYPE_CHECKING:
    from opentelemetry.trace import Tracer

SERVICE = "tokenizer"
MAX_STREAMS = 1024  # in one call; more open another
TAKES_STREAMS_SECONDS = 60.0  # so that balancers and drains have their way with a client that is never idle
MESSAGE_BYTES = 1024 * 1024
MESSAGE_REQUESTS = 4096
STUCK_SECONDS = 1.0  # an answer that did not come for so long is what took a deadline's time
ASKS_FROM_STREAMS = 8  # in one call; who has fewer asks for ids as they come

_FULL_OR_DRAINING = {code.value[0] for code in (grpc.StatusCode.RESOURCE_EXHAUSTED, grpc.StatusCode.UNAVAILABLE)}
_CODES: dict[int, grpc.StatusCode] = {code.value[0]: code for code in grpc.StatusCode}

Call = grpc.aio.StreamStreamCall[pb.DecodeStreamRequest, pb.DecodeStreamResponse]
ErrorFor = Callable[[CallContext], TandemError]
Outcome: TypeAlias = pb.DecodeStreamResponse | TandemError


class DecodeCalls:
    """The DecodeStream calls of one client to one tokenizer service."""

    def __init__(self, stub: tokenizer_pb2_grpc.TokenizerServiceAsyncStub, tracer: Tracer | None = None) -> None:
        self.reached = False  # the service has answered before
        self._stub = stub
        self._tracer = tracer
        self._newest: dict[tuple[str, Metadata], _SharedCall] = {}
        self._open: set[_SharedCall] = set()
        self.known = KnownTexts()

    def place(self, tokenizer: str, context: CallContext) -> DecodePlace:
        """Returns a place for one stream of a tokenizer. Raises DeadlineExceededError."""
        seconds = context.timeout(SERVICE)
        shared = context.shared_metadata()
        kind = (tokenizer, shared)
        call = self._newest.get(kind)
        if call is None or not call.takes_streams:
            secrets = context.credentials.metadata() if context.credentials else ()
            trace = None if self._tracer is None else StreamTrace(self._tracer)
            metadata = (*shared, *secrets, *(trace.metadata if trace is not None else ()))
            with context.errors(SERVICE):
                call = self._newest[kind] = _SharedCall(self, self._stub.DecodeStream(metadata=metadata))
            call.trace = trace
            self._open.add(call)
            call.on_end(partial(self._forget, kind, call))
        if call.trace is not None:
            call.trace.link(context.extra)
        return DecodePlace(call, self.known, context, seconds)

    def _forget(self, kind: tuple[str, Metadata], call: _SharedCall) -> None:
        self._open.discard(call)
        if call.trace is not None:
            call.trace.end()
        if self._newest.get(kind) is call:
            del self._newest[kind]

    async def close(self) -> None:
        """Cancels all calls; those who wait get ClientClosedError."""
        await asyncio.gather(*(call.close() for call in list(self._open)))
        self._open.clear()
        self._newest.clear()
        self._stub = CLOSED


class DecodePlace:
    """One stream in a shared call: one exchange at a time. Call `close`, so that the server drops the stream."""

    def __init__(self, call: _SharedCall, known: KnownTexts, context: CallContext, seconds: float | None) -> None:
        self.context = context
        self._known = known
        self._call = call
        self._receive: Callable[[Outcome], None] | None = None  # who waits for the response
        self._begun = self._over = False  # at the server
        self.stuck = False  # when the deadline passed, an answer had not come for long
        self._expired = False
        self._sent_at = 0.0
        self._texts: Texts | None = None  # of ids of this stream while it is plain
        self._was_plain = self._is_plain = False  # before the request that waits; now
        self._asks: Texts | None = None  # of which the response is to bring more
        # The call has no deadline of its own: its answers have.
        self._timer = None if seconds is None else asyncio.get_running_loop().call_later(seconds, self._expire)
        self.key = call.enter(self)

    async def exchange(
        self, opening: pb.DecodeStreamOpen | None, ids: Sequence[int], *, end: bool
    ) -> pb.DecodeStreamResponse:
        """Sends a request and returns its response. Raises StatusError, after which the place cannot be used."""
        outcome: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
        self.send(opening, ids, end=end, receive=lambda told: None if outcome.done() else outcome.set_result(told))
        if isinstance(told := await outcome, TandemError):
            raise told
        return told

    def send(
        self,
        opening: pb.DecodeStreamOpen | None,
        ids: Sequence[int],
        *,
        end: bool,
        receive: Callable[[Outcome], None],
    ) -> None:
        """Sends a request; `receive` is called with its response, or with the error after which the place cannot be
        used. Raises StatusError when it cannot be used already."""
        if (error := self._call.error) is not None:
            raise error(self.context)
        if self._expired:
            raise self._too_late()
        self._receive = receive
        self._sent_at = time.monotonic()
        self._begun = True
        self._was_plain, self._is_plain = self._is_plain, False
        if opening is not None:
            self._ask_for_texts(opening)
        self._call.send(_Request(self, opening, ids, end))

    def _ask_for_texts(self, opening: pb.DecodeStreamOpen) -> None:
        opening.ClearField("texts_from")  # of an earlier call
        if self._call.streams >= ASKS_FROM_STREAMS and (texts := self._known.to_ask_for(opening)) is not None:
            assert texts.next is not None
            opening.texts_from = texts.next
            texts.asked = True
            self._asks = texts

    def text_of(self, ids: Sequence[int]) -> str | None:
        """Returns the text of further ids where it is known what the server would answer; then they need not be
        sent."""
        if not self._is_plain or self._texts is None or self._expired or self._call.error is not None:
            return None
        try:
            return self._texts[ids[0]] if len(ids) == 1 else "".join([self._texts[index] for index in ids])
        except KeyError:
            return None

    def close(self) -> None:
        """Ends the stream at the server too. Closing twice does nothing."""
        if self._timer is not None:
            self._timer.cancel()
        self._receive = None
        self._asked()
        self._call.leave(self, ended=self._over or not self._begun)

    # For the call.

    def receive(self, request: _Request, response: pb.DecodeStreamResponse) -> None:
        """Takes the response to a request."""
        self._over = self._over or response.done
        if response.fingerprint and request.opening is not None:
            self._texts = self._known.of(response.fingerprint, request.opening)
            if response.HasField("next_texts"):
                self._texts.update(zip(response.text_ids, response.texts, strict=True))
                self._texts.next = response.next_texts or None
        self._asked()
        if response.plain and self._texts is not None:
            self._is_plain = True
            if self._was_plain and len(request.ids) == 1:
                self._texts[request.ids[0]] = response.text
        self._settle(self._refusal(response) if response.HasField("error") else response)

    def _asked(self) -> None:
        if self._asks is not None:
            self._asks.asked = False
            self._asks = None

    def fail(self, error: TandemError) -> None:
        """Ends the wait with an error, because no response will come."""
        self._settle(error)

    def _settle(self, outcome: Outcome) -> None:
        receive, self._receive = self._receive, None
        if receive is not None:
            receive(outcome)

    def _refusal(self, response: pb.DecodeStreamResponse) -> TandemError:
        details = ("grpc-status-details-bin", response.error.SerializeToString())
        code = _CODES.get(response.error.code, grpc.StatusCode.UNKNOWN)
        return from_status(code, response.error.message, [details], service=SERVICE, request_id=self.context.request_id)

    def _expire(self) -> None:
        self._expired = True
        self.stuck = self._receive is not None and time.monotonic() >= self._sent_at + STUCK_SECONDS
        self.fail(self._too_late())

    def _too_late(self) -> TandemError:
        return deadline_exceeded("waiting for the tokenizer", service=SERVICE, request_id=self.context.request_id)


class _Request(NamedTuple):
    place: DecodePlace
    opening: pb.DecodeStreamOpen | None
    ids: Sequence[int]
    end: bool
    farewell: bool = False  # the stream is gone here, and ends at the server with this


class _SharedCall:
    def __init__(self, calls: DecodeCalls, call: Call) -> None:
        self.error: ErrorFor | None = None  # what ended it
        self.trace: StreamTrace | None = None
        self._calls = calls
        self._call = call
        self._places: set[DecodePlace] = set()
        self._outbox: deque[_Request] = deque()
        self._awaited: deque[_Request] = deque()  # those that were sent
        self._free_keys: list[str] = []  # used again, so that neither side remembers all there ever were
        self._keys = 0
        self._wake = asyncio.Event()
        self._leaving = False  # the last stream is gone
        self._retired_at = time.monotonic() + TAKES_STREAMS_SECONDS
        self._ends: list[Callable[[], None]] = []
        self._task = asyncio.create_task(self._run())

    @property
    def streams(self) -> int:
        """The number of streams in it."""
        return len(self._places)

    @property
    def takes_streams(self) -> bool:
        """True when another stream may begin in this call."""
        return (
            self.error is None
            and not self._leaving
            and len(self._places) < MAX_STREAMS
            and time.monotonic() < self._retired_at
        )

    def on_end(self, listener: Callable[[], None]) -> None:
        self._ends.append(listener)

    def enter(self, place: DecodePlace) -> str:
        """Adds a stream and returns its key."""
        self._places.add(place)
        if self._free_keys:
            return self._free_keys.pop()
        self._keys += 1
        return str(self._keys)

    def leave(self, place: DecodePlace, *, ended: bool) -> None:
        """Removes a stream, and tells the server to end it unless it has ended there."""
        if place not in self._places:
            return
        self._places.remove(place)
        if self.error is not None:
            return
        if ended:
            self._free_keys.append(place.key)
        else:
            self._outbox.append(_Request(place, None, (), end=True, farewell=True))
        if not self._places:
            self._leaving = True
            if self._outbox or self._awaited:  # nobody is left to read it
                self._call.cancel()
        self._wake.set()

    def send(self, request: _Request) -> None:
        self._outbox.append(request)
        self._wake.set()

    async def close(self) -> None:
        """Cancels the call."""
        self._task.cancel()
        await asyncio.wait([self._task])
        if self.error is None:  # the task had not begun
            self._call.cancel()

    async def _run(self) -> None:
        receiving, sending = asyncio.create_task(self._receive()), asyncio.create_task(self._send())
        sending.add_done_callback(lambda _: None if self._leaving else receiving.cancel())
        error: ErrorFor = lambda context: ClientClosedError("the client was closed during the call")  # noqa: E731
        try:
            await asyncio.wait([receiving])
            error = await self._status(broken=not receiving.cancelled() and receiving.exception() is not None)
        finally:
            self.error = error
            self._call.cancel()
            sending.cancel()
            receiving.cancel()
            for listener in self._ends:
                listener()
            for place in self._places:
                place.fail(error(place.context))
            try:
                await asyncio.gather(receiving, sending, return_exceptions=True)
            finally:
                del self._call  # see rpc._Errors

    async def _send(self) -> None:
        while True:
            while not self._outbox:
                if self._leaving:
                    await self._call.done_writing()
                    return
                self._wake.clear()
                await self._wake.wait()
            await self._call.write(self._message())

    def _message(self) -> pb.DecodeStreamRequest:
        """Takes as many of the waiting requests as one message may have."""
        message = pb.DecodeStreamRequest()
        size = 0
        while self._outbox and len(message.batch) < MESSAGE_REQUESTS:
            request = self._outbox[0]
            size += 16 + 5 * len(request.ids) + (request.opening.ByteSize() if request.opening is not None else 0)
            if size > MESSAGE_BYTES and message.batch:
                break
            message.batch.add(stream_key=request.place.key, open=request.opening, ids=request.ids, end=request.end)
            self._awaited.append(self._outbox.popleft())
        return message

    async def _receive(self) -> None:
        """Hands out responses until the call ends."""
        while True:
            message = await self._call.read()
            if not isinstance(message, pb.DecodeStreamResponse):
                return
            self._calls.reached = True
            for response in message.batch:
                request = self._awaited.popleft()
                place = request.place
                assert response.stream_key == place.key, "responses come in the order of the requests"
                if response.HasField("error") and response.error.code in _FULL_OR_DRAINING:
                    self._retired_at = 0.0
                if request.farewell:
                    self._free_keys.append(place.key)
                else:
                    place.receive(request, response)

    async def _status(self, *, broken: bool) -> ErrorFor:
        """Returns the error for each of those who waited. `broken` means that reading failed, which may be the status
        too."""
        if broken and not self._call.done():
            self._call.cancel()
            return _incomplete
        call = self._call
        code = await call.code()
        if code is grpc.StatusCode.OK:
            return _incomplete
        details, explained = await call.details(), await call.debug_error_string()  # type: ignore[attr-defined]
        nothing = grpc.aio.Metadata()
        # The request id in the trailing metadata is the shared call's, which nobody knows.
        trailing = grpc.aio.Metadata(
            *((key, value) for key, value in (await call.trailing_metadata() or ()) if key != "x-request-id")
        )
        error = grpc.aio.AioRpcError(code, nothing, trailing, details=details, debug_error_string=explained)
        return lambda context: from_rpc_error(error, service=SERVICE, request_id=context.request_id)


def _incomplete(context: CallContext) -> TandemError:
    return InternalError(
        "the tokenizer ended the stream before its end was sent",
        service=SERVICE,
        reason="STREAM_INCOMPLETE",
        request_id=context.request_id,
    )
