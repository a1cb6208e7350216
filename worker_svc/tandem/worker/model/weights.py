"""Fills a model's weights from a checkpoint without a second copy of them.

A weight is allocated when its first rows come and filled piece by piece, the memory of each piece being given back to
the checkpoint. What kind of weight it is depends on the rows: quantized ones stay as they are, others are quantized
where that is asked for. A matrix whose rows come in several kinds becomes several weights.

Matrices that `PlainWeight.settle` replaces by rearranged copies lie in one staging buffer until then: freed one by one,
they would leave holes behind that the C library keeps, a fifth of a small model.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Literal

import torch

from tandem.worker.checkpoints.checkpoint import StoredMatrix
from tandem.worker.checkpoints.grouped import Float8Rows, Grouped, Quantization, to_float8
from tandem.worker.checkpoints.memory import zeros
from tandem.worker.model.cpu.wide_panels import WidePanels
from tandem.worker.model.float8 import Float8Weight
from tandem.worker.model.linear import FloatRows, HalfPanels, Linear, Panels, PlainWeight, Router, Weight, rearranges
from tandem.worker.model.parallel import ALONE, Ranks
from tandem.worker.model.quantization import INT8, QuantizedWeight, quantize

_PIECE_BYTES = 1 << 20  # of rows in float32 that are copied at once: the heap keeps what copies on the way took
_PIECE_ROWS = 32  # or a multiple of them: of whole panels
_STAGING_BYTES = 32 << 20  # larger ones are given back to the system at once (glibc's largest mmap threshold)

Source = torch.Tensor | StoredMatrix
Rows = torch.Tensor | Grouped | Float8Rows
# What matrices are turned into; "stored": as the checkpoint has them; None: into none.
MadeOf = Quantization | Literal["stored", "fp8"] | None


class Vector(torch.nn.Module):
    """A module with one vector of numbers: a norm, a bias."""

    weight: torch.nn.Parameter


class Embedding(torch.nn.Module):
    """Looks up token vectors. A tied output computes with the same weight."""

    __call__: Callable[..., torch.Tensor]

    def __init__(
        self, rows: int, columns: int, dtype: torch.dtype, *, tied: bool, ranks: Ranks = ALONE, first: int = 0
    ) -> None:
        """Takes the sizes; `first` is the token whose vector is this rank's first."""
        super().__init__()
        self._ranks, self._first = ranks, first
        self.in_features, self.out_features = columns, rows
        self.weight_rows = rows
        self.weights = torch.nn.ModuleList()  # one, once it is there
        self.tied, self.dtype = tied, dtype

    @property
    def stored(self) -> Weight:
        """Returns the one weight."""
        return self.weights[0]  # type: ignore[return-value]

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """Computes `[N] -> [N, hidden]`."""
        if self._ranks.size == 1:
            return self.stored.rows(ids).to(self.dtype).contiguous()
        ids = ids - self._first
        ours = (ids >= 0) & (ids < self.out_features)
        vectors = self.stored.rows(ids.clamp(0, self.out_features - 1)).to(self.dtype)
        return self._ranks.add_up(vectors.masked_fill(~ours.unsqueeze(-1), 0))


class WeightFiller:
    """Allocates and fills the weights of modules that have none yet."""

    def __init__(
        self,
        device: torch.device | str,
        dtype: torch.dtype,
        quantization: MadeOf = "stored",
        quantized_weight: Callable[..., QuantizedWeight] = QuantizedWeight,
        *,
        panels: Panels | None = None,
        compiled: bool = False,
    ) -> None:
        """`dtype` is that of plain matrices, but for routers that come in float32; they lie in `panels` if there are
        such. With `compiled`, products of quantized ones are compiled (`Grouped.compiled_alone`).
        `quantized_weight` is called like the class, and makes one in the device's own order."""
        self._panels = panels
        self.device = torch.device(device)
        self._compiled = compiled
        self._dtype = dtype
        self._quantization = quantization
        self._quantized_weight = quantized_weight
        self._rows_left: dict[torch.nn.Module, int] = {}
        self._first_row: dict[torch.nn.Module, int] = {}  # of a matrix's last weight
        self._staging = torch.empty(0, dtype=dtype)
        self._staged: torch.nn.Module | None = None  # whose weight lies in the staging buffer

    def fill(
        self,
        module: torch.nn.Module,
        row: int,
        source: Source,
        release: Callable[[Source], None],
        columns: slice | None = None,
        *,
        least_bits: int = 4,
    ) -> None:
        """Copies `source` `[rows, ...]`, or some columns of it, to the module's weight from `row` on.

        A matrix is quantized to no less than `least_bits`, if at all. The rows of a matrix come in order. Raises
        OverflowError when a number becomes infinite in float16, and ValueError where columns cut a quantized group.
        """
        if not isinstance(module, (Linear, Embedding)):
            self._fill_vector(module, row, source)  # type: ignore[arg-type]
            return
        self._rows_left.setdefault(module, module.out_features)
        for start, stored in _pieces(source, module.weight_rows):
            self._store(module, row + start, self._converted(stored, columns, least_bits))
            release(stored)
        release(source)  # reading a piece brings pages of the one before back
        self._rows_left[module] -= len(source)
        if not self._rows_left[module]:
            self._settle(module)

    def _fill_vector(self, module: Vector, row: int, source: Source) -> None:
        if not isinstance(source, torch.Tensor):  # a small matrix that is no `Linear` here
            source = source.dequantize()
        if module.weight.is_meta:
            # What no tensor gives is 0: gates of attention have no bias beside queries, keys and values that have.
            empty = torch.zeros(module.weight.shape, dtype=module.weight.dtype, device=self.device)
            module.weight = torch.nn.Parameter(empty, requires_grad=False)
        part = module.weight.data[row : row + len(source)]
        part.copy_(source)
        self._check_finite(source, part)

    def _converted(self, stored: Source, columns: slice | None, least_bits: int) -> Rows:
        """Converts rows to the form in which they are kept."""
        if isinstance(stored, torch.Tensor):
            rows = stored if columns is None else stored[:, columns]
        else:
            if self._quantization == "stored":
                part = stored if columns is None else stored.columns(columns)
                kept = part.float8() or part.grouped()
                if kept is not None and (self._compiled or isinstance(kept, Float8Rows)):
                    return kept
                if isinstance(kept, Grouped) and not kept.compiled_alone:
                    return kept.with_floats()
            rows = stored.dequantize()
            rows = rows if columns is None else rows[:, columns]
        if isinstance(self._quantization, Quantization):
            for kind in (self._quantization, INT8):
                if kind.bits >= least_bits:
                    return quantize(rows.to(self.device), kind)
        elif self._quantization == "fp8" and least_bits <= 4:
            return to_float8(rows.to(self.device))
        return rows

    def _store(self, module: Linear | Embedding, row: int, rows: Rows) -> None:
        last: Weight | None = module.weights[-1] if len(module.weights) else None  # type: ignore[assignment]
        first = self._first_row.setdefault(module, 0)
        ends = row - first == module.weight_rows
        if last is None or ends or not _takes(last, rows):
            if ends:
                self._settle(module)
            elif last is not None:
                last.truncate(row - first)
            first = self._first_row[module] = row
            last = self._allocate(module, min(module.weight_rows, module.out_features - row), rows)
            module.weights.append(last)
        if isinstance(rows, Grouped):
            assert isinstance(last, QuantizedWeight)
            last.fill(row - first, rows)
            return
        if isinstance(rows, Float8Rows):
            assert isinstance(last, Float8Weight)
            last.fill(row - first, rows)
            return
        assert isinstance(last, PlainWeight | HalfPanels | WidePanels | FloatRows)
        kept = rows.to(self._kept_in(module, rows))
        self._check_finite(rows, kept)
        last.fill(row - first, kept)

    def _kept_in(self, module: Linear | Embedding, rows: torch.Tensor) -> torch.dtype:
        """Returns the dtype that plain rows are kept in: the model's, but for a router's float32."""
        return rows.dtype if isinstance(module, Router) and rows.dtype == torch.float32 else self._dtype

    def _check_finite(self, source: torch.Tensor, kept: torch.Tensor) -> None:
        if kept.dtype == torch.float16 and source.dtype != kept.dtype and not kept.isfinite().all():
            raise OverflowError("numbers that do not fit into float16")

    def _settle(self, module: Linear | Embedding) -> None:
        last = module.weights[-1]
        if isinstance(module, Linear) and isinstance(last, PlainWeight):
            last.settle()
        if self._staged is module:
            self._staged = None

    def _allocate(self, module: Linear | Embedding, rows: int, like: Rows) -> Weight:
        columns = module.in_features
        if isinstance(like, Grouped):
            return self._quantized_weight(like.kind, rows, columns, like, self.device)
        if isinstance(like, Float8Rows):
            return Float8Weight(rows, columns, self.device, groups=like.scale.shape[1])
        dtype = self._kept_in(module, like)
        multiplied = isinstance(module, Linear) or module.tied
        if multiplied and self._panels is not None and (dtype == self._dtype or self._panels is WidePanels):
            return self._panels(rows, columns, dtype)
        if isinstance(module, Router) and self._compiled and dtype == torch.float32:
            return FloatRows(rows, columns)
        numbers = rows * columns
        stageable = numbers * dtype.itemsize <= _STAGING_BYTES and self._staged is None and dtype == self._dtype
        if not (stageable and isinstance(module, Linear) and rearranges(numbers, self.device, dtype)):
            shape = (rows, columns)
            on_cpu = self.device.type == "cpu"
            empty = zeros(shape, dtype) if on_cpu else torch.empty(shape, dtype=dtype, device=self.device)
            return PlainWeight(empty, shared=isinstance(module, Embedding))
        if not len(self._staging):
            self._staging = torch.empty(_STAGING_BYTES // self._dtype.itemsize, dtype=self._dtype)
        self._staged = module
        return PlainWeight(self._staging[:numbers].view(rows, columns))


def _takes(weight: Weight, rows: Rows) -> bool:
    if isinstance(rows, Grouped):
        return isinstance(weight, QuantizedWeight) and weight.takes(rows)
    if isinstance(rows, Float8Rows):
        return isinstance(weight, Float8Weight) and weight.groups == rows.scale.shape[1]
    return isinstance(weight, PlainWeight | HalfPanels | WidePanels | FloatRows)


def _pieces(source: Source, weight_rows: int) -> Iterator[tuple[int, Source]]:
    """Yields first row and rows of slices of at most about `_PIECE_BYTES` in float32, each of one weight."""
    rows = max(1, _PIECE_BYTES // (4 * math.prod(source.shape[1:]) * _PIECE_ROWS)) * _PIECE_ROWS
    for first in range(0, len(source), weight_rows):
        last = min(first + weight_rows, len(source))
        for start in range(first, last, rows):
            yield start, source[start : min(start + rows, last)]
