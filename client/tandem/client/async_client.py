"""The asynchronous client: what the SDK does, on the caller's event loop."""

from __future__ import annotations

import asyncio
import uuid
import weakref
from collections.abc import Awaitable, Callable, Sequence
from types import TracebackType
from typing import Any, Self, TypeVar, Unpack

import grpc.aio
from prometheus_client import CollectorRegistry

from tandem.client import forks
from tandem.client.async_stream import AsyncStream, cancelled_by_caller
from tandem.client.conversations import chat_request, conversation_violations
from tandem.client.deadline import Deadline
from tandem.client.discovery import LOOKUP_SECONDS, WorkersName
from tandem.client.errors import (
    ClientClosedError,
    ConfigurationError,
    FieldViolation,
    StatusError,
    UnavailableError,
    invalid_argument,
)
from tandem.client.metrics import metrics_in
from tandem.client.operators import AsyncOperators
from tandem.client.params import (
    CallOptions,
    CountOptions,
    DecodeOptions,
    EncodeChatOptions,
    EncodeOptions,
    GenerateOptions,
)
from tandem.client.pipeline import Pipeline
from tandem.client.plan import GenerationPlan, make_plan
from tandem.client.prompts import checked_encode_input, ids_of
from tandem.client.rpc import CallContext
from tandem.client.settings import ConnectionSettings, Credentials, FailoverSettings, open_channel
from tandem.client.signatures import spell_out_keywords
from tandem.client.text_calls import (
    check_call,
    count_messages,
    decode_id_lists,
    decode_ids,
    decode_options,
    encode_message,
    encode_messages,
)
from tandem.client.texts import TextService
from tandem.client.types import (
    ChatEncoding,
    Conversation,
    Encoding,
    GenerationResult,
    Message,
    ModelInfo,
    Prompt,
    TextInput,
    TokenizerInfo,
    Vocabulary,
)
from tandem.client.validation import check_timeout
from tandem.client.worker import Worker
from tandem.client.workers import WorkerPool
from tandem.tokenizer.v1 import tokenizer_pb2_grpc

T = TypeVar("T")

DEFAULT_TIMEOUT_SECONDS = 600.0


@spell_out_keywords
class AsyncClient(AsyncOperators):
    """Text in, text out, through a tokenizer service and one or several workers.

        async with AsyncClient(tokenizer="localhost:50051", worker="localhost:50052") as client:
            result = await client.generate("Once upon a time", max_tokens=64, temperature=0)

    Addresses are gRPC targets ("host:port", "unix:/path"); one of the two may be left out by who does not need it. The
    worker "dns:///name:port" is every address that the name has, also those that it gets later. With several workers,
    each prompt goes to the one that has most likely cached its beginning, among those whose health is SERVING. An
    object belongs to one event loop; any number of calls may run at once. `timeout` is the budget in seconds of a call
    that names none; None means no limit.
    """

    def __init__(
        self,
        tokenizer: str | None = None,
        worker: str | Sequence[str] | None = None,
        *,
        timeout: float | None = DEFAULT_TIMEOUT_SECONDS,
        connection: ConnectionSettings | None = None,
        credentials: Credentials | None = None,
        failover: FailoverSettings | None = None,
        registry: CollectorRegistry | None = None,
    ) -> None:
        addresses = [worker] if isinstance(worker, str) else list(worker or ())
        if tokenizer is None and not addresses:
            raise ConfigurationError("a client needs the address of a tokenizer, of a worker, or of both")
        for address in (*addresses, *([] if tokenizer is None else [tokenizer])):
            if not isinstance(address, str) or not address.strip():
                raise ConfigurationError(f"an address must be a string such as 'localhost:50051', not {address!r}")
        for address in addresses:
            WorkersName.parse(address)  # or say what is wrong with it
        if len(set(addresses)) != len(addresses):
            raise ConfigurationError("each worker address may be given only once")
        if violations := check_timeout(timeout):
            raise invalid_argument(violations)
        self._tokenizer_address = tokenizer
        self._worker_addresses = addresses
        self._timeout = timeout
        self._connection = connection or ConnectionSettings()
        self._credentials = credentials
        self._failover = failover or FailoverSettings()
        self._metrics = metrics_in(registry)
        self._closed = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._tokenizer_channel: grpc.aio.Channel | None = None
        self._text_service: TextService | None = None
        self._pool: WorkerPool | None = None
        self._answers: weakref.WeakSet[Pipeline] = weakref.WeakSet()

    async def __aenter__(self) -> Self:
        self._connect()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Ends what still runs and closes the connections. Closing twice does nothing; calls after it raise."""
        if self._closed or forks.broken():
            return
        self._closed = True
        answers = list(self._answers)
        for answer in answers:
            answer.cancel(ClientClosedError("the client was closed during the call"))
        for answer in answers:
            await answer.closed()
        if self._pool is not None:
            await self._pool.close()
        if self._text_service is not None:
            await self._text_service.close()
        if self._tokenizer_channel is not None:
            await self._tokenizer_channel.close()
        self._pool = self._text_service = self._tokenizer_channel = None  # see forks.py
        forks.closed(self)

    # --- text to ids and back

    async def encode(self, text: TextInput, **options: Unpack[EncodeOptions]) -> Encoding:
        """The token ids of a text. Special tokens in a str are plain characters unless `special_tokens` says else."""
        message = encode_message(text, options)
        return await self._texts().encode(
            options.get("tokenizer", ""),
            message,
            self._context(options),
            offsets=options.get("offsets", False),
            pieces=options.get("pieces", False),
        )

    async def encode_batch(self, texts: Sequence[TextInput], **options: Unpack[EncodeOptions]) -> list[Encoding]:
        """As `encode`, for many texts, in order."""
        messages = encode_messages(texts, options)
        return await self._texts().encode_batch(
            options.get("tokenizer", ""),
            messages,
            self._context(options),
            offsets=options.get("offsets", False),
            pieces=options.get("pieces", False),
        )

    async def encode_chat(
        self, messages: Sequence[Message] | Conversation, **options: Unpack[EncodeChatOptions]
    ) -> ChatEncoding:
        """The token ids of a conversation, as the model's chat template has it. They may be used as a prompt."""
        conversation = _conversation(messages)
        check_call(options, EncodeChatOptions.__optional_keys__)
        if violations := conversation_violations(conversation):
            raise invalid_argument(violations)
        request = chat_request(
            conversation,
            options.get("tokenizer", ""),
            rendered_text=options.get("rendered_text", False),
            content_ranges=options.get("content_ranges", False),
            pieces=options.get("pieces", False),
        )
        return await self._texts().encode_chat(request, self._context(options))

    async def count_tokens(self, text: TextInput, **options: Unpack[CountOptions]) -> int:
        """How many ids `encode` would give."""
        return (await self.count_tokens_batch([text], **options))[0]

    async def count_tokens_batch(self, texts: Sequence[TextInput], **options: Unpack[CountOptions]) -> list[int]:
        """As `count_tokens`, for many texts, in order."""
        messages = count_messages(texts, options)
        return await self._texts().count(options.get("tokenizer", ""), messages, self._context(options))

    async def decode(self, ids: Sequence[int] | Encoding, **options: Unpack[DecodeOptions]) -> str:
        """The text of token ids; bytes that are not valid UTF-8 become U+FFFD (see `decode_bytes`)."""
        plain, how = decode_ids(ids), decode_options(options)
        decoded = await self._texts().decode(options.get("tokenizer", ""), plain, how, self._context(options))
        return decoded.text

    async def decode_bytes(self, ids: Sequence[int] | Encoding, **options: Unpack[DecodeOptions]) -> bytes:
        """As `decode`: the exact bytes, which may be no valid UTF-8."""
        plain, how = decode_ids(ids), decode_options(options)
        decoded = await self._texts().decode(options.get("tokenizer", ""), plain, how, self._context(options))
        return decoded.raw or decoded.text.encode()

    async def decode_batch(
        self, id_lists: Sequence[Sequence[int] | Encoding], **options: Unpack[DecodeOptions]
    ) -> list[str]:
        """As `decode`, for many lists, in order."""
        plain, how = decode_id_lists(id_lists), decode_options(options)
        return await self._texts().decode_batch(options.get("tokenizer", ""), plain, how, self._context(options))

    async def list_tokenizers(self, **options: Unpack[CallOptions]) -> list[TokenizerInfo]:
        """The tokenizers that are loaded, the default first."""
        check_call(options)
        return await self._texts().tokenizers(self._context(options))

    async def get_tokenizer(self, name: str = "", **options: Unpack[CallOptions]) -> TokenizerInfo:
        """What one tokenizer is, with its special tokens; "": the default."""
        check_call(options)
        return await self._texts().tokenizer(name, self._context(options))

    async def get_vocabulary(self, name: str = "", **options: Unpack[CallOptions]) -> Vocabulary:
        """The bytes, type and score of every id; "": of the default tokenizer."""
        check_call(options)
        return await self._texts().vocabulary(name, self._context(options))

    # --- generation

    def stream(self, prompt: Prompt, **options: Unpack[GenerateOptions]) -> AsyncStream:
        """An answer as it is made. Arguments are checked here; calls start when the stream is entered or first read."""
        return AsyncStream(self._plan(prompt, options), lambda plan: self._answer(plan, deliver_chunks=True))

    async def generate(self, prompt: Prompt, **options: Unpack[GenerateOptions]) -> GenerationResult:
        """A whole answer. Cancelling the task ends it at both services."""
        return await self._whole_answer(self._plan(prompt, options))

    def stream_chat(
        self, messages: Sequence[Message] | Conversation, **options: Unpack[GenerateOptions]
    ) -> AsyncStream:
        """As `stream`: the answer to a conversation. A `Conversation` also names tools and templates."""
        plan = self._plan(_conversation(messages), options, "")
        return AsyncStream(plan, lambda plan: self._answer(plan, deliver_chunks=True))

    async def chat(
        self, messages: Sequence[Message] | Conversation, **options: Unpack[GenerateOptions]
    ) -> GenerationResult:
        """As `generate`: the answer to a conversation."""
        return await self._whole_answer(self._plan(_conversation(messages), options, ""))

    async def generate_batch(
        self, prompts: Sequence[Prompt], *, concurrency: int = 64, **options: Unpack[GenerateOptions]
    ) -> list[GenerationResult]:
        """Answers to many prompts, in order, at most `concurrency` at a time; the timeout is for all together.

        The first error cancels the others and is raised. Request ids are the given (or a random) one and "-0", "-1"...
        """
        if isinstance(prompts, str | Encoding) or not isinstance(prompts, Sequence):
            raise invalid_argument([FieldViolation("prompts", "must be a list of prompts")])
        if isinstance(concurrency, bool) or not isinstance(concurrency, int) or concurrency < 1:
            raise invalid_argument([FieldViolation("concurrency", f"must be an integer >= 1, not {concurrency!r}")])
        name = options.get("request_id") or uuid.uuid4().hex
        plans = [
            self._plan(prompt, {**options, "request_id": f"{name}-{index}"}, f"prompts[{index}]")
            for index, prompt in enumerate(prompts)
        ]
        if not plans:
            return []
        deadline = Deadline.after(plans[0].timeout)
        encodings = await self._encode_prompts(plans, deadline)
        gate = asyncio.Semaphore(concurrency)

        async def one(plan: GenerationPlan, encoding: Encoding | None) -> GenerationResult:
            async with gate:
                return await self._whole_answer(plan, encoding, deadline)

        tasks = [asyncio.create_task(one(plan, encoding)) for plan, encoding in zip(plans, encodings, strict=True)]
        try:
            return await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)

    async def get_models(self, **options: Unpack[CallOptions]) -> dict[str, ModelInfo | None]:
        """What each worker serves, by address; None for one that does not tell."""
        check_call(options)
        context = self._context(options)
        return await self._of_each_worker(lambda worker: worker.model(context.timeout("worker")), context)

    async def _of_each_worker(self, ask: Callable[[Worker], Awaitable[T]], context: CallContext) -> dict[str, T]:
        """Answers by address. All workers are asked; then the first error is raised, with the address."""
        _, pool = self._connect()
        if pool is None:
            raise _no_worker()
        workers = await pool.known(context.deadline.cap(LOOKUP_SECONDS))
        self._check_open()
        context.timeout("worker")
        if not workers:
            raise UnavailableError(f"there is no worker: {pool.states()}", service="worker", reason="NO_WORKER")
        answers = await asyncio.gather(*(ask(worker) for worker in workers), return_exceptions=True)
        for worker, answer in zip(workers, answers, strict=True):
            if isinstance(answer, StatusError):
                answer.message = f"{worker.address}: {answer.message}"
            if isinstance(answer, BaseException):
                raise answer
        return {worker.address: answer for worker, answer in zip(workers, answers, strict=True)}  # type: ignore[misc]

    # --- inside

    def _plan(self, prompt: Prompt, options: GenerateOptions, field: str = "prompt") -> GenerationPlan:
        """Checked arguments, and whether this client can do it."""
        self._check_open()
        plan = make_plan(prompt, options, self._timeout, field)
        if not self._worker_addresses:
            raise _no_worker()
        has_text = plan.detokenize or plan.breaker_texts or ids_of(prompt) is None
        if has_text and self._tokenizer_address is None:
            raise ConfigurationError(
                "text needs a tokenizer: build the client with tokenizer='host:port', "
                "or give the prompt as ids and detokenize=False"
            )
        return plan

    def _answer(
        self,
        plan: GenerationPlan,
        *,
        deliver_chunks: bool,
        encoding: Encoding | None = None,
        deadline: Deadline | None = None,
    ) -> Pipeline:
        """Starts an answer."""
        texts, pool = self._connect()
        assert pool is not None, "checked by _plan"
        answer = Pipeline(
            plan,
            encoding=encoding,
            texts=texts,
            pool=pool,
            context=self._generate_context(plan, deadline),
            failover=self._failover,
            metrics=self._metrics,
            deliver_chunks=deliver_chunks,
        )
        self._answers.add(answer)
        return answer

    async def _whole_answer(
        self, plan: GenerationPlan, encoding: Encoding | None = None, deadline: Deadline | None = None
    ) -> GenerationResult:
        answer = self._answer(plan, deliver_chunks=False, encoding=encoding, deadline=deadline)
        try:
            return await answer.finish()
        finally:
            answer.cancel(cancelled_by_caller(plan))
            await answer.closed()

    async def _encode_prompts(self, plans: list[GenerationPlan], deadline: Deadline) -> list[Encoding | None]:
        """The encodings of those prompts that are text, made together. Conversations are encoded one by one later."""
        encodings: list[Encoding | None] = [None] * len(plans)
        places = [
            index
            for index, plan in enumerate(plans)
            if ids_of(plan.prompt) is None and not isinstance(plan.prompt, Conversation)
        ]
        if not places:
            return encodings
        first = plans[places[0]]
        messages = [
            checked_encode_input(
                plans[index].prompt,  # type: ignore[arg-type]  # not ids, so text
                first.special_tokens,
                add_special=first.add_special,
                truncate_to=None,
                field=f"prompts[{index}]",
            )
            for index in places
        ]
        context = self._generate_context(first, deadline)
        made = await self._texts().encode_batch(first.tokenizer, messages, context)
        for index, encoding in zip(places, made, strict=True):
            encodings[index] = encoding
        return encodings

    def _context(self, options: CallOptions | Any) -> CallContext:
        return CallContext(
            deadline=Deadline.after(options.get("timeout", self._timeout)),
            closed=lambda: self._closed,
            request_id=options.get("request_id") or uuid.uuid4().hex,
            credentials=self._credentials,
            extra=options.get("metadata", {}),
        )

    def _generate_context(self, plan: GenerationPlan, deadline: Deadline | None) -> CallContext:
        return CallContext(
            deadline=deadline or Deadline.after(plan.timeout),
            closed=lambda: self._closed,
            request_id=plan.request_id,
            credentials=self._credentials,
            extra=plan.metadata,
        )

    def _texts(self) -> TextService:
        texts, _ = self._connect()
        if texts is None:
            raise ConfigurationError("this call needs a tokenizer: build the client with tokenizer='host:port'")
        return texts

    def _connect(self) -> tuple[TextService | None, WorkerPool | None]:
        """The services. Channels are made at first use, because they belong to the event loop that then runs."""
        self._check_open()
        forks.check()
        loop = asyncio.get_running_loop()
        if self._loop is None:
            forks.opened(self)
            if self._tokenizer_address is not None:
                self._tokenizer_channel = open_channel(self._tokenizer_address, self._connection, self._credentials)
                stub = tokenizer_pb2_grpc.TokenizerServiceStub(self._tokenizer_channel)
                self._text_service = TextService(stub, self._failover)
            if self._worker_addresses:
                self._pool = WorkerPool(self._worker_addresses, self._connection, self._credentials, self._metrics)
            self._loop = loop
        elif self._loop is not loop:
            raise ConfigurationError(
                "an AsyncClient belongs to the event loop that used it first; make one for each loop"
            )
        return self._text_service, self._pool

    def _check_open(self) -> None:
        if self._closed:
            raise ClientClosedError("the client is closed")


def _conversation(messages: Sequence[Message] | Conversation) -> Conversation:
    return messages if isinstance(messages, Conversation) else Conversation(messages)


def _no_worker() -> ConfigurationError:
    return ConfigurationError("this call needs a worker: build the client with worker='host:port'")
