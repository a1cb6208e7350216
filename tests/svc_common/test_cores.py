"""Which processors compute: one of each core, of one memory node, and not all of them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tandem.common import cores, machine


@pytest.fixture
def system(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine that tells nothing at first, in a control group without limits."""
    monkeypatch.setattr(cores, "_SYSTEM", tmp_path / "system")
    monkeypatch.setattr(machine, "_GROUP", tmp_path / "group")
    (tmp_path / "group").mkdir()
    return tmp_path


def with_processors(system: Path, siblings: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Processors, each with the list of those on its core; all may be used."""
    for processor, listed in enumerate(siblings):
        folder = system / "system" / "cpu" / f"cpu{processor}" / "topology"
        folder.mkdir(parents=True)
        (folder / "thread_siblings_list").write_text(listed + "\n")
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(len(siblings))))


def with_node(system: Path, node: int, listed: str, free: int, files: int = 0) -> None:
    folder = system / "system" / "node" / f"node{node}"
    folder.mkdir(parents=True)
    (folder / "cpulist").write_text(listed + "\n")
    lines = [f"Node {node} MemTotal: 99999 kB", f"Node {node} MemFree: {free} kB", f"Node {node} FilePages: {files} kB"]
    (folder / "meminfo").write_text("\n".join(lines) + "\n")


@pytest.mark.parametrize(
    ("siblings", "quota", "threads"),
    [
        (["0", "1"], "max", 2),  # few cores: all of them
        (["0", "1", "2"], "max", 3),
        ([str(n) for n in range(8)], "max", 7),  # one is left to the services
        ([f"{n % 4},{n % 4 + 4}" for n in range(8)], "max", 4),  # which have the second threads here
        ([f"{n // 2 * 2}-{n // 2 * 2 + 1}" for n in range(8)], "max", 4),
        ([f"{n % 8},{n % 8 + 8}" for n in range(16)], "600000 100000", 5),
        ([f"{n % 8},{n % 8 + 8}" for n in range(16)], "1200000 100000", 8),
        (["0,1", "0,1"], "max", 1),
        ([""] * 4, "max", 3),  # the system does not tell
        (["0", "1"], "50000 100000", 1),
    ],
)
def test_a_thread_computes_on_each_core_and_room_is_left_for_the_services(
    siblings: list[str], quota: str, threads: int, system: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_processors(system, siblings, monkeypatch)
    (system / "group" / "cpu.max").write_text(quota if quota == "max" else quota + "\n")
    assert cores.computing_threads() == threads


def test_an_engine_settles_where_most_memory_can_be_had(system: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with_processors(system, [str(n) for n in range(8)], monkeypatch)
    with_node(system, 0, "0-3", free=500)
    with_node(system, 1, "4-5,7", free=100, files=450)
    with_node(system, 2, "", free=9999)  # memory without processors
    bound: list[frozenset[int]] = []
    monkeypatch.setattr(os, "sched_setaffinity", lambda task, processors: bound.append(processors))
    assert cores.memory_nodes() == {0: {0, 1, 2, 3}, 1: {4, 5, 7}}
    cores.settle()
    assert set(bound) == {frozenset({4, 5, 7})}
    bound.clear()
    cores.settle(0)
    assert set(bound) == {frozenset({0, 1, 2, 3})}
    with pytest.raises(ValueError, match=r"^numa_node: 2 is not .* there are 0, 1$"):
        cores.settle(2)


def test_ranks_are_spread_over_the_nodes(system: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with_processors(system, [str(n) for n in range(8)], monkeypatch)
    with_node(system, 0, "0-3", free=500)
    with_node(system, 1, "4-7", free=100)
    bound: list[frozenset[int]] = []
    monkeypatch.setattr(os, "sched_setaffinity", lambda task, processors: bound.append(processors))
    for ranks, expected in ((2, [(0, 1), (4, 1)]), (3, [(0, 2), (0, 2), (4, 1)]), (1, [(0, 1)])):
        for rank, (first, beside) in enumerate(expected):
            assert cores.settle(-1, rank, ranks) == beside
            assert min(bound[-1]) == first
    assert cores.settle(1, 0, 2) == 2


def test_a_machine_of_one_node_is_left_as_it_is(system: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_setaffinity", lambda *_: pytest.fail("nothing is to be bound"))
    assert cores.settle() == 1
    assert cores.settle(-1, 1, 3) == 3
    with_node(system, 0, "0-4095", free=500)
    assert cores.settle() == 1


def test_all_threads_of_a_process_are_bound() -> None:
    """On this machine itself, in a process of its own: also those that were there before."""
    program = """
import os, threading, time
from tandem.common import cores
done = threading.Event()
threads = [threading.Thread(target=done.wait) for _ in range(3)]
for thread in threads: thread.start()
one = frozenset({min(os.sched_getaffinity(0))})
cores.memory_nodes = lambda: {5: one}
cores.settle(5)
assert len(os.listdir("/proc/self/task")) >= 4
for task in os.listdir("/proc/self/task"):
    assert os.sched_getaffinity(int(task)) == one, task
done.set()
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
