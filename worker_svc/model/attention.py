"""Causal attention over pages, whose bits do not depend on the batch.

The rule. A query attends to one page of keys (a *tile*) at a time, from position 0 on:

    m = max s          s = scale * q . k  over the tile, masked above the query's position
    l = sum exp(s - m)
    o = exp(s - m) . v

and the tiles of a query are combined pairwise as a balanced tree over the tile numbers, (0,1) (2,3) ..., with

    (m1, l1, o1) + (m2, l2, o2) = (m, l1 e^(m1-m) + l2 e^(m2-m), o1 e^(m1-m) + o2 e^(m2-m)),   m = max(m1, m2)

An empty tile is (-inf, 0, 0), which adds exactly nothing, so the tree may be padded to any width. A query's result is
therefore the same whether it comes as one decode row or in the middle of a prefill, in any chunking and any
company, if a row of a batched matrix product does not depend on the other rows. That holds for row counts that are
multiples of 4 (fp32 and bf16, MKL and oneDNN; other machines: the runner's self-check measures it).

Queries come in blocks of consecutive tokens of one sequence: 1 token for decodes, PREFILL_BLOCK for prefills. A (block,
tile) pair is a *job*; all jobs of a step are one batched product, in slabs of bounded memory. No loop over requests.
A slab of one long context whose pages follow each other reads them where they lie.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from worker_svc.model.kv_cache import KVCache
from worker_svc.model.kv_formats import Parts

LONG_TILES = 8  # a block that looks at so many tiles gets a slab of its own
PREFILL_BLOCK = 16  # query tokens; larger blocks gather a page less often and waste more on short prompts
SLAB_FLOATS = 1 << 20  # numbers in the largest operand of a slab: 4 MiB stay in a core's cache between two products
ROW_MULTIPLE = 4  # rows of a matrix product come in multiples of this
_TINY_PRODUCT = 400  # torch computes batched products of fewer multiplications than this in another order


@dataclass(frozen=True, slots=True)
class Segment:
    """Consecutive tokens of one sequence that a step computes.

    `row` is the first one's row in the step's batch, `position` its place in the sequence, and
    `pages` the sequence's pages `[>= ceil((position + length) / page_size)]`.
    """

    row: int
    length: int
    position: int
    pages: npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class _Slab:
    """Jobs that are computed at once; `B` blocks of `Q` query tokens, `J` jobs, `T` tiles a block at most."""

    query_rows: torch.Tensor  # [B * Q] rows of the batch
    job_block: torch.Tensor  # [J]
    job_page: torch.Tensor  # [J]
    first_page: int | None  # the jobs' pages are this one and those that follow it
    job_place: torch.Tensor  # [J] block * T + tile, where T is a power of two
    mask: torch.Tensor  # [J, 1, Q, 1, page_size] true where a query must not look
    tiles: int  # T
    output_rows: torch.Tensor  # rows of the batch that this slab answers
    output_places: torch.Tensor  # where they lie in the slab's [B * Q]
    block: int  # Q


class AttentionPlan:
    """What one step's attention does, worked out once and used by every layer."""

    def __init__(self, segments: Sequence[Segment], cache: KVCache, num_heads: int, window: int = 0) -> None:
        """With `window`, a token sees itself and the `window - 1` tokens before it; 0: all of them."""
        shape = cache.shape
        self._kv_heads = shape.kv_heads
        self._group = num_heads // shape.kv_heads
        self._page_size = shape.page_size
        self._device = cache.device
        self._window = window
        smallest = -(-_TINY_PRODUCT // (shape.page_size * shape.head_dim))
        self._row_multiple = -(-max(smallest, 1) // ROW_MULTIPLE) * ROW_MULTIPLE
        decodes = [segment for segment in segments if segment.length == 1]
        prefills = [segment for segment in segments if segment.length > 1]
        self._slabs = [
            *self._plan(decodes, 1, num_heads, shape.head_dim),
            *self._plan(prefills, PREFILL_BLOCK, num_heads, shape.head_dim),
        ]
        self._tiles = cache.reader

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
            longs = np.flatnonzero(tiles[first:last] >= LONG_TILES)
            if longs.size:
                last = first + max(1, int(longs[0]))
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
        width = 1 << int(tiles.max() - 1).bit_length()
        job_block = np.repeat(np.arange(blocks), tiles)
        job_tile = np.arange(len(job_block)) - np.repeat(np.cumsum(tiles) - tiles, tiles)
        pages = np.concatenate([segments[o].pages[:t] for o, t in zip(owner, tiles, strict=True)])
        token = np.arange(block)
        real = token < count[:, None]  # [B, Q]
        # A place behind the block's end repeats its last token, so that it computes something harmless.
        inner = np.minimum(token, count[:, None] - 1)
        query_position = position[:, None] + inner
        key_position = job_tile[:, None] * size + np.arange(size)  # [J, page_size]
        queries = query_position[job_block][:, :, None]
        mask = key_position[:, None, :] > queries  # [J, Q, page_size]
        if self._window:
            mask |= key_position[:, None, :] <= queries - self._window
        places = np.flatnonzero(real)
        tensor = self._tensor
        return _Slab(
            query_rows=tensor((row[:, None] + inner).reshape(-1)),
            job_block=tensor(job_block),
            job_page=tensor(pages),
            first_page=int(pages[0]) if (np.diff(pages) == 1).all() else None,
            job_place=tensor(job_block * width + job_tile),
            mask=tensor(mask)[:, None, :, None, :],
            tiles=width,
            output_rows=tensor((row[:, None] + token)[real]),
            output_places=tensor(places),
            block=block,
        )

    def _tensor(self, array: npt.NDArray[np.generic]) -> torch.Tensor:
        return torch.from_numpy(np.ascontiguousarray(array)).to(self._device, non_blocking=True)

    def attend(self, keys: Parts, values: Parts, q: torch.Tensor, scale: float) -> torch.Tensor:
        """Attention of queries `q` `[N, heads, head_dim]` over one layer's pages; rows of no segment give zeros."""
        out = torch.zeros_like(q)
        for slab in self._slabs:
            result = self._attend_slab(slab, keys, values, q, scale)  # [B * Q, heads, head_dim]
            out[slab.output_rows] = result.index_select(0, slab.output_places)
        return out

    def _attend_slab(self, slab: _Slab, keys: Parts, values: Parts, q: torch.Tensor, scale: float) -> torch.Tensor:
        kv_heads, group, block, size = self._kv_heads, self._group, slab.block, self._page_size
        head_dim = q.shape[-1]
        jobs, rows = slab.job_block.shape[0], block * group
        padding = -rows % self._row_multiple

        # Queries as rows (token, group) of each block and kv head: [B, kv_heads, rows, head_dim].
        blocks = q.index_select(0, slab.query_rows).to(self._tiles.dtype) * scale
        blocks = blocks.view(-1, block, kv_heads, group, head_dim).transpose(1, 2).reshape(-1, kv_heads, rows, head_dim)
        if padding:
            blocks = torch.nn.functional.pad(blocks, (0, 0, 0, padding))
        padded = rows + padding

        job_queries = blocks.index_select(0, slab.job_block).view(jobs * kv_heads, padded, head_dim)
        job_keys = self._tiles.gather(keys, slab.job_page, slab.first_page, head_dim)
        scores = torch.bmm(job_queries, job_keys.transpose(1, 2)).float()
        if padding:
            scores = scores[:, :rows]
        scores = scores.reshape(jobs, kv_heads, block, group, size)
        scores.masked_fill_(slab.mask, float("-inf"))

        # A query that sees nothing of a tile has m = -inf there; exp(-inf - finite) is the 0 that is wanted.
        m = scores.amax(-1)  # [J, kv_heads, Q, group]
        scores.sub_(m.clamp_min(torch.finfo(torch.float32).min).unsqueeze(-1)).exp_()
        l = scores.sum(-1)
        weights = scores.view(jobs * kv_heads, rows, size).to(self._tiles.dtype)
        if padding:
            weights = torch.nn.functional.pad(weights, (0, 0, 0, padding))
        job_values = self._tiles.gather(values, slab.job_page, slab.first_page, head_dim)
        o = torch.bmm(weights, job_values)[:, :rows].float().view(jobs, kv_heads, block, group, head_dim)

        if slab.tiles > 1:
            m, l, o = self._combine(slab, m, l, o)
        result = o / l.unsqueeze(-1)
        return result.transpose(1, 2).reshape(-1, kv_heads * group, head_dim).to(q.dtype)

    def _combine(
        self, slab: _Slab, m: torch.Tensor, l: torch.Tensor, o: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Adds up the tiles of each block as a balanced tree: `[J, ...]` to `[B, ...]`."""
        places = slab.query_rows.shape[0] // slab.block * slab.tiles
        lowest = torch.finfo(torch.float32).min  # stands for -inf: its weight against any real tile is 0
        tree_m = m.new_full((places, *m.shape[1:]), lowest).index_copy_(0, slab.job_place, m.clamp_min(lowest))
        tree_l = l.new_zeros((places, *l.shape[1:])).index_copy_(0, slab.job_place, l)
        tree_o = o.new_zeros((places, *o.shape[1:])).index_copy_(0, slab.job_place, o)
        while tree_m.shape[0] > places // slab.tiles:
            top = torch.maximum(tree_m[0::2], tree_m[1::2])
            left, right = (tree_m[0::2] - top).exp_(), (tree_m[1::2] - top).exp_()
            tree_l = tree_l[0::2] * left + tree_l[1::2] * right
            tree_o = tree_o[0::2] * left.unsqueeze(-1) + tree_o[1::2] * right.unsqueeze(-1)
            tree_m = top
        return tree_m, tree_l, tree_o
