"""Both services as processes, kept running the way a container platform does: what ends is started again, and what does
not answer its liveness probe is killed."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import grpc
import grpc.aio
import psutil
from grpc_health.v1 import health_pb2, health_pb2_grpc

from tandem.inference.v1 import inference_pb2, inference_pb2_grpc
from tandem.tokenizer.v1 import tokenizer_pb2, tokenizer_pb2_grpc
from tests.chaos.proxy import Proxy
from tests.conftest import REPOSITORY

START_SECONDS = 120.0  # on a machine under load
_PROBE_SECONDS, _PROBE_PAUSE, _PROBE_FAILURES = 3.0, 0.5, 3
_SMALL_DISK = "4m"
READY = {
    "tandem.worker": "tandem.inference.v1.InferenceService",
    "tandem.tokenizer": "tandem.tokenizer.v1.TokenizerService",
}


@dataclass
class Member:
    """One service, whichever process it is at the moment."""

    name: str
    module: str
    flags: tuple[str, ...]
    folder: Path  # for its log and its temporary files
    port: int
    proxy: Proxy
    starts: int = 0
    process: subprocess.Popen[bytes] | None = None
    _channel: grpc.aio.Channel | None = None

    @property
    def temporary(self) -> Path:
        """Its TMPDIR."""
        return self.folder / "tmp"

    def start(self) -> None:
        """Starts the process."""
        self.temporary.mkdir(exist_ok=True)
        self.starts += 1
        with contextlib.suppress(OSError), (self.folder / "log").open("ab") as log:
            self.process = subprocess.Popen(
                [
                    *(sys.executable, "-m", self.module, *self.flags),
                    *(f"--port={self.port}", "--no-metrics-enabled", "--drain-grace-seconds=10"),
                ],
                stdout=log,
                stderr=log,
                cwd=REPOSITORY,
                env={**os.environ, "OMP_NUM_THREADS": "1", "TMPDIR": str(self.temporary)},
            )

    def said(self, since: int = 0) -> str:
        """What its processes have written, from the character `since` on."""
        return (self.folder / "log").read_text(errors="replace")[since:]

    def front(self) -> psutil.Process:
        """The process itself. Raises psutil.NoSuchProcess while there is none."""
        if self.process is None:
            raise psutil.NoSuchProcess(0)
        return psutil.Process(self.process.pid)

    def children(self, word: str) -> list[psutil.Process]:
        """Those of its processes whose command line has `word`."""
        found = []
        for each in self.front().children(recursive=True):
            with contextlib.suppress(psutil.NoSuchProcess):  # it has ended
                if word in " ".join(each.cmdline()):
                    found.append(each)
        return found

    def channel(self) -> grpc.aio.Channel:
        """Past the proxy."""
        if self._channel is None:
            options = [("grpc.max_reconnect_backoff_ms", 500), ("grpc.initial_reconnect_backoff_ms", 100)]
            self._channel = grpc.aio.insecure_channel(f"127.0.0.1:{self.port}", options=options)
        return self._channel

    async def health(self, name: str) -> bool:
        """Whether health says SERVING."""
        stub = health_pb2_grpc.HealthStub(self.channel())
        try:
            answer = await stub.Check(health_pb2.HealthCheckRequest(service=name), timeout=_PROBE_SECONDS)
        except grpc.aio.AioRpcError:
            return False
        return answer.status == health_pb2.HealthCheckResponse.SERVING

    async def works(self) -> bool:
        """Whether it is ready and does what it is for."""
        if not await self.health(READY[self.module]):
            return False
        try:
            if self.module == "tandem.worker":
                stopping = inference_pb2.StoppingParams(max_tokens=1, ignore_eos=True)
                request = inference_pb2.GenerateRequest(prompt_ids=[1, 5, 9], stopping=stopping)
                async for _ in inference_pb2_grpc.InferenceServiceStub(self.channel()).Generate(request, timeout=10):
                    pass
            else:
                text = tokenizer_pb2.EncodeInput(segments=[tokenizer_pb2.TextSegment(text="probe")])
                stub = tokenizer_pb2_grpc.TokenizerServiceStub(self.channel())
                await stub.Encode(tokenizer_pb2.EncodeRequest(input=text), timeout=10)
        except grpc.aio.AioRpcError:
            return False
        return True

    async def keep(self) -> None:
        """Starts it again whenever it has ended or does not live, for ever."""
        failures = 0
        lived = False
        while True:
            if self.process is None or self.process.poll() is not None:
                self.start()
                failures, lived = 0, False
            await asyncio.sleep(_PROBE_PAUSE)
            alive = await self.health("")
            lived |= alive
            failures = 0 if alive or not lived else failures + 1
            if failures >= _PROBE_FAILURES and self.process is not None:
                self.process.kill()

    async def end(self) -> None:
        """Ends it for good."""
        if self._channel is not None:
            await self._channel.close()
        with contextlib.suppress(psutil.NoSuchProcess):
            for process in (*self.front().children(recursive=True), self.front()):
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.kill()
        if self.process is not None:
            await asyncio.to_thread(self.process.wait)


@dataclass
class Fleet:
    """A tokenizer service and workers, each behind a proxy."""

    members: list[Member] = field(default_factory=list)

    @property
    def tokenizer(self) -> Member:
        return self.members[0]

    @property
    def workers(self) -> list[Member]:
        return self.members[1:]

    async def works(self) -> bool:
        """Whether all members do what they are for."""
        return all(await asyncio.gather(*(member.works() for member in self.members)))


def _free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]


def _tokenizer_folder(folder: Path, model: Path) -> Path:
    """The model's tokenizer, with a chat template."""
    template = "{% for message in messages %}{{ message.role }}: {{ message.content }}\n{% endfor %}"
    target = folder / "vocabulary"
    target.mkdir()
    shutil.copy(model / "tokenizer.model", target)
    (target / "tokenizer_config.json").write_text(json.dumps({"chat_template": template}))
    return target


def _small_disk(folder: Path) -> bool:
    """Makes the folder a file system of its own, where we may; whether it is one."""
    command = ["mount", "-t", "tmpfs", "-o", f"size={_SMALL_DISK}", "tmpfs", str(folder)]
    return os.geteuid() == 0 and subprocess.run(command, capture_output=True).returncode == 0


@asynccontextmanager
async def running_fleet(folder: Path, workers: int = 2, stall_seconds: float = 4.0) -> AsyncIterator[Fleet]:
    """A fleet that serves the demo model, and its end."""
    model = REPOSITORY / "models/demo"
    ports = _free_ports(1 + workers)
    async with AsyncExitStack() as stack:
        fleet = Fleet()
        tokenizer = ("--tokenizer", f"demo={_tokenizer_folder(folder, model)}")
        worker: tuple[str, ...] = ("--model", str(model), "--threads=1", f"--engine-stall-seconds={stall_seconds}")
        worker += (f"--tokenizer-address=127.0.0.1:{ports[0]}",)
        roles = [("tokenizer", "tandem.tokenizer", tokenizer)]
        roles += [(f"worker-{number}", "tandem.worker", worker) for number in range(workers)]
        for (name, module, flags), port in zip(roles, ports, strict=True):
            place = folder / name
            place.mkdir()
            if _small_disk(place):
                stack.callback(subprocess.run, ["umount", "-l", str(place)], check=False)
            proxy = await stack.enter_async_context(Proxy(port))
            member = Member(name, module, flags, place, port, proxy)
            fleet.members.append(member)
            stack.push_async_callback(member.end)
        keepers = [asyncio.create_task(member.keep()) for member in fleet.members]
        try:
            async with asyncio.timeout(START_SECONDS):
                while not await fleet.works():  # noqa: ASYNC110 - other processes set no event
                    await asyncio.sleep(0.2)
            yield fleet
        finally:
            for keeper in keepers:
                keeper.cancel()
            await asyncio.gather(*keepers, return_exceptions=True)
