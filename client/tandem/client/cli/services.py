"""Both services as child processes: started, watched, and always stopped at the end."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import signal
import tempfile
import threading
from collections import deque
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from tandem.client.cli.models_at_hand import pulled
from tandem.client.cli.spawning import begin
from tandem.client.cli.terminal import CommandError, Stopped, announce

T = TypeVar("T")

POLL_SECONDS = 0.02

Line = Callable[[str, str], None]  # (service, line of its log)


class ServiceProcess:
    """One service as a process."""

    def __init__(self, name: str, module: str, arguments: Sequence[str], folder: Path, on_line: Line) -> None:
        self.name = name
        self.address_file = folder / f"{name}.json"
        self._on_line = on_line
        self._last_lines: deque[str] = deque(maxlen=20)
        self._process = begin(module, [*arguments, f"--address-file={self.address_file}", "--exit-when-stdin-closes"])
        self._reader = threading.Thread(target=self._read, name=f"{name} log", daemon=True)
        self._reader.start()

    @property
    def exit_code(self) -> int | None:
        return self._process.poll()

    async def address(self) -> str:
        """Returns HOST:PORT once it serves. Raises CommandError with the service's own message when it ends before."""
        while not self.address_file.exists():
            if self.exit_code is not None:
                raise self.failure("did not start")
            await asyncio.sleep(POLL_SECONDS)
        return str(json.loads(self.address_file.read_text())["address"])

    async def ended(self) -> int:
        while (code := self.exit_code) is None:  # noqa: ASYNC110  (there is no portable event for it)
            await asyncio.sleep(POLL_SECONDS)
        return code

    def failure(self, what: str) -> CommandError:
        """Returns why it ended, from its log."""
        self._reader.join(1)
        lines = [line for line in self._last_lines if line.strip()]
        for line in reversed(lines):
            if match := re.search(r"ModuleNotFoundError: No module named '([\w.]+)'", line):
                return CommandError(
                    f"the {self.name} {what}: {match[1]} is not installed: pip install 'tandem-llm[{self.name}]'"
                )
        own = next((line for line in reversed(lines) if "cannot start: " in line), lines[-1] if lines else "")
        words = own.partition("cannot start: ")[2] or own or f"exit code {self.exit_code}"
        return CommandError(f"the {self.name} {what}: {words}")

    def terminate(self) -> None:
        if self.exit_code is None:
            self._process.terminate()

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)

    def close(self) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):
            self._process.stdin.close()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for raw in self._process.stdout:
            line = raw.decode(errors="replace").rstrip()
            self._last_lines.append(line)
            self._on_line(self.name, line)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServicePlan:
    """The services to start."""

    model: Path
    tokenizer: Path
    host: str = "127.0.0.1"
    tokenizer_port: int = 0
    worker_port: int = 0
    metrics: bool = False
    tokenizer_metrics_port: int = 0
    worker_metrics_port: int = 0
    log_level: str = "warning"
    drain_seconds: float = 1.0
    tokenizer_flags: Sequence[str] = ()
    worker_flags: Sequence[str] = ()
    with_worker: bool = True
    http_port: int | None = None  # None: no HTTP door
    http_metrics_port: int = 0
    http_flags: Sequence[str] = ()

    def common(self, port: int, metrics_port: int) -> list[str]:
        return [
            f"--host={self.host}",
            f"--port={port}",
            "--metrics-enabled" if self.metrics else "--no-metrics-enabled",
            f"--metrics-host={self.host}",
            f"--metrics-port={metrics_port}",
            f"--log-level={self.log_level}",
            f"--drain-grace-seconds={self.drain_seconds:g}",
        ]


class Services:
    """The running services: both and optionally the HTTP server, or the tokenizer alone."""

    def __init__(self, plan: ServicePlan, folder: Path, on_line: Line | None) -> None:
        self._plan = plan
        self._folder = folder
        self._on_line = on_line
        self._progress: Callable[[str], None] = lambda words: None
        self._worker_does = f"the worker loads {plan.model}"
        self._running: list[ServiceProcess] = []
        self._started = False
        self.tokenizer_address = ""
        self.worker_address = ""
        self.http_address = ""

    async def start(self, progress: Callable[[str], None]) -> None:
        """Starts the tokenizer and, if there is one, beside it the worker, which asks the tokenizer whether they match
        once its model is loaded; then the HTTP server."""
        plan = self._plan
        self._progress = progress
        beside = f" and the worker, which loads {plan.model}" if plan.with_worker else ""
        progress(f"starting the tokenizer{beside}")
        tokenizer = self._launch(
            "tokenizer",
            "tandem.tokenizer",
            [
                f"--tokenizer={tokenizer_name(plan.model)}={plan.tokenizer}",
                *plan.common(plan.tokenizer_port, plan.tokenizer_metrics_port),
                *plan.tokenizer_flags,
            ],
        )
        if not plan.with_worker:
            self.tokenizer_address = reachable(await tokenizer.address())
            self._started = True
            return
        worker = self._launch(
            "worker",
            "tandem.worker",
            [
                f"--model={plan.model}",
                f"--tokenizer-address-file={tokenizer.address_file}",
                *plan.common(plan.worker_port, plan.worker_metrics_port),
                *plan.worker_flags,
            ],
        )
        self.tokenizer_address = reachable(await self._while_running(tokenizer.address()))
        progress(f"the tokenizer is ready; {self._worker_does}")
        self.worker_address = reachable(await self._while_running(worker.address()))
        if plan.http_port is not None:
            progress("starting the HTTP door")
            http = self._launch(
                "http",
                "tandem.http",
                [
                    f"--tokenizer-address={self.tokenizer_address}",
                    f"--worker-address={self.worker_address}",
                    *plan.common(plan.http_port, plan.http_metrics_port),
                    *plan.http_flags,
                ],
            )
            self.http_address = reachable(await self._while_running(http.address()))
        self._started = True

    async def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Returns the result of `work`. Raises CommandError when a service ends meanwhile."""
        return await self._while_running(work)

    async def watch(self) -> None:
        """Waits for ever. Raises CommandError when a service ends."""
        await self._while_running(asyncio.Event().wait())

    async def stop(self) -> None:
        """Stops the services, the last one first, which may still call those before it. It takes a bounded time;
        afterwards nothing runs."""
        for service in reversed(self._running):
            service.terminate()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._plan.drain_seconds + 5):
                    await service.ended()
        self.kill()
        for service in self._running:
            await service.ended()
            service.close()

    def kill(self) -> None:
        for service in self._running:
            service.kill()

    def _launch(self, name: str, module: str, arguments: Sequence[str]) -> ServiceProcess:
        service = ServiceProcess(name, module, arguments, self._folder, self._hear)
        self._running.append(service)
        return service

    def _hear(self, name: str, line: str) -> None:
        """Passes a line of a service's log on, and shows what a first start waits for."""
        if self._on_line is not None:
            self._on_line(name, line)
        elif not self._started and (found := re.search(r"compiling \w+ once .*", line)):
            self._worker_does = f"the {name} is {found[0]}, which takes a minute or more"
            self._progress(self._worker_does)

    async def _while_running(self, work: Coroutine[Any, Any, T]) -> T:
        task = asyncio.ensure_future(work)
        watches = {asyncio.ensure_future(service.ended()): service for service in self._running}
        try:
            await asyncio.wait([task, *watches], return_when=asyncio.FIRST_COMPLETED)
            if task.done():
                return task.result()
            service = next(service for watch, service in watches.items() if watch.done())
            raise service.failure("has ended" if self._started else "did not start")
        finally:
            for each in (task, *watches):
                each.cancel()
            await asyncio.wait([task, *watches])


@asynccontextmanager
async def running_services(
    plan: ServicePlan, *, progress: Callable[[str], None], on_line: Line | None = None
) -> AsyncIterator[Services]:
    """Starts both services and yields them when they are ready; they are always stopped at the end. A second signal
    meanwhile kills them at once."""
    with tempfile.TemporaryDirectory(prefix="tandem-") as folder:
        services = Services(plan, Path(folder), on_line)
        _alive.append(services)
        try:
            await services.start(progress)
            yield services
        finally:
            await _to_its_end(services.stop())
            _alive.remove(services)


async def _to_its_end(work: Coroutine[Any, Any, None]) -> None:
    """Awaits `work` even when a signal cancels us meanwhile; the cancellation is raised afterwards."""
    task = asyncio.ensure_future(work)
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError as error:
            cancelled = error
    task.result()
    if cancelled is not None:
        raise cancelled


_alive: list[Services] = []


def interruptible(work: Coroutine[Any, Any, T], on_interrupt: Callable[[], bool] = lambda: False) -> T:
    """Runs `work`. A signal cancels it, and Stopped is raised after its clean-up; a second one kills the services.
    `on_interrupt` is asked first at Ctrl-C, and returns whether that was all to be done."""

    async def guarded() -> T:
        task = asyncio.ensure_future(work)
        received: list[int] = []

        def react(number: int) -> None:
            if number == signal.SIGINT and not received and on_interrupt():
                return
            received.append(number)
            if len(received) == 1:
                task.cancel()  # before anything that may fail
                if _alive:
                    announce("stopping (once more to kill)")
            else:
                for services in _alive:
                    services.kill()

        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            if number is signal.SIGHUP and signal.getsignal(number) is signal.SIG_IGN:
                continue  # nohup
            asyncio.get_running_loop().add_signal_handler(number, react, int(number))
        await asyncio.wait([task])
        if received:
            raise Stopped(received[0])
        return task.result()

    return asyncio.run(guarded())


def reachable(address: str) -> str:
    """Returns an address to connect to, of a server that may listen on all interfaces."""
    host, _, port = address.rpartition(":")
    return f"{ {'0.0.0.0': '127.0.0.1', '[::]': '[::1]', '::': '[::1]'}.get(host, host) }:{port}"  # noqa: S104


def tokenizer_name(model: Path) -> str:
    """Returns the model's name in the characters that a tokenizer's name may have."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", model.resolve().name).lstrip("._-") or "default"


def find_model(model: Path | None, tokenizer: Path | None) -> tuple[Path, Path]:
    """Returns the checkpoint folder, and the tokenizer's file or folder. Raises CommandError that says what is
    missing."""
    if model is None:
        places = [place / "models" / "demo" for place in (Path.cwd(), *Path(__file__).resolve().parents)]
        places.append(Path(__file__).resolve().parents[2] / "demo")  # of a wheel
        model = next((place for place in places if place.is_dir()), None)
        if model is None:
            raise CommandError("the demo model is not here: give --model FOLDER", exit_code=2)
    if not model.exists():
        found = pulled(str(model))
        if found is None:
            told = f", and `tandem pull {model}` has not fetched it" if str(model).count("/") == 1 else ""
            raise CommandError(f"--model {model}: no such folder{told}")
        model = found
    if tokenizer is not None and not tokenizer.exists():
        raise CommandError(f"--tokenizer {tokenizer}: no such file")
    return model, tokenizer or model
