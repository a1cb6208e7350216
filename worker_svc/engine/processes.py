"""The processes of one engine, seen from the front: how they ended, whether they compute, and their end by force.

An engine is the leader of a process group of its own; ranks that it starts on this machine belong to the group.
"""

from __future__ import annotations

import contextlib
import os
import signal
from pathlib import Path

# Exit codes of an engine.
RANK_KILLED = 75  # somebody has killed another rank
NO_MEMORY = 76  # an allocation failed: whoever was next to ask is not to blame

# What a process does to itself; other signals come from outside.
_OWN_SIGNALS = {signal.SIGSEGV, signal.SIGBUS, signal.SIGABRT, signal.SIGILL, signal.SIGFPE}
_TICKS = os.sysconf("SC_CLK_TCK")


def crashed(code: int) -> bool:
    """Whether a process that ended with this code (negative: by that signal) did so by its own fault."""
    return -code in _OWN_SIGNALS if code < 0 else code not in (0, RANK_KILLED, NO_MEMORY)


def describe_end(code: int) -> str:
    """The same in words."""
    return f"killed by signal {-code}" if code < 0 else f"exit code {code}"


def cpu_seconds(pid: int) -> float:
    """Processor time that a process and those below it have used; 0 when it is gone."""
    total = 0.0
    pids = [pid]
    while pids:
        folder = Path("/proc") / str(pids.pop())
        with contextlib.suppress(OSError):  # it may end while we look
            # The name, in brackets, may hold anything.
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
            total += (int(fields[11]) + int(fields[12])) / _TICKS
            for thread in (folder / "task").iterdir():
                pids += map(int, (thread / "children").read_text().split())
    return total


def kill_group(leader: int) -> None:
    """Ends all processes of a group, also those that are stopped."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(leader, signal.SIGKILL)
