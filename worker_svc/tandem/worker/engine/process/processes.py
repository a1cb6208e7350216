"""Ends the processes of one engine by force from the front, and describes how they ended.

An engine is the leader of a process group of its own; ranks that it starts on this machine belong to the group.
"""

from __future__ import annotations

import contextlib
import os
import signal

# Exit codes of an engine.
RANK_KILLED = 75  # somebody has killed another rank
NO_MEMORY = 76  # an allocation failed: whoever was next to ask is not to blame

# What a process does to itself; other signals come from outside.
_OWN_SIGNALS = {signal.SIGSEGV, signal.SIGBUS, signal.SIGABRT, signal.SIGILL, signal.SIGFPE}


def crashed(code: int) -> bool:
    """Tells whether a process that ended with this code (negative: by that signal) did so by its own fault."""
    return -code in _OWN_SIGNALS if code < 0 else code not in (0, RANK_KILLED, NO_MEMORY)


def describe_end(code: int) -> str:
    """Describes in words how a process ended with this code."""
    return f"killed by signal {-code}" if code < 0 else f"exit code {code}"


def kill_group(leader: int) -> None:
    """Ends all processes of a group, also those that are stopped."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(leader, signal.SIGKILL)
