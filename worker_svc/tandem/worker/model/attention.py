"""Computes causal attention over pages, with bits that do not depend on the batch.

The rule. A query attends to one page of keys (a *tile*) at a time, from position 0 on:

    m = max s              s = scale * q . k  (or cap tanh(s / cap))  over the tiles, masked above the query's position
    l = sum exp(s - m)     of each tile
    o = exp(s - m) . v     of each tile

A maximum is exact in any order. The tiles' l and o are added as a balanced tree over the tile numbers, (0,1) (2,3) ...,
where a tile that is not there adds nothing; the answer is o / l. A sink is one more score, which m and l know of. A
query's result is therefore the same whether it comes as one decode row or in the middle of a prefill, in any chunking
and any company, if a row of a batched matrix product does not depend on the other rows. That holds for row counts that
are multiples of 4 (fp32 and bf16, MKL and oneDNN; other machines: the runner's self-check measures it).

Queries come in blocks of consecutive tokens of one sequence: 1 token for decodes, PREFILL_BLOCK for prefills. A (block,
tile) pair is a *job*; all jobs of a step are one batched product, in slabs of bounded memory. No loop over requests,
but for the products themselves: jobs come in order of their pages, and pages that follow each other are read where they
lie, each run by a product of its own.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol, TypeVar

import numpy as np
import numpy.typing as npt
import torch

from tandem.worker.checkpoints.model_parts.heads import AttentionKind
from tandem.worker.model.kv_cache import KVCache, Run
from tandem.worker.model.kv_formats import Parts

PREFILL_BLOCK = 16  # query tokens; larger blocks read a page less often and waste more on short prompts
SLAB_FLOATS = 1 << 20  # numbers in the largest operand of a slab: 4 MiB stay in a core's cache between two products
ROW_MULTIPLE = 4  # rows of a matrix product come in multiples of this
_TINY_PRODUCT = 400  # torch computes batched products of fewer multiplications than this in another order
_INPUTS = 64  # MKL computes fewer than `ROW_MULTIPLE` rows for so many, of turned keys, in another order, too


Positions = TypeVar("Positions", int, npt.NDArray[np.int64], npt.NDArray[np.int32])


def oldest_seen(position: Positions, window: int) -> Positions:
    """Returns the first key that the query at a position sees in a layer with a window (`AttentionKind`), or less."""
    return position - window + 1 if window > 0 else position // -window * -window


class Segment(NamedTuple):
    """Consecutive tokens of one sequence that a step computes.

    `row` is the first one's row in the step's batch, `position` its place in the sequence, and
    `pages` the sequence's pages `[>= ceil((position + length) / page_size)]`.
    """

    row: int
    length: int
    position: int
    pages: npt.NDArray[np.int64]


class Scores(NamedTuple):
    """How scores are made of the products of queries and keys."""

    scale: float
    cap: float = 0.0  # unless it is 0, a score s becomes cap tanh(s / cap)
    sinks: torch.Tensor | None = None  # [heads] float32, one more score for each: that of a value which is 0


class Plan(Protocol):
    """Plans one step's attention once for all layers."""

    def attend(self, keys: Parts, values: Parts, q: torch.Tensor, scores: Scores) -> torch.Tensor:
        """Computes attention of queries `q` `[N, heads, head_dim]` over one layer's pages; rows of no segment give
        zeros."""
        ...


class MovingPlan(ABC):
    """A plan that can become the one of the tokens behind its own, where these are in the same pages."""

    @abstractmethod
    def move_on(self) -> None:
        """Makes every token the next one of its sequence."""


@dataclass(frozen=True, slots=True)
class _Slab:
    """Jobs that are computed at once; `B` blocks of `Q` query tokens, `J` jobs, `T` tiles a block at most."""

    query_rows: torch.Tensor  # [B * Q] rows of the batch
    job_block: torch.Tensor  # [J]
    job_page: torch.Tensor  # [J]
    runs: list[Run] | None  # the jobs' pages as runs, if they are long enough to be worth their products
    job_place: torch.Tensor | None  # [J] block * T + tile; None: 0, 1, ...
    masked_jobs: torch.Tensor  # [M] jobs with a key at which some query must not look
    mask: torch.Tensor  # [M, 1, Q, 1, page_size] true where that is so
    blocks: int  # B
    tiles: int  # T
    output_rows: torch.Tensor  # rows of the batch that this slab answers
    output_places: torch.Tensor | None  # where they lie in the slab's [B * Q]; None: everywhere
    block: int  # Q


class AttentionPlan:
    """Plans one step's attention once for all layers."""

    def __init__(self, segments: Sequence[Segment], cache: KVCache, num_heads: int, kind: AttentionKind) -> None:
        """Takes a step's segments; what a token sees: `AttentionKind`."""
        shape, window, (kv_heads, head_dim) = cache.shape, kind.window, kind.heads[:2]
        self._kv_heads = kv_heads
        self._group = num_heads // kv_heads
        self._page_size = shape.page_size
        self._device = cache.device
        self._window = window
        smallest = -(-_TINY_PRODUCT // (shape.page_size * head_dim))
        self._row_multiple = max(-(-smallest // ROW_MULTIPLE), -(-head_dim // _INPUTS)) * ROW_MULTIPLE
        self._tiles = cache.readers[kind.heads]
        decodes = [segment for segment in segments if segment.length == 1]
        prefills = [segment for segment in segments if segment.length > 1]
        self._slabs = [
            *self._plan(decodes, 1, num_heads, head_dim),
            *self._plan(prefills, PREFILL_BLOCK, num_heads, head_dim),
        ]

    def _plan(self, segments: Sequence[Segment], block: int, num_heads: int, head_dim: int) -> list[_Slab]:
        """Cuts segments into blocks of `block` tokens and packs the blocks into slabs."""
        if not segments:
            return []
        size = self._page_size
        # One entry a block: first row, tokens in it, first position, tiles it looks at, and its sequence's pages.
        owner = np.concatenate([np.full(-(-s.length // block), i, dtype=np.int64) for i, s in enumerate(segments)])
        start = np.concatenate([np.arange(0, s.length, block, dtype=np.int64) for s in segments])
        lengths = np.array([s.length for s in segments], dtype=np.int64)
        count = np.minimum(block, lengths[owner] - start)
        row = np.array([s.row for s in segments], dtype=np.int64)[owner] + start
        position = np.array([s.position for s in segments], dtype=np.int64)[owner] + start
        tiles = (position + count - 1) // size + 1

        multiple = self._row_multiple
        rows_per_block = -(-block * (num_heads // self._kv_heads) // multiple) * multiple * self._kv_heads
        floats = tiles * max(rows_per_block * max(size, head_dim), self._kv_heads * size * head_dim)
        slabs: list[_Slab] = []
        first = 0
        total = np.cumsum(floats)
        while first < len(owner):
            before = total[first - 1] if first else 0
            last = max(first + 1, int(np.searchsorted(total, before + SLAB_FLOATS, side="right")))
            part = slice(first, last)
            slabs.append(self._slab(segments, owner[part], row[part], count[part], position[part], tiles[part], block))
            first = last
        return slabs

    def _slab(
        self,
        segments: Sequence[Segment],
        owner: npt.NDArray[np.int64],
        row: npt.NDArray[np.int64],
        count: npt.NDArray[np.int64],
        position: npt.NDArray[np.int64],
        tiles: npt.NDArray[np.int64],
        block: int,
    ) -> _Slab:
        size = self._page_size
        blocks = len(owner)
        width = int(tiles.max())
        job_block = np.repeat(np.arange(blocks), tiles)
        job_tile = np.arange(len(job_block)) - np.repeat(np.cumsum(tiles) - tiles, tiles)
        pages = np.concatenate([segments[o].pages[:t] for o, t in zip(owner, tiles, strict=True)])
        # Sequences that grow side by side share out the pages of one region: in order of pages they are one run again.
        order = np.argsort(pages, kind="stable")
        job_block, job_tile, pages = job_block[order], job_tile[order], pages[order]
        job_place = job_block * width + job_tile
        token = np.arange(block)
        real = token < count[:, None]  # [B, Q]
        # A place behind the block's end repeats its last token, so that it computes something harmless.
        inner = np.minimum(token, count[:, None] - 1)
        query_position = position[:, None] + inner

        first_query, last_query = position[job_block], (position + count - 1)[job_block]
        masked = (job_tile + 1) * size - 1 > first_query
        if self._window:
            masked |= job_tile * size < oldest_seen(last_query, self._window)
        masked_jobs = np.flatnonzero(masked)
        queries = query_position[job_block[masked_jobs]][:, :, None]
        keys = (job_tile[masked_jobs, None] * size + np.arange(size))[:, None, :]
        mask = keys > queries  # [M, Q, page_size]
        if self._window:
            mask |= keys < oldest_seen(queries, self._window)

        tensor = self._tensor
        return _Slab(
            query_rows=tensor((row[:, None] + inner).reshape(-1)),
            job_block=tensor(job_block),
            job_page=tensor(pages),
            runs=self._tiles.runs(pages),
            job_place=None if np.array_equal(job_place, np.arange(blocks * width)) else tensor(job_place),
            masked_jobs=tensor(masked_jobs),
            mask=tensor(mask)[:, None, :, None, :],
            blocks=blocks,
            tiles=width,
            output_rows=tensor((row[:, None] + token)[real]),
            output_places=None if real.all() else tensor(np.flatnonzero(real)),
            block=block,
        )

    def _tensor(self, array: npt.NDArray[np.generic]) -> torch.Tensor:
        return torch.from_numpy(np.ascontiguousarray(array)).to(self._device, non_blocking=True)

    def attend(self, keys: Parts, values: Parts, q: torch.Tensor, scores: Scores) -> torch.Tensor:
        """Computes attention of `q` `[N, heads, head_dim]` over one layer's pages; rows of no segment give zeros."""
        out = torch.zeros_like(q)
        for slab in self._slabs:
            result = self._attend_slab(slab, keys, values, q, scores)  # [B * Q, heads, head_dim]
            if slab.output_places is not None:
                result = result.index_select(0, slab.output_places)
            out.index_copy_(0, slab.output_rows, result)
        return out

    def _attend_slab(self, slab: _Slab, keys: Parts, values: Parts, q: torch.Tensor, how: Scores) -> torch.Tensor:
        kv_heads, group, block, size = self._kv_heads, self._group, slab.block, self._page_size
        head_dim = q.shape[-1]
        jobs, rows = slab.job_block.shape[0], block * group
        padding = -rows % self._row_multiple
        padded = rows + padding

        # Queries as rows (token, group) of each block and kv head: [B, kv_heads, rows, head_dim].
        blocks = q.index_select(0, slab.query_rows).to(self._tiles.dtype) * how.scale
        blocks = blocks.view(-1, block, kv_heads, group, head_dim).transpose(1, 2).reshape(-1, kv_heads, rows, head_dim)
        if padding:
            blocks = torch.nn.functional.pad(blocks, (0, 0, 0, padding))
        job_queries = blocks.index_select(0, slab.job_block).view(jobs * kv_heads, padded, head_dim)

        scores = self._tiles.times_keys(job_queries, keys, slab.job_page, slab.runs)
        scores = scores.view(jobs, kv_heads, padded, size)
        if how.cap:
            soft_cap_(scores, how.cap)
        if slab.masked_jobs.shape[0]:
            some = scores.index_select(0, slab.masked_jobs)
            some[:, :, :rows].view(-1, kv_heads, block, group, size).masked_fill_(slab.mask, float("-inf"))
            scores.index_copy_(0, slab.masked_jobs, some)

        # Every query sees its own key at least, so that its largest score is finite.
        m = self._by_block(slab, scores.amax(-1), float("-inf")).amax(1)  # [B, kv_heads, rows]
        sink = None
        if how.sinks is not None:  # one number a head, of rows (token, group)
            sink = how.sinks.view(kv_heads, 1, group).expand(-1, block, -1).reshape(kv_heads, rows).to(m.dtype)
            sink = torch.nn.functional.pad(sink, (0, padding), value=float("-inf"))
            m = torch.maximum(m, sink)
        scores.sub_(m.index_select(0, slab.job_block).unsqueeze(-1)).exp_()
        l = tree_sum(self._by_block(slab, scores.sum(-1), 0.0))
        if sink is not None:
            l = l + (sink - m).exp_()
        weights = scores.view(jobs * kv_heads, padded, size)
        o = self._tiles.times_values(weights, values, slab.job_page, slab.runs)
        o = tree_sum(self._by_block(slab, o.view(jobs, kv_heads, padded, head_dim), 0.0))
        result = (o / l.unsqueeze(-1))[:, :, :rows].view(slab.blocks, kv_heads, block, group, head_dim)
        return result.transpose(1, 2).reshape(-1, kv_heads * group, head_dim).to(q.dtype)

    @staticmethod
    def _by_block(slab: _Slab, x: torch.Tensor, absent: float) -> torch.Tensor:
        """Arranges `[J, ...]` as `[B, T, ...]`, with `absent` in the place of tiles that a block does not have."""
        if slab.job_place is not None:
            places = x.new_full((slab.blocks * slab.tiles, *x.shape[1:]), absent)
            x = places.index_copy_(0, slab.job_place, x)
        return x.view(slab.blocks, slab.tiles, *x.shape[1:])


def soft_cap_(x: torch.Tensor, cap: float) -> torch.Tensor:
    """Makes `cap tanh(x / cap)` of float32 `x`, in place. The bits of tanh do not depend on the place of a number, and
    small ones keep all their digits; `1 - 2 / (1 + exp(2 x / cap))` would lose some."""
    return x.div_(cap).tanh_().mul_(cap)


def tree_sum(x: torch.Tensor) -> torch.Tensor:
    """Sums over dimension 1, neighbours first, so that zeros at the end change nothing; overwrites `x`."""
    while x.shape[1] > 1:
        pairs = x.shape[1] // 2 * 2
        x[:, 0:pairs:2] += x[:, 1:pairs:2]
        x = x[:, ::2]
    return x[:, 0]
