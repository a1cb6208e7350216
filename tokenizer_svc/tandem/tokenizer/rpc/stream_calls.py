"""Serves one DecodeStream call: many streams by key, each request answered in order."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

from tandem.common.errors import FieldViolation, ServiceError, invalid_argument, resource_exhausted
from tandem.common.guarded_method import unexpected
from tandem.common.request_log import tell
from tandem.common.rich_status import to_status
from tandem.tokenizer.answers.events import Event, Kind, joined
from tandem.tokenizer.answers.formats import FORMATS, opened_by
from tandem.tokenizer.answers.parser import AnswerParser
from tandem.tokenizer.answers.writer import types_of
from tandem.tokenizer.decoding.streaming import StreamDecoder
from tandem.tokenizer.rpc.loaded import Loaded
from tandem.tokenizer.rpc.metrics import TokenizerMetrics
from tandem.tokenizer.rpc.validation import (
    MAX_STREAM_KEY_BYTES,
    Violations,
    check_ids,
    check_open,
    check_stream_batch,
    read_tools,
)
from tandem.tokenizer.settings import TokenizerSettings
from tandem.tokenizer.v1 import tokenizer_pb2 as pb

_DONE_KEYS_KEPT = 65_536  # how long ago a key may have been done and still be answered
# What is handled in one turn of the event loop, some milliseconds. An id is looked at more closely where something may
# be held back behind it; an open may have 64 KB of stop strings.
_IDS_A_TURN = 16_384
_HELD_IDS_A_TURN = 128
_OPENS_A_TURN = 8
_REQUESTS_A_TURN = 512
_TEXTS_AT_ONCE = 2048  # of ids, that are told behind an `open`: a millisecond or two


@dataclass(slots=True)
class _Stream:
    loaded: Loaded
    decoder: StreamDecoder
    size: int  # of the vocabulary
    tokens: int = 0
    bytes: int = 0
    answer: AnswerParser | None = None
    reasoning_ids: int = 0
    tells_pieces: bool = False

    @property
    def shows_text_alone(self) -> bool:
        """Tells whether nothing but text is asked for."""
        return self.answer is None and not self.tells_pieces

    def count(self) -> None:
        """Counts once for a stream: two counters for each message would cost as much as decoding it."""
        if self.answer is not None:
            results = {"complete": self.answer.complete_calls, "broken": self.answer.broken}
            for result, calls in results.items():
                if calls:
                    self.loaded.metrics.tool_calls(self.answer.format.name, result).inc(calls)
        self.loaded.metrics.decoded_tokens.inc(self.tokens)
        self.loaded.metrics.decoded_bytes.inc(self.bytes)


class DecodeStreamCall:
    """The streams of one call. Call `close` however the call ends."""

    def __init__(
        self,
        find: Callable[[str], Awaitable[Loaded]],
        settings: TokenizerSettings,
        metrics: TokenizerMetrics,
        refusal: Callable[[], ServiceError | None] = lambda: None,
    ) -> None:
        """`find` returns the tokenizer of a name or raises ServiceError. `refusal` tells why no further stream is
        opened now."""
        self._find = find
        self._settings = settings
        self._max_ids = settings.max_stream_ids
        self._metrics = metrics
        self._refusal = refusal
        self._open: dict[str, _Stream] = {}
        self._done: dict[str, None] = {}  # in the order in which they ended
        self._streams = self._tokens = 0  # that have ended
        self._spent = 0.0  # of a turn of the event loop
        self._told_texts = False  # in the response that is made

    async def handle(self, request: pb.DecodeStreamRequest) -> pb.DecodeStreamResponse:
        """Returns the one response to a request. Raises ServiceError, which ends the call; an error of one request of a
        batch is in its response."""
        self._metrics.stream_messages.inc()
        self._told_texts = False
        if not request.batch:
            self._metrics.stream_requests.inc()
            if request.HasField("open"):
                await self._start(request.stream_key, request.open)
            return await self._push(request, pb.DecodeStreamResponse)
        check_stream_batch(request)
        self._metrics.stream_requests.inc(len(request.batch))
        response = pb.DecodeStreamResponse()
        for each in request.batch:
            try:
                if each.HasField("open"):
                    if (refusal := self._refusal()) is not None:
                        raise refusal
                    await self._start(each.stream_key, each.open)
                await self._push(each, response.batch.add)
            except ServiceError as error:
                self._fail(each.stream_key, error, response.batch.add)
            except Exception as error:
                self._fail(each.stream_key, unexpected(error, "DecodeStream"), response.batch.add)
        return response

    async def _push(
        self, request: pb.DecodeStreamRequest, respond: Callable[..., pb.DecodeStreamResponse]
    ) -> pb.DecodeStreamResponse:
        """Decodes more ids and returns the response that `respond` builds."""
        key = request.stream_key
        stream = self._open.get(key)
        if stream is None:
            if key in self._done:
                return respond(stream_key=key, done=True)
            raise _violation("open", f"is required in the first request of stream_key {key!r}")
        if len(request.ids) > self._max_ids:
            raise resource_exhausted(
                f"ids: {len(request.ids)} in one request; at most {self._max_ids} are taken",
                reason="INPUT_TOO_LARGE",
                retry_after=None,
            )
        ids = list(request.ids)
        if ids and max(ids) >= stream.size:
            violations = Violations()
            check_ids(ids, "ids", stream.loaded.tokenizer, violations)
            violations.raise_any()
        decoder = stream.decoder
        text, events = await self._decode(stream, ids, request.end)
        stream.tokens += len(ids)
        stream.bytes += len(text) if text.isascii() else len(text.encode())
        table = stream.loaded.tokenizer.table
        pieces = [table.pieces[index] for index in ids] if stream.tells_pieces else ()
        if not decoder.done:
            opened = self._about(stream, request.open) if request.HasField("open") else {}
            return respond(
                **opened,
                stream_key=key,
                plain=decoder.is_plain and stream.shows_text_alone,
                text=text,
                held_bytes=decoder.held_bytes,
                ids_consumed=decoder.ids_consumed,
                events=events,
                reasoning_ids=stream.reasoning_ids,
                pieces=pieces,
            )
        self._finish(key)
        if decoder.matched_stop is not None:
            stream.loaded.metrics.stop_matches.inc()
        return respond(
            stream_key=key,
            text=text,
            ids_consumed=decoder.ids_consumed,
            done=True,
            matched_stop=decoder.matched_stop,
            trim_ids=decoder.trim_ids,
            events=events,
            reasoning_ids=stream.reasoning_ids,
            pieces=pieces,
        )

    def _about(self, stream: _Stream, message: pb.DecodeStreamOpen) -> dict[str, Any]:
        """Returns what the response to `message` tells besides text."""
        told: dict[str, Any] = {"fingerprint": stream.loaded.tokenizer.fingerprint}
        start, end = message.texts_from, min(message.texts_from + _TEXTS_AT_ONCE, stream.size)
        asked = message.HasField("texts_from") and stream.shows_text_alone and not self._told_texts
        if asked and (texts := stream.decoder.texts_of(range(start, end))) is not None:
            self._told_texts = True
            told |= {"text_ids": texts.keys(), "texts": texts.values(), "next_texts": end if end < stream.size else 0}
        return told

    async def _decode(self, stream: _Stream, ids: list[int], end: bool) -> tuple[str, Sequence[pb.AnswerEvent]]:
        """Returns the text of more ids, which does not depend on how they are cut, and its events."""
        decoder, answer = stream.decoder, stream.answer
        at_once = _HELD_IDS_A_TURN if decoder.holds_back or answer is not None else _IDS_A_TURN
        texts: list[str] = []
        events: list[Event] = []
        for begin in range(0, max(1, len(ids)), at_once):
            if self._spent >= 1:
                self._spent = 0.0
                await asyncio.sleep(0)
            part = ids[begin : begin + at_once]
            self._spent += 1 / _REQUESTS_A_TURN + len(part) / at_once
            last = end and begin + at_once >= len(ids)
            if answer is None:
                texts.append(decoder.push(part, last))
            else:
                texts.append(_push_answer(stream, answer, part, last, events))
            if decoder.done:
                break
        return "".join(texts), list(map(_event, joined(events))) if events else ()

    def _fail(self, key: str, error: ServiceError, respond: Callable[..., pb.DecodeStreamResponse]) -> None:
        """Ends the stream of this key, if there is one, and returns the error."""
        self._finish(key)
        self._metrics.stream_errors.labels(error.code.name).inc()
        # The same fields on the wire.
        told = pb.DecodeStreamError.FromString(to_status(error).SerializeToString())
        respond(stream_key=key, done=True, error=told)

    def close(self) -> None:
        """Drops all streams."""
        for stream in self._open.values():
            self._count(stream)
        tell(streams=self._streams, tokens=self._tokens)
        self._metrics.open_streams.dec(len(self._open))
        self._open.clear()

    def _count(self, stream: _Stream) -> None:
        stream.count()
        self._streams += 1
        self._tokens += stream.tokens

    async def _start(self, key: str, message: pb.DecodeStreamOpen) -> None:
        if (size := len(key.encode())) > MAX_STREAM_KEY_BYTES:
            raise _violation("stream_key", f"has {size} bytes; at most {MAX_STREAM_KEY_BYTES} are allowed")
        if key in self._open:
            raise _violation("open", f"stream_key {key!r} is open already")
        if len(self._open) >= self._settings.max_streams_per_call:
            raise resource_exhausted(
                f"{len(self._open)} streams are open in this call, which is the limit",
                reason="TOO_MANY_STREAMS",
                retry_after=None,
            )
        self._spent += 1 / _OPENS_A_TURN
        loaded = await self._find(message.tokenizer)
        check_open(message, loaded.tokenizer, "open")
        options = message.options
        answer = _parser(message, loaded) if message.HasField("answer") else None
        visible = answer.format.markers(not message.answer.without_calls) if answer is not None else frozenset()
        decoder = loaded.tokenizer.stream(
            context_ids=list(message.context_ids),
            remove_special=options.remove_special,
            unparse_special=options.unparse_special,
            stop_strings=list(message.stop_strings),
            include_stop=message.include_stop,
            graphemes=message.graphemes,
            min_ids=message.min_ids,
            visible=visible,
        )
        size = loaded.tokenizer.vocabulary_size
        self._open[key] = _Stream(loaded, decoder, size, answer=answer, tells_pieces=message.include_pieces)
        self._done.pop(key, None)
        self._metrics.open_streams.inc()
        loaded.metrics.streams.inc()

    def _finish(self, key: str) -> None:
        """Drops the stream, if there is one. Its key is remembered, for requests that still arrive for it."""
        stream = self._open.pop(key, None)
        if stream is not None:
            self._count(stream)
            self._metrics.open_streams.dec()
        elif len(key) > MAX_STREAM_KEY_BYTES:
            return
        self._done[key] = None
        if len(self._done) > _DONE_KEYS_KEPT:
            del self._done[next(iter(self._done))]


def _parser(message: pb.DecodeStreamOpen, loaded: Loaded) -> AnswerParser:
    """Returns the parser that was asked for. Raises ServiceError for tools that are not JSON."""
    asked = message.answer
    form = FORMATS[asked.format] if asked.format else loaded.answer_format or FORMATS["none"]
    if told := asked.HasField("in_reasoning"):
        in_reasoning = asked.in_reasoning
    else:
        context = loaded.tokenizer.decode(list(message.context_ids), unparse_special=True)
        in_reasoning = opened_by(form, context) is not None
    tools = read_tools(asked.tools, "open.answer.tools")
    return AnswerParser(
        form,
        tools=types_of(tools) if tools else None,
        in_reasoning=in_reasoning,
        in_content=told and not in_reasoning,
        with_calls=not asked.without_calls,
    )


def _push_answer(stream: _Stream, answer: AnswerParser, ids: list[int], end: bool, events: list[Event]) -> str:
    """Returns the text of more ids, and adds their events. One id at a time: so it is known which are reasoning."""
    decoder = stream.decoder
    texts: list[str] = []
    for index in ids:
        was_reasoning = answer.in_reasoning
        text = decoder.push((index,))
        if text or decoder.done:
            texts.append(text)
            events += answer.push(text, decoder.done)
        stream.reasoning_ids += was_reasoning or answer.in_reasoning
        if decoder.done:
            return "".join(texts)
    if end:
        text = decoder.push((), end=True)
        texts.append(text)
        events += answer.push(text, end=True)
    return "".join(texts)


def _event(event: Event) -> pb.AnswerEvent:
    match event.kind:
        case Kind.CONTENT:
            return pb.AnswerEvent(content=event.text)
        case Kind.REASONING:
            return pb.AnswerEvent(reasoning=event.text)
        case Kind.BROKEN:
            return pb.AnswerEvent(broken_call=pb.BrokenCall(text=event.text, index=event.call))
    assert event.call is not None
    complete = event.kind is Kind.CALL_END
    call = pb.ToolCallDelta(index=event.call, name=event.name, id=event.id, arguments=event.text, complete=complete)
    return pb.AnswerEvent(tool_call=call)


def _violation(field: str, description: str) -> ServiceError:
    return invalid_argument([FieldViolation(field, description)])
