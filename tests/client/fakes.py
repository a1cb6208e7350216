"""Small real servers for the SDK to talk to: a byte tokenizer and a worker whose model counts through a script.

They speak the whole contract over loopback, with switches for what is hard to make happen on purpose: a worker that
stops in the middle, waits, refuses, or goes away.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import grpc
import grpc.aio
from google.protobuf import any_pb2
from google.protobuf.duration_pb2 import Duration
from google.rpc import error_details_pb2, status_pb2
from grpc_health.v1 import health_pb2_grpc
from grpc_health.v1.health import aio as health_aio
from grpc_health.v1.health_pb2 import HealthCheckResponse
from grpc_status import rpc_status

from tandem.client.background import _handle
from tandem.inference.v1 import admin_pb2, admin_pb2_grpc, inference_pb2, inference_pb2_grpc
from tandem.tokenizer.v1 import tokenizer_pb2, tokenizer_pb2_grpc

BOS, EOS, CONTROL = 0, 1, 2
FIRST_BYTE = 3
VOCABULARY = FIRST_BYTE + 256
CONTROL_TEXT = "<|control|>"
FINGERPRINT = "f" * 64
TEXT = "Once there was a wörker 🚀 that counted. "


def ids_of_text(text: str) -> list[int]:
    return [FIRST_BYTE + byte for byte in text.encode()]


def text_of_ids(ids: Sequence[int]) -> str:
    return bytes(i - FIRST_BYTE for i in ids if i >= FIRST_BYTE).decode(errors="replace")


async def refuse(
    context: grpc.aio.ServicerContext,
    code: grpc.StatusCode,
    message: str,
    *,
    reason: str = "",
    violations: Sequence[tuple[str, str]] = (),
    retry_after: float | None = None,
    metadata: dict[str, str] | None = None,
) -> None:
    """Ends the call with a rich status."""
    details = []
    if reason:
        details.append(error_details_pb2.ErrorInfo(reason=reason, domain="tandem", metadata=metadata or {}))
    if violations:
        bad = error_details_pb2.BadRequest()
        for name, description in violations:
            bad.field_violations.add(field=name, description=description)
        details.append(bad)
    if retry_after is not None:
        delay = Duration(seconds=int(retry_after), nanos=int(retry_after % 1 * 1e9))
        details.append(error_details_pb2.RetryInfo(retry_delay=delay))
    status = status_pb2.Status(code=code.value[0], message=message)
    for detail in details:
        packed = any_pb2.Any()
        packed.Pack(detail)
        status.details.append(packed)
    await context.abort_with_status(rpc_status.to_status(status))


class ByteTokenizer(tokenizer_pb2_grpc.TokenizerServiceServicer):
    """Ids 3 to 258 are bytes, 0 is BOS, 1 is EOS, 2 is the control token."""

    def __init__(self) -> None:
        self.open_streams = 0
        self.opened: list[tokenizer_pb2.DecodeStreamOpen] = []
        self.decode_calls = 0
        self.decode_metadata: list[dict[str, str]] = []  # of each call
        self.decode_messages = 0  # requests of streams
        self.refuse_streams: list[tokenizer_pb2.DecodeStreamError | None] = []  # what the next streams are told
        self.chats: list[tokenizer_pb2.EncodeChatRequest] = []
        self.has_chat_template = True
        self.metadata: list[dict[str, str]] = []
        self.break_streams_after: int | None = None  # `break_code` instead of the response to this message, once
        self.break_code = grpc.StatusCode.UNAVAILABLE
        self.vocabulary_sent = VOCABULARY  # ids that are sent of it
        self.unavailable_calls = 0  # refuse so many unary calls
        self.hold = asyncio.Event()  # while clear, nothing is answered
        self.hold.set()
        self.called = asyncio.Event()
        self.all_streams_closed = asyncio.Event()

    def _encode(self, text: tokenizer_pb2.EncodeInput) -> tokenizer_pb2.Encoding:
        ids: list[int] = [] if text.HasField("add_special") and not text.add_special else [BOS]
        for segment in (*text.segments, *text.pair):
            content = segment.text or segment.text_bytes.decode()
            parse = segment.special_tokens == tokenizer_pb2.SPECIAL_TOKEN_POLICY_PARSE
            for index, part in enumerate(content.split(CONTROL_TEXT) if parse else [content]):
                ids += ([CONTROL] if index else []) + ids_of_text(part)
        total = len(ids)
        if text.HasField("truncation"):
            ids = ids[: text.truncation.max_tokens]
        pieces = [bytes([i - FIRST_BYTE]) if i >= FIRST_BYTE else b"" for i in ids]
        offsets = [sum(map(len, pieces[:index])) for index in range(len(ids))] if len(ids) < 1000 else []
        return tokenizer_pb2.Encoding(
            ids=ids, total_tokens=total, truncated=len(ids) < total, pieces=pieces, byte_offsets=offsets
        )

    async def _check(
        self, context: grpc.aio.ServicerContext, segments: Sequence[tokenizer_pb2.TextSegment] = ()
    ) -> None:
        self.called.set()
        self.metadata.append({key: str(value) for key, value in context.invocation_metadata() or ()})
        await self.hold.wait()
        if self.unavailable_calls:
            self.unavailable_calls -= 1
            await refuse(context, grpc.StatusCode.UNAVAILABLE, "starting", reason="STARTING")
        for index, segment in enumerate(segments):
            if segment.special_tokens == tokenizer_pb2.SPECIAL_TOKEN_POLICY_REJECT and CONTROL_TEXT in segment.text:
                where = f"input.segments[{index}].text"
                await refuse(
                    context,
                    grpc.StatusCode.INVALID_ARGUMENT,
                    "control token in text",
                    reason="INVALID_FIELDS",
                    violations=[(where, "contains a control token")],
                )

    async def ListTokenizers(self, request, context):  # noqa: N802
        return tokenizer_pb2.ListTokenizersResponse(tokenizers=[self._info()])

    async def GetTokenizer(self, request, context):  # noqa: N802
        if request.tokenizer not in ("", "bytes"):
            await refuse(context, grpc.StatusCode.NOT_FOUND, f"no tokenizer {request.tokenizer!r}", reason="NOT_FOUND")
        return tokenizer_pb2.GetTokenizerResponse(tokenizer=self._info())

    def _info(self) -> tokenizer_pb2.Tokenizer:
        return tokenizer_pb2.Tokenizer(
            name="bytes",
            vocabulary_type=tokenizer_pb2.VOCABULARY_TYPE_SPM,
            vocabulary_size=VOCABULARY,
            fingerprint=FINGERPRINT,
            bos_id=BOS,
            eos_id=EOS,
            adds_bos=True,
            special_tokens=[
                tokenizer_pb2.SpecialToken(
                    id=CONTROL, text=CONTROL_TEXT, type=tokenizer_pb2.TOKEN_TYPE_CONTROL, rstrip=True
                )
            ],
        )

    async def Encode(self, request, context):  # noqa: N802
        await self._check(context, request.input.segments)
        return tokenizer_pb2.EncodeResponse(encoding=self._encode(request.input), fingerprint=FINGERPRINT)

    async def BatchEncode(self, request, context):  # noqa: N802
        await self._check(context, [segment for text in request.inputs for segment in text.segments])
        encodings = [self._encode(text) for text in request.inputs]
        return tokenizer_pb2.BatchEncodeResponse(encodings=encodings, fingerprint=FINGERPRINT)

    async def CountTokens(self, request, context):  # noqa: N802
        await self._check(context)
        counts = [len(self._encode(text).ids) for text in request.inputs]
        return tokenizer_pb2.CountTokensResponse(counts=counts, fingerprint=FINGERPRINT)

    def _decode(self, ids: Sequence[int]) -> tokenizer_pb2.DecodedText:
        raw = bytes(i - FIRST_BYTE for i in ids if i >= FIRST_BYTE)
        text = raw.decode(errors="replace")
        return tokenizer_pb2.DecodedText(text=text, raw=b"" if text.encode() == raw else raw)

    async def Decode(self, request, context):  # noqa: N802
        await self._check(context)
        return tokenizer_pb2.DecodeResponse(decoded=self._decode(request.input.ids), fingerprint=FINGERPRINT)

    async def BatchDecode(self, request, context):  # noqa: N802
        await self._check(context)
        decoded = [self._decode(one.ids) for one in request.inputs]
        return tokenizer_pb2.BatchDecodeResponse(decoded=decoded, fingerprint=FINGERPRINT)

    async def DecodeStream(self, request_iterator, context):  # noqa: N802
        self.decode_calls += 1
        self.decode_metadata.append({key: str(value) for key, value in context.invocation_metadata() or ()})
        streams: dict[str, tuple] = {}  # what is known of each open one
        try:
            async for message in request_iterator:
                assert message.batch, "the SDK shares its calls"
                responses = []
                for request in message.batch:
                    self.decode_messages += 1
                    await self.hold.wait()
                    if self.break_streams_after is not None and self.decode_messages >= self.break_streams_after:
                        self.break_streams_after = None
                        await refuse(context, self.break_code, "restarting", reason="DRAINING")
                    responses.append(self._decode_request(streams, request))
                yield tokenizer_pb2.DecodeStreamResponse(batch=responses)
        finally:
            self._count_streams(-len(streams))

    def _decode_request(self, streams, request) -> tokenizer_pb2.DecodeStreamResponse:
        key = request.stream_key
        if request.HasField("open"):
            assert key not in streams
            refusal = self.refuse_streams.pop(0) if self.refuse_streams else None
            if refusal is not None:
                return tokenizer_pb2.DecodeStreamResponse(stream_key=key, done=True, error=refusal)
            self.opened.append(request.open)
            streams[key] = (request.open, b"", 0, 0)
            self._count_streams(1)
        if key not in streams:
            return tokenizer_pb2.DecodeStreamResponse(stream_key=key, done=True)
        opening = streams[key][0]
        response, *known = _decode_step(opening, request, *streams[key][1:])
        response.stream_key = key
        more = opening.stop_strings or opening.graphemes or opening.HasField("answer")
        if request.HasField("open"):
            response.fingerprint = FINGERPRINT
            if opening.HasField("texts_from") and not more:
                end = min(opening.texts_from + 50, VOCABULARY)
                ids = [index for index in range(opening.texts_from, end) if index < FIRST_BYTE + 0x80]
                response.text_ids.extend(ids)
                response.texts.extend("" if index < FIRST_BYTE else chr(index - FIRST_BYTE) for index in ids)
                response.next_texts = end if end < VOCABULARY else 0
        response.plain = not (more or response.held_bytes or response.done)
        if opening.HasField("answer") and response.text:
            response.events.add(content=response.text)
        streams[key] = (opening, *known)
        if response.done:
            del streams[key]
            self._count_streams(-1)
        return response

    def _count_streams(self, more: int) -> None:
        self.open_streams += more
        if self.open_streams:
            self.all_streams_closed.clear()
        else:
            self.all_streams_closed.set()

    async def EncodeChat(self, request, context):  # noqa: N802
        """Each message is the control token, its role, a line break, its content and a line break."""
        if request.messages:
            await self._check(context)
            if not self.has_chat_template and not request.chat_template:
                await refuse(
                    context, grpc.StatusCode.FAILED_PRECONDITION, "no chat template", reason="NO_CHAT_TEMPLATE"
                )
            self.chats.append(request)
            ids: list[int] = []
            ranges: list[int] = []
            for message in request.messages:
                ids += [CONTROL, *ids_of_text(message.role + "\n")]
                ranges += [len(ids), len(ids) + len(message.content.encode())]
                ids += ids_of_text(message.content + "\n")
            if request.add_generation_prompt:
                ids += [CONTROL, *ids_of_text("assistant\n")]
            pieces = [bytes([i - FIRST_BYTE]) if i >= FIRST_BYTE else CONTROL_TEXT.encode() for i in ids]
            return tokenizer_pb2.EncodeChatResponse(
                ids=ids,
                fingerprint=FINGERPRINT,
                rendered_text=b"".join(pieces).decode() if request.include_rendered_text else "",
                content_ranges=ranges if request.include_content_mask else [],
                pieces=pieces if request.include_pieces else [],
            )
        await refuse(
            context,
            grpc.StatusCode.UNIMPLEMENTED,
            "not served",
            reason="FIELD_NOT_SERVED",
            metadata={"fields": "tools, template_arguments"},
        )

    async def DownloadVocabulary(self, request, context):  # noqa: N802
        await self._check(context)
        pieces = [b"<s>", b"</s>", CONTROL_TEXT.encode(), *(bytes([byte]) for byte in range(256))]
        types = [tokenizer_pb2.TOKEN_TYPE_CONTROL] * 3 + [tokenizer_pb2.TOKEN_TYPE_BYTE] * 256
        for first in range(0, self.vocabulary_sent, 100):
            part = slice(first, min(first + 100, self.vocabulary_sent))
            yield tokenizer_pb2.DownloadVocabularyResponse(
                tokenizer=None if first else self._info(), first_id=first, pieces=pieces[part], types=types[part]
            )


def _decode_step(opening, request, raw: bytes, sent: int, consumed: int):
    """One response; one id is one byte. The whole text is looked at each time: plain, and right."""
    for index, token in enumerate(request.ids):
        consumed += 1
        raw += bytes([token - FIRST_BYTE]) if token >= FIRST_BYTE else b""
        for stop in opening.stop_strings:
            if raw.endswith(stop.encode()):
                del index
                until = len(raw) if opening.include_stop else len(raw) - len(stop.encode())
                return (
                    tokenizer_pb2.DecodeStreamResponse(
                        text=raw[sent:until].decode(errors="replace"),
                        ids_consumed=consumed,
                        done=True,
                        matched_stop=stop,
                        trim_ids=len(stop.encode()),
                    ),
                    raw,
                    until,
                    consumed,
                )
    until = len(raw) if request.end else _whole_characters(raw)
    if not request.end:
        for stop in (stop.encode() for stop in opening.stop_strings):
            longest = max((n for n in range(1, len(stop)) if raw.endswith(stop[:n])), default=0)
            until = min(until, len(raw) - longest)
    until = max(until, sent)
    response = tokenizer_pb2.DecodeStreamResponse(
        text=raw[sent:until].decode(errors="replace"),
        held_bytes=len(raw) - until,
        ids_consumed=consumed,
        done=request.end,
    )
    return response, raw, until, consumed


def _whole_characters(raw: bytes) -> int:
    for back in range(1, min(4, len(raw)) + 1):
        byte = raw[-back]
        if byte >= 0xC0:
            need = 2 if byte < 0xE0 else 3 if byte < 0xF0 else 4
            return len(raw) if back >= need else len(raw) - back
        if byte < 0x80:
            break
    return len(raw)


def _finished(index: int, reason, tokens: int, **matched) -> inference_pb2.GenerateResponse:
    usage = inference_pb2.Usage(completion_tokens=tokens, forward_passes=tokens + 1, peak_pages=index)
    finished = inference_pb2.Finished(index=index, reason=reason, usage=usage, **matched)
    return inference_pb2.GenerateResponse(finished=finished)


@dataclass
class Seen:
    """One Generate call as the worker saw it."""

    request: inference_pb2.GenerateRequest
    metadata: dict[str, str]
    cancelled: asyncio.Event = field(default_factory=asyncio.Event)
    finished: asyncio.Event = field(default_factory=asyncio.Event)
    ended: asyncio.Event = field(default_factory=asyncio.Event)  # either way
    sent: int = 0


class CountingWorker(inference_pb2_grpc.InferenceServiceServicer, admin_pb2_grpc.WorkerAdminServiceServicer):
    """Its model: the token at output position p is script[(p + seed) % len(script)]. So, as with the real one, an
    answer is a pure function of the prompt, the seed and the position."""

    def __init__(
        self, script: Sequence[int], *, name: str = "counting", fingerprint: str = "", context: int = 4096
    ) -> None:
        self.script = list(script)
        self.name = name
        self.fingerprint = fingerprint
        self.context = context
        self.delta_tokens = 1
        self.seen: list[Seen] = []
        self.running: dict[str, asyncio.Event] = {}
        self.pause_at: int | None = None  # waits for `go` before the token of this position
        self.go = asyncio.Event()
        self.paused = asyncio.Event()
        self.lose_at: int | None = None  # ends UNAVAILABLE before the token of this position
        self.lose_after: int | None = None  # the same, after so many tokens of each call
        self.lose_reason = "ENGINE_DIED"
        self.lose_before_finished = False
        self.full_calls = 0  # refuse so many with RESOURCE_EXHAUSTED
        self.retry_after: float | None = 0.01
        self.fail: tuple[grpc.StatusCode, str] | None = None
        self.refusals: list[str] = []  # reasons, each for one call that is refused with UNAVAILABLE
        self.incomplete = False
        self.heeds_abort = True
        self.drawn_seed = 12345
        self.get_model_calls = 0
        self.abort_calls = 0
        self.held = 0  # requests of others, which it tells beside its own
        self.load_calls = 0
        self.load_asked = asyncio.Event()
        self.load_fail: grpc.StatusCode | None = None
        self.tell_load = asyncio.Event()  # GetLoad waits for it
        self.tell_load.set()
        self.health = health_aio.HealthServicer()

    async def set_serving(self, serving: bool) -> None:
        status = HealthCheckResponse.SERVING if serving else HealthCheckResponse.NOT_SERVING
        await self.health.set("tandem.inference.v1.InferenceService", status)

    async def Generate(self, request, context):  # noqa: N802
        metadata = {key: str(value) for key, value in context.invocation_metadata() or ()}
        seen = Seen(request, metadata)
        self.seen.append(seen)
        try:
            async for response in self._generate(request, context, seen):
                yield response
            seen.finished.set()
        except (asyncio.CancelledError, GeneratorExit):  # the latter when it was cancelled while a message was sent
            seen.cancelled.set()
            raise
        finally:
            self.running.pop(request.request_id, None)
            seen.ended.set()

    async def _several(self, request, context, seen, seed: int, max_tokens: int):
        """Output i is the answer to the seed plus i; a token of each in turn."""
        assert not request.resumed_output_ids
        open_outputs = set(range(request.n))
        for position in range(max_tokens):
            if self.lose_at == position:
                await refuse(context, grpc.StatusCode.UNAVAILABLE, "the worker is lost", reason=self.lose_reason)
            for index in sorted(open_outputs):
                token = self.token(position, seed + index)
                if token == EOS:
                    open_outputs.remove(index)
                    yield _finished(index, inference_pb2.FINISH_REASON_EOS, position, matched_stop_token=EOS)
                else:
                    delta = inference_pb2.Delta(index=index, ids=[token], logprobs=[-0.5 * position])
                    yield inference_pb2.GenerateResponse(delta=delta)
                    await asyncio.sleep(0)
        for index in open_outputs:
            yield _finished(index, inference_pb2.FINISH_REASON_MAX_TOKENS, max_tokens)

    async def _generate(self, request, context, seen) -> AsyncIterator[inference_pb2.GenerateResponse]:
        if self.full_calls:
            self.full_calls -= 1
            await refuse(
                context,
                grpc.StatusCode.RESOURCE_EXHAUSTED,
                "the queue is full",
                reason="QUEUE_FULL",
                retry_after=self.retry_after,
            )
        if self.refusals:
            reason = self.refusals.pop(0)
            await refuse(context, grpc.StatusCode.UNAVAILABLE, "not now", reason=reason, retry_after=self.retry_after)
        if self.fail is not None:
            await refuse(context, *self.fail, reason="TEST")
        expected = request.expected_tokenizer_fingerprint
        if expected and expected != self.fingerprint:
            await refuse(context, grpc.StatusCode.FAILED_PRECONDITION, "another tokenizer", reason="TOKENIZER_MISMATCH")
        if request.request_id in self.running:
            await refuse(context, grpc.StatusCode.ALREADY_EXISTS, "running", reason="REQUEST_ID_IN_USE")
        aborted = self.running[request.request_id] = asyncio.Event()
        sampling, stopping = request.sampling, request.stopping
        seed = sampling.seed if sampling.HasField("seed") else self.drawn_seed
        room = self.context - len(request.prompt_ids)
        max_tokens = min(stopping.max_tokens, room) if stopping.HasField("max_tokens") else room
        effective = inference_pb2.SamplingParams()
        effective.CopyFrom(sampling)
        effective.seed = seed
        yield inference_pb2.GenerateResponse(
            accepted=inference_pb2.Accepted(
                request_id=request.request_id,
                model=self.name,
                prompt_tokens=len(request.prompt_ids),
                max_tokens=max_tokens,
                sampling=effective,
                running_requests=self.held + len(self.running),
            )
        )
        if request.n > 1:
            async for response in self._several(request, context, seen, seed, max_tokens):
                yield response
            return
        position = len(request.resumed_output_ids)
        assert [self.token(p, seed) for p in range(position)] == list(request.resumed_output_ids)
        reason, matched, pending = inference_pb2.FINISH_REASON_MAX_TOKENS, None, []
        while position < max_tokens:
            if self.pause_at == position:
                if pending:
                    yield self.delta(request, pending, seen)
                    pending = []
                self.paused.set()
                waits = [asyncio.create_task(self.go.wait()), asyncio.create_task(aborted.wait())]
                try:
                    await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
                finally:
                    for wait in waits:
                        wait.cancel()
            if aborted.is_set():
                if not self.heeds_abort:
                    await self.go.wait()
                reason = inference_pb2.FINISH_REASON_CANCELLED
                break
            if self.lose_at == position or self.lose_after == seen.sent + len(pending):
                if pending:
                    yield self.delta(request, pending, seen)
                await refuse(context, grpc.StatusCode.UNAVAILABLE, "the worker is lost", reason=self.lose_reason)
            token = self.token(position, seed)
            if position >= stopping.min_tokens:
                if token == EOS and not stopping.ignore_eos:
                    reason, matched = inference_pb2.FINISH_REASON_EOS, token
                elif token in stopping.stop_token_ids:
                    reason, matched = inference_pb2.FINISH_REASON_STOP_TOKEN, token
            if matched is None or stopping.include_stop:
                pending.append(token)
                position += 1
            if pending and (len(pending) >= self.delta_tokens or matched is not None):
                yield self.delta(request, pending, seen)
                pending = []
                await asyncio.sleep(0)
            if matched is not None:
                break
        if pending:
            yield self.delta(request, pending, seen)
        if self.lose_before_finished:
            await refuse(context, grpc.StatusCode.UNAVAILABLE, "the worker is lost", reason=self.lose_reason)
        if self.incomplete:
            return
        yield inference_pb2.GenerateResponse(
            finished=inference_pb2.Finished(
                reason=reason,
                matched_stop_token=matched,
                usage=inference_pb2.Usage(
                    prompt_tokens=len(request.prompt_ids),
                    cached_prompt_tokens=1,
                    completion_tokens=seen.sent,
                    forward_passes=position,
                ),
                timings=inference_pb2.Timings(
                    queue_seconds=0.001, prefill_seconds=0.002, decode_seconds=0.003, total_seconds=0.006
                ),
            )
        )

    def token(self, position: int, seed: int) -> int:
        return self.script[(position + seed) % len(self.script)]

    def delta(self, request, ids: list[int], seen: Seen) -> inference_pb2.GenerateResponse:
        first = len(request.resumed_output_ids) + seen.sent
        seen.sent += len(ids)
        logprobs = [-0.5 * (first + i) for i in range(len(ids))] if request.output.logprobs else []
        return inference_pb2.GenerateResponse(delta=inference_pb2.Delta(ids=ids, logprobs=logprobs))

    async def Abort(self, request, context):  # noqa: N802
        self.abort_calls += 1
        found = [name for name in request.request_ids if name in self.running]
        for name in found:
            self.running[name].set()
        return inference_pb2.AbortResponse(aborted_ids=found)

    async def GetModel(self, request, context):  # noqa: N802
        self.get_model_calls += 1
        return admin_pb2.GetModelResponse(
            name=self.name,
            architecture="counting",
            vocabulary_size=VOCABULARY,
            context_length=self.context,
            eos_ids=[EOS],
            tokenizer_fingerprint=self.fingerprint,
        )

    async def GetServer(self, request, context):  # noqa: N802
        return admin_pb2.GetServerResponse(version="0", state=admin_pb2.SERVER_STATE_SERVING, device="cpu")

    async def GetLoad(self, request, context):  # noqa: N802
        self.load_calls += 1
        self.load_asked.set()
        await self.tell_load.wait()
        if self.load_fail is not None:
            await refuse(context, self.load_fail, "no load is told", reason="TEST")
        return admin_pb2.GetLoadResponse(
            running_requests=len(self.running), held_requests=self.held + len(self.running)
        )

    async def ClearPrefixCache(self, request, context):  # noqa: N802
        return admin_pb2.ClearPrefixCacheResponse()

    async def SetDraining(self, request, context):  # noqa: N802
        state = admin_pb2.SERVER_STATE_DRAINING if request.draining else admin_pb2.SERVER_STATE_SERVING
        return admin_pb2.SetDrainingResponse(state=state)


async def start_tokenizer(tokenizer: ByteTokenizer, address: str = "127.0.0.1:0") -> tuple[grpc.aio.Server, str]:
    server = grpc.aio.server(options=[("grpc.so_reuseport", 0)])
    tokenizer_pb2_grpc.add_TokenizerServiceServicer_to_server(tokenizer, server)
    port = server.add_insecure_port(address)
    await server.start()
    return server, f"127.0.0.1:{port}"


async def start_worker(
    worker: CountingWorker, address: str = "127.0.0.1:0", *, health: bool = True
) -> tuple[grpc.aio.Server, str]:
    server = grpc.aio.server(options=[("grpc.so_reuseport", 0)])
    inference_pb2_grpc.add_InferenceServiceServicer_to_server(worker, server)
    admin_pb2_grpc.add_WorkerAdminServiceServicer_to_server(worker, server)
    if health:
        health_pb2_grpc.add_HealthServicer_to_server(worker.health, server)
        await worker.set_serving(True)
    port = server.add_insecure_port(address)
    await server.start()
    return server, f"127.0.0.1:{port}"


@asynccontextmanager
async def serving_tokenizer(tokenizer: ByteTokenizer | None = None) -> AsyncIterator[tuple[ByteTokenizer, str]]:
    tokenizer = tokenizer or ByteTokenizer()
    server, address = await start_tokenizer(tokenizer)
    try:
        yield tokenizer, address
    finally:
        await server.stop(0)


@asynccontextmanager
async def serving_workers(*workers: CountingWorker, health: bool = True) -> AsyncIterator[list[str]]:
    started = [await start_worker(worker, health=health) for worker in workers]
    try:
        yield [address for _, address in started]
    finally:
        for server, _ in started:
            await server.stop(0)


class ServersThread:
    """Both services on an event loop in a thread of their own."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        # Several event loops in one process find gRPC's wake-up socket empty at times.
        self.loop.set_exception_handler(_handle)
        self.thread = threading.Thread(target=self.loop.run_forever)
        self.thread.start()
        self.tokenizer, self.worker = ByteTokenizer(), CountingWorker([*ids_of_text(TEXT), EOS])
        self._servers = []
        server, self.tokenizer_address = self.run(start_tokenizer(self.tokenizer))
        self._servers.append(server)
        server, self.worker_address = self.run(start_worker(self.worker))
        self._servers.append(server)

    def run(self, coroutine):
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop).result(30)

    def set(self, event: asyncio.Event) -> None:
        self.loop.call_soon_threadsafe(event.set)

    def wait(self, event: asyncio.Event) -> None:
        self.run(asyncio.wait_for(event.wait(), 30))

    def stop(self) -> None:
        for server in self._servers:
            self.run(server.stop(0))
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join()
        self.loop.close()
