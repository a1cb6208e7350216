"""The asynchronous client: what the SDK does, on the caller's event loop."""

from __future__ import annotations

import asyncio
import copy
import dataclasses
import uuid
import weakref
from collections.abc import Awaitable, Callable, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar, Unpack, cast

import grpc.aio
from prometheus_client import CollectorRegistry

from tandem.client import forks
from tandem.client.addresses import Address, tokenizer_address, worker_addresses
from tandem.client.async_stream import AsyncStream, cancelled_by_caller
from tandem.client.batches import AsyncBatches
from tandem.client.conversations import chat_request, conversation_violations
from tandem.client.deadline import Deadline
from tandem.client.discovery import LOOKUP_SECONDS
from tandem.client.environment import (
    TOKENIZER_VARIABLE,
    WORKER_VARIABLE,
    addresses_in_environment,
    credentials_in_environment,
)
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
    check_name,
    count_messages,
    decode_id_lists,
    decode_ids,
    decode_options,
    encode_message,
    encode_messages,
)
from tandem.client.texts import TextService
from tandem.client.tools import run_tool, tool_name
from tandem.client.types import (
    ChatEncoding,
    ChatMessage,
    Conversation,
    EncodePairOptions,
    EncodePairsOptions,
    Encoding,
    GenerationResult,
    Message,
    ModelInfo,
    Prompt,
    TextInput,
    TokenizerInfo,
    ToolRun,
    Vocabulary,
)
from tandem.client.validation import check_timeout
from tandem.client.worker import Worker
from tandem.client.workers import WorkerPool
from tandem.tokenizer.v1 import tokenizer_pb2_grpc

if TYPE_CHECKING:
    from opentelemetry.trace import Tracer

T = TypeVar("T")

DEFAULT_TIMEOUT_SECONDS = 600.0


@spell_out_keywords
class AsyncClient(AsyncOperators, AsyncBatches):
    """Text in, text out, through a tokenizer service and one or several workers.

        async with AsyncClient(tokenizer="localhost:50051", worker="localhost:50052") as client:
            result = await client.generate("Once upon a time", max_tokens=64, temperature=0)

    Addresses are "host:port", a port number of this machine, or gRPC targets ("unix:/path"); commas separate several
    workers. Without any, they come from TANDEM_TOKENIZER_ADDRESS and TANDEM_WORKER_ADDRESS, and credentials from
    TANDEM_CA_FILE, TANDEM_TOKEN_FILE and the other variables of the command line. Leave out the worker to only encode
    and decode, or the tokenizer to generate from ids with `detokenize=False`. The worker "dns:///name:port" stands for
    every address that the name resolves to, now and later. With several workers, each prompt goes to the one that has
    most likely cached its beginning, among those whose health is SERVING.

    `timeout` is the budget in seconds of a call that names none; None means no limit. Any number of calls may run at
    once, all on the event loop that the client was first used on. With a `tracer` of OpenTelemetry each generation is
    a span, and the services add theirs to its trace. Cancelling the task of a call ends it at both
    services.

    Every call raises InvalidArgumentError for wrong arguments before anything is sent, and names all of them. It raises
    DeadlineExceededError when its timeout is over, UnavailableError when a service is away for longer than `failover`
    allows, ResourceExhaustedError when a service's queue is full, ConfigurationError when the client lacks the address
    that the call needs, and ClientClosedError after `close`.
    """

    def __init__(
        self,
        tokenizer: Address | None = None,
        worker: Address | Sequence[Address] | None = None,
        *,
        timeout: float | None = DEFAULT_TIMEOUT_SECONDS,
        connection: ConnectionSettings | None = None,
        credentials: Credentials | None = None,
        failover: FailoverSettings | None = None,
        registry: CollectorRegistry | None = None,
        tracer: Tracer | None = None,
    ) -> None:
        if tokenizer is None and worker is None:
            tokenizer, worker = addresses_in_environment()
            credentials = credentials or credentials_in_environment()
        addresses = [] if worker is None else worker_addresses(worker)
        if tokenizer is None and not addresses:
            raise ConfigurationError(
                "a client needs the address of a tokenizer, of a worker, or of both, as arguments or in "
                f"{TOKENIZER_VARIABLE} and {WORKER_VARIABLE}"
            )
        if violations := check_timeout(timeout):
            raise invalid_argument(violations)
        self._tokenizer_address = None if tokenizer is None else tokenizer_address(tokenizer)
        self._worker_addresses = addresses
        self._timeout = timeout
        self._connection = connection or ConnectionSettings()
        self._credentials = credentials
        self._failover = failover or FailoverSettings()
        self._metrics = metrics_in(registry)
        self._tracer = tracer
        self._closed = False
        self._defaults: GenerateOptions = {}
        self._root: Self | None = None  # whose connections these are, where they are not its own
        self._loop: asyncio.AbstractEventLoop | None = None
        self._tokenizer_channel: grpc.aio.Channel | None = None
        self._text_service: TextService | None = None
        self._pool: WorkerPool | None = None
        self._answers: weakref.WeakSet[Pipeline] = weakref.WeakSet()
        self._batch_tasks: set[asyncio.Task[None]] = set()

    def with_options(self, **options: Unpack[GenerateOptions]) -> Self:
        """Returns a client over the same connections whose generations have these options where a call names no others;
        its `timeout` and `metadata` are those of all its calls. Closing one of the two closes both.

            >>> steady = client.with_options(temperature=0, max_tokens=8, timeout=60)
            >>> (await steady.generate("Once upon a time")).usage.completion_tokens
            8

        Raises InvalidArgumentError for wrong options.
        """
        merged = cast(GenerateOptions, {**self._defaults, **options})
        timeout = merged.pop("timeout", self._timeout)
        make_plan("", merged, timeout)
        derived = copy.copy(self)
        derived._defaults, derived._timeout, derived._root = merged, timeout, self._root or self
        return derived

    async def __aenter__(self) -> Self:
        self._connect()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Cancels the calls that still run and closes the connections. Closing twice does nothing; later calls raise
        ClientClosedError."""
        if self._root is not None:
            await self._root.close()
            return
        if self._closed or forks.broken():
            return
        self._check_loop()
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

    async def encode(self, text: TextInput, **options: Unpack[EncodePairOptions]) -> Encoding:
        """Returns the token ids of a text as an `Encoding`; BOS and EOS are added as the model expects.

        Control tokens that are spelled in a str are ordinary characters, so a user's text cannot inject one. Parse them
        (`special_tokens="parse"`) only in text that you trust; a list of `Segment` has a policy for each part. With
        `add_special=False` no BOS and EOS are added. `offsets` and `pieces` fill the lists of these names, and
        `truncate_to` cuts the end. With `pair` two texts are encoded as models of pairs (rerankers) expect them.

            >>> encoding = await client.encode("hello world", add_special=False, pieces=True)
            >>> b"".join(encoding.pieces)
            b'hello world'

        Raises NotFoundError for a tokenizer that is not served, and InvalidArgumentError for a control token in the
        text when `special_tokens="reject"`.
        """
        message = encode_message(text, options)
        return await self._texts().encode(
            options.get("tokenizer", ""),
            message,
            self._context(options),
            offsets=options.get("offsets", False),
            pieces=options.get("pieces", False),
        )

    async def encode_batch(self, texts: Sequence[TextInput], **options: Unpack[EncodePairsOptions]) -> list[Encoding]:
        """Returns the `Encoding` of each text, in order; the keywords are those of `encode`, but for `pairs`: a second
        text for each of them."""
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
        """Returns the token ids of a conversation, as the model's chat template renders it. They can be used as a
        prompt. Raises FailedPreconditionError when the model has no chat template."""
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
        return (await self._texts().encode_chat(request, self._context(options)))[0]

    async def count_tokens(self, text: TextInput, **options: Unpack[CountOptions]) -> int:
        """Returns the number of ids that `encode` returns for the text, BOS and EOS included.

            >>> encoding = await client.encode("hello world")
            >>> await client.count_tokens("hello world") == len(encoding)
            True

        Only the number is sent back, so it is faster than `encode` for long texts.
        """
        return (await self.count_tokens_batch([text], **options))[0]

    async def count_tokens_batch(self, texts: Sequence[TextInput], **options: Unpack[CountOptions]) -> list[int]:
        """Returns the number of ids of each text, in order; the keywords are those of `count_tokens`."""
        messages = count_messages(texts, options)
        return await self._texts().count(options.get("tokenizer", ""), messages, self._context(options))

    async def decode(self, ids: Sequence[int] | Encoding, **options: Unpack[DecodeOptions]) -> str:
        """Returns the text of token ids. Bytes that are not valid UTF-8 become U+FFFD; `decode_bytes` keeps them.

        Control tokens are dropped unless `unparse_special=True`.

            >>> await client.decode(await client.encode("hello world"))
            'hello world'

        Raises InvalidArgumentError for an id that is not in the vocabulary.
        """
        plain, how = decode_ids(ids), decode_options(options)
        decoded = await self._texts().decode(options.get("tokenizer", ""), plain, how, self._context(options))
        return decoded.text

    async def decode_bytes(self, ids: Sequence[int] | Encoding, **options: Unpack[DecodeOptions]) -> bytes:
        """Returns the exact bytes of token ids, which may not be valid UTF-8; the keywords are those of `decode`."""
        plain, how = decode_ids(ids), decode_options(options)
        decoded = await self._texts().decode(options.get("tokenizer", ""), plain, how, self._context(options))
        return decoded.raw or decoded.text.encode()

    async def decode_batch(
        self, id_lists: Sequence[Sequence[int] | Encoding], **options: Unpack[DecodeOptions]
    ) -> list[str]:
        """Returns the text of each list of ids, in order; the keywords are those of `decode`."""
        plain, how = decode_id_lists(id_lists), decode_options(options)
        return await self._texts().decode_batch(options.get("tokenizer", ""), plain, how, self._context(options))

    async def list_tokenizers(self, **options: Unpack[CallOptions]) -> list[TokenizerInfo]:
        """Returns the tokenizers that are loaded, the default first, without their special tokens."""
        check_call(options)
        return await self._texts().tokenizers(self._context(options))

    async def get_tokenizer(self, name: str = "", **options: Unpack[CallOptions]) -> TokenizerInfo:
        """Describes one tokenizer with its special tokens; "" names the default. Raises NotFoundError."""
        check_call(options)
        check_name(name)
        return await self._texts().tokenizer(name, self._context(options))

    async def get_vocabulary(self, name: str = "", **options: Unpack[CallOptions]) -> Vocabulary:
        """Returns the bytes, type and score of every id of a tokenizer; "" names the default. Raises NotFoundError."""
        check_call(options)
        check_name(name)
        return await self._texts().vocabulary(name, self._context(options))

    # --- generation

    def stream(self, prompt: Prompt, **options: Unpack[GenerateOptions]) -> AsyncStream:
        """Returns a stream that yields the continuation of a prompt in chunks, as they are made.

            >>> async with client.stream("Once upon a time", max_tokens=8) as stream:
            ...     text = "".join([chunk.text async for chunk in stream])
            >>> text == stream.result.text
            True

        The keywords are those of `generate`. They are checked here, and wrong ones raise InvalidArgumentError at once.
        The calls start when the stream is entered or first read; later errors are raised by the iteration, after all
        chunks that came before them.
        """
        return AsyncStream(self._plan(prompt, options), lambda plan: self._answer(plan, deliver_chunks=True))

    async def generate(self, prompt: Prompt, **options: Unpack[GenerateOptions]) -> GenerationResult:
        """Returns the continuation of a prompt when it is complete, with its ids, usage and timings.

            >>> result = await client.generate("Once upon a time", max_tokens=8, temperature=0)
            >>> result.usage.completion_tokens, result.finish_reason.name
            (8, 'MAX_TOKENS')

        Without `max_tokens` generation goes on until the model ends it or its context is full. Sampling parameters that
        are not given have the model's defaults. When a worker goes away in the middle, another one continues
        (`FailoverSettings`).

        Raises NotFoundError for a model that is not served, and UnimplementedError for a parameter that the worker does
        not support.
        """
        return await self._whole_answer(self._plan(prompt, options))

    def stream_chat(
        self, messages: Sequence[Message] | Conversation, **options: Unpack[GenerateOptions]
    ) -> AsyncStream:
        """Returns a stream that yields the answer to a conversation in chunks; it is used as that of `stream`. A
        `Conversation` also holds tools and a chat template."""
        plan = self._plan(_conversation(messages), options, "")
        return AsyncStream(plan, lambda plan: self._answer(plan, deliver_chunks=True))

    async def chat(
        self, messages: Sequence[Message] | Conversation, **options: Unpack[GenerateOptions]
    ) -> GenerationResult:
        """Returns the answer to a conversation when it is complete; the keywords are those of `generate`.

            >>> result = await client.chat([{"role": "user", "content": "Tell me a story."}], max_tokens=8)
            >>> result.usage.completion_tokens
            8

        A `Conversation` also holds tools and a chat template. Raises FailedPreconditionError when the model has no chat
        template.
        """
        return await self._whole_answer(self._plan(_conversation(messages), options, ""))

    async def run_tools(
        self,
        messages: Sequence[Message] | Conversation,
        functions: Sequence[Callable[..., Any]],
        *,
        max_rounds: int = 8,
        **options: Unpack[GenerateOptions],
    ) -> ToolRun:
        """Holds a conversation in which the model calls functions of Python, until it answers without calls or
        `max_rounds` answers were made; returns the last answer and all messages.

        The functions' schemas are made from their signatures and docstrings. Each runs in a thread, or awaited where
        it is a coroutine function; what one raises is told to the model. A `tool_choice` that forces a call is for the
        first answer. The other keywords are those of `generate`;
        the timeout is for each answer.
        """
        if max_rounds < 1:
            raise invalid_argument([FieldViolation("max_rounds", f"must be at least 1, not {max_rounds}")])
        conversation = _conversation(messages)
        known = {tool_name(function): function for function in functions}
        if len(known) < len(functions):
            names = [tool_name(function) for function in functions]
            problem = f"has several functions named {next(name for name in names if names.count(name) > 1)!r}"
            raise invalid_argument([FieldViolation("functions", problem)])
        said = list(conversation.messages)
        request_id = options.get("request_id") or uuid.uuid4().hex
        options["tools"] = [*options.get("tools", ()), *functions]
        for number in range(max_rounds):
            options["request_id"] = f"{request_id}-{number}"
            result = await self.chat(dataclasses.replace(conversation, messages=list(said)), **options)
            said.append(result.message)
            if not result.tool_calls:
                break
            if options.get("tool_choice", "auto") not in ("auto", "none"):
                options["tool_choice"] = "auto"  # what had to be called is called
            given = await asyncio.gather(*(run_tool(known, call) for call in result.tool_calls))
            said += [
                ChatMessage("tool", text, name=call.name, tool_call_id=call.id)
                for call, text in zip(result.tool_calls, given, strict=True)
            ]
        return ToolRun(result, said)

    async def get_models(self, **options: Unpack[CallOptions]) -> dict[str, ModelInfo | None]:
        """Returns what each worker serves, by address; None for a worker that does not tell."""
        check_call(options)
        context = self._context(options)
        return await self._of_each_worker(lambda worker: worker.model(context.timeout("worker")), context)

    async def _of_each_worker(self, ask: Callable[[Worker], Awaitable[T]], context: CallContext) -> dict[str, T]:
        """Returns the answers of all workers by address. All are asked; then the first error is raised, with the
        address in its message."""
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
        """Checks the arguments, and that the client has the addresses that the call needs."""
        self._check_open()
        options = cast(GenerateOptions, {**self._defaults, **options})
        plan = make_plan(prompt, options, self._timeout, field)
        if not self._worker_addresses:
            raise _no_worker()
        has_text = plan.detokenize or plan.pieces or plan.breaker_texts or ids_of(prompt) is None
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
        """Starts a generation."""
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
            tracer=self._tracer,
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
        """Encodes the prompts that are text, in one batch. Conversations are encoded one by one later."""
        encodings: list[Encoding | None] = [None] * len(plans)
        places: dict[str, list[int]] = {}  # by tokenizer
        for index, plan in enumerate(plans):
            if ids_of(plan.prompt) is None and not isinstance(plan.prompt, Conversation):
                places.setdefault(plan.tokenizer, []).append(index)
        for tokenizer, indices in places.items():
            messages = [
                checked_encode_input(
                    plans[index].prompt,  # type: ignore[arg-type]  # not ids, so text
                    plans[index].special_tokens,
                    add_special=plans[index].add_special,
                    truncate_to=None,
                    field=f"prompts[{index}]",
                )
                for index in indices
            ]
            context = self._generate_context(plans[indices[0]], deadline)
            made = await self._texts().encode_batch(tokenizer, messages, context)
            for index, encoding in zip(indices, made, strict=True):
                encodings[index] = encoding
        return encodings

    def _context(self, options: CallOptions | Any) -> CallContext:
        return CallContext(
            deadline=Deadline.after(options.get("timeout", self._timeout)),
            closed=lambda: (self._root or self)._closed,
            request_id=options.get("request_id") or uuid.uuid4().hex,
            credentials=self._credentials,
            extra=options.get("metadata", self._defaults.get("metadata", {})),
        )

    def _generate_context(self, plan: GenerationPlan, deadline: Deadline | None) -> CallContext:
        return CallContext(
            deadline=deadline or Deadline.after(plan.timeout),
            closed=lambda: (self._root or self)._closed,
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
        """Returns the services. Channels are made at first use and belong to the event loop that runs then."""
        if self._root is not None:
            return self._root._connect()
        self._check_open()
        forks.check()
        loop = asyncio.get_running_loop()
        if self._loop is None:
            forks.opened(self)
            if self._tokenizer_address is not None:
                self._tokenizer_channel = open_channel(self._tokenizer_address, self._connection, self._credentials)
                stub = tokenizer_pb2_grpc.TokenizerServiceStub(self._tokenizer_channel)
                self._text_service = TextService(stub, self._failover, self._tracer)
            if self._worker_addresses:
                self._pool = WorkerPool(self._worker_addresses, self._connection, self._credentials, self._metrics)
            self._loop = loop
        self._check_loop()
        return self._text_service, self._pool

    def _check_loop(self) -> None:
        if self._loop is not None and self._loop is not asyncio.get_running_loop():
            raise ConfigurationError(
                "an AsyncClient belongs to the event loop that used it first; make one for each loop"
            )

    def _check_open(self) -> None:
        if (self._root or self)._closed:
            raise ClientClosedError("the client is closed")


def _conversation(messages: Sequence[Message] | Conversation) -> Conversation:
    return messages if isinstance(messages, Conversation) else Conversation(messages)


def _no_worker() -> ConfigurationError:
    return ConfigurationError("this call needs a worker: build the client with worker='host:port'")
