"""The bound on what waits."""

from __future__ import annotations

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
    assert admission.retry_after == pytest.approx(0.1)
    for end in range(100):
        admission.leave(1, now=1000.0 * (end + 1))
    assert admission.retry_after == pytest.approx(30.0)
