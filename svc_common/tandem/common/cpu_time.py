"""Measures whether another process computes."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import NamedTuple

_TICKS = os.sysconf("SC_CLK_TCK")


class Work(NamedTuple):
    """Tells what a process and its children did and want to do."""

    seconds: float  # of processors that they have used
    ready: bool  # one of their threads computes, or waits for nothing but a processor


def cpu_seconds(pid: int) -> float:
    """Returns the processor seconds that a process and its children have used; 0 when it is gone."""
    return work_of(pid).seconds


def work_of(pid: int) -> Work:
    """Looks at a process and its children; what is gone does nothing."""
    total, ready = 0.0, False
    for each in processes_of(pid):
        folder = Path("/proc") / str(each)
        with contextlib.suppress(OSError):  # it may end while we look
            fields = _stat(folder)
            total += (int(fields[11]) + int(fields[12])) / _TICKS
            ready = ready or any(_stat(thread)[0] == "R" for thread in (folder / "task").iterdir())
    return Work(total, ready)


def processes_of(pid: int) -> list[int]:
    """Returns the ids of a process and of all that it and its children have started, parents before children."""
    pids = [pid]
    for each in pids:  # grows meanwhile
        with contextlib.suppress(OSError):  # it may end while we look
            for thread in (Path("/proc") / str(each) / "task").iterdir():
                pids += map(int, (thread / "children").read_text().split())
    return pids


def _stat(folder: Path) -> list[str]:
    # The name, in brackets, may hold anything.
    return (folder / "stat").read_text().rpartition(")")[2].split()
