"""The text hop of one answer: a stream in a DecodeStream call, begun again elsewhere when that call goes away.

Ids in, whole characters out, one response a request. Replay: when the stream is lost, a new one gets all ids so far in
one request and its text, which begins with what was already given, goes on from there.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tandem.client.answers import size_of, without_first
from tandem.client.decode_calls import SERVICE, DecodeCalls, DecodePlace, Outcome
from tandem.client.errors import CancelledError, InternalError, ResourceExhaustedError, TandemError, UnavailableError
from tandem.client.metrics import ClientMetrics
from tandem.client.patience import Patience, restarts
from tandem.client.rpc import CallContext
from tandem.client.settings import FailoverSettings
from tandem.tokenizer.v1 import tokenizer_pb2 as pb

# Servers bound the ids of one request.
MESSAGE_IDS = 16_384
# Calls in a row that may be found full by others who were refused with us; a server that goes on so has no room.
FULL_CALLS = 16


class TextDecoder:
    """Decodes a growing list of ids. One `feed` or `pass_on` at a time; `close` ends the stream."""

    def __init__(
        self,
        calls: DecodeCalls,
        opening: pb.DecodeStreamOpen,
        context: CallContext,
        failover: FailoverSettings,
        metrics: ClientMetrics,
    ) -> None:
        self._calls = calls
        self._opening = opening
        self._context = context
        self._patience = Patience(failover)
        self._metrics = metrics
        self._place: DecodePlace | None = None
        self._away = False  # the tokenizer was lost or full when it was asked last
        self._failed: TandemError | None = None  # what `pass_on` ended with
        self._fed: list[int] = []
        self._given: list[str] = []
        self._told = 0  # how much the events tell that were given

    async def feed(self, ids: Sequence[int], *, end: bool = False) -> pb.DecodeStreamResponse:
        """Sends more ids and returns the response; its `text` is only what is new. Raises StatusError. After a
        `pass_on` that failed, the text of its ids comes with this."""
        self._fed.extend(ids)
        replay = self._place is None
        lost = False
        refused = 0
        while True:
            try:
                if self._failed is not None:
                    raise self._failed
                response = await self._send(self._fed if replay else ids, opening=replay, end=end)
            except ResourceExhaustedError as full:
                self._failed = None
                # The server lets fewer streams into a call than we do; there is room for this one in a new call.
                if full.reason != "TOO_MANY_STREAMS":
                    raise
                self.close()
                self._away = True
                refused += 1
                if refused > FULL_CALLS:
                    self._patience.failed(full, may_wait=False)
                    await self._context.sleep(self._patience, full, SERVICE)
                replay = True
                continue
            except (UnavailableError, CancelledError) as error:
                self._failed = None
                self.close()
                self._away = True
                self._patience.failed(error, may_wait=restarts(error, reached=self._calls.reached))
                await self._context.sleep(self._patience, error, SERVICE)
                replay = lost = True
                continue
            self._patience.progressed()
            self._away = False
            if lost:
                self._metrics.failovers.labels(SERVICE).inc()
            if replay and self._given:
                response.text = self._new_text(response.text)
                events = without_first(response.events, self._told)
                del response.events[:]
                response.events.extend(events)
            self._remember(response)
            return response

    @property
    def stuck(self) -> bool:
        """True when a deadline passed because the tokenizer did not answer, and not because ids came late."""
        return self._place.stuck if self._place is not None else self._away

    def known_text(self, ids: Sequence[int]) -> str | None:
        """Takes more ids and returns their text, where it is known without asking; None, with nothing taken, where
        `pass_on` or `feed` has to."""
        text = None if self._place is None else self._place.text_of(ids)
        if text is not None:
            self._fed.extend(ids)
            if text:
                self._given.append(text)
        return text

    def pass_on(self, ids: Sequence[int], receive: Callable[[pb.DecodeStreamResponse | None], None]) -> bool:
        """Sends more ids in the open stream and returns at once; `receive` gets the response, or None when it failed:
        then `feed` goes on. Returns False, with nothing sent, where `feed` has to."""
        if self._place is None or len(ids) > MESSAGE_IDS:
            return False

        def settle(outcome: Outcome) -> None:
            if isinstance(outcome, TandemError):
                self._failed = outcome
                receive(None)
            else:
                self._patience.progressed()
                self._remember(outcome)
                receive(outcome)

        try:
            self._place.send(None, ids, end=False, receive=settle)
        except TandemError:  # told again by `feed`
            return False
        self._fed.extend(ids)
        return True

    def _remember(self, response: pb.DecodeStreamResponse) -> None:
        if response.events:
            self._told += sum(map(size_of, response.events))
        if response.text:
            self._given.append(response.text)

    def close(self) -> None:
        if self._place is not None:
            self._place.close()
            self._place = None

    async def _send(self, ids: Sequence[int], *, opening: bool, end: bool) -> pb.DecodeStreamResponse:
        """Returns one response for any number of ids, which are sent in as many messages as needed."""
        texts: list[str] = []
        events: list[pb.AnswerEvent] = []
        for start in range(0, len(ids) or 1, MESSAGE_IDS):
            part = ids[start : start + MESSAGE_IDS]
            last = start + MESSAGE_IDS >= len(ids)
            if self._place is None:
                self._place = self._calls.place(self._opening.tokenizer, self._context)
            opens = self._opening if opening and not start else None
            response = await self._place.exchange(opens, part, end=end and last)
            if len(part) < len(ids):
                texts.append(response.text)
                events += response.events
            if response.done:
                break
        if texts:
            response.text = "".join(texts)
            del response.events[:]
            response.events.extend(events)
        return response

    def _new_text(self, replayed: str) -> str:
        given = "".join(self._given)
        if not replayed.startswith(given):
            raise InternalError(
                "the tokenizer that took over decodes the same ids to another text",
                service=SERVICE,
                reason="TOKENIZER_CHANGED",
                request_id=self._context.request_id,
            )
        return replayed[len(given) :]
