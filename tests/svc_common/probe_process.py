"""The probe service as a real process, which is waited for by its address file and by its exit, never by the clock."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_ROOT = Path(__file__).resolve().parents[2]
_PATIENCE = 60.0  # seconds until a hang is called one


@dataclass
class ProbeProcess:
    """A running process, its addresses and its standard error."""

    process: asyncio.subprocess.Process
    address: str = ""
    metrics: str | None = None

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    async def line(self, containing: str) -> str:
        """The next line of standard error that contains some words."""
        assert self.process.stderr is not None
        async with asyncio.timeout(_PATIENCE):
            while raw := await self.process.stderr.readline():
                if containing in (line := raw.decode()):
                    return line
        raise AssertionError(f"standard error ended without {containing!r}")

    async def end(self) -> tuple[int, list[str]]:
        """Exit code, and the lines of standard error that were not read yet."""
        assert self.process.stderr is not None
        async with asyncio.timeout(_PATIENCE):
            rest = await self.process.stderr.read()
            return await self.process.wait(), rest.decode().splitlines()


@asynccontextmanager
async def probe_process(*arguments: str, stdin: int | None = asyncio.subprocess.DEVNULL) -> AsyncIterator[ProbeProcess]:
    """Starts the probe; nothing of it is left afterwards."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tests.svc_common.probe_service", *arguments),
        cwd=_ROOT,
        env={**os.environ, "PYTHONPATH": str(_ROOT)},
        stdin=stdin,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        yield ProbeProcess(process)
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


@asynccontextmanager
async def serving_process(folder: Path, *arguments: str, **options: Any) -> AsyncIterator[ProbeProcess]:
    """The same, once it serves and has told its addresses."""
    file = folder / "address.json"
    async with probe_process("--address-file", str(file), *arguments, **options) as probe:
        await probe.line("listening on")
        content = json.loads(file.read_text())
        assert content["pid"] == probe.process.pid
        probe.address, probe.metrics = content["address"], content["metrics"]
        yield probe
