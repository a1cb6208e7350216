"""What a scheme of `schemes.py` is, and what several of them share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import torch

from tandem.worker.checkpoints.checkpoint import StoredMatrix, StoredTensor
from tandem.worker.checkpoints.grouped import E8M0, FINE_GROUP, FLOAT8
from tandem.worker.checkpoints.scaled import E4M3, MXFP4, NVFP4, Form, ScaledMatrix

FLOATS = (torch.float32, torch.float16, torch.bfloat16)
ONE: tuple[tuple[int, ...], ...] = ((), (1,), (1, 1))
MX_GROUP = 32  # numbers that share a power of two
_POWERS = (E8M0, torch.float8_e8m0fnu)


@dataclass(frozen=True, slots=True)
class Part:
    """What a part of a matrix may be; the shapes that a message tells come first."""

    shapes: tuple[tuple[int, ...], ...]
    dtypes: tuple[torch.dtype, ...]


class Scheme(Protocol):
    """One way of storing quantized matrices."""

    @property
    def parts(self) -> tuple[str, ...]:
        """Returns what parts of a matrix may be called, behind its name without "weight"."""

    def expected(self, shape: tuple[int, ...], found: Mapping[str, StoredTensor]) -> dict[str, Part]:
        """Returns what the parts must be, given those that are there; empty for a matrix `[out, in]`, or matrices
        `[experts, out, in]`, that are not quantized. Raises ValueError."""

    def matrix(self, shape: tuple[int, int], parts: Mapping[str, torch.Tensor]) -> StoredMatrix:
        """Makes the matrix. Raises ValueError."""


def scale_part(shape: tuple[int, ...], block: tuple[int, int], found: StoredTensor | None = None) -> Part:
    rows, columns = shape
    shapes = [(-(-rows // block[0]), -(-columns // block[1])), (rows, 1), (rows,), *ONE]
    if found is not None and len(found.shape) == 2 and found.shape[0] == rows and columns % max(found.shape[1], 1) == 0:
        shapes.insert(0, (rows, found.shape[1]))
    return Part(tuple(shapes), (*FLOATS, torch.float8_e8m0fnu))


def scaled(
    form: Form,
    shape: tuple[int, int],
    numbers: torch.Tensor,
    scale: torch.Tensor,
    parts: Mapping[str, torch.Tensor],
    block: tuple[int, int] | None = None,
    zero: torch.Tensor | None = None,
) -> ScaledMatrix:
    rows, columns = shape
    scale = scale.float().reshape(scale.shape if scale.dim() == 2 else (-1, 1))
    squares = block is not None and tuple(scale.shape) == (-(-rows // block[0]), -(-columns // block[1]))
    if not squares or scale.shape[0] == rows or scale.numel() == 1:
        block = (-(-rows // scale.shape[0]), -(-columns // scale.shape[1]))
    return ScaledMatrix.of(
        form, shape, numbers, scale, block=block, zero=zero, stored=sum(part.nbytes for part in parts.values())
    )


def e2m1_parts(shape: tuple[int, ...], scale: torch.dtype) -> tuple[Part, Part]:
    """Returns what numbers of 4 bits and their scales must be: two numbers a byte; scales e4m3 of 16 or 32 numbers, or
    powers of two of 32. Raises ValueError."""
    rows, columns = shape
    sizes, kinds = ((FINE_GROUP, MX_GROUP), (FLOAT8,)) if scale == FLOAT8 else ((MX_GROUP,), _POWERS)
    shapes = tuple((rows, columns // size) for size in sizes if columns % size == 0)
    if not shapes:
        raise ValueError(f"has rows of {columns} numbers, {sizes[0]} of which share a scale")
    return Part(((rows, columns // 2),), (torch.uint8,)), Part(shapes, kinds)


def e2m1(
    shape: tuple[int, int],
    numbers: torch.Tensor,
    scale: torch.Tensor,
    factor: torch.Tensor | None,
    parts: Mapping[str, torch.Tensor],
) -> ScaledMatrix:
    """Makes a matrix of such numbers; `factor`: one number, by which scales of e4m3 are multiplied."""
    stored, size = sum(part.nbytes for part in parts.values()), shape[1] // scale.shape[1]
    if scale.dtype in _POWERS:
        return ScaledMatrix.of(MXFP4, shape, numbers, scale.view(E8M0), block=(1, size), stored=stored)
    assert factor is not None
    # Numbers of the table are twice what they stand for.
    half = factor.float().reshape(()) / 2
    return ScaledMatrix.of(NVFP4, shape, numbers, scale, block=(1, size), factor=half, stored=stored)


def powers_part(shape: tuple[int, ...]) -> Part:
    """Returns what scales of e4m3 must be that are powers of two of 32 numbers each. Raises ValueError."""
    rows, columns = shape
    if columns % MX_GROUP:
        raise ValueError(f"has rows of {columns} numbers, {MX_GROUP} of which share a scale")
    return Part(((rows, columns // MX_GROUP),), _POWERS)


def in_powers(
    shape: tuple[int, int], numbers: torch.Tensor, scale: torch.Tensor, parts: Mapping[str, torch.Tensor]
) -> ScaledMatrix:
    """Makes a matrix of e4m3 with such scales."""
    stored = sum(part.nbytes for part in parts.values())
    return ScaledMatrix.of(E4M3, shape, numbers, scale.view(E8M0), block=(1, MX_GROUP), stored=stored)
