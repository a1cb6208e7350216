"""Queues the tokens of each output between the engine's steps and one gRPC stream.

Tokens pile up while the stream waits for its reader, and go out as one message when it comes back: a slow reader costs
one growing list of ids, which max_tokens bounds, and never holds up the engine or another reader. The last tokens of an
output that may still become a stop sequence are held back until it is known.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from tandem.common.errors import ServiceError
from tandem.worker.engine.process.messages import Ended, TopTokens
from tandem.worker.front.validation import Delivery


@dataclass(slots=True)
class Tokens:
    """Holds tokens of one output and what is known of each, in parallel lists; of an output whose logprobs nobody asks
    for, ids alone."""

    ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    ranks: list[int] = field(default_factory=list)
    others: list[TopTokens] = field(default_factory=list)  # empty unless they were asked for
    whole: list[bytes] = field(default_factory=list)  # likewise: float32 logprobs of the whole vocabulary

    def __len__(self) -> int:
        return len(self.ids)

    def cut(self, end: int) -> Tokens:
        """Removes and returns the first `end` of them."""
        taken = Tokens(self.ids[:end], self.logprobs[:end], self.ranks[:end], self.others[:end], self.whole[:end])
        for each in (self.ids, self.logprobs, self.ranks, self.others, self.whole):
            del each[:end]
        return taken

    def trim(self, count: int) -> None:
        """Drops the last ones."""
        if count:
            for each in (self.ids, self.logprobs, self.ranks, self.others, self.whole):
                del each[-count:]


class Carrier(Protocol):
    """Takes the tokens of many outputs, and is told of each that has some."""

    def came(self, stream: OutputStream) -> None:
        """Notes that an output has something to send."""
        ...

    def leave(self, stream: OutputStream) -> None:
        """Forgets an output."""
        ...


@dataclass(slots=True, eq=False)
class OutputStream:
    """One output of a request. The engine's side calls `push`, `hold`, `end` and `fail`, the reader's side `ready` and
    `take`; all on one event loop. Outputs of the same request share their event. Where a carrier takes the tokens, the
    reader is due when all are taken."""

    number: int
    delivery: Delivery
    ended: Ended | None = None
    sent: int = 0  # tokens that were taken
    told: bool = False  # the reader has said that it has ended
    error: ServiceError | None = None
    wake: asyncio.Event = field(default_factory=asyncio.Event)
    carrier: Carrier | None = None
    prompt: Tokens = field(default_factory=Tokens)  # logprobs of the prompt's tokens but the first; no ids
    total_logprob: float = 0.0  # of the tokens that were taken
    pushed_at: float = 0.0  # when the last token came; 0 before the first
    _tokens: Tokens = field(default_factory=Tokens)
    _held: int = 0
    _pending_since: float = 0.0

    @property
    def over(self) -> bool:
        """Tells whether the stream has ended or failed, so that nothing will be pushed any more."""
        return self.ended is not None or self.error is not None

    @property
    def pending(self) -> int:
        """Returns how many tokens have come and were not taken, those that are held back included."""
        return len(self._tokens)

    @property
    def score(self) -> tuple[float, int]:
        """Returns the total logprob and the number of the tokens that were not taken."""
        return math.fsum(self._tokens.logprobs), len(self._tokens)

    def push(
        self,
        token: int,
        logprob: float,
        now: float,
        rank: int = 0,
        others: TopTokens | None = None,
        whole: bytes | None = None,
    ) -> None:
        """Adds one token."""
        tokens = self._tokens
        self.pushed_at = now
        if not tokens.ids:
            self._pending_since = now
        tokens.ids.append(token)
        if self.delivery.scored:
            tokens.logprobs.append(logprob)
            tokens.ranks.append(rank)
            if self.delivery.others:
                tokens.others.append(others or ([], [], []))
            if whole is not None:
                tokens.whole.append(whole)
        if self.carrier is not None:
            self.carrier.came(self)
        elif len(tokens.ids) >= self.delivery.interval_tokens or self.delivery.max_delay_seconds is not None:
            self.wake.set()

    def hold(self, count: int) -> None:
        """Keeps the last `count` tokens from being taken; called in the same turn as their `push`."""
        self._held = count

    def end(self, ended: Ended) -> None:
        """Ends the stream of a finished request; the last `ended.trim` tokens are not part of its output."""
        self._held = 0
        self._tokens.trim(ended.trim)
        self.ended = ended
        if self.carrier is not None and self._tokens.ids:
            self.carrier.came(self)
        else:
            self.wake.set()

    def fail(self, error: ServiceError) -> None:
        """Ends the stream with an error; what is pending is not delivered."""
        self.error = error
        self.wake.set()

    def seconds_until_due(self, now: float) -> float | None:
        """Returns the seconds until a message is due: 0 or less for enough tokens, a wait that is over, or the end;
        None if only the engine can tell."""
        if self.carrier is not None:
            return 0.0 if self.over and not self._tokens.ids else None
        ready = len(self._tokens) - self._held
        if self.over or ready >= self.delivery.interval_tokens:
            return 0.0
        delay = self.delivery.max_delay_seconds
        return self._pending_since + delay - now if delay is not None and ready > 0 else None

    async def ready(self) -> None:
        """Waits until a message is due. Raises what the stream failed with."""
        await next_due([self])

    def take(self) -> Tokens:
        """Returns the tokens that have come since the last call and fit into a message, but for those that are held
        back."""
        ready = len(self._tokens) - self._held
        if not self._held and ready <= self.delivery.most_tokens:  # nearly always: all of them, and nothing is copied
            taken, self._tokens = self._tokens, Tokens()
        else:
            taken = self._tokens.cut(min(ready, self.delivery.most_tokens))
        self._pending_since = time.monotonic()
        self.sent += len(taken.ids)
        for logprob in taken.logprobs:  # one by one: how the output is cut into messages must change no bit
            self.total_logprob += logprob
        return taken

    def take_ids(self) -> list[int]:
        """Returns the ids of what `take` would return, of an output that is told nothing else."""
        if self._held:
            return self.take().ids
        tokens = self._tokens
        taken, tokens.ids = tokens.ids, []
        self.sent += len(taken)
        return taken


async def next_due(streams: Sequence[OutputStream]) -> list[OutputStream]:
    """Waits until one of these outputs has a message due; returns all that have. Raises what one failed with."""
    wake = streams[0].wake
    while True:
        now = time.monotonic()
        waits = [(stream.seconds_until_due(now), stream) for stream in streams]
        for stream in streams:
            if stream.error is not None:
                raise stream.error
        due = [stream for seconds, stream in waits if seconds is not None and seconds <= 0]
        if due:
            return due
        wake.clear()
        shortest = min((seconds for seconds, _ in waits if seconds is not None), default=None)
        if shortest is None:
            await wake.wait()
        else:
            try:
                async with asyncio.timeout(shortest):
                    await wake.wait()
            except TimeoutError:
                continue


async def best_outputs(streams: Sequence[OutputStream], count: int, length_penalty: float) -> list[OutputStream]:
    """Waits for the end of all samples of a request; returns the best `count` of them, the best first, by the total
    logprob of the output over its length to the power of `length_penalty`. An empty output comes last, and of equals
    the first sample first. Raises what one failed with."""
    while not all(stream.over for stream in streams):
        streams[0].wake.clear()
        await streams[0].wake.wait()
    for stream in streams:
        if stream.error is not None:
            raise stream.error

    def badness(stream: OutputStream) -> float:
        total, length = stream.score
        return -total / length**length_penalty if length else math.inf

    return sorted(streams, key=badness)[:count]
