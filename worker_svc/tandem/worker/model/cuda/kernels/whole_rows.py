"""The filters and a draw over a whole row, where many logits are kept: passes over the row by one program.

A bound is found by dividing the keys (`keys.py`) between two of which one keeps enough and the other too little: a
pass counts, or weighs, what each of PIVOTS keys between them would keep. Weights are integers (`survey.py`), so the
mass that a bound keeps never falls as the bound does, and is the same whatever the order of additions. The draw inverts
the cumulative distribution in the order of the vocabulary.
"""

from __future__ import annotations

import triton
import triton.language as tl

from tandem.worker.model.cuda.kernels.keys import NOTHING, key_of, key_of_bound
from tandem.worker.model.cuda.kernels.survey import MIN_P, SIGMA, TEMPERATURE, UNIFORM, K, P, counting, rule, weigh

_PIVOTS = tl.constexpr(8)
_STEP = tl.constexpr(2048)  # logits that are held against all pivots at once


@triton.jit
def _load(logits, at, rules, rows, size):
    x = tl.load(logits + at, mask=at < size, other=float("-inf")).to(tl.float32)
    return counting(x, rules, rows, False)


@triton.jit
def _kept(logits, rules, rows, size, low, top, temperature, WEIGHED: tl.constexpr):
    """Counts, or weighs, the logits whose keys are not below `low`; int64."""
    total = tl.full([], 0, tl.int64)
    for start in range(0, size, _STEP):
        x = _load(logits, start + tl.arange(0, _STEP), rules, rows, size)
        each = weigh(x, top, temperature) if WEIGHED else (x > float("-inf")).to(tl.int64)
        total += tl.sum(tl.where(key_of(x) >= low, each, 0), 0)
    return total


@triton.jit
def _bound(logits, rules, rows, size, low, top, target, WEIGHED: tl.constexpr):
    """Returns the largest key, not below `low`, above which there are, or weigh, `target` (float64) and more."""
    high = key_of(top).to(tl.int64) + 1
    number = tl.arange(0, _PIVOTS) + 1
    while high - low > 1:
        step = (high - low + _PIVOTS) // (_PIVOTS + 1)
        pivots = low + step * number
        found = tl.zeros([_PIVOTS], tl.int64)
        for start in range(0, size, _STEP):
            x = _load(logits, start + tl.arange(0, _STEP), rules, rows, size)
            each = weigh(x, top, 1.0) if WEIGHED else (x > float("-inf")).to(tl.int64)
            found += tl.sum(tl.where(key_of(x)[:, None] >= pivots[None, :], each[:, None], 0), 0)
        enough = tl.sum(((found.to(tl.float64) >= target) & (pivots < high)).to(tl.int32), 0)
        high = tl.minimum(high, low + step * (enough + 1))
        low += step * enough
    return low


@triton.jit
def draw_from_whole_row(logits, rules, rows, size, top, deviation, PART: tl.constexpr):
    """Filters and draws; returns the id, the key of the least logit that is kept (int64), and the mass of what is kept
    (float64, in units of a weight)."""
    low = tl.full([], NOTHING, tl.int64)
    wide_top = top.to(tl.float64)
    sigma = rule(rules, rows, SIGMA)
    if sigma > 0:
        low = key_of_bound(wide_top - sigma * deviation)
    k = rule(rules, rows, K)
    if k > 0:  # noqa: SIM102
        if k < _kept(logits, rules, rows, size, low, top, 1.0, False):
            low = _bound(logits, rules, rows, size, low, top, k, False)
    p = rule(rules, rows, P)
    if p < 1:
        mass = _kept(logits, rules, rows, size, low, top, 1.0, True).to(tl.float64)
        low = _bound(logits, rules, rows, size, low, top, p * mass, True)
    share = rule(rules, rows, MIN_P)
    if share > 0:
        low = tl.maximum(low, key_of_bound(wide_top + tl.log(share)))

    temperature = rule(rules, rows, TEMPERATURE).to(tl.float32)
    total = _kept(logits, rules, rows, size, low, top, temperature, True).to(tl.float64)
    target = rule(rules, rows, UNIFORM) * total
    reached = tl.full([], 0, tl.int64)
    before = tl.full([], 0, tl.int64)
    block = 0
    for start in range(0, size, PART):  # the part in which the sum exceeds the target
        x = _load(logits, start + tl.arange(0, PART), rules, rows, size)
        further = reached + tl.sum(tl.where(key_of(x) >= low, weigh(x, top, temperature), 0), 0)
        inside = (reached.to(tl.float64) <= target) & (further > reached)
        block = tl.where(inside, start, block)
        before = tl.where(inside, reached, before)
        reached = further
    at = block + tl.arange(0, PART)
    x = _load(logits, at, rules, rows, size)
    weights = tl.where(key_of(x) >= low, weigh(x, top, temperature), 0)
    above = (before + tl.cumsum(weights, 0)).to(tl.float64) > target
    first = tl.min(tl.where(above & (weights > 0), at, size), 0)
    last = tl.max(tl.where(weights > 0, at, 0), 0)
    return tl.minimum(first, last), low, total
