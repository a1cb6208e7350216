"""Quantized matrices as every kind of checkpoint gives them: small integers, and scales by groups of columns."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

import torch
import torch.nn.functional as F

GROUPS = (32, 64, 128)  # numbers that share a scale
FINE_GROUP = 16  # the same in some files; compiled products alone know it
UNIT = 256  # numbers whose scales are multiples of the same one, where they are small integers
DEFAULT_INT4_GROUP = 64
FLOAT8 = torch.float8_e4m3fn
E8M0 = torch.uint8  # of scales: each is 2^(number - 127)

# What the sixteen numbers of 4 bits stand for where they are not 0 to 15 themselves, as whole numbers. Scales are of
# these: of e2m1 half and of fp4 a 192th of what its files call a scale. Sums of products with int16 stay below 2^31 in
# groups of 128, those of nf4 in groups of 64.
CODES: Mapping[str, tuple[int, ...]] = {
    "int4": tuple(range(-8, 8)),
    # floats of 4 bits: MXFP4 (https://www.opencompute.org/documents/ocp-microscaling-formats-mx-v1-0-spec-final-pdf)
    "e2m1": (0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12),
    # llama.cpp's IQ4_NL and IQ4_XS
    "iq4": (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113),
    # quantiles of the normal distribution (Dettmers et al. 2023, https://arxiv.org/abs/2305.14314), times 1023: the one
    # code whose numbers are rounded
    "nf4": (-1023, -712, -537, -404, -291, -189, -93, 0, 81, 165, 252, 346, 451, 576, 740, 1023),
    # bitsandbytes' floats of 4 bits
    "fp4": (0, 1, 128, 192, 64, 96, 32, 48, 0, -1, -128, -192, -64, -96, -32, -48),
}
CODE_GROUPS = {"nf4": 64}  # the most numbers in a group, where it is not the usual
FINE_CODES = ("int4", "e2m1")  # that come in groups of `FINE_GROUP`


@dataclass(frozen=True, slots=True)
class Quantization:
    """How weights are quantized; `group` 0: one scale an output channel (int8 only). `code`, of `CODES`: what numbers
    of 4 bits stand for, if not for themselves."""

    bits: Literal[4, 6, 8]
    group: int
    code: str = ""

    def __post_init__(self) -> None:
        coarse = {4: GROUPS, 6: (), 8: (0, *GROUPS)}[self.bits]
        if self.group not in (FINE_GROUP, *coarse):
            raise ValueError(f"int{self.bits} has no groups of {self.group}")
        fine = self.group == FINE_GROUP and self.code not in ("", *FINE_CODES)
        if self.code and (self.bits != 4 or fine or self.group > CODE_GROUPS.get(self.code, GROUPS[-1])):
            raise ValueError(f"{self.code} has no groups of {self.group} with {self.bits} bits")

    @property
    def numbers(self) -> torch.Tensor | None:
        """Returns what the sixteen codes stand for, int16; None without a code."""
        return torch.tensor(CODES[self.code], dtype=torch.int16) if self.code else None


@dataclass(frozen=True, slots=True)
class Grouped:
    """Rows of a quantized matrix, not yet packed.

    q: `[rows, columns]`, int8, of 6 bits from -32 to 31, or, for 4 bits, uint8 from 0 to 15.
    scale, least: `[rows, groups]`, one column where a channel has one scale; float16 or float32. Scales may be `E8M0`.
        A number is `q scale + least`. With `units`, scales are int8, and where there are both from 0 to 63, least
        numbers from -63 to 0; or scales are e4m3.
    units: `[rows, units]` float16, of which scales and least numbers of `UNIT` columns each are multiples; float32, one
        a row, where scales are e4m3.
    order: `[columns]`, which of an input's numbers each column multiplies; None: that of its place.
    """

    kind: Quantization
    q: torch.Tensor
    scale: torch.Tensor
    least: torch.Tensor | None
    order: torch.Tensor | None = None
    units: tuple[torch.Tensor, torch.Tensor | None] | None = None

    def with_floats(self) -> Grouped:
        """Returns the same without units: scales and least numbers are float32, in which multiples of float16 are
        exact."""
        if self.units is None:
            return self
        scale_unit, least_unit = self.units
        scale = _multiples(self.scale, scale_unit, self.kind.group)
        if self.least is None or least_unit is None:
            return replace(self, scale=scale, units=None)
        return replace(self, scale=scale, least=_multiples(self.least, least_unit, self.kind.group), units=None)

    @property
    def compiled_alone(self) -> bool:
        """Tells whether compiled products of a CPU alone take it; others take groups of `GROUPS`, no int8 with `least`,
        and no scales of e4m3."""
        fine = self.kind.group == FINE_GROUP or self.scale.dtype == FLOAT8
        return fine or (self.kind.bits == 8 and self.least is not None)

    def dequantize(self) -> torch.Tensor:
        """Returns the numbers, `[rows, columns]` float32, in the order of the inputs."""
        if self.units is not None:
            return self.with_floats().dequantize()
        rows, columns = self.q.shape
        group = self.kind.group or columns
        groups = self.scale.shape[1]
        table = self.kind.numbers
        q = self.q.float() if table is None else table.to(self.q.device).float()[self.q.long()]
        numbers = F.pad(q, (0, groups * group - columns)).view(rows, groups, group)
        numbers = numbers * scales(self.scale).unsqueeze(-1)
        if self.least is not None:
            numbers += self.least.float().unsqueeze(-1)
        numbers = numbers.view(rows, groups * group)[:, :columns]
        return numbers if self.order is None else torch.empty_like(numbers).index_copy_(1, self.order, numbers)


def _multiples(counts: torch.Tensor, unit: torch.Tensor, group: int) -> torch.Tensor:
    if counts.dtype == FLOAT8:
        return counts.float() * unit
    return unit.float().repeat_interleave(UNIT // group, 1)[:, : counts.shape[1]] * counts


@dataclass(frozen=True, slots=True)
class Float8Rows:
    """Rows of a matrix; q: `[rows, columns]` e4m3, scale: `[rows, groups]` float32, of groups of 128 numbers or, being
    one, of the row."""

    q: torch.Tensor
    scale: torch.Tensor

    def dequantize(self) -> torch.Tensor:
        """Returns the numbers, `[rows, columns]` float32."""
        scale = self.scale
        if scale.shape[1] > 1:
            scale = scale.repeat_interleave(GROUPS[-1], 1)[:, : self.q.shape[1]]
        return self.q.float() * scale


def to_float8(rows: torch.Tensor) -> Float8Rows:
    """Converts `[rows, columns]` of any floating dtype, on any device; a row's largest number becomes the largest e4m3.

    What is not finite makes its whole row NaN.
    """
    numbers, largest = rows.float(), torch.finfo(FLOAT8).max
    scale = (numbers.abs().amax(1, keepdim=True) / largest).clamp_min(1e-30)
    return Float8Rows((numbers / scale).clamp_(-largest, largest).to(FLOAT8), scale)


def scales(stored: torch.Tensor) -> torch.Tensor:
    """Returns stored scales as float32."""
    return stored.float() if stored.dtype != E8M0 else stored.view(torch.float8_e8m0fnu).float()
