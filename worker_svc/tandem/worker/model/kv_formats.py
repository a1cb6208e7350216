"""Stores one token's key or value of one head in a page.

| name     | a vector of head_dim numbers x becomes                                            | bytes          |
|----------|-----------------------------------------------------------------------------------|----------------|
| a dtype  | itself                                                                             | d * itemsize   |
| fp8      | e4m3: four bits of exponent, three of mantissa; beyond +-448 the largest           | d              |
| int8     | round(x / s) with one scale s = max|x| / 127                                       | d + 4          |
| int6     | round(x / s) with one scale s = max|x| / 31; the lowest four bits two a byte, then the | 3 d / 4 + 4    |
|          | highest two four a byte                                                           |                |
| int4     | in groups of 32: round((x - low) / s) in 0..15, s = (max - low) / 15; two a byte   | d / 2 + d / 4  |

fp8 has no scale: its error is relative to each number, so that a scale would only matter where numbers are larger than
448 or smaller than 0.002, and GPUs read it as it is. With keys stored normalized (`normalizes_keys`) it costs a small
real model with head_dim 8 1.4 % of perplexity (2.5 % without, 0.6 % with a scale for each vector too), and one with
head_dim 64 0.1 % (0.1 %, 0.1 %).

int6 costs those two 0.2 % and 0.2 % with normalized keys, and 4.7 % and nothing without. A lowest number beside its
scale, which would be 4 bytes more, costs 0.1 % and nothing; groups of 32 are no better than whole vectors.

Each number is quantized with its own vector's scale, so what a token stores does not depend on its company. The scales
are fp32: half of them would cost 3 % more memory than it saves bits of error.
"""

from __future__ import annotations

from typing import Protocol

import torch

INT4_GROUP = 32

Parts = tuple[torch.Tensor, ...]  # each begins with the same dimensions, and ends with its own last one


class KVFormat(Protocol):
    """Converts vectors `[..., head_dim]` to their parts and back."""

    name: str
    normalizes_keys: bool  # whether keys are stored by what `engine/calibration.py` learns of them
    multiple: int  # of which head_dim is one

    def parts(self, head_dim: int) -> list[tuple[int, torch.dtype]]:
        """Returns last dimension and dtype of each part."""
        ...

    def encode(self, x: torch.Tensor) -> Parts:
        """Returns what is stored of `x`."""
        ...

    def decode(self, parts: Parts, out: torch.Tensor) -> torch.Tensor:
        """Reads the parts back, into `out`."""
        ...


class Plain:
    """Stores numbers as they are, in a float dtype."""

    normalizes_keys = False
    multiple = 1

    def __init__(self, dtype: torch.dtype) -> None:
        self.dtype = dtype
        self.name = str(dtype).removeprefix("torch.")

    def parts(self, head_dim: int) -> list[tuple[int, torch.dtype]]:
        return [(head_dim, self.dtype)]

    def encode(self, x: torch.Tensor) -> Parts:
        return (x.to(self.dtype),)

    def decode(self, parts: Parts, out: torch.Tensor) -> torch.Tensor:
        return out.copy_(parts[0])


class Float8(Plain):
    """Stores one byte a number, an e4m3 float."""

    normalizes_keys = True

    def __init__(self) -> None:
        super().__init__(torch.float8_e4m3fn)
        self.name = "fp8"

    def encode(self, x: torch.Tensor) -> Parts:
        largest = torch.finfo(self.dtype).max
        return (x.float().clamp(-largest, largest).to(self.dtype),)  # what is larger would become NaN


class Int8:
    """Stores one signed byte a number, one scale a vector."""

    name = "int8"
    normalizes_keys = False
    multiple = 1

    def parts(self, head_dim: int) -> list[tuple[int, torch.dtype]]:
        return [(head_dim, torch.int8), (1, torch.float32)]

    def encode(self, x: torch.Tensor) -> Parts:
        x = x.float()
        scale = x.abs().amax(dim=-1, keepdim=True).div_(127).clamp_min_(_TINY)
        return (x / scale).round_().to(torch.int8), scale

    def decode(self, parts: Parts, out: torch.Tensor) -> torch.Tensor:
        numbers, scale = parts
        return out.copy_(numbers).mul_(scale)


class Int6:
    """Stores six bits a number, 32 more than it is, and one scale a vector."""

    name = "int6"
    normalizes_keys = True
    multiple = 4

    def parts(self, head_dim: int) -> list[tuple[int, torch.dtype]]:
        return [(head_dim * 3 // 4, torch.uint8), (1, torch.float32)]

    def encode(self, x: torch.Tensor) -> Parts:
        x = x.float()
        scale = x.abs().amax(dim=-1, keepdim=True).div_(31).clamp_min_(_TINY)
        # By int32, of which NaN is the same number here as in the kernels.
        numbers = (x / scale).round_().to(torch.int32).add_(32).bitwise_and_(63).to(torch.uint8)
        low, high = numbers & 15, numbers >> 4
        low = low[..., 0::2] | (low[..., 1::2] << 4)
        high = high[..., 0::4] | (high[..., 1::4] << 2) | (high[..., 2::4] << 4) | (high[..., 3::4] << 6)
        return torch.cat([low, high], dim=-1), scale

    def decode(self, parts: Parts, out: torch.Tensor) -> torch.Tensor:
        packed, scale = parts
        half = out.shape[-1] // 2
        low, high = packed[..., :half], packed[..., half:]
        for place in range(4):
            digits = low[..., place // 2 :: 2] >> 4 * (place % 2) & 15
            out[..., place::4] = digits | (high >> 2 * place & 3) << 4
        return out.sub_(32).mul_(scale)


class Int4:
    """Stores half a byte a number; a scale and a lowest value for each group of 32."""

    name = "int4"
    normalizes_keys = True
    multiple = 2

    def parts(self, head_dim: int) -> list[tuple[int, torch.dtype]]:
        group = int4_group(head_dim)
        return [(head_dim // 2, torch.uint8), (2 * head_dim // group, torch.float32)]

    def encode(self, x: torch.Tensor) -> Parts:
        grouped = _grouped(x.float())
        low, high = grouped.aminmax(dim=-1, keepdim=True)
        scale = ((high - low) / 15).clamp_min_(_TINY)
        numbers = ((grouped - low) / scale).round_().to(torch.uint8).flatten(-2)
        packed = numbers[..., 0::2] | (numbers[..., 1::2] << 4)
        return packed, torch.cat([scale.squeeze(-1), low.squeeze(-1)], dim=-1)

    def decode(self, parts: Parts, out: torch.Tensor) -> torch.Tensor:
        packed, constants = parts
        scale, low = constants.chunk(2, dim=-1)
        out[..., 0::2] = packed & 15
        out[..., 1::2] = packed >> 4
        _grouped(out).mul_(scale.unsqueeze(-1)).add_(low.unsqueeze(-1))
        return out


_TINY = torch.finfo(torch.float32).tiny  # a vector of zeros has no scale of its own


def _grouped(x: torch.Tensor) -> torch.Tensor:
    """Reshapes `[..., head_dim]` to `[..., groups, group]`; a view of what is contiguous."""
    return x.reshape(*x.shape[:-1], -1, int4_group(x.shape[-1]))


def int4_group(head_dim: int) -> int:
    """Returns how many numbers of a vector share a scale and a lowest value."""
    return INT4_GROUP if head_dim % INT4_GROUP == 0 else head_dim


FEW_BITS: tuple[KVFormat, ...] = (Float8(), Int8(), Int6(), Int4())


def kv_format(name: str, dtype: torch.dtype) -> KVFormat:
    """Returns the format of a name; "auto" stores the model's dtype."""
    if name == "auto":
        return Plain(dtype)
    return {form.name: form for form in FEW_BITS}[name]
