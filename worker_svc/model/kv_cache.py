"""The paged key and value cache.

One tensor a layer for keys and one for values, `[pages + 1, kv_heads, page_size, head_dim]`. A page holds `page_size`
consecutive tokens of one sequence; within a page the tokens of one head lie together, so that a page is a ready
operand for a matrix product. The last page belongs to nobody: padding rows write there.

Which page holds what is the page table's business (`engine/pages.py`); this file only stores.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True)
class CacheShape:
    """The sizes that determine the cache's memory."""

    layers: int
    pages: int
    page_size: int
    kv_heads: int
    head_dim: int
    dtype: torch.dtype

    @property
    def bytes_per_token(self) -> int:
        """Bytes of keys and values of one token over all layers."""
        return 2 * self.layers * self.kv_heads * self.head_dim * self.dtype.itemsize

    @property
    def bytes(self) -> int:
        """Bytes that `KVCache` allocates, the padding page included."""
        return (self.pages + 1) * self.page_size * self.bytes_per_token


class KVCache:
    """Keys and values of every layer, zero at first."""

    def __init__(self, shape: CacheShape, device: torch.device | str) -> None:
        self.shape = shape
        size = (shape.pages + 1, shape.kv_heads, shape.page_size, shape.head_dim)
        self.keys = [torch.zeros(size, dtype=shape.dtype, device=device) for _ in range(shape.layers)]
        self.values = [torch.zeros(size, dtype=shape.dtype, device=device) for _ in range(shape.layers)]
        self.reader = TileReader(torch.float32 if torch.device(device).type == "cpu" else shape.dtype)

    @property
    def padding_page(self) -> int:
        """The page that belongs to no sequence."""
        return self.shape.pages

    def write(self, layer: int, slots: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> None:
        """Stores the keys and values `[N, kv_heads, head_dim]` of N tokens at `slots` `[2, N]` (page, place in it)."""
        page, place = slots[0], slots[1]
        self.keys[layer][page, :, place] = k
        self.values[layer][page, :, place] = v

    def zero(self, pages: Sequence[int]) -> None:
        """Clears pages whose numbers are not finite: a masked NaN would still poison the next owner (0 * NaN)."""
        index = torch.as_tensor(list(pages), dtype=torch.int64, device=self.keys[0].device)
        for tensor in (*self.keys, *self.values):
            tensor[index] = 0


class TileReader:
    """Gathers pages as operands of a batched matrix product.

    Its buffers are used again and again: fresh memory of this size would cost a page fault for every 4 KiB in every
    layer, which took longer than the copy itself. What it returns holds until the next call.
    """

    def __init__(self, dtype: torch.dtype) -> None:
        self.dtype = dtype  # of what it returns
        self._stored = torch.empty(0)
        self._converted = torch.empty(0)

    def gather(self, layer: torch.Tensor, pages: torch.Tensor) -> torch.Tensor:
        """Pages of one layer's keys or values as `[pages * kv_heads, page_size, head_dim]`."""
        size = (pages.shape[0], *layer.shape[1:])
        self._stored = _room(self._stored, size, layer.dtype, layer.device)
        tiles = torch.index_select(layer, 0, pages, out=self._stored[: math.prod(size)].view(size))
        if layer.dtype != self.dtype:
            self._converted = _room(self._converted, size, self.dtype, layer.device)
            tiles = self._converted[: math.prod(size)].view(size).copy_(tiles)
        return tiles.view(-1, *size[2:])


def _room(buffer: torch.Tensor, size: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """The buffer, or a larger one."""
    if buffer.dtype == dtype and buffer.numel() >= math.prod(size):
        return buffer
    return torch.empty(math.prod(size), dtype=dtype, device=device)
