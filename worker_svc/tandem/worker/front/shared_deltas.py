"""Sends the deltas of many requests in one call: StreamDeltas of inference.proto.

| who                    | does what                                                                               |
|------------------------|-----------------------------------------------------------------------------------------|
| the engine's side      | `came` with each output that has something new; all that a step brings wakes a call once |
| the call's own handler | `messages`: one message has the new tokens of all outputs that have some                 |
| Generate's handler     | `carry` at the first token, `leave` at the end; what is left of the answer it sends      |

Of a request whose caller gave it a number, the ids alone are sent, all in one array (`carry_ids`).
While a message is being written, tokens pile up in their outputs, as they do for a slow reader of one request.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from typing import TypeAlias

from tandem.common.errors import already_exists, resource_exhausted, unavailable
from tandem.inference.v1 import inference_pb2 as pb
from tandem.worker.front.streams import OutputStream, Tokens

MOST_CALLS = 1024  # that are open; beyond, requests send their deltas themselves
MESSAGE_TOKENS = 4096  # after which a message takes no further output
_RETRY_SECONDS = 1.0
_MOST_NUMBER = 2**31 - 1

Fill: TypeAlias = Callable[[pb.Delta, OutputStream, Tokens], None]
"""Writes tokens that were taken from an output into its delta."""


def request_number(told: str) -> int | None:
    """Returns the number that a caller gave a request; None where it gave none that can be told in messages."""
    number = int(told) if told.isascii() and told.isdecimal() and len(told) <= len(str(_MOST_NUMBER)) else -1
    return number if 0 <= number <= _MOST_NUMBER else None


class DeltaCall:
    """One StreamDeltas call; all methods are for one event loop."""

    def __init__(self, counted: Callable[[int], None]) -> None:
        """Calls `counted` with the number of deltas of each message."""
        self._counted = counted
        self._carried: dict[OutputStream, tuple[str, Fill]] = {}
        self._numbers: dict[OutputStream, tuple[int, Callable[[], None]]] = {}
        self._due: dict[OutputStream, None] = {}  # in the order in which they became due
        self._wake = asyncio.Event()

    def carry(self, stream: OutputStream, request_id: str, fill: Fill) -> None:
        """Takes over the deltas of an output of this request."""
        self._carried[stream] = (request_id, fill)
        self._begin(stream)

    def carry_ids(self, stream: OutputStream, number: int, begun: Callable[[], None]) -> None:
        """Takes over the ids of an output with this number; `begun` is called when the first of all are sent."""
        self._numbers[stream] = (number, begun)
        self._begin(stream)

    def _begin(self, stream: OutputStream) -> None:
        stream.carrier = self
        if stream.pending:
            self.came(stream)

    def leave(self, stream: OutputStream) -> None:
        """Forgets an output."""
        self._carried.pop(stream, None)
        self._numbers.pop(stream, None)
        self._due.pop(stream, None)
        stream.carrier = None

    def came(self, stream: OutputStream) -> None:
        """Notes that an output has something to send."""
        if not self._due:
            self._wake.set()
        self._due[stream] = None

    async def messages(self) -> AsyncIterator[pb.StreamDeltasResponse]:
        """Yields messages for ever."""
        while True:
            while not self._due:
                self._wake.clear()
                await self._wake.wait()
            message = self._message()
            if count := len(message.deltas) + len(message.numbers):
                self._counted(count)
                yield message

    def fail(self) -> None:
        """Ends all requests whose deltas would come here: some may be lost."""
        for stream in [*self._carried, *self._numbers]:
            self.leave(stream)
            if not stream.told:
                stream.fail(unavailable("the call that carried this request's deltas has ended", reason="DELTAS_LOST"))

    def _message(self) -> pb.StreamDeltasResponse:
        message = pb.StreamDeltasResponse()
        numbers: list[int] = []
        counts: list[int] = []
        ids: list[int] = []
        room = MESSAGE_TOKENS
        while self._due and room > 0:
            stream = next(iter(self._due))
            del self._due[stream]
            if stream.error is not None:
                continue
            numbered = self._numbers.get(stream)
            tokens = stream.take() if numbered is None else None
            taken = stream.take_ids() if tokens is None else tokens.ids
            if stream.ended is not None:
                stream.wake.set()
            if not taken:  # all that has come is held back
                continue
            room -= len(taken)
            if numbered is not None:
                number, begun = numbered
                numbers.append(number)
                counts.append(len(taken))
                ids += taken
                if stream.sent == len(taken):
                    begun()
            else:
                assert tokens is not None
                request_id, fill = self._carried[stream]
                fill(message.deltas.add(request_id=request_id).delta, stream, tokens)
        if numbers:
            message.numbers.extend(numbers)
            message.ids.extend(ids)
            if len(ids) > len(numbers):
                message.counts.extend(counts)
        return message


class DeltaCalls:
    """The StreamDeltas calls that are open."""

    def __init__(self, counted: Callable[[int], None]) -> None:
        self._counted = counted
        self._open: dict[tuple[str, str], DeltaCall] = {}

    @contextmanager
    def opened(self, caller: str, key: str) -> Iterator[DeltaCall]:
        """Opens a call of a caller for as long as the context lasts. Raises ALREADY_EXISTS, RESOURCE_EXHAUSTED."""
        if (caller, key) in self._open:
            raise already_exists("this caller has a StreamDeltas call with that key", reason="KEY_EXISTS")
        if len(self._open) >= MOST_CALLS:
            raise resource_exhausted(
                f"{MOST_CALLS} StreamDeltas calls are open, which is the limit",
                reason="TOO_MANY_CALLS",
                retry_after=_RETRY_SECONDS,
            )
        call = self._open[caller, key] = DeltaCall(self._counted)
        try:
            yield call
        finally:
            del self._open[caller, key]
            call.fail()

    def find(self, caller: str, key: str) -> DeltaCall | None:
        """Returns the call that a caller's request names, if there is one."""
        return self._open.get((caller, key)) if key else None
