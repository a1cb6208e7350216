"""Drafts: where they come from, and that they change the number of passes and nothing else."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tandem.worker.engine.account import FinishReason
from tandem.worker.engine.engine import Engine
from tandem.worker.engine.pages import PageTable
from tandem.worker.engine.request import Drafting, Request, Stopping
from tandem.worker.engine.sampling import Sampling
from tandem.worker.engine.scheduler import SchedulerLimits
from tandem.worker.engine.speculation.costs import Free, StepCost
from tandem.worker.engine.speculation.drafting import NGramIndex
from tandem.worker.engine.stops import StopSequences
from tests.worker_svc.engine.counting import VOCABULARY, CountingRunner, counting_request
from tests.worker_svc.engine.test_engine import Driver, counted


@given(st.lists(st.integers(0, 3), max_size=60), st.integers(1, 4), st.integers(1, 8), st.data())
def test_the_index_finds_the_latest_place_of_the_last_ids(ids, n, count, data):
    index = NGramIndex(n)
    tokens = np.array(ids, dtype=np.int32)
    length = 0
    while length < len(ids):
        length = data.draw(st.integers(length + 1, len(ids)))
        found = index.continuation(tokens[:length], count).tolist()
        known = ids[:length]
        places = [end for end in range(n, length) if known[end - n : end] == known[length - n :]]
        if length <= n or not places:
            assert found == []
        else:
            follows = known[places[-1] :]
            assert found == [follows[i % len(follows)] for i in range(count)]


def drafted(request: Request, most: int = 8, ngram: int = 2) -> Request:
    request.drafting = Drafting(most, ngram)
    return request


def test_a_text_that_repeats_takes_few_passes():
    driver = Driver(pages=64, page_size=4, budget=64)
    request = drafted(counting_request(0, 0, VOCABULARY + 2, 60))
    driver.engine.submit(request)
    driver.run()
    assert driver.output[0] == counted(0, VOCABULARY + 2, 60)
    statistics = request.statistics
    assert statistics.draft_tokens_accepted == 60 - (statistics.forward_passes - 1)  # one more for the prompt
    assert statistics.forward_passes < 15


def test_an_end_within_accepted_drafts_ends_there():
    for stopping, reason, output in (
        (Stopping(40, stop_ids=frozenset({20})), FinishReason.STOP_TOKEN, 17),
        (Stopping(40, stop_ids=frozenset({20}), include_stop=True), FinishReason.STOP_TOKEN, 18),
        (Stopping(11), FinishReason.MAX_TOKENS, 11),
        (Stopping(40, sequences=StopSequences([[20, 21]])), FinishReason.STOP_SEQUENCE, 19),
    ):
        driver = Driver(pages=64, page_size=4, budget=200)
        ids = np.arange(VOCABULARY + 3) % VOCABULARY
        request = drafted(Request.make(0, ids, Sampling(temperature=0.0), stopping), most=16)
        driver.engine.submit(request)
        driver.run()
        assert driver.finished[0].reason is reason
        assert driver.output[0] == counted(0, VOCABULARY + 3, output)
        assert request.statistics.draft_tokens_accepted > 0


def test_drafts_never_take_a_page_from_anybody():
    driver = Driver(pages=2 * 20, page_size=4, budget=64, running=2)
    for number in range(2):
        driver.engine.submit(drafted(counting_request(number, 0, VOCABULARY + 2, 12, bypass=True), most=16))
    driver.run()
    assert driver.engine.scheduler.statistics.preemptions == 0
    assert driver.output[0] == driver.output[1] == counted(0, VOCABULARY + 2, 12)


def test_what_promises_less_than_it_costs_is_not_computed():
    class Dear(Free):
        def ratio(self, decodes: int, drafts: int) -> float:
            return 1 + drafts / decodes

    driver = Driver(pages=800, page_size=8, budget=3000, running=40, costs=Dear())
    for number in range(40):
        driver.engine.submit(drafted(counting_request(number, number, VOCABULARY + 2, 10)))
    driver.run()
    assert driver.engine.scheduler.statistics.draft_tokens_proposed == 0
    assert driver.engine.scheduler.statistics.drafts_declined >= 8


def test_an_engine_tells_what_its_decodes_took_and_learns_it_itself_or_from_others():
    class Listening(Free):
        def __init__(self) -> None:
            self.heard: list[StepCost] = []

        def learn(self, cost: StepCost) -> None:
            self.heard.append(cost)

    for learns in (True, False):
        costs = Listening()
        limits = SchedulerLimits(max_batch_tokens=64, max_running=4)
        runner = CountingRunner(64, 4)
        engine = Engine(runner, PageTable(64, 4), limits, costs=costs, learns=learns)
        engine.submit(drafted(counting_request(0, 0, VOCABULARY + 2, 20), most=4))
        engine.submit(counting_request(1, 0, 3, 2))
        told = []
        while engine.has_work:
            cost = engine.step().cost
            told += [cost] if cost is not None else []
        assert [each[:2] for each in told] == [(2, 4), (1, 4), (1, 4), (1, 3)]
        assert all(cost.seconds > 0 for cost in told)
        assert costs.heard == (told if learns else [])
        engine.learn(told[0])
        assert costs.heard[-1] == told[0]
