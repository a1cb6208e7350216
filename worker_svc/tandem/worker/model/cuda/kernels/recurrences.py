"""How states go from token to token: the gated delta rule and Mamba-2's state space, from token to token in one order.

    delta rule      S = decay S + k (beta (v - k (decay S)))      y = q S
    state space     S = decay S + B (dt x)                        y = C S + D x
    Kimi's          as the delta rule, with a decay of each row of S

A program has some columns of the state of one head of one sequence, in registers, for all tokens of a step: columns do
not see each other. So a sequence's bits depend neither on how it is cut nor on who is beside it. One warp adds up the
rows of a column; rows that fill up to a power of two are zero.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from tandem.worker.model.cuda.kernels.state_rows import DELTA, KIMI, LINE, MAMBA

_NUMBERS = 1024  # of a state that a warp holds, 32 a thread


@triton.jit
def _recur(
    room, states, given, works, saves, skip,
    HEADS: tl.constexpr, SHARE: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, R: tl.constexpr,
    C: tl.constexpr, CHANNELS: tl.constexpr, READ: tl.constexpr, WRITE: tl.constexpr, VALUE: tl.constexpr,
    RULE: tl.constexpr,
):  # fmt: skip
    """READ, WRITE and VALUE: where queries (C), keys (B) and values (x) begin in a token's channels."""
    work = works + tl.program_id(0) * LINE
    head = tl.program_id(1)
    length = tl.load(work + 3)
    if length > 0:
        row = tl.arange(0, R)
        column = tl.program_id(2) * C + tl.arange(0, C)
        real = row < ROWS
        there = column < COLUMNS
        cell = (head * ROWS + row)[:, None] * COLUMNS + column[None, :]
        inside = real[:, None] & there[None, :]
        slot = tl.load(work).to(tl.int64)
        first_row = tl.load(work + 2)
        replayed = tl.load(work + 4)
        last = tl.load(work + 8)
        kept = row < tl.where((slot >= 0) & (tl.load(work + 1) == 0), ROWS, 0)
        size = HEADS * ROWS * COLUMNS
        state = tl.load(states + slot * size + cell, mask=kept[:, None] & there[None, :], other=0.0)
        DECAYS: tl.constexpr = ROWS if RULE == KIMI else 1  # of a head
        line = room + tl.load(work + 6).to(tl.int64) * (CHANNELS + HEADS * (DECAYS + 1))
        share = head // SHARE * ROWS
        by = tl.load(skip + head)
        begin = 0
        # What is saved lies in the order of positions, before what is committed, and that before the end.
        for number in range(tl.load(work + 7), last + 2):
            save = number < last
            stays = tl.load(work + 5)
            end = tl.load(saves + 2 * number, mask=save, other=0)
            end = tl.where(save, end, tl.where(number == last, stays, replayed + length))
            target = tl.load(saves + 2 * number + 1, mask=save, other=0).to(tl.int64)
            target = tl.where(save, target, slot)
            end = tl.maximum(begin, end)  # nothing is committed of work without a slot
            for token in range(begin, end):
                if RULE == KIMI:
                    decay = tl.load(line + CHANNELS + head * ROWS + row, mask=real, other=0.0)[:, None]
                else:
                    decay = tl.load(line + CHANNELS + head)
                other = tl.load(line + CHANNELS + HEADS * DECAYS + head)
                read = tl.load(line + READ + share + row, mask=real, other=0.0)
                write = tl.load(line + WRITE + share + row, mask=real, other=0.0)
                value = tl.load(line + VALUE + head * COLUMNS + column, mask=there, other=0.0)
                state *= decay
                added = (value - tl.sum(state * write[:, None], 0)) * other if RULE != MAMBA else value * other
                state = tl.fma(write[:, None], added[None, :], state)
                seen = tl.sum(state * read[:, None], 0)
                if RULE == MAMBA:
                    seen = tl.fma(value, by, seen)
                out = given + (first_row + token - replayed).to(tl.int64) * (HEADS * COLUMNS) + head * COLUMNS + column
                if token >= replayed:
                    tl.store(out, seen, mask=there)
                line += CHANNELS + HEADS * (DECAYS + 1)
            if (number <= last) & (slot >= 0):
                tl.store(states + target * size + cell, state, mask=inside)
            begin = end


def columns_of(rows: int, columns: int) -> tuple[int, int]:
    """Returns the rows, and the columns, that a program holds of states `[rows, columns]`."""
    padded = triton.next_power_of_2(rows)
    return padded, max(1, min(triton.next_power_of_2(columns), _NUMBERS // padded))


def recur(
    room: torch.Tensor,
    states: torch.Tensor,
    given: torch.Tensor,
    works: torch.Tensor,
    saves: torch.Tensor,
    skip: torch.Tensor | None,
    shape: tuple[int, int, int],
    groups: int,
    *,
    by_row: bool = False,
) -> None:
    """Moves `states` `[slots, heads, rows, columns]` of that `shape` by the tokens of `room`, and writes what their
    rows of `given` `[N, heads * columns]` get. `groups` of heads share what reads and writes; with a `skip` `[heads]`
    it is a state space, without one the delta rule, Kimi's if decays are `by_row`. All are float32."""
    heads, rows, columns = shape
    size, group = heads * columns, groups * rows
    held, some = columns_of(rows, columns)
    places = (0, group, 2 * group) if skip is None else (size + group, size, 0)
    _recur[(len(works), heads, triton.cdiv(columns, some))](
        room, states, given, works, saves, room if skip is None else skip,
        heads, heads // groups, rows, columns, held, some, size + 2 * group, *places,
        KIMI if by_row else DELTA if skip is None else MAMBA,
        num_warps=1,
    )  # fmt: skip
