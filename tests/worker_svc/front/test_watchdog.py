"""An engine that says nothing is noticed; one that works, or whose front slept, is not."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys

from tandem.common.cpu_time import Work, cpu_seconds, work_of
from tandem.worker.engine.process.processes import NO_MEMORY, RANK_KILLED, crashed, kill_group
from tandem.worker.front.watchdog import Silence, until_stalled


def ticks_until_stalled(silence: Silence, *, used_by_tick: float, ready: bool = False, at_most: int = 10_000) -> int:
    return next(
        number
        for number in range(1, at_most)
        if silence.tick(silence.tick_seconds, Work(100 + number * used_by_tick, ready=ready))
    )


def test_silence_of_a_process_that_does_nothing_is_counted_in_full():
    silence = Silence(limit=30.0, computing=0.1)
    assert ticks_until_stalled(silence, used_by_tick=0.0) == 10


def test_on_a_processor_a_step_may_compute_for_ten_times_as_long():
    silence = Silence(limit=30.0, computing=0.1)
    assert 90 <= ticks_until_stalled(silence, used_by_tick=1.0) <= 100


def test_a_process_that_waits_for_a_processor_counts_as_one_that_computes():
    assert 90 <= ticks_until_stalled(Silence(limit=30.0, computing=0.1), used_by_tick=0.0, ready=True) <= 100


def test_on_a_card_a_process_that_waits_actively_is_counted_in_full():
    assert ticks_until_stalled(Silence(limit=60.0, computing=1.0), used_by_tick=5.0) <= 13


def test_a_start_may_take_as_long_as_it_computes_and_no_longer():
    silence = Silence(limit=60.0, computing=0.0)
    for number in range(10_000):
        assert not silence.tick(silence.tick_seconds, Work(float(number), ready=False))
    assert ticks_until_stalled(silence, used_by_tick=0.0) <= 13


def test_what_is_heard_ends_a_silence():
    silence = Silence(limit=10.0, computing=1.0)
    for _ in range(1000):
        assert not silence.tick(5.0, Work(0.0, ready=False))
        silence.heard()


def test_a_front_that_was_stopped_itself_does_not_blame_its_engine():
    silence = Silence(limit=30.0, computing=1.0)
    for _ in range(4):
        assert not silence.tick(3600.0, Work(0.0, ready=False)), "an hour of our own sleep counts as two ticks"


async def test_until_stalled_pings_and_returns_only_without_an_answer():
    silence = Silence(limit=0.2, computing=1.0)
    pings = 0

    def answered() -> None:
        nonlocal pings
        pings += 1
        if pings < 30:
            silence.heard()

    await asyncio.wait_for(until_stalled(silence, lambda: Work(0.0, ready=False), answered), 60)
    assert pings >= 30


def test_processor_time_is_counted_over_a_process_and_those_below_it():
    burn = "import time\nend = time.process_time() + 0.3\nwhile time.process_time() < end: pass\n"
    program = (
        "import subprocess, sys\n"
        f"child = subprocess.Popen([sys.executable, '-c', {burn + 'print(flush=True)' + chr(10) + 'input()'!r}],"
        " stdin=0, stdout=1)\nchild.wait()\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True
    )
    try:
        assert process.stdout is not None
        process.stdout.readline()
        assert cpu_seconds(process.pid) >= 0.3
        while work_of(process.pid).ready:  # until both wait for input
            pass
        assert work_of(os.getpid()).ready, "the thread that looks runs"
        os.killpg(process.pid, signal.SIGSTOP)
        kill_group(process.pid)
        assert process.wait(60) == -signal.SIGKILL, "a stopped group ends too"
        assert cpu_seconds(process.pid) == 0
    finally:
        kill_group(process.pid)
        process.wait()


def test_a_crash_is_told_from_a_kill():
    assert [code for code in (0, 1, 3, RANK_KILLED, NO_MEMORY, -9, -15, -11, -6, -7, -4, -8) if crashed(code)] == [
        1,
        3,
        -11,
        -6,
        -7,
        -4,
        -8,
    ]
