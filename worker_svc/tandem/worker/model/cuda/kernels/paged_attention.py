"""Attention of short or long runs of queries over pages, with fixed splits.

The rule. The keys of a sequence are cut into splits of `SPLIT` tokens, from position 0 on, and a split into tiles. A
query extends an empty softmax tile by tile through a split, and merges the splits' results in their order. All this is
fixed by the query's position alone, so its bits depend neither on the batch nor on who computes which split.

The work is a list of jobs for a fixed number of programs, which take them in turn: a job is a block of up to `Q`
consecutive queries of one sequence with either all of its splits, or one split, whose (m, l, o) goes to a buffer.
Whoever stores the last one of a block merges them all, in their order: who that is changes no bit. A step with other
sequences has another list, and the same launch: it can be recorded in a CUDA graph.

The queries of the heads that share a kv head are the rows of one matrix: row r is query r // GROUP, head r % GROUP.
All heads share a latent (`model_parts/latents.py`); there, GROUP of them are a matrix, and the program that has them
does not know of the others.
With one compiled kernel for every step (the same `Q`), a query also has the same bits as a decode, in a prefill and
while drafts are verified.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
import triton
import triton.language as tl

from tandem.worker.model.attention import Scores
from tandem.worker.model.cuda.kernels.card import card_of
from tandem.worker.model.cuda.kernels.dependent import is_dependent, options, wait_for_inputs
from tandem.worker.model.cuda.kernels.last import is_last
from tandem.worker.model.cuda.kernels.tiles import (
    Stored,
    beginning,
    block_of,
    converted,
    extend,
    merge,
    numbers_and_constants,
    oldest_seen,
    queries_behind,
)
from tandem.worker.model.kv_formats import Parts

IN_FLIGHT = 96 << 10  # bytes of tiles on their way to a program: two programs share a processor


class PagedWork(NamedTuple):
    """The jobs of a launch; int32 tensors on the device, which may be longer than what is used."""

    tables: torch.Tensor  # the pages of each sequence, in order, one sequence behind the other
    # [B, 6] first row, queries, first position, where its table begins, first partial, partials (0: none)
    blocks: torch.Tensor
    jobs: torch.Tensor  # [J, 4] block, first split, splits, partial or -1 to write the result itself
    num_jobs: torch.Tensor  # [1]


class Partials(NamedTuple):
    """Softmaxes in progress that other programs merge."""

    m: torch.Tensor  # [partials, kv_heads, lines] fp32; a line is a query and head; groups, of heads over latents
    l: torch.Tensor  # the same
    o: torch.Tensor  # [partials, kv_heads, lines, value] fp32
    # [partials, kv_heads] int32, at a block's first partial how many of the block's are stored; zero between launches
    stored: torch.Tensor

    @staticmethod
    def empty(count: int, kv_heads: int, lines: int, value: int, device: torch.device) -> Partials:
        m = torch.empty((count, kv_heads, lines), dtype=torch.float32, device=device)
        stored = torch.zeros((count, kv_heads), dtype=torch.int32, device=device)
        return Partials(m, torch.empty_like(m), m.new_empty((count, kv_heads, lines, value)), stored)


@triton.jit(do_not_specialize=["lines"])
def _attend(
    q, out, partial_m, partial_l, partial_o, partials_stored, k_numbers, k_constants, v_numbers, v_constants, sinks,
    tables, blocks, jobs, num_jobs, lines, scale,
    HEADS: tl.constexpr, KV_HEADS: tl.constexpr, GROUP: tl.constexpr, M: tl.constexpr, D: tl.constexpr,
    D_PAD: tl.constexpr, REST: tl.constexpr, LATENT: tl.constexpr,
    PAGE: tl.constexpr, TILE: tl.constexpr, SPLIT: tl.constexpr, WINDOW: tl.constexpr,
    CAP: tl.constexpr, SINKS: tl.constexpr, FORMAT: tl.constexpr, INT4_GROUP: tl.constexpr, DEPENDENT: tl.constexpr,
):  # fmt: skip
    wait_for_inputs(DEPENDENT)
    line = tl.arange(0, M)
    coordinate = tl.arange(0, D_PAD)
    VALUE: tl.constexpr = LATENT or D
    for turn in range(tl.program_id(0), tl.load(num_jobs) * KV_HEADS, tl.num_programs(0)):
        job = jobs + turn // KV_HEADS * 4
        kv_head = turn % KV_HEADS
        block = blocks + tl.load(job) * 6
        first_split = tl.load(job + 1)
        splits = tl.load(job + 2)
        partial = tl.load(job + 3)
        row = tl.load(block)
        count = tl.load(block + 1)
        position = tl.load(block + 2)
        table = tables + tl.load(block + 3)

        query = line // GROUP
        head = kv_head * GROUP + line % GROUP
        real = (query < count) & (head < HEADS)
        vector = (row + query).to(tl.int64) * HEADS + head
        mask = real[:, None] & (coordinate < VALUE)[None, :]
        queries = tl.load(q + vector[:, None] * D + coordinate[None, :], mask=mask, other=0.0)
        behind = queries_behind(q, queries, vector, real, D, REST, LATENT)
        out_at = vector[:, None] * VALUE + coordinate[None, :]
        query_position = position + query
        end = position + count
        lowest = 0
        if WINDOW:
            lowest = tl.maximum(oldest_seen(position, WINDOW), 0)

        m, l, o = beginning(sinks, kv_head, line, partial < 0, GROUP, M, D_PAD, SINKS)
        for split in range(first_split, first_split + splits):
            split_m = tl.full([M], float("-inf"), tl.float32)
            split_l = tl.zeros([M], tl.float32)
            split_o = tl.zeros([M, D_PAD], tl.float32)
            begin = tl.maximum(split * SPLIT, lowest // TILE * TILE)
            for tile in range(begin, tl.minimum((split + 1) * SPLIT, end), TILE):
                split_m, split_l, split_o = extend(
                    split_m, split_l, split_o, tile, end, lowest, queries, behind, query_position, table, kv_head,
                    k_numbers, k_constants, v_numbers, v_constants, scale,
                    KV_HEADS, D, D_PAD, REST, LATENT, PAGE, TILE, WINDOW, CAP, FORMAT, INT4_GROUP, True,
                )  # fmt: skip
            m, l, o = merge(m, l, o, split_m, split_l, split_o)

        if partial < 0:
            tl.store(out + out_at, (o / l[:, None]).to(out.dtype.element_ty), mask=mask)
        else:
            at = (partial.to(tl.int64) * KV_HEADS + kv_head) * lines + line
            tl.store(partial_m + at, m, mask=real)
            tl.store(partial_l + at, l, mask=real)
            tl.store(partial_o + at[:, None] * VALUE + coordinate[None, :], o, mask=mask)
            first = tl.load(block + 4).to(tl.int64)
            partials = tl.load(block + 5)
            if is_last(partials_stored + first * KV_HEADS + kv_head, partials):
                m, l, o = beginning(sinks, kv_head, line, True, GROUP, M, D_PAD, SINKS)
                for number in range(partials):
                    at = ((first + number) * KV_HEADS + kv_head) * lines + line
                    split_m = tl.load(partial_m + at, mask=real, other=float("-inf"), cache_modifier=".cg")
                    split_l = tl.load(partial_l + at, mask=real, other=0.0, cache_modifier=".cg")
                    split_o = tl.load(
                        partial_o + at[:, None] * VALUE + coordinate[None, :],
                        mask=mask,
                        other=0.0,
                        cache_modifier=".cg",
                    )
                    m, l, o = merge(m, l, o, split_m, split_l, split_o)
                tl.store(out + out_at, (o / l[:, None]).to(out.dtype.element_ty), mask=mask)


def matrix_rows(queries: int, group: int) -> int:
    """Returns the rows of the matrix that holds `queries` of `group` heads: a power of two that a matrix unit takes."""
    return max(16, triton.next_power_of_2(queries * group))


def _warps(rows: int, stored: Stored) -> int:
    """Returns how many warps hold two results `[rows, value]` in their registers."""
    return 4 if rows * stored.padded <= 64 * 128 else 8


def paged_attention(
    q: torch.Tensor,
    out: torch.Tensor,
    keys: Parts,
    values: Parts,
    stored: Stored,
    work: PagedWork,
    partials: Partials,
    scores: Scores,
    *,
    group: int,
    queries: int,
    split: int,
    tile: int,
    window: int,
    programs: int,
) -> None:
    """Writes the rows of `out` `[N, heads, value]` that `work`'s blocks name; `q` is `[N, heads, head_dim]`.

    group: heads of a matrix, which share a kv head. queries: tokens in a block at most. `split` is a multiple of
    `tile`, a power of two. `partials` has room for those of `work`, with a line for each query and head of the longest
    block.
    """
    heads, page_size = q.shape[1], keys[0].shape[2]
    rows = matrix_rows(queries, group)
    assert q.is_contiguous() and out.is_contiguous() and split % tile == 0
    dependent = is_dependent(q.device)
    _attend[(programs,)](
        q, out, *partials, *numbers_and_constants(keys), *numbers_and_constants(values),
        q if scores.sinks is None else scores.sinks,
        work.tables, work.blocks, work.jobs, work.num_jobs, partials.m.shape[-1], scores.scale / math.log(2),
        heads, triton.cdiv(heads, group), group, rows, stored.head_dim, stored.padded, stored.rest, stored.latent,
        page_size, tile, split, window,
        scores.cap, scores.sinks is not None, stored.format, stored.group, dependent,
        num_warps=8 if converted(q, keys[0]) else _warps(rows, stored),
        num_stages=block_of(rows, tile, q, keys[0], stored).depth(IN_FLIGHT, card_of(q.device)),
        **options(dependent),
    )  # fmt: skip
