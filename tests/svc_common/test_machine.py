"""What a process may have of its machine: its control group counts."""

from __future__ import annotations

import os
from pathlib import Path

import psutil
import pytest

from tandem.common import machine


@pytest.fixture
def group(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of our control group, empty at first."""
    monkeypatch.setattr(machine, "_GROUP", tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("quota", "cores"),
    [("250000 100000", 2), ("50000 100000", 1), ("9900000 100000", 8), ("max 100000", 8), ("nonsense", 8), (None, 8)],
)
def test_a_quota_of_processor_time_counts_as_cores(
    quota: str | None, cores: int, group: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)))
    if quota is not None:
        (group / "cpu.max").write_text(quota + "\n")
    assert machine.available_cores() == cores


def test_a_limit_of_a_group_around_ours_counts_too(
    group: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    proc = tmp_path_factory.mktemp("proc")
    monkeypatch.setattr(machine, "_PROC", proc)
    (proc / "self").mkdir()
    (proc / "self" / "cgroup").write_text("3:cpuset:/elsewhere\n0::/services.slice/worker.service\n")
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)))
    (group / "services.slice" / "worker.service").mkdir(parents=True)
    (group / "services.slice" / "cpu.max").write_text("300000 100000\n")
    (group / "services.slice" / "worker.service" / "cpu.max").write_text("500000 100000\n")
    (group / "services.slice" / "memory.max").write_text("1000000\n")
    (group / "services.slice" / "memory.current").write_text("900000\n")
    (group / "services.slice" / "worker.service" / "memory.max").write_text("max\n")
    (group / "services.slice" / "worker.service" / "memory.current").write_text("200000\n")
    assert machine.available_cores() == 3
    assert (machine.memory(), machine.free_memory()) == (1_000_000, 100_000)


def test_groups_of_version_1_count_as_those_of_version_2(
    group: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    proc = tmp_path_factory.mktemp("proc")
    monkeypatch.setattr(machine, "_PROC", proc)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)))
    (proc / "self").mkdir()
    (proc / "self" / "cgroup").write_text("4:memory:/docker/a\n2:cpu,cpuacct:/docker/a\n1:name=systemd:/x\n0::/y\n")
    for controller in ("cpu", "memory"):
        (group / controller).mkdir()
    (group / "cpu" / "cpu.cfs_quota_us").write_text("-1\n")
    (group / "cpu" / "cpu.cfs_period_us").write_text("100000\n")
    (group / "memory" / "memory.limit_in_bytes").write_text("9223372036854771712\n")
    (group / "memory" / "memory.usage_in_bytes").write_text("5000000\n")
    assert (machine.available_cores(), machine.memory()) == (8, psutil.virtual_memory().total)
    # In a container its own groups are at the top.
    (group / "cpu" / "cpu.cfs_quota_us").write_text("250000\n")
    (group / "memory" / "memory.limit_in_bytes").write_text("6000000\n")
    assert (machine.available_cores(), machine.memory(), machine.free_memory()) == (2, 6_000_000, 1_000_000)
    (group / "memory" / "docker" / "a").mkdir(parents=True)
    (group / "memory" / "docker" / "a" / "memory.limit_in_bytes").write_text("300000\n")
    (group / "memory" / "docker" / "a" / "memory.usage_in_bytes").write_text("100000\n")
    assert (machine.memory(), machine.free_memory()) == (300_000, 200_000)


def test_memory_is_what_the_control_group_allows(group: Path) -> None:
    assert machine.memory() == psutil.virtual_memory().total
    (group / "memory.max").write_text("1000000\n")
    (group / "memory.current").write_text("400000\n")
    assert (machine.memory(), machine.free_memory(), machine.obtainable_memory()) == (1_000_000, 600_000, 600_000)
    (group / "memory.current").write_text("1000001\n")
    assert machine.free_memory() == 0
    (group / "memory.max").write_text("max\n")
    assert 0 < machine.free_memory() < machine.memory() == psutil.virtual_memory().total
    assert 0 < machine.obtainable_memory() < machine.memory()


def test_a_machine_that_tells_nothing_has_a_processor_nevertheless(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine, "_PROC", tmp_path)
    assert (machine.processor_name(), machine.processor_fact("flags")) == ("cpu", "")
    assert machine.obtainable_memory() > 0
    (tmp_path / "cpuinfo").write_text("processor\t: 0\nmodel name\t: Some CPU @ 2: fast\nflags\t\t: fpu avx\n")
    assert (machine.processor_name(), machine.processor_fact("flags", "Features")) == ("Some CPU @ 2: fast", "fpu avx")
