"""Measures whether another process computes."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

_TICKS = os.sysconf("SC_CLK_TCK")


def cpu_seconds(pid: int) -> float:
    """Returns the processor seconds that a process and its children have used; 0 when it is gone."""
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
