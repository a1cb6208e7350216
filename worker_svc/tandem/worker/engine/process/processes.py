"""Ends the processes of one engine by force from the front, describes how they ended, and buries what they left.

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


def bury_orphans() -> int:
    """Takes note of the ends of what dead engines had started (guides, ranks). The system gives them to the first
    process of a container, among whose processes each would keep a place. Called while there is no engine, for whose
    end somebody else waits; a child of our own is in our session. Returns how many there were."""
    buried = 0
    with contextlib.suppress(ChildProcessError):  # no children are left
        while found := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT):
            if os.getsid(found.si_pid) == os.getsid(0):
                break
            os.waitpid(found.si_pid, 0)
            buried += 1
    return buried
