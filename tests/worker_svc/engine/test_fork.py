"""Samples of one prompt: its pages are held once, and any end of the first one leaves the others running."""

from __future__ import annotations

import random

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandem.worker.engine.account import FinishReason
from tandem.worker.engine.budget import Budget
from tandem.worker.engine.ends import Failure
from tandem.worker.engine.fork import sample_seed
from tandem.worker.engine.process.messages import Pages, Submit
from tandem.worker.engine.request import LogprobOptions, Request
from tandem.worker.engine.sampling import Sampling
from tests.worker_svc.engine.counting import counting_request
from tests.worker_svc.engine.test_engine import Driver, counted


def samples(count: int, prompt: int, output: int, first: int = 0, **options: object) -> list[Request]:
    return [counting_request(number, first, prompt, output, **options) for number in range(count)]


def test_the_pages_of_a_prompt_are_held_once():
    driver = Driver(pages=200, page_size=4, budget=64, running=16)
    driver.engine.submit(*samples(16, prompt=41, output=8))
    driver.step()
    assert driver.engine.table.referenced == 11
    driver.step()
    # Ten whole pages for all; each has its own for the last prompt token and what follows.
    assert len(driver.engine.scheduler.running) == 16
    assert driver.engine.table.referenced == 10 + 16
    assert driver.runner.computed_tokens == 41 + 1 + 15  # the others compute the last prompt token only
    driver.run()
    assert all(driver.output[number] == counted(0, 41, 8) for number in range(16))


def test_a_group_that_bypasses_the_cache_shares_too_and_leaves_nothing():
    submit = Submit(
        number=0, prompt=b"", resumed=b"", max_tokens=8, min_tokens=0, eos_ids=[], stop_ids=[], include_stop=False,
        sampling=Sampling(temperature=0.0), priority=0, salt="", bypass=True, logprobs=LogprobOptions(), samples=4,
    )  # fmt: skip
    prompt = counting_request(0, 0, 41, 8).tokens[:41].tobytes()
    driver = Driver(pages=64, page_size=4, budget=64)
    driver.engine.table.chains.watch(wanted=True)
    submit.prompt = prompt
    driver.engine.submit(*submit.to_requests())
    driver.step()
    driver.step()
    assert driver.engine.table.referenced == 10 + 4
    events = driver.engine.table.chains.take_events()
    assert events is not None and len(events.serials) == 10
    assert msgspec.msgpack.encode(Pages.of(events)), "what gateways are told of it can be sent"
    driver.run()
    assert driver.engine.table.cached == 0


@given(
    count=st.integers(2, 6),
    prompt=st.integers(1, 30),
    output=st.integers(1, 12),
    running=st.integers(1, 4),
    pages=st.integers(12, 40),
    aborts=st.dictionaries(st.integers(0, 5), st.integers(0, 12), max_size=4),
)
def test_any_group_counts_on_and_leaks_nothing(count, prompt, output, running, pages, aborts):
    driver = Driver(pages=pages, page_size=4, budget=16, running=running)
    driver.engine.submit(*samples(count, prompt, output))
    step = 0
    while driver.engine.has_work:
        for number in [number for number, when in aborts.items() if when == step]:
            driver.engine.abort(number)
        driver.step()
        step += 1
        assert step < 2000
    assert driver.engine.table.referenced == 0
    assert set(driver.finished) == set(range(count))
    for number in range(count):
        expected = counted(0, prompt, output)
        if driver.finished[number].reason is FinishReason.CANCELLED:
            assert driver.output[number] == expected[: len(driver.output[number])]
        else:
            assert driver.output[number] == expected


def test_numbers_that_break_in_the_prompt_end_every_sample():
    driver = Driver(pages=64, page_size=4, running=8)
    driver.runner.poisoned = {5}
    driver.engine.submit(*samples(4, prompt=10, output=8))
    driver.run()
    assert {finish.reason for finish in driver.finished.values()} == {Failure.ERROR}
    assert len(driver.finished) == 4


def test_the_seeds_of_samples_are_a_function_of_seed_and_index():
    seeds = [[sample_seed(seed, index) for index in range(64)] for seed in (0, 1, 2**64 - 1)]
    assert [row[0] for row in seeds] == [0, 1, 2**64 - 1]
    assert len({seed for row in seeds for seed in row}) == 3 * 64
    assert all(0 <= seed < 2**64 for row in seeds for seed in row)
    assert sample_seed(1, 1) == seeds[1][1]


@pytest.mark.parametrize("seed", [*range(20), 667, 2671, 5459, 5563])
def test_groups_that_lose_their_pages_at_any_time_count_on(seed: int):
    """By these last seeds a sample begins with a copy of its leader's page, which the same step copies from another."""
    draw = random.Random(seed)
    driver = Driver(pages=draw.randint(8, 20), page_size=4, budget=draw.choice((16, 64)), running=draw.randint(2, 8))
    scheduler = driver.engine.scheduler
    expected: dict[int, list[int]] = {}
    for _ in range(30):
        if draw.random() < 0.4 and len(expected) < 12:
            count, prompt = draw.choice((1, 1, 3, 4)), draw.randint(1, 14)
            first, output = draw.randint(0, 2), draw.randint(1, 10)
            numbers = range(len(expected), len(expected) + count)
            priorities = [draw.randint(-2, 2) if number == numbers[0] else 0 for number in numbers]
            group = [counting_request(number, first, prompt, output, priority=priorities[0]) for number in numbers]
            expected |= dict.fromkeys(numbers, counted(first, prompt, output))
            driver.engine.submit(*group)
        if driver.engine.has_work:
            driver.step()
        if draw.random() < 0.1:
            running = [each for each in scheduler.running if not each.in_flight.pending]
            if not scheduler._admitted & {each.number for each in running}:
                for request in running:
                    scheduler._preempt(request, Budget(64))
    driver.run()
    assert {number: driver.output[number] for number in expected} == expected
