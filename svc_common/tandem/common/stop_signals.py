"""Turns SIGTERM, SIGINT and the end of standard input into a request to stop."""

from __future__ import annotations

import asyncio
import contextlib
import os
import queue
import signal
import threading
from collections.abc import Callable, Iterator
from types import FrameType
from typing import TYPE_CHECKING

from tandem.common.early_stop import signal_heard

if TYPE_CHECKING:  # engines read this file too, and have no metrics of their own
    from tandem.common.service import Lifecycle


@contextlib.contextmanager
def stop_on_signals(lifecycle: Lifecycle, *, supervised: bool) -> Iterator[None]:
    """Requests a drain at SIGTERM or SIGINT; the second one ends the process at once, with code 128 + its number.

    These are plain signal handlers, not the event loop's: the second signal must work when the loop is stuck.
    `supervised`: SIGINT is ignored, because Ctrl-C reaches our parent as well, and that one tells us what to do.
    """
    loop = asyncio.get_running_loop()
    asked = False

    def handle(number: int, frame: FrameType | None) -> None:
        nonlocal asked
        name = signal.Signals(number).name
        if asked:
            os.write(2, f"second signal ({name}): leaving now\n".encode())
            os._exit(128 + number)
        asked = True
        loop.call_soon_threadsafe(lifecycle.request_stop, 0, name)

    previous = {
        signal.SIGTERM: signal.signal(signal.SIGTERM, handle),
        signal.SIGINT: signal.signal(signal.SIGINT, signal.SIG_IGN if supervised else handle),
    }
    if heard := signal_heard():
        lifecycle.request_stop(0, heard)
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


def stop_on_end_of_stdin(lifecycle: Lifecycle) -> threading.Event:
    """Requests a drain when standard input ends, which is how we learn that a parent died, even by SIGKILL.

    The event that is answered is set then.
    """
    loop = asyncio.get_running_loop()
    ended = threading.Event()

    def ask() -> None:
        ended.set()
        with contextlib.suppress(RuntimeError):  # the loop may have ended before
            loop.call_soon_threadsafe(lifecycle.request_stop, 0, "standard input has ended")

    _when_stdin_ends(ask)
    return ended


def leave_with_parent() -> Callable[[], bytes]:
    """Ends this process, whatever it does, as soon as the parent closes our standard input; and if it leads a group of
    processes, all of these, which may be compiling. Returns a function that waits for the first line which the parent
    writes there, and returns it once."""
    lines: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    _when_stdin_ends(_leave_together, lines.put)
    return lines.get


def _leave_together() -> None:
    if os.getpgrp() == os.getpid():
        os.killpg(0, signal.SIGKILL)
    os._exit(0)


def _when_stdin_ends(act: Callable[[], None], hear: Callable[[bytes], None] | None = None) -> None:
    """Calls `act` in a thread of its own when standard input ends, and before that `hear` with its first line."""

    def watch() -> None:
        heard, hears = b"", hear
        # Not through sys.stdin: the interpreter could not close it at its end while this thread reads.
        with contextlib.suppress(OSError):
            while part := os.read(0, 4096):
                if hears is None:
                    continue
                heard += part
                line, whole, _ = heard.partition(b"\n")
                if whole:
                    hears(line)
                    hears = None
        act()

    threading.Thread(target=watch, name="stdin", daemon=True).start()
