"""Quantized weights on CUDA: our kernel for few rows, which are bound by the reading of the weights; for many rows the
weights are made plain, piece by piece, and multiplied by cuBLAS. Reproducible: our kernel for all, always the same."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from tandem.worker.checkpoints.grouped import Grouped, Quantization
from tandem.worker.model.cuda.kernels.quantized import BUSY, CHANNEL_STEP, plain, quantized_product
from tandem.worker.model.cuda.kernels.swiglu import swiglu
from tandem.worker.model.cuda.kernels.words import COLUMNS, words_product
from tandem.worker.model.quantization import QuantizedWeight

FEW_ROWS = 16  # the fewest that a matrix unit takes
MORE_ROWS = 64  # and what Hopper's take
MOST_ROWS = 256  # from here on, making the weights plain is the smaller part (not measured yet)
_PIECE_ROWS = 16384  # of the matrix, that are made plain at once


class KernelWeight(QuantizedWeight):
    """A quantized matrix `[out, in]` in the order of `kernels/quantized.py`, or of `kernels/words.py` if of 4 bits."""

    def __init__(
        self, kind: Quantization, rows: int, columns: int, like: Grouped, device: torch.device, *, reproducible: bool
    ) -> None:
        """Allocates the matrix; `like` tells the dtype of the scales."""
        torch.nn.Module.__init__(self)  # nothing is stored as in the base
        self.kind, self.columns, self._reproducible = kind, columns, reproducible
        self._counters: torch.Tensor | None = None
        self.group = kind.group or CHANNEL_STEP
        whole = COLUMNS if kind.bits == 4 else self.group
        self._width = -(-columns // whole) * whole
        groups = self._width // self.group if kind.group else 1
        width, stored = (self._width // 4, torch.int16) if kind.bits == 4 else (self._width, torch.int8)
        self.register_buffer("q", torch.zeros((rows, width), dtype=stored, device=device))
        self.register_buffer("scale", torch.zeros((rows, groups), dtype=like.scale.dtype, device=device))
        least = None if like.least is None else torch.zeros((rows, groups), dtype=like.least.dtype, device=device)
        self.register_buffer("least", least)
        self.scale_unit = self.least_unit = None  # rows come `with_floats`
        self.register_buffer("table", None if kind.numbers is None else kind.numbers.to(device))
        self.register_buffer("order", None if like.order is None else like.order.to(device))

    def __len__(self) -> int:
        return len(self.q)

    @property
    def row_multiple(self) -> int:
        """Implements `Linear.row_multiple`."""
        return 1

    def truncate(self, rows: int) -> None:
        self.q, self.scale = self.q[:rows].clone(), self.scale[:rows].clone()
        self.least = None if self.least is None else self.least[:rows].clone()

    def fill(self, row: int, rows: Grouped) -> None:
        part = slice(row, row + len(rows.q))
        q = F.pad(rows.q.to(self.q.device), (0, self._width - self.columns))
        if self.kind.bits == 4:
            quarters = q.view(len(q), -1, 4, COLUMNS // 4).to(torch.int32)
            q = sum(quarters[:, :, i] << 4 * i for i in range(4)).view(len(q), -1).to(torch.int16)  # type: ignore[union-attr]
        self.q[part] = q
        self.scale[part, : rows.scale.shape[1]] = rows.scale.to(self.scale.device)
        if self.least is not None:
            assert rows.least is not None
            self.least[part, : rows.least.shape[1]] = rows.least.to(self.least.device)

    def rows(self, index: torch.Tensor | slice) -> torch.Tensor:
        q = self.q[index]
        if self.kind.bits == 4:
            words = q.view(len(q), -1, COLUMNS // 4).to(torch.int32)
            q = torch.stack([words >> 4 * i & 15 for i in range(4)], dim=2).view(len(q), -1)
        least = None if self.least is None else self.least[index]
        groups = -(-self.columns // self.kind.group) if self.kind.group else 1  # words may fill up a row further
        least = None if least is None else least[:, :groups]
        return Grouped(self.kind, q[:, : self.columns], self.scale[index][:, :groups], least, self.order).dequantize()

    def _zeros(self) -> torch.Tensor:
        """Returns the counters of this matrix's launches, which leave them zero. The first comes before any recording;
        matrices of experts that are joined have none."""
        if self._counters is None:
            self._counters = torch.zeros(BUSY, dtype=torch.int32, device=self.q.device)
        return self._counters

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self._multiply(x, gate=False)

    def gated(self, x: torch.Tensor) -> torch.Tensor:
        return self._multiply(x, gate=True)

    def _multiply(self, x: torch.Tensor, *, gate: bool) -> torch.Tensor:
        if self.order is not None:
            x = x.index_select(1, self.order)
        if self._reproducible or len(x) <= MOST_ROWS:
            few = x.dtype == torch.float32 or (len(x) <= FEW_ROWS and not self._reproducible)
            together = FEW_ROWS if few else MORE_ROWS  # float32 has no matrix unit, and would not fit into registers
            if self.kind.bits == 8:
                return quantized_product(
                    x.contiguous(),
                    self.q,
                    self.scale,
                    self._zeros(),
                    group=self.group,
                    rows_together=together,
                    gate=gate,
                )
            return words_product(
                x.contiguous(), self.q, self.scale, self.least, self.table, self._zeros(), group=self.group,
                code=self.kind.code, rows_together=together, gate=gate,
            )  # fmt: skip
        products = []
        for start in range(0, len(self.q), _PIECE_ROWS):
            piece = slice(start, start + _PIECE_ROWS)
            least = None if self.least is None else self.least[piece]
            rows = plain(self.q[piece], self.scale[piece], least, self.table, self.columns, self.group, x.dtype)
            products.append(F.linear(x, rows))
        product = products[0] if len(products) == 1 else torch.cat(products, dim=1)
        return swiglu(product, len(self) // 2) if gate else product
