"""Reads GPTQ's, AWQ's and AutoRound's matrices, as `quantization_config` of a Hugging Face folder announces them.

All store, for a matrix `W [out, in]` in groups of inputs, `W = scale (q - zero)`, with `scales` `[groups, out]` and
eight numbers of 4 bits (GPTQ also four of 8, or sixteen of 2) in each int32 of `qweight` and `qzeros`
`[groups, out / 8]`:

- GPTQ: `qweight` `[in / 8, out]`; word i of a column holds inputs 8 i to 8 i + 7, a word of `qzeros` as many outputs,
  the lowest bits first. `g_idx` says which group an input belongs to: in the order of their activations (`desc_act`),
  groups are made of inputs from anywhere, and columns are put in the order of the groups.
- AWQ, gemm: `qweight` `[in, out / 8]`; a word of both holds eight outputs, from the lowest bits on 0 2 4 6 1 3 5 7.

GPTQ's first format stores zero - 1, its second (`checkpoint_format: gptq_v2`) and AWQ the zero itself. AutoRound's
`packing_format` is one of the three.

Where the config says that matrices differ, how many bits and which groups one has is seen from its parts.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

import torch

from tandem.worker.checkpoints.fields import Fields
from tandem.worker.checkpoints.grouped import GROUPS, Grouped, Quantization
from tandem.worker.checkpoints.hugging_face_fields.quantization import PACKED_LAYER
from tandem.worker.checkpoints.known_fields import check_fields

_AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)  # the number whose bits are the lowest, the next ones, ...
_SHIFTS = torch.arange(0, 32, 4, dtype=torch.int32)
_BITS = {"gptq": (2, 4, 8), "awq": (4,)}
_PLAIN_BITS = 16  # from so many on, matrices are not packed
# What AutoRound's `packing_format` stands for: the layout, and what is added to a stored zero. Older files say it as
# `backend`, with the kernels that multiply.
_AUTO_ROUND: Mapping[str, tuple[Literal["gptq", "awq"], int]] = {
    **dict.fromkeys(("auto_round:auto_gptq", "auto_round:gptq", "auto_round:gptq:exllamav2"), ("gptq", 1)),
    **dict.fromkeys(("auto_round", "auto_round:exllamav2", "auto_round:gptqmodel"), ("gptq", 0)),
    **dict.fromkeys(("auto_round:auto_awq", "auto_round:awq"), ("awq", 0)),
}


@dataclass(frozen=True, slots=True)
class Packing:
    """Describes how the matrices of a checkpoint are packed."""

    layout: Literal["gptq", "awq"]
    group: int  # inputs that share a scale; 0: all of them
    zero_offset: int  # added to a stored zero
    reordered: bool = False  # `desc_act`: then `g_idx` must be there
    bits: int = 4
    varied: bool = False  # some matrices have other bits or groups

    @property
    def each(self) -> int:
        """Returns how many numbers lie in a word."""
        return 32 // self.bits

    def shapes(self, rows: int, columns: int, *, ordered: bool) -> dict[str, tuple[int, ...]]:
        """Returns the stored shape of each part of a matrix `[rows, columns]`; GPTQ's `g_idx` may be missing, unless it
        is `ordered`. Raises ValueError."""
        if rows % 8 or columns % 8:
            raise ValueError(f"is [{rows}, {columns}]; packed are eights of both")
        groups = -(-columns // (self.group or columns))
        if self.layout == "awq":
            return {"qweight": (columns, rows // 8), "qzeros": (groups, rows // 8), "scales": (groups, rows)}
        shapes: dict[str, tuple[int, ...]] = {
            "qweight": (columns // self.each, rows),
            "qzeros": (groups, rows // self.each),
            "scales": (groups, rows),
        }
        return shapes | ({"g_idx": (columns,)} if ordered or self.reordered else {})

    def of(self, columns: int, qweight: tuple[int, ...], scales: tuple[int, ...]) -> Packing:
        """Returns how a matrix of so many columns is packed, whose parts have these shapes."""
        if not self.varied or len(qweight) != 2 or len(scales) != 2:
            return self
        bits, group = self.bits, self.group
        if self.layout == "gptq":
            bits = next((its for its in _BITS["gptq"] if qweight[0] * 32 == columns * its), bits)
        groups = max(scales[0], 1)
        if groups == 1:
            group = 0
        elif groups != -(-columns // (group or columns)) and _is_served(columns // groups):
            group = columns // groups
        return replace(self, bits=bits, group=group)

    def matrix(self, shape: tuple[int, int], parts: Mapping[str, torch.Tensor]) -> PackedMatrix:
        """Makes the whole of a matrix; raises ValueError where `g_idx` makes groups of other sizes."""
        rows, columns = shape
        index, order = parts.get("g_idx"), None
        if index is not None:
            plain = torch.arange(columns, dtype=index.dtype) // (self.group or columns)
            if not torch.equal(index, plain):
                order = index.argsort(stable=True)
                if not torch.equal(index[order], plain):
                    raise ValueError(f"g_idx does not give every group {self.group} inputs")
        matrix = PackedMatrix(self, parts, torch.arange(rows), range(columns), order, False)
        return replace(matrix, symmetric=bool((matrix._zeros() == 1 << self.bits - 1).all()))


def packing_of(method: str, fields: Fields) -> Packing:
    """Reads the fields of `quantization_config`, all of them known. Raises CheckpointError for what is not served."""
    layout, offset = _auto_round(fields) if method == "auto-round" else ("awq" if method == "awq" else "gptq", 0)
    bits, group = _numbers(fields, layout)
    varied = _vary(fields, layout)
    if method == "auto-round":
        return Packing(layout, group, offset, bits=bits, varied=varied)
    if method == "awq":
        if (version := (fields.text("version", "gemm") or "").lower()) != "gemm":
            raise fields.error("version", f"{version!r} is not served; served is gemm")
        return Packing("awq", group, 0, varied=varied)
    reordered = fields.boolean("desc_act", False)
    kind = fields.text("checkpoint_format", fields.text("format", "gptq"))
    if kind not in ("gptq", "gptq_v2"):
        raise fields.error("checkpoint_format", f"{kind!r} is not served; served are gptq and gptq_v2")
    if fields.text("format", kind) != kind:
        raise fields.error("format", f"is {fields.text('format')!r}, but checkpoint_format is {kind!r}")
    return Packing("gptq", group, 1 if kind == "gptq" else 0, reordered, bits, varied)


def _auto_round(fields: Fields) -> tuple[Literal["gptq", "awq"], int]:
    key = "packing_format" if fields.has("packing_format") else "backend"
    packing = fields.text(key, "auto_round:auto_gptq") or ""
    if packing == "auto":
        packing = "auto_round:auto_gptq"
    if packing not in _AUTO_ROUND:
        raise fields.error(key, f"{packing!r} is not served; served are {', '.join(_AUTO_ROUND)}")
    return _AUTO_ROUND[packing]


def _numbers(fields: Fields, layout: str) -> tuple[int, int]:
    """Reads the bits, and the group, 0 for all inputs."""
    allowed = _BITS[layout]
    if (bits := fields.integer("bits")) not in allowed:
        raise fields.error(
            "bits", f"is {bits}; served {'are' if len(allowed) > 1 else 'is'} {', '.join(map(str, allowed))}"
        )
    group = fields.integer("group_size")
    if group != -1 and not _is_served(group):
        raise fields.error("group_size", f"is {group}; served are -1, 32, 64 and multiples of {GROUPS[-1]}")
    return bits, max(group, 0)


def _is_served(group: int) -> bool:
    return group in GROUPS or (group > 0 and group % GROUPS[-1] == 0)


def _vary(fields: Fields, layout: str) -> bool:
    """Reads what is said of some matrices, by their names or patterns of them (GPTQModel's `dynamic`, AutoRound's
    `extra_config`), and tells whether it is something else than of all. Those behind `-:`, and those of 16 bits, are
    not packed, which is seen from their tensors."""
    varied = False
    for name in ("dynamic", "extra_config"):
        every = fields.object(name)
        for pattern in every.values:
            if pattern.startswith("-:"):
                continue
            rule = every.object(pattern)
            if rule.has("bits") and rule.integer("bits") >= _PLAIN_BITS:
                continue
            other = rule.with_values(
                {key: value for key, value in rule.values.items() if value != fields.values.get(key)}
            )
            check_fields(other, PACKED_LAYER)
            _numbers(rule.with_values({**fields.values, **rule.values}), layout)
            varied = varied or other.has("bits") or other.has("group_size")
    return varied


@dataclass(frozen=True, slots=True)
class PackedMatrix:
    """A matrix, or some rows and columns of one; see `StoredMatrix`."""

    packing: Packing
    parts: Mapping[str, torch.Tensor]  # of the whole matrix
    rows: torch.Tensor  # which of its rows
    inputs: range  # which of its columns
    order: torch.Tensor | None  # of its columns, that the groups lie together; None: they do
    symmetric: bool  # every zero is the middle: 2, 8 or 128

    @property
    def shape(self) -> tuple[int, int]:
        """Returns rows and columns."""
        return len(self.rows), len(self.inputs)

    @property
    def nbytes(self) -> int:
        """Returns the stored bytes of the rows, as their share of the whole."""
        return sum(part.nbytes for part in self.parts.values()) * len(self.rows) // self.parts["scales"].shape[1]

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, rows: slice | torch.Tensor) -> PackedMatrix:
        return replace(self, rows=self.rows[rows])

    def columns(self, part: slice) -> PackedMatrix:
        """Returns some columns; raises ValueError where they begin or end within a group."""
        if self.order is not None:
            raise ValueError("columns in the order of their activations (desc_act) cannot be divided")
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
        grouped = self.grouped()
        if grouped is not None:
            return grouped.dequantize()
        group = torch.arange(self.inputs.start, self.inputs.stop) // (self.packing.group or self.inputs.stop)
        scale, zero = self.parts["scales"][:, self.rows].float(), self._zeros()
        numbers = (self._numbers() - zero[group]).float().mul_(scale[group]).t()
        return numbers if self.order is None else torch.empty_like(numbers).index_copy_(1, self.order, numbers)

    def _numbers(self) -> torch.Tensor:
        """Returns q `[columns, rows]`, its columns in the order of the groups, which lie side by side."""
        qweight, each = self.parts["qweight"], self.packing.each
        if self.packing.layout == "awq":
            return self._interleaved(qweight[self.inputs.start : self.inputs.stop])
        words = qweight[self.inputs.start // each : -(-self.inputs.stop // each), self.rows]
        q = words.t().contiguous().view(torch.uint8)  # row by row
        for bits in (4, 2):  # each byte becomes two, with half of its bits each
            if bits >= self.packing.bits:
                wide = q.to(torch.int16)
                q = ((wide | wide << 8 - bits) & 0x0101 * ((1 << bits) - 1)).view(torch.uint8)
        q = q[:, : len(self.inputs)].t()
        return q if self.order is None else q[self.order]

    def grouped(self) -> Grouped | None:
        """Returns them in groups; where not every zero is 8, scales are float32, which holds scale x zero. None: of 8
        bits, with zeros."""
        group, q = self._group, self._numbers()
        # The stored group of each of ours, whose size divides the stored one's.
        first, last = self.inputs.start // group, -(-self.inputs.stop // group)
        stored = torch.arange(first, last) * group // (self.packing.group or self.inputs.stop)
        scale = self.parts["scales"][stored][:, self.rows].t()
        bits = self.packing.bits
        eight_bits = bits == 8
        if not self.symmetric:
            if eight_bits:
                return None
            scale = scale.float()
            least = -scale * self._zeros()[stored].t()
            return Grouped(Quantization(4, group), q.t().contiguous().to(torch.uint8), scale, least, self.order)
        scale = scale.contiguous() if scale.dtype == torch.float16 else scale.float()
        kind = Quantization(8, group) if eight_bits else Quantization(4, group, "int4")
        q = (q - 128).to(torch.int8) if eight_bits else q.to(torch.uint8) + (8 - (1 << bits - 1))
        return Grouped(kind, q.t().contiguous(), scale, None, self.order)

    def float8(self) -> None:
        """Returns None: they are whole numbers."""

    @property
    def _group(self) -> int:
        return self.packing.group if self.packing.group in GROUPS else GROUPS[-1]

    def _zeros(self) -> torch.Tensor:
        """Unpacks the zeros, `[stored groups, rows]`."""
        stored = self.parts["qzeros"]
        if self.packing.layout == "awq":
            return self._interleaved(stored)
        each, bits = self.packing.each, self.packing.bits
        places = (self.rows % each * bits).int()
        return (stored[:, self.rows // each] >> places & (1 << bits) - 1) + self.packing.zero_offset

    def _interleaved(self, words: torch.Tensor) -> torch.Tensor:
        """Unpacks AWQ's numbers `[n, rows]` out of `[n, out / 8]`."""
        shifts = torch.empty_like(_SHIFTS)
        shifts[torch.tensor(_AWQ_ORDER)] = _SHIFTS
        return words[:, self.rows // 8] >> shifts[self.rows % 8] & 15
