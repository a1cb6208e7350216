"""How many drafts: what gains most by the costs that are known, and with costs that are learnt, never much less than
without speculation."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandem.worker.engine.speculation.costs import LEAST_GAIN, PLAIN_EVERY, Free, MeasuredCosts, StepCost, windows
from tandem.worker.engine.speculation.drafting import FIRST_CHANCE, Memory


@dataclass
class Known:
    """Ratios by number of drafts."""

    ratios: list[float]
    tries: int = 1 << 16

    def ratio(self, decodes: int, drafts: int) -> float:
        return self.ratios[drafts]

    def most(self, decodes: int) -> int:
        return self.tries

    def learn(self, cost: StepCost) -> None:
        raise AssertionError


def ratios(steps: list[float]) -> Known:
    """Costs that never fall; convex if the steps rise."""
    return Known([1.0, *(1 + np.cumsum(steps)).tolist()])


some_steps = st.lists(st.floats(0.004, 1.0), min_size=40, max_size=40)
some_chances = st.lists(st.floats(0.02, 1.0), min_size=1, max_size=4)


def gain(costs: Known, decodes: int, chances: list[float], given_drafts: tuple[int, ...] | list[int]) -> float:
    """Tokens per second, in those of a step without drafts."""
    tokens = decodes + sum(
        chance**place for chance, count in zip(chances, given_drafts, strict=True) for place in range(1, count + 1)
    )
    return float(tokens / decodes / costs.ratio(decodes, sum(given_drafts)))


@given(some_steps, some_chances, st.integers(0, 30), st.integers(0, 8), st.integers(0, 8), st.data())
def test_no_other_windows_would_gain_more(steps, chances, others, rows, tries, data):
    costs, decodes = ratios(steps), len(chances) + others
    costs.tries = tries
    limits = [data.draw(st.integers(0, 3)) for _ in chances]
    chosen, declined = windows(costs, decodes, chances, limits, rows)
    assert all(0 <= count <= limit for count, limit in zip(chosen, limits, strict=True))
    assert sum(chosen) <= min(rows, tries)
    possible = [
        each
        for each in itertools.product(*(range(limit + 1) for limit in limits))
        if sum(each) <= min(rows, tries) and all(c**n >= 1 / 64 for c, n in zip(chances, each, strict=True))
    ]
    best = max(gain(costs, decodes, chances, each) for each in possible)
    if best > (1 + LEAST_GAIN) * (1 + 1e-9):
        assert gain(costs, decodes, chances, chosen) == pytest.approx(best)
        assert not declined
    elif best < 1 + LEAST_GAIN:
        assert not any(chosen)


@given(some_steps, some_chances, st.integers(0, 30), st.floats(0.0, 1.0), st.integers(1, 40))
def test_a_likelier_request_gets_no_fewer_drafts_where_each_row_costs_more_than_the_last(
    steps, chances, others, rise, rows
):
    costs, decodes = ratios(sorted(steps)), len(chances) + others
    limits = [10] * len(chances)
    before, _ = windows(costs, decodes, chances, limits, rows)
    likelier = [chances[0] + rise * (1 - chances[0]), *chances[1:]]
    after, _ = windows(costs, decodes, likelier, limits, rows)
    assert after[0] >= before[0]


def test_where_rows_are_free_every_draft_that_may_be_accepted_is_computed():
    assert windows(Free(), 64, [0.9] * 64, [8] * 64, 4096) == ([8] * 64, False)
    assert windows(Free(), 2, [0.001, 0.5], [8, 8], 4096) == ([0, 6], False)


def test_drafts_that_cost_more_than_they_gain_are_declined():
    dear = Known([1 + drafts for drafts in range(50)])
    assert windows(dear, 1, [0.95], [8], 40) == ([0], True)
    assert windows(dear, 1, [0.95], [0], 40) == ([0], False)


def test_what_was_seen_of_a_request_fades():
    drafting = Memory()
    assert drafting.chance(100) == FIRST_CHANCE
    for num_tokens in range(100, 120):
        drafting.learn(4, 0, num_tokens)
    assert drafting.chance(120) < 0.06
    assert drafting.chance(120) < drafting.chance(200) < drafting.chance(2000) == pytest.approx(FIRST_CHANCE, abs=0.01)
    for num_tokens in range(2000, 2100, 9):
        drafting.learn(8, 8, num_tokens)
    assert drafting.chance(2100) > 0.97


# --------------------------------------------------------------------------------------------------------- learning


@dataclass
class Machine:
    """Steps that take a part that is the same for all, and so much for each row."""

    fixed: float
    row: float
    beside: float = 0.0  # of a step with any drafts
    noise: float = 0.0
    slow: float = 0.0  # share of steps that take five times as long
    draw: np.random.Generator = field(default_factory=lambda: np.random.default_rng(0))

    def seconds(self, decodes: int, drafts: int) -> float:
        exact = self.fixed + self.row * (decodes + drafts) + (self.beside if drafts else 0.0)
        return float(exact * np.exp(self.noise * self.draw.normal()) * (5 if self.draw.random() < self.slow else 1))


def simulated(machine: Machine, decodes: int, chance: float, steps: int = 600) -> tuple[float, list[int]]:
    """Tokens per exact second, in those without speculation, and the drafts of each step."""
    costs, drafting, length = MeasuredCosts(), [Memory() for _ in range(decodes)], [0] * decodes
    tokens, exact, proposed = 0, 0.0, []
    quiet = Machine(machine.fixed, machine.row, machine.beside)
    for _ in range(steps):
        chances = [each.chance(n) for each, n in zip(drafting, length, strict=True)]
        given_drafts, _ = windows(costs, decodes, chances, [8] * decodes, 512)
        drafts = sum(given_drafts)
        for i, count in enumerate(given_drafts):
            accepted = int(np.minimum(machine.draw.geometric(1 - chance) - 1, count)) if chance < 1 else count
            length[i] += accepted + 1
            tokens += accepted + 1
            if count:
                drafting[i].learn(count, accepted, length[i])
        exact += quiet.seconds(decodes, drafts)
        proposed.append(drafts)
        costs.learn(StepCost(decodes, drafts, machine.seconds(decodes, drafts)))
    return tokens / exact * quiet.seconds(decodes, 0) / decodes, proposed


@pytest.mark.parametrize("row", [0.01, 0.25])
@pytest.mark.parametrize("beside", [0.0, 0.4])
@pytest.mark.parametrize("decodes", [1, 3, 16])
@pytest.mark.parametrize("chance", [0.0, 0.4, 0.7])
def test_no_machine_and_no_text_is_much_slower_with_speculation(row, beside, decodes, chance):
    assert simulated(Machine(1.0, row, beside, noise=0.03, slow=0.01), decodes, chance, steps=400)[0] > 0.97


def test_a_card_that_computes_all_rows_at_once_is_given_many():
    gained, drafts = simulated(Machine(1.0, 0.0005), decodes=32, chance=0.9, steps=150)
    assert gained > 3
    assert max(drafts) > 32 * 6
    assert drafts[:3] == [0, 0, 8], "first what a step without takes, then few"


def test_a_processor_with_many_decodes_is_given_none_but_a_trial_now_and_then():
    gained, drafts = simulated(Machine(0.2, 1.0), decodes=16, chance=0.5)
    assert gained > 0.97
    assert 0 < sum(count > 0 for count in drafts[100:]) < 25


def test_slow_steps_do_not_end_what_pays():
    gained, _ = simulated(Machine(1.0, 0.02, noise=0.05, slow=0.05), decodes=1, chance=0.9)
    assert gained > 2.5


def test_a_machine_that_changes_is_learnt_anew():
    costs = MeasuredCosts()
    for _ in range(3):
        costs.learn(StepCost(8, 0, 1.0))
        costs.learn(StepCost(8, 16, 3.0))
    assert costs.ratio(8, 16) > 2.5
    for _ in range(2000):
        costs.learn(StepCost(8, 0, 1.0))
    assert costs.ratio(8, 16) < 1.1
    for _ in range(20):
        costs.learn(StepCost(8, 16, 1.5))
    assert costs.ratio(8, 16) == pytest.approx(1.5, abs=0.05)


def test_one_very_slow_step_changes_little():
    costs = MeasuredCosts()
    for _ in range(3):
        costs.learn(StepCost(1, 0, 1.0))
    for _ in range(10):
        costs.learn(StepCost(1, 4, 1.1))
    costs.learn(StepCost(1, 4, 100.0))
    assert 1.1 < costs.ratio(1, 4) < 1.5


def test_it_stays_known_what_drafts_are_compared_with():
    costs = MeasuredCosts()
    for _ in range(2):
        assert costs.most(6) == 0, "first what a step without takes"
        costs.learn(StepCost(6, 0, 1.0))
    for _ in range(PLAIN_EVERY):
        assert costs.most(6)
        costs.learn(StepCost(6, 4, 1.1))
    assert costs.most(6) == 0
    costs.learn(StepCost(6, 0, 1.0))
    assert costs.most(6)


def test_a_clock_that_stands_still_is_survived():
    costs = MeasuredCosts()
    for _ in range(4):
        costs.learn(StepCost(1, 0, 0.0))
        costs.learn(StepCost(1, 4, 0.0))
    assert costs.ratio(1, 4) >= 1
