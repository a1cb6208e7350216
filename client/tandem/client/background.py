"""The event loop that drives synchronous clients: one daemon thread for the whole process, while a client is open."""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
from collections.abc import Coroutine
from typing import Any, TypeVar

from tandem.client.errors import ClientClosedError, ConfigurationError

T = TypeVar("T")
LOOK_FOR_SIGNALS_SECONDS = 0.5


class BackgroundLoop:
    """Runs coroutines for threads that have no event loop of their own."""

    def __init__(self) -> None:
        self._users = 0
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._work, name="tandem-client", daemon=True)
        self._thread.start()

    def submit(self, coroutine: Coroutine[Any, Any, T]) -> concurrent.futures.Future[T]:
        """Starts the coroutine and returns its future."""
        if threading.current_thread() is self._thread:
            coroutine.close()
            raise ConfigurationError("a Client cannot be used inside its own event loop; use AsyncClient")
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop)

    def _work(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.set_exception_handler(_handle)
        self._loop.run_forever()
        left = asyncio.all_tasks(self._loop)  # calls that lost against close(): their waiters must wake up
        for task in left:
            task.cancel()
        self._loop.run_until_complete(asyncio.gather(*left, return_exceptions=True))
        self._loop.run_until_complete(self._loop.shutdown_asyncgens())
        self._loop.close()

    def _stop(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()


_lock = threading.Lock()
_shared: BackgroundLoop | None = None


def acquire() -> BackgroundLoop:
    """Returns the loop of this process, which the first client starts."""
    global _shared
    with _lock:
        if _shared is None:
            _shared = BackgroundLoop()
        _shared._users += 1
        return _shared


def release(loop: BackgroundLoop) -> None:
    """Gives the loop back; the last client to do so ends the thread."""
    global _shared
    with _lock:
        loop._users -= 1
        if loop._users == 0:
            if _shared is loop:
                _shared = None
            loop._stop()


def wait(future: concurrent.futures.Future[T]) -> T:
    """Waits for the future's result. An interrupt of the waiting thread (Ctrl-C) cancels the call."""
    try:
        # A signal that comes just before the thread sleeps, or to another thread, does not wake it: look now and then.
        while not future.done():
            concurrent.futures.wait([future], timeout=LOOK_FOR_SIGNALS_SECONDS)
        return future.result()
    except concurrent.futures.CancelledError:
        raise ClientClosedError("the client was closed during the call") from None
    except BaseException:
        future.cancel()
        raise


def _handle(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    # grpc.aio wakes every event loop of a process through one socket; one that comes second finds it empty. Harmless.
    if isinstance(context.get("exception"), BlockingIOError) and "PollerCompletionQueue" in str(context.get("handle")):
        return
    loop.default_exception_handler(context)
