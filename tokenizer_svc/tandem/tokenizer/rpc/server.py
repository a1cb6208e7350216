"""The gRPC server of the tokenizers: requests are validated, small ones answered at once, others in a thread."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar

import grpc
import grpc.aio

from tandem.common.callers import caller_var
from tandem.common.errors import FieldViolation, ServiceError, invalid_argument, resource_exhausted, unavailable
from tandem.common.request_log import tell
from tandem.common.run_service import Lifecycle
from tandem.tokenizer.chat.encoding import encode_runs
from tandem.tokenizer.chat.json_text import JsonTextError
from tandem.tokenizer.chat.render_error import RenderError
from tandem.tokenizer.chat.renderer import ChatRenderer
from tandem.tokenizer.chat.slots import CallerSlots, NoSlotError
from tandem.tokenizer.rpc import validation
from tandem.tokenizer.rpc.answer_guides import answer_guide, reasoning_ids
from tandem.tokenizer.rpc.chat_validation import CHAT_POLICIES, chat_question
from tandem.tokenizer.rpc.decode_calls import DecodeCalls
from tandem.tokenizer.rpc.encode_calls import EncodeCalls
from tandem.tokenizer.rpc.limits import request_limits
from tandem.tokenizer.rpc.loaded import Loaded, LoadedTokenizers
from tandem.tokenizer.rpc.metrics import TokenizerMetrics
from tandem.tokenizer.rpc.pool import WorkPool
from tandem.tokenizer.rpc.small_encode_calls import SmallEncodeCalls
from tandem.tokenizer.rpc.stream_calls import DecodeStreamCall
from tandem.tokenizer.settings import TokenizerSettings
from tandem.tokenizer.v1 import tokenizer_pb2 as pb
from tandem.tokenizer.v1 import tokenizer_pb2_grpc
from tandem.tokenizer.wire import CHAT_PIECES, chat_response

T = TypeVar("T")
Context = grpc.aio.ServicerContext[Any, Any]

_IDS_PER_CHUNK = 8192


class TokenizerService(tokenizer_pb2_grpc.TokenizerServiceServicer):
    """The service that `tandem.common` runs."""

    name = pb.DESCRIPTOR.services_by_name["TokenizerService"].full_name

    def __init__(self, settings: TokenizerSettings) -> None:
        self.metrics = TokenizerMetrics()
        self._settings = settings
        self.limits = request_limits(settings)
        self._lifecycle: Lifecycle | None = None
        self._loaded = LoadedTokenizers(settings, self.metrics)
        self._reloads: set[asyncio.Task[None]] = set()
        self._pool = WorkPool(settings.thread_count, settings.max_queued_jobs, self.metrics)
        self._encoding = EncodeCalls(settings, self._pool)
        self.at_once = {f"/{self.name}/Encode": SmallEncodeCalls(self._loaded, self._encoding)}
        self._in_pool = self._encoding.in_pool
        self._decoding = DecodeCalls(settings, self._encoding)
        waiting = settings.max_queued_jobs
        # A caller's own template may do whatever it likes with the time it has: no other conversation waits for it.
        self._renderer, self._caller_renderer = (
            ChatRenderer(slots, settings.chat_render_seconds, settings.max_input_bytes, niceness)
            for slots, niceness in (
                (CallerSlots(settings.chat_renderers, waiting, settings.chat_renderers + (waiting + 1) // 2), 0),
                (CallerSlots(settings.caller_template_renderers, waiting, settings.caller_template_queue), 10),
            )
        )

    async def start(self, lifecycle: Lifecycle) -> None:
        """Loads the tokenizers, and loads them again at each SIGHUP. Raises StartError."""
        self._lifecycle = lifecycle
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
        """Stops threads and processes."""
        with suppress(ValueError, RuntimeError):
            asyncio.get_running_loop().remove_signal_handler(signal.SIGHUP)
        for task in self._reloads:
            task.cancel()
        self._pool.close()
        await self._renderer.close()
        await self._caller_renderer.close()

    # --- about tokenizers

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
        begin_ids, end_ids = reasoning_ids(loaded.answer_format, loaded)
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
            front_ids=config.added()[0],
            back_ids=config.added()[1],
            adds_space_prefix=config.adds_space_prefix,
            special_tokens=[
                pb.SpecialToken(
                    id=token.id,
                    text=token.text,
                    type=pb.TokenType.ValueType(token.type),
                    lstrip=token.lstrip,
                    rstrip=token.rstrip,
                    single_word=token.single_word,
                    normalized=token.normalized,
                )
                for token in (tokenizer.table.specials if with_specials else ())
            ],
            source=config.source,
            has_chat_template=loaded.template is not None,
            max_input_bytes=self._settings.max_input_bytes,
            answer_format="" if loaded.answer_format is None else loaded.answer_format.name,
            reasoning_begin_ids=begin_ids,
            reasoning_end_ids=end_ids,
        )

    # --- text to ids, and ids to text; most answer with bytes, serialized where they were made

    async def Encode(self, request: pb.EncodeRequest, context: Context) -> Any:  # noqa: N802
        loaded = await self._loaded.get(request.tokenizer)
        if (little := self._encoding.encode_little(loaded, request)) is not None:
            answer, tokens = little
            tell(tokenizer=loaded.name, tokens=tokens)
            return answer
        read = partial(validation.encode_job, request, loaded.tokenizer, self._settings)
        job = await self._encoding.read([request.input], read)
        return await self._encoding.encode(loaded, job, request.include_offsets, request.include_pieces)

    async def BatchEncode(self, request: pb.BatchEncodeRequest, context: Context) -> Any:  # noqa: N802
        loaded = await self._loaded.get(request.tokenizer)
        ids_alone = not request.include_offsets and not request.include_pieces
        batch = await self._batch(request.inputs, loaded, as_texts=ids_alone)
        if isinstance(batch, validation.PlainTexts):
            return await self._encoding.encode_texts(loaded, batch)
        return await self._encoding.encode_batch(loaded, batch, request.include_offsets, request.include_pieces)

    async def CountTokens(  # noqa: N802
        self, request: pb.CountTokensRequest, context: Context
    ) -> pb.CountTokensResponse:
        loaded = await self._loaded.get(request.tokenizer)
        batch = await self._batch(request.inputs, loaded, as_texts=True)
        if isinstance(batch, validation.PlainTexts):
            counts = await self._encoding.count_texts(loaded, batch)
        else:
            counts = await self._encoding.count(loaded, batch)
        return pb.CountTokensResponse(counts=counts, fingerprint=loaded.tokenizer.fingerprint)

    async def _batch(
        self, inputs: Sequence[pb.EncodeInput], loaded: Loaded, as_texts: bool
    ) -> validation.PlainTexts | list[validation.EncodeJob]:
        """Returns the inputs; as texts, where all of them are plain and the tokenizer looks for no special tokens in
        those."""
        validation.check_batch(len(inputs), self._settings)
        as_texts = as_texts and loaded.tokenizer.takes_text_whole
        read = partial(validation.read_batch, inputs, loaded.tokenizer, self._settings, as_texts)
        return await self._encoding.read(inputs, read)

    async def Decode(self, request: pb.DecodeRequest, context: Context) -> Any:  # noqa: N802
        return await self._decoding.decode(await self._loaded.get(request.tokenizer), request)

    async def BatchDecode(self, request: pb.BatchDecodeRequest, context: Context) -> Any:  # noqa: N802
        return await self._decoding.decode_batch(await self._loaded.get(request.tokenizer), request)

    async def DecodeStream(  # noqa: N802
        self, request_iterator: AsyncIterator[pb.DecodeStreamRequest], context: Context
    ) -> AsyncIterator[pb.DecodeStreamResponse]:
        call = DecodeStreamCall(self._loaded.get, self._settings, self.metrics, self._draining)
        try:
            async for request in request_iterator:
                yield await call.handle(request)
        finally:
            call.close()

    def _draining(self) -> ServiceError | None:
        """Returns the refusal of new streams while the server drains: a call that carries many answers may live for
        long, so new ones go to another server."""
        if self._lifecycle is None or self._lifecycle.accepting:
            return None
        return unavailable("this server is draining and opens no new stream", reason="DRAINING")

    # --- conversations

    async def EncodeChat(self, request: pb.EncodeChatRequest, context: Context) -> Any:  # noqa: N802
        loaded = await self._loaded.get(request.tokenizer)
        question = chat_question(request, loaded.tokenizer, loaded.template, self._settings)
        renderer = self._caller_renderer if request.chat_template else self._renderer
        try:
            runs = await renderer.render(question, caller_var.get())
        except JsonTextError as error:
            raise invalid_argument([FieldViolation(*violation) for violation in error.violations]) from None
        except RenderError as error:
            field = "chat_template" if request.chat_template else "messages"
            raise invalid_argument([FieldViolation(field, str(error))]) from None
        except NoSlotError as error:
            self.metrics.chat_refused.inc()
            raise resource_exhausted(str(error), reason="QUEUE_FULL", retry_after=0.5) from None
        length = sum(len(part) for _, part in runs)

        def work() -> bytes:
            policy = CHAT_POLICIES[request.special_tokens]
            encoding = encode_runs(loaded.tokenizer, runs, request.include_content_mask, policy)
            text = "".join(part for _, part in runs)
            loaded.metrics.encoded.add_input(len(text.encode()), len(encoding.id_array))
            tell(tokenizer=loaded.name, tokens=len(encoding.id_array))
            response = chat_response(
                encoding.id_array,
                text if request.include_rendered_text else "",
                encoding.borders,
                loaded.tokenizer.fingerprint,
                self._encoding.pieces(loaded, encoding.id_array, CHAT_PIECES) if request.include_pieces else b"",
            )
            if request.HasField("answer"):
                guide = answer_guide(request, loaded, text)
                response += pb.EncodeChatResponse(answer=guide).SerializeToString()
            return response

        return work() if self._encoding.is_little(length, len(runs)) else (await self._in_pool([work]))[0]

    # --- whole vocabularies

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
