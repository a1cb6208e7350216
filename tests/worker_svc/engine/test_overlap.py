"""Steps that are launched before the one before them is read; `test_histories.py` has random ones on a real model."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tandem.worker.engine.account import FinishReason
from tandem.worker.engine.engine import Engine
from tandem.worker.engine.request import Drafting, LogprobOptions, Request, Stopping
from tandem.worker.engine.sampling import Sampling
from tandem.worker.engine.speculation.costs import Free
from tandem.worker.engine.stops import StopSequences
from tests.worker_svc.engine.counting import VOCABULARY, CountingRunner, counting_request
from tests.worker_svc.engine.test_engine import Driver, counted

GREEDY = Sampling(temperature=0.0)


def overlapping(**options: int) -> Driver:
    return Driver(overlap=True, **options)


def test_the_next_step_is_launched_before_one_is_read():
    driver = overlapping()
    driver.engine.submit(counting_request(0, 5, 3, 4))
    for step, computed in enumerate([4, 5, 6, 6], 1):  # the prompt and what was sampled; behind the last there is none
        driver.step()
        assert driver.output[0] == counted(5, 3, step)
        assert driver.runner.computed_tokens == computed
    assert not driver.engine.has_work
    assert driver.launched_ahead == 3
    assert driver.engine.scheduler.statistics.overlapped_steps == 0  # a processor has computed one when it is sampled
    assert driver.engine.scheduler.statistics.overlap_wasted_tokens == 0


@pytest.mark.parametrize(
    "stopping", [{"stop_ids": frozenset({20})}, {"sequences": StopSequences([[19, 20]])}], ids=["id", "sequence"]
)
def test_an_end_that_nobody_foresaw_costs_one_token(stopping: dict[str, object]):
    driver = overlapping()
    driver.engine.submit(Request.make(0, [15, 16], GREEDY, Stopping(30, include_stop=True, **stopping)))  # type: ignore[arg-type]
    driver.engine.submit(counting_request(1, 40, 2, 12))
    driver.run()
    assert driver.output == {0: [17, 18, 19, 20], 1: counted(40, 2, 12)}
    statistics = driver.engine.scheduler.statistics
    assert statistics.overlap_wasted_tokens == 1
    assert statistics.output_tokens == 4 + 12
    assert driver.finished[0].statistics.forward_passes == 4


def test_what_was_told_as_cancelled_gives_back_its_pages_when_its_step_has_landed():
    driver = overlapping(running=1)
    driver.engine.submit(counting_request(0, 0, 6, 30))
    driver.step()
    driver.engine.abort(0)
    driver.engine.abort(0)
    assert driver.engine.table.referenced
    driver.step()
    assert driver.finished[0].reason is FinishReason.CANCELLED
    assert not driver.engine.has_work
    assert not driver.engine.table.referenced
    driver.engine.submit(counting_request(0, 0, 6, 3))  # the number is free again
    assert driver.output.pop(0) == [6]
    del driver.finished[0]
    driver.run()
    assert driver.output[0] == counted(0, 6, 3)


def test_numbers_that_break_behind_an_end_are_shown_to_nobody():
    driver = overlapping(page_size=4)
    driver.runner.poisoned = {20}
    driver.engine.submit(Request.make(0, [14, 15, 16], GREEDY, Stopping(30, stop_ids=frozenset({20}))))
    driver.run()
    assert driver.finished[0].reason is FinishReason.STOP_TOKEN
    again = Request.make(1, [14, 15, 16, 17, 18, 19], GREEDY, Stopping(1))
    driver.engine.submit(again)
    driver.run()
    assert again.statistics.cached_prompt_tokens == 0
    assert (driver.runner.memory >= -1).all() and driver.output[1] == [20]


@pytest.mark.parametrize(
    "sampling",
    [
        replace(GREEDY, repetition_penalty=30.0, repetition_window=3),
        replace(GREEDY, frequency_penalty=40.0, dry_multiplier=0.01),
        replace(GREEDY, banned_sequences=((7, 8), (8, 9, 10))),
        Sampling(mirostat=2, temperature=3.0),
        Sampling(adaptive_p_target=0.5, temperature=3.0),
    ],
    ids=["repetition", "frequency", "banned", "mirostat", "adaptive_p"],
)
def test_samplers_that_look_at_the_last_token_do_not_wait_for_it(sampling: Sampling):
    """A step is sampled when the one before it has landed, whatever was launched behind that."""
    outputs = []
    for overlap in (False, True):
        driver = Driver(overlap=overlap)
        driver.runner.jumps = True
        driver.engine.submit(Request.make(0, [5, 6], sampling, Stopping(6)))
        driver.engine.submit(counting_request(1, 40, 2, 14))
        driver.run()
        outputs.append(driver.output)
        assert driver.launched_ahead == (13 if overlap else 0)
    assert outputs[0] == outputs[1]


def speculating(others: int) -> tuple[Driver, Request]:
    """A text that repeats, beside others that do not."""
    driver = overlapping(pages=128, budget=64)
    request = counting_request(0, 0, VOCABULARY + 2, 80)
    request.drafting = Drafting(4, ngram=2)
    driver.engine.submit(request)
    for number in range(1, others + 1):
        driver.engine.submit(counting_request(number, 8, 2, 60))
    driver.run()
    assert driver.output.pop(0) == counted(0, VOCABULARY + 2, 80)
    assert all(ids == counted(8, 2, 60) for ids in driver.output.values()) and len(driver.output) == others
    return driver, request


def test_steps_do_not_overlap_where_most_requests_have_drafts():
    driver, request = speculating(others=1)
    statistics = request.statistics
    assert statistics.draft_tokens_accepted == 80 - (statistics.forward_passes - 1)
    assert statistics.forward_passes < 25
    assert driver.launched_ahead <= 62 - statistics.forward_passes  # none between its first step and its last


def test_steps_overlap_beside_a_request_with_drafts_which_sits_out_every_other():
    driver, request = speculating(others=7)
    statistics = driver.engine.scheduler.statistics
    assert driver.launched_ahead >= statistics.steps - 2
    assert request.statistics.draft_tokens_accepted == request.statistics.draft_tokens_proposed > 50
    assert request.statistics.forward_passes < 25  # each for five tokens or so, in two steps
    assert statistics.overlap_wasted_tokens == 0


@pytest.mark.parametrize("pages", range(28, 37))
def test_drafts_of_a_model_take_no_page_that_a_request_in_flight_wants(pages: int):
    """Who is in flight could not be preempted for it."""
    driver = overlapping(pages=pages, budget=64)
    guesser = CountingRunner(pages, 4)
    guesser.jumps = True  # pages of requests without drafts hold nothing of its
    driver.engine = Engine(
        driver.runner,
        driver.engine.table,
        driver.engine.scheduler.limits,
        draft_runner=guesser,
        draft_context_length=64,
        overlap=True,
        costs=Free(),
    )
    requests = [counting_request(number, 8 * number, 6 + number, 40) for number in range(6)]
    requests[0].drafting = Drafting(4, ngram=0)
    for request in requests:
        driver.engine.submit(request)
    driver.run()
    assert driver.output == {number: counted(8 * number, 6 + number, 40) for number in range(6)}
    assert requests[0].statistics.draft_tokens_accepted and driver.launched_ahead


def test_drafts_that_are_not_accepted_leave_a_request_in_every_step():
    driver = overlapping(pages=128, budget=64)
    driver.runner.jumps = True
    requests = [Request.make(number, [5, 6, 5, 6], GREEDY, Stopping(40)) for number in range(8)]
    requests[0].drafting = Drafting(4, ngram=1)
    for request in requests:
        driver.engine.submit(request)
    driver.run()
    assert driver.output[0] == driver.output[1]
    assert driver.launched_ahead >= driver.engine.scheduler.statistics.steps - 2


def test_stop_sequences_before_min_tokens_are_masked_in_steps_that_overlap():
    outputs = []
    for overlap in (False, True):
        driver = Driver(overlap=overlap)
        driver.runner.jumps = True
        stopping = Stopping(9, min_tokens=5, sequences=StopSequences([[11, 12], [14]]))
        driver.engine.submit(Request.make(0, [8, 9], GREEDY, stopping))
        driver.run()
        outputs.append(driver.output[0])
        assert overlap == bool(driver.launched_ahead)
    assert outputs[0] == outputs[1] and 11 in outputs[0] and 12 not in outputs[0]


def test_the_logprobs_of_a_prompt_are_told_once_and_not_behind_a_cancellation():
    driver = overlapping(budget=8)
    options = LogprobOptions(prompt=True)
    for number in range(2):
        driver.engine.submit(counting_request(number, 3 * number, 30, 5, logprobs=options))
    told = {0: 0, 1: 0}
    steps = 0
    while driver.engine.has_work:
        for scores in driver.engine.step().prompts:
            told[scores.number] += len(scores.logprobs)
            assert scores.number == 0 or steps < 3
        steps += 1
        if steps == 3:
            driver.engine.abort(1)
    assert told[0] == 29
