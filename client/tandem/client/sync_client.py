"""The synchronous client: the methods of the asynchronous one, which it runs on a background event loop."""

from __future__ import annotations

import atexit
import contextlib
import threading
import weakref
from collections.abc import Coroutine, Iterator, Sequence
from types import TracebackType
from typing import Any, Self, TypeVar, Unpack

from prometheus_client import CollectorRegistry

from tandem.client import forks
from tandem.client.async_client import DEFAULT_TIMEOUT_SECONDS, AsyncClient
from tandem.client.async_stream import AsyncStream
from tandem.client.background import BackgroundLoop, acquire, release, wait
from tandem.client.errors import ClientClosedError
from tandem.client.operators import Operators
from tandem.client.params import (
    CallOptions,
    CountOptions,
    DecodeOptions,
    EncodeChatOptions,
    EncodeOptions,
    GenerateOptions,
)
from tandem.client.settings import ConnectionSettings, Credentials, FailoverSettings
from tandem.client.signatures import spell_out_keywords
from tandem.client.types import (
    ChatEncoding,
    Chunk,
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

T = TypeVar("T")


class Stream:
    """An answer while it is made: a context manager and an iterator of `Chunk`.

        >>> with client.stream("Once upon a time", max_tokens=8) as stream:
        ...     text = "".join(chunk.text for chunk in stream)
        >>> stream.result.finish_reason.name
        'MAX_TOKENS'

    Leaving the block early, calling `cancel()` (from any thread) or dropping the object ends the calls at both
    services. Errors are raised by the iteration, after all chunks that came before them.
    """

    def __init__(self, client: Client, stream: AsyncStream) -> None:
        self._client = client
        self._stream = stream

    def __enter__(self) -> Self:
        self._client._run(self._stream.__aenter__())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def __iter__(self) -> Iterator[Chunk]:
        return self

    def __next__(self) -> Chunk:
        chunk = self._client._run(self._stream.next_chunk())
        if chunk is None:
            raise StopIteration
        return chunk

    def collect(self) -> GenerationResult:
        """Waits for the end and returns the result. Raises the error that ended the stream early."""
        return self._client._run(self._stream.collect())

    def cancel(self) -> None:
        """Ends the calls; the iteration raises CancelledError. After the end it does nothing."""
        self.close()

    def close(self) -> None:
        """Ends the calls as `cancel` does, and waits until all are closed."""
        if forks.broken():
            return
        with contextlib.suppress(ClientClosedError):  # a closed client has closed its streams
            self._client._run(self._stream.close())

    @property
    def request_id(self) -> str:
        """The id of this answer in the servers' logs."""
        return self._stream.request_id

    @property
    def text(self) -> str:
        """The text that has arrived so far; it stays readable after an error."""
        return self._stream.text

    @property
    def output_ids(self) -> list[int]:
        """The ids that have arrived so far and whose text is complete."""
        return self._stream.output_ids

    @property
    def result(self) -> GenerationResult:
        """The result, once the stream has ended. Raises ResultNotReadyError before that, or the error that ended the
        stream early."""
        return self._stream.result


@spell_out_keywords
class Client(Operators):
    """Text in, text out, through a tokenizer service and one or several workers.

        with Client(tokenizer="localhost:50051", worker="localhost:50052") as client:
            print(client.generate("Once upon a time", max_tokens=64, temperature=0).text)

    `AsyncClient` describes the arguments and the errors of all calls. A client may be used from any number of threads
    at once.
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
        self._async: AsyncClient = AsyncClient(
            tokenizer,
            worker,
            timeout=timeout,
            connection=connection,
            credentials=credentials,
            failover=failover,
            registry=registry,
        )
        self._lock = threading.Lock()
        self._loop: BackgroundLoop | None = None
        self._closed = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Cancels the calls that still run, in every thread, and closes the connections. Closing twice does nothing;
        later calls raise ClientClosedError."""
        if forks.broken():
            return
        with self._lock:
            if self._closed:
                return
            self._closed = True
        if self._loop is not None:
            try:
                wait(self._loop.submit(self._async.close()))
            finally:
                release(self._loop)

    # --- text to ids and back

    def encode(self, text: TextInput, **options: Unpack[EncodeOptions]) -> Encoding:
        """Returns the token ids of a text as an `Encoding`; BOS and EOS are added as the model expects.

        Control tokens that are spelled in a str are ordinary characters, so a user's text cannot inject one. Parse them
        (`special_tokens="parse"`) only in text that you trust; a list of `Segment` has a policy for each part. With
        `add_special=False` no BOS and EOS are added. `offsets` and `pieces` fill the lists of these names, and
        `truncate_to` cuts the end.

            >>> encoding = client.encode("hello world", add_special=False, pieces=True)
            >>> b"".join(encoding.pieces)
            b'hello world'

        Raises NotFoundError for a tokenizer that is not served, and InvalidArgumentError for a control token in the
        text when `special_tokens="reject"`.
        """
        return self._run(self._async.encode(text, **options))

    def encode_batch(self, texts: Sequence[TextInput], **options: Unpack[EncodeOptions]) -> list[Encoding]:
        """Returns the `Encoding` of each text, in order; the keywords are those of `encode`."""
        return self._run(self._async.encode_batch(texts, **options))

    def encode_chat(
        self, messages: Sequence[Message] | Conversation, **options: Unpack[EncodeChatOptions]
    ) -> ChatEncoding:
        """Returns the token ids of a conversation, as the model's chat template renders it. They can be used as a
        prompt. Raises FailedPreconditionError when the model has no chat template."""
        return self._run(self._async.encode_chat(messages, **options))

    def count_tokens(self, text: TextInput, **options: Unpack[CountOptions]) -> int:
        """Returns the number of ids that `encode` returns for the text, BOS and EOS included.

            >>> encoding = client.encode("hello world")
            >>> client.count_tokens("hello world") == len(encoding)
            True

        Only the number is sent back, so it is faster than `encode` for long texts.
        """
        return self._run(self._async.count_tokens(text, **options))

    def count_tokens_batch(self, texts: Sequence[TextInput], **options: Unpack[CountOptions]) -> list[int]:
        """Returns the number of ids of each text, in order; the keywords are those of `count_tokens`."""
        return self._run(self._async.count_tokens_batch(texts, **options))

    def decode(self, ids: Sequence[int] | Encoding, **options: Unpack[DecodeOptions]) -> str:
        """Returns the text of token ids. Bytes that are not valid UTF-8 become U+FFFD; `decode_bytes` keeps them.

        Control tokens are dropped unless `unparse_special=True`.

            >>> client.decode(client.encode("hello world"))
            'hello world'

        Raises InvalidArgumentError for an id that is not in the vocabulary.
        """
        return self._run(self._async.decode(ids, **options))

    def decode_bytes(self, ids: Sequence[int] | Encoding, **options: Unpack[DecodeOptions]) -> bytes:
        """Returns the exact bytes of token ids, which may not be valid UTF-8; the keywords are those of `decode`."""
        return self._run(self._async.decode_bytes(ids, **options))

    def decode_batch(self, id_lists: Sequence[Sequence[int] | Encoding], **options: Unpack[DecodeOptions]) -> list[str]:
        """Returns the text of each list of ids, in order; the keywords are those of `decode`."""
        return self._run(self._async.decode_batch(id_lists, **options))

    def list_tokenizers(self, **options: Unpack[CallOptions]) -> list[TokenizerInfo]:
        """Returns the tokenizers that are loaded, the default first, without their special tokens."""
        return self._run(self._async.list_tokenizers(**options))

    def get_tokenizer(self, name: str = "", **options: Unpack[CallOptions]) -> TokenizerInfo:
        """Describes one tokenizer with its special tokens; "" names the default. Raises NotFoundError."""
        return self._run(self._async.get_tokenizer(name, **options))

    def get_vocabulary(self, name: str = "", **options: Unpack[CallOptions]) -> Vocabulary:
        """Returns the bytes, type and score of every id of a tokenizer; "" names the default. Raises NotFoundError."""
        return self._run(self._async.get_vocabulary(name, **options))

    # --- generation

    def stream(self, prompt: Prompt, **options: Unpack[GenerateOptions]) -> Stream:
        """Returns a stream that yields the continuation of a prompt in chunks, as they are made.

            >>> with client.stream("Once upon a time", max_tokens=8) as stream:
            ...     text = "".join([chunk.text for chunk in stream])
            >>> text == stream.result.text
            True

        The keywords are those of `generate`. They are checked here, and wrong ones raise InvalidArgumentError at once.
        The calls start when the stream is entered or first read; later errors are raised by the iteration, after all
        chunks that came before them.
        """
        return Stream(self, self._async.stream(prompt, **options))

    def generate(self, prompt: Prompt, **options: Unpack[GenerateOptions]) -> GenerationResult:
        """Returns the continuation of a prompt when it is complete, with its ids, usage and timings.

            >>> result = client.generate("Once upon a time", max_tokens=8, temperature=0)
            >>> result.usage.completion_tokens, result.finish_reason.name
            (8, 'MAX_TOKENS')

        Without `max_tokens` generation goes on until the model ends it or its context is full. Sampling parameters that
        are not given have the model's defaults. When a worker goes away in the middle, another one continues
        (`FailoverSettings`).

        Raises NotFoundError for a model that is not served, and UnimplementedError for a parameter that the worker does
        not support.
        """
        return self._run(self._async.generate(prompt, **options))

    def stream_chat(self, messages: Sequence[Message] | Conversation, **options: Unpack[GenerateOptions]) -> Stream:
        """Returns a stream that yields the answer to a conversation in chunks; it is used as that of `stream`. A
        `Conversation` also holds tools and a chat template."""
        return Stream(self, self._async.stream_chat(messages, **options))

    def chat(self, messages: Sequence[Message] | Conversation, **options: Unpack[GenerateOptions]) -> GenerationResult:
        """Returns the answer to a conversation when it is complete; the keywords are those of `generate`.

            >>> result = client.chat([{"role": "user", "content": "Tell me a story."}], max_tokens=8)
            >>> result.usage.completion_tokens
            8

        A `Conversation` also holds tools and a chat template. Raises FailedPreconditionError when the model has no chat
        template.
        """
        return self._run(self._async.chat(messages, **options))

    def generate_batch(
        self, prompts: Sequence[Prompt], *, concurrency: int = 64, **options: Unpack[GenerateOptions]
    ) -> list[GenerationResult]:
        """Returns the results of many prompts, in order. At most `concurrency` run at a time; the timeout is for all of
        them together.

            >>> results = client.generate_batch(["Once upon a time", "In the beginning"], max_tokens=8)
            >>> [result.usage.completion_tokens for result in results]
            [8, 8]

        The first error cancels the other prompts and is raised. Request ids are the given (or a random) one followed by
        "-0", "-1" and so on.
        """
        return self._run(self._async.generate_batch(prompts, concurrency=concurrency, **options))

    def get_models(self, **options: Unpack[CallOptions]) -> dict[str, ModelInfo | None]:
        """Returns what each worker serves, by address; None for a worker that does not tell."""
        return self._run(self._async.get_models(**options))

    def _run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        if forks.broken():  # before the lock, which a thread of the parent may have held
            coroutine.close()
            forks.check()
        with self._lock:
            if self._closed:
                coroutine.close()
                raise ClientClosedError("the client is closed")
            if self._loop is None:
                self._loop = acquire()
                _open_clients.add(self)
            future = self._loop.submit(coroutine)  # under the lock: before close() can stop the loop
        return wait(future)


_open_clients: weakref.WeakSet[Client] = weakref.WeakSet()


@atexit.register
def _close_open_clients() -> None:
    # gRPC must not be torn down under a running event loop.
    for client in list(_open_clients):
        client.close()
