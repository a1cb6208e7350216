"""Attention to tokens that an indexer chooses, by the compiled library: what `selection.py` of the model says, but that
what is chosen is read where it lies (`native/selection.c`, `native/attention.c`).

Layers that are computed piece by piece, and those of one compiled call, share what is chosen: it is put in one place.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch

from tandem.worker.checkpoints.model_parts.heads import AttentionKind
from tandem.worker.model.attention import Scores, Segment
from tandem.worker.model.cpu.native import layers
from tandem.worker.model.kv_cache import KVCache
from tandem.worker.model.kv_formats import Parts
from tandem.worker.model.paged_plan import page_tables
from tandem.worker.model.selection import Far, divided

_MOST_SCORES = 1 << 21  # that are kept at once

WorkOf = Callable[[Sequence[Segment]], layers.AttentionWork]


class NativeSelectingPlan:
    """Plans one step's attention for all layers, of which one chooses before any attends."""

    def __init__(self, work_of: WorkOf, segments: Sequence[Segment], cache: KVCache, kind: AttentionKind) -> None:
        """`work_of` plans the attention of tokens that see all before them."""
        near, far = divided(segments, kind.most)
        rows = Far.of(far)
        self._format, self._latent = cache.shape.format.name, kind.heads.latent
        self.rows = sum(segment.length for segment in segments)
        self.work = work_of(near)
        self.chosen = np.empty((len(rows.rows), kind.most), dtype=np.int32)  # page * page_size + place in it
        blocks = np.zeros((len(rows.rows), 6), dtype=np.int32)
        blocks[:, 0], blocks[:, 1], blocks[:, 2] = rows.rows, 1, kind.most - 1
        blocks[:, 3] = np.arange(len(blocks))
        self.far = layers.AttentionWork(
            blocks, self.chosen, 1, len(blocks) * kind.most, 0, shares=self.work.shares, apart=True
        )
        positions, owners = rows.positions.astype(np.int32), rows.owners.astype(np.int32)
        tables = page_tables(far, cache.shape.page_size)
        self._kept = rows, positions, owners, tables  # what `choice` points at
        self.choice = layers.Choice(
            rows=rows.rows.ctypes.data,
            positions=positions.ctypes.data,
            owners=owners.ctypes.data,
            tables=tables.ctypes.data,
            chosen=self.chosen.ctypes.data,
            count=len(blocks),
            most=kind.most,
            width=tables.shape[1],
            page_size=cache.shape.page_size,
            most_scores=_MOST_SCORES,
            format=layers.FORMATS[str(cache.shape.index_dtype).removeprefix("torch.")],
        )

    @property
    def chooses(self) -> bool:
        """See `Selecting`."""
        return self.choice.count > 0

    def choose(self, keys: torch.Tensor, queries: torch.Tensor, weights: torch.Tensor) -> None:
        """See `Selecting`."""
        layers.choose(self.choice, keys, queries.float().contiguous(), weights.float().contiguous())

    def attend(self, keys: Parts, values: Parts, q: torch.Tensor, scores: Scores) -> torch.Tensor:
        """See `Plan`; values are the first numbers of keys."""
        out = torch.empty(q.shape) if len(q) == self.rows else torch.zeros(q.shape)
        wide = q.float()
        for work in (self.work, self.far):
            if len(work.blocks):
                layers.attention(work, self._format, keys, values, wide, scores, self._latent, out)
        return out.to(q.dtype)
