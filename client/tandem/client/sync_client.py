"""The synchronous client: the methods of the asynchronous one, which it runs on a background event loop."""

from __future__ import annotations

import atexit
import contextlib
import copy
import functools
import inspect
import threading
import weakref
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterator, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, Self, TypeVar, Unpack

from prometheus_client import CollectorRegistry

from tandem.client import forks
from tandem.client.addresses import Address
from tandem.client.async_client import DEFAULT_TIMEOUT_SECONDS, AsyncClient
from tandem.client.async_stream import AsyncStream
from tandem.client.background import BackgroundLoop, acquire, release, wait
from tandem.client.batches import BatchEvent
from tandem.client.errors import ClientClosedError
from tandem.client.params import GenerateOptions
from tandem.client.settings import ConnectionSettings, Credentials, FailoverSettings
from tandem.client.types import Chunk, GenerationResult, Prompt

if TYPE_CHECKING:
    from opentelemetry.trace import Tracer

P = ParamSpec("P")
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
    def prompt_ids(self) -> list[int]:
        """The ids of the prompt; empty before it is encoded, which it is when the first chunk has come."""
        return self._stream.prompt_ids

    @property
    def output_ids(self) -> list[int]:
        """The ids that have arrived so far and whose text is complete."""
        return self._stream.output_ids

    @property
    def result(self) -> GenerationResult:
        """The result, once the stream has ended. Raises ResultNotReadyError before that, or the error that ended the
        stream early."""
        return self._stream.result


class _BatchEvents:
    """What comes of a batch. One that is dropped is ended by the event loop, as any asynchronous generator: nothing may
    be waited for where a garbage collector comes by, which may be within a lock that the loop needs."""

    def __init__(self, client: Client, events: AsyncGenerator[BatchEvent, None]) -> None:
        self._client = client
        self._events = events

    def __iter__(self) -> Iterator[BatchEvent]:
        return self

    def __next__(self) -> BatchEvent:
        event = self._client._run(self._next())
        if event is None:
            raise StopIteration
        return event

    async def _next(self) -> BatchEvent | None:
        return await anext(self._events, None)

    def close(self) -> None:
        """Ends what still runs, and waits until all calls are closed."""
        with contextlib.suppress(ClientClosedError):  # a closed client has closed them
            self._client._run(self._end())

    async def _end(self) -> None:
        await self._events.aclose()


def _docstring(call: Callable[..., object]) -> str:
    """Returns the docstring of an asynchronous method, with examples for the synchronous one."""
    return (call.__doc__ or "").replace("await ", "").replace("async ", "")


def _waiting(call: Callable[Concatenate[Any, P], Coroutine[Any, Any, T]]) -> Callable[Concatenate[Client, P], T]:
    """Makes the method of `Client` that waits for the end of this one of `AsyncClient`."""

    @functools.wraps(call)
    def waiting(self: Client, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return self._run(call(self._async, *args, **kwargs))

    waiting.__doc__ = _docstring(call)
    return waiting


def _streaming(call: Callable[Concatenate[Any, P], AsyncStream]) -> Callable[Concatenate[Client, P], Stream]:
    """Makes the method of `Client` that returns the stream of this one of `AsyncClient`."""

    @functools.wraps(call)
    def streaming(self: Client, /, *args: P.args, **kwargs: P.kwargs) -> Stream:
        return Stream(self, call(self._async, *args, **kwargs))

    streaming.__doc__ = _docstring(call)
    streaming.__signature__ = inspect.signature(call).replace(return_annotation="Stream")  # type: ignore[attr-defined]
    return streaming


class Client:
    """Text in, text out, through a tokenizer service and one or several workers.

        with Client(tokenizer="localhost:50051", worker="localhost:50052") as client:
            print(client.generate("Once upon a time", max_tokens=64, temperature=0).text)

    `AsyncClient` describes the arguments and the errors of all calls. A client may be used from any number of threads
    at once.
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
        self._async: AsyncClient = AsyncClient(
            tokenizer,
            worker,
            timeout=timeout,
            connection=connection,
            credentials=credentials,
            failover=failover,
            registry=registry,
            tracer=tracer,
        )
        self._root: Self | None = None  # whose loop and connections these are, where they are not its own
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
        if self._root is not None:
            self._root.close()
            return
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

    encode = _waiting(AsyncClient.encode)
    encode_batch = _waiting(AsyncClient.encode_batch)
    encode_chat = _waiting(AsyncClient.encode_chat)
    count_tokens = _waiting(AsyncClient.count_tokens)
    count_tokens_batch = _waiting(AsyncClient.count_tokens_batch)
    decode = _waiting(AsyncClient.decode)
    decode_bytes = _waiting(AsyncClient.decode_bytes)
    decode_batch = _waiting(AsyncClient.decode_batch)
    list_tokenizers = _waiting(AsyncClient.list_tokenizers)
    get_tokenizer = _waiting(AsyncClient.get_tokenizer)
    get_vocabulary = _waiting(AsyncClient.get_vocabulary)
    stream = _streaming(AsyncClient.stream)
    generate = _waiting(AsyncClient.generate)
    stream_chat = _streaming(AsyncClient.stream_chat)
    chat = _waiting(AsyncClient.chat)
    run_tools = _waiting(AsyncClient.run_tools)
    generate_batch = _waiting(AsyncClient.generate_batch)

    def with_options(self, **options: Unpack[GenerateOptions]) -> Self:
        derived = copy.copy(self)
        derived._async, derived._root = self._async.with_options(**options), self._root or self
        return derived

    def stream_batch(
        self,
        prompts: Sequence[Prompt],
        *,
        concurrency: int = 64,
        each: Sequence[GenerateOptions] | None = None,
        **options: Unpack[GenerateOptions],
    ) -> Iterator[BatchEvent]:
        events = self._async.stream_batch(prompts, concurrency=concurrency, each=each, **options)
        return _BatchEvents(self, events)

    with_options.__doc__ = _docstring(AsyncClient.with_options)
    stream_batch.__doc__ = _docstring(AsyncClient.stream_batch)
    get_models = _waiting(AsyncClient.get_models)
    get_loads = _waiting(AsyncClient.get_loads)
    set_draining = _waiting(AsyncClient.set_draining)
    clear_prefix_cache = _waiting(AsyncClient.clear_prefix_cache)

    def _run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        if self._root is not None:
            return self._root._run(coroutine)
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
