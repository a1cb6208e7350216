"""Which of a machine's processors compute, under this process's affinity and control group.

Threads that compute share nothing with profit: a second one of a core halves what each has, and one on another memory
node reads every weight from afar. So there is one for each physical core of one node. What serves requests beside them
runs on the cores' second threads; where there are none, one core of four or more is left to it, since all threads of a
product wait for the one that was interrupted.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from tandem.common.machine import available_cores

_SYSTEM = Path("/sys/devices/system")
_TASKS = Path("/proc/self/task")
_WORTH_A_CORE = 4  # threads, of which one is given up for others


def computing_threads() -> int:
    """Returns how many threads should compute, at least one."""
    allowed, cores = available_cores(), len(_cores(os.sched_getaffinity(0)))
    threads = min(allowed, cores)
    return threads - 1 if threads == allowed and threads >= _WORTH_A_CORE else threads


def memory_nodes() -> dict[int, frozenset[int]]:
    """Returns the processors that this process may use, by the memory node that they are next to, in order of the
    nodes; empty where the system does not tell."""
    allowed = os.sched_getaffinity(0)
    found = {int(folder.name[4:]): _listed(folder / "cpulist") & allowed for folder in _SYSTEM.glob("node/node[0-9]*")}
    return {node: found[node] for node in sorted(found) if found[node]}


def settle(node: int = -1, rank: int = 0, ranks: int = 1) -> int:
    """Keeps this process on the processors of one memory node, where its memory will lie too: of `node`, or with -1 of
    the one with most memory to be had. With -1, several `ranks` are spread over the nodes. Returns how many of them
    are on this node. Raises ValueError if there is no such node."""
    nodes = memory_nodes()
    if node >= 0 and node not in nodes:
        known = ", ".join(map(str, nodes)) or "none, since the system tells of none"
        raise ValueError(f"numa_node: {node} is not a memory node whose processors may be used; there are {known}")
    if node < 0 and len(nodes) < 2:
        return ranks
    beside = ranks
    if node < 0 and ranks == 1:
        node = max(nodes, key=_obtainable)
    elif node < 0:
        places = [place * len(nodes) // ranks for place in range(ranks)]
        node, beside = list(nodes)[places[rank]], places.count(places[rank])
    for task in _TASKS.iterdir():  # threads that libraries have begun, and whatever begins from now on
        with contextlib.suppress(OSError):  # one that has ended; or the system does not allow it
            os.sched_setaffinity(int(task.name), nodes[node])
    return beside


def _cores(processors: set[int]) -> set[frozenset[int]]:
    """The physical cores of which these processors are threads."""
    folder = _SYSTEM / "cpu"
    return {
        _listed(folder / f"cpu{processor}/topology/thread_siblings_list") or frozenset({processor})
        for processor in processors
    }


def _obtainable(node: int) -> int:
    """The kilobytes of a node that are free, or hold files."""
    lines = _read(_SYSTEM / f"node/node{node}/meminfo").splitlines()
    numbers = {words[2]: int(words[3]) for words in map(str.split, lines) if len(words) > 3 and words[3].isdecimal()}
    return numbers.get("MemFree:", 0) + numbers.get("FilePages:", 0)


def _listed(path: Path) -> frozenset[int]:
    """The numbers of a list such as 0-3,8."""
    numbers: set[int] = set()
    for part in _read(path).split(","):
        first, _, last = part.partition("-")
        if first.isdecimal():
            numbers.update(range(int(first), int(last or first) + 1))
    return frozenset(numbers)


def _read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""
