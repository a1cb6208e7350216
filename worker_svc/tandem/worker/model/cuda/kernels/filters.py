"""The filters top_n_sigma, top_k, top_p and min_p, and a draw, from the largest logits of a row.

What a filter keeps are the logits from a bound upwards; equal ones stay together or go together. So fewer than
CANDIDATES largest decide as long as the first filter that a row has cuts among them. They are found without a sort of
the row: the bound of the groups' largest logits by halving keys (`keys.py`), the bound of the candidates in those
groups again; what lies above, fewer than CANDIDATES, is sorted, and added up in float64.

This decides, and draws, as `engine/sampler/ordered.py` with `filters.py` does. Where it cannot tell, neither can they,
and the row is looked at as a whole (`whole_rows.py`).
"""

from __future__ import annotations

import triton
import triton.language as tl

from tandem.worker.model.cuda.kernels.keys import NOTHING, key_of, key_of_rank, value_of
from tandem.worker.model.cuda.kernels.survey import MIN_P, SIGMA, TEMPERATURE, UNIFORM, K, P, counting, rule

_COLDEST = tl.constexpr(1e-30)
_LAST = tl.constexpr(-(2**63 - 1))


@triton.jit
def _candidates(
    logits, tops, list_of_groups, list_of_keys, rules, rows, size, groups, top,
    GROUP: tl.constexpr, GROUPS: tl.constexpr, CANDIDATES: tl.constexpr,
):  # fmt: skip
    """Returns the logits above an edge, fewer than CANDIDATES (or up to all, in small vocabularies), in descending
    order with their ids, how many these are, and the key of the edge: `NOTHING` if nothing is there or below."""
    need = CANDIDATES + (size <= CANDIDATES).to(tl.int32)
    top_key = key_of(top)
    group = tl.arange(0, GROUPS)
    best = key_of(tl.load(tops + group, mask=group < groups, other=float("-inf")))
    bound = key_of_rank(best, need, tl.full([], NOTHING, tl.int32), top_key)
    above = best > bound
    place = tl.cumsum(above.to(tl.int32), 0) - 1
    tl.store(list_of_groups + place, group, mask=above)
    tl.debug_barrier()  # what the program's other threads have stored is read below
    listed = tl.arange(0, CANDIDATES)
    inside = listed < tl.sum(above.to(tl.int32), 0)
    chosen = tl.load(list_of_groups + listed, mask=inside, other=0)
    at = chosen[:, None] * GROUP + tl.arange(0, GROUP)[None, :]
    x = tl.load(logits + at, mask=inside[:, None] & (at < size), other=float("-inf")).to(tl.float32)
    keys = key_of(counting(x, rules, rows, False))
    edge = key_of_rank(keys, need, bound, top_key)
    flat = tl.reshape(keys, [CANDIDATES * GROUP])
    above = flat > edge
    place = tl.cumsum(above.to(tl.int32), 0) - 1
    # Ascending ids among equal logits.
    ordered = (flat.to(tl.int64) << 32) | (0x7FFFFFFF - tl.reshape(at, [CANDIDATES * GROUP])).to(tl.int64)
    tl.store(list_of_keys + place, ordered, mask=above)
    tl.debug_barrier()
    count = tl.sum(above.to(tl.int32), 0)
    ordered = tl.load(list_of_keys + listed, mask=listed < count, other=_LAST)
    ordered = tl.sort(ordered, descending=True)
    values = tl.where(listed < count, value_of(ordered >> 32).to(tl.float64), float("-inf"))
    return values, 0x7FFFFFFF - (ordered & 0x7FFFFFFF), count, edge


@triton.jit
def _count_above(values, bound):
    return tl.sum(((values >= bound) & (values > float("-inf"))).to(tl.int32), 0)


@triton.jit
def _at(values, place):
    """Returns the value at a place."""
    here = tl.arange(0, values.shape[0]) == place
    return tl.sum(tl.where(here, values, tl.zeros_like(values)), 0)


@triton.jit
def draw_filtered(
    logits, tops, list_of_groups, list_of_keys, rules, rows, size, groups, top, count, mass, deviation,
    GROUP: tl.constexpr, GROUPS: tl.constexpr, CANDIDATES: tl.constexpr,
):  # fmt: skip
    """Filters and draws. Returns whether the candidates decide, the id, the least logit that is kept, and the mass of
    what is kept at the row's temperature, whose largest weight is 1. `count` and `mass` are of the whole row, at
    temperature 1."""
    values, ids, known, edge = _candidates(
        logits, tops, list_of_groups, list_of_keys, rules, rows, size, groups, top, GROUP, GROUPS, CANDIDATES
    )
    top = top.to(tl.float64)
    least = value_of(edge).to(tl.float64)
    place = tl.arange(0, CANDIDATES)
    weights = tl.where(place < known, tl.exp(values - top), 0.0)
    masses = tl.cumsum(weights, 0)
    opened = (edge > NOTHING).to(tl.int32)  # what is kept goes on below the candidates
    unknown = (known == 0).to(tl.int32)  # decisions that turn on what lies below
    end = known

    sigma = rule(rules, rows, SIGMA)
    if sigma > 0:
        bound = top - sigma * deviation
        unknown += opened * (least >= bound).to(tl.int32)
        end = tl.maximum(_count_above(values, bound), 1)
        opened *= 0
    k = rule(rules, rows, K)
    if (k > 0) & (k < tl.where(opened > 0, count, end.to(tl.float64))):
        unknown += opened * (k > known).to(tl.int32)
        end = tl.minimum(_count_above(values, _at(values, k.to(tl.int32) - 1)), end)
        opened *= 0
    p = rule(rules, rows, P)
    if p < 1:
        within = _at(masses, end - 1)
        target = p * tl.where(opened > 0, tl.maximum(mass, within), within)
        first = tl.min(tl.where((place < end) & (masses >= target), place, CANDIDATES), 0)
        unknown += opened * (first == CANDIDATES).to(tl.int32)
        if first < end:
            end = tl.minimum(_count_above(values, _at(values, first)), end)
        opened *= 0
    least_share = rule(rules, rows, MIN_P)
    if least_share > 0:
        bound = top + tl.log(least_share)
        unknown += opened * (least >= bound).to(tl.int32)
        end = tl.minimum(tl.maximum(_count_above(values, bound), 1), end)
        opened *= 0

    temperature = tl.maximum(rule(rules, rows, TEMPERATURE), _COLDEST)
    weights = tl.where(place < end, tl.exp((values - top) / temperature), 0.0)
    masses = tl.cumsum(weights, 0)
    total = _at(masses, end - 1)
    drawn = tl.sum((masses <= rule(rules, rows, UNIFORM) * total).to(tl.int32), 0)
    drawn = tl.minimum(drawn, end - 1)
    return unknown + opened == 0, _at(ids, drawn), _at(values, end - 1), total
