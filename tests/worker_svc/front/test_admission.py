"""The bound on what waits."""

from __future__ import annotations

import contextlib
import itertools

import grpc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandem.common.errors import ServiceError
from tandem.worker.front.admission import Admission


def refusal(admission: Admission, tokens: int) -> ServiceError:
    with pytest.raises(ServiceError) as caught:
        admission.enter(tokens)
    assert caught.value.code is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert caught.value.retry_after is not None
    return caught.value


def test_requests_are_bounded():
    admission = Admission(max_requests=2, max_tokens=100)
    admission.enter(1)
    admission.enter(1)
    assert "2 of 2 requests" in refusal(admission, 1).message
    admission.leave(1, now=1.0)
    admission.enter(1)


def test_tokens_are_bounded():
    admission = Admission(max_requests=10, max_tokens=100)
    admission.enter(60)
    assert "60 of 100 prompt tokens" in refusal(admission, 41).message
    admission.enter(40)
    assert admission.refused == 1


def test_a_single_request_is_let_in_whatever_its_size():
    admission = Admission(max_requests=10, max_tokens=100)
    admission.enter(500)
    refusal(admission, 1)
    admission.leave(500, now=0.0)
    assert (admission.requests, admission.tokens) == (0, 0)


def test_retry_advice_follows_the_pace_of_ends_within_bounds():
    admission = Admission(max_requests=1000, max_tokens=1000)
    for _ in range(200):
        admission.enter(1)
    for end in range(100):
        admission.leave(1, now=0.001 * end)
    assert 0.1 <= admission.retry_after(now=100.0) <= 0.15
    for end in range(100):
        admission.leave(1, now=1000.0 * (end + 1))
    assert 30 <= admission.retry_after(now=200_000.0) <= 45


def test_those_who_are_refused_together_are_told_to_come_back_one_after_the_other():
    admission = Admission(max_requests=1, max_tokens=1000)
    for end in range(200):
        admission.enter(1)
        admission.leave(1, now=0.5 * end)
    advice = [admission.retry_after(now=100.0) for _ in range(1000)]
    places = [sum(1 for each in advice if begin <= each < begin + 5) for begin in range(0, 30, 5)]
    assert max(places) <= 15, "at the pace of ends: ten in 5 s, spread a little"
    assert min(places[:5]) >= 3
    far = sorted(each for each in advice if each >= 30)
    assert far[-1] <= 45
    assert max(later - earlier for earlier, later in itertools.pairwise(far)) < 1, "nobody with everybody else"


def test_a_caller_that_fills_the_queue_does_not_shut_others_out():
    admission = Admission(max_requests=8, max_tokens=1000)
    for _ in range(8):
        admission.enter(1, caller="flood")
    for _ in range(4):
        admission.enter(1, caller="other")
    for caller in ("flood", "other"):
        with pytest.raises(ServiceError, match=r"12 of 8 requests, . of them this caller's, whose share is 4"):
            admission.enter(1, caller=caller)
    for _ in range(5):
        admission.leave(1, now=0.0, caller="flood")
    admission.enter(1, caller="other")  # there is room for everybody again
    assert admission.callers == 2


def test_prompt_tokens_are_shared_too_and_twice_the_limit_is_the_most():
    admission = Admission(max_requests=1000, max_tokens=100)
    admission.enter(90, caller="flood")
    with pytest.raises(ServiceError, match="whose share is 50"):
        admission.enter(51, caller="other")
    for number in range(400):
        with contextlib.suppress(ServiceError):
            admission.enter(1, caller=str(number))
    assert 100 <= admission.tokens <= 200


@given(
    moves=st.lists(st.tuples(st.sampled_from("abc"), st.integers(1, 60), st.integers(1, 4), st.booleans()), max_size=80)
)
def test_whoever_holds_less_than_a_share_gets_in_and_a_queue_with_room_refuses_nobody(moves):
    admission = Admission(max_requests=12, max_tokens=200)
    inside: list[tuple[int, int, str]] = []
    for caller, tokens, samples, comes in moves:
        if not comes:
            if inside:
                left, count, who = inside.pop(0)
                admission.leave(left, now=0.0, samples=count, caller=who)
            continue
        held = [sum(each[place] for each in inside if each[2] == caller) for place in (0, 1)]
        callers = len({who for *_, who in inside} | {caller})
        room = admission.requests + samples <= 12 and admission.tokens + tokens <= 200
        small = held[0] + tokens <= 200 // callers and held[1] + samples <= 12 // callers
        bounded = admission.requests + samples <= 24 and admission.tokens + tokens <= 400
        try:
            admission.enter(tokens, samples, caller)
        except ServiceError:
            assert not room and not (small and bounded)
            continue
        inside.append((tokens, samples, caller))
        assert admission.requests <= 24 and admission.tokens <= 400
    assert admission.callers == len({who for *_, who in inside})
