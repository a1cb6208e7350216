"""Detects clients that a fork has made unusable.

gRPC has a thread that is always inside gRPC: it begins with the first channel of grpc.aio and ends when the last object
that refers to one is gone; closing them is not enough. A process that forks meanwhile skips gRPC's own preparation, and
its child has gRPC without the thread: whatever it does with it hangs or crashes. So a closed client drops its channels,
those left in reference cycles are collected before the fork, and a child whose gRPC cannot work raises an error.

Behind the last channel gRPC's core ends by itself, on threads of its own (`grpc_shutdown` in the lists of the system),
and that one holds the lock that every first channel takes: a child that is forked meanwhile waits for it for ever. So
a fork waits until these threads have ended.

gRPC's core would prepare itself for a fork as well. Beside the thread above it does the half of that, and threads that
it then starts in the child end it with SIGSEGV, on a busy machine one in ten: `tandem.client` tells it not to.
"""

from __future__ import annotations

import ctypes
import gc
import os
import threading
import time
from pathlib import Path
from weakref import WeakSet

from tandem.client.errors import ConfigurationError

_GRPC_THREAD = "_poll_wrapper"  # in its name, after the function that it runs
_CORE_THREADS = ("grpc_", "event_engine", "lifeguard")  # how the names of the core's threads begin
_TASKS = Path("/proc/self/task")
# For all of them to end: half a second, which a fork waits where somebody else's channel is open, or more where the
# machine is so busy that threads have to wait for their turns, theirs as well as ours.
_TURNS, _TURN_SECONDS = 500, 0.001

_open: WeakSet[object] = WeakSet()  # clients with channels
_in_use = _broken = False
_ending = False  # a client was open since the last fork, so that gRPC's core may still be about to end


def opened(client: object) -> None:
    """Registers a client that has channels from now on."""
    global _ending
    _open.add(client)
    _ending = True


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


def _core_runs() -> bool:
    """Returns True while a thread of gRPC's core runs, on systems that tell."""
    try:
        return any((task / "comm").read_text("ascii", "replace").startswith(_CORE_THREADS) for task in _TASKS.iterdir())
    except OSError:  # one has ended just now
        return _TASKS.exists()


def _await_end() -> None:
    """Waits until nothing of gRPC runs, or so long that somebody else must use it."""
    for _ in range(_TURNS):
        if not grpc_runs() and not _core_runs():
            return
        time.sleep(_TURN_SECONDS)


def _before() -> None:
    global _in_use, _ending
    if not _open:
        if grpc_runs():
            gc.collect()
        if _ending or grpc_runs():
            _await_end()
        _ending = False
    _in_use = bool(_open) or grpc_runs()


def _after_in_child() -> None:
    global _broken
    _broken = _broken or _in_use
    if _in_use:
        # Freeing a channel here would wait for ever for the thread that only the parent has: never free them.
        for client in _open:
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(client))


if hasattr(os, "register_at_fork"):  # where there is a fork
    os.register_at_fork(before=_before, after_in_child=_after_in_child)
