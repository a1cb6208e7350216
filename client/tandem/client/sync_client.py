"""The synchronous client: reads exactly like the asynchronous one, which it drives on a background event loop."""

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
    """One answer as it is made: a context manager and an iterator of `Chunk`.

        with client.stream("Once upon a time", max_tokens=64) as stream:
            for chunk in stream:
                print(chunk.text, end="")
        print(stream.result.finish_reason)

    Leaving the block early, `cancel()` (from any thread), or dropping the object ends the calls at both services.
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
        """Waits for the end; the result."""
        return self._client._run(self._stream.collect())

    def cancel(self) -> None:
        """Ends the calls; whoever iterates gets CancelledError. After the end, nothing happens."""
        self.close()

    def close(self) -> None:
        """As `cancel`, and waits until no call is open any more."""
        if forks.broken():
            return
        with contextlib.suppress(ClientClosedError):  # a closed client has closed its streams
            self._client._run(self._stream.close())

    @property
    def request_id(self) -> str:
        """What the servers' logs call this answer."""
        return self._stream.request_id

    @property
    def text(self) -> str:
        """All text so far, also after an error."""
        return self._stream.text

    @property
    def output_ids(self) -> list[int]:
        """All ids so far whose text is complete."""
        return self._stream.output_ids

    @property
    def result(self) -> GenerationResult:
        """After the end: everything about the answer. Raises what ended the stream early, or ResultNotReadyError."""
        return self._stream.result


@spell_out_keywords
class Client(Operators):
    """Text in, text out, through a tokenizer service and one or several workers.

        with Client(tokenizer="localhost:50051", worker="localhost:50052") as client:
            print(client.generate("Once upon a time", max_tokens=64, temperature=0).text)

    As `AsyncClient`, which documents the arguments. May be used from any number of threads at once.
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
        """Ends what still runs, in every thread, and closes the connections. Closing twice does nothing."""
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
        """The token ids of a text. Special tokens in a str are plain characters unless `special_tokens` says else."""
        return self._run(self._async.encode(text, **options))

    def encode_batch(self, texts: Sequence[TextInput], **options: Unpack[EncodeOptions]) -> list[Encoding]:
        """As `encode`, for many texts, in order."""
        return self._run(self._async.encode_batch(texts, **options))

    def encode_chat(
        self, messages: Sequence[Message] | Conversation, **options: Unpack[EncodeChatOptions]
    ) -> ChatEncoding:
        """The token ids of a conversation, as the model's chat template has it. They may be used as a prompt."""
        return self._run(self._async.encode_chat(messages, **options))

    def count_tokens(self, text: TextInput, **options: Unpack[CountOptions]) -> int:
        """How many ids `encode` would give."""
        return self._run(self._async.count_tokens(text, **options))

    def count_tokens_batch(self, texts: Sequence[TextInput], **options: Unpack[CountOptions]) -> list[int]:
        """As `count_tokens`, for many texts, in order."""
        return self._run(self._async.count_tokens_batch(texts, **options))

    def decode(self, ids: Sequence[int] | Encoding, **options: Unpack[DecodeOptions]) -> str:
        """The text of token ids; bytes that are not valid UTF-8 become U+FFFD (see `decode_bytes`)."""
        return self._run(self._async.decode(ids, **options))

    def decode_bytes(self, ids: Sequence[int] | Encoding, **options: Unpack[DecodeOptions]) -> bytes:
        """As `decode`: the exact bytes, which may be no valid UTF-8."""
        return self._run(self._async.decode_bytes(ids, **options))

    def decode_batch(self, id_lists: Sequence[Sequence[int] | Encoding], **options: Unpack[DecodeOptions]) -> list[str]:
        """As `decode`, for many lists, in order."""
        return self._run(self._async.decode_batch(id_lists, **options))

    def list_tokenizers(self, **options: Unpack[CallOptions]) -> list[TokenizerInfo]:
        """The tokenizers that are loaded, the default first."""
        return self._run(self._async.list_tokenizers(**options))

    def get_tokenizer(self, name: str = "", **options: Unpack[CallOptions]) -> TokenizerInfo:
        """What one tokenizer is, with its special tokens; "": the default."""
        return self._run(self._async.get_tokenizer(name, **options))

    def get_vocabulary(self, name: str = "", **options: Unpack[CallOptions]) -> Vocabulary:
        """The bytes, type and score of every id; "": of the default tokenizer."""
        return self._run(self._async.get_vocabulary(name, **options))

    # --- generation

    def stream(self, prompt: Prompt, **options: Unpack[GenerateOptions]) -> Stream:
        """An answer as it is made. Arguments are checked here; calls start when the stream is entered or first read."""
        return Stream(self, self._async.stream(prompt, **options))

    def generate(self, prompt: Prompt, **options: Unpack[GenerateOptions]) -> GenerationResult:
        """A whole answer."""
        return self._run(self._async.generate(prompt, **options))

    def stream_chat(self, messages: Sequence[Message] | Conversation, **options: Unpack[GenerateOptions]) -> Stream:
        """As `stream`: the answer to a conversation. A `Conversation` also names tools and templates."""
        return Stream(self, self._async.stream_chat(messages, **options))

    def chat(self, messages: Sequence[Message] | Conversation, **options: Unpack[GenerateOptions]) -> GenerationResult:
        """As `generate`: the answer to a conversation."""
        return self._run(self._async.chat(messages, **options))

    def generate_batch(
        self, prompts: Sequence[Prompt], *, concurrency: int = 64, **options: Unpack[GenerateOptions]
    ) -> list[GenerationResult]:
        """Answers to many prompts, in order, at most `concurrency` at a time; the timeout is for all together."""
        return self._run(self._async.generate_batch(prompts, concurrency=concurrency, **options))

    def get_models(self, **options: Unpack[CallOptions]) -> dict[str, ModelInfo | None]:
        """What each worker serves, by address; None for one that does not tell."""
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
