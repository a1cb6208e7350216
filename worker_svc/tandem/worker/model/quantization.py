"""Stores weights as small integers in groups along the input dimension.

    int8    w = scale q            q from -127 to 127 (a file may have -128); one scale a group or an output channel
    int4    w = scale q + least    q from 0 to 15; one scale and one least number a group of 32, 64 or 128
    codes   w = scale table[q]     the same q and groups; what each stands for is a whole number of `CODES`
    int6    w = scale q            q from -32 to 31, groups of 16; of compiled products (below) alone

Those take groups of 16 of the others too, int8 with a least number, and scales that are multiples of a unit.

On a CPU with compiled products (`native`) a row of activations is quantized too, with one scale for each group, so that
what is summed up within a group are exact integers and no row depends on another: to int16, or beside 4 and 6 bits in
groups of 32 and 16 to int8, which is nearer to the numbers than such weights are to theirs (beside int8 in such groups
it is not, and is done where the operator asks for it: `int8_activations`). Elsewhere the weights are
dequantized in tiles and multiplied by torch.

`quantize` makes them from any matrix: int8 rounds to the largest number's 127th part, int4 searches for the range whose
squared error is least. Scales are float16 where that loses nothing (we choose them so; GGUF and GPTQ store them so),
else float32; those of MXFP4 stay the powers of two that they are.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F

from tandem.worker.checkpoints.grouped import FINE_GROUP, GROUPS, Grouped, Quantization
from tandem.worker.model.cpu import native
from tandem.worker.model.cpu.panels import empty_panels, fill_panels, first_panels
from tandem.worker.model.product_rows import MOST_ROWS, linear

INT8 = Quantization(8, 0)
_ACTIVATION_GROUP = 128  # numbers of a row that share a scale where the weight has one scale for a whole channel
_SHRINKS = (1.0, 0.95, 0.9, 0.85, 0.8, 0.75)  # of a group's range, tried for int4
_TILE_ROWS = 1024  # that are dequantized at once where no compiled product is there


def quantize(weight: torch.Tensor, kind: Quantization) -> Grouped:
    """Quantizes `[rows, columns]` of any floating dtype, on any device."""
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


def packed(q: torch.Tensor, bits: int) -> torch.Tensor:
    """Packs numbers `[rows, width]`, contiguous, into words `[rows, words]`.

    Two int8 are a word of 16 bits, and four int4, of which the first two are the low halves of its bytes. Sixteen of 6
    bits, 32 being added, are three words of 32 bits, whose halves hold those at even and those at odd places. Of eight
    of either, the first six lie two and two in the lower 12 bits of the halves; in the four bits above lie the lower
    bits of the seventh, those of the eighth, and the upper two of both.
    """
    if bits == 4:
        four = q.view(torch.int32)
        return (four | four >> 12).to(torch.int16)  # which keeps the lower half
    if bits == 8:
        return q.view(torch.int16)
    a, b, c, d, e, f, g, h = (q.to(torch.int16) + 32).view(len(q), -1, 8, 2).unbind(2)
    halves = (a | b << 6 | g << 12, c | d << 6 | h << 12, e | f << 6 | g >> 4 << 12 | h >> 4 << 14)
    return torch.stack(halves, 2).view(len(q), -1).view(torch.int32)


def unpacked(words: torch.Tensor, bits: int) -> torch.Tensor:
    """Unpacks the words of `packed`: int8, or uint8 for 4 bits."""
    if bits == 4:
        pairs = words.view(torch.uint8).view(len(words), -1, 2)
        return torch.stack((pairs & 15, pairs >> 4), dim=2).view(len(words), -1)
    if bits == 8:
        return words.view(torch.int8)
    first, second, third = words.view(torch.int16).view(len(words), -1, 3, 2).unbind(2)
    numbers = [half >> shift & 63 for half in (first, second, third) for shift in (0, 6)]
    numbers += [first >> 12 & 15 | (third >> 12 & 3) << 4, second >> 12 & 15 | (third >> 14 & 3) << 4]
    return (torch.stack(numbers, 2).view(len(words), -1) - 32).to(torch.int8)


def of_six_bits(scale: torch.Tensor, least: torch.Tensor) -> torch.Tensor:
    """Packs scales from 0 to 63 and least numbers from -63 to 0, int8 `[rows, groups]`, of two groups into three bytes:
    `[rows, groups * 3 / 2]`. The lower 6 bits are both scales and the first least number's digits, the upper two, one
    behind the other, the second one's."""
    scales, digits = (part.view(torch.uint8).view(len(part), -1, 2) for part in (scale.contiguous(), -least))
    second = digits[..., 1]
    three = (
        scales[..., 0] | (second & 3) << 6,
        scales[..., 1] | (second >> 2 & 3) << 6,
        digits[..., 0] | second >> 4 << 6,
    )
    return torch.stack(three, 2).view(len(scale), -1).view(torch.int8)


class QuantizedWeight(torch.nn.Module):
    """A quantized matrix `[out, in]`, filled row by row.

    In memory, rows are filled up with zeros to whole groups and cut into words (`packed`). For the compiled products,
    words, scales and least numbers lie in panels.
    """

    q: torch.Tensor  # [out, words] int16 or int32, or panels of them, as the others
    scale: torch.Tensor  # [out, groups]
    least: torch.Tensor | None  # [out, groups]; the scales' own tensor: both lie there, see `of_six_bits`
    scale_unit: torch.Tensor | None  # [out, units], see `Grouped`
    least_unit: torch.Tensor | None  # the same
    table: torch.Tensor | None  # [16] int16, what the numbers of a code stand for
    order: torch.Tensor | None  # [in], which of an input's numbers each column multiplies

    def __init__(self, kind: Quantization, rows: int, columns: int, like: Grouped, device: torch.device) -> None:
        """Allocates the matrix; `like` tells the dtype of the scales."""
        super().__init__()
        self.kind, self.columns, self._rows = kind, columns, rows
        self.group = kind.group or min(_ACTIVATION_GROUP, 32 * -(-columns // 32))
        if self.group not in (FINE_GROUP, *GROUPS):  # a short row, in one channel
            self.group = 32
        self._width = -(-columns // self.group) * self.group
        groups = self._width // self.group if kind.group else 1
        self.compiled = device.type == "cpu" and native.available()

        def empty(columns: int, dtype: torch.dtype) -> torch.Tensor:
            if self.compiled:
                return empty_panels(rows, columns, dtype)
            return torch.zeros((rows, columns), dtype=dtype, device=device)

        # Pairs of groups: those of a unit are eight or sixteen, unless ranks cut it.
        together = self.compiled and like.units is not None and like.least is not None and groups % 2 == 0
        word = torch.int32 if kind.bits == 6 else torch.int16
        self.register_buffer("q", empty(self._width * kind.bits // (8 * word.itemsize), word))
        self.register_buffer("scale", empty(groups * 3 // 2 if together else groups, like.scale.dtype))
        least = None if like.least is None else self.scale if together else empty(groups, like.least.dtype)
        self.register_buffer("least", least)
        for name, unit in zip(("scale_unit", "least_unit"), like.units or (None, None), strict=True):
            self.register_buffer(name, None if unit is None else empty(unit.shape[1], unit.dtype))
        self.register_buffer("table", kind.numbers)
        self.register_buffer("order", like.order)

    def __len__(self) -> int:
        return self._rows

    @property
    def name(self) -> str:
        """Returns its public name: "int8", "int4", or that of its code."""
        return self.kind.code or f"int{self.kind.bits}"

    @property
    def groups(self) -> int:
        """Counts the groups of inputs whose products are added up as integers."""
        return self._width // self.group

    @property
    def row_multiple(self) -> int:
        """Implements `Linear.row_multiple`. Compiled, a row is computed alone."""
        return 1 if self.compiled else MOST_ROWS

    def gated(self, x: torch.Tensor) -> torch.Tensor | None:
        """Implements `Linear.gated`."""
        return None

    def truncate(self, rows: int) -> None:
        """Keeps the first rows only."""
        self._rows = rows

        for name in self._parts():
            buffer = getattr(self, name)
            kept = first_panels(buffer, rows) if self.compiled else buffer[:rows].clone()
            setattr(self, name, kept)
            if buffer is self.least:
                self.least = kept

    @property
    def _together(self) -> bool:
        """Tells whether scales and least numbers lie in one tensor."""
        return self.least is self.scale

    def _parts(self) -> dict[str, torch.Tensor]:
        """Returns what has rows of its own for each of the matrix."""
        names = ("q", "scale", *(() if self._together else ("least",)), "scale_unit", "least_unit")
        return {name: part for name in names if (part := getattr(self, name)) is not None}

    def takes(self, rows: Grouped) -> bool:
        """Tells whether these rows can be stored here."""
        if rows.kind != self.kind or rows.scale.dtype != self.scale.dtype:
            return False
        if (rows.least is None) != (self.least is None) or (rows.units is None) != (self.scale_unit is None):
            return False
        if rows.order is None or self.order is None:
            return rows.order is self.order
        return torch.equal(rows.order.to(self.order.device), self.order)

    def fill(self, row: int, rows: Grouped) -> None:
        """Stores rows from `row` on."""
        q = rows.q if self._width == self.columns else F.pad(rows.q, (0, self._width - self.columns))
        scale_unit, least_unit = rows.units or (None, None)
        scale, least = rows.scale, rows.least
        if self._together:
            assert least is not None
            scale, least = of_six_bits(scale, least), None
        given = (packed(q.contiguous(), self.kind.bits), scale, least, scale_unit, least_unit)
        for buffer, part in zip(self._parts().values(), (part for part in given if part is not None), strict=True):
            self._put(buffer, row, part)

    def _put(self, buffer: torch.Tensor, row: int, rows: torch.Tensor) -> None:
        if self.compiled:
            fill_panels(buffer, row, rows)
        else:
            buffer[row : row + len(rows)] = rows

    def rows(self, index: torch.Tensor | slice) -> torch.Tensor:
        """Returns some rows `[N, in]` as float32 numbers."""
        if self.compiled:
            ids = torch.arange(self._rows)[index] if isinstance(index, slice) else index
            return native.quantized_rows(
                ids, self.columns, self.q, self.scale, self.least, self.groups, self.group, bits=self.kind.bits,
                table=self.table, scale_unit=self.scale_unit, least_unit=self.least_unit, order=self.order,
            )  # fmt: skip

        q = unpacked(self.q[index], self.kind.bits)
        least = None if self.least is None else self.least[index]
        least_unit = None if self.least_unit is None else self.least_unit[index]
        units = None if self.scale_unit is None else (self.scale_unit[index], least_unit)
        return Grouped(self.kind, q[:, : self.columns], self.scale[index], least, self.order, units).dequantize()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Multiplies: `[N, in] -> [N, out]` in x's dtype."""
        if self.compiled:
            product = native.quantized_product(
                x.float(), self.q, self.scale, self.least, self.groups, self.group, bits=self.kind.bits,
                table=self.table, scale_unit=self.scale_unit, least_unit=self.least_unit, order=self.order,
            )  # fmt: skip
            return product[:, : self._rows].to(x.dtype)
        tiles = (slice(start, start + _TILE_ROWS) for start in range(0, self._rows, _TILE_ROWS))
        return torch.cat([linear(x, self.rows(tile).to(x.dtype)) for tile in tiles], dim=1)
