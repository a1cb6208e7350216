"""Processes that render templates, and what somebody else does to them."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys

import pytest

from tandem.common.cpu_time import Work
from tandem.tokenizer.chat.renderer import ChatRenderer, _DisturbedError
from tandem.tokenizer.chat.slots import CallerSlots


async def test_a_renderer_that_is_killed_while_it_starts_is_known_to_have_been_killed() -> None:
    renderer = ChatRenderer(CallerSlots(1, max_waiting=1, per_caller=1), 30.0, 1000)
    for _ in range(8):
        start = asyncio.create_task(renderer._start())
        while not renderer._all:  # noqa: ASYNC110
            await asyncio.sleep(0)
        for process in list(renderer._all):
            process.terminate()
        with pytest.raises(_DisturbedError):
            await start
    await renderer.close()


async def test_a_process_whose_end_nobody_waited_for_is_waited_for_at_the_close() -> None:
    renderer = ChatRenderer(CallerSlots(1, max_waiting=1, per_caller=1), 30.0, 1000)
    process = await renderer._start()
    end = asyncio.create_task(renderer._kill(process))
    await asyncio.sleep(0)
    end.cancel()
    with pytest.raises(asyncio.CancelledError):
        await end
    assert process.returncode is None, "killed, and not known to have ended"
    await renderer.close()
    assert process.returncode == -signal.SIGKILL and not renderer._all


async def test_a_process_that_waits_for_a_processor_is_neither_stopped_nor_too_slow(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    renderer = ChatRenderer(CallerSlots(1, max_waiting=1, per_caller=1), 30.0, 1000)
    program = "import sys\nsys.stdin.readline()\nfor _ in range(10**7): pass\nprint('{}')"
    for ready in (True, False):
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-c", program), stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        looks = 0

        def starved(_: int, ready: bool = ready) -> Work:
            nonlocal looks
            looks += 1
            return Work(0.0, ready=ready)

        monkeypatch.setattr("tandem.tokenizer.chat.renderer.work_of", starved)
        if ready:
            assert await renderer._within(0.001, process, b"\n") == {}
            assert looks > 4
        else:
            with pytest.raises(_DisturbedError):
                await renderer._within(0.001, process, b"\n")
            process.kill()
        await process.wait()
