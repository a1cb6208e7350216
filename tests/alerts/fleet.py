"""A tokenizer service and two workers that alerts are about, and what a cause of one is made of."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from tandem.client import AsyncClient, FailoverSettings, TandemError
from tests.conftest import REPOSITORY
from tests.integration.smg_process import free_port
from tests.integration.test_engine_faults import DEADLY
from tests.integration.worker_process import ENVIRONMENT, service_process

DEMO = REPOSITORY / "models" / "demo"
ENGINE = "tandem.worker.engine.process.main"
DEFECT = "DEFECT"
NO_ENGINES = "no-engines"
LEAK_OF_SERVICE, LEAK_OF_ENGINE = "leak-of-service", "leak-of-engine"
LEAKED_BYTES = 768 << 20
# Read by Python at the start of every process: one text finds a defect in the tokenizer service. While a file is there
# no engine starts, or the tokenizer service or engines hold much more memory.
DEFECTIVE = f"""
import os, sys
if {ENGINE!r} in sys.orig_argv and os.path.exists(os.path.join(os.path.dirname(__file__), {NO_ENGINES!r})):
    os._exit(1)
if "tandem.tokenizer" in sys.orig_argv:
    from tandem.tokenizer.rpc.encode_calls import EncodeCalls
    inner = EncodeCalls.encode
    async def encode(self, loaded, job, *rest):
        if any({DEFECT!r} in segment.text for segment in job.segments):
            raise RuntimeError("a defect")
        return await inner(self, loaded, job, *rest)
    EncodeCalls.encode = encode
leak = {LEAK_OF_ENGINE!r} if {ENGINE!r} in sys.orig_argv else {LEAK_OF_SERVICE!r}
if {ENGINE!r} in sys.orig_argv or "tandem.tokenizer" in sys.orig_argv:
    import threading, time
    def hold():
        held = None
        while True:
            wanted = os.path.exists(os.path.join(os.path.dirname(__file__), leak))
            if wanted != (held is not None):
                held = b"x" * {LEAKED_BYTES} if wanted else None
            time.sleep(0.2)
    threading.Thread(target=hold, daemon=True).start()
"""


@dataclass
class Service:
    """One service at one address, whichever process it is at the moment."""

    module: str
    flags: tuple[str, ...]
    folder: Path
    environment: Mapping[str, str]
    port: int = field(default_factory=free_port)
    front: psutil.Process = field(init=False)
    _running: AsyncExitStack | None = None

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def metrics(self) -> str | None:
        """Where a scrape finds it; None while there is nothing to find."""
        if self._running is None:
            return None
        try:
            return str(json.loads((self.folder / f"{self.module}.json").read_text())["metrics"])
        except FileNotFoundError:  # it has given up
            return None

    def engine(self) -> psutil.Process:
        """Its engine. Raises StopIteration while there is none."""
        return next(each for each in self.front.children() if ENGINE in each.cmdline())

    async def start(self) -> None:
        """Starts a process, and returns when it serves."""
        running = AsyncExitStack()
        flags = (*self.flags, f"--port={self.port}", "--log-level=error", "--drain-grace-seconds=2")
        _, process = await running.enter_async_context(
            service_process(self.module, self.folder, *flags, environment=self.environment)
        )
        self.front, self._running = psutil.Process(process.pid), running

    async def stop(self) -> None:
        """Ends the process, if there is one."""
        running, self._running = self._running, None
        if running is not None:
            await running.aclose()

    async def kill(self) -> None:
        """Ends the process without a warning, and what it has started; nothing where there is none."""
        if self._running is None:
            return
        with suppress(psutil.NoSuchProcess):
            for process in (self.front, *self.front.children(recursive=True)):
                with suppress(psutil.NoSuchProcess):
                    process.kill()
        await self.stop()
        (self.folder / f"{self.module}.json").unlink(missing_ok=True)


@dataclass
class Fleet:
    """`small` is a worker with a small KV cache, `large` one with a large cache and few places."""

    tokenizer: Service
    small: Service
    large: Service
    defects: Path  # the folder that Python reads at the start of every process

    @property
    def services(self) -> tuple[Service, ...]:
        return (self.tokenizer, self.small, self.large)

    def targets(self) -> dict[str, list[str]]:
        """What discovery finds now, by job."""
        found: dict[str, list[str]] = {}
        for service in self.services:
            here = found.setdefault(service.module.replace(".", "-"), [])
            if (metrics := service.metrics) is not None:
                here.append(metrics)
        return found

    def client(self, *workers: Service, timeout: float = 60) -> AsyncClient:
        """A client that gives each error to its caller."""
        failover = FailoverSettings(attempts=0, restart_seconds=0)
        addresses = [worker.address for worker in workers or (self.small, self.large)]
        return AsyncClient(self.tokenizer.address, addresses, failover=failover, timeout=timeout)


@asynccontextmanager
async def running_fleet(folder: Path) -> AsyncIterator[Fleet]:
    """All of them, until the end."""
    defects = folder / "defects"
    defects.mkdir()
    (defects / "sitecustomize.py").write_text(
        DEFECTIVE + DEADLY
    )  # an engine that does not start ends before it loads anything
    paths = [str(defects), str(REPOSITORY), ENVIRONMENT.get("PYTHONPATH", "")]
    environment = {"PYTHONPATH": os.pathsep.join(filter(None, paths)), "POISON": str(int(signal.SIGSEGV))}

    def service(module: str, name: str, *flags: str) -> Service:
        (folder / name).mkdir()
        return Service(module, flags, folder / name, environment)

    def worker(name: str, *flags: str) -> Service:
        return service("tandem.worker", name, f"--model={DEMO}", "--model-name=demo", "--threads=1", *flags)

    fleet = Fleet(
        service("tandem.tokenizer", "tokenizer", f"--tokenizer=demo={DEMO}", "--threads=1", "--max-queued-jobs=2"),
        worker("small", "--kv-cache-tokens=2048", "--engine-stall-seconds=6"),
        worker("large", "--kv-cache-tokens=393216", "--max-running-requests=2", "--max-waiting-requests=60",
               "--engine-stall-seconds=60"),
        defects,
    )  # fmt: skip
    try:
        await asyncio.gather(*(each.start() for each in fleet.services))
        yield fleet
    finally:
        for each in fleet.services:
            await each.kill()


@asynccontextmanager
async def crowd(callers: int, ask: Callable[[int], Awaitable[object]], pause: float = 0.0) -> AsyncIterator[None]:
    """So many callers ask, each time with a new number, `pause` seconds after they were answered; what fails is asked
    anew."""
    numbers = itertools.count()

    async def caller() -> None:
        while True:
            try:
                await ask(next(numbers))
            except TandemError:
                await asyncio.sleep(0.5)
            await asyncio.sleep(pause)

    tasks = [asyncio.create_task(caller()) for _ in range(callers)]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
