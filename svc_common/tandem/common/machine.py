"""Describes this machine, and how much of it our process may use under its affinity and control group."""

from __future__ import annotations

import os
import resource
import sys
from collections.abc import Iterator
from pathlib import Path

_GROUP = Path("/sys/fs/cgroup")  # of version 2, or with a folder for each controller of version 1
_PROC = Path("/proc")


def available_cores() -> int:
    """Returns how many cores this process may use, at least one: by its affinity and the quota of its control group."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    for quota, period in _quotas():
        if quota.isdecimal() and period.isdecimal():
            cores = min(cores, max(1, int(quota) // int(period)))
    return cores


def memory() -> int:
    """Returns the bytes of memory that this process could have if it were alone."""
    limits = (limit for limit, _ in _memories())
    return min(_pages("SC_PHYS_PAGES"), *(int(limit) for limit in limits if limit.isdecimal()), sys.maxsize)


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
    """Returns the bytes between our control group's use and its limit, and so for those that it is in."""
    rooms = (int(most) - int(now) for most, now in _memories() if most.isdecimal() and now.isdecimal())
    return max(0, min(rooms, default=sys.maxsize))


def _quotas() -> Iterator[tuple[str, str]]:
    """The processor's time that our groups have in a period of time, and that period; no numbers without a limit."""
    for group in _groups():
        quota, _, period = _read(group / "cpu.max").partition(" ")
        yield quota, period
    for group in _groups("cpu"):
        yield _read(group / "cpu.cfs_quota_us"), _read(group / "cpu.cfs_period_us")


def _memories() -> Iterator[tuple[str, str]]:
    """The memory that our groups may have, and what they have; no numbers without a limit."""
    for group in _groups():
        yield _read(group / "memory.max"), _read(group / "memory.current")
    for group in _groups("memory"):
        yield _read(group / "memory.limit_in_bytes"), _read(group / "memory.usage_in_bytes")


def _groups(controller: str = "") -> Iterator[Path]:
    """Our control group of version 2, or that of version 1 with this controller, and all that it is in: each may have a
    limit. In a container ours is all that we see."""
    lines = (line.split(":", 2) for line in _read(_PROC / "self/cgroup").splitlines())
    own = next((line[2] for line in lines if len(line) == 3 and controller in line[1].split(",")), "/")
    root = _GROUP / controller
    group = root / own.strip("/")
    while group != root and root in group.parents:
        yield group
        group = group.parent
    yield root


def _pages(name: str) -> int:
    return os.sysconf(name) * os.sysconf("SC_PAGE_SIZE")


def _read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except (OSError, ValueError):
        return ""
