"""Which experts a row has, and the rows of each expert side by side; the host learns nothing of it.

    route      scores of experts to the numbers and weights of those that a row has
    arrange    pairs (row, expert), the i-th of row `i // per_row`, in the order of their experts, cut into blocks of up
               to M pairs of one expert
    weigh      a row's sum over its experts, in the order in which they were chosen

How many blocks there are depends on what the rows chose; there is room for the most that there can be, and the blocks
that are left over have no expert. So every launch has the same shape whatever was chosen, and can be recorded.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl

from tandem.worker.checkpoints.model_parts.experts import Experts

_BLOCK = 1024  # numbers that a program looks at at once
SOFTMAX, SIGMOID, MIXER = tl.constexpr(0), tl.constexpr(1), tl.constexpr(2)
_SCORES = {"softmax": SOFTMAX.value, "sigmoid": SIGMOID.value, "mixer": MIXER.value}


class Arrangement(NamedTuple):
    """Pairs by their experts; int32."""

    order: torch.Tensor  # [pairs]
    blocks: torch.Tensor  # [blocks, 3] expert or -1, and where in `order` its first pair is and its last ends


@triton.jit
def _first_largest(x, place, last):
    """Finds the first place of the largest number: any that there is, up to `last`, if no number equals it (NaN)."""
    return tl.min(tl.where(x == tl.max(x, 0), place, last), 0)


@triton.jit
def _in_best_groups(
    wanted, expert, each,
    GROUPS: tl.constexpr, GROUPS_PER_ROW: tl.constexpr, G_PAD: tl.constexpr, BEST: tl.constexpr,
):  # fmt: skip
    """Leaves the experts of the groups with the largest sums of their BEST best; others become -inf."""
    group = tl.arange(0, G_PAD)
    best = tl.full([G_PAD], float("-inf"), tl.float32)
    for g in tl.static_range(GROUPS):
        own = tl.where(expert // each == g, wanted, float("-inf"))
        total = 0.0
        for _ in tl.static_range(BEST):
            total += tl.max(own, 0)
            own = tl.where(expert == _first_largest(own, expert, g * each + each - 1), float("-inf"), own)
        best = tl.where(group == g, total, best)
    kept = expert < 0
    for _ in tl.static_range(GROUPS_PER_ROW):
        g = _first_largest(best, group, GROUPS - 1)
        kept = kept | (expert // each == g)
        best = tl.where(group == g, float("-inf"), best)
    return tl.where(kept, wanted, float("-inf"))


@triton.jit
def _route(
    logits, bias, weights, shares, chosen, experts, scale, offset, jitter,
    PER_ROW: tl.constexpr, E_PAD: tl.constexpr, T_PAD: tl.constexpr, GROUPS: tl.constexpr,
    GROUPS_PER_ROW: tl.constexpr, G_PAD: tl.constexpr, BEST: tl.constexpr, SCORE: tl.constexpr, BIASED: tl.constexpr,
    NORMALIZED: tl.constexpr, WEIGHED: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    expert = tl.arange(0, E_PAD)
    there = expert < experts
    x = tl.load(logits + row * experts + expert, mask=there, other=float("-inf")).to(tl.float32)
    if SCORE == SIGMOID:
        scores = 1.0 / (1.0 + tl.exp(-x))
    elif SCORE == SOFTMAX:
        powers = tl.exp(x - tl.max(x, 0))
        scores = powers / tl.sum(powers, 0)
    else:
        scores = x
    wanted = scores
    if BIASED:
        wanted += tl.load(bias + expert, mask=there, other=0.0)
    wanted = tl.where(there, wanted, float("-inf"))
    if GROUPS > 1:
        wanted = _in_best_groups(wanted, expert, experts // GROUPS, GROUPS, GROUPS_PER_ROW, G_PAD, BEST)
    turn = tl.arange(0, T_PAD)
    share = tl.zeros([T_PAD], tl.float32)
    number = tl.zeros([T_PAD], tl.int32)
    for t in tl.static_range(PER_ROW):
        best = _first_largest(wanted, expert, experts - 1)
        if SCORE == MIXER:
            largest = tl.max(wanted, 0)
            far = (largest - x) / tl.maximum(tl.abs(x), largest) > 2.0 * jitter
            weight = 1.0 / tl.sum(tl.where(there & (far == 0), tl.exp(wanted - largest), 0.0), 0)
        else:
            weight = tl.sum(tl.where(expert == best, scores, 0.0), 0)
        number = tl.where(turn == t, best, number)
        share = tl.where(turn == t, weight, share)
        wanted = tl.where(expert == best, float("-inf"), wanted)
    if NORMALIZED:
        share /= tl.sum(share, 0) + offset
    if WEIGHED:
        share *= tl.load(weights + number)
    at = row * PER_ROW + turn
    tl.store(shares + at, share * scale, mask=turn < PER_ROW)
    tl.store(chosen + at, number, mask=turn < PER_ROW)


@triton.jit(do_not_specialize=["pairs", "most"])
def _arrange(chosen, order, blocks, pairs, most, experts, M: tl.constexpr, E_PAD: tl.constexpr, BLOCK: tl.constexpr):
    expert = tl.program_id(0)
    number = tl.arange(0, E_PAD)
    at = tl.arange(0, BLOCK)
    counts = tl.zeros([E_PAD], tl.int32)
    for start in range(0, pairs, BLOCK):  # what is no pair counts for a number that no expert has
        counts += tl.histogram(tl.load(chosen + start + at, mask=start + at < pairs, other=E_PAD - 1), E_PAD)
    first = tl.sum(tl.where(number < expert, counts, 0), 0)
    first_block = tl.sum(tl.where(number < expert, (counts + M - 1) // M, 0), 0)
    last = first + tl.sum(tl.where(number == expert, counts, 0), 0)
    end_block = first_block + (last - first + M - 1) // M

    place = first
    for start in range(0, pairs, BLOCK):
        own = tl.load(chosen + start + at, mask=start + at < pairs, other=-1) == expert
        upto = tl.cumsum(own.to(tl.int32), 0)
        tl.store(order + place + upto - 1, start + at, mask=own)
        place += tl.sum(own.to(tl.int32), 0)
    for start in range(first_block, end_block, BLOCK):
        block = start + at
        own_block = block < end_block
        begin = first + (block - first_block) * M
        tl.store(blocks + block * 3, tl.zeros([BLOCK], tl.int32) + expert, mask=own_block)
        tl.store(blocks + block * 3 + 1, begin, mask=own_block)
        tl.store(blocks + block * 3 + 2, tl.minimum(begin + M, last), mask=own_block)
    if expert == experts - 1:
        for start in range(end_block, most, BLOCK):
            block = start + at
            tl.store(blocks + block * 3, tl.full([BLOCK], -1, tl.int32), mask=block < most)


@triton.jit
def _weigh(
    answers, shares, shared, gate, out, size,
    PER_ROW: tl.constexpr, SHARED: tl.constexpr, GATE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    place = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = place < size
    total = tl.zeros([BLOCK], tl.float32)
    for t in tl.static_range(PER_ROW):
        pair = row * PER_ROW + t
        answer = tl.load(answers + pair * size + place, mask=inside, other=0.0).to(tl.float32)
        total = tl.fma(answer, tl.zeros([BLOCK], tl.float32) + tl.load(shares + pair), total)
    if SHARED:
        answer = tl.load(shared + row * size + place, mask=inside, other=0.0).to(tl.float32)
        weight = 1.0
        if GATE:
            weight = 1.0 / (1.0 + tl.exp(-tl.load(gate + row).to(tl.float32)))
        total = tl.fma(answer, tl.zeros([BLOCK], tl.float32) + weight, total)
    tl.store(out + row * size + place, total.to(out.dtype.element_ty), mask=inside)


def route(
    logits: torch.Tensor, bias: torch.Tensor | None, experts: Experts, weights: torch.Tensor | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns the weights, float32, and the numbers, int32, of each row's experts, both `[N, per_token]`, by `logits`
    `[N, experts]`; `bias` `[experts]` float32 decides who is chosen, not what it weighs, which is multiplied by the
    expert's own of `weights` `[experts]` float32."""
    rows, count = logits.shape
    shares = torch.empty((rows, experts.per_token), dtype=torch.float32, device=logits.device)
    chosen = torch.empty((rows, experts.per_token), dtype=torch.int32, device=logits.device)
    if rows:
        mixer = experts.score == "mixer"  # whose weights are what they are
        _route[(rows,)](
            logits.contiguous(), logits if bias is None else bias, shares if weights is None else weights, shares,
            chosen, count,
            1.0 if mixer else float(experts.scale), float(experts.sum_offset), float(experts.jitter), experts.per_token,
            triton.next_power_of_2(count), triton.next_power_of_2(experts.per_token), experts.groups,
            experts.groups_per_token, triton.next_power_of_2(experts.groups), experts.best_of_group,
            _SCORES[experts.score],
            bias is not None, experts.normalized and not mixer, weights is not None, num_warps=1,
        )  # fmt: skip
    return shares, chosen


def most_blocks(pairs: int, experts: int, rows: int) -> int:
    """Returns how many blocks of up to `rows` pairs there can be."""
    return min(pairs, (pairs + min(experts, pairs) * (rows - 1)) // rows)


def arrange(chosen: torch.Tensor, experts: int, rows: int) -> Arrangement:
    """Arranges the pairs of `chosen` `[N, per_row]` int32 in blocks of up to `rows`."""
    pairs = chosen.numel()
    most = most_blocks(pairs, experts, rows)
    order = torch.empty(pairs, dtype=torch.int32, device=chosen.device)
    blocks = torch.empty((most, 3), dtype=torch.int32, device=chosen.device)
    if pairs:
        block = min(_BLOCK, max(32, triton.next_power_of_2(pairs)))
        _arrange[(experts,)](
            chosen.contiguous(), order, blocks, pairs, most, experts, rows,
            max(32, triton.next_power_of_2(experts + 1)), block, num_warps=min(4, block // 32),
        )  # fmt: skip
    return Arrangement(order, blocks)


def weigh(
    answers: torch.Tensor, shares: torch.Tensor, shared: torch.Tensor | None, gate: torch.Tensor | None
) -> torch.Tensor:
    """Adds up `answers` `[N * per_row, size]` by `shares` `[N, per_row]` float32: `[N, size]` in their dtype. `shared`
    `[N, size]` is one more answer, weighed by the sigmoid of `gate` `[N, 1]`, or by 1."""
    rows, per_row = shares.shape
    size = answers.shape[1]
    out = answers.new_empty((rows, size))
    if rows:
        _weigh[(rows, triton.cdiv(size, _BLOCK))](
            answers, shares, answers if shared is None else shared, answers if gate is None else gate, out, size,
            per_row, shared is not None, gate is not None, _BLOCK,
        )  # fmt: skip
    return out
