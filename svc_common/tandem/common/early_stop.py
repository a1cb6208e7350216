"""Hears SIGTERM while a server's process still imports what it needs, which takes seconds on a busy machine."""

from __future__ import annotations

import signal
from types import FrameType

_heard: list[int] = []


def leave_at_sigterm() -> None:
    """Ends the process with exit code 0 at SIGTERM, until a server's own handlers are there (`stop_signals.py`). The
    system keeps it from a process that is the first of its container and has no handler."""
    signal.signal(signal.SIGTERM, _leave)


def stop_was_heard() -> bool:
    """Tells whether SIGTERM has come and the process went on, as where Python swallows what a handler raises."""
    return bool(_heard)


def _leave(number: int, frame: FrameType | None) -> None:
    _heard.append(number)
    raise SystemExit(0)
