"""Drafts: where they come from, and that they change the number of passes and nothing else."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.worker_svc.engine.counting import VOCABULARY, counting_request
from tests.worker_svc.engine.test_engine import Driver, counted
from worker_svc.engine.drafting import FAILURES, Drafting, NGramIndex
from worker_svc.engine.request import FinishReason, Request, Sampling, Stopping
from worker_svc.engine.stops import StopSequences


@given(st.lists(st.integers(0, 3), max_size=60), st.integers(1, 4), st.integers(1, 8), st.data())
@settings(max_examples=200, deadline=None)
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
    assert statistics.drafts_accepted == 60 - (statistics.forward_passes - 1)  # one more for the prompt
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
        assert request.statistics.drafts_accepted > 0


def test_drafts_never_take_a_page_from_anybody():
    driver = Driver(pages=2 * 20, page_size=4, budget=64, running=2)
    for handle in range(2):
        driver.engine.submit(drafted(counting_request(handle, 0, VOCABULARY + 2, 12, bypass=True), most=16))
    driver.run()
    assert driver.engine.scheduler.statistics.preemptions == 0
    assert driver.output[0] == driver.output[1] == counted(0, VOCABULARY + 2, 12)


def test_the_window_follows_what_is_accepted_and_rests_when_nothing_is():
    drafting = Drafting(max_tokens=16, ngram=3)
    drafting.learn(4, 4, 100)
    drafting.learn(8, 8, 109)
    assert drafting.window == 16
    drafting.learn(16, 5, 115)
    assert drafting.window == 6
    for _ in range(FAILURES):
        drafting.learn(6, 0, 120)
    assert drafting.window == 1
    assert drafting.rest_until > 120


def test_a_large_batch_is_not_speculated_on():
    driver = Driver(pages=800, page_size=8, budget=3000, running=40)
    for handle in range(40):
        driver.engine.submit(drafted(counting_request(handle, handle, VOCABULARY + 2, 10)))
    driver.run()
    assert driver.engine.scheduler.statistics.drafts_proposed == 0
