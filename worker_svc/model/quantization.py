"""Weights as small integers in groups along the input dimension.

    int8    w = scale q            q from -127 to 127 (a file may have -128); one scale a group or an output channel
    int4    w = scale q + least    q from 0 to 15; one scale and one least number a group of 32, 64 or 128

On a CPU with compiled products (`native`) a row of activations is quantized too: to int8, with one scale for each
group, so that what is summed up within a group are exact integers and no row depends on another. Elsewhere the weights
are dequantized in tiles and multiplied by torch.

`quantize` makes them from any matrix: int8 rounds to the largest number's 127th part, int4 searches for the range whose
squared error is least. Scales are float16 where that loses nothing (we choose them so; GGUF and GPTQ store them so),
else float32.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F

from worker_svc.checkpoints.grouped import GROUPS, Grouped, Quantization
from worker_svc.model import native

INT8 = Quantization(8, 0)
_ACTIVATION_GROUP = 128  # numbers of a row that share a scale where the weight has one scale for a whole channel
_SHRINKS = (1.0, 0.95, 0.9, 0.85, 0.8, 0.75)  # of a group's range, tried for int4
_TILE_ROWS = 1024  # that are dequantized at once where no compiled product is there


def quantize(weight: torch.Tensor, kind: Quantization) -> Grouped:
    """`[rows, columns]` of any floating dtype, on any device."""
    rows, columns = weight.shape
    group = kind.group or columns
    numbers = F.pad(weight.float(), (0, -columns % group)).view(rows, -1, group)
    if kind.bits == 8:
        scale = (numbers.abs().amax(-1) / 127).clamp_min(1e-30)
        q = (numbers / scale.unsqueeze(-1)).round_().clamp_(-127, 127)
        return Grouped(kind, q.view(rows, -1)[:, :columns].to(torch.int8), scale, None)
    real = torch.ones_like(numbers[:1])
    if columns % group:  # what fills up a row neither widens its last group's range nor counts as an error
        numbers[:, -1, columns % group :] = numbers[:, -1, :1]
        real[:, -1, columns % group :] = 0
    low, high = numbers.amin(-1), numbers.amax(-1)
    best: tuple[torch.Tensor, ...] | None = None
    for shrink in _SHRINKS:
        middle, half = (low + high) / 2, (high - low) / 2 * shrink
        scale = (2 * half / 15).clamp_min(1e-6).half().float()
        least = (middle - half).half().float()
        q = ((numbers - least.unsqueeze(-1)) / scale.unsqueeze(-1)).round_().clamp_(0, 15)
        error = (q * scale.unsqueeze(-1) + least.unsqueeze(-1) - numbers).square_().mul_(real).sum(-1)
        if best is None:
            best = (error, scale, least, q)
        else:
            better = error < best[0]
            best = (
                torch.where(better, error, best[0]),
                torch.where(better, scale, best[1]),
                torch.where(better, least, best[2]),
                torch.where(better.unsqueeze(-1), q, best[3]),
            )
    assert best is not None
    _, scale, least, q = best
    return Grouped(kind, q.view(rows, -1)[:, :columns].to(torch.uint8), scale.half(), least.half())


class QuantizedWeight(torch.nn.Module):
    """A quantized matrix `[out, in]`, filled row by row.

    In memory, rows are filled up with zeros to whole groups, and int4 lies in chunks of 32 bytes: byte i holds number i
    of 64 in its low and number i + 32 in its high half.
    """

    q: torch.Tensor  # [out, width] int8, or [out, width / 2] uint8
    scale: torch.Tensor  # [out, groups]
    least: torch.Tensor | None  # [out, groups]; int4 only

    def __init__(self, kind: Quantization, rows: int, columns: int, like: Grouped, device: torch.device) -> None:
        """`like` tells the dtype of the scales."""
        super().__init__()
        self.kind, self.columns = kind, columns
        self._group = kind.group or min(_ACTIVATION_GROUP, 32 * -(-columns // 32))
        if self._group not in GROUPS:  # a short row, in one channel
            self._group = 32
        unit = max(self._group, 64) if kind.bits == 4 else self._group
        self._width = -(-columns // unit) * unit
        groups = self._width // self._group if kind.group else 1
        bytes_per_row = self._width // 2 if kind.bits == 4 else self._width
        stored = torch.uint8 if kind.bits == 4 else torch.int8
        self.register_buffer("q", torch.zeros((rows, bytes_per_row), dtype=stored, device=device))
        self.register_buffer("scale", torch.zeros((rows, groups), dtype=like.scale.dtype, device=device))
        least = None if like.least is None else torch.zeros((rows, groups), dtype=like.least.dtype, device=device)
        self.register_buffer("least", least)
        # Compiled, a row is computed alone; torch's products want 4 of them.
        self._native = device.type == "cpu" and self._width // self._group <= native.MAX_GROUPS and native.available()

    def __len__(self) -> int:
        return len(self.q)

    @property
    def row_multiple(self) -> int:
        """See `Linear.row_multiple`."""
        return 1 if self._native else 4

    def truncate(self, rows: int) -> None:
        """Keeps the first rows only."""
        self.q, self.scale = self.q[:rows].clone(), self.scale[:rows].clone()
        self.least = None if self.least is None else self.least[:rows].clone()

    def takes(self, rows: Grouped) -> bool:
        """Whether these rows can be stored here."""
        return rows.kind == self.kind and rows.scale.dtype == self.scale.dtype

    def fill(self, row: int, rows: Grouped) -> None:
        """Stores rows from `row` on."""
        part = slice(row, row + len(rows.q))
        q = F.pad(rows.q, (0, self._width - self.columns))
        if self.kind.bits == 4:
            halves = q.view(len(q), -1, 2, 32)
            q = (halves[:, :, 0] | halves[:, :, 1] << 4).view(len(q), -1)
        self.q[part] = q
        self.scale[part, : rows.scale.shape[1]] = rows.scale
        if self.least is not None:
            assert rows.least is not None
            self.least[part, : rows.least.shape[1]] = rows.least

    def rows(self, index: torch.Tensor | slice) -> torch.Tensor:
        """Some rows `[N, in]` as float32 numbers."""
        q = self.q[index]
        if self.kind.bits == 4:
            packed = q.view(len(q), -1, 32)
            q = torch.stack((packed & 15, packed >> 4), dim=2).view(len(q), -1)
        least = None if self.least is None else self.least[index]
        stored = Quantization(self.kind.bits, self.kind.group)
        return Grouped(stored, q, self.scale[index], least).dequantize()[:, : self.columns]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """`[N, in] -> [N, out]` in x's dtype."""
        if self._native:
            rows = native.quantize_rows(x.float(), self._width // self._group, self._group)
            return native.quantized_product(rows, self.q, self.scale, self.least).to(x.dtype)
        tiles = [slice(start, start + _TILE_ROWS) for start in range(0, len(self.q), _TILE_ROWS)]
        return torch.cat([F.linear(x, self.rows(tile).to(x.dtype)) for tile in tiles], dim=1)
