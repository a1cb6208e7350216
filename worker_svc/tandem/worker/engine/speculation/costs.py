"""Learns what drafts cost and gain, and so how many are worth it.

    tokens(D)  decodes + the chances of the D likeliest drafts, each of which needs those before it to be accepted
    ratio(D)   seconds of a step with D drafts to those of one without
    windows    of the D whose tokens(D) / ratio(D) is the largest, if that is more than none gives

The ratio is learnt from the engine's own steps: a processor pays for nearly every row, a GPU for hardly any, and a
draft model makes all of them dearer. It belongs to a number of decodes and of drafts, and what was measured for others
of about the same size stands in. It does not change when contexts grow or the machine is busy.

What is not known is tried: at most twice as many drafts as were measured, and where nothing was measured, as if rows
cost nothing. What was measured is slowly forgotten while nothing is drafted, so that what was too dear once is tried
again, every few hundred steps.

No clock, no torch: all ranks that hear of the same steps decide alike.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

LEAST_GAIN = 0.05  # of tokens per second; what promises less is as likely to lose
LEAST_CHANCE = 1 / 64  # of a draft to be accepted
FIRST_DRAFTS = 4  # in a step, before any were measured; with many decodes, a quarter of them
PLAIN_EVERY = 64  # of so many steps one has no drafts, so that it stays known what they are compared with
_NEW = 0.3  # weight of a new measurement
_FORGOTTEN = 1 / 256  # of a ratio's excess, a step without drafts
_ROW = 1 / 256  # of a step, that a draft costs before it was measured, or if it seems to cost nothing
_OUTLIER = 2.0  # times what is expected; what is more is taken for that


class StepCost(NamedTuple):
    """The time of a step of nothing but decodes."""

    decodes: int
    drafts: int
    seconds: float


class Costs(Protocol):
    """Estimates what a step costs."""

    def ratio(self, decodes: int, drafts: int) -> float:
        """Returns the time ratio of a step with so many drafts to one without; it never falls with the drafts."""
        ...

    def most(self, decodes: int) -> int:
        """Returns how many drafts may be tried in one step; 0 where a step without is wanted."""
        ...

    def learn(self, cost: StepCost) -> None:
        """Learns from a step that is over."""
        ...


class Free:
    """Takes rows as free: what decides is whether drafts are accepted."""

    def ratio(self, decodes: int, drafts: int) -> float:
        return 1.0

    def most(self, decodes: int) -> int:
        return 1 << 16

    def learn(self, cost: StepCost) -> None:
        """Does nothing: there is nothing to learn."""


@dataclass(slots=True)
class _Plain:
    """Running means of steps of about as many decodes, without drafts."""

    seconds: float
    count: int = 1
    drafted: int = 0  # steps with drafts since the last one


@dataclass(slots=True)
class _Drafted:
    """Running means of steps of about as many decodes and drafts."""

    drafts: float
    ratio: float


@dataclass(slots=True)
class MeasuredCosts:
    """Learns `Costs` from the steps that it is told of."""

    _plain: dict[int, _Plain] = field(default_factory=dict)
    _drafted: dict[int, dict[int, _Drafted]] = field(default_factory=dict)  # by size of decodes, then of drafts

    def most(self, decodes: int) -> int:
        plain = self._plain.get(_about(decodes))
        if plain is None or plain.count < 2 or plain.drafted >= PLAIN_EVERY:
            return 0
        measured = [each.drafts for each in self._drafted.get(decodes.bit_length(), {}).values()]
        return max(FIRST_DRAFTS, decodes // 4, int(2 * max(measured, default=0)))

    def ratio(self, decodes: int, drafts: int) -> float:
        ratio = 1 + drafts * _ROW
        for each in self._drafted.get(decodes.bit_length(), {}).values():
            part = drafts / each.drafts
            # Fewer drafts than these: in proportion. More: each half as dear, so that they are tried.
            ratio = max(ratio, 1 + (each.ratio - 1) * (part if part < 1 else (1 + part) / 2))
        return ratio

    def learn(self, cost: StepCost) -> None:
        decodes, drafts, seconds = cost
        plain = self._plain.get(_about(decodes))
        if not drafts:
            self._forget(decodes.bit_length())
            if plain is None:
                self._plain[_about(decodes)] = _Plain(seconds)
                return
            plain.drafted = 0
            plain.count += 1
            if plain.count == 2:  # a first step may be slow for many reasons
                plain.seconds = min(plain.seconds, seconds)
            else:
                likely = min(max(seconds, plain.seconds / _OUTLIER), plain.seconds * _OUTLIER)
                plain.seconds += _NEW * (likely - plain.seconds)
            return
        if plain is None or not plain.seconds:
            return
        plain.drafted += 1
        ratio = seconds / plain.seconds
        measured = self._drafted.setdefault(decodes.bit_length(), {})
        like = measured.get(drafts.bit_length())
        if like is None:
            measured[drafts.bit_length()] = _Drafted(drafts, min(ratio, _OUTLIER * (1 + drafts / decodes)))
            return
        like.drafts += _NEW * (drafts - like.drafts)
        like.ratio += _NEW * (min(ratio, _OUTLIER * like.ratio) - like.ratio)

    def _forget(self, size: int) -> None:
        for each in self._drafted.get(size, {}).values():
            each.ratio -= _FORGOTTEN * (each.ratio - 1)


def _about(decodes: int) -> int:
    """Rounds a number: up to 15 it stays, above neighbours differ by an eighth at most."""
    shift = max(0, decodes.bit_length() - 4)
    return decodes >> shift << shift


def windows(
    costs: Costs, decodes: int, chances: Sequence[float], limits: Sequence[int], rows: int
) -> tuple[list[int], bool]:
    """Chooses how many drafts each request gets, and tells whether some were wanted that are not worth what they cost.

    decodes: requests that decode, those without drafts included.
    chances: that a draft of request i is accepted, if those before it are.
    limits: drafts that there are of request i. `rows`: drafts of all together, at most.
    """
    given = [0] * len(chances)
    allowed = costs.most(decodes)
    rows = min(rows, allowed)
    # The likeliest first: for every number of drafts, these are the ones that give the most tokens.
    likeliest = [(-chance, i) for i, chance in enumerate(chances) if limits[i] > 0 and chance >= LEAST_CHANCE]
    heapq.heapify(likeliest)
    order: list[int] = []
    tokens = float(decodes)
    best, best_count = decodes * (1 + LEAST_GAIN), 0
    while likeliest and len(order) < rows:
        chance, i = -likeliest[0][0], likeliest[0][1]
        # No further draft is likelier than this one, and none comes for nothing.
        if tokens + (rows - len(order)) * chance <= best * costs.ratio(decodes, len(order) + 1):
            break
        order.append(i)
        given[i] += 1
        tokens += chance
        rate = tokens / costs.ratio(decodes, len(order))
        if rate > best:
            best, best_count = rate, len(order)
        following = chance * chances[i]
        if given[i] < limits[i] and following >= LEAST_CHANCE:
            heapq.heapreplace(likeliest, (-following, i))
        else:
            heapq.heappop(likeliest)
    for i in order[best_count:]:
        given[i] -= 1
    return given, allowed > 0 and not best_count and any(limits)
