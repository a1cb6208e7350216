"""Runs both services and the HTTP door with the demo model under mixed traffic and watches what they keep.

    python -m tests.soak --minutes 3
    python -m tests.soak --minutes 60 --folder soak --pause 2

Writes soak.json (every sample) and soak.svg (memory, descriptors and threads of each process, pages, over time) into
--folder. The exit code is 1 where memory grows over the second half, or where descriptors, threads or pages do not
return once nothing runs; `judging.py` has the limits.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import aclosing
from dataclasses import asdict
from pathlib import Path
from random import Random

import psutil

from tandem.client import AsyncClient
from tandem.worker.engine.guides.limits import KEPT_GUIDES
from tests.integration.worker_process import service_process
from tests.soak.door import Door
from tests.soak.drawing import drawing
from tests.soak.judging import Sample, complaints, growth
from tests.soak.traffic import Traffic, guided

DEMO = Path(__file__).resolve().parents[2] / "models" / "demo"
LANES = 12
KV_CACHE_TOKENS = 8192  # so few that the cache is full, and all of its memory touched, after the first requests
ENCODE_CACHE_BYTES = 4 << 20  # the same for the cache of texts
STALLED_SECONDS = 3.0  # until a reader who takes nothing is cut off: some are, some leave before
QUIET_SECONDS = 60  # at most, until what has ended is gone
WARM_UP = 0.1  # of the time, until descriptors and threads are counted for the first time


def name_of(process: psutil.Process) -> str:
    """What it is to the services: their own process, the engine, or another helper such as a template renderer."""
    words = process.cmdline()
    module = words[words.index("-m") + 1] if "-m" in words[:-1] else " ".join(words[1:3])
    return {
        "tandem.tokenizer": "tokenizer",
        "tandem.worker": "worker front",
        "tandem.http": "door",
        "tandem.worker.engine.process.main": "engine",
    }.get(module, module.rpartition("/")[2].removesuffix(".py")[-40:])


def own_megabytes(pid: int) -> float:
    """Anonymous and shared memory, each page divided by the processes that have it: a fork costs what it has changed.

    Pages of files are left out: what they count as depends on whoever else has the same libraries open.
    """
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text("ascii").splitlines()[1:]
    kib = {name: int(number) for name, number, _ in map(str.split, lines)}
    return (kib["Pss_Anon:"] + kib["Pss_Shmem:"]) / 1024


class Watch:
    """Looks at the process trees of the services."""

    def __init__(self, pids: list[int], client: AsyncClient, traffic: Traffic) -> None:
        self._roots = [psutil.Process(pid) for pid in pids]
        self._client, self._traffic = client, traffic
        self._started = time.monotonic()
        self.samples: list[Sample] = []

    async def look(self) -> Sample:
        loads = await self._client.get_loads(check_integrity=True, timeout=60)
        sample = Sample(time.monotonic() - self._started, self._traffic.requests)
        sample.pages = sum(load.pages_referenced for load in loads.values())
        for process in (each for root in self._roots for each in (root, *root.children(recursive=True))):
            try:
                name, megabytes = name_of(process), own_megabytes(process.pid)
                descriptors, threads = process.num_fds(), process.num_threads()
            except (psutil.Error, OSError):  # it is ending
                continue
            for to, number in (
                (sample.megabytes, megabytes),
                (sample.descriptors, descriptors),
                (sample.threads, threads),
            ):
                to[name] = to.get(name, 0) + number  # type: ignore[operator]
        return sample

    async def until(self, done: asyncio.Task[None], interval: float) -> None:
        while not done.done():
            self.samples.append(await self.look())
            await asyncio.wait([done], timeout=interval)
        await done

    async def quiet(self) -> Sample:
        """The services once nothing runs, or after `QUIET_SECONDS`."""
        until = time.monotonic() + QUIET_SECONDS
        while (sample := await self.look()).pages and time.monotonic() < until:  # noqa: ASYNC110 - it has to be asked for
            await asyncio.sleep(0.2)
        return sample


async def soak(
    more: Callable[[Traffic, float], Callable[[], bool]], interval: float, seed: int, pause: float = 0.0
) -> tuple[Watch, list[Sample], Traffic]:
    """Runs it, looking every `interval` seconds; `more` tells for a share of the whole whether it goes on. Returns what
    was seen, and the services at rest: after a first bit of everything, and at the end."""
    with tempfile.TemporaryDirectory() as name:
        own = Path(name)
        flags = (f"--tokenizer=demo={DEMO}", "--log-level=error", "--chat-render-seconds=1")
        flags += (f"--encode-cache-bytes={ENCODE_CACHE_BYTES}",)
        async with service_process("tandem.tokenizer", own, *flags) as (tokenizer, first):
            flags = (f"--model={DEMO}", f"--tokenizer-address={tokenizer}", "--model-name=demo", "--threads=1")
            flags += (f"--kv-cache-tokens={KV_CACHE_TOKENS}", "--log-level=error")
            async with (
                service_process("tandem.worker", own, *flags) as (worker, second),
                AsyncClient(tokenizer, worker, timeout=120) as client,
                service_process("tandem.http", own, *door_flags(tokenizer, worker)) as (address, third),
                aclosing(Door(address)) as door,
            ):
                traffic = Traffic(client, door, seed, LANES, pause)
                watch = Watch([first.pid, second.pid, third.pid], client, traffic)
                for number in range(KEPT_GUIDES):  # as many processes of guides as will stay
                    await guided(client, Random(number))
                quiet = []
                for share in (WARM_UP, 1 - WARM_UP):
                    running = asyncio.create_task(traffic.run(more(traffic, share)))
                    await watch.until(running, interval)
                    quiet.append(await watch.quiet())
    return watch, quiet, traffic


def door_flags(tokenizer: str, worker: str) -> list[str]:
    seconds = f"--stalled-reader-seconds={STALLED_SECONDS:g}"
    return [f"--tokenizer-address={tokenizer}", f"--worker-address={worker}", seconds, "--log-level=error"]


async def soak_for(minutes: float, seed: int, pause: float, folder: Path) -> list[str]:
    """Runs it for so long; what is wrong."""

    def more(_: Traffic, share: float) -> Callable[[], bool]:
        until = time.monotonic() + minutes * 60 * share
        return lambda: time.monotonic() < until

    watch, quiet, traffic = await soak(more, minutes * 60 / 100, seed, pause)
    tell(watch.samples, quiet[-1], traffic, folder)
    return complaints(watch.samples, *quiet) + traffic.unexpected[:10]


def tell(samples: list[Sample], end: Sample, traffic: Traffic, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    rates = {process: round(growth(samples, process), 2) for process in sorted(end.megabytes)}
    result = {"megabytes_per_1000_requests": rates, "ended": dict(traffic.ended), "end": asdict(end)}
    (folder / "soak.json").write_text(json.dumps(result | {"samples": [asdict(each) for each in samples]}, indent=1))
    rows = {
        quantity: {name: [getattr(each, field).get(name, math.nan) for each in samples] for name in end.megabytes}
        for quantity, field in (("memory, MB", "megabytes"), ("descriptors", "descriptors"), ("threads", "threads"))
    }
    rows["pages in use"] = {"pages": [float(each.pages) for each in samples]}
    (folder / "soak.svg").write_text(drawing([each.seconds for each in samples], rows))
    print(f"{traffic.requests} requests: {dict(traffic.ended)}")
    for process, rate in rates.items():
        first = next(each.megabytes[process] for each in samples if process in each.megabytes)
        print(f"{process}: {first:.0f} -> {end.megabytes[process]:.0f} MB, {rate:+.1f} MB per 1,000 requests")
    print(f"curves: {folder / 'soak.svg'}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=3.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--pause", type=float, default=0.0, help="mean seconds that each lane rests between requests")
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir(), "tandem-soak"))
    options = parser.parse_args()
    found = asyncio.run(soak_for(options.minutes, options.seed, options.pause, options.folder))
    print("\n".join(["FAILED:", *found]) if found else "nothing grows, and everything returned")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
