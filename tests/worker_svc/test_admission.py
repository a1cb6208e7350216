"""The bound on what waits."""

from __future__ import annotations

import itertools

import grpc
import pytest

from svc_common.errors import ServiceError
from worker_svc.admission import Admission


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
