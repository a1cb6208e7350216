"""The paged key and value cache.

For each layer, keys and values are tensors `[pages + 1, kv_heads, page_size, ...]`. A page holds `page_size`
consecutive tokens of one sequence; within a page the tokens of one head lie together, so that a page is a ready operand
for a matrix product. The last page belongs to nobody: padding rows write there.

How one vector is stored is the business of `kv_formats.py`, which page holds what that of `engine/pages.py`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch

from worker_svc.model.kv_formats import KVFormat, Parts, Plain


@dataclass(frozen=True, slots=True)
class CacheShape:
    """The sizes that determine the cache's memory."""

    layers: int
    pages: int
    page_size: int
    kv_heads: int
    head_dim: int
    format: KVFormat

    @property
    def bytes_per_token(self) -> int:
        """Bytes of keys and values of one token over all layers."""
        vector = sum(size * dtype.itemsize for size, dtype in self.format.parts(self.head_dim))
        return 2 * self.layers * self.kv_heads * vector

    @property
    def bytes(self) -> int:
        """Bytes that `KVCache` allocates, the padding page included."""
        return (self.pages + 1) * self.page_size * self.bytes_per_token


class KeyChannels(NamedTuple):
    """How keys of one layer are stored: as `(k - mean) / scale`; both `[kv_heads, head_dim]` fp32."""

    mean: torch.Tensor
    scale: torch.Tensor


class KVCache:
    """Keys and values of every layer, zero at first.

    With `key_channels`, one entry a layer, keys are stored normalized.
    """

    def __init__(
        self,
        shape: CacheShape,
        device: torch.device | str,
        key_channels: Sequence[KeyChannels] | None = None,
    ) -> None:
        self.shape = shape
        self.device = torch.device(device)
        self.keys = [self._layer() for _ in range(shape.layers)]
        self.values = [self._layer() for _ in range(shape.layers)]
        self.reader = TileReader(shape.format, self.device)
        self._key_channels = key_channels

    def _layer(self) -> Parts:
        shape = self.shape
        lead = (shape.pages + 1, shape.kv_heads, shape.page_size)
        return tuple(
            torch.zeros((*lead, size), dtype=dtype, device=self.device)
            for size, dtype in shape.format.parts(shape.head_dim)
        )

    @property
    def padding_page(self) -> int:
        """The page that belongs to no sequence."""
        return self.shape.pages

    @property
    def allocated_bytes(self) -> int:
        """Bytes of all tensors."""
        return sum(part.nbytes for layer in (*self.keys, *self.values) for part in layer)

    def write(self, layer: int, slots: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> None:
        """Stores the keys and values `[N, kv_heads, head_dim]` of N tokens at `slots` `[2, N]` (page, place in it)."""
        if self._key_channels is not None:
            mean, scale = self._key_channels[layer]
            k = (k.float() - mean) / scale
        page, place = slots[0], slots[1]
        for stored, x in ((self.keys[layer], k), (self.values[layer], v)):
            for part, numbers in zip(stored, self.shape.format.encode(x), strict=True):
                part[page, :, place] = numbers

    def scale_queries(self, layer: int, q: torch.Tensor) -> torch.Tensor:
        """Queries `[N, heads, head_dim]` that give the same attention over the stored keys as `q` over the true ones.

        q . k = (q * scale) . stored + q . mean, and what is the same for every key is nothing to a softmax.
        """
        if self._key_channels is None:
            return q
        scale = self._key_channels[layer].scale
        grouped = q.view(q.shape[0], scale.shape[0], -1, q.shape[-1])
        return (grouped * scale.unsqueeze(1)).view(q.shape).to(q.dtype)

    def copy(self, sources: Sequence[int], targets: Sequence[int]) -> None:
        """Copies whole pages. All are read before any is written, so that a target may be another's source."""
        source, target = self._index(sources), self._index(targets)
        for layer in (*self.keys, *self.values):
            for part in layer:
                part[target] = part[source]

    def zero(self, pages: Sequence[int]) -> None:
        """Clears pages whose numbers are not finite: a masked NaN would still poison the next owner (0 * NaN)."""
        index = self._index(pages)
        for layer in (*self.keys, *self.values):
            for part in layer:
                part[index] = 0

    def _index(self, pages: Sequence[int]) -> torch.Tensor:
        return torch.as_tensor(list(pages), dtype=torch.int64, device=self.device)


class TileReader:
    """Gives pages as operands of a batched matrix product, without a copy where that can be.

    Its buffers are used again and again: fresh memory of this size would cost a page fault for every 4 KiB in every
    layer, which took longer than the copy itself. What `gather` returns holds until the next call.
    """

    def __init__(self, stored: KVFormat, device: torch.device) -> None:
        self._format = stored
        # Batched bf16 products of this size are five times slower than fp32 ones on a CPU.
        plain = stored.dtype if isinstance(stored, Plain) else torch.float32
        self.dtype = torch.float32 if device.type == "cpu" else plain
        self._as_it_is = isinstance(stored, Plain) and stored.dtype == self.dtype
        self._gathered: list[torch.Tensor] = []
        self._decoded = torch.empty(0)

    def gather(self, layer: Parts, pages: torch.Tensor, first: int | None, head_dim: int) -> torch.Tensor:
        """Pages of one layer's keys or values as `[pages * kv_heads, page_size, head_dim]`; `first` is given if they
        are `first`, `first + 1`, ..."""
        count = pages.shape[0]
        if first is not None:
            parts = tuple(part[first : first + count] for part in layer)
        else:
            while len(self._gathered) < len(layer):
                self._gathered.append(torch.empty(0))
            for place, part in enumerate(layer):
                self._gathered[place] = _room(self._gathered[place], count * part[0].numel(), part.dtype, part.device)
            parts = tuple(
                torch.index_select(part, 0, pages, out=_shaped(room, (count, *part.shape[1:])))
                for part, room in zip(layer, self._gathered, strict=False)
            )
        if self._as_it_is:
            return parts[0].view(-1, *parts[0].shape[2:])
        size = (*parts[0].shape[:3], head_dim)
        self._decoded = _room(self._decoded, math.prod(size), self.dtype, parts[0].device)
        return self._format.decode(parts, _shaped(self._decoded, size)).view(-1, *size[2:])


def _room(buffer: torch.Tensor, count: int, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """The buffer, or a larger one."""
    if buffer.dtype == dtype and buffer.device == device and buffer.numel() >= count:
        return buffer
    return torch.empty(count, dtype=dtype, device=device)


def _shaped(buffer: torch.Tensor, size: tuple[int, ...]) -> torch.Tensor:
    return buffer[: math.prod(size)].view(size)
