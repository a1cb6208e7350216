"""Attention of long runs of queries over pages, one program a (block of queries, kv head).

FlashAttention-2's order (Dao 2023, https://arxiv.org/abs/2307.08691): a block of queries extends one softmax through
all tiles it sees, first those that every one of its queries sees whole, then those that need a mask. It needs neither
splits nor combining, and is faster than `paged_attention` on many queries; its bits are not those of a decode.

Keys before a chunk's first query (a cached prefix, earlier chunks) are read from pages like those of the chunk itself.
"""

from __future__ import annotations

import math

import torch
import triton
import triton.language as tl

from tandem.worker.model.attention import Scores
from tandem.worker.model.cuda.kernels.card import card_of
from tandem.worker.model.cuda.kernels.tiles import (
    Stored,
    beginning,
    block_of,
    converted,
    extend,
    numbers_and_constants,
    oldest_seen,
    queries_behind,
)
from tandem.worker.model.kv_formats import Parts

_IN_FLIGHT = 64 << 10  # bytes of tiles on their way to a program, whose matrix units have more to do than its copies


@triton.jit
def _prefill(
    q, out, k_numbers, k_constants, v_numbers, v_constants, sinks, tables, blocks, scale,
    HEADS: tl.constexpr, KV_HEADS: tl.constexpr, GROUP: tl.constexpr, M: tl.constexpr, D: tl.constexpr,
    D_PAD: tl.constexpr, REST: tl.constexpr, LATENT: tl.constexpr,
    PAGE: tl.constexpr, TILE: tl.constexpr, WINDOW: tl.constexpr, CAP: tl.constexpr, SINKS: tl.constexpr,
    FORMAT: tl.constexpr, INT4_GROUP: tl.constexpr,
):  # fmt: skip
    line = tl.arange(0, M)
    coordinate = tl.arange(0, D_PAD)
    block = blocks + tl.program_id(1) * 6
    kv_head = tl.program_id(0)
    row = tl.load(block)
    count = tl.load(block + 1)
    position = tl.load(block + 2)
    table = tables + tl.load(block + 3)

    query = line // GROUP
    VALUE: tl.constexpr = LATENT or D
    head = kv_head * GROUP + line % GROUP
    real = (query < count) & (head < HEADS)
    vector = (row + query).to(tl.int64) * HEADS + head
    mask = real[:, None] & (coordinate < VALUE)[None, :]
    queries = tl.load(q + vector[:, None] * D + coordinate[None, :], mask=mask, other=0.0)
    behind = queries_behind(q, queries, vector, real, D, REST, LATENT)
    query_position = position + query
    end = position + count

    m, l, o = beginning(sinks, kv_head, line, True, GROUP, M, D_PAD, SINKS)
    lowest = 0
    masked_from = 0
    if WINDOW:
        lowest = tl.maximum(oldest_seen(position, WINDOW), 0)
        masked_from = lowest // TILE * TILE
    else:
        masked_from = (position + 1) // TILE * TILE
        for tile in range(0, masked_from, TILE):
            m, l, o = extend(
                m, l, o, tile, end, lowest, queries, behind, query_position, table, kv_head,
                k_numbers, k_constants, v_numbers, v_constants, scale,
                KV_HEADS, D, D_PAD, REST, LATENT, PAGE, TILE, WINDOW, CAP, FORMAT, INT4_GROUP, False,
            )  # fmt: skip
    for tile in range(masked_from, end, TILE):
        m, l, o = extend(
            m, l, o, tile, end, lowest, queries, behind, query_position, table, kv_head,
            k_numbers, k_constants, v_numbers, v_constants, scale,
            KV_HEADS, D, D_PAD, REST, LATENT, PAGE, TILE, WINDOW, CAP, FORMAT, INT4_GROUP, True,
        )  # fmt: skip
    tl.store(out + vector[:, None] * VALUE + coordinate[None, :], (o / l[:, None]).to(out.dtype.element_ty), mask=mask)


def prefill_attention(
    q: torch.Tensor,
    out: torch.Tensor,
    keys: Parts,
    values: Parts,
    stored: Stored,
    tables: torch.Tensor,
    blocks: torch.Tensor,
    scores: Scores,
    *,
    group: int,
    rows: int,
    tile: int,
    window: int,
) -> None:
    """Writes the rows of `out` `[N, heads, value]` that `blocks` name (`PagedWork`); `q` is `[N, heads, head_dim]`.

    group: heads of a matrix, which share a kv head. rows: of the matrix of a block's queries and heads, a power of two.
    """
    heads, page_size = q.shape[1], keys[0].shape[2]
    groups = triton.cdiv(heads, group)
    _prefill[(groups, blocks.shape[0])](
        q, out, *numbers_and_constants(keys), *numbers_and_constants(values),
        q if scores.sinks is None else scores.sinks,
        tables, blocks, scores.scale / math.log(2), heads, groups, group, rows,
        stored.head_dim, stored.padded, stored.rest, stored.latent, page_size, tile, window,
        scores.cap, scores.sinks is not None, stored.format, stored.group,
        num_warps=8 if rows * stored.padded > 64 * 256 or rows >= 128 or converted(q, keys[0]) else 4,
        num_stages=block_of(rows, tile, q, keys[0], stored).depth(_IN_FLIGHT, card_of(q.device)),
    )  # fmt: skip
