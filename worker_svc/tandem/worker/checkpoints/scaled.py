"""Matrices that are stored row by row as small numbers, with scales of blocks of them in a tensor beside.

A number is `scale (q - zero)`, or `scale table[q]`; `Form` says how a row's bytes become q. A scale is one of the whole
matrix, of a row, of a group of a row, of a square; one of e4m3 is multiplied by a factor of the whole matrix. GPTQ and
AWQ, whose rows do not lie together: `packed.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch

from tandem.worker.checkpoints.grouped import (
    CODE_GROUPS,
    CODES,
    E8M0,
    GROUPS,
    Float8Rows,
    Grouped,
    Quantization,
    scales,
)


@dataclass(frozen=True, slots=True)
class Form:
    """How numbers are stored: `decode` makes q `[rows, columns]` of the bytes of rows.

    bits: 4: q from 0 to 15; 8: int8, or e4m3 where `float8`. code: what numbers of 4 bits stand for (`CODES`); `exact`:
    what they really stand for where the code rounds them, in its unit.
    """

    decode: Callable[[torch.Tensor], torch.Tensor]
    bits: int
    code: str = ""
    exact: tuple[float, ...] = ()
    float8: bool = False


def _as_stored(rows: torch.Tensor) -> torch.Tensor:
    return rows


def _low_first(rows: torch.Tensor) -> torch.Tensor:
    return torch.stack((rows & 15, rows >> 4), dim=-1).flatten(1)


def _high_first(rows: torch.Tensor) -> torch.Tensor:
    return torch.stack((rows >> 4, rows & 15), dim=-1).flatten(1)


def words_of_four_bits(words: torch.Tensor) -> torch.Tensor:
    """Unpacks eight numbers of each int32, the lowest bits first: `[n, words]` to uint8 `[n, 8 words]`."""
    return _low_first(words.contiguous().view(torch.uint8))


def words_of_eight_bits(words: torch.Tensor) -> torch.Tensor:
    """Unpacks four numbers of each int32, the lowest bits first, less 128: `[n, words]` to int8 `[n, 4 words]`."""
    return (words.contiguous().view(torch.uint8) ^ 128).view(torch.int8)


INT8 = Form(_as_stored, 8)
E4M3 = Form(_as_stored, 8, float8=True)
WORDS4 = Form(words_of_four_bits, 4)
SIGNED_WORDS4 = Form(words_of_four_bits, 4, "int4")
WORDS8 = Form(words_of_eight_bits, 8)
MXFP4 = Form(_low_first, 4, "e2m1")
NVFP4 = Form(_low_first, 4, "e2m1")  # with scales of e4m3


def codes(code: str, exact: tuple[float, ...] = ()) -> Form:
    """Returns the form of bytes of two codes each, that of the upper bits being the first."""
    return Form(_high_first, 4, code, exact)


@dataclass(frozen=True, slots=True)
class ScaledMatrix:
    """A matrix `[rows, columns]`, or some rows and columns of one; see `StoredMatrix`."""

    form: Form
    numbers: torch.Tensor  # [all rows, ...]
    scale: torch.Tensor  # [blocks of rows, blocks of columns]
    zero: torch.Tensor | None  # as `scale`, float32
    block: tuple[int, int]  # rows and columns that share a scale
    rows: torch.Tensor  # which of all rows
    inputs: range  # which of its columns
    stored: int  # bytes of the whole
    factor: torch.Tensor | None = None  # [] float32, of scales that are e4m3

    @classmethod
    def of(
        cls,
        form: Form,
        shape: tuple[int, int],
        numbers: torch.Tensor,
        scale: torch.Tensor,
        *,
        block: tuple[int, int] | None = None,
        zero: torch.Tensor | None = None,
        factor: torch.Tensor | None = None,
        stored: int,
    ) -> ScaledMatrix:
        """Makes the whole of a matrix. Without `block`, its size follows from the shape of `scale`; scales become
        float16 where all of them are so, and powers of two, and those that have a `factor`, stay what they are."""
        if block is None:
            block = (-(-shape[0] // scale.shape[0]), -(-shape[1] // scale.shape[1]))
        if scale.dtype != E8M0 and factor is None:
            scale = scale.half() if torch.equal(scale.half().float(), scale.float()) else scale.float()
        return cls(form, numbers, scale, zero, block, torch.arange(shape[0]), range(shape[1]), stored, factor)

    @property
    def shape(self) -> tuple[int, int]:
        """Returns rows and columns."""
        return len(self.rows), len(self.inputs)

    @property
    def nbytes(self) -> int:
        """Returns the stored bytes of the rows, with their share of the scales."""
        return self.stored * len(self.rows) // len(self.numbers)

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, rows: slice | torch.Tensor) -> ScaledMatrix:
        return replace(self, rows=self.rows[rows])

    def columns(self, part: slice) -> ScaledMatrix:
        """Returns some columns; raises ValueError where they begin or end within a group."""
        size = self.block[1] if self.scale.shape[1] > 1 else 1
        if part.start % size or part.stop % size:
            raise ValueError(f"columns {part.start} to {part.stop} cut a group of {size}")
        return replace(self, inputs=self.inputs[part])

    @property
    def mapped(self) -> tuple[torch.Tensor, ...]:
        """Returns the view of its file from the first row to the last, or the whole where it has columns for rows."""
        if not len(self.rows):
            return ()
        view = self.numbers[int(self.rows.min()) : int(self.rows.max()) + 1]
        return (view if view.is_contiguous() else self.numbers.t(),)

    def dequantize(self) -> torch.Tensor:
        """Returns the numbers, float32."""
        q = self._numbers()
        table = self.form.exact or (tuple(map(float, CODES[self.form.code])) if self.form.code else ())
        numbers = torch.tensor(table)[q.long()] if table else q.float()
        columns = torch.arange(self.inputs.start, self.inputs.stop) // self.block[1]
        if self.zero is not None:
            numbers -= self._of_rows(self.zero)[:, columns]
        scale = scales(self._scale(columns))
        return numbers.mul_(scale if self.factor is None else scale * self.factor)

    def float8(self) -> Float8Rows | None:
        """Returns e4m3 with scales of rows or of groups of 128 as they are stored."""
        if not self.form.float8 or (self.scale.shape[1] > 1 and self.block[1] != GROUPS[-1]):
            return None
        first, last = self.inputs.start // self.block[1], -(-self.inputs.stop // self.block[1])
        return Float8Rows(self._numbers(), scales(self._scale(torch.arange(first, last))))

    def grouped(self) -> Grouped | None:
        """Returns the rows in groups; None where no kernel serves them."""
        form, each, alone = self.form, self.block[1], self.scale.shape[1] == 1
        if form.float8 or (form.bits == 8 and self.zero is not None):
            return None
        if form.bits == 8 and alone:
            return Grouped(Quantization(8, 0), self._numbers(), self._scale(torch.zeros(1, dtype=torch.int64)), None)
        if self.factor is not None:
            return self._with_float8_scales()
        most = CODE_GROUPS.get(form.code, GROUPS[-1])
        fit = [size for size in GROUPS if size <= most and (alone or each % size == 0)]
        if not fit:
            return None
        group, least = fit[-1], None
        columns = torch.arange(self.inputs.start // group, -(-self.inputs.stop // group)) * group // each
        scale = self._scale(columns)
        if self.zero is not None:
            scale = scale.float()
            least = -scale * self._of_rows(self.zero)[:, columns]
        kind = Quantization(8 if form.bits == 8 else 4, group, form.code)
        return Grouped(kind, self._numbers(), scale, least)

    def _with_float8_scales(self) -> Grouped:
        """Returns groups whose scales stay e4m3."""
        assert self.factor is not None
        group = self.block[1]
        scale = self._scale(torch.arange(self.inputs.start // group, self.inputs.stop // group))
        unit = self.factor.expand(len(self.rows), 1)
        broken = (scale.view(torch.uint8) & 127 == 127).any(1, keepdim=True)  # NaN, which the product does not know
        kind = Quantization(4, group, self.form.code)
        return Grouped(kind, self._numbers(), scale, None, units=(unit.masked_fill(broken, float("nan")), None))

    def _numbers(self) -> torch.Tensor:
        decoded = self.form.decode(self.numbers[self.rows])
        return decoded[:, self.inputs.start : self.inputs.stop].contiguous()

    def _of_rows(self, blocks: torch.Tensor) -> torch.Tensor:
        return blocks[self.rows // self.block[0]]

    def _scale(self, columns: torch.Tensor) -> torch.Tensor:
        """Returns the rows' scales of some blocks of columns."""
        scale = self._of_rows(self.scale)[:, columns]
        return scale.clamp_min(1) - 1 if scale.dtype == E8M0 and self.form is MXFP4 else scale  # its unit is a half
