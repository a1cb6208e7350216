"""Weights as compiled functions of several products take them; see `native/matrices.h`."""

from __future__ import annotations

import ctypes

import torch

from tandem.worker.model.cpu.native import PANEL, SCALES, WIDE_KINDS
from tandem.worker.model.cpu.wide_panels import WidePanels
from tandem.worker.model.float8 import Float8Weight
from tandem.worker.model.linear import FloatRows, HalfPanels, Linear, PlainWeight
from tandem.worker.model.quantization import QuantizedWeight
from tandem.worker.model.weights import Embedding

# What is the same of matrices that are stored alike.
ALIKE = ("bits", "half", "per_channel", "inputs", "outputs", "panels", "groups", "group")
_WIDE, _FLOAT8, _FLOATS = 0, -8, 32  # as in matrices.h
_Pointer, _Size, _Number = ctypes.c_void_p, ctypes.c_int64, ctypes.c_int32


class Matrix(ctypes.Structure):
    """A stored matrix. It points at a weight's tensors, which must outlive it."""

    bias: int | None
    order: int | None
    bits: int
    panels: int
    inputs: int
    outputs: int

    _fields_ = (
        *((name, _Pointer) for name in ("numbers", "scale", "least", "scale_unit", "least_unit", "table")),
        *((name, _Number) for name in ("bits", "half", "per_channel")),
        *((name, _Size) for name in ("inputs", "outputs", "panels", "groups", "group")),
        ("bias", _Pointer),
        ("order", _Pointer),
    )

    @property
    def width(self) -> int:
        """Returns how many numbers a row of its product has, those included that fill up a panel."""
        return self.outputs if self.bits in (_WIDE, _FLOATS) else self.panels * PANEL


def matrices_of(linear: Linear) -> list[Matrix]:
    """Returns the matrices of a linear, whose outputs follow each other, each with its part of the bias; none if there
    is one whose product is not compiled."""
    matrices: list[Matrix] = []
    first = 0
    for weight in linear.weights:
        matrix = _matrix(weight, linear.in_features, len(weight))  # type: ignore[arg-type]
        if matrix is None:
            return []
        if linear.bias is not None:
            matrix.bias = linear.bias.weight[first:].data_ptr()
        matrices.append(matrix)
        first += matrix.outputs
    return matrices


def matrix_of_rows(embedding: Embedding) -> Matrix | None:
    """Returns the matrix whose rows an embedding looks up as float32, for `beginning.c`; None if it serves no such."""
    weight, sizes = embedding.stored, {"inputs": embedding.in_features, "outputs": embedding.out_features}
    if embedding.dtype != torch.float32:
        return None
    if not isinstance(weight, PlainWeight):
        matrix = _matrix(weight, **sizes)
        return None if matrix is None or matrix.bits == _FLOAT8 else matrix
    numbers = weight.weight.data
    if numbers.is_mkldnn or numbers.device.type != "cpu" or numbers.dtype not in WIDE_KINDS:
        return None
    return Matrix(numbers=numbers.data_ptr(), bits=_FLOATS, half=WIDE_KINDS[numbers.dtype], **sizes)


def _matrix(weight: torch.nn.Module, inputs: int, outputs: int) -> Matrix | None:
    if isinstance(weight, WidePanels):
        kind = WIDE_KINDS[weight.panels.dtype]
        return Matrix(numbers=weight.panels.data_ptr(), bits=_WIDE, half=kind, inputs=inputs, outputs=outputs)
    if isinstance(weight, HalfPanels):
        panels = weight.panels
        bf16 = panels.dtype == torch.bfloat16
        return Matrix(numbers=panels.data_ptr(), bits=16, half=bf16, inputs=inputs, outputs=outputs, panels=len(panels))
    if isinstance(weight, FloatRows):
        return Matrix(numbers=weight.weight.data_ptr(), bits=_FLOATS, inputs=inputs, outputs=outputs)
    if isinstance(weight, Float8Weight) and weight.compiled:
        return Matrix(
            numbers=weight.q.data_ptr(),
            scale=weight.scale.data_ptr(),
            bits=_FLOAT8,
            inputs=inputs,
            outputs=outputs,
            panels=len(weight.q),
            groups=weight.groups,
        )
    if type(weight) is not QuantizedWeight or not weight.compiled:
        return None
    return Matrix(
        numbers=weight.q.data_ptr(),
        scale=weight.scale.data_ptr(),
        **{
            name: None if (part := getattr(weight, name)) is None else part.data_ptr()
            for name in ("least", "scale_unit", "least_unit", "table", "order")
        },
        bits=weight.kind.bits,
        half=SCALES[weight.scale.dtype],
        per_channel=weight.scale.shape[1] == 1 and weight.groups > 1,
        inputs=inputs,
        outputs=outputs,
        panels=len(weight.q),
        groups=weight.groups,
        group=weight.group,
    )
