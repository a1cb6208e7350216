"""One output of an answer as it grows: ids from the worker, and their text from the tokenizer.

Ids are queued while the tokenizer works; text and ids are queued until the reader takes them. What comes is passed on
where it arrives: waking a task for each delta and each text would cost more than all else that is done with it.
"""

from __future__ import annotations

import asyncio
import sys
import time
from array import array
from collections.abc import Callable, Sequence

from tandem.client.answers import AnswerSoFar
from tandem.client.decoding import TextDecoder
from tandem.client.errors import DeadlineExceededError
from tandem.client.plan import GenerationPlan
from tandem.client.types import Chunk, TopLogprobs
from tandem.inference.v1 import inference_pb2 as pb
from tandem.tokenizer.v1 import tokenizer_pb2


class GrowingOutput:
    """The worker's side calls `receive` and `end`, the reader's side `take`; `decode` runs between them."""

    def __init__(self, index: int, plan: GenerationPlan, published: Callable[[GrowingOutput, str], None]) -> None:
        """Calls `published(this, new text)` whenever there is more to take."""
        self.index = index
        self.ids_out = 0  # how many of the received ids are published
        self.matched_stop: str | None = None
        self._matched_at: int | None = None  # how many ids had to come for it
        self.decode_seconds: float | None = None  # from its first ids at the tokenizer to its first text
        self._decode_began: float | None = None
        self.vocabulary: Sequence[bytes] | None = None  # the bytes of each id, where pieces are told
        self._held_bytes = 0
        self._plan = plan
        self._scored = plan.with_logprobs
        self._on_publish = published
        self._received: list[int] = []
        self._logprobs: list[float] = []  # parallel to _received
        self._ranks: list[int] = []  # likewise
        self._others: list[TopLogprobs] = []  # likewise
        self._whole: list[array[float]] = []  # likewise
        self._texts: list[str] = []  # published pieces
        self._texts_read = 0
        self.answer = AnswerSoFar(f"{plan.request_id}:{index}")
        self._events_read = 0
        self._ids_read = 0
        self._ended = self._stopped = False  # as told by `end`, by `wake`
        self._came = asyncio.Event()
        self._decoder: TextDecoder | None = None  # where deltas may be passed on
        self._fed = 0  # how many ids the decoder has
        self._passing = self._lost = self._decoded = False  # a request waits for its text; has failed; had the last

    @property
    def text(self) -> str:
        """The text so far."""
        return "".join(self._texts)

    @property
    def output_ids(self) -> list[int]:
        """The ids so far whose text is complete."""
        return self._received[: self.ids_out]

    @property
    def logprobs(self) -> list[float] | None:
        """The logprobs of `output_ids`; None unless they were asked for."""
        return self._logprobs[: self.ids_out] if self._plan.with_logprobs else None

    @property
    def ranks(self) -> list[int] | None:
        """The ranks of `output_ids`; None unless logprobs were asked for."""
        return self._ranks[: self.ids_out] if self._plan.with_logprobs else None

    @property
    def top_logprobs(self) -> list[TopLogprobs] | None:
        """The top logprobs at each of `output_ids`; None unless they were asked for."""
        return self._others[: self.ids_out] if self._plan.with_top_logprobs else None

    @property
    def vocabulary_logprobs(self) -> list[array[float]] | None:
        """The logprobs of all ids at each of `output_ids`; None unless they were asked for."""
        return self._whole[: self.ids_out] if self._plan.with_vocabulary_logprobs else None

    @property
    def pieces(self) -> list[bytes] | None:
        """The bytes of each of `output_ids`; None unless they were asked for."""
        return self._pieces(self.output_ids)

    @property
    def produced(self) -> int:
        """The number of ids received; where a stop string matched, those up to the one that completed it: how many came
        behind it is chance."""
        return len(self._received) if self._matched_at is None else self._matched_at

    def begin(self, text: str) -> None:
        """Sets the beginning of the text, which is not generated."""
        if text:
            self._texts.append(text)

    def receive(self, delta: pb.Delta) -> None:
        """Takes a delta from the worker."""
        if self._scored:
            self._logprobs.extend(delta.logprobs)
            self._ranks.extend(delta.ranks)
            self._others.extend(top_logprobs(each, self.vocabulary) for each in delta.top_logprobs)
            self._whole.extend(_rows(delta.vocabulary_logprobs, len(delta.ids)))
            assert len(self._logprobs) == len(self._received) + len(delta.ids), "delta arrays are parallel"
        self.receive_ids(delta.ids)

    def receive_ids(self, ids: Sequence[int]) -> None:
        """Takes ids from the worker, of which nothing more is told."""
        self._received.extend(ids)
        if not self._plan.detokenize:
            self._publish("", len(self._received))
        if self._decoder is None:
            self._came.set()
        elif not self._passing:
            self._pass_on(self._decoder)

    def end(self) -> None:
        """Marks the end: no more deltas come."""
        self._ended = True
        self._came.set()

    def take(self) -> Chunk | None:
        """Returns what is new since the last call, or None."""
        if (
            self._texts_read == len(self._texts)
            and self._ids_read == self.ids_out
            and self._events_read == len(self.answer.events)
        ):
            return None
        new = slice(self._ids_read, self.ids_out)
        ids, events = self._received[new], self.answer.events[self._events_read :]
        chunk = Chunk(
            text="".join(self._texts[self._texts_read :]),
            ids=ids,
            logprobs=self._logprobs[new] if self._scored else None,
            ranks=self._ranks[new] if self._scored else None,
            top_logprobs=self._others[new] if self._scored and self._plan.with_top_logprobs else None,
            index=self.index,
            vocabulary_logprobs=self._whole[new] if self._scored and self._plan.with_vocabulary_logprobs else None,
            pieces=self._pieces(ids),
            held_bytes=self._held_bytes,
            events=events,
        )
        self._events_read += len(events)
        self._texts_read, self._ids_read = len(self._texts), self.ids_out
        return chunk

    async def decode(self, decoder: TextDecoder, pump: asyncio.Task[None], *, at_end: bool) -> None:
        """Decodes ids until the end or a stop string. Raises the error that ended the worker's stream (`pump`) early,
        after all text before it was given. With `at_end` nothing is decoded before all ids have come."""
        while True:
            while not (self._decoded or self._is_due(over=self._ended or pump.done(), at_end=at_end)):
                self._came.clear()
                await self._came.wait()
            if self._decoded:
                return
            end = self._ended or (pump.done() and not pump.cancelled() and pump.exception() is None)
            new = self._received[self._fed :]
            if not new and not end and not self._lost:
                pump.result()
            self._decoder, self._lost = None, False
            self._fed += len(new)
            if new and self._decode_began is None:
                self._decode_began = time.monotonic()
            try:
                self._take_text(await decoder.feed(new, end=end))
            except DeadlineExceededError:
                # Both services have the same deadline: who is not done by then took the time, although nothing of the
                # ids that still came can be decoded.
                if not decoder.stuck:
                    await asyncio.wait([pump])
                    pump.result()
                raise
            if not at_end and not self._decoded:
                self._decoder = decoder
                if self._fed < len(self._received) and not self._ended:
                    self._pass_on(decoder)

    def _is_due(self, *, over: bool, at_end: bool) -> bool:
        """Tells whether `decode` has something to say to the decoder."""
        return not self._passing and (self._lost or over or (not at_end and self._fed < len(self._received)))

    def _pass_on(self, decoder: TextDecoder) -> None:
        """Decodes the ids that have come, or sends them where that needs the tokenizer."""
        new = self._received[self._fed :]
        text = decoder.known_text(new)
        if text is not None:
            self._fed += len(new)
            self._publish(text, self._fed)
            return
        self._passing = decoder.pass_on(new, self._passed)
        if self._passing:
            self._fed += len(new)
        else:
            self._came.set()

    def _passed(self, response: tokenizer_pb2.DecodeStreamResponse | None) -> None:
        """Takes what the ids gave that were passed on, and passes on those that have come meanwhile."""
        self._passing = False
        if response is None:
            self._lost = True
        else:
            self._take_text(response)
        if self._lost or self._decoded:
            self._decoder = None
        if self._decoder is None or self._ended or self._stopped:
            self._came.set()
        elif self._fed < len(self._received):
            self._pass_on(self._decoder)

    def _take_text(self, response: tokenizer_pb2.DecodeStreamResponse) -> None:
        if response.events:
            self.answer.add(response.events)
        self.answer.reasoning_tokens = response.reasoning_ids
        self._held_bytes = response.held_bytes
        self._decoded = response.done
        if response.HasField("matched_stop"):
            trimmed = 0 if self._plan.stopping.include_stop else response.trim_ids
            self.matched_stop = response.matched_stop
            self._matched_at = response.ids_consumed
            self._publish(response.text, response.ids_consumed - trimmed)
        else:
            # A held byte belongs to one id, so no more ids than held bytes can still be trimmed.
            self._publish(response.text, self._fed if response.done else self._fed - response.held_bytes)

    def wake(self) -> None:
        """Wakes the decoder, because the worker's stream is over."""
        self._stopped = True
        self._came.set()

    def _pieces(self, ids: Sequence[int]) -> list[bytes] | None:
        return None if self.vocabulary is None else _pieces(ids, self.vocabulary)

    def _publish(self, text: str, id_count: int) -> None:
        """Publishes new text, and the ids up to `id_count` that it is made of."""
        if text:
            self._texts.append(text)
            if self.decode_seconds is None and self._decode_began is not None:
                self.decode_seconds = time.monotonic() - self._decode_began
        self.ids_out = max(self.ids_out, id_count)
        self._on_publish(self, text)


def top_logprobs(message: pb.TopLogprobs, vocabulary: Sequence[bytes] | None) -> TopLogprobs:
    """Returns a message's top logprobs as the SDK's record, with the bytes of the ids where a vocabulary is given."""
    pieces = [] if vocabulary is None else _pieces(message.ids, vocabulary)
    return TopLogprobs(list(message.ids), list(message.logprobs), list(message.ranks), pieces)


def _pieces(ids: Sequence[int], vocabulary: Sequence[bytes]) -> list[bytes]:
    """Returns the bytes of ids. Models may have more ids than their tokenizers, to round the number up: those have
    none."""
    most = len(vocabulary)
    return [vocabulary[id_] if id_ < most else b"" for id_ in ids]


def _rows(numbers: bytes, count: int) -> list[array[float]]:
    """Returns as many arrays of float32, none of which is there without numbers."""
    size = len(numbers) // count if count else 0
    rows = [array("f", numbers[start : start + size]) for start in range(0, len(numbers), size or 1)]
    if sys.byteorder == "big":
        for row in rows:
            row.byteswap()
    return rows
