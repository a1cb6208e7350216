"""Scheduler and engine on a model that counts: any interleaving must go on counting."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tandem.worker.engine.account import FinishReason
from tandem.worker.engine.ends import Failure
from tandem.worker.engine.engine import Engine, Finish
from tandem.worker.engine.grammars import Grammars
from tandem.worker.engine.pages import PageTable
from tandem.worker.engine.request import LogprobOptions, Request, Stopping
from tandem.worker.engine.sampling import Sampling
from tandem.worker.engine.scheduler import SchedulerLimits
from tandem.worker.engine.speculation.costs import Costs, Free
from tandem.worker.engine.stops import StopSequences
from tandem.worker.engine.waiting import MAX_OVERTAKES
from tandem.worker.model.work import Work
from tests.worker_svc.engine.counting import VOCABULARY, CountingRunner, counting_request


class Driver:
    """An engine with its model, and what came out of it."""

    def __init__(
        self,
        pages: int = 32,
        page_size: int = 4,
        budget: int = 16,
        running: int = 8,
        *,
        overlap: bool = False,
        checks: bool = True,
        costs: Costs | None = None,
        grammars: Grammars | None = None,
    ) -> None:
        """What a step takes is not measured: drafts are free, or have these `costs`."""
        self.runner = CountingRunner(pages, page_size)
        limits = SchedulerLimits(max_batch_tokens=budget, max_running=running, checks=checks)
        table = PageTable(pages, page_size)
        self.engine = Engine(self.runner, table, limits, overlap=overlap, costs=costs or Free(), grammars=grammars)
        self.output: dict[int, list[int]] = defaultdict(list)
        self.finished: dict[int, Finish] = {}
        self.launched_ahead = 0  # steps, before the one before them was read

    def step(self) -> None:
        result = self.engine.step()
        self.launched_ahead += self.engine._flight is not None
        for number, token in zip(result.numbers.tolist(), result.sampled.ids.tolist(), strict=True):
            assert number not in self.finished, "a finished request goes on"
            self.output[number].append(token)
        for finish in result.finished:
            assert finish.number not in self.finished, "a request finishes twice"
            self.finished[finish.number] = finish
        self.engine.check()
        assert result.prefill_tokens + result.decode_tokens <= self.engine.scheduler.limits.max_batch_tokens

    def run(self) -> None:
        for _ in range(100_000):
            if not self.engine.has_work:
                assert self.engine.table.referenced == 0, "pages leak"
                return
            self.step()
        raise AssertionError("it never ends")


def counted(first: int, prompt: int, output: int) -> list[int]:
    return [(first + prompt + i) % VOCABULARY for i in range(output)]


def test_one_request_counts_on():
    driver = Driver()
    driver.engine.submit(counting_request(1, 5, 10, 20))
    driver.run()
    assert driver.output[1] == counted(5, 10, 20)
    assert driver.finished[1].reason is FinishReason.MAX_TOKENS


@given(
    requests=st.lists(
        st.tuples(
            st.integers(0, 3),  # first
            st.integers(1, 30),  # prompt
            st.integers(1, 20),  # output
            st.integers(-2, 2),  # priority
            st.sampled_from(["", "x"]),  # salt
            st.booleans(),  # bypass
            st.integers(0, 40),  # step at which it arrives
            st.one_of(st.none(), st.integers(0, 30)),  # steps until it is aborted
        ),
        min_size=1,
        max_size=14,
    ),
    pages=st.integers(13, 40),
    budget=st.integers(4, 40),
    running=st.integers(1, 4),
    overlap=st.booleans(),
)
def test_any_history_counts_on_and_leaks_nothing(requests, pages, budget, running, overlap):
    driver = Driver(pages=pages, page_size=4, budget=budget, running=running, overlap=overlap)
    pending = sorted(enumerate(requests), key=lambda item: item[1][6])
    aborts = {number: r[6] + r[7] for number, r in enumerate(requests) if r[7] is not None}
    step = 0
    while pending or driver.engine.has_work:
        while pending and pending[0][1][6] <= step:
            number, (first, prompt, output, priority, salt, bypass, *_) = pending.pop(0)
            driver.engine.submit(
                counting_request(number, first, prompt, output, priority=priority, salt=salt, bypass=bypass)
            )
            driver.engine.check()
        for number in [number for number, when in aborts.items() if when == step]:
            driver.engine.abort(number)
            driver.engine.check()
        driver.step()
        step += 1
        assert step < 20_000, "it never ends"
    assert driver.engine.table.referenced == 0
    assert set(driver.finished) == set(range(len(requests)))
    for number, (first, prompt, output, *_) in enumerate(requests):
        expected = counted(first, prompt, output)
        got = driver.output[number]
        if driver.finished[number].reason is FinishReason.CANCELLED:
            assert got == expected[: len(got)]
        else:
            assert got == expected


def test_the_same_arrivals_give_the_same_steps():
    def history() -> list[list[int]]:
        driver = Driver(pages=14, budget=10, running=3)
        for number in range(9):
            driver.engine.submit(counting_request(number, number, 3 + 5 * (number % 3), 12, priority=number % 2))
        steps = []
        while driver.engine.has_work:
            driver.step()
            steps.append(sorted((h, len(t)) for h, t in driver.output.items()))
        return steps

    assert history() == history()


def test_a_cache_smaller_than_the_work_preempts_and_still_finishes_everything():
    driver = Driver(pages=12, page_size=4, budget=32, running=8)
    for number in range(10):
        driver.engine.submit(counting_request(number, 3 * number, 6, 30))
    driver.run()
    assert driver.engine.scheduler.statistics.preemptions > 0
    for number in range(10):
        assert driver.output[number] == counted(3 * number, 6, 30)


def test_a_shared_prefix_is_computed_once():
    driver = Driver(pages=64, page_size=4, budget=64, running=4)
    driver.engine.submit(counting_request(0, 0, 40, 1))
    driver.run()
    before = driver.runner.computed_tokens
    for number in range(1, 11):
        driver.engine.submit(counting_request(number, 0, 40, 1))
    driver.run()
    # All but the last token: 36 in whole pages, 3 in a copy of the page that the first request filled.
    assert driver.runner.computed_tokens - before == 10
    assert driver.finished[10].statistics.cached_prompt_tokens == 39


def test_100_requests_share_a_long_prefix_in_a_cache_for_8_of_them_unshared():
    driver = Driver(pages=8 * 126, page_size=16, budget=256, running=100)
    prefix = np.arange(2000) % VOCABULARY
    computed = 0
    for number in range(100):
        # Each goes on counting, but from a place of its own after the prefix: 16 more tokens at most.
        driver.engine.submit(
            Request.make(number, prefix[: 2000 - number % 7], Sampling(temperature=0.0), Stopping(max_tokens=12))
        )
        if number == 0:
            driver.step()
    driver.run()
    computed = driver.runner.computed_tokens
    assert len(driver.finished) == 100
    for number in range(100):
        first = (2000 - number % 7) % VOCABULARY
        assert driver.output[number] == [(first + i) % VOCABULARY for i in range(12)]
    # The prefix once, and beside it at most two pages of each request's own.
    assert computed < 2000 + 100 * (2 * 16 + 12)
    assert driver.engine.scheduler.statistics.preemptions == 0


def test_the_next_turn_of_a_chat_computes_its_new_tokens_only():
    driver = Driver(pages=64, page_size=4, budget=64)
    driver.engine.submit(counting_request(0, 0, 10, 10))
    driver.run()
    before = driver.runner.computed_tokens
    driver.engine.submit(counting_request(1, 0, 22, 1))
    driver.run()
    # Of the first turn, 19 tokens have keys and values; the last one was only sampled.
    assert driver.runner.computed_tokens - before == 22 - 19


def test_two_alternating_chats_compute_their_new_tokens_only():
    driver = Driver(pages=64, page_size=4, budget=64)
    lengths = {0: 9, 30: 14}
    for turn in range(5):
        for first in lengths:
            number = 2 * turn + (first > 0)
            before = driver.runner.computed_tokens
            driver.engine.submit(counting_request(number, first, lengths[first], 6))
            driver.run()
            known = 0 if turn == 0 else lengths[first] - 6
            # What is new, and the 5 sampled tokens that were fed back.
            assert driver.runner.computed_tokens - before == lengths[first] - known + 5
            lengths[first] += 6 + 5


def test_a_prompt_that_ends_within_a_page_of_another_copies_its_beginning():
    driver = Driver(pages=64, page_size=16)
    driver.engine.submit(counting_request(0, 0, 32, 1))
    driver.run()
    before = driver.runner.computed_tokens
    request = counting_request(1, 0, 26, 3)
    driver.engine.submit(request)
    driver.run()
    assert request.statistics.cached_prompt_tokens == 25
    assert driver.output[1] == counted(0, 26, 3)
    assert driver.runner.computed_tokens - before == 1 + 2


def test_decodes_are_never_held_up_by_a_prefill():
    driver = Driver(pages=64, page_size=4, budget=8, running=4)
    driver.engine.submit(counting_request(0, 0, 2, 30))
    driver.step()
    driver.engine.submit(counting_request(1, 0, 60, 1, bypass=True))
    for step in range(2, 9):
        driver.step()
        assert len(driver.output[0]) == step


def test_chunks_end_on_page_boundaries():
    driver = Driver(pages=64, page_size=4, budget=10, running=4)
    request = counting_request(0, 0, 30, 1)
    driver.engine.submit(request)
    ends = []
    while driver.engine.has_work:
        driver.step()
        ends.append(request.num_computed)
    assert ends == [8, 16, 24, 30]


def test_a_higher_priority_goes_first():
    driver = Driver(running=1)
    for number, priority in enumerate((0, 0, 5)):
        driver.engine.submit(counting_request(number, 0, 2, 2, priority=priority))
    driver.run()
    assert list(driver.finished) == [2, 0, 1]


def test_nobody_is_overtaken_for_ever():
    driver = Driver(running=1)
    driver.engine.submit(counting_request(0, 0, 2, 2, priority=-5))
    overtakers = 0
    for number in range(1, 4 * MAX_OVERTAKES):
        driver.engine.submit(counting_request(number, 0, 2, 2, priority=5))
        driver.step()
        driver.step()
        if 0 in driver.finished:
            break
        overtakers += 1
    assert 0 in driver.finished
    assert overtakers <= MAX_OVERTAKES + 1


def test_an_aborted_request_ends_once_and_gives_back_its_pages_wherever_it_is():
    driver = Driver(running=1)
    driver.engine.submit(counting_request(0, 0, 4, 50))
    driver.engine.submit(counting_request(1, 0, 4, 50))
    driver.step()
    driver.engine.abort(0)  # runs
    driver.engine.abort(1)  # waits
    driver.engine.abort(1)
    driver.engine.abort(77)
    driver.run()
    assert {f.reason for f in driver.finished.values()} == {FinishReason.CANCELLED}


def test_broken_numbers_end_their_request_alone_and_leave_no_page_behind():
    driver = Driver(pages=64, page_size=4)
    driver.runner.poisoned = {20}
    driver.engine.submit(counting_request(0, 10, 8, 30))  # reaches 20
    driver.engine.submit(counting_request(1, 30, 8, 12))
    driver.run()
    assert driver.finished[0].reason is Failure.ERROR
    assert driver.output[0] == [18, 19, 20]
    assert driver.output[1] == counted(30, 8, 12)
    again = counting_request(2, 10, 8, 1)
    driver.engine.submit(again)
    driver.run()
    assert driver.finished[2].statistics.cached_prompt_tokens == 0


POISON = 40


class SpoiltRunner(CountingRunner):
    """One whose numbers break wherever a page has the poison, even where nobody looks at it."""

    def forward(self, work: Sequence[Work], sampled: torch.Tensor | None = None) -> torch.Tensor:
        logits = super().forward(work, sampled)
        row = 0
        for item in work:
            if (self.memory[item.pages] == POISON).any():
                logits[row : row + item.samples] = torch.nan
            row += item.samples
        return logits


@given(
    requests=st.lists(
        st.tuples(
            st.integers(0, 39),  # first
            st.integers(1, 30),  # prompt
            st.integers(1, 6),  # output
            st.integers(0, 12),  # step at which it arrives
            st.one_of(st.none(), st.integers(0, 8)),  # steps until it is aborted
        ),
        min_size=1,
        max_size=10,
    ),
    pages=st.integers(10, 40),
    budget=st.integers(4, 12),
    overlap=st.booleans(),
    checks=st.booleans(),
)
def test_broken_numbers_are_shown_to_nobody_however_their_request_ends(requests, pages, budget, overlap, checks):
    driver = Driver(pages=pages, page_size=4, budget=budget, running=4, overlap=overlap, checks=checks)
    driver.runner = driver.engine._runner = SpoiltRunner(pages, 4)
    driver.runner.jumps = True  # what comes behind a broken number
    arrivals = {number: request[3] for number, request in enumerate(requests)}
    aborts = {number: r[3] + r[4] for number, r in enumerate(requests) if r[4] is not None}
    last = max([*arrivals.values(), *aborts.values()])
    for step in range(1000):
        for number, (first, prompt, output, *_) in enumerate(requests):
            if arrivals[number] == step:
                driver.engine.submit(counting_request(number, first, prompt, output))
            if aborts.get(number) == step:
                driver.engine.abort(number)
        if not driver.engine.has_work and step > last:
            break
        if not driver.engine.tidy():
            driver.step()
        for (_, tokens), page in driver.engine.table.chains.by_name.items():
            known = np.frombuffer(tokens, dtype=np.int32)
            assert np.array_equal(driver.runner.memory[page, : len(known)], known)
            assert POISON not in known
    for number, (first, prompt, output, *_) in enumerate(requests):
        if first + prompt + output - 1 <= POISON:  # the last token is not computed
            reason = driver.finished[number].reason
            assert reason is FinishReason.MAX_TOKENS or (reason is FinishReason.CANCELLED and number in aborts)
            assert driver.output[number] == counted(first, prompt, output)[: len(driver.output[number])]


def test_pages_with_broken_numbers_are_cleared_before_others_move_there():
    driver = Driver(pages=100, page_size=4)
    driver.runner.poisoned = {41}
    table, memory = driver.engine.table, driver.runner.memory
    for number, first in enumerate((7, 42, 10)):  # they grow side by side, so that their pages alternate
        driver.engine.submit(counting_request(number, first, 4, 60 if not number else 25))
    driver.run()
    assert driver.finished[0].reason is Failure.ERROR
    while driver.engine.tidy():
        pass
    assert table.statistics.moved_pages
    driver.engine.submit(counting_request(3, 9, 4, 1))
    driver.run()
    for (_, tokens), page in table.chains.by_name.items():
        known = np.frombuffer(tokens, dtype=np.int32)
        assert np.array_equal(memory[page, : len(known)], known)
    assert 41 not in memory


@pytest.mark.parametrize("include_stop", [False, True])
def test_stop_and_end_of_sequence_ids_end_a_request(include_stop: bool):
    driver = Driver()
    for number, (stop, eos) in enumerate([({9}, set()), (set(), {9}), ({9}, {9})]):
        stopping = Stopping(20, eos_ids=frozenset(eos), stop_ids=frozenset(stop), include_stop=include_stop)
        driver.engine.submit(Request.make(number, [5, 6], Sampling(temperature=0.0), stopping))
    driver.run()
    assert [driver.finished[h].reason.name for h in range(3)] == ["STOP_TOKEN", "EOS", "STOP_TOKEN"]
    for number in range(3):
        assert driver.output[number] == [7, 8, 9][: 3 if include_stop else 2]
        assert driver.finished[number].matched_token == 9


@pytest.mark.parametrize(("stop", "eos", "reason"), [({4}, set(), "STOP_TOKEN"), (set(), {4}, "EOS")])
def test_resumed_output_that_ends_with_what_ends_it_is_all(stop: set[int], eos: set[int], reason: str):
    driver = Driver()
    for number, (include_stop, least) in enumerate([(True, 0), (True, 2), (False, 0)]):
        stopping = Stopping(6, min_tokens=least, eos_ids=frozenset(eos), stop_ids=frozenset(stop))
        stopping = replace(stopping, include_stop=include_stop)
        driver.engine.submit(Request.make(number, [1, 2], Sampling(temperature=0.0), stopping, resumed=[3, 4]))
    driver.run()
    assert (driver.finished[0].reason.name, driver.finished[0].matched_token, driver.output[0]) == (reason, 4, [])
    for number in (1, 2):  # it came before min_tokens, or is no stop that is told
        assert (driver.finished[number].reason, driver.output[number]) == (FinishReason.MAX_TOKENS, [5, 6, 7, 8])


def test_resumed_output_counts_as_output():
    driver = Driver()
    stopping = Stopping(max_tokens=6)
    driver.engine.submit(Request.make(0, [1, 2], Sampling(temperature=0.0), stopping, resumed=[3, 4]))
    driver.engine.submit(Request.make(1, [1, 2], Sampling(temperature=0.0), stopping, resumed=[3, 4, 5, 6, 7, 8]))
    driver.run()
    assert driver.output[0] == [5, 6, 7, 8]
    assert driver.output[1] == []
    assert driver.finished[1].reason is FinishReason.MAX_TOKENS


def test_limits_that_cannot_work_are_refused():
    with pytest.raises(ValueError, match="max_batch_tokens"):
        SchedulerLimits(max_batch_tokens=3, max_running=4)
    with pytest.raises(ValueError, match="max_running"):
        SchedulerLimits(max_batch_tokens=3, max_running=0)


def test_the_budget_is_used_whole_when_there_is_work():
    driver = Driver(pages=64, page_size=4, budget=16, running=8)
    for number in range(8):
        driver.engine.submit(counting_request(number, number, 16, 4, bypass=True))
    driver.run()
    assert driver.runner.largest_batch == 16
    assert np.all([len(driver.output[h]) == 4 for h in range(8)])


def test_no_interval_of_an_end_is_negative_and_they_make_up_the_total():
    driver = Driver(pages=12, page_size=4, budget=8, running=2)
    for number in range(6):
        driver.engine.submit(counting_request(number, number, 6, 10))
    driver.engine.submit(counting_request(6, 0, 6, 0))  # nothing is to be made
    for _ in range(3):
        driver.step()
    driver.engine.abort(5)  # while it waits
    while driver.engine.has_work:
        driver.step()
    assert len(driver.finished) == 7
    for finish in driver.finished.values():
        spent = finish.statistics
        parts = (spent.queue_seconds, spent.prefill_seconds, spent.decode_seconds)
        assert min(parts) >= 0
        assert sum(parts) == pytest.approx(spent.total_seconds)
        assert spent.total_seconds < 3600, "counted from the request, not from the machine's start"


@pytest.mark.parametrize(("min_tokens", "reason"), [(2, FinishReason.STOP_SEQUENCE), (3, FinishReason.MAX_TOKENS)])
def test_resumed_output_that_completes_a_sequence_before_min_tokens_goes_on(min_tokens: int, reason: FinishReason):
    driver = Driver(pages=64, page_size=4)
    stopping = Stopping(max_tokens=6, min_tokens=min_tokens, include_stop=True, sequences=StopSequences([[5, 6]]))
    driver.engine.submit(Request.make(1, [1, 2, 3], Sampling(temperature=0.0), stopping, resumed=[4, 5, 6]))
    while driver.engine.has_work:
        driver.step()
    assert driver.finished[1].reason is reason
    assert driver.output[1] == ([7, 8, 9] if reason is FinishReason.MAX_TOKENS else [])


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("end", ["full", "stop"])
def test_resumed_output_that_is_all_ends_once_the_prompt_is_scored(end: str, overlap: bool):
    driver = Driver(pages=64, page_size=4, budget=8, overlap=overlap)
    stopping = Stopping(2) if end == "full" else Stopping(9, stop_ids=frozenset({24}), include_stop=True)
    prompt, options = np.arange(3, 23), LogprobOptions(prompt=True)
    driver.engine.submit(Request.make(0, prompt, Sampling(), stopping, resumed=[23, 24], logprobs=options))
    results = []
    while driver.engine.has_work:
        results.append(driver.engine.step())
    assert sum(len(scores.logprobs) for result in results for scores in result.prompts) == 19
    assert [finish.reason.name for result in results for finish in result.finished] == [
        "MAX_TOKENS" if end == "full" else "STOP_TOKEN"
    ]
    assert not sum(len(result.numbers) for result in results)


@pytest.mark.parametrize("prompt", [1, 9])
def test_each_sample_of_a_prompt_that_is_only_scored_ends(prompt: int):
    driver = Driver()
    options = LogprobOptions(prompt=True)
    driver.engine.submit(counting_request(0, 3, prompt, 0, logprobs=options), counting_request(1, 3, prompt, 0))
    driver.run()
    assert [driver.finished[number].reason.name for number in (0, 1)] == ["MAX_TOKENS", "MAX_TOKENS"]


def test_a_prompt_whose_pages_are_lost_while_it_is_scored_is_told_once():
    driver = Driver(pages=12, page_size=4, budget=4, running=2)
    first = counting_request(0, 0, 8, 36, priority=1)
    scored = counting_request(1, 7, 32, 2, logprobs=LogprobOptions(prompt=True))
    driver.engine.submit(first)
    driver.engine.submit(scored)
    told = 0
    while driver.engine.has_work:
        told += sum(len(scores.logprobs) for scores in driver.engine.step().prompts)
    assert scored.statistics.preemptions
    assert told == 31
