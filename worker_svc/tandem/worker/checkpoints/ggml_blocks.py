"""Dequantizes ggml's block formats, in which GGUF files store rows of numbers.

A row is cut into blocks of 32 or 256 numbers, each stored with scales of its own. In all of them `d` (and `dmin`) are
float16, and nibbles lie in halves: byte i of a run of n holds number i below and number i + n above.

| kind | numbers | bytes | number |
|---|---|---|---|
| Q8_0 | 32 | 34 | d q, q signed 8 bit |
| Q4_0, Q5_0 | 32 | 18, 22 | d (q - 8), d (q - 16) |
| Q4_1, Q5_1 | 32 | 20, 24 | d q + m |
| Q2_K | 256 | 84 | d s q - dmin m, for runs of 16; s and m 4 bit |
| Q3_K | 256 | 110 | d (s - 32) (q - 4), for runs of 16; s 6 bit |
| Q4_K, Q5_K | 256 | 144, 176 | d s q - dmin m, for runs of 32; s and m 6 bit |
| Q6_K | 256 | 210 | d s (q - 32), for runs of 16; s signed 8 bit |
| IQ4_NL | 32 | 18 | d table[q], q 4 bit |
| IQ4_XS | 256 | 136 | d (s - 32) table[q], for runs of 32; s 6 bit |
| MXFP4 | 32 | 17 | 2^(e - 128) table[q]; e 8 bit |
| NVFP4 | 64 | 36 | s / 2 table[q], for runs of 16; s e4m3 without a sign; times one number of the matrix, if there is |
| Q1_0 | 128 | 18 | d (2 q - 1); q 1 bit |

The other IQ kinds: `iq_blocks.py`.

The arithmetic is llama.cpp's, in float32 and in its order, so that the numbers are the same to the bit.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import torch

from tandem.worker.checkpoints import iq_blocks
from tandem.worker.checkpoints.grouped import CODES, FINE_GROUP, FLOAT8, Grouped, Quantization


@dataclass(frozen=True, slots=True)
class BlockKind:
    """One block format."""

    name: str  # as llama.cpp spells it: "Q4_K"
    number: int  # its `ggml_type` in a file
    block_numbers: int
    block_bytes: int
    decode: Callable[[torch.Tensor], torch.Tensor] = field(repr=False)  # [N, block_bytes] -> fp32, N blocks of numbers


@dataclass(frozen=True, slots=True)
class QuantizedTensor:
    """A matrix `[rows, columns]` in blocks, as a view of its file; the numbers are made when they are asked for.

    blocks: `[rows, blocks in a row, block_bytes]` uint8, contiguous.
    order: `[columns]`, which of an input's numbers each stored column multiplies; None: that of its place.
    factor: what all numbers are multiplied by, beside the blocks' scales (of NVFP4).
    """

    kind: BlockKind
    blocks: torch.Tensor
    order: torch.Tensor | None = None
    factor: float = 1.0

    @property
    def shape(self) -> tuple[int, int]:
        """Returns rows and columns."""
        return self.blocks.shape[0], self.blocks.shape[1] * self.kind.block_numbers

    @property
    def nbytes(self) -> int:
        """Returns the stored bytes."""
        return self.blocks.numel()

    def __len__(self) -> int:
        return self.blocks.shape[0]

    def __getitem__(self, rows: slice | torch.Tensor) -> QuantizedTensor:
        """Returns some rows: a view for a slice, a copy for indices."""
        return replace(self, blocks=self.blocks[rows])

    def flatten(self) -> QuantizedTensor:
        """Returns one matrix of matrices that follow each other."""
        return replace(self, blocks=self.blocks.flatten(0, -3))

    def dequantize(self) -> torch.Tensor:
        """Returns the numbers, float32, in the order of the inputs."""
        rows, columns = self.shape
        numbers = self.kind.decode(self.blocks.reshape(-1, self.kind.block_bytes)).view(rows, columns)
        numbers = numbers if self.factor == 1 else numbers.mul_(self.factor)
        return numbers if self.order is None else torch.empty_like(numbers).index_copy_(1, self.order, numbers)

    @property
    def mapped(self) -> tuple[torch.Tensor, ...]:
        """Returns the view of its file."""
        return (self.blocks,)

    def columns(self, part: slice) -> QuantizedTensor:
        """Returns some columns, from the beginning of a block to the end of one; raises ValueError for others."""
        size = self.kind.block_numbers
        if self.order is not None:
            raise ValueError("columns in another order than the inputs cannot be divided")
        if part.start % size or part.stop % size:
            raise ValueError(f"columns {part.start} to {part.stop} cut a block of {size} numbers")
        return replace(self, blocks=self.blocks[:, part.start // size : part.stop // size].contiguous())

    def float8(self) -> None:
        """Returns None: they are whole numbers."""

    def grouped(self) -> Grouped | None:
        """Returns the same numbers in groups of 32 or 16, for the kinds that are made of such groups; None for the
        others."""
        blocks = self.blocks.reshape(-1, self.kind.block_bytes)
        kind, least = Quantization(4, 32), None
        units: tuple[torch.Tensor, torch.Tensor | None] | None = None
        match self.kind.name:
            case "Q8_0":
                kind, q, scale = Quantization(8, 32), blocks[:, 2:].view(torch.int8), _stored_half(blocks, 0)
            case "Q4_0":
                kind, q, scale = Quantization(4, 32, "int4"), _nibbles(blocks[:, 2:], 16), _stored_half(blocks, 0)
            case "Q4_1":
                q, scale, least = _nibbles(blocks[:, 4:], 16), _stored_half(blocks, 0), _stored_half(blocks, 2)
            case "Q4_K":
                q, scale, least = _nibbles(blocks[:, 16:], 32), *_six_bit_pairs(blocks[:, 4:16])
                units = _stored_half(blocks, 0), _stored_half(blocks, 2)
            case "Q5_0":
                kind, q, scale = Quantization(8, 32), _q5_0_numbers(blocks), _stored_half(blocks, 0)
            case "Q5_1":
                kind, q = Quantization(8, 32), _q5_1_numbers(blocks)
                scale, least = _stored_half(blocks, 0), _stored_half(blocks, 2)
            case "Q2_K":
                kind, q = Quantization(4, 16), _q2_k_numbers(blocks)
                scale, least = blocks[:, :16] & 15, blocks[:, :16] >> 4
                units = _stored_half(blocks, 80), _stored_half(blocks, 82)
            case "Q3_K":
                kind, q, scale = Quantization(4, 16, "int4"), _q3_k_numbers(blocks) + 8, _q3_k_multiples(blocks)
                units = _stored_half(blocks, 108), None
            case "Q5_K":
                kind, q = Quantization(8, 32), _q5_k_numbers(blocks).to(torch.int8)
                scale, least = _six_bit_pairs(blocks[:, 4:16])
                units = _stored_half(blocks, 0), _stored_half(blocks, 2)
            case "Q6_K":
                kind, q, scale = Quantization(6, 16), _q6_k_numbers(blocks), blocks[:, 192:208].view(torch.int8)
                units = _stored_half(blocks, 208), None
            case "IQ4_NL":
                kind, q, scale = Quantization(4, 32, "iq4"), _nibbles(blocks[:, 2:], 16), _stored_half(blocks, 0)
            case "IQ4_XS":
                kind, q, scale = Quantization(4, 32, "iq4"), _nibbles(blocks[:, 8:], 16), _iq4_xs_multiples(blocks)
                units = _stored_half(blocks, 0), None
            case "MXFP4":
                kind, q, scale = (
                    Quantization(4, 32, "e2m1"),
                    _nibbles(blocks[:, 1:], 16),
                    blocks[:, :1].clamp_min(1) - 1,
                )
            case "Q1_0":
                kind = Quantization(4, 128, "int4")
                q, scale = _single_bits(blocks[:, 2:]) * 2 + 7, _stored_half(blocks, 0)
            case "NVFP4":
                return self._with_float8_scales(blocks)
            case _:
                return None
        rows, columns = self.shape
        q, scale = q.reshape(rows, columns), scale.reshape(rows, -1)
        least = None if least is None else least.reshape(rows, -1)
        if units is None:
            return Grouped(kind, q, scale, least, self.order)
        scale_unit, least_unit = units
        if least is not None and least_unit is not None:  # in these kinds it is what is subtracted
            least, least_unit = -least.to(torch.int8), least_unit.view(rows, -1)
        units = scale_unit.view(rows, -1), least_unit
        return Grouped(kind, q, scale.to(torch.int8), least, self.order, units)

    def _with_float8_scales(self, blocks: torch.Tensor) -> Grouped | None:
        """Returns groups whose scales stay e4m3; None where one is none of e4m3's, but what llama.cpp takes it for."""
        rows, columns = self.shape
        scale = _nvfp4_scales(blocks)
        if (scale == _E4M3_NAN).any():
            return None
        unit = torch.full((rows, 1), self.factor / 2)  # numbers of the table are twice what they stand for
        q, kind = _nibbles(blocks[:, 4:], 8).view(rows, columns), Quantization(4, FINE_GROUP, "e2m1")
        return Grouped(kind, q, scale.view(FLOAT8).view(rows, -1), None, self.order, (unit, None))


_E4M3_NAN = 0x7F
_LOW_NIBBLES = 0x0F0F0F0F0F0F0F0F  # of eight bytes at once


def _stored_half(blocks: torch.Tensor, at: int) -> torch.Tensor:
    """Returns the float16 that each block has at a byte: `[N, 1]`."""
    return blocks[:, at : at + 2].contiguous().view(torch.float16)


def _half(blocks: torch.Tensor, at: int) -> torch.Tensor:
    """Returns the float16 that each block has at a byte as float32."""
    return _stored_half(blocks, at).float()


def _fields(packed: torch.Tensor, bits: int) -> torch.Tensor:
    """Splits `[..., n]` bytes into `[..., 8 / bits, n]` numbers of so many bits each, the lowest first."""
    shifts = torch.arange(0, 8, bits, dtype=torch.uint8).unsqueeze(-1)
    return packed.unsqueeze(-2) >> shifts & (1 << bits) - 1


def _nibbles(packed: torch.Tensor, run: int) -> torch.Tensor:
    """Splits `[N, bytes]` into `[N, 2 * bytes]` numbers of 4 bits, in runs of `run` bytes, a multiple of 8."""
    words = packed.clone(memory_format=torch.contiguous_format).view(torch.int64).view(len(packed), -1, run // 8)
    return torch.stack((words & _LOW_NIBBLES, words >> 4 & _LOW_NIBBLES), 2).view(torch.uint8).view(len(packed), -1)


def _single_bits(packed: torch.Tensor) -> torch.Tensor:
    """Splits `[N, bytes]` into `[N, 8 * bytes]`, bit by bit."""
    shifts = torch.arange(8, dtype=torch.uint8)
    return (packed.unsqueeze(-1) >> shifts & 1).flatten(1)


def _q8_0(blocks: torch.Tensor) -> torch.Tensor:
    return blocks[:, 2:].view(torch.int8).float().mul_(_half(blocks, 0))


def _q4_0(blocks: torch.Tensor) -> torch.Tensor:
    return _nibbles(blocks[:, 2:], 16).float().sub_(8).mul_(_half(blocks, 0))


def _q4_1(blocks: torch.Tensor) -> torch.Tensor:
    return _nibbles(blocks[:, 4:], 16).float().mul_(_half(blocks, 0)).add_(_half(blocks, 2))


def _q5_0_numbers(blocks: torch.Tensor) -> torch.Tensor:
    return (_nibbles(blocks[:, 6:], 16) | _single_bits(blocks[:, 2:6]) << 4).to(torch.int8) - 16


def _q5_0(blocks: torch.Tensor) -> torch.Tensor:
    return _q5_0_numbers(blocks).float().mul_(_half(blocks, 0))


def _q5_1_numbers(blocks: torch.Tensor) -> torch.Tensor:
    return (_nibbles(blocks[:, 8:], 16) | _single_bits(blocks[:, 4:8]) << 4).to(torch.int8)


def _q5_1(blocks: torch.Tensor) -> torch.Tensor:
    return _q5_1_numbers(blocks).float().mul_(_half(blocks, 0)).add_(_half(blocks, 2))


def _in_runs(q: torch.Tensor, scale: torch.Tensor, low: torch.Tensor | None = None) -> torch.Tensor:
    """Computes `scale q - low`; `scale` and `low` `[N, runs]` belong to equal runs of the numbers `q` `[N, ...]`."""
    runs = q.reshape(*scale.shape, -1).float().mul_(scale.unsqueeze(-1))
    if low is not None:
        runs.sub_(low.unsqueeze(-1))
    return runs.flatten(1)


def _q2_k_numbers(blocks: torch.Tensor) -> torch.Tensor:
    return _fields(blocks[:, 16:80].reshape(-1, 2, 32), 2).view(len(blocks), -1)


def _q2_k(blocks: torch.Tensor) -> torch.Tensor:
    multiples = blocks[:, :16]
    scale, low = _half(blocks, 80) * (multiples & 15), _half(blocks, 82) * (multiples >> 4)
    return _in_runs(_q2_k_numbers(blocks), scale, low)


def _q3_k_numbers(blocks: torch.Tensor) -> torch.Tensor:
    high = _fields(blocks[:, :32], 1).flatten(1)  # set where nothing is subtracted
    q = _fields(blocks[:, 32:96].reshape(-1, 2, 32), 2).flatten(1)
    return (q | high << 2).to(torch.int8) - 4


def _q3_k_multiples(blocks: torch.Tensor) -> torch.Tensor:
    scales = _fields(blocks[:, 96:104], 4).flatten(1) | _fields(blocks[:, 104:108], 2).flatten(1) << 4
    return scales.to(torch.int8) - 32


def _q3_k(blocks: torch.Tensor) -> torch.Tensor:
    return _in_runs(_q3_k_numbers(blocks), _half(blocks, 108) * _q3_k_multiples(blocks))


def _six_bit_pairs(packed: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Unpacks the 8 scales and 8 minima of `[N, 12]` bytes: 4 of each in the low 6 bits of bytes 0 to 7, the rest in
    the nibbles of bytes 8 to 11 with their upper bits on top of bytes 0 to 7."""
    first, second, nibbles = packed[:, :4], packed[:, 4:8], packed[:, 8:]
    scales = torch.cat((first & 63, nibbles & 15 | first >> 6 << 4), -1)
    minima = torch.cat((second & 63, nibbles >> 4 | second >> 6 << 4), -1)
    return scales, minima


def _q4_k(blocks: torch.Tensor) -> torch.Tensor:
    scales, minima = _six_bit_pairs(blocks[:, 4:16])
    return _in_runs(_nibbles(blocks[:, 16:], 32), _half(blocks, 0) * scales, _half(blocks, 2) * minima)


def _q5_k_numbers(blocks: torch.Tensor) -> torch.Tensor:
    return _nibbles(blocks[:, 48:], 32) | _fields(blocks[:, 16:48], 1).flatten(1) << 4


def _q5_k(blocks: torch.Tensor) -> torch.Tensor:
    scales, minima = _six_bit_pairs(blocks[:, 4:16])
    return _in_runs(_q5_k_numbers(blocks), _half(blocks, 0) * scales, _half(blocks, 2) * minima)


def _q6_k_numbers(blocks: torch.Tensor) -> torch.Tensor:
    high = _fields(blocks[:, 128:192].reshape(-1, 2, 32), 2).flatten(1)
    return (_nibbles(blocks[:, :128], 64) | high << 4).to(torch.int8) - 32


def _q6_k_scales(blocks: torch.Tensor) -> torch.Tensor:
    return _half(blocks, 208) * blocks[:, 192:208].view(torch.int8)


def _q6_k(blocks: torch.Tensor) -> torch.Tensor:
    return _in_runs(_q6_k_numbers(blocks), _q6_k_scales(blocks))


def _table(code: str, q: torch.Tensor) -> torch.Tensor:
    return torch.tensor(CODES[code], dtype=torch.float32)[q.long()]


def _iq4_nl(blocks: torch.Tensor) -> torch.Tensor:
    return _table("iq4", _nibbles(blocks[:, 2:], 16)).mul_(_half(blocks, 0))


def _iq4_xs_multiples(blocks: torch.Tensor) -> torch.Tensor:
    low, high = _fields(blocks[:, 4:8].unsqueeze(-1), 4).flatten(1), _fields(blocks[:, 2:4].unsqueeze(-1), 2).flatten(1)
    return (low | high << 4).to(torch.int8) - 32


def _iq4_xs(blocks: torch.Tensor) -> torch.Tensor:
    return _in_runs(_table("iq4", _nibbles(blocks[:, 8:], 16)), _half(blocks, 0) * _iq4_xs_multiples(blocks))


def _mxfp4(blocks: torch.Tensor) -> torch.Tensor:
    exponent = blocks[:, :1].to(torch.int32) - 128
    return torch.ldexp(_table("e2m1", _nibbles(blocks[:, 1:], 16)), exponent)


def _nvfp4_scales(blocks: torch.Tensor) -> torch.Tensor:
    """Returns the four scales of each block as e4m3, `[N, 4]` uint8. The upper bit is not looked at; without it, NaN
    is 0."""
    return blocks[:, :4].masked_fill(blocks[:, :4] == _E4M3_NAN, 0) & 127


def _nvfp4(blocks: torch.Tensor) -> torch.Tensor:
    bits = _nvfp4_scales(blocks)
    scale = bits.view(FLOAT8).float().masked_fill(bits == _E4M3_NAN, 480.0)  # which the next number would be
    return _in_runs(_table("e2m1", _nibbles(blocks[:, 4:], 8)), scale / 2)


def _q1_0(blocks: torch.Tensor) -> torch.Tensor:
    return (_single_bits(blocks[:, 2:]).float() * 2 - 1).mul_(_half(blocks, 0))


# Types that are not served, for messages that name them.
OTHER_TYPES = {
    **{9: "Q8_1", 15: "Q8_K", 24: "I8", 25: "I16", 26: "I32", 27: "I64", 28: "F64"},
    **{4: "Q4_2, which is no more", 5: "Q4_3, which is no more"},
}
BLOCK_KINDS = {
    kind.name: kind
    for kind in (
        BlockKind("Q4_0", 2, 32, 18, _q4_0),
        BlockKind("Q4_1", 3, 32, 20, _q4_1),
        BlockKind("Q5_0", 6, 32, 22, _q5_0),
        BlockKind("Q5_1", 7, 32, 24, _q5_1),
        BlockKind("Q8_0", 8, 32, 34, _q8_0),
        BlockKind("Q2_K", 10, 256, 84, _q2_k),
        BlockKind("Q3_K", 11, 256, 110, _q3_k),
        BlockKind("Q4_K", 12, 256, 144, _q4_k),
        BlockKind("Q5_K", 13, 256, 176, _q5_k),
        BlockKind("Q6_K", 14, 256, 210, _q6_k),
        BlockKind("IQ2_XXS", 16, 256, 66, iq_blocks.iq2_xxs),
        BlockKind("IQ2_XS", 17, 256, 74, iq_blocks.iq2_xs),
        BlockKind("IQ3_XXS", 18, 256, 98, iq_blocks.iq3_xxs),
        BlockKind("IQ1_S", 19, 256, 50, iq_blocks.iq1_s),
        BlockKind("IQ4_NL", 20, 32, 18, _iq4_nl),
        BlockKind("IQ3_S", 21, 256, 110, iq_blocks.iq3_s),
        BlockKind("IQ2_S", 22, 256, 82, iq_blocks.iq2_s),
        BlockKind("IQ4_XS", 23, 256, 136, _iq4_xs),
        BlockKind("IQ1_M", 29, 256, 56, iq_blocks.iq1_m),
        BlockKind("TQ1_0", 34, 256, 54, iq_blocks.tq1_0),
        BlockKind("TQ2_0", 35, 256, 66, iq_blocks.tq2_0),
        BlockKind("MXFP4", 39, 32, 17, _mxfp4),
        BlockKind("NVFP4", 40, 64, 36, _nvfp4),
        BlockKind("Q1_0", 41, 128, 18, _q1_0),
    )
}
