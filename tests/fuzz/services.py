"""Both services, the demo model and drawn calls: what must hold whatever is asked.

No call ends as INTERNAL, UNKNOWN or DATA_LOSS by its own word or the server's, none outlives its deadline, nobody else
waits meanwhile, memory stays, and afterwards nothing runs and an honest request gets the answer that it got before.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import statistics
import tempfile
import threading
import time
from collections import Counter, deque
from collections.abc import Iterator
from concurrent.futures import Future, ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import suppress
from multiprocessing import get_context
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import grpc
import psutil
from prometheus_client.parser import text_string_to_metric_families

from tandem.client import AsyncClient
from tests.fuzz.requests import TOKENIZER, WORKER, Call, calls
from tests.integration.worker_process import service_process
from tests.soak.__main__ import name_of

DEMO = Path(__file__).resolve().parents[2] / "models" / "demo"
LANES = 6
BATCH = 32  # calls that are drawn at once
LATE_SECONDS = 10.0  # behind its deadline a call is late, and somebody else's small one without any
QUIET_SECONDS = 60.0  # until nothing may run any more
GROWN_MEGABYTES = 150.0  # of a process between the second and the last quarter of the time
WRONG = {grpc.StatusCode.INTERNAL, grpc.StatusCode.UNKNOWN, grpc.StatusCode.DATA_LOSS, grpc.StatusCode.UNAVAILABLE}
WRONG_NAMES = {code.name for code in WRONG}
MODULES = {TOKENIZER: "tandem.tokenizer", WORKER: "tandem.worker"}


class Drawn:
    """Calls from a process of its own, so that building large ones keeps no other one waiting."""

    def __init__(self, seed: int, first: int, most: int | None) -> None:
        self._pool = ProcessPoolExecutor(1, get_context("spawn"))
        self._seed = seed
        last = None if most is None else first + most
        self._numbers = _batches(first, last)
        self._lock = threading.Lock()
        self._ready: deque[Call] = deque()
        self._next = self._draw()

    def take(self) -> Call | None:
        """The next one; None: there are no more."""
        with self._lock:
            if not self._ready and self._next is not None:
                self._ready.extend(self._next.result())
                self._next = self._draw()
            return self._ready.popleft() if self._ready else None

    def close(self) -> None:
        self._pool.shutdown(cancel_futures=True)

    def _draw(self) -> Future[list[Call]] | None:
        numbers = next(self._numbers, None)
        return None if numbers is None else self._pool.submit(calls, self._seed, numbers)


def _batches(first: int, last: int | None) -> Iterator[range]:
    for begin in itertools.count(first, BATCH):
        if last is not None and begin >= last:
            return
        yield range(begin, begin + BATCH if last is None else min(begin + BATCH, last))


class Findings:
    """What went wrong, each kind told once."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.codes: Counter[str] = Counter()

    def add(self, what: str, more: str = "") -> None:
        self.counts[what] += 1
        if self.counts[what] == 1:
            print(f"FOUND {what} {more}".rstrip(), flush=True)


def send(channel: grpc.Channel, call: Call) -> tuple[grpc.StatusCode, str]:
    """How it ends."""
    arity = f"{'stream' if call.client_streams else 'unary'}_{'stream' if call.server_streams else 'unary'}"
    begun = getattr(channel, arity)(call.path)
    try:
        # The blocking client: where a stream is refused while it still writes, that of asyncio invents an INTERNAL.
        if not call.server_streams:
            begun(call.requests[0], timeout=call.seconds)
            return grpc.StatusCode.OK, ""
        answers = begun(iter(call.requests) if call.client_streams else call.requests[0], timeout=call.seconds)
        for number, _ in enumerate(answers):
            if number == call.reads:
                answers.cancel()
        return answers.code(), answers.details() or ""
    except grpc.RpcError as error:
        return error.code(), error.details() or ""


class Running:
    """The two services, seen from outside."""

    def __init__(
        self, folder: Path, addresses: dict[str, str], processes: dict[str, asyncio.subprocess.Process]
    ) -> None:
        unlimited = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]
        self.channels = {where: grpc.insecure_channel(address, unlimited) for where, address in addresses.items()}
        self._pages = {
            where: json.loads((folder / f"{module}.json").read_text())["metrics"] for where, module in MODULES.items()
        }
        self._processes = processes
        self.megabytes: dict[str, list[tuple[float, float]]] = {}

    def metric(self, name: str) -> dict[tuple[str, str], float]:
        """Of both services' RPCs: the sums by method and by status, where there is one."""
        found: dict[tuple[str, str], float] = {}
        for page in self._pages.values():
            with urlopen(f"http://{page}/metrics", timeout=60) as answer:
                families = list(text_string_to_metric_families(answer.read().decode()))
            for sample in (each for family in families for each in family.samples if each.name == name):
                key = sample.labels.get("grpc_method", ""), sample.labels.get("grpc_code", "")
                found[key] = found.get(key, 0) + sample.value
        return found

    def look(self) -> None:
        """Notes the memory of all processes."""
        totals: Counter[str] = Counter()
        for process in self._processes.values():
            with suppress(psutil.NoSuchProcess):  # `ended` tells
                root = psutil.Process(process.pid)
                for each in (root, *root.children(recursive=True)):
                    with suppress(psutil.NoSuchProcess):
                        totals[name_of(each)] += each.memory_info().rss
        for name, total in totals.items():  # one that is about to end has no memory any more
            if total:
                self.megabytes.setdefault(name, []).append((time.monotonic(), total / 2**20))

    @property
    def ended(self) -> list[str]:
        return [where for where, process in self._processes.items() if process.returncode is not None]


def growth(points: list[tuple[float, float]]) -> float:
    """From the second quarter of the time to the last; 0 where there is not enough to compare."""
    begin, end = points[0][0], points[-1][0]
    quarters: list[list[float]] = [[], [], [], []]
    for at, megabytes in points:
        quarters[min(3, int(4 * (at - begin) / max(end - begin, 1e-9)))].append(megabytes)
    return statistics.median(quarters[3]) - statistics.median(quarters[1]) if all(quarters) else 0.0


async def fuzz(minutes: float, seed: int, first: int = 1, most: int | None = None) -> Findings:
    """Sends calls, from number `first` on, for so long or until there were `most` of them."""
    findings = Findings()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        # Caches that are soon full, so that what grows afterwards is something else.
        flags = [f"--tokenizer=demo={DEMO}", "--chat-render-seconds=1", f"--encode-cache-bytes={4 << 20}"]
        async with service_process(MODULES[TOKENIZER], folder, *flags, "--log-level=error") as (tokenizer, one):
            flags = [f"--model={DEMO}", f"--tokenizer-address={tokenizer}", "--model-name=demo", "--threads=1"]
            flags += ["--kv-cache-tokens=8192", "--log-level=error"]
            async with (
                service_process(MODULES[WORKER], folder, *flags) as (worker, two),
                AsyncClient(tokenizer, worker, timeout=120) as client,
            ):
                running = Running(folder, {TOKENIZER: tokenizer, WORKER: worker}, {TOKENIZER: one, WORKER: two})
                before = await honest(client)
                drawn = Drawn(seed, first, most)
                try:
                    await _all_lanes(running, drawn, findings, client, time.monotonic() + minutes * 60)
                finally:
                    drawn.close()
                await _judge(running, client, findings, before)
    return findings


async def honest(client: AsyncClient) -> object:
    """What the services make of a plain request."""
    answer = await client.generate("ROMEO:", max_tokens=12, temperature=0.0)
    sampled = await client.generate("JULIET:", max_tokens=12, seed=1)
    return answer.text, sampled.text, await client.encode("Wherefore art thou?")


async def _all_lanes(running: Running, drawn: Drawn, findings: Findings, client: AsyncClient, until: float) -> None:
    def lane() -> None:
        while time.monotonic() < until and not running.ended and (call := drawn.take()) is not None:
            began = time.monotonic()
            code, details = send(running.channels[call.where], call)
            took = time.monotonic() - began
            findings.codes[f"{call.path.rpartition('/')[2]} {code.name}"] += 1
            if code in WRONG or took > call.seconds + LATE_SECONDS:
                late = " late" if took > call.seconds + LATE_SECONDS else ""
                findings.add(f"{call.path} {code.name}{late}: {details[:200]}", f"call {call.number}, {took:.1f} s")

    with ThreadPoolExecutor(LANES) as threads:
        loop = asyncio.get_running_loop()
        lanes = asyncio.gather(*(loop.run_in_executor(threads, lane) for _ in range(LANES)))
        while not lanes.done():
            await asyncio.wait([lanes], timeout=1)
            await asyncio.to_thread(running.look)
            await _ask_a_little(client, findings)
        await lanes


async def _ask_a_little(client: AsyncClient, findings: Findings) -> None:
    """What costs a service nothing is answered whatever others ask."""
    began = time.monotonic()
    try:
        await client.encode("a", timeout=LATE_SECONDS)
        await client.get_loads(timeout=LATE_SECONDS)
    except Exception as error:
        findings.add(f"a small request fails meanwhile: {type(error).__name__}: {str(error)[:200]}")
    if (took := time.monotonic() - began) > LATE_SECONDS:
        findings.add("small requests wait meanwhile", f"{took:.1f} s")


async def _judge(running: Running, client: AsyncClient, findings: Findings, before: object) -> None:
    for where in running.ended:
        findings.add(f"the {where} service has ended")
    if running.ended:
        return
    until = time.monotonic() + QUIET_SECONDS
    while busy := await _busy(running, client):
        if time.monotonic() > until:
            findings.add(f"{QUIET_SECONDS:g} s after the last call: {busy}")
            break
        await asyncio.sleep(0.2)
    handled = await asyncio.to_thread(running.metric, "tandem_grpc_server_handled_total")
    for (method, code), count in handled.items():
        if code in WRONG_NAMES and count:
            findings.add(f"{method}: the server itself counts {count:g} {code}")
    try:
        after = await honest(client)
    except Exception as error:
        findings.add(f"an honest request fails afterwards: {type(error).__name__}: {str(error)[:200]}")
    else:
        if after != before:
            findings.add("an honest request is answered otherwise than before", f"{before!r}, now {after!r}")
    for name, points in running.megabytes.items():
        print(f"{name}: {points[0][1]:.0f} to {points[-1][1]:.0f} MB, at most {max(each for _, each in points):.0f}")
        if (more := growth(points)) > GROWN_MEGABYTES:
            findings.add(f"{name}: memory grows by {more:.0f} MB from the second quarter of the time to the last")


async def _busy(running: Running, client: AsyncClient) -> str:
    """What has not returned; empty: all has."""
    flying = await asyncio.to_thread(running.metric, "tandem_grpc_server_in_flight")
    streams = await asyncio.to_thread(running.metric, "tandem_tokenizer_open_streams")
    loads = await client.get_loads(check_integrity=True, timeout=QUIET_SECONDS)
    found = {method: count for (method, _), count in flying.items() if count and method != "Watch"}
    if open_streams := sum(streams.values()):
        found["open streams"] = open_streams
    for load in loads.values():
        if load.integrity_error:
            return f"the page table is broken: {load.integrity_error}"
        if load.running_requests or load.waiting_requests or load.pages_referenced:
            found["requests"] = load.running_requests + load.waiting_requests
            found["pages"] = load.pages_referenced
    return ", ".join(f"{what}: {count:g}" for what, count in found.items())


def tell(findings: Findings) -> None:
    """How many calls ended how."""
    totals: dict[str, dict[str, Any]] = {}
    for key, count in sorted(findings.codes.items()):
        method, code = key.split()
        totals.setdefault(method, {})[code] = count
    print(f"{sum(findings.codes.values())} calls")
    for method, codes in totals.items():
        print(f"  {method}: " + ", ".join(f"{code} {count}" for code, count in codes.items()))
