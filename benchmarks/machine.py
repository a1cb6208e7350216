"""What a result must say about where it was measured, and where it is kept."""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results"
HOMES = ("client", "protos", "svc_common", "tokenizer_svc", "worker_svc", "http_svc")  # of packages in a checkout
_PACKAGES = ("torch", "grpcio", "protobuf", "numpy", "tiktoken", "sentencepiece", "tokenizers")


def describe_machine() -> dict[str, object]:
    """Processor, cores, memory, and the versions that matter."""
    lines = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return {
        "processor": names[0] if names else platform.processor(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_gib": round(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30, 1),
        "system": platform.platform(),
        "python": platform.python_version(),
        "packages": {name: found for name in _PACKAGES if (found := _version(name))},
    }


def busy_seconds() -> float:
    """What all processes have used of all cores since the machine's start, and what it was kept from, to hundredths."""
    names = ("user", "nice", "system", "idle", "iowait", "irq", "softirq", "steal")
    ticks = dict(zip(names, map(int, Path("/proc/stat").read_text().split()[1:]), strict=False))
    return (sum(ticks.values()) - ticks["idle"] - ticks["iowait"]) / os.sysconf("SC_CLK_TCK")


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return ""


def _commit() -> str:
    command = ["git", "-C", str(ROOT), "describe", "--always", "--dirty"]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()


def add_output_flags(parser: argparse.ArgumentParser) -> None:
    """`--machine` and `--no-save`."""
    parser.add_argument(
        "--machine", default=f"cpu{len(os.sched_getaffinity(0))}", help="name in the result's file name"
    )
    parser.add_argument("--no-save", action="store_true", help="print only")


def _shown(argument: str) -> str:
    """Less what is this machine's alone."""
    inside = argument.removeprefix(f"{ROOT}/")
    return Path(inside).name if inside.startswith("/") else inside


def _path_today(benchmark: str, machine: str) -> Path:
    return RESULTS / f"{benchmark}-{machine}-{datetime.now(UTC):%Y-%m-%d}.json"


def saved_today(benchmark: str, machine: str) -> Any:
    """The results that `save` has written today; {} if there are none."""
    path = _path_today(benchmark, machine)
    return json.loads(path.read_text())["results"] if path.exists() else {}


def save(benchmark: str, options: argparse.Namespace, results: object) -> None:
    """Writes `benchmarks/results/BENCHMARK-MACHINE-DATE.json` unless told not to."""
    if options.no_save:
        return
    now = datetime.now(UTC)
    RESULTS.mkdir(exist_ok=True)
    path = _path_today(benchmark, options.machine)
    arguments = {name: value for name, value in vars(options).items() if isinstance(value, (str, int, float, list))}
    here: dict[str, object] = {
        name: _shown(value)
        if isinstance(value, str)
        else [_shown(each) if isinstance(each, str) else each for each in value]
        for name, value in arguments.items()
        if isinstance(value, (str, list))
    }
    record = {
        "benchmark": benchmark,
        "measured": now.isoformat(timespec="seconds"),
        "commit": _commit(),
        "machine": describe_machine(),
        "arguments": arguments | here,
        "results": results,
    }
    path.write_text(json.dumps(record, indent=1) + "\n")
    print(f"\nsaved {path.relative_to(ROOT)}")
