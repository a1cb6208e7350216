"""One token a row, from all of its logits: the largest, or one drawn at a temperature T > 0 with a number u in [0, 1).

    T = 0   the first i whose logit is the largest
    T > 0   the first i with w_0 + ... + w_i > u (w_0 + ... + w_n),   w_i = exp((x_i - the largest) / T)
            in the order of the vocabulary; where filters leave few, in the order of falling logits

Two kernels: many programs a row survey its parts (`survey.py`), then one a row puts together what they noted and looks
at the part in which the draw falls, or at the candidates of the filters (`filters.py`). A row's parts are of a fixed
size, so its token depends on nothing else. A NaN or an infinity anywhere in a row comes out as a NaN for its largest.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl

from tandem.worker.model.cuda.kernels import survey
from tandem.worker.model.cuda.kernels.filters import draw_filtered
from tandem.worker.model.cuda.kernels.keys import value_of
from tandem.worker.model.cuda.kernels.survey import (
    COUNT,
    MASS,
    MEAN,
    MIN_P,
    NOTES,
    PLACE,
    RAW,
    RULES,
    SIGMA,
    SQUARES,
    TEMPERATURE,
    TOP,
    UNIFORM,
    K,
    P,
    counting,
    rule,
    weigh,
)
from tandem.worker.model.cuda.kernels.whole_rows import draw_from_whole_row

_CANDIDATES = 512
_WARPS = 16  # whatever a step has, so that sums over parts are added up alike


class Chosen(NamedTuple):
    """What was chosen in each row."""

    ids: torch.Tensor  # [rows] int64
    largest: torch.Tensor  # [rows] fp32; NaN: numbers that are none came in; -inf: nothing is allowed
    mass: torch.Tensor  # [rows] fp64, the sum of the weights of what it was drawn from; 1 for the largest
    least: torch.Tensor  # [rows] fp32, filters keep the logits from here upwards


class Changes(NamedTuple):
    """What `survey.py` changes of the rows that have rules for it; logits are fp32 then."""

    masks: torch.Tensor  # [any, words] int32
    counts: torch.Tensor  # [slots, vocabulary] int32


@triton.jit
def _draw(
    logits, notes, rules, rows, size, parts, top, temperature,
    BOUNDED: tl.constexpr, PART: tl.constexpr, PARTS: tl.constexpr,
):  # fmt: skip
    """Draws from all logits that count; returns the id and the mass."""
    part = tl.arange(0, PARTS)
    tops = tl.load(notes + TOP * parts + part, mask=part < parts, other=float("-inf"))
    masses = tl.load(notes + MASS * parts + part, mask=part < parts, other=0.0)
    scales = tl.exp((tops - top) / temperature)  # of weights that are relative to their part's largest
    reached = tl.cumsum(masses * scales, 0)
    total = tl.max(reached, 0)
    target = rule(rules, rows, UNIFORM) * total
    weighty = masses * scales > 0
    chosen = tl.min(tl.where(weighty & (reached > target), part, PARTS), 0)
    chosen = tl.minimum(chosen, tl.max(tl.where(weighty, part, 0), 0))
    here = part == chosen
    before = tl.max(tl.where(part < chosen, reached, 0.0), 0)
    scale = tl.sum(tl.where(here, scales, 0.0), 0)
    at = chosen * PART + tl.arange(0, PART)
    x = tl.load(logits + at, mask=at < size, other=float("-inf")).to(tl.float32)
    x = counting(x, rules, rows, BOUNDED)
    weights = weigh(x, tl.max(x, 0), temperature.to(tl.float32))
    above = tl.cumsum(weights, 0).to(tl.float64) > (target - before) / scale * weigh(0.0, 0.0, 1.0).to(tl.float64)
    first = tl.min(tl.where(above & (weights > 0), at, size), 0)
    # The part's sum may be a little larger than it was when it was scaled: then its last weight counts.
    last = tl.max(tl.where(weights > 0, at, 0), 0)
    return tl.minimum(first, last), total


@triton.jit(do_not_specialize=["rows", "parts"])
def _decide(
    logits, rules, notes, tops, list_of_groups, list_of_keys, ids, largest, mass, least, rows, size, stride, parts,
    FILTERED: tl.constexpr, BOUNDED: tl.constexpr, PART: tl.constexpr, PARTS: tl.constexpr,
    GROUP: tl.constexpr, GROUPS: tl.constexpr, CANDIDATES: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    logits += row * stride
    rules += row
    notes += row * NOTES * parts
    part = tl.arange(0, PARTS)
    raw = tl.load(notes + RAW * parts + part, mask=part < parts, other=float("-inf"))
    there = tl.load(notes + TOP * parts + part, mask=part < parts, other=float("-inf"))
    places = tl.load(notes + PLACE * parts + part, mask=part < parts, other=0.0)
    most = tl.max(tl.where(raw == raw, raw, float("-inf")), 0)
    broken = (tl.max((raw != raw).to(tl.int32), 0) > 0) | (most == float("-inf")) | (most == float("inf"))
    top = tl.max(there, 0)
    tl.store(largest + row, tl.where(broken, float("nan"), top).to(tl.float32))

    # Of equal ones in several parts, the first.
    chosen = tl.min(tl.where(there == top, places, size - 1.0), 0).to(tl.int64)
    total = tl.full([], 1.0, tl.float64)
    kept = tl.full([], float("-inf"), tl.float64)
    temperature = rule(rules, rows, TEMPERATURE)
    if (temperature > 0) & (top > float("-inf")) & (top < float("inf")):
        filtered = 0
        if FILTERED:
            narrow = (rule(rules, rows, SIGMA) > 0) | (rule(rules, rows, K) > 0) | (rule(rules, rows, MIN_P) > 0)
            filtered = (narrow | (rule(rules, rows, P) < 1)).to(tl.int32)
        if filtered == 0:
            drawn, total = _draw(
                logits, notes, rules, rows, size, parts, top, temperature.to(tl.float32).to(tl.float64),
                BOUNDED, PART, PARTS,
            )  # fmt: skip
            chosen = drawn.to(tl.int64)
        if FILTERED:  # noqa: SIM102
            if filtered > 0:
                inside = part < parts
                counts = tl.load(notes + COUNT * parts + part, mask=inside, other=0.0)
                masses = tl.load(notes + MASS * parts + part, mask=inside, other=0.0)
                count = tl.sum(counts, 0)
                whole = tl.sum(masses * tl.exp(there - top), 0)
                deviation = tl.full([], 0.0, tl.float64)
                if rule(rules, rows, SIGMA) > 0:
                    means = tl.load(notes + MEAN * parts + part, mask=inside, other=0.0)
                    squares = tl.load(notes + SQUARES * parts + part, mask=inside, other=0.0)
                    mean = tl.sum(counts * means, 0) / count
                    away = tl.sum(squares + counts * (means - mean) * (means - mean), 0)
                    deviation = tl.sqrt(away / count)
                groups = parts * (PART // GROUP)
                decided, drawn, bound, total = draw_filtered(
                    logits, tops + row * groups, list_of_groups + row * CANDIDATES, list_of_keys + row * CANDIDATES,
                    rules, rows, size, groups, top.to(tl.float32), count, whole, deviation, GROUP, GROUPS, CANDIDATES,
                )  # fmt: skip
                chosen = drawn.to(tl.int64)
                kept = bound
                if not decided:
                    found, low, mass_there = draw_from_whole_row(
                        logits, rules, rows, size, top.to(tl.float32), deviation, PART
                    )
                    chosen = found.to(tl.int64)
                    kept = value_of(low).to(tl.float64)
                    total = mass_there / weigh(0.0, 0.0, 1.0).to(tl.float64)
    tl.store(ids + row, chosen)
    tl.store(mass + row, total)
    tl.store(least + row, kept.to(tl.float32))


def rules_of(
    temperature: torch.Tensor,
    uniforms: torch.Tensor,
    low: torch.Tensor | None = None,
    high: torch.Tensor | None = None,
) -> torch.Tensor:
    """Makes rules of rows that have a temperature, and bounds, and nothing else; `[rows]` each."""
    rules = torch.zeros((RULES, len(temperature)), dtype=torch.float64, device=temperature.device)
    rules[TEMPERATURE.value], rules[UNIFORM.value], rules[P.value] = temperature, uniforms, 1.0
    if low is not None and high is not None:
        rules[survey.LOW.value], rules[survey.HIGH.value] = low, high
    return rules


def choose(
    logits: torch.Tensor,
    rules: torch.Tensor,
    changes: Changes | None = None,
    *,
    filtered: bool = False,
    bounded: bool = False,
) -> Chosen:
    """Chooses one token a row. `logits` `[rows, vocabulary]`, fp32 or 16 bits, each row contiguous; `rules`
    `[RULES, rows]` as `survey.py` has them. Rules of filters are looked at where some row is `filtered`, bounds where
    they are `bounded`; not both."""
    rows, size = logits.shape
    device, parts = logits.device, triton.cdiv(size, survey.PART)
    assert logits.stride(1) == 1 and rules.shape == (RULES, rows) and rules.is_contiguous()
    assert changes is None or logits.dtype == torch.float32
    assert not (filtered and bounded)

    def empty(*shape: int, dtype: torch.dtype) -> torch.Tensor:
        return torch.empty(shape, dtype=dtype, device=device)

    chosen = Chosen(
        empty(rows, dtype=torch.int64),
        empty(rows, dtype=torch.float32),
        empty(rows, dtype=torch.float64),
        empty(rows, dtype=torch.float32),
    )
    if not rows:
        return chosen
    groups, lists = parts * (survey.PART // survey.GROUP), _CANDIDATES if filtered else 0
    notes = empty(rows, NOTES.value, parts, dtype=torch.float64)
    tops = empty(rows, groups if filtered else 1, dtype=torch.float32)
    masks, counts = changes if changes is not None else (rules, rules)
    kinds = (filtered, bounded, survey.PART)
    survey._survey[(rows, parts)](
        logits, rules, masks, counts, notes, tops, rows, size, logits.stride(0), masks.shape[1], parts,
        changes is not None, *kinds, survey.GROUP, num_warps=8,
    )  # fmt: skip
    _decide[(rows,)](
        logits, rules, notes, tops, empty(rows, lists, dtype=torch.int32), empty(rows, lists, dtype=torch.int64),
        *chosen, rows, size, logits.stride(0), parts,
        *kinds, triton.next_power_of_2(parts), survey.GROUP, triton.next_power_of_2(groups), _CANDIDATES,
        num_warps=_WARPS,
    )  # fmt: skip
    return chosen
