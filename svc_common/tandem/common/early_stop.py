"""Hears SIGTERM and SIGINT while a server's process still imports what it needs: seconds on a busy machine."""

from __future__ import annotations

import signal
from types import FrameType

_heard: list[int] = []


def leave_at_signals() -> None:
    """Ends the process with exit code 0 at SIGTERM or SIGINT, until a server's own handlers are there
    (`stop_signals.py`). The system keeps them from a process that is the first of its container and has no handler."""
    signal.signal(signal.SIGTERM, _leave)
    if signal.getsignal(signal.SIGINT) != signal.SIG_IGN:  # as shells have it for what they put into the background
        signal.signal(signal.SIGINT, _leave)


def signal_heard() -> str:
    """Returns the name of a signal that has come while the process went on, as where Python swallows what a handler
    raises; empty if none has."""
    return signal.Signals(_heard[0]).name if _heard else ""


def _leave(number: int, frame: FrameType | None) -> None:
    _heard.append(number)
    raise SystemExit(0)
