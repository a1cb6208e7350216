"""The gRPC face of the tokenizers: requests are validated, small ones answered at once, others by a thread."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import suppress
from functools import partial
from itertools import chain
from typing import Any, TypeVar

import grpc
import grpc.aio

from svc_common.errors import FieldViolation, invalid_argument, resource_exhausted
from svc_common.lifecycle import Lifecycle
from tandem.tokenizer.v1 import tokenizer_pb2 as pb
from tandem.tokenizer.v1 import tokenizer_pb2_grpc
from tokenizer_svc import validation
from tokenizer_svc.chat.encoding import encode_runs
from tokenizer_svc.chat.formats import template_of
from tokenizer_svc.chat.renderer import ChatRenderer, RendererBusyError
from tokenizer_svc.chat.template import RenderError
from tokenizer_svc.chat_validation import chat_question
from tokenizer_svc.loaded import Loaded, LoadedTokenizers
from tokenizer_svc.metrics import TokenizerMetrics
from tokenizer_svc.pool import PoolFullError, WorkPool
from tokenizer_svc.settings import TokenizerSettings
from tokenizer_svc.stream_calls import DecodeStreamCall
from tokenizer_svc.tokenizer import Encoding, Policy, Segment, SpecialTokenInText
from tokenizer_svc.validation import EncodeJob

T = TypeVar("T")
Context = grpc.aio.ServicerContext[Any, Any]

_SHARED_BYTES = 128 * 1024  # text that several threads share
_IDS_PER_CHUNK = 8192
_INLINE_IDS = 4096  # ids that are decoded without a thread


class TokenizerService(tokenizer_pb2_grpc.TokenizerServiceServicer):
    """The service, as `svc_common` runs it."""

    name = pb.DESCRIPTOR.services_by_name["TokenizerService"].full_name

    def __init__(self, settings: TokenizerSettings) -> None:
        self.metrics = TokenizerMetrics()
        self._settings = settings
        self._loaded = LoadedTokenizers(settings, self.metrics)
        self._reloads: set[asyncio.Task[None]] = set()
        self._pool = WorkPool(settings.thread_count, settings.max_queued_jobs, self.metrics)
        self._renderer = ChatRenderer(
            settings.chat_renderers,
            max_waiting=settings.max_queued_jobs,
            seconds=settings.chat_render_seconds,
            max_characters=settings.max_input_bytes,
        )

    async def start(self, lifecycle: Lifecycle) -> None:
        """Loads the tokenizers, and from then on again at each SIGHUP. Raises StartError."""
        await self._loaded.start()
        with suppress(ValueError, RuntimeError):  # signals reach the main thread only
            asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, self._begin_reload)

    def _begin_reload(self) -> None:
        task = asyncio.create_task(self._loaded.reload())
        self._reloads.add(task)
        task.add_done_callback(self._reloads.discard)

    def register(self, server: grpc.aio.Server) -> None:
        """Adds the servicer."""
        tokenizer_pb2_grpc.add_TokenizerServiceServicer_to_server(self, server)

    async def stop(self) -> None:
        """Lets threads and processes go."""
        with suppress(ValueError, RuntimeError):
            asyncio.get_running_loop().remove_signal_handler(signal.SIGHUP)
        for task in self._reloads:
            task.cancel()
        self._pool.close()
        await self._renderer.close()

    # -- about tokenizers

    async def ListTokenizers(  # noqa: N802 - the method's name on the wire
        self, request: pb.ListTokenizersRequest, context: Context
    ) -> pb.ListTokenizersResponse:
        return pb.ListTokenizersResponse(
            tokenizers=[self._describe(loaded, with_specials=False) for loaded in self._loaded.all()]
        )

    async def GetTokenizer(  # noqa: N802
        self, request: pb.GetTokenizerRequest, context: Context
    ) -> pb.GetTokenizerResponse:
        return pb.GetTokenizerResponse(
            tokenizer=self._describe(await self._loaded.get(request.tokenizer), with_specials=True)
        )

    def _describe(self, loaded: Loaded, with_specials: bool) -> pb.Tokenizer:
        tokenizer, config = loaded.tokenizer, loaded.tokenizer.config
        return pb.Tokenizer(
            name=loaded.name,
            vocabulary_type=pb.VocabularyType.ValueType(tokenizer.type),
            vocabulary_size=tokenizer.vocabulary_size,
            fingerprint=tokenizer.fingerprint,
            bos_id=config.bos_id,
            eos_id=config.eos_id,
            unk_id=config.unk_id,
            pad_id=config.pad_id,
            end_of_generation_ids=sorted(config.end_of_generation_ids),
            adds_bos=config.adds_bos,
            adds_eos=config.adds_eos,
            adds_space_prefix=config.adds_space_prefix,
            special_tokens=[
                pb.SpecialToken(id=token.id, text=token.text, type=pb.TokenType.ValueType(token.type))
                for token in (tokenizer.table.specials if with_specials else ())
            ],
            source=config.source,
            has_chat_template=template_of(tokenizer) is not None,
            max_input_bytes=self._settings.max_input_bytes,
        )

    # -- text to ids

    async def Encode(self, request: pb.EncodeRequest, context: Context) -> pb.EncodeResponse:  # noqa: N802
        loaded = await self._loaded.get(request.tokenizer)
        job = validation.encode_job(request, loaded.tokenizer, self._settings)
        if not request.include_offsets and (parts := self._parts(loaded, job)) is not None:
            encoding = await self._encode_parts(loaded, job, parts, request.include_pieces)
        else:
            [encoding] = await self._encode(loaded, [job], request.include_offsets, request.include_pieces)
        response = pb.EncodeResponse(fingerprint=loaded.tokenizer.fingerprint)
        response.encoding.MergeFrom(encoding)
        return response

    def _parts(self, loaded: Loaded, job: EncodeJob) -> list[Segment] | None:
        """A text so large that several threads should share it, where it can be cut."""
        if job.size < _SHARED_BYTES or len(job.segments) != 1 or self._pool.threads == 1:
            return None
        [segment] = job.segments
        if segment.policy == Policy.REJECT:  # names a place in the whole
            return None
        texts = loaded.tokenizer.cut(segment.text, self._pool.threads)
        return [segment._replace(text=text) for text in texts] if len(texts) > 1 else None

    async def _encode_parts(self, loaded: Loaded, job: EncodeJob, parts: list[Segment], pieces: bool) -> pb.Encoding:
        tokenizer = loaded.tokenizer
        found = await self._in_pool([partial(tokenizer.encode_segments, (part,), False) for part in parts])
        front, back = tokenizer.added_ids() if job.add_special else ((), ())
        ids = [*front, *chain.from_iterable(each.ids for each in found), *back]
        encoding = Encoding(ids, len(front), len(back))
        loaded.metrics.encoded_bytes.inc(job.size)
        loaded.metrics.encoded_tokens.inc(encoding.total_tokens)
        return self._message(loaded, _finished(loaded, job, encoding), pieces)

    async def BatchEncode(  # noqa: N802
        self, request: pb.BatchEncodeRequest, context: Context
    ) -> pb.BatchEncodeResponse:
        loaded = await self._loaded.get(request.tokenizer)
        jobs = validation.encode_jobs(request.inputs, loaded.tokenizer, self._settings)
        encodings = await self._encode(loaded, jobs, request.include_offsets, request.include_pieces)
        return pb.BatchEncodeResponse(encodings=encodings, fingerprint=loaded.tokenizer.fingerprint)

    async def CountTokens(  # noqa: N802
        self, request: pb.CountTokensRequest, context: Context
    ) -> pb.CountTokensResponse:
        loaded = await self._loaded.get(request.tokenizer)
        jobs = validation.encode_jobs(request.inputs, loaded.tokenizer, self._settings)
        encodings = await self._spread(loaded, jobs, lambda job: _encode(loaded, job, False))
        loaded.metrics.encoded_tokens.inc(sum(encoding.total_tokens for encoding in encodings))
        counts = [len(encoding.ids) for encoding in encodings]
        return pb.CountTokensResponse(counts=counts, fingerprint=loaded.tokenizer.fingerprint)

    async def _encode(
        self, loaded: Loaded, jobs: Sequence[EncodeJob], offsets: bool, pieces: bool
    ) -> list[pb.Encoding]:
        encodings = await self._spread(
            loaded, jobs, lambda job: self._message(loaded, _encode(loaded, job, offsets), pieces)
        )
        loaded.metrics.encoded_tokens.inc(sum(encoding.total_tokens for encoding in encodings))
        return encodings

    def _pieces(self, loaded: Loaded, ids: Sequence[int]) -> list[bytes]:
        pieces = loaded.tokenizer.pieces(ids)
        if (size := sum(map(len, pieces))) > self._settings.max_output_bytes:
            raise validation.too_much_output("pieces", size, self._settings)
        return pieces

    def _message(self, loaded: Loaded, encoding: Encoding, with_pieces: bool) -> pb.Encoding:
        return pb.Encoding(
            ids=encoding.ids,
            byte_offsets=encoding.byte_offsets,
            code_point_offsets=encoding.code_point_offsets,
            pieces=self._pieces(loaded, encoding.ids) if with_pieces else (),
            truncated=encoding.truncated,
            total_tokens=encoding.total_tokens,
        )

    async def _spread(self, loaded: Loaded, jobs: Sequence[EncodeJob], work: Callable[[EncodeJob], T]) -> list[T]:
        """Does the work at once where it is small, else in as many threads as it can fill."""
        total = sum(job.size for job in jobs)
        loaded.metrics.encoded_bytes.inc(total)
        if total <= self._settings.inline_bytes:
            return [work(job) for job in jobs]
        groups = _groups(jobs, min(self._pool.threads, 1 + total // max(1, self._settings.inline_bytes)))
        results = await self._in_pool([partial(_each, work, group) for group in groups])
        return [result for group in results for result in group]

    async def _in_pool(self, functions: list[Callable[[], T]]) -> list[T]:
        try:
            return await self._pool.run_all(functions)
        except PoolFullError as error:
            raise resource_exhausted(str(error), reason="QUEUE_FULL", retry_after=error.retry_after) from None

    # -- ids to text

    async def Decode(self, request: pb.DecodeRequest, context: Context) -> pb.DecodeResponse:  # noqa: N802
        loaded = await self._loaded.get(request.tokenizer)
        ids = validation.decode_input(request, loaded.tokenizer, self._settings)
        [decoded] = await self._decode(loaded, [ids], request.options)
        return pb.DecodeResponse(decoded=decoded, fingerprint=loaded.tokenizer.fingerprint)

    async def BatchDecode(  # noqa: N802
        self, request: pb.BatchDecodeRequest, context: Context
    ) -> pb.BatchDecodeResponse:
        loaded = await self._loaded.get(request.tokenizer)
        inputs = validation.decode_inputs(request.inputs, loaded.tokenizer, self._settings)
        decoded = await self._decode(loaded, inputs, request.options)
        return pb.BatchDecodeResponse(decoded=decoded, fingerprint=loaded.tokenizer.fingerprint)

    async def _decode(self, loaded: Loaded, inputs: list[list[int]], options: pb.DecodeOptions) -> list[pb.DecodedText]:
        count = sum(map(len, inputs))
        work = partial(self._decode_all, loaded, inputs, options)
        decoded = work() if count <= _INLINE_IDS else (await self._in_pool([work]))[0]
        loaded.metrics.decoded_tokens.inc(count)
        return decoded

    def _decode_all(self, loaded: Loaded, inputs: list[list[int]], options: pb.DecodeOptions) -> list[pb.DecodedText]:
        tokenizer = loaded.tokenizer
        size = sum(tokenizer.decoded_size(ids) for ids in inputs)
        if size > self._settings.max_output_bytes:
            raise validation.too_much_output("text", size, self._settings)
        loaded.metrics.decoded_bytes.inc(size)
        return [
            _decoded_message(
                tokenizer.decode_bytes(ids, options.remove_special, options.unparse_special, options.clean_spaces)
            )
            for ids in inputs
        ]

    async def DecodeStream(  # noqa: N802
        self, request_iterator: AsyncIterator[pb.DecodeStreamRequest], context: Context
    ) -> AsyncIterator[pb.DecodeStreamResponse]:
        call = DecodeStreamCall(self._loaded.at_hand, self._settings, self.metrics)
        try:
            async for request in request_iterator:
                if request.HasField("open"):
                    await self._loaded.get(request.open.tokenizer)
                yield call.handle(request)
        finally:
            call.close()

    # -- conversations

    async def EncodeChat(self, request: pb.EncodeChatRequest, context: Context) -> pb.EncodeChatResponse:  # noqa: N802
        loaded = await self._loaded.get(request.tokenizer)
        question = chat_question(request, loaded.tokenizer, self._settings)
        try:
            runs = await self._renderer.render(question)
        except RenderError as error:
            field = "chat_template" if request.chat_template else "messages"
            raise invalid_argument([FieldViolation(field, str(error))]) from None
        except RendererBusyError as error:
            raise resource_exhausted(str(error), reason="QUEUE_FULL", retry_after=0.5) from None
        text = "".join(part for _, part in runs)
        work = partial(encode_runs, loaded.tokenizer, runs, request.include_content_mask)
        encoding = work() if len(text) <= self._settings.inline_bytes else (await self._in_pool([work]))[0]
        loaded.metrics.encoded_tokens.inc(len(encoding.ids))
        loaded.metrics.encoded_bytes.inc(len(text.encode()))
        loaded.metrics.input_tokens.observe(len(encoding.ids))
        return pb.EncodeChatResponse(
            ids=encoding.ids,
            rendered_text=text if request.include_rendered_text else "",
            content_ranges=[place for found in encoding.content_ranges for place in found],
            pieces=self._pieces(loaded, encoding.ids) if request.include_pieces else (),
            fingerprint=loaded.tokenizer.fingerprint,
        )

    # -- whole vocabularies

    async def DownloadVocabulary(  # noqa: N802
        self, request: pb.DownloadVocabularyRequest, context: Context
    ) -> AsyncIterator[pb.DownloadVocabularyResponse]:
        loaded = await self._loaded.get(request.tokenizer)
        table = loaded.tokenizer.table
        for first in range(0, len(table), _IDS_PER_CHUNK):
            last = min(first + _IDS_PER_CHUNK, len(table))
            yield pb.DownloadVocabularyResponse(
                tokenizer=None if first else self._describe(loaded, with_specials=True),
                first_id=first,
                pieces=table.pieces[first:last],
                types=[pb.TokenType.ValueType(kind) for kind in table.types[first:last]],
                scores=() if table.scores is None else table.scores[first:last],
            )


def _encode(loaded: Loaded, job: EncodeJob, with_offsets: bool) -> Encoding:
    try:
        encoding = loaded.tokenizer.encode_segments(job.segments, job.add_special, with_offsets)
    except SpecialTokenInText as error:
        field = f"{job.field}.segments[{error.segment}].text"
        raise invalid_argument([FieldViolation(field, f"{error}, and the segment's policy is REJECT")]) from None
    return _finished(loaded, job, encoding)


def _finished(loaded: Loaded, job: EncodeJob, encoding: Encoding) -> Encoding:
    """Truncated as the input asks for, and counted."""
    if job.max_tokens is not None:
        encoding.truncate(job.max_tokens, job.cut_left)
    loaded.metrics.input_tokens.observe(encoding.total_tokens)
    return encoding


def _decoded_message(raw: bytes) -> pb.DecodedText:
    try:
        return pb.DecodedText(text=raw.decode())
    except UnicodeDecodeError:
        return pb.DecodedText(text=raw.decode("utf-8", "replace"), raw=raw)


def _each(work: Callable[[EncodeJob], T], jobs: Sequence[EncodeJob]) -> list[T]:
    return [work(job) for job in jobs]


def _groups(jobs: Sequence[EncodeJob], count: int) -> list[Sequence[EncodeJob]]:
    """The jobs in order, in at most `count` groups of about equal size; none is empty."""
    share = sum(job.size for job in jobs) / count
    groups: list[Sequence[EncodeJob]] = []
    start, size = 0, 0
    for index, job in enumerate(jobs):
        size += job.size
        if size >= share * (len(groups) + 1) and len(groups) < count - 1:
            groups.append(jobs[start : index + 1])
            start = index + 1
    if start < len(jobs):
        groups.append(jobs[start:])
    return groups
