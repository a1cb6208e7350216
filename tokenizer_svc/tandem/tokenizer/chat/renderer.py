"""Keeps renderer processes, sends them requests, and kills one whose template takes too long."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from tandem.common.advice import spread
from tandem.common.cpu_time import work_of
from tandem.common.errors import unavailable
from tandem.tokenizer.chat.json_text import JsonTextError
from tandem.tokenizer.chat.origin import Origin
from tandem.tokenizer.chat.render_error import RenderError
from tandem.tokenizer.chat.slots import CallerSlots

_MEMORY = 512 << 20  # address space of a renderer, interpreter included
_LINE_LIMIT = 256 << 20
_START_SECONDS = 60.0
_LOOK_SECONDS = 5.0  # in which a process that lives uses its processor for at least
_LEAST_CPU_SECONDS = 0.05
_END_SECONDS = 1.0  # in which a process that has closed its output has ended
_KILLED = {-signal.SIGKILL, -signal.SIGTERM, -signal.SIGINT, -signal.SIGHUP}  # by somebody else: no template does that


class _DisturbedError(Exception):
    """Somebody stopped or killed the process, which says nothing about the template."""


class ChatRenderer:
    """Renders in at most `processes` processes, which start when first needed. Use it from one event loop."""

    def __init__(self, slots: CallerSlots, seconds: float, max_characters: int, niceness: int = 0) -> None:
        """There is a process for each of the `slots`; `niceness` is what the processes add to ours."""
        self._idle: list[asyncio.subprocess.Process] = []
        self._slots = slots
        self._seconds = seconds
        self._niceness = niceness
        self._max_characters = max_characters
        self._all: set[asyncio.subprocess.Process] = set()
        self._ends: dict[asyncio.subprocess.Process, asyncio.Task[None]] = {}  # of those that were killed

    async def render(self, request: Mapping[str, Any], caller: str) -> list[tuple[Origin, str]]:
        """Returns the rendered text by origin. Raises JsonTextError, RenderError or NoSlotError."""
        async with self._slots.slot(caller):
            return await self._ask(json.dumps(request, ensure_ascii=False).encode() + b"\n")

    async def close(self) -> None:
        """Ends all processes."""
        self._idle.clear()
        while self._all:
            await self._kill(next(iter(self._all)))

    async def _ask(self, line: bytes) -> list[tuple[Origin, str]]:
        try:
            return await self._ask_once(line, self._idle.pop() if self._idle else None)
        except _DisturbedError:
            pass
        try:
            return await self._ask_once(line, None)
        except _DisturbedError:
            raise unavailable(
                "template renderers were stopped or killed", reason="RENDERER_LOST", retry_after=spread(1.0)
            ) from None

    async def _ask_once(self, line: bytes, process: asyncio.subprocess.Process | None) -> list[tuple[Origin, str]]:
        """Asks an idle process, or starts one. Raises _DisturbedError."""
        process = process or await self._start()
        try:
            answer = await self._within(self._seconds, process, line)
        except TimeoutError:
            await self._kill(process)
            raise RenderError(f"the template takes longer than {self._seconds:g} seconds") from None
        except BaseException:  # also a caller that is gone: what the process does now is of no use
            await self._kill(process)
            raise
        if answer is None:
            if await self._was_killed(process):
                raise _DisturbedError
            raise RenderError("the template ended its renderer process, most likely by using too much memory")
        self._idle.append(process)
        if "violations" in answer:
            raise JsonTextError([(field, description) for field, description in answer["violations"]])
        if "error" in answer:
            raise RenderError(answer["error"])
        return [(Origin(origin), text) for origin, text in answer["runs"]]

    async def _within(self, seconds: float, process: asyncio.subprocess.Process, line: bytes) -> dict[str, Any] | None:
        """Returns the answer of a process, or None when it has ended. Raises TimeoutError after so many seconds, less
        those in which a busy machine gave it no processor, and _DisturbedError when it does not compute at all."""
        exchange = asyncio.create_task(self._exchange(process, line))
        try:
            left = seconds
            while True:
                look, before = min(left, _LOOK_SECONDS), work_of(process.pid)
                if (await asyncio.wait([exchange], timeout=look))[0]:
                    return exchange.result()
                work = work_of(process.pid)
                if work.seconds - before.seconds >= _LEAST_CPU_SECONDS * look / _LOOK_SECONDS:
                    left -= look
                elif not work.ready:
                    raise _DisturbedError
                if left <= 0:
                    raise TimeoutError
        finally:
            exchange.cancel()

    async def _exchange(self, process: asyncio.subprocess.Process, line: bytes) -> dict[str, Any] | None:
        assert process.stdin is not None and process.stdout is not None
        with suppress(ConnectionError):
            process.stdin.write(line)
            await process.stdin.drain()
        found = await process.stdout.readline()
        if not found.endswith(b"\n"):
            return None
        answer: dict[str, Any] = json.loads(found)
        return answer

    async def _start(self) -> asyncio.subprocess.Process:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            *(
                "-m",
                "tandem.tokenizer.chat.renderer_process",
                str(_MEMORY),
                str(self._max_characters),
                str(self._niceness),
            ),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
            limit=_LINE_LIMIT,
            env={
                key: value for key, value in os.environ.items() if key in ("PATH", "PYTHONPATH", "LANG", "TZ", "HOME")
            },
            start_new_session=True,  # a Ctrl-C in the terminal is for its parent
        )
        self._all.add(process)
        try:
            ready = await self._within(_START_SECONDS, process, b"")
        except TimeoutError:
            await self._kill(process)
            raise RuntimeError("a template renderer process does not start") from None
        except BaseException:
            await self._kill(process)
            raise
        if ready is None:
            killed = await self._was_killed(process)
            raise _DisturbedError if killed else RuntimeError("a template renderer process does not start")
        return process

    async def _was_killed(self, process: asyncio.subprocess.Process) -> bool:
        """Whether a process that closed its output was ended by a signal. Its output ends before its parent hears of
        its end."""
        with suppress(TimeoutError):
            async with asyncio.timeout(_END_SECONDS):
                await process.wait()
        killed = process.returncode in _KILLED
        await self._kill(process)
        return killed

    async def _kill(self, process: asyncio.subprocess.Process) -> None:
        """Ends a process. Whoever waits for that may be cancelled: `close` waits for what is left.

        It is killed once: a second `kill` would ask the system how it ended, and asyncio would then never know."""
        if process not in self._ends:
            with suppress(ProcessLookupError):
                process.kill()
            self._ends[process] = asyncio.create_task(self._ended(process))
        await asyncio.shield(self._ends[process])

    async def _ended(self, process: asyncio.subprocess.Process) -> None:
        await process.wait()
        self._all.discard(process)
        del self._ends[process]
