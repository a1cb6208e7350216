"""Random ragged batches over scattered pages, in which everything that must not be read is NaN."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from tandem.worker.checkpoints.model_parts.heads import AttentionKind, KVHeads
from tandem.worker.model.attention import Scores, Segment
from tandem.worker.model.cuda.operations import TritonOperations
from tandem.worker.model.kv_cache import CacheShape, KeyChannels, KVCache
from tandem.worker.model.kv_formats import KVFormat
from tandem.worker.model.operations import TorchOperations
from tests.worker_svc.model.cuda.kernels.attention_reference import attention
from tests.worker_svc.model.cuda.kernels.conftest import DEVICE


@dataclass
class Scene:
    """Sequences of given lengths, stored in pages; `qkv` are the projections of all of their tokens."""

    cache: KVCache
    heads: int
    lengths: Sequence[int]
    pages: list[np.ndarray]
    q: torch.Tensor  # [sum of lengths, heads, head_dim]
    qkv: torch.Tensor  # over latents, of one head that is key and value
    rotation: tuple[torch.Tensor, torch.Tensor]
    slots: torch.Tensor

    @staticmethod
    def make(
        lengths: Sequence[int],
        stored: KVFormat,
        *,
        heads: int = 4,
        kv_heads: int = 2,
        head_dim: int = 64,
        page_size: int = 16,
        dtype: torch.dtype = torch.float32,
        channels: bool = False,
        latent: int = 0,
        seed: int = 0,
    ) -> Scene:
        generator = np.random.default_rng(seed)
        torch.manual_seed(seed)
        counts = [-(-length // page_size) for length in lengths]
        shape = CacheShape((KVHeads(kv_heads, head_dim, latent),), sum(counts) + 5, page_size, stored)
        normalized = None
        if channels:
            normalized = [
                KeyChannels(torch.randn(kv_heads, head_dim).to(DEVICE), torch.rand(kv_heads, head_dim).to(DEVICE) + 0.5)
            ]
        cache = KVCache(shape, DEVICE, normalized)
        poison(cache)
        scattered = generator.permutation(shape.pages)
        pages, slots = [], []
        for length, count in zip(lengths, counts, strict=True):
            own, scattered = scattered[:count].astype(np.int64), scattered[count:]
            pages.append(own)
            place = np.arange(length)
            slots.append(np.stack([own[place // page_size], place % page_size]))
        rows = sum(lengths)
        there = torch.from_numpy(np.concatenate(slots, 1)).to(DEVICE)
        qkv = torch.randn(rows, heads + (1 if latent else 2 * kv_heads), head_dim).to(dtype).to(DEVICE)
        angle = torch.rand(rows, 1, head_dim // 2, device=DEVICE) * 6
        rotation = torch.cat([angle.cos()] * 2, -1), torch.cat([-angle.sin(), angle.sin()], -1)
        scene = Scene(cache, heads, lengths, pages, qkv[:, :heads].contiguous(), qkv, rotation, there)
        if latent:
            cache.write(0, there, qkv[:, heads:], None)
            return scene
        scene.q = TorchOperations().rotate_and_store(qkv.clone(), rotation, cache, 0, there).contiguous()
        return scene

    @property
    def scale(self) -> float:
        return self.q.shape[-1] ** -0.5

    def batch(self, parts: Sequence[tuple[int, int, int]]) -> tuple[list[Segment], torch.Tensor]:
        """Tokens `start` to `end` of sequences, `(sequence, start, end)`, with a row of nobody between two of them."""
        segments: list[Segment] = []
        rows: list[torch.Tensor] = []
        row = 0
        for sequence, start, end in parts:
            first = sum(self.lengths[:sequence])
            segments.append(Segment(row, end - start, start, self.pages[sequence]))
            rows += [self.q[first + start : first + end], torch.full_like(self.q[:1], float("nan"))]
            row += end - start + 1
        return segments, torch.cat(rows)

    def attend(
        self,
        operations: TritonOperations,
        parts: Sequence[tuple[int, int, int]],
        window: int = 0,
        cap: float = 0.0,
        sinks: torch.Tensor | None = None,
    ) -> list[torch.Tensor]:
        """What each part's queries get, by the kernels."""
        segments, q = self.batch(parts)
        kind = AttentionKind(window, self.cache.shape.heads[0])
        out = operations.plan(segments, self.cache, self.heads, kind).attend(
            self.cache.keys[0], self.cache.values[0], q, Scores(self.scale, cap, sinks)
        )
        return [out[s.row : s.row + s.length] for s in segments]

    def exact(
        self,
        parts: Sequence[tuple[int, int, int]],
        window: int = 0,
        cap: float = 0.0,
        sinks: torch.Tensor | None = None,
    ) -> list[torch.Tensor]:
        """The same in float64."""
        segments, q = self.batch(parts)
        shape = self.cache.shape
        out = attention(
            q, self.cache.keys[0], self.cache.values[0], shape.format, segments, self.scale, window, cap, sinks
        )[..., : shape.heads[0].latent or q.shape[-1]]
        return [out[s.row : s.row + s.length] for s in segments]


def poison(cache: KVCache) -> None:
    """Fills the pages with what spoils every result that looks at it."""
    for layer in (*cache.keys, *cache.values):
        for part in layer:
            part.fill_(float("nan") if part.dtype.is_floating_point else 85)
