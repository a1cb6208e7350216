"""Detects clients that a fork has made unusable.

gRPC has a thread that is always inside gRPC: it begins with the first channel of grpc.aio and ends when the last object
that refers to one is gone; closing them is not enough. A process that forks meanwhile skips gRPC's own preparation, and
its child has gRPC without the thread: whatever it does with it hangs or crashes. So a closed client drops its channels,
those left in reference cycles are collected before the fork, and a child whose gRPC cannot work raises an error.
"""

from __future__ import annotations

import ctypes
import gc
import os
import threading
from weakref import WeakSet

from tandem.client.errors import ConfigurationError

_GRPC_THREAD = "_poll_wrapper"  # in its name, after the function that it runs
_ENDING_SECONDS = 0.5  # for it to end; a fork waits so long where somebody else's channel is open

_open: WeakSet[object] = WeakSet()  # clients with channels
_in_use = _broken = False


def opened(client: object) -> None:
    """Registers a client that has channels from now on."""
    _open.add(client)


def closed(client: object) -> None:
    """Unregisters a client that has dropped its channels."""
    _open.discard(client)


def broken() -> bool:
    """Returns True in a process that was forked while gRPC was in use, so that nothing may touch gRPC here."""
    return _broken


def check() -> None:
    """Raises ConfigurationError in a process that was forked while gRPC was in use."""
    if _broken:
        raise ConfigurationError(
            "no client works in this process: it was forked while a client (or another channel of grpc.aio) was open. "
            "Close all of them before the fork, or start processes by spawn"
        )


def grpc_runs(seconds: float = 0.0) -> bool:
    """Returns True while gRPC's thread runs, after waiting so many seconds for its end: the last channel is gone a
    little earlier."""
    threads = [thread for thread in threading.enumerate() if _GRPC_THREAD in thread.name]
    for thread in threads:
        thread.join(seconds)
    return any(thread.is_alive() for thread in threads)


def _before() -> None:
    global _in_use
    if not _open and grpc_runs():
        gc.collect()
    _in_use = bool(_open) or grpc_runs(_ENDING_SECONDS)


def _after_in_child() -> None:
    global _broken
    _broken = _broken or _in_use
    if _in_use:
        # Freeing a channel here would wait for ever for the thread that only the parent has: never free them.
        for client in _open:
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(client))


if hasattr(os, "register_at_fork"):  # where there is a fork
    os.register_at_fork(before=_before, after_in_child=_after_in_child)
