"""Who gets a place next."""

from __future__ import annotations

import asyncio

import pytest

from tandem.tokenizer.chat.slots import CallerSlots, NoSlotError


class Jobs:
    """Jobs of callers, in the order in which they got their places."""

    def __init__(self, slots: CallerSlots) -> None:
        self._slots = slots
        self.began: list[str] = []
        self.ends: list[asyncio.Event] = []

    def begin(self, caller: str) -> asyncio.Task[None]:
        async def job() -> None:
            async with self._slots.slot(caller):
                self.began.append(caller)
                self.ends.append(end := asyncio.Event())
                await end.wait()

        return asyncio.create_task(job())

    async def settle(self) -> None:
        for _ in range(10):
            await asyncio.sleep(0)


async def test_the_caller_who_runs_least_comes_next_however_many_jobs_another_has() -> None:
    jobs = Jobs(CallerSlots(2, max_waiting=100, per_caller=10))
    tasks = [jobs.begin("greedy") for _ in range(8)] + [jobs.begin("modest"), jobs.begin("late")]
    await jobs.settle()
    assert jobs.began == ["greedy", "greedy"]
    for at in range(4):
        jobs.ends[at].set()
        await jobs.settle()
    assert jobs.began == ["greedy", "greedy", "modest", "late", "greedy", "greedy"]
    for at in range(4, 10):
        jobs.ends[at].set()
        await jobs.settle()
    await asyncio.gather(*tasks)
    assert len(jobs.began) == 10


async def test_a_caller_has_its_bound_and_all_together_have_another() -> None:
    slots = CallerSlots(1, max_waiting=3, per_caller=2)
    jobs = Jobs(slots)
    tasks = [jobs.begin(caller) for caller in ("a", "a", "b", "c")]
    await jobs.settle()
    for caller in ("a", "d"):
        with pytest.raises(NoSlotError):
            async with slots.slot(caller):
                pass
    for at in range(4):
        jobs.ends[at].set()
        await jobs.settle()
    await asyncio.gather(*tasks)
    async with slots.slot("a"):
        pass


async def test_all_who_wait_may_leave_together_with_who_runs() -> None:
    jobs = Jobs(CallerSlots(1, max_waiting=10, per_caller=10))
    tasks = [jobs.begin("a") for _ in range(3)]
    await jobs.settle()
    for task in tasks:
        task.cancel()
    assert all(
        isinstance(each, asyncio.CancelledError) for each in await asyncio.gather(*tasks, return_exceptions=True)
    )
    last = jobs.begin("b")
    await jobs.settle()
    assert jobs.began == ["a", "b"]
    jobs.ends[-1].set()
    await last


async def test_who_leaves_while_it_waits_or_in_the_moment_of_its_turn_costs_nobody_a_place() -> None:
    jobs = Jobs(CallerSlots(1, max_waiting=10, per_caller=10))
    first, waits, chosen = jobs.begin("a"), jobs.begin("b"), jobs.begin("c")
    await jobs.settle()
    waits.cancel()
    await jobs.settle()
    jobs.ends[0].set()
    await asyncio.sleep(0)
    chosen.cancel()
    await asyncio.gather(first, waits, chosen, return_exceptions=True)
    last = jobs.begin("d")
    await jobs.settle()
    assert jobs.began[-1] == "d"
    jobs.ends[-1].set()
    await last
