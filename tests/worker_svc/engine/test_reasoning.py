"""A budget of reasoning, and a guide that begins behind it: the same tokens on every path through the engine."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandem.worker.engine.account import FinishReason
from tandem.worker.engine.grammars import Grammars
from tandem.worker.engine.guides.guide import Guide
from tandem.worker.engine.reasoning import Reasoning, Thinking
from tandem.worker.engine.request import Drafting, LogprobOptions, Request
from tests.worker_svc.engine.counting import VOCABULARY, counting_request
from tests.worker_svc.engine.test_engine import Driver

IDS = st.integers(0, 3)


def naive(begin: Sequence[int], end: Sequence[int], output: Sequence[int]) -> tuple[bool, int | None, int]:
    """Whether the reasoning has begun, its length where it has ended, and where that was; by searching lists."""
    begin, end, output = list(begin), list(end), list(output)
    start = 0
    if begin:
        places = [i for i in range(len(output)) if output[i : i + len(begin)] == begin]
        if not places:
            return False, None, 0
        start = places[0] + len(begin)
    for place in range(start, len(output) - len(end) + 1):
        if output[place : place + len(end)] == end:
            return True, place - start, place + len(end)
    return True, None, 0


@given(st.lists(IDS, max_size=4), st.lists(IDS, min_size=1, max_size=4), st.lists(IDS, max_size=30))
def test_a_state_is_what_a_search_finds(begin: list[int], end: list[int], output: list[int]):
    rules = Reasoning(begin, end, None)
    state = rules.after_all(output)
    begun, length, behind = naive(begin, end, output)
    assert (state.begun, state.tokens) == (begun, length)
    assert rules.end_of(output) == (behind if length is not None else None)


@given(st.lists(IDS, min_size=1, max_size=4), st.lists(IDS, min_size=1, max_size=4), st.lists(IDS, max_size=30))
def test_before_a_guided_answer_the_reasoning_begins_at_once_or_never(
    begin: list[int], end: list[int], output: list[int]
):
    rules = Reasoning(begin, end, None, leads=True)
    state = rules.after_all(output)
    begins = output[: len(begin)] == begin[: len(output)]
    assert (rules.opening(state) is not None) == (not output)
    if not begins:
        assert (state.begun, state.tokens, rules.end_of(output)) == (False, 0, 0)
    elif len(output) < len(begin):
        assert rules.forced(state) == (begin[len(output)] if output else None)
        assert not rules.free(state, 1)
    else:
        begun, length, behind = naive(begin, end, output)
        assert (state.begun, state.tokens) == (begun, length)
        assert rules.end_of(output) == (behind if length is not None else None)


@given(
    st.lists(IDS, max_size=4),
    st.lists(IDS, min_size=1, max_size=4),
    st.integers(0, 6),
    st.lists(IDS, min_size=30, max_size=30),
)
def test_a_budget_is_never_exceeded_and_forces_a_whole_end(
    begin: list[int], end: list[int], budget: int, wanted: list[int]
):
    rules = Reasoning(begin, end, budget)
    state, output = rules.start, list[int]()
    for token in wanted:
        forced = rules.forced(state)
        assert forced is None or not rules.free(state, 1)
        output.append(token if forced is None else forced)
        state = rules.after(state, output[-1])
        assert 0 <= rules.tokens(state) <= budget
    assert state == rules.after_all(output)
    if not begin:
        assert naive(begin, end, output)[1] is not None


def thinking(
    request: Request, end: Sequence[int], budget: int | None, begin: Sequence[int] = (), *, leads: bool = False
) -> Request:
    rules = Reasoning(begin, end, budget, leads=leads)
    request.thinking = Thinking(rules, rules.start, request.statistics)
    return request


def expected(last: int, end: Sequence[int], budget: int, count: int) -> list[int]:
    """What a model that counts on from `last` says under a budget."""
    rules = Reasoning((), end, budget)
    state, output = rules.start, list[int]()
    for _ in range(count):
        forced = rules.forced(state)
        last = (last + 1) % VOCABULARY if forced is None else forced
        output.append(last)
        state = rules.after(state, last)
    return output


PATHS = {
    "plain": {},
    "overlap": {"overlap": True},
    "small steps": {"budget": 4, "running": 2, "pages": 40},
    "drafts": {"drafts": 6},
    "preempted": {"pages": 24, "others": 3},
}


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("budget", [0, 1, 5, 29, 200])
def test_every_path_forces_the_same_tokens(path: str, budget: int):
    how = dict(PATHS[path])
    drafts, others = int(how.pop("drafts", 0)), int(how.pop("others", 0))
    driver = Driver(**{"pages": 64, "budget": 90, **how})  # type: ignore[arg-type]
    driver.runner.jumps = True
    end = (9, 40, 41)
    request = thinking(counting_request(0, 5, 70 if drafts else 6, 30), end, budget)
    request.drafting = Drafting(drafts, 2) if drafts else None
    driver.engine.submit(request)
    for number in range(1, others + 1):
        driver.engine.submit(counting_request(number, number, 12, 20, priority=1))
    driver.run()
    assert driver.output[0] == expected(10 if not drafts else 74 % VOCABULARY, end, budget, 30)
    statistics = driver.finished[0].statistics
    assert statistics.reasoning_tokens == min(budget, 30)
    if path == "overlap" and budget > 2:
        assert driver.launched_ahead
    if path == "drafts":
        assert statistics.draft_tokens_accepted


@pytest.mark.parametrize("resumed", range(13))
def test_resumed_output_goes_on_as_it_would_have(resumed: int):
    whole = expected(10, (40, 41, 42), 5, 12)
    driver = Driver(pages=64)
    driver.runner.jumps = True
    driver.engine.submit(thinking(counting_request(0, 5, 6, 12, resumed=whole[:resumed]), (40, 41, 42), 5))
    driver.run()
    assert driver.output[0] == whole[resumed:]
    assert driver.finished[0].statistics.reasoning_tokens == 5


def test_reasoning_that_never_begins_has_no_budget():
    driver = Driver(pages=64)
    driver.engine.submit(thinking(counting_request(0, 5, 6, 12), (40,), 3, begin=(60,)))
    driver.run()
    assert driver.output[0] == [(11 + i) % VOCABULARY for i in range(12)]
    assert driver.finished[0].statistics.reasoning_tokens == 0


ANSWER = [0, 1, 2, 3]
# What the model says that would count on from 11, by the ids behind which its reasoning begins.
GUIDED = {
    (): [11, 12, 13, 40, 41, *ANSWER],  # it has begun
    (11, 30): [11, 30, 31, 32, 33, 40, 41, *ANSWER],  # it begins it, and is led on
    (60,): ANSWER,
}


@pytest.fixture
def driver() -> Iterator[Driver]:
    """An engine that overlaps its steps and knows what its ids say; at its end no guide is left."""
    pytest.importorskip("llguidance")
    grammars = Grammars(VOCABULARY, [])
    grammars.load([bytes([ord("0") + i]) for i in range(VOCABULARY)], [])
    driver = Driver(pages=64, budget=90, overlap=True, grammars=grammars)
    driver.runner.jumps = True
    try:
        yield driver
        assert not grammars._matchers
    finally:
        grammars.stop()


def guided_behind(driver: Driver, request: Request) -> None:
    """Submits a request whose answer, behind its reasoning, is four digits below 6."""
    assert request.thinking is not None
    request.thinking.guide = driver.engine.grammars.matcher(Guide("regex", "[0-5]{4}"))
    request.matcher = request.thinking.guiding
    driver.engine.submit(request)


@pytest.mark.parametrize("begin", GUIDED)
@pytest.mark.parametrize("drafts", [0, 6])
@pytest.mark.parametrize("resumed", [0, 3, 5, 8])
def test_a_guide_begins_behind_the_reasoning(driver: Driver, begin: tuple[int, ...], drafts: int, resumed: int):
    whole = GUIDED[begin]
    request = thinking(counting_request(0, 5, 6, 30, resumed=whole[:resumed]), (40, 41), 3, begin, leads=True)
    request.drafting = Drafting(drafts, 2) if drafts else None
    guided_behind(driver, request)
    driver.run()
    assert driver.output[0] == whole[resumed:]
    assert driver.finished[0].reason is FinishReason.GRAMMAR_END
    assert driver.finished[0].statistics.reasoning_tokens == (0 if whole == ANSWER else 3)


def test_a_guide_that_waits_for_the_reasoning_is_closed_with_its_request(driver: Driver):
    guided_behind(driver, thinking(counting_request(0, 5, 6, 3), (40, 41), None, (11,), leads=True))
    driver.run()
    assert driver.output[0] == [11, 12, 13]


@pytest.mark.parametrize("room", [0, 3])
def test_resumed_output_that_completes_a_guide_ends_once_the_prompt_is_scored(driver: Driver, room: int):
    options = LogprobOptions(prompt=True)
    request = counting_request(0, 5, 30, len(ANSWER) + room, resumed=ANSWER, logprobs=options)
    guide, grammars = Guide("regex", "[0-5]{4}"), driver.engine.grammars
    grammars.compile(1, guide)
    while not grammars.take_compiled():
        grammars.wait(0.1)
    request.matcher = grammars.matcher(guide)  # which answers while the step runs
    driver.engine.submit(request)
    results = []
    while driver.engine.has_work:
        results.append(driver.engine.step())
    assert [finish.reason for result in results for finish in result.finished] == [FinishReason.GRAMMAR_END]
    assert sum(len(scores.logprobs) for result in results for scores in result.prompts) == 29
