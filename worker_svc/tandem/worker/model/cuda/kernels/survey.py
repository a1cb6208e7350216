"""Reads the logits of each row once, in parts of a fixed size, and notes of each part what a choice needs.

`choose.py` makes the choice. On the way rows are changed, in place, where there are rules for it: ids that a mask
forbids get -inf, and ids that occurred are penalized (`engine/sampler/penalties.py` has the formula). Biases are added
before (`changes.py`).

`rules` `[RULES, rows]` float64 are what is asked of each row:

    TEMPERATURE    0 takes the largest
    UNIFORM        the number that a draw is made with
    LOW, HIGH      only logits between the two count                          (BOUNDED)
    SIGMA, K, P, MIN_P    the filters top_n_sigma, top_k, top_p and min_p; 0, 0, 1 and 0 are off    (FILTERED)
    MASK           the row of `masks` `[masks, words]`, bit id % 32 of word id // 32: allowed; -1 is none   (CHANGED)
    COUNTS         the row of `counts` `[slots, vocabulary]`, how often each id occurred; -1 is none        (CHANGED)
    REPETITION, PRESENCE, FREQUENCY    the penalties of what occurred

A weight exp((x - the largest of its part) / temperature) is rounded to a multiple of 2^-40. So sums of weights are sums
of integers, which are exact: no order of additions, and no number of programs, changes them.
"""

from __future__ import annotations

import triton
import triton.language as tl

PART = 8192  # logits of a program
GROUP = 32  # logits whose largest stands for them; as many as a mask's word has bits

RULES = 13
TEMPERATURE, UNIFORM, LOW, HIGH = tl.constexpr(0), tl.constexpr(1), tl.constexpr(2), tl.constexpr(3)
SIGMA, K, P, MIN_P = tl.constexpr(4), tl.constexpr(5), tl.constexpr(6), tl.constexpr(7)
MASK, COUNTS = tl.constexpr(8), tl.constexpr(9)
REPETITION, PRESENCE, FREQUENCY = tl.constexpr(10), tl.constexpr(11), tl.constexpr(12)

NOTES = tl.constexpr(7)  # of each part, `[rows, NOTES, parts]` float64
RAW = tl.constexpr(0)  # the largest before any change; NaN if there is one
TOP = tl.constexpr(1)  # the largest of those that count,
PLACE = tl.constexpr(2)  # the first id that has it,
COUNT = tl.constexpr(3)  # how many there are
MASS = tl.constexpr(4)  # and the sum of their weights; at temperature 1 where top_p asks for it
MEAN, SQUARES = tl.constexpr(5), tl.constexpr(6)  # of those that count, and the sum of squares around it

_ONE = tl.constexpr(float(1 << 40))  # a weight of 1


@triton.jit
def rule(rules, rows, which):
    """Loads one rule of a row, to whose first `rules` points."""
    return tl.load(rules + which * rows)


@triton.jit
def weigh(x, top, temperature):
    """Computes weights, int64."""
    return tl.where(x > float("-inf"), tl.exp((x - top) / temperature) * _ONE, 0.0).to(tl.int64)


@triton.jit
def counting(x, rules, rows, BOUNDED: tl.constexpr):
    """Lowers to -inf what does not count: what is no number, and what lies beyond a row's bounds."""
    x = tl.where(x == x, x, float("-inf"))
    if BOUNDED:
        low, high = rule(rules, rows, LOW), rule(rules, rows, HIGH)
        x = tl.where((x >= low) & (x <= high), x, float("-inf"))
    return x


@triton.jit(do_not_specialize=["rows", "words", "parts"])
def _survey(
    logits, rules, masks, counts, notes, tops, rows, size, stride, words, parts,
    CHANGED: tl.constexpr, FILTERED: tl.constexpr, BOUNDED: tl.constexpr, PART: tl.constexpr, GROUP: tl.constexpr,
):  # fmt: skip
    row, part = tl.program_id(0).to(tl.int64), tl.program_id(1)
    logits += row * stride
    rules += row
    notes += row * NOTES * parts + part
    group, lane = tl.arange(0, PART // GROUP), tl.arange(0, GROUP)
    at = part * PART + group[:, None] * GROUP + lane[None, :]
    x = tl.load(logits + at, mask=at < size, other=float("-inf")).to(tl.float32)
    broken = tl.max(tl.max((x != x).to(tl.int32), 1), 0)
    raw = tl.max(tl.max(tl.where(x == x, x, float("-inf")), 1), 0)
    tl.store(notes + RAW * parts, tl.where(broken > 0, float("nan"), raw).to(tl.float64))

    if CHANGED:
        mask, slot = rule(rules, rows, MASK).to(tl.int64), rule(rules, rows, COUNTS).to(tl.int64)
        if mask >= 0:
            word = part * (PART // GROUP) + group
            bits = tl.load(masks + mask * words + word, mask=word < words, other=0)
            x = tl.where(((bits[:, None] >> lane[None, :]) & 1) != 0, x, float("-inf"))
        if slot >= 0:
            times = tl.load(counts + slot * size + at, mask=at < size, other=0)
            ratio = tl.zeros_like(x) + rule(rules, rows, REPETITION).to(tl.float32)
            each = rule(rules, rows, PRESENCE) + rule(rules, rows, FREQUENCY) * times.to(tl.float64)
            lower = tl.where(x > 0, tl.div_rn(x, ratio), x * ratio) - each.to(tl.float32)
            x = tl.where(times > 0, lower, x)
        if (mask >= 0) | (slot >= 0):
            tl.store(logits + at, x, mask=at < size)

    x = counting(x, rules, rows, BOUNDED)
    largest = tl.max(x, 1)
    top = tl.max(largest, 0)
    tl.store(notes + TOP * parts, top.to(tl.float64))
    first = tl.min(tl.min(tl.where(x == top, at, size - 1), 1), 0)
    tl.store(notes + PLACE * parts, first.to(tl.float64))
    if FILTERED:
        tl.store(tops + (row * parts + part) * (PART // GROUP) + group, largest)
        there = x > float("-inf")
        count = tl.sum(tl.sum(there.to(tl.int32), 1), 0)
        tl.store(notes + COUNT * parts, count.to(tl.float64))
        if rule(rules, rows, SIGMA) > 0:
            wide = x.to(tl.float64)
            mean = tl.sum(tl.sum(tl.where(there, wide, 0.0), 1), 0) / tl.maximum(count, 1)
            away = tl.where(there, wide - mean, 0.0)
            tl.store(notes + MEAN * parts, mean)
            tl.store(notes + SQUARES * parts, tl.sum(tl.sum(away * away, 1), 0))
    temperature = rule(rules, rows, TEMPERATURE).to(tl.float32)
    if FILTERED:
        temperature = tl.where(rule(rules, rows, P) < 1, 1.0, temperature)
    if temperature > 0:
        mass = tl.sum(tl.sum(weigh(x, top, temperature), 1), 0)
        tl.store(notes + MASS * parts, mass.to(tl.float64) / _ONE)
