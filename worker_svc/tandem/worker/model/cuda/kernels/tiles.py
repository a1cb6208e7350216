"""Reads tiles of keys and adds them to a softmax in progress, for all attention kernels.

A softmax in progress of a query is (m, l, o): the largest score so far (scores are in units of log 2), the sum of
2^(s - m), and the sum of 2^(s - m) v. Nothing yet is (-inf, 0, 0).

    extend: one more tile          merge: two of them

Both leave a query that sees nothing of the newcomer exactly as it was. Sums of two products are written as `fma`, so
that no compiler decides about their rounding.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl

from tandem.worker.checkpoints.model_parts.heads import KVHeads
from tandem.worker.model.cuda.kernels.card import Card
from tandem.worker.model.kv_formats import KVFormat, Parts, int4_group

PLAIN, INT8, INT4, INT6 = tl.constexpr(0), tl.constexpr(1), tl.constexpr(2), tl.constexpr(3)
CODES = {"int8": INT8.value, "int6": INT6.value, "int4": INT4.value}  # of formats that are not plain


class Stored(NamedTuple):
    """How vectors lie in pages, as the kernels are told."""

    format: int  # PLAIN or one of `CODES`
    head_dim: int
    group: int  # numbers that share constants in INT4
    latent: int = 0  # unless it is 0, values are the first so many numbers of keys (`KVHeads`)

    @staticmethod
    def of(stored: KVFormat, heads: KVHeads) -> Stored:
        return Stored(CODES.get(stored.name, PLAIN.value), heads.size, int4_group(heads.size), heads.latent)

    @property
    def value(self) -> int:
        """Returns the numbers of a value."""
        return self.latent or self.head_dim

    @property
    def padded(self) -> int:
        """Returns `value` as a power of two, of at least the 16 that a matrix unit wants."""
        return max(16, triton.next_power_of_2(self.value))

    @property
    def rest(self) -> int:
        """Returns the same of the numbers that a key has behind its value, or 0."""
        return max(16, triton.next_power_of_2(self.head_dim - self.latent)) if self.latent else 0

    @property
    def read(self) -> int:
        """Returns the numbers that are read of each token, filled up as they are: a latent is read once."""
        return self.padded + (self.rest or self.padded)


class Block(NamedTuple):
    """What a program holds in shared memory: a matrix of queries, and tiles of keys and values."""

    rows: int  # of the matrix
    query_bytes: int  # of a number
    tile: int  # keys
    number_bytes: int
    query: int  # numbers of a query, filled up
    read: int  # numbers of a key and value, filled up
    passes: bool  # a tile is unpacked in shared memory, since it is a key and a value

    @staticmethod
    def of(stored: Stored, rows: int, query_bytes: int, tile: int, number_bytes: int) -> Block:
        passes = stored.latent > 0 and stored.format in (INT4.value, INT6.value)
        return Block(rows, query_bytes, tile, number_bytes, stored.padded + stored.rest, stored.read, passes)

    @property
    def _tiles(self) -> int:
        return self.tile * self.read * self.number_bytes

    def shared(self, depth: int) -> int:
        """Returns the bytes it takes where loads are pipelined `depth` deep, as compiled for several GPUs:
        the matrix and the tiles that are kept, or a little less."""
        lines = self.rows + (self.tile if self.passes else 0)
        return lines * self.query * self.query_bytes + (depth - 2) * self._tiles + 512

    def depth(self, budget: int, card: Card) -> int:
        """Returns how deep loads are pipelined, so that tiles on their way take about `budget` bytes and all fits.

        A tile passes through three stages (its page, its numbers, its use), and each further one keeps one more on its
        way.
        """
        depth = 2 + min(max(budget // self._tiles, 1), 4)
        while depth > 3 and self.shared(depth) > card.shared:
            depth -= 1
        return depth


def block_of(rows: int, tile: int, queries: torch.Tensor, numbers: torch.Tensor, stored: Stored) -> Block:
    """Returns the block of a launch."""
    return Block.of(stored, rows, queries.element_size(), tile, numbers.element_size())


def converted(queries: torch.Tensor, numbers: torch.Tensor) -> bool:
    """Tells whether a tile becomes float32 on its way to a product, and waits for it in registers: it takes 8 warps' of
    them even with few keys."""
    return queries.dtype == torch.float32 and numbers.dtype != torch.float32


def numbers_and_constants(parts: Parts) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns the two parts of a layer's keys or values; the first again where there is no second."""
    return parts[0], parts[-1]


@triton.jit
def load_vectors(
    numbers, constants, vectors, live, dtype,
    D: tl.constexpr, FIRST: tl.constexpr, END: tl.constexpr, PAD: tl.constexpr,
    FORMAT: tl.constexpr, GROUP: tl.constexpr, WHOLE: tl.constexpr,
):  # fmt: skip
    """Loads the numbers FIRST to END of vectors `[TILE]` of the pages as `[TILE, PAD]` in dtype; INT8 and INT6 without
    their scales. Where not `live`, numbers that are finite, zero but of INT6; with WHOLE all of them are live."""
    if FORMAT == INT4:
        # Groups that do not begin with FIRST are looked up for each number, as groups of one.
        APART: tl.constexpr = FIRST % GROUP != 0 and D != GROUP
        TOGETHER: tl.constexpr = 1 if APART else min(triton.next_power_of_2(GROUP), PAD)
        byte = tl.arange(0, PAD // 2)
        at = vectors[:, None] * (D // 2) + FIRST // 2 + byte[None, :]
        packed = tl.load(numbers + at, mask=live[:, None] & (byte < (END - FIRST) // 2)[None, :], other=0)
        digits = tl.reshape(tl.join(packed & 15, packed >> 4), [vectors.shape[0], PAD // TOGETHER, TOGETHER])
        group = tl.arange(0, PAD // TOGETHER)
        group = (FIRST + group) // GROUP if APART else FIRST // GROUP + group
        group_at = vectors[:, None] * (2 * (D // GROUP)) + group[None, :]
        group_mask = live[:, None] & (group < D // GROUP)[None, :]
        step = tl.load(constants + group_at, mask=group_mask, other=0.0)
        lowest = tl.load(constants + group_at + D // GROUP, mask=group_mask, other=0.0)
        x = tl.fma(
            digits.to(tl.float32),
            tl.broadcast_to(step[:, :, None], digits.shape),
            tl.broadcast_to(lowest[:, :, None], digits.shape),
        )
        return tl.reshape(x.to(dtype), [vectors.shape[0], PAD])
    elif FORMAT == INT6:
        byte = tl.arange(0, PAD // 2)
        first = vectors[:, None] * (D // 4 * 3)
        low_at = numbers + first + FIRST // 2 + byte[None, :]
        low = tl.load(low_at, mask=live[:, None] & (byte < (END - FIRST) // 2)[None, :], other=0)
        # Bits of two neighbours: each byte has those of two pairs, and the first pair may be a byte's second.
        if FIRST % 4 == 0:
            fourth = tl.arange(0, PAD // 4)
            high_at = numbers + first + D // 2 + FIRST // 4 + fourth[None, :]
            high = tl.load(high_at, mask=live[:, None] & (fourth < (END - FIRST + 3) // 4)[None, :], other=0)
            high = tl.reshape(tl.join(high & 15, high >> 4), [vectors.shape[0], PAD // 2])
        else:
            pair = FIRST // 2 + byte
            high_at = numbers + first + D // 2 + (pair // 2)[None, :]
            high = tl.load(high_at, mask=live[:, None] & (byte < (END - FIRST) // 2)[None, :], other=0)
            high = (high >> (pair % 2 * 4).to(tl.uint8)[None, :]) & 15
        digits = tl.join((low & 15) | ((high & 3) << 4), (low >> 4) | ((high & 12) << 2))
        return tl.reshape((digits.to(tl.int8) - 32).to(dtype), [vectors.shape[0], PAD])
    else:
        coordinate = FIRST + tl.arange(0, PAD)
        at = vectors[:, None] * D + coordinate[None, :]
        if WHOLE and END - FIRST == PAD:
            return tl.load(numbers + at).to(dtype)
        mask = live[:, None]
        if END - FIRST != PAD:
            mask = mask & (coordinate < END)[None, :]
        return tl.load(numbers + at, mask=mask, other=0.0).to(dtype)


@triton.jit
def queries_behind(q, queries, vector, real, D: tl.constexpr, REST: tl.constexpr, LATENT: tl.constexpr):
    """Loads what queries `[M]` of D numbers have behind the first LATENT, `[M, REST]`; if LATENT is 0, nothing: a place
    holder."""
    if LATENT:
        coordinate = LATENT + tl.arange(0, REST)
        at = vector[:, None] * D + coordinate[None, :]
        return tl.load(q + at, mask=real[:, None] & (coordinate < D)[None, :], other=0.0)
    else:
        return queries


@triton.jit
def oldest_seen(position, WINDOW: tl.constexpr):
    """Returns the first key that the query at a position sees in a layer with a window (`AttentionKind`), or less."""
    if WINDOW > 0:
        return position - WINDOW + 1
    else:
        return position // -WINDOW * -WINDOW


@triton.jit
def extend(
    m, l, o, tile, end, lowest, queries, behind, query_position, table, kv_head,
    k_numbers, k_constants, v_numbers, v_constants, scale,
    KV_HEADS: tl.constexpr, D: tl.constexpr, D_PAD: tl.constexpr, REST: tl.constexpr, LATENT: tl.constexpr,
    PAGE: tl.constexpr, TILE: tl.constexpr,
    WINDOW: tl.constexpr, CAP: tl.constexpr, FORMAT: tl.constexpr, GROUP: tl.constexpr, MASKED: tl.constexpr,
):  # fmt: skip
    """Extends a softmax in progress of `queries` `[M, D_PAD]` by the keys `tile` to `tile + TILE` of their sequence.

    end, lowest: the keys that any of the queries sees are those from `lowest` to before `end`; others are not read.
    MASKED: not every query sees all of the tile.
    scale: of the scores, log2(e) included.
    CAP: unless it is 0, a score s becomes CAP tanh(s / CAP).
    LATENT: unless it is 0, values are the first so many numbers of keys, of which there is one head; `behind`
    `[M, REST]` is what `queries` multiply the others by.
    """
    SCALED: tl.constexpr = (FORMAT == INT8) | (FORMAT == INT6)
    token = tile + tl.arange(0, TILE)
    live = token < end
    if WINDOW:
        live = live & (token >= lowest)
    if PAGE % TILE == 0:
        page = tl.load(table + tile // PAGE).to(tl.int64)
    elif not MASKED:
        page = tl.load(table + token // PAGE).to(tl.int64)
    else:
        page = tl.load(table + token // PAGE, mask=live, other=0).to(tl.int64)
    vectors = page * PAGE + token % PAGE if LATENT else (page * KV_HEADS + kv_head) * PAGE + token % PAGE
    k = load_vectors(
        k_numbers, k_constants, vectors, live, queries.dtype, D, 0, LATENT or D, D_PAD, FORMAT, GROUP, not MASKED
    )
    scores = tl.dot(queries, tl.trans(k), input_precision="ieee")
    if LATENT:
        others = load_vectors(
            k_numbers, k_constants, vectors, live, queries.dtype, D, LATENT, D, REST, FORMAT, GROUP, not MASKED
        )
        scores = tl.dot(behind, tl.trans(others), scores, input_precision="ieee")
    if SCALED:
        # Scales of keys and values at once, as many as threads: then the compiler lets each thread copy one of them. Of
        # fewer numbers, each would copy all that it multiplies by. Where nothing is live there is page 0 to read.
        side = tl.arange(0, 2)[None, :]
        k_scale, v_scale = tl.split(tl.load(tl.where(side == 0, k_constants, v_constants) + vectors[:, None]))
        scores *= k_scale[None, :]
    if CAP != 0.0:  # a float alone is no condition to the compiler
        # 2^(s log2(e) 2 / CAP) is e^(2 s / CAP); what scores are scaled by from here on is that of their tanh.
        scores = 1 - 2 / (1 + tl.exp2(scores * (scale * (2 / CAP))))
        scale = CAP * 1.4426950408889634
    if MASKED:
        visible = token[None, :] <= query_position[:, None]
        if WINDOW:
            visible = visible & (token[None, :] >= oldest_seen(query_position, WINDOW)[:, None])
        scores = tl.where(visible, scores, float("-inf"))
    top = tl.maximum(m, tl.max(scores, 1) * scale)  # the scale is positive, and multiplied with one number a query
    base = tl.where(top == float("-inf"), 0.0, top)
    weights = tl.exp2(
        tl.fma(scores, tl.full(scores.shape, scale, tl.float32), tl.broadcast_to(-base[:, None], scores.shape))
    )
    fade = tl.exp2(m - base)
    l = tl.fma(l, fade, tl.sum(weights, 1))
    if SCALED:
        weights *= tl.where(live, v_scale, 0.0)[None, :]
    if LATENT:
        v = k
    else:
        v = load_vectors(
            v_numbers, v_constants, vectors, live, queries.dtype, D, 0, D, D_PAD, FORMAT, GROUP, not MASKED
        )
    o = tl.dot(weights.to(queries.dtype), v, o * fade[:, None], input_precision="ieee")
    return top, l, o


@triton.jit
def beginning(
    sinks, kv_head, line, alone,
    GROUP: tl.constexpr, M: tl.constexpr, D_PAD: tl.constexpr, SINKS: tl.constexpr,
):  # fmt: skip
    """Begins softmaxes of M lines: nothing yet; with SINKS and where `alone`, the sink of each line's head."""
    m = tl.full([M], float("-inf"), tl.float32)
    l = tl.zeros([M], tl.float32)
    if SINKS:
        sink = tl.load(sinks + kv_head * GROUP + line % GROUP) * 1.4426950408889634
        m = tl.where(alone, sink, m)
        l = tl.where(alone, l + 1.0, l)
    return m, l, tl.zeros([M, D_PAD], tl.float32)


@triton.jit
def merge(m1, l1, o1, m2, l2, o2):
    """Merges two softmaxes in progress into one."""
    top = tl.maximum(m1, m2)
    base = tl.where(top == float("-inf"), 0.0, top)
    a = tl.exp2(m1 - base)
    b = tl.exp2(m2 - base)
    l = tl.fma(l1, a, l2 * b)
    o = tl.fma(o1, tl.broadcast_to(a[:, None], o1.shape), o2 * b[:, None])
    return top, l, o
