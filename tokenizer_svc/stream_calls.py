"""One DecodeStream call: many streams by key, each request answered in order."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from svc_common.errors import FieldViolation, ServiceError, invalid_argument, resource_exhausted
from tandem.tokenizer.v1 import tokenizer_pb2 as pb
from tokenizer_svc.loaded import Loaded
from tokenizer_svc.metrics import TokenizerMetrics
from tokenizer_svc.settings import TokenizerSettings
from tokenizer_svc.streaming import StreamDecoder
from tokenizer_svc.validation import MAX_STREAM_KEY_BYTES, Violations, check_ids, check_open, check_stream_batch

_DONE_KEYS_KEPT = 65_536  # how long ago a key may have been done and still be answered


@dataclass(slots=True)
class _Stream:
    loaded: Loaded
    decoder: StreamDecoder
    size: int  # of the vocabulary
    tokens: int = 0
    bytes: int = 0

    def count(self) -> None:
        """Once a stream: two counters a message would cost as much as decoding it."""
        self.loaded.metrics.decoded_tokens.inc(self.tokens)
        self.loaded.metrics.decoded_bytes.inc(self.bytes)


class DecodeStreamCall:
    """The streams of one call. `close` it however the call ends."""

    def __init__(
        self, find: Callable[[str], Loaded | None], settings: TokenizerSettings, metrics: TokenizerMetrics
    ) -> None:
        self._find = find
        self._settings = settings
        self._max_ids = settings.max_stream_ids
        self._metrics = metrics
        self._open: dict[str, _Stream] = {}
        self._done: dict[str, None] = {}  # in the order in which they ended

    def handle(self, request: pb.DecodeStreamRequest) -> pb.DecodeStreamResponse:
        """The one response to a request. Raises ServiceError, which ends the call."""
        if not request.batch:
            return self._handle(request, "", pb.DecodeStreamResponse)
        check_stream_batch(request)
        if (count := sum(len(each.ids) for each in request.batch)) > self._max_ids:
            raise self._too_many(count)
        response = pb.DecodeStreamResponse()
        for index, each in enumerate(request.batch):
            self._handle(each, f"batch[{index}].", response.batch.add)
        return response

    def _handle(
        self, request: pb.DecodeStreamRequest, path: str, respond: Callable[..., pb.DecodeStreamResponse]
    ) -> pb.DecodeStreamResponse:
        """What `respond` makes of the answer. `path` leads to the request's fields, for errors."""
        key = request.stream_key
        if request.HasField("open"):
            stream = self._start(key, request.open, path)
        else:
            found = self._open.get(key)
            if found is None:
                if key in self._done:
                    return respond(stream_key=key, done=True)
                raise _violation(f"{path}open", f"is required in the first request of stream_key {key!r}")
            stream = found
        ids = list(request.ids)
        if len(ids) > self._max_ids or (ids and max(ids) >= stream.size):
            self._refuse(ids, stream, path)
        decoder = stream.decoder
        text = decoder.push(ids, request.end)
        stream.tokens += len(ids)
        stream.bytes += len(text) if text.isascii() else len(text.encode())
        if not decoder.done:
            return respond(stream_key=key, text=text, held_bytes=decoder.held_bytes, ids_consumed=decoder.ids_consumed)
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
        )

    def close(self) -> None:
        """Forgets all streams."""
        for stream in self._open.values():
            stream.count()
        self._metrics.open_streams.dec(len(self._open))
        self._open.clear()

    def _start(self, key: str, message: pb.DecodeStreamOpen, path: str) -> _Stream:
        if (size := len(key.encode())) > MAX_STREAM_KEY_BYTES:
            raise _violation(f"{path}stream_key", f"has {size} bytes; at most {MAX_STREAM_KEY_BYTES} are allowed")
        if key in self._open:
            raise _violation(f"{path}open", f"stream_key {key!r} is open already")
        if len(self._open) >= self._settings.max_streams_per_call:
            raise resource_exhausted(
                f"{len(self._open)} streams are open in this call, which is the limit",
                reason="TOO_MANY_STREAMS",
                retry_after=None,
            )
        loaded = self._find(message.tokenizer)
        assert loaded is not None, "the caller has seen to it that it is loaded"
        check_open(message, loaded.tokenizer, f"{path}open")
        options = message.options
        decoder = loaded.tokenizer.stream(
            context_ids=list(message.context_ids),
            remove_special=options.remove_special,
            unparse_special=options.unparse_special,
            stop_strings=list(message.stop_strings),
            include_stop=message.include_stop,
            graphemes=message.graphemes,
        )
        stream = self._open[key] = _Stream(loaded, decoder, loaded.tokenizer.vocabulary_size)
        self._done.pop(key, None)
        self._metrics.open_streams.inc()
        loaded.metrics.streams.inc()
        return stream

    def _too_many(self, count: int) -> ServiceError:
        return resource_exhausted(
            f"ids: {count} in one message; at most {self._max_ids} are taken",
            reason="INPUT_TOO_LARGE",
            retry_after=None,
        )

    def _refuse(self, ids: list[int], stream: _Stream, path: str) -> None:
        if len(ids) > self._max_ids:
            raise self._too_many(len(ids))
        violations = Violations()
        check_ids(ids, f"{path}ids", stream.loaded.tokenizer, violations)
        violations.raise_any()

    def _finish(self, key: str) -> None:
        self._open.pop(key).count()
        self._metrics.open_streams.dec()
        self._done[key] = None
        if len(self._done) > _DONE_KEYS_KEPT:
            del self._done[next(iter(self._done))]


def _violation(field: str, description: str) -> ServiceError:
    return invalid_argument([FieldViolation(field, description)])
