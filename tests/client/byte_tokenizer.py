"""A small real tokenizer service whose tokens are bytes, with switches for what is hard to make happen on purpose: it
is not there, waits, or breaks a stream."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import grpc
import grpc.aio

from tandem.tokenizer.v1 import tokenizer_pb2, tokenizer_pb2_grpc
from tests.client.byte_vocabulary import (
    BOS,
    CONTROL,
    CONTROL_TEXT,
    EOS,
    FINGERPRINT,
    FIRST_BYTE,
    VOCABULARY,
    ids_of_text,
)
from tests.client.refusals import refuse


class ByteTokenizer(tokenizer_pb2_grpc.TokenizerServiceServicer):
    """Ids 3 to 258 are bytes, 0 is BOS, 1 is EOS, 2 is the control token."""

    def __init__(self) -> None:
        self.fingerprint = FINGERPRINT
        self.pieces = [b"<s>", b"</s>", CONTROL_TEXT.encode(), *(bytes([byte]) for byte in range(256))]
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
            fingerprint=self.fingerprint,
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
        return tokenizer_pb2.EncodeResponse(encoding=self._encode(request.input), fingerprint=self.fingerprint)

    async def BatchEncode(self, request, context):  # noqa: N802
        await self._check(context, [segment for text in request.inputs for segment in text.segments])
        encodings = [self._encode(text) for text in request.inputs]
        return tokenizer_pb2.BatchEncodeResponse(encodings=encodings, fingerprint=self.fingerprint)

    async def CountTokens(self, request, context):  # noqa: N802
        await self._check(context)
        counts = [len(self._encode(text).ids) for text in request.inputs]
        return tokenizer_pb2.CountTokensResponse(counts=counts, fingerprint=self.fingerprint)

    def _decode(self, ids: Sequence[int]) -> tokenizer_pb2.DecodedText:
        raw = bytes(i - FIRST_BYTE for i in ids if i >= FIRST_BYTE)
        text = raw.decode(errors="replace")
        return tokenizer_pb2.DecodedText(text=text, raw=b"" if text.encode() == raw else raw)

    async def Decode(self, request, context):  # noqa: N802
        await self._check(context)
        return tokenizer_pb2.DecodeResponse(decoded=self._decode(request.input.ids), fingerprint=self.fingerprint)

    async def BatchDecode(self, request, context):  # noqa: N802
        await self._check(context)
        decoded = [self._decode(one.ids) for one in request.inputs]
        return tokenizer_pb2.BatchDecodeResponse(decoded=decoded, fingerprint=self.fingerprint)

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
            response.fingerprint = self.fingerprint
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
            if request.continue_final_message:
                ids.pop()
            if request.add_generation_prompt:
                ids += [CONTROL, *ids_of_text("assistant\n")]
            pieces = [bytes([i - FIRST_BYTE]) if i >= FIRST_BYTE else CONTROL_TEXT.encode() for i in ids]
            return tokenizer_pb2.EncodeChatResponse(
                ids=ids,
                fingerprint=self.fingerprint,
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
        types = [tokenizer_pb2.TOKEN_TYPE_CONTROL] * 3 + [tokenizer_pb2.TOKEN_TYPE_BYTE] * 256
        for first in range(0, self.vocabulary_sent, 100):
            part = slice(first, min(first + 100, self.vocabulary_sent))
            yield tokenizer_pb2.DownloadVocabularyResponse(
                tokenizer=None if first else self._info(), first_id=first, pieces=self.pieces[part], types=types[part]
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
