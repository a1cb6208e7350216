"""Processes that render templates, and what somebody else does to them."""

from __future__ import annotations

import asyncio
import signal

import pytest

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
