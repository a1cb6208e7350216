"""Stores keys and values in pages.

For each layer, keys and values are tensors `[pages + 1, kv_heads, page_size, ...]`. A page holds `page_size`
consecutive tokens of one sequence; within a page the tokens of one head lie together, so that a page is a ready operand
for a matrix product. The last page belongs to nobody: padding rows write there.

How one vector is stored is the business of `kv_formats.py`, which page holds what that of `engine/pages.py`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F

from tandem.worker.checkpoints import memory
from tandem.worker.checkpoints.model_parts.heads import KVHeads
from tandem.worker.model.kv_formats import KVFormat, Parts, Plain

# Bytes of pages that take as long to gather as a call of torch takes.
_WORTH_A_CALL = 96 << 10


class Hidden(NamedTuple):
    """What is kept of each token's hidden state behind the model's last norm, for a head that guesses (`head.py`)."""

    size: int  # numbers
    dtype: torch.dtype


@dataclass(frozen=True, slots=True)
class CacheShape:
    """The sizes that determine the cache's memory."""

    heads: tuple[KVHeads, ...]  # of each layer
    pages: int
    page_size: int
    format: KVFormat
    hidden: Hidden | None = None  # None: they are not kept

    @property
    def bytes_per_token(self) -> int:
        """Returns the bytes that one token takes over all layers."""
        beside = 0 if self.hidden is None else self.hidden.size * self.hidden.dtype.itemsize
        beside += sum(heads.index_size * heads.index_vectors for heads in self.heads) * self.index_dtype.itemsize
        return sum(self.layer_bytes(heads) * (1 if heads.latent else 2) for heads in self.heads) + beside

    @property
    def index_dtype(self) -> torch.dtype:
        """Returns what index keys are stored in: a plain dtype, that of keys where these are so."""
        plain = isinstance(self.format, Plain) and self.format.dtype.itemsize > 1
        return self.format.dtype if isinstance(self.format, Plain) and plain else torch.bfloat16

    def layer_bytes(self, heads: KVHeads) -> int:
        """Returns the bytes of one token's keys in a layer, without its index key."""
        return (
            heads.number * heads.vectors * sum(size * dtype.itemsize for size, dtype in self.format.parts(heads.size))
        )

    @property
    def bytes(self) -> int:
        """Returns the bytes that `KVCache` allocates, the padding page included."""
        return (self.pages + 1) * self.page_size * self.bytes_per_token


class KeyChannels(NamedTuple):
    """How keys of one layer are stored: as `(k - mean) / scale`; both `[kv_heads, head_dim]` fp32."""

    mean: torch.Tensor
    scale: torch.Tensor


class KVCache:
    """Holds keys and values of every layer, zero at first, index keys `[pages + 1, 1, page_size, index]` of layers that
    choose by them, and hidden states `[pages + 1, page_size, size]` where its shape has them. Where several vectors are
    kept of a token, they lie behind each other in the place of one.

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
        self.keys = [self._layer(heads) for heads in shape.heads]
        both = zip(shape.heads, self.keys, strict=True)
        self.values = [keys if heads.latent else self._layer(heads) for heads, keys in both]
        stored = {heads._replace(index_size=0, index_vectors=1) for heads in shape.heads}
        self.readers = {heads: TileReader(shape, heads, self.device) for heads in stored}
        plain = replace(shape, format=Plain(shape.index_dtype))
        sizes = {heads.index_size for heads in shape.heads if heads.index_size}
        self.index_readers = {size: TileReader(plain, KVHeads(1, size), self.device) for size in sizes}
        self.index_keys = {
            layer: torch.zeros(
                (shape.pages + 1, 1, shape.page_size * heads.index_vectors, heads.index_size),
                dtype=shape.index_dtype,
                device=self.device,
            )
            for layer, heads in enumerate(shape.heads)
            if heads.index_size
        }
        self.key_channels = key_channels
        self.hidden: torch.Tensor | None = None
        if shape.hidden is not None:
            size = (shape.pages + 1, shape.page_size, shape.hidden.size)
            self.hidden = torch.zeros(size, dtype=shape.hidden.dtype, device=self.device)

    def _layer(self, heads: KVHeads) -> Parts:
        shape = self.shape
        lead = (shape.pages + 1, heads.number, shape.page_size * heads.vectors)
        parts = [((*lead, size), dtype) for size, dtype in shape.format.parts(heads.size)]
        if self.device.type == "cpu":  # in huge pages: a head reads a little of many pages of the cache
            return tuple(memory.zeros(*part) for part in parts)
        return tuple(torch.zeros(size, dtype=dtype, device=self.device) for size, dtype in parts)

    @property
    def padding_page(self) -> int:
        """Returns the page that belongs to no sequence."""
        return self.shape.pages

    @property
    def allocated_bytes(self) -> int:
        """Returns the bytes of all tensors."""
        return sum(part.nbytes for part in self._parts())

    def _parts(self) -> list[torch.Tensor]:
        apart = [values for values, heads in zip(self.values, self.shape.heads, strict=True) if not heads.latent]
        hidden = [] if self.hidden is None else [self.hidden]
        return [part for layer in (*self.keys, *apart) for part in layer] + [*self.index_keys.values(), *hidden]

    def write(self, layer: int, slots: torch.Tensor, k: torch.Tensor, v: torch.Tensor | None) -> None:
        """Stores the keys and values `[N, kv_heads, head_dim]` of N tokens at `slots` `[2, N]` (page, place in it);
        keys alone where values are the first of their numbers."""
        if self.key_channels is not None:
            mean, scale = self.key_channels[layer]
            k = (k.float() - mean) / scale
        page, place = slots[0], slots[1]
        for stored, x in ((self.keys[layer], k), *([] if v is None else [(self.values[layer], v)])):
            for part, numbers in zip(stored, self.shape.format.encode(x), strict=True):
                part[page, :, place] = numbers

    def write_index_keys(self, layer: int, slots: torch.Tensor, k: torch.Tensor) -> None:
        """Stores the index keys `[N, index]` of N tokens at `slots` `[2, N]`."""
        self.index_keys[layer][slots[0], 0, slots[1]] = k.to(self.shape.index_dtype)

    def scale_queries(self, layer: int, q: torch.Tensor) -> torch.Tensor:
        """Scales queries `[N, heads, head_dim]`: over the stored keys they attend as `q` over the true ones.

        q . k = (q * scale) . stored + q . mean, and what is the same for every key is nothing to a softmax.
        """
        if self.key_channels is None:
            return q
        scale = self.key_channels[layer].scale
        grouped = q.view(q.shape[0], scale.shape[0], q.shape[1] // scale.shape[0], q.shape[-1])
        return (grouped * scale.unsqueeze(1)).view(q.shape).to(q.dtype)

    def values_of(self, layer: int, attended: torch.Tensor) -> torch.Tensor:
        """Returns what attention over the true keys gives `[N, heads, latent]`, of what it gives over the stored ones,
        where values are the first numbers of keys. Weights add up to 1, so that the mean is added once."""
        attended = attended[..., : self.shape.heads[layer].latent]
        if self.key_channels is None:
            return attended
        mean, scale = (each[0, : attended.shape[-1]] for each in self.key_channels[layer])
        return (attended.float() * scale + mean).to(attended.dtype)

    def copy(self, sources: Sequence[int], targets: Sequence[int]) -> None:
        """Copies whole pages. All are read before any is written, so that a target may be another's source."""
        source, target = self._index(sources), self._index(targets)
        for part in self._parts():
            part[target] = part[source]

    def zero(self, pages: Sequence[int]) -> None:
        """Clears pages whose numbers are not finite: a masked NaN would still poison the next owner (0 * NaN)."""
        index = self._index(pages)
        for part in self._parts():
            part[index] = 0

    def _index(self, pages: Sequence[int]) -> torch.Tensor:
        index = torch.tensor(pages, dtype=torch.int64)
        if self.device.type == "cuda":  # else the copy would be waited for, and with it all that was launched
            index = index.pin_memory()
        return index.to(self.device, non_blocking=True)


class Run(NamedTuple):
    """Pages that follow each other: those of the jobs `[job, job + length)` are `[page, page + length)`."""

    job: int
    page: int
    length: int


class TileReader:
    """Multiplies with pages, each a tile, without a copy of them where that can be.

    Its buffers are used again and again: fresh memory of this size would cost a page fault for every 4 KiB in every
    layer, which took longer than the copy itself. What a product returns holds until the next product of its kind.
    """

    def __init__(self, shape: CacheShape, heads: KVHeads, device: torch.device) -> None:
        stored = shape.format
        self._format = stored
        self._head_dim = heads.size
        # MKL gives every second row of 6 or 10 outputs other bits; it does not for multiples of 4.
        self._padding = -heads.size % 8 if heads.size % 4 else 0
        self._page_bytes = shape.layer_bytes(heads) * shape.page_size
        # Batched bf16 products of this size are five times slower than fp32 ones on a CPU.
        plain = stored.dtype if isinstance(stored, Plain) and stored.dtype.itemsize > 1 else torch.float32
        self.dtype = torch.float32 if device.type == "cpu" else plain
        self._as_it_is = isinstance(stored, Plain) and stored.dtype == self.dtype
        self._device = device
        self._buffers: dict[str, torch.Tensor] = {}

    def runs(self, pages: npt.NDArray[np.int64]) -> list[Run] | None:
        """Groups `pages` `[jobs]` into runs; None if they are gathered, which may cost less than a call a run."""
        if self._padding:  # which takes a copy
            return None
        starts = np.concatenate([[0], np.flatnonzero(np.diff(pages) != 1) + 1])
        if len(starts) > 1 and len(pages) * self._page_bytes < len(starts) * _WORTH_A_CALL:
            return None
        counts = np.diff(starts, append=len(pages))
        return [Run(*run) for run in zip(starts.tolist(), pages[starts].tolist(), counts.tolist(), strict=True)]

    def times_keys(self, rows: torch.Tensor, layer: Parts, pages: torch.Tensor, runs: list[Run] | None) -> torch.Tensor:
        """Multiplies `rows` `[jobs * kv_heads, n, head_dim]` with each job's keys: `[jobs * kv_heads, n, page_size]`,
        float32."""
        return self._product("scores", rows, layer, pages, runs, transpose=True)

    def times_values(
        self, rows: torch.Tensor, layer: Parts, pages: torch.Tensor, runs: list[Run] | None
    ) -> torch.Tensor:
        """Multiplies `rows` `[jobs * kv_heads, n, page_size]` with each job's values: `[jobs * kv_heads, n, head_dim]`,
        float32."""
        return self._product("outputs", rows, layer, pages, runs, transpose=False)

    def taken(self, layer: Parts, places: torch.Tensor) -> Parts:
        """Copies what a layer of one kv head has at `places` `[rows, n]` (page * page_size + place in it), n being a
        multiple of page_size, into pages of their own, n / page_size a row; they hold until the next call."""
        size, flat = layer[0].shape[2], places.reshape(-1)
        copies = []
        for i, part in enumerate(layer):
            room = self._room(f"taken {i}", (len(flat), part.shape[-1]), part.dtype)
            torch.index_select(part.view(-1, part.shape[-1]), 0, flat, out=room)
            copies.append(room.view(-1, 1, size, part.shape[-1]))
        return tuple(copies)

    def _product(
        self,
        name: str,
        rows: torch.Tensor,
        layer: Parts,
        pages: torch.Tensor,
        runs: list[Run] | None,
        *,
        transpose: bool,
    ) -> torch.Tensor:
        kv_heads, page_size = layer[0].shape[1:3]
        width = self._head_dim + self._padding
        out = self._room(name, (*rows.shape[:2], page_size if transpose else width), self.dtype)
        rows = rows.to(self.dtype)
        if self._padding and transpose:
            rows = F.pad(rows, (0, self._padding))
        if self._as_it_is and runs is not None:
            for job, page, length in runs:
                tiles = layer[0][page : page + length].flatten(0, 1)
                part = slice(job * kv_heads, (job + length) * kv_heads)
                torch.bmm(rows[part], tiles.transpose(1, 2) if transpose else tiles, out=out[part])
        else:
            tiles = self._gather(layer, pages, runs).flatten(0, 1)
            if self._padding:
                tiles = F.pad(tiles, (0, self._padding))
            torch.bmm(rows, tiles.transpose(1, 2) if transpose else tiles, out=out)
        return out.float() if transpose or not self._padding else out[..., : self._head_dim].float().contiguous()

    def _gather(self, layer: Parts, pages: torch.Tensor, runs: list[Run] | None) -> torch.Tensor:
        """Gathers pages `[jobs, kv_heads, page_size, head_dim]` in the dtype of the products."""
        size = (len(pages), *layer[0].shape[1:3], self._head_dim)
        if self._as_it_is:
            return torch.index_select(layer[0], 0, pages, out=self._room("pages", size, self.dtype))
        decoded = self._room("decoded", size, self.dtype)
        if runs is not None:
            for job, page, length in runs:
                self._format.decode(tuple(part[page : page + length] for part in layer), decoded[job : job + length])
            return decoded
        parts = tuple(
            torch.index_select(part, 0, pages, out=self._room(f"part {i}", (len(pages), *part.shape[1:]), part.dtype))
            for i, part in enumerate(layer)
        )
        return self._format.decode(parts, decoded)

    def _room(self, name: str, size: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        """Returns the buffer of that name, as a tensor of that size."""
        count = math.prod(size)
        buffer = self._buffers.get(name)
        if buffer is None or buffer.numel() < count or buffer.dtype != dtype:
            buffer = self._buffers[name] = torch.empty(count, dtype=dtype, device=self._device)
        return buffer[:count].view(size)
