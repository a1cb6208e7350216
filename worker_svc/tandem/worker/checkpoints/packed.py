"""Reads GPTQ's and AWQ's 4-bit matrices, as `quantization_config` of a Hugging Face folder announces them.

Both store, for a matrix `W [out, in]` in groups of inputs, `W = scale (q - zero)`, with `scales` `[groups, out]` and
eight numbers of 4 bits in each int32 of `qweight` and `qzeros` `[groups, out / 8]`:

- GPTQ: `qweight` `[in / 8, out]`; word i of a column holds inputs 8 i to 8 i + 7, a word of `qzeros` as many outputs,
  the lowest bits first. `g_idx` says which group an input belongs to; served is the plain order only, not that of their
  activations (`desc_act`).
- AWQ, gemm: `qweight` `[in, out / 8]`; a word of both holds eight outputs, from the lowest bits on 0 2 4 6 1 3 5 7.

GPTQ's first format stores zero - 1, its second (`checkpoint_format: gptq_v2`) and AWQ the zero itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

import torch

from tandem.worker.checkpoints.fields import Fields
from tandem.worker.checkpoints.grouped import GROUPS, Grouped, Quantization
from tandem.worker.checkpoints.hugging_face_fields import QUANTIZATION
from tandem.worker.checkpoints.known_fields import check_fields

_AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)  # the number whose bits are the lowest, the next ones, ...
_SHIFTS = torch.arange(0, 32, 4, dtype=torch.int32)
PARTS = ("qweight", "qzeros", "scales", "g_idx")


@dataclass(frozen=True, slots=True)
class Packing:
    """Describes how the matrices of a checkpoint are packed."""

    layout: Literal["gptq", "awq"]
    group: int  # inputs that share a scale; 0: all of them
    zero_offset: int  # added to a stored zero
    reordered: bool = False  # `desc_act`: then `g_idx` must be there, and say the plain order

    def shapes(self, rows: int, columns: int) -> dict[str, tuple[int, ...]]:
        """Returns the stored shape of each part of a matrix `[rows, columns]`; GPTQ's `g_idx` may be missing."""
        groups = -(-columns // (self.group or columns))
        if self.layout == "awq":
            return {"qweight": (columns, rows // 8), "qzeros": (groups, rows // 8), "scales": (groups, rows)}
        shapes: dict[str, tuple[int, ...]] = {"qweight": (columns // 8, rows), "qzeros": (groups, rows // 8)}
        return shapes | {"scales": (groups, rows), "g_idx": (columns,)}


def packing_of(config: Fields) -> Packing | None:
    """Reads `quantization_config`; returns None without one. Raises CheckpointError for what is not served."""
    fields = config.object("quantization_config")
    if not fields.values:
        return None
    method = fields.text("quant_method")
    if method is None or method not in QUANTIZATION:
        raise fields.error("quant_method", f"{method!r} is not served; served are {' and '.join(QUANTIZATION)}")
    check_fields(fields, QUANTIZATION[method])
    if (bits := fields.integer("bits")) != 4:
        raise fields.error("bits", f"is {bits}; served is 4")
    group = fields.integer("group_size")
    if group != -1 and group not in (32, 64) and (group <= 0 or group % GROUPS[-1]):
        raise fields.error("group_size", f"is {group}; served are -1, 32, 64 and multiples of {GROUPS[-1]}")
    if method == "awq":
        if (version := (fields.text("version", "gemm") or "").lower()) != "gemm":
            raise fields.error("version", f"{version!r} is not served; served is gemm")
        if not fields.boolean("zero_point", True):
            raise fields.error("zero_point", "is false; AWQ without zeros is not served")
        return Packing("awq", max(group, 0), 0)
    reordered = fields.boolean("desc_act", False)
    kind = fields.text("checkpoint_format", "gptq")
    if kind not in ("gptq", "gptq_v2"):
        raise fields.error("checkpoint_format", f"{kind!r} is not served; served are gptq and gptq_v2")
    return Packing("gptq", max(group, 0), 1 if kind == "gptq" else 0, reordered)


@dataclass(frozen=True, slots=True)
class PackedMatrix:
    """A matrix, or some rows and columns of one; see `StoredMatrix`."""

    packing: Packing
    parts: Mapping[str, torch.Tensor]  # of the whole matrix
    rows: torch.Tensor  # which of its rows
    inputs: range  # which of its columns
    symmetric: bool  # every zero is 8

    @classmethod
    def of(cls, packing: Packing, parts: Mapping[str, torch.Tensor]) -> PackedMatrix:
        """Makes the whole of a matrix; raises ValueError where `g_idx` is another order than the plain one."""
        rows = parts["scales"].shape[1]
        columns = parts["qweight"].shape[0] * (8 if packing.layout == "gptq" else 1)
        index = parts.get("g_idx")
        if index is not None:
            plain = torch.arange(columns, dtype=index.dtype) // (packing.group or columns)
            if not torch.equal(index, plain):
                raise ValueError("has inputs in the order of their activations (desc_act), which is not served")
        matrix = cls(packing, parts, torch.arange(rows), range(columns), False)
        return replace(matrix, symmetric=bool((matrix._zeros() == 8).all()))

    @property
    def shape(self) -> tuple[int, int]:
        """Returns rows and columns."""
        return len(self.rows), len(self.inputs)

    @property
    def nbytes(self) -> int:
        """Returns the stored bytes of the whole matrix that this is of."""
        return sum(part.nbytes for part in self.parts.values())

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, rows: slice | torch.Tensor) -> PackedMatrix:
        return replace(self, rows=self.rows[rows])

    def columns(self, part: slice) -> PackedMatrix:
        """Returns some columns; raises ValueError where they begin or end within a group."""
        if part.start % self._group or part.stop % self._group:
            raise ValueError(f"columns {part.start} to {part.stop} cut a group of {self._group}")
        return replace(self, inputs=self.inputs[part])

    @property
    def mapped(self) -> tuple[torch.Tensor, ...]:
        """Returns the file's views, once the last row is asked for: rows do not lie together in them."""
        complete = len(self.rows) and int(self.rows[-1]) == self.parts["scales"].shape[1] - 1
        return tuple(self.parts.values()) if complete else ()

    def dequantize(self) -> torch.Tensor:
        """Returns the numbers, float32."""
        return self.grouped().dequantize()

    def grouped(self) -> Grouped:
        """Returns them in groups; float16 scales where every zero is 8, else float32, which holds scale x zero."""
        qweight, group = self.parts["qweight"], self._group
        if self.packing.layout == "gptq":
            words = qweight[self.inputs.start // 8 : self.inputs.stop // 8, self.rows]
            q = (words.unsqueeze(1) >> _SHIFTS.view(1, 8, 1) & 15).flatten(0, 1)
        else:
            q = self._interleaved(qweight[self.inputs.start : self.inputs.stop])
        # The stored group of each of ours, whose size divides the stored one's.
        first, last = self.inputs.start // group, -(-self.inputs.stop // group)
        stored = torch.arange(first, last) * group // (self.packing.group or self.inputs.stop)
        scale = self.parts["scales"][stored][:, self.rows].t().float()
        least = -scale * self._zeros()[stored].t()
        if self.symmetric and self.parts["scales"].dtype == torch.float16 and least.half().isfinite().all():
            scale, least = scale.half(), least.half()
        return Grouped(Quantization(4, group), q.t().contiguous().to(torch.uint8), scale, least)

    @property
    def _group(self) -> int:
        return self.packing.group if self.packing.group in GROUPS else GROUPS[-1]

    def _zeros(self) -> torch.Tensor:
        """Unpacks the zeros, `[stored groups, rows]`."""
        stored = self.parts["qzeros"]
        if self.packing.layout == "awq":
            return self._interleaved(stored)
        return (stored[:, self.rows // 8] >> (self.rows % 8 * 4).int() & 15) + self.packing.zero_offset

    def _interleaved(self, words: torch.Tensor) -> torch.Tensor:
        """Unpacks AWQ's numbers `[n, rows]` out of `[n, out / 8]`."""
        shifts = torch.empty_like(_SHIFTS)
        shifts[torch.tensor(_AWQ_ORDER)] = _SHIFTS
        return words[:, self.rows // 8] >> shifts[self.rows % 8] & 15
