"""StreamDeltas calls that many requests to one worker share: a message costs both sides far more than the tokens in it.

Where ids alone are told, a message has those of all requests in one array, by numbers that this side gives them. Each
request stays a Generate call of its own, with its deadline, errors and end; only its deltas come here, where the
worker knows this and its caller has enough requests for it. The receiver hands each delta over at once and waits for
nobody. When a call ends too soon, the worker ends the requests whose deltas it carried, and they go on elsewhere as
after the loss of a worker.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Callable
from itertools import repeat

import grpc.aio

from tandem.client.errors import UnavailableError, deadline_exceeded
from tandem.client.rpc import CLOSED, CallContext, Metadata
from tandem.inference.v1 import inference_pb2 as pb
from tandem.inference.v1 import inference_pb2_grpc

SERVICE = "worker"
TAKES_REQUESTS_SECONDS = 60.0  # so that balancers and drains have their way with a client that is never idle
AGAIN_SECONDS = 60.0  # after a call that was refused

_KEY, _NUMBER = "x-deltas-key", "x-deltas-number"  # metadata of Generate

Receive = Callable[[pb.Delta], None]
ReceiveIds = Callable[[int, list[int]], None]
"""Takes the index of an output and its new ids, of which nothing else is told."""


class DeltaCalls:
    """The StreamDeltas calls of one client to one worker."""

    def __init__(self, stub: inference_pb2_grpc.InferenceServiceAsyncStub) -> None:
        self._stub = stub
        self._newest: dict[Metadata, _SharedCall] = {}
        self._open: set[_SharedCall] = set()
        self._not_before = 0.0  # the worker refused, or does not know this

    def place(
        self, request_id: str, outputs: int, receive: Receive, receive_ids: ReceiveIds, context: CallContext
    ) -> DeltaPlace | None:
        """Returns a place where deltas of a request with so many outputs will be received, which is to be closed; None
        where there is none."""
        if time.monotonic() < self._not_before:
            return None
        shared = context.shared_metadata()
        call = self._newest.get(shared)
        if call is None or not call.takes_requests:
            key = secrets.token_hex(16)
            secret = context.credentials.metadata() if context.credentials else ()
            started = self._stub.StreamDeltas(pb.StreamDeltasRequest(key=key), metadata=(*shared, *secret))
            call = self._newest[shared] = _SharedCall(key, started, self._ended)
            self._open.add(call)
        if request_id in call.places:
            return None
        return DeltaPlace(call, request_id, outputs, receive, receive_ids, context)

    async def close(self) -> None:
        """Cancels all calls."""
        self._stub = CLOSED
        await asyncio.gather(*(call.close() for call in list(self._open)))

    def _ended(self, call: _SharedCall, *, refused: bool) -> None:
        self._open.discard(call)
        self._newest = {kind: each for kind, each in self._newest.items() if each is not call}
        if refused:
            self._not_before = time.monotonic() + AGAIN_SECONDS


class DeltaPlace:
    """One request in a shared call."""

    def __init__(
        self,
        call: _SharedCall,
        request_id: str,
        outputs: int,
        receive: Receive,
        receive_ids: ReceiveIds,
        context: CallContext,
    ) -> None:
        self.receive = receive
        self.receive_ids = receive_ids
        self._call = call
        self._request_id = request_id
        self._context = context
        self._waits: asyncio.Event | None = None  # of who waits
        self.numbers = call.enter(request_id, outputs, self)

    @property
    def metadata(self) -> Metadata:
        """What Generate's metadata tells the worker."""
        return ((_KEY, self._call.key), (_NUMBER, str(self.numbers.start)))

    def wake(self) -> None:
        """Tells who waits that there is more, or that the call has ended."""
        if self._waits is not None:
            self._waits.set()

    async def until(self, complete: Callable[[], bool]) -> None:
        """Waits until what was received is `complete`. Raises UnavailableError when the call ends before, and
        DeadlineExceededError."""
        if complete():  # nearly always
            return
        self._waits = waits = asyncio.Event()
        try:
            async with asyncio.timeout(self._context.deadline.left):
                while not complete():
                    if self._call.over:
                        raise UnavailableError(
                            "the call that carried the tokens has ended",
                            service=SERVICE,
                            reason="DELTAS_LOST",
                            request_id=self._context.request_id,
                        )
                    waits.clear()
                    await waits.wait()
        except TimeoutError:
            raise deadline_exceeded(
                "waiting for the worker", service=SERVICE, request_id=self._context.request_id
            ) from None

    def close(self) -> None:
        """Receives nothing more."""
        self._call.leave(self._request_id, self.numbers)


class _SharedCall:
    def __init__(
        self,
        key: str,
        call: grpc.aio.UnaryStreamCall[pb.StreamDeltasRequest, pb.StreamDeltasResponse],
        ended: Callable[..., None],
    ) -> None:
        self.key = key
        self.over = False
        self.places: dict[str, DeltaPlace] = {}  # by request id
        self._outputs: dict[int, tuple[DeltaPlace, int]] = {}  # by number: whose, and its index
        self._next_number = 0
        self._call = call
        self._ended = ended
        self._retired_at = time.monotonic() + TAKES_REQUESTS_SECONDS
        self._task = asyncio.create_task(self._run())

    @property
    def takes_requests(self) -> bool:
        """True when another request may share this call."""
        return not self.over and time.monotonic() < self._retired_at

    def enter(self, request_id: str, outputs: int, place: DeltaPlace) -> range:
        """Adds a request; returns the numbers of its outputs."""
        numbers = range(self._next_number, self._next_number + outputs)
        self._next_number = numbers.stop
        self.places[request_id] = place
        self._outputs.update((number, (place, index)) for index, number in enumerate(numbers))
        return numbers

    def leave(self, request_id: str, numbers: range) -> None:
        """Forgets a request; the last one ends the call."""
        self.places.pop(request_id, None)
        for number in numbers:
            self._outputs.pop(number, None)
        if not self.places and not self.over:
            self._end(refused=False)
            self._task.cancel()

    async def close(self) -> None:
        """Cancels the call."""
        self._task.cancel()
        await asyncio.wait([self._task])

    async def _run(self) -> None:
        refused = False
        try:
            while isinstance(message := await self._call.read(), pb.StreamDeltasResponse):
                if message.numbers:
                    self._hand_out_ids(list(message.numbers), list(message.counts), list(message.ids))
                for each in message.deltas:
                    place = self.places.get(each.request_id)
                    if place is not None:
                        place.receive(each.delta)
                        place.wake()
        except grpc.aio.AioRpcError as error:
            refused = error.code() is not grpc.StatusCode.UNAVAILABLE
        except asyncio.CancelledError as stop:
            raise stop.with_traceback(None)  # noqa: B904  (see rpc._Errors)
        finally:
            self._call.cancel()
            del self._call  # see rpc._Errors
            self._end(refused=refused)

    def _hand_out_ids(self, numbers: list[int], counts: list[int], ids: list[int]) -> None:
        start = 0
        for number, count in zip(numbers, counts or repeat(1), strict=False):
            end = start + count
            found = self._outputs.get(number)
            if found is not None:
                place, index = found
                place.receive_ids(index, ids[start:end])
                place.wake()
            start = end

    def _end(self, *, refused: bool) -> None:
        if not self.over:
            self.over = True
            self._ended(self, refused=refused)
            for place in self.places.values():
                place.wake()
