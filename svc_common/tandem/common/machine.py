"""Describes this machine, and how much of it our process may use under its affinity and control group."""

from __future__ import annotations

import os
import resource
import sys
from pathlib import Path

_GROUP = Path("/sys/fs/cgroup")  # of version 2; without it nothing limits us
_PROC = Path("/proc")


def available_cores() -> int:
    """Returns how many cores this process may use, at least one: by its affinity and the quota of its control group."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quota, _, period = _read(_GROUP / "cpu.max").partition(" ")
    return min(cores, max(1, int(quota) // int(period))) if quota.isdecimal() and period.isdecimal() else cores


def memory() -> int:
    """Returns the bytes of memory that this process could have if it were alone."""
    limit = _read(_GROUP / "memory.max")
    whole = _pages("SC_PHYS_PAGES")
    return min(whole, int(limit)) if limit.isdecimal() else whole


def free_memory() -> int:
    """Returns the bytes of memory that nothing occupies."""
    return min(_pages("SC_AVPHYS_PAGES"), _group_room())


def peak_memory() -> int:
    """Returns the most bytes of memory that this process has had."""
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most if sys.platform == "darwin" else most * 1024


def obtainable_memory() -> int:
    """Returns the bytes of memory that a new program can have, the page cache included."""
    lines = _read(_PROC / "meminfo").splitlines()
    found = (int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:"))
    return min(next(found, _pages("SC_AVPHYS_PAGES")), _group_room())


def processor_name() -> str:
    """Returns the processor's own name."""
    return processor_fact("model name") or "cpu"


def processor_fact(*names: str) -> str:
    """Returns the first value in /proc/cpuinfo under one of these names; empty without one."""
    for line in _read(_PROC / "cpuinfo").splitlines():
        if line.startswith(names):
            return line.partition(":")[2].strip()
    return ""


def _group_room() -> int:
    """Returns the bytes between our control group's use and its limit."""
    limit, current = _read(_GROUP / "memory.max"), _read(_GROUP / "memory.current")
    return max(0, int(limit) - int(current)) if limit.isdecimal() and current.isdecimal() else sys.maxsize


def _pages(name: str) -> int:
    return os.sysconf(name) * os.sysconf("SC_PAGE_SIZE")


def _read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except (OSError, ValueError):
        return ""
