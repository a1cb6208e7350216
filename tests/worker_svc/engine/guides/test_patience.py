"""How long a step waits for a mask while others are in it."""

from __future__ import annotations

import pytest

from tandem.worker.engine.guides.patience import LONGEST_WAIT_SECONDS, SHORTEST_WAIT_SECONDS, Patience


@pytest.mark.parametrize(
    ("step", "waited", "patience"),
    [
        (0.005, 0.0, 0.005),
        (0.009, 0.004, 0.005),  # what it waited is not what it takes
        (0.0001, 0.0, SHORTEST_WAIT_SECONDS),
        (0.5, 0.0, LONGEST_WAIT_SECONDS),
    ],
)
def test_a_step_waits_as_long_as_the_last_one_took_without_its_waits(step: float, waited: float, patience: float):
    waits = Patience()
    waits.begin()
    waits.waited(waited)
    waits.stepped(step)
    assert waits.seconds == pytest.approx(patience)


def test_waits_of_a_step_do_not_count_for_the_next_one():
    waits = Patience()
    waits.begin()
    waits.waited(0.1)
    waits.begin()
    waits.stepped(0.01)
    assert waits.seconds == 0.01
