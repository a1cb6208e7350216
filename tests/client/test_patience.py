"""What spends an answer's attempts, what is waited for, and how callers are spread."""

from __future__ import annotations

import pytest

from tandem.client import FailoverSettings, UnavailableError
from tandem.client.patience import RESTARTING, Patience, restarts

LOST = UnavailableError("lost")


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def test_attempts_bound_failures_in_a_row() -> None:
    patience = Patience(FailoverSettings(attempts=2))
    patience.failed(LOST, may_wait=False)
    patience.failed(LOST, may_wait=False)
    with pytest.raises(UnavailableError):
        patience.failed(LOST, may_wait=False)


def test_what_comes_new_gives_all_attempts_back() -> None:
    patience = Patience(FailoverSettings(attempts=1))
    for _ in range(100):
        patience.failed(LOST, may_wait=False)
        patience.progressed()
    patience.failed(LOST, may_wait=False)
    with pytest.raises(UnavailableError):
        patience.failed(LOST, may_wait=False)


def test_waiting_for_a_restart_spends_time_and_no_attempts() -> None:
    clock = Clock()
    patience = Patience(FailoverSettings(attempts=1, restart_seconds=10), clock)
    for second in range(10):
        clock.now = second
        patience.failed(LOST, may_wait=True)
    clock.now = 10
    patience.failed(LOST, may_wait=True)  # the attempt
    with pytest.raises(UnavailableError):
        patience.failed(LOST, may_wait=True)


def test_each_wait_has_the_whole_time_after_something_new() -> None:
    clock = Clock()
    patience = Patience(FailoverSettings(attempts=1, restart_seconds=10), clock)
    for begin in range(0, 100, 9):
        clock.now = begin
        patience.failed(LOST, may_wait=True)
        clock.now = begin + 9
        patience.failed(LOST, may_wait=True)
        patience.progressed()
    clock.now = 200
    patience.failed(LOST, may_wait=True)
    clock.now = 210
    patience.failed(LOST, may_wait=True)  # the attempt
    with pytest.raises(UnavailableError):
        patience.failed(LOST, may_wait=True)


def test_without_attempts_nothing_is_waited_for() -> None:
    with pytest.raises(UnavailableError):
        Patience(FailoverSettings(attempts=0)).failed(LOST, may_wait=True)


def test_pauses_double_up_to_a_bound_and_are_spread() -> None:
    settings = FailoverSettings(initial_backoff_seconds=0.2, max_backoff_seconds=2)
    pauses: list[list[float]] = []
    for _ in range(200):
        patience = Patience(settings)
        pauses.append([patience.pause(LOST, None) for _ in range(3000)])
    for place, longest in ((0, 0.2), (1, 0.4), (2, 0.8), (3, 1.6), (4, 2.0), (2999, 2.0)):
        column = [row[place] for row in pauses]
        assert longest / 2 <= min(column) < 0.6 * longest
        assert 0.9 * longest < max(column) <= longest


def test_advice_is_followed_spread_and_not_beyond_the_deadline() -> None:
    full = UnavailableError("full", retry_after=8.0)
    pauses = [Patience(FailoverSettings()).pause(full, None) for _ in range(200)]
    assert 8 <= min(pauses) < 8.5
    assert 9.5 < max(pauses) <= 10
    assert {Patience(FailoverSettings()).pause(full, 6.0) for _ in range(20)} == {3.0}


@pytest.mark.parametrize("reason", sorted(RESTARTING))
def test_reasons_of_restarts_are_known(reason: str) -> None:
    assert restarts(UnavailableError("", reason=reason), reached=False)


def test_only_a_server_that_was_there_is_about_to_come_back() -> None:
    assert restarts(UnavailableError("connection refused"), reached=True)
    assert not restarts(UnavailableError("connection refused"), reached=False)
    assert not restarts(UnavailableError("", reason="SOMETHING_ELSE"), reached=True)
