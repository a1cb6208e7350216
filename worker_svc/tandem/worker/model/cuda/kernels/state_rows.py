"""What layers with states do beside their recurrence (`recurrences.py`), whatever it is.

    enter   the convolution over the last inputs, each channel for itself, and the factors of each token
    leave   the gated norm of what the recurrence gives
    keep    the last inputs and the journal that stay in the slots

The arithmetic is float32 and that of `delta_rule.py`, `mamba_rule.py` and `short_convolution.py`. A step is described
by arrays on the device (`cuda/states.py`): the lines of `StatePlan.works`, its saves, and for each token of the room
whose work it is. A *room* has a line for each token, replayed ones included: its channels behind the convolution, then
its factors. Work without tokens, and tokens of no work (-1), are nothing to do: so recorded steps have fixed sizes.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
import triton
import triton.language as tl

LINE = tl.constexpr(9)  # numbers of a work
DELTA, MAMBA, KIMI, CONSTANT = tl.constexpr(0), tl.constexpr(1), tl.constexpr(2), tl.constexpr(3)
NO_NORM, AFTER_GATE, BEFORE_GATE = tl.constexpr(0), tl.constexpr(1), tl.constexpr(2)
_TOKENS, _BLOCK = 8, 128  # of a program
_MOVED = 2048  # numbers that a warp moves at once


class FactorRule(NamedTuple):
    """How the factors of a token are made of its gates; with `keys` it is the delta rule's, else Mamba's."""

    rate: torch.Tensor  # [heads] float32, -exp(A)
    bias: torch.Tensor  # [heads] float32
    keys: tuple[int, int] = (0, 0)  # how many queries and keys of unit length a token has, and of how many numbers
    values: int = 0  # numbers of a head's value
    gate_by: float = 1.0  # of the delta rule's betas, or of what Mamba's dt is made of
    least: float = 0.0  # of dt, or, of Kimi's delta rule, of logarithms of decays if it is less than 0
    most: float = math.inf
    rows: int = 0  # of a head, with a decay each, as Kimi's delta rule has them; 0: a decay a head
    constant: bool = False  # decays are exp(rate), and what is given counts whole; neither gates nor the bias are seen

    @property
    def numbers(self) -> int:
        """Returns how many a token has."""
        return len(self.rate) * ((self.rows or 1) + 1)


@triton.jit
def silu(x):
    return x / (1.0 + tl.exp(-x))


@triton.jit
def softplus(x):
    """Computes `log(1 + exp(x))`, to the last bits also where that is tiny: by the series of atanh, up to s^15."""
    small = tl.exp(-tl.abs(x))
    s = small / (2.0 + small)
    square = s * s
    series = 1.0 / 13 + square / 15
    series = 1.0 / 9 + square * (1.0 / 11 + square * series)
    series = 1.0 / 5 + square * (1.0 / 7 + square * series)
    return tl.where(x > 0, x, 0.0) + 2.0 * s * (1.0 + square * (1.0 / 3 + square * series))


@triton.jit
def _inputs(
    mixed, tails, place, real, slot, fresh, row, replayed, at, inside, stride, line,
    CHANNELS: tl.constexpr, KERNEL: tl.constexpr,
):  # fmt: skip
    """Loads rows `place` of tail, journal and new rows in a line, each of the work that it is of, and of them channels
    `at`: float32 `[places, channels]`."""
    kept = KERNEL - 1 + replayed
    new = real & (place >= kept)
    old = real & (place < kept) & (slot >= 0) & ((fresh == 0) | (place >= KERNEL - 1))
    new_at = (row + place - kept).to(tl.int64)[:, None] * stride + at[None, :]
    old_at = (slot * line + place * CHANNELS)[:, None] + at[None, :]
    given = tl.load(mixed + new_at, mask=new[:, None] & inside[None, :], other=0.0).to(tl.float32)
    stored = tl.load(tails + old_at, mask=old[:, None] & inside[None, :], other=0.0)
    return tl.where(new[:, None], given, stored)


@triton.jit
def _tokens(tokens, works, count, T: tl.constexpr):
    """Loads what there is to know about some tokens of the room: which they are, whether they are anybody's, their
    places in their works, and of these slot, freshness, first row and how many are replayed; each `[T]`."""
    place = tl.program_id(0) * T + tl.arange(0, T)
    number = tl.load(tokens + place, mask=place < count, other=-1)
    real = number >= 0
    work = works + number * LINE
    slot = tl.load(work, mask=real, other=-1).to(tl.int64)
    fresh = tl.load(work + 1, mask=real, other=1)
    row = tl.load(work + 2, mask=real, other=0)
    replayed = tl.load(work + 4, mask=real, other=0)
    token = place - tl.load(work + 6, mask=real, other=0)
    return place, real, token, slot, fresh, row, replayed


@triton.jit
def _convolved(
    mixed, tails, filters, filter_bias, token, real, slot, fresh, row, replayed, at, inside, stride, line,
    T: tl.constexpr, BLOCK: tl.constexpr, CHANNELS: tl.constexpr, KERNEL: tl.constexpr, BIASED: tl.constexpr,
):  # fmt: skip
    """Computes channels `at` of tokens of works, `[T, BLOCK]`."""
    total = tl.zeros([T, BLOCK], tl.float32)
    for tap in range(KERNEL):
        x = _inputs(
            mixed, tails, token + tap, real, slot, fresh, row, replayed, at, inside, stride, line, CHANNELS, KERNEL
        )
        weight = tl.load(filters + tap * CHANNELS + at, mask=inside, other=0.0)
        total = tl.fma(x, weight[None, :], total)
    if BIASED:
        total += tl.load(filter_bias + at, mask=inside, other=0.0)[None, :]
    return total


@triton.jit(do_not_specialize=["count", "journal"])
def _enter(
    mixed, gates, tails, journals, filters, filter_bias, rate, bias, room, works, tokens,
    count, stride, gates_stride, journal, least, most, gate_by, unit_by,
    CHANNELS: tl.constexpr, KERNEL: tl.constexpr, HEADS: tl.constexpr, H_PAD: tl.constexpr, UNITS: tl.constexpr,
    UNIT: tl.constexpr, KEYS: tl.constexpr, KEY: tl.constexpr, FACTORS: tl.constexpr, T: tl.constexpr,
    BLOCK: tl.constexpr, BIASED: tl.constexpr, RULE: tl.constexpr,
):  # fmt: skip
    """Fills lines of the room. A program takes some tokens and some channels: of the delta rules, a query or a key,
    which becomes of unit length, or values; the last one takes the factors, but for Kimi's (`_decays`)."""
    place, real, token, slot, fresh, row, replayed = _tokens(tokens, works, count, T)
    there = room + (place.to(tl.int64) * (CHANNELS + FACTORS))[:, None]
    unit = tl.program_id(1)
    if unit < UNITS:
        of = tl.arange(0, BLOCK)
        first = tl.where(unit < KEYS, unit * KEY, KEYS * KEY + (unit - KEYS) * UNIT)
        at = first + of
        inside = (of < tl.where(unit < KEYS, KEY, UNIT)) & (at < CHANNELS)
        x = _convolved(
            mixed, tails, filters, filter_bias, token, real, slot, fresh, row, replayed, at, inside, stride,
            (KERNEL - 1 + journal) * CHANNELS, T, BLOCK, CHANNELS, KERNEL, BIASED,
        )  # fmt: skip
        x = silu(x)
        if unit < KEYS:
            x /= tl.sqrt(tl.sum(tl.where(inside[None, :], x * x, 0.0), 1) + 1e-6)[:, None]
            if unit < KEYS // 2:
                x *= unit_by
        tl.store(there + at[None, :], x, mask=real[:, None] & inside[None, :])
    else:
        head = tl.arange(0, H_PAD)
        known = head < HEADS
        old = (real & (token < replayed))[:, None] & known[None, :]
        new = (real & (token >= replayed))[:, None] & known[None, :]
        given = gates + ((row + token - replayed).to(tl.int64) * gates_stride)[:, None] + head[None, :]
        gate = tl.load(given, mask=new, other=0.0).to(tl.float32) if RULE != CONSTANT else tl.where(new, 1.0, 0.0)
        by = tl.load(rate + head, mask=known, other=0.0)[None, :]
        shift = tl.load(bias + head, mask=known, other=0.0)[None, :]
        if RULE == DELTA:
            a = tl.load(given + HEADS, mask=new, other=0.0).to(tl.float32)
            decay = tl.exp(by * softplus(a + shift))
            other = gate_by / (1.0 + tl.exp(-gate))
        elif RULE == CONSTANT:
            other = gate
            decay = tl.exp(by) * gate
        else:  # comparisons let a NaN stay what it is
            other = softplus(gate * gate_by + shift)
            other = tl.where(other < least, least, tl.where(other > most, most, other))
            decay = tl.exp(by * other)
        kept = journals + ((slot * journal + token) * (2 * HEADS))[:, None] + head[None, :]
        decay = tl.where(new, decay, tl.load(kept, mask=old, other=0.0))
        other = tl.where(new, other, tl.load(kept + HEADS, mask=old, other=0.0))
        factors = there + CHANNELS + head[None, :]
        tl.store(factors, decay, mask=real[:, None] & known[None, :])
        tl.store(factors + HEADS, other, mask=real[:, None] & known[None, :])


@triton.jit(do_not_specialize=["count", "journal"])
def _decays(
    gates, journals, rate, bias, room, works, tokens, count, gates_stride, journal,
    least, CHANNELS: tl.constexpr, HEADS: tl.constexpr, ROWS: tl.constexpr, R: tl.constexpr, T: tl.constexpr,
    LIMITED: tl.constexpr,
):  # fmt: skip
    """Fills the factors in lines of the room, of Kimi's delta rule. A program takes a head of some tokens: a decay of
    each of its rows, `LIMITED` with a least logarithm, and its beta; the gates have those of betas first."""
    place, real, token, slot, _, row, replayed = _tokens(tokens, works, count, T)
    head = tl.program_id(1)
    FACTORS: tl.constexpr = HEADS * (ROWS + 1)
    there = room + place.to(tl.int64) * (CHANNELS + FACTORS) + CHANNELS
    old, new = real & (token < replayed), real & (token >= replayed)
    given = gates + (row + token - replayed).to(tl.int64) * gates_stride
    kept = journals + (slot * journal + token) * FACTORS
    of = tl.arange(0, R)
    known = of < ROWS
    at = (head * ROWS + of)[None, :]
    fresh, stored, inside = new[:, None] & known[None, :], old[:, None] & known[None, :], real[:, None] & known[None, :]
    a = tl.load(given[:, None] + HEADS + at, mask=fresh, other=0.0).to(tl.float32)
    shift = tl.load(bias + head * ROWS + of, mask=known, other=0.0)[None, :]
    if LIMITED:
        decay = tl.exp(least / (1.0 + tl.exp(tl.load(rate + head) * (a + shift))))
    else:
        decay = tl.exp(tl.load(rate + head) * softplus(a + shift))
    decay = tl.where(fresh, decay, tl.load(kept[:, None] + at, mask=stored, other=0.0))
    tl.store(there[:, None] + at, decay, mask=inside)
    b = tl.load(given + head, mask=new, other=0.0).to(tl.float32)
    beta = 1.0 / (1.0 + tl.exp(-b))
    beta = tl.where(new, beta, tl.load(kept + HEADS * ROWS + head, mask=old, other=0.0))
    tl.store(there + HEADS * ROWS + head, beta, mask=real)


@triton.jit(do_not_specialize=["count", "journal"])
def _gated_convolution(
    mixed, gates, tails, filters, filter_bias, out, works, tokens, count, stride, gates_stride, journal,
    CHANNELS: tl.constexpr, KERNEL: tl.constexpr, T: tl.constexpr, BLOCK: tl.constexpr, BIASED: tl.constexpr,
):  # fmt: skip
    """Computes `gates * convolution` of some tokens and channels."""
    _, real, token, slot, fresh, row, replayed = _tokens(tokens, works, count, T)
    real &= token >= replayed
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = at < CHANNELS
    x = _convolved(
        mixed, tails, filters, filter_bias, token, real, slot, fresh, row, replayed, at, inside, stride,
        (KERNEL - 1 + journal) * CHANNELS, T, BLOCK, CHANNELS, KERNEL, BIASED,
    )  # fmt: skip
    stored = real[:, None] & inside[None, :]
    new = (row + token - replayed).to(tl.int64)[:, None]
    gate = tl.load(gates + new * gates_stride + at[None, :], mask=stored, other=0.0).to(tl.float32)
    tl.store(out + new * CHANNELS + at[None, :], (x * gate).to(out.dtype.element_ty), mask=stored)


@triton.jit
def _leave(
    given, mixed, weight, out, stride, eps, z_by,
    CHANNELS: tl.constexpr, SIZE: tl.constexpr, GROUP: tl.constexpr, BLOCK: tl.constexpr, SHARED: tl.constexpr,
    NORM: tl.constexpr, SIGMOID: tl.constexpr,
):  # fmt: skip
    """Computes a group of a row: its gate and its norm. SHARED: groups have one weight. SIGMOID: of gates, not silu."""
    row = tl.program_id(0).to(tl.int64)
    first = tl.program_id(1) * GROUP
    of = tl.arange(0, BLOCK)
    inside = of < GROUP
    y = tl.load(given + row * SIZE + first + of, mask=inside, other=0.0)
    z = tl.load(mixed + row * stride + CHANNELS + first + of, mask=inside, other=0.0).to(tl.float32)
    gate = 1.0 / (1.0 + tl.exp(-z)) if SIGMOID else silu(z * z_by)
    if NORM != BEFORE_GATE:
        y *= gate
    if NORM != NO_NORM:
        y /= tl.sqrt(tl.sum(tl.where(inside, y * y, 0.0), 0) / GROUP + eps)
    y *= tl.load(weight + (0 if SHARED else first) + of, mask=inside, other=0.0)
    if NORM == BEFORE_GATE:
        y *= gate
    tl.store(out + row * SIZE + first + of, y.to(out.dtype.element_ty), mask=inside)


@triton.jit
def _keep(
    mixed, tails, journals, room, works, saves, stride,
    CHANNELS: tl.constexpr, KERNEL: tl.constexpr, JOURNAL: tl.constexpr, ROWS: tl.constexpr, FACTORS: tl.constexpr,
    F_PAD: tl.constexpr, BLOCKS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Moves a work's tails, those of the slots that are saved to first, or its journal. Rows move within a slot: a
    program is one warp, which has loaded them all before it stores any."""
    work = works + tl.program_id(0) * LINE
    unit = tl.program_id(1)
    slot = tl.load(work).to(tl.int64)
    length = tl.load(work + 3)
    if (length > 0) & (slot >= 0):
        replayed = tl.load(work + 4)
        commit = tl.load(work + 5)
        rest = replayed + length - commit
        place = tl.arange(0, ROWS)
        if unit < BLOCKS:
            at = unit * BLOCK + tl.arange(0, BLOCK)
            inside = at < CHANNELS
            line = (KERNEL - 1 + JOURNAL) * CHANNELS
            none = tl.zeros([ROWS], tl.int32)
            fresh = tl.load(work + 1) + none
            row = tl.load(work + 2) + none
            last = tl.load(work + 8)
            for number in range(tl.load(work + 7), last + 1):
                save = number < last
                count = tl.where(save, tl.load(saves + 2 * number, mask=save, other=0), commit)
                target = tl.where(save, tl.load(saves + 2 * number + 1, mask=save, other=0).to(tl.int64), slot)
                real = place < KERNEL - 1 + tl.where(save, 0, rest)
                x = _inputs(
                    mixed, tails, count + place, real, slot + none, fresh, row, replayed + none, at, inside, stride,
                    line, CHANNELS, KERNEL,
                )  # fmt: skip
                tl.debug_barrier()
                to = target * line + (place * CHANNELS)[:, None] + at[None, :]
                tl.store(tails + to, x, mask=real[:, None] & inside[None, :])
        else:
            factor = (unit - BLOCKS) * F_PAD + tl.arange(0, F_PAD)
            mask = (place < rest)[:, None] & (factor < FACTORS)[None, :]
            first = room + (tl.load(work + 6).to(tl.int64) + commit) * (CHANNELS + FACTORS) + CHANNELS
            factors = first + (place * (CHANNELS + FACTORS))[:, None] + factor[None, :]
            kept = journals + slot * JOURNAL * FACTORS + (place * FACTORS)[:, None] + factor[None, :]
            tl.store(kept, tl.load(factors, mask=mask, other=0.0), mask=mask)


def gated_convolution(
    mixed: torch.Tensor,
    gates: torch.Tensor,
    tails: torch.Tensor,
    filters: torch.Tensor,
    filter_bias: torch.Tensor | None,
    works: torch.Tensor,
    tokens: torch.Tensor,
    journal: int,
    out: torch.Tensor,
) -> None:
    """Computes the rows of `out` `[N, channels]` that `tokens` are of, by filters `[kernel, channels]`."""
    kernel, channels = filters.shape
    _gated_convolution[(triton.cdiv(len(tokens), _TOKENS), triton.cdiv(channels, _BLOCK))](
        mixed, gates, tails, filters, filters if filter_bias is None else filter_bias, out, works, tokens, len(tokens),
        mixed.stride(0), gates.stride(0), journal, channels, kernel, _TOKENS, _BLOCK, filter_bias is not None,
    )  # fmt: skip


def enter(
    mixed: torch.Tensor,
    gates: torch.Tensor,
    kept: tuple[torch.Tensor, torch.Tensor, int],
    filters: torch.Tensor,
    filter_bias: torch.Tensor | None,
    factors: FactorRule,
    room: torch.Tensor,
    works: torch.Tensor,
    tokens: torch.Tensor,
) -> None:
    """Fills the lines of `room` `[tokens, channels + factors]` that `tokens` names, by filters `[kernel, channels]`;
    `kept` are tails, journals, and how many tokens a journal has."""
    kernel, channels = filters.shape
    heads, keys, key = len(factors.rate), *factors.keys
    unit = factors.values or _BLOCK
    units = keys + triton.cdiv(channels - keys * key, unit)
    some, rows = triton.cdiv(len(tokens), _TOKENS), factors.rows
    _enter[(some, units if rows else units + 1)](
        mixed, gates, kept[0], kept[1], filters, filters if filter_bias is None else filter_bias,
        factors.rate, factors.bias, room, works, tokens, len(tokens), mixed.stride(0), gates.stride(0), kept[2],
        factors.least, factors.most, factors.gate_by, key**-0.5 if key else 1.0,
        channels, kernel, heads, triton.next_power_of_2(heads), units, unit, keys, key, factors.numbers,
        _TOKENS, triton.next_power_of_2(max(unit, key)), filter_bias is not None,
        CONSTANT if factors.constant else DELTA if keys else MAMBA,
    )  # fmt: skip
    if rows:
        _decays[(some, heads)](
            gates, kept[1], factors.rate, factors.bias, room, works, tokens, len(tokens), gates.stride(0), kept[2],
            factors.least, channels, heads, rows, triton.next_power_of_2(rows), _TOKENS, factors.least < 0,
        )  # fmt: skip


def leave(
    given: torch.Tensor,
    mixed: torch.Tensor,
    channels: int,
    weight: torch.Tensor,
    groups: int,
    norm: int,
    eps: float,
    z_by: float,
    *,
    sigmoid: bool = False,
) -> torch.Tensor:
    """Computes the gates and norms `[N, size]` of what was `given` `[N, size]` float32; z stands behind the `channels`
    of `mixed`. The `weight` is of all numbers of a row, or of a group's."""
    rows, size = given.shape
    out, group = mixed.new_empty((rows, size)), size // groups
    block = triton.next_power_of_2(group)
    _leave[(rows, groups)](
        given, mixed, weight, out, mixed.stride(0), eps, z_by,
        channels, size, group, block, len(weight) == group, norm, sigmoid,
        num_warps=min(8, max(1, block // 512)),
    )  # fmt: skip
    return out


def keep(
    mixed: torch.Tensor,
    tails: torch.Tensor,
    journals: torch.Tensor,
    room: torch.Tensor,
    works: torch.Tensor,
    saves: torch.Tensor,
    sizes: tuple[int, int, int],
    journal: int,
) -> None:
    """Keeps what the slots need of a step, of `sizes` channels, kernel, factors."""
    channels, kernel, factors = sizes
    rows = triton.next_power_of_2(max(1, kernel - 1 + journal))
    block = max(16, _MOVED // rows)
    blocks = triton.cdiv(channels, block)
    held = min(block, triton.next_power_of_2(max(1, factors)))
    _keep[(len(works), blocks + triton.cdiv(factors, held))](
        mixed, tails, journals, room, works, saves, mixed.stride(0),
        channels, kernel, journal, rows, factors, held, blocks, block, num_warps=1,
    )  # fmt: skip
