"""A model of random weights, and its decode step without anything that makes its bits independent of the batch: what
reproducibility is measured against. Keys lie densely, or in pages that are gathered, as an engine with pages must."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import numpy as np
import torch
import torch.nn.functional as F

from tandem.worker.checkpoints.model_config import ModelConfig
from tandem.worker.model.attention import Scores
from tandem.worker.model.kv_cache import CacheShape, KVCache
from tandem.worker.model.kv_formats import Parts, kv_format
from tandem.worker.model.operations import TorchOperations
from tandem.worker.model.rope import rotate
from tandem.worker.model.row_invariance import choose_padding
from tandem.worker.model.runner import ModelRunner
from tandem.worker.model.transformer import Transformer
from tandem.worker.model.unfinished import FINISHED, Unfinished
from tandem.worker.model.weights import WeightFiller
from tandem.worker.model.work import Work


class UnpagedOperations(TorchOperations):
    """Keeps keys and values of sequences of equal length as `[B, kv_heads, length, head_dim]`, and attends to them by
    one batched product with softmax, while `length` is set; else torch's own operations over pages.

    Of the `kind` "paged", keys and values are written to pages and read from there, one gathering for each."""

    def __init__(self) -> None:
        self.length = 0  # tokens of each sequence, the one that is computed included
        self.kind = "bmm"
        self.places = torch.empty(0, dtype=torch.int64)  # [batch, kv_heads, pages]: page * kv_heads + head
        self._keys: list[torch.Tensor] = []
        self._values: list[torch.Tensor] = []
        self._layer = 0

    def make_room(self, config: ModelConfig, dtype: torch.dtype, batch: int, length: int) -> None:
        """Random keys and values of `length` tokens a sequence."""
        size = (batch, config.num_kv_heads, length, config.head_dim)
        self._keys = [torch.randn(size).to(dtype) for _ in range(config.num_layers)]
        self._values = [torch.randn(size).to(dtype) for _ in range(config.num_layers)]

    def rotate_and_store(
        self,
        qkv: torch.Tensor,
        rotation: tuple[torch.Tensor, torch.Tensor],
        cache: KVCache,
        layer: int,
        slots: torch.Tensor | None,
        first: Unfinished = FINISHED,
    ) -> torch.Tensor:
        self._layer = layer
        if not self.length or self.kind == "paged":
            return super().rotate_and_store(qkv, rotation, cache, layer, slots, first)
        kv_heads = cache.shape.heads[layer].number
        heads = qkv.shape[1] - 2 * kv_heads
        qk = rotate(qkv[:, : heads + kv_heads], *rotation)
        self._keys[layer][: len(qkv), :, self.length - 1] = qk[:, heads:]
        self._values[layer][: len(qkv), :, self.length - 1] = qkv[:, heads + kv_heads :]
        return qk[:, :heads]

    def attend(self, keys: Parts, values: Parts, q: torch.Tensor, scores: Scores) -> torch.Tensor:
        """A `Plan`: one query a sequence, `[B, heads, head_dim]`."""
        batch = len(q)
        if self.kind == "paged":
            k, v = (self._gathered(part[0]) for part in (keys, values))
            return self._product(q, k, v, scores.scale)
        k, v = (stored[self._layer][:batch, :, : self.length] for stored in (self._keys, self._values))
        if self.kind == "sdpa":
            return F.scaled_dot_product_attention(q.unsqueeze(2), k, v, scale=scores.scale, enable_gqa=True).squeeze(2)
        return self._product(q, k, v, scores.scale)

    def _gathered(self, pages: torch.Tensor) -> torch.Tensor:
        """`[pages, kv_heads, page_size, head_dim]` as `[batch, kv_heads, length, head_dim]`."""
        batch, kv_heads, _ = self.places.shape
        gathered = pages.flatten(0, 1).flatten(1).index_select(0, self.places.flatten())
        return gathered.view(batch, kv_heads, -1, pages.shape[-1])[:, :, : self.length]

    @staticmethod
    def _product(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float) -> torch.Tensor:
        batch, heads, head_dim = q.shape
        rows = q.reshape(batch * k.shape[1], heads // k.shape[1], head_dim)
        scores = torch.bmm(rows, k.flatten(0, 1).transpose(1, 2)) * scale
        weights = torch.softmax(scores.float(), dim=-1).to(q.dtype)
        return torch.bmm(weights, v.flatten(0, 1)).view(batch, heads, head_dim)


class RandomModel:
    """Both ways to one decode step of one model."""

    def __init__(
        self, config: ModelConfig, dtype: torch.dtype, *, batch: int, length: int, page_size: int = 64
    ) -> None:
        self.operations = UnpagedOperations()
        self.model = Transformer(config, "cpu", dtype, self.operations)
        filler = WeightFiller("cpu", dtype)
        places = self.model.destinations()
        torch.manual_seed(0)
        for name, shape in config.tensor_shapes().items():
            filler.fill(places[name].module, places[name].row, torch.randn(shape) * 0.02, lambda _: None)
        self.each = -(-length // page_size)  # pages
        pages = batch * self.each
        stored = kv_format("auto", dtype)
        cache = CacheShape(config.cache_heads, pages, page_size, stored)
        self.runner = ModelRunner(self.model, KVCache(cache, "cpu"))
        self.row_invariant = choose_padding(self.runner)
        self.operations.make_room(config, dtype, batch, length)

    def reproducible_step(self, ids: np.ndarray, position: int) -> np.ndarray:
        """The engine's: pages that grew side by side, so that neighbours belong to different sequences."""
        batch = len(ids)
        pages = self._pages(batch)
        self.operations.length = 0
        logits = self.runner.forward([Work(ids[i : i + 1], position, pages[i], 1) for i in range(batch)])
        return logits[:batch].argmax(-1).numpy().astype(np.int32)

    def _pages(self, batch: int) -> np.ndarray:
        return np.arange(self.each)[None, :] * batch + np.arange(batch)[:, None]

    @torch.inference_mode()
    def plain_step(self, ids: np.ndarray, position: int, kind: str) -> np.ndarray:
        """No padding, and no pages but with the kind "paged"."""
        self.operations.length, self.operations.kind = position + 1, kind
        batch = len(ids)
        plans = dict.fromkeys(self.model.config.attention_kinds, self.operations)
        pages, size = torch.from_numpy(self._pages(batch)), self.runner.cache.shape.page_size
        kv_heads = self.model.config.num_kv_heads
        self.operations.places = pages[:, None, :] * kv_heads + torch.arange(kv_heads)[:, None]
        slots = torch.stack([pages[:, position // size], torch.full((batch,), position % size)])
        logits = self.model(
            torch.from_numpy(ids.astype(np.int64)),
            torch.full((batch,), position),
            self.runner.cache,
            slots,
            plans,
            torch.arange(batch),
        )
        return logits.argmax(-1).numpy().astype(np.int32)
