"""The matrix product of the model, and how its weights are stored.

Everything else sees `Linear(x)`. Behind it lie one or several *weights*, each some of the rows of `W [out, in]`, of one
of these kinds; `weights.py` chooses when the first rows come:

| weight | where |
|---|---|
| `PlainWeight` | in the model's dtype: on a GPU, and on a CPU without products of our own for it |
| `WidePanels` | bf16, fp16 or fp32 on a CPU with AVX-512, bf16 also by AMX (`cpu/wide_panels.py`) |
| `HalfPanels` | bf16 or fp16 on a CPU with AVX2 alone: products in fp32, half the memory to read |
| `FloatRows` | fp32 of a router on a CPU without AVX-512, or beside products of torch in 16 bits |
| `QuantizedWeight` | int8, int6 and int4 (`quantization.py`) |
| `Float8Weight` | fp8 (`float8.py`) |

A router that comes in fp32 stays so, whatever the model's dtype is, as in llama.cpp: it decides by small differences.
Rows become fp32 before such a product, and what comes out stays it.

On a CPU torch has two libraries for `x W^T` in fp32. For a few rows and a large W, MKL rearranges all of W at each
call; oneDNN can be given a W that was rearranged once. One Zen 3 core, W `[11264, 2048]`, milliseconds:

| rows                 | 1   | 4   | 8   | 16  | 64  | 512 |
|----------------------|-----|-----|-----|-----|-----|-----|
| MKL                  | 5   | 22  | 25  | 31  | 56  | 540 |
| oneDNN, W as it is   | 5   | 12  | 14  | 20  | 48  | 470 |
| oneDNN, W rearranged | 5   | 10  | 13  | 16  | 44  | 470 |

A small W is quicker with MKL: 0.02 against 0.04 ms for `[288, 288]` and 4 rows.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F

from tandem.worker.checkpoints.grouped import Float8Rows
from tandem.worker.model.changes import Changes
from tandem.worker.model.cpu import native
from tandem.worker.model.cpu.panels import empty_panels, fill_panels, first_panels, panel_rows
from tandem.worker.model.cpu.wide_panels import WidePanels
from tandem.worker.model.float8 import Float8Weight
from tandem.worker.model.operations import Product
from tandem.worker.model.product_rows import RowCounts, in_calls, row_counts
from tandem.worker.model.quantization import QuantizedWeight

REARRANGE_FROM = 1 << 18  # numbers in a matrix that oneDNN is given rearranged
SHARED_FROM = 1 << 22  # numbers in a matrix that oneDNN is given as it is, because something else reads it too
_ROWS = 16  # the number of rows for which oneDNN chooses the arrangement


class Bias(torch.nn.Module):
    """What a `Linear` adds to each row. A module of its own, so that it is filled as any weight is."""

    weight: torch.nn.Parameter  # [out]

    def __init__(self, size: int, dtype: torch.dtype) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.empty(size, dtype=dtype), requires_grad=False)


class PlainWeight(torch.nn.Module):
    """A matrix `[out, in]` as torch has it."""

    weight: torch.nn.Parameter
    __call__: Callable[..., torch.Tensor]

    def __init__(self, weight: torch.Tensor, *, shared: bool = False) -> None:
        """`shared`: something else reads it too, so that it stays as it is."""
        super().__init__()
        self.weight = weight if isinstance(weight, torch.nn.Parameter) else torch.nn.Parameter(weight, False)
        self.product: Product | None = None  # instead of the library's
        self._on_cpu = weight.device.type == "cpu"
        self._shared = shared
        self._multiply: Product | None = None  # the library's on a CPU, once it is chosen

    def __len__(self) -> int:
        return self.weight.shape[0]

    @property
    def row_multiple(self) -> int:
        """See `Linear.row_multiple`."""
        if not self._on_cpu:
            return 4
        return _row_counts(self._chosen(), self.weight).multiple

    def _chosen(self) -> Product:
        """The library's product that a CPU computes with: for a large matrix oneDNN's, and for a small one the one that
        takes more rows in a call."""
        if self._multiply is None:
            weight = self.weight
            both: list[Product] = [F.linear, _onednn_product]
            if weight.is_mkldnn or (self._shared and weight.numel() >= SHARED_FROM):
                both = both[1:]
            if not onednn_serves(weight.device, weight.dtype):
                both = [F.linear]
            self._multiply = max(both, key=lambda product: _row_counts(product, weight).most)
        return self._multiply

    def fill(self, row: int, rows: torch.Tensor) -> None:
        """Stores rows from `row` on."""
        self.weight.data[row : row + len(rows)].copy_(rows)

    def truncate(self, rows: int) -> None:
        """Keeps the first rows only."""
        self.weight = torch.nn.Parameter(self.weight.data[:rows].clone(), False)

    def settle(self) -> None:
        """Rearranges the weight where that pays; afterwards only `forward` may look at it."""
        if rearranges(self.weight.numel(), self.weight.device, self.weight.dtype):
            self.weight = torch.nn.Parameter(_rearranged(self.weight.data), requires_grad=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """`[N, in] -> [N, out]` in the weight's dtype."""
        x = x.to(self.weight.dtype)  # which is another one of a router that stays in fp32
        if self.product is not None:
            return self.product(x, self.weight)
        if not self._on_cpu:
            return F.linear(x, self.weight)
        multiply = self._chosen()
        return in_calls(multiply, x, self.weight, _row_counts(multiply, self.weight))

    def rows(self, index: torch.Tensor) -> torch.Tensor:
        """Some rows `[N, in]`."""
        return F.embedding(index, self.weight)


def _rearranged(weight: torch.Tensor) -> torch.Tensor:
    packed: torch.Tensor = torch.ops.mkldnn._reorder_linear_weight(weight, _ROWS)
    return packed


def _onednn_product(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """By oneDNN, with a weight as it is or rearranged."""
    product: torch.Tensor = torch.ops.mkldnn._linear_pointwise.default(x, weight, None, "none", [], "")
    return product


def _row_counts(multiply: Product, weight: torch.Tensor) -> RowCounts:
    outputs, columns = weight.shape
    prepare = _rearranged if weight.is_mkldnn else None
    name = "linear" if multiply is F.linear else "onednn"
    return row_counts(multiply, outputs, columns, weight.dtype, prepare, kept_as=name)


class HalfPanels(torch.nn.Module):
    """A matrix of bf16 or fp16 in panels, for `native.half_product`."""

    panels: torch.Tensor
    row_multiple = 1
    __call__: Callable[..., torch.Tensor]

    def __init__(self, rows: int, columns: int, dtype: torch.dtype) -> None:
        super().__init__()
        self._rows = rows
        self.register_buffer("panels", empty_panels(rows, columns, dtype))

    def __len__(self) -> int:
        return self._rows

    def fill(self, row: int, rows: torch.Tensor) -> None:
        """Stores rows from `row` on."""
        fill_panels(self.panels, row, rows)

    def truncate(self, rows: int) -> None:
        """Keeps the first rows only."""
        self.panels, self._rows = first_panels(self.panels, rows), rows

    def settle(self) -> None:
        """Nothing is left to do."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """`[N, in] -> [N, out]` in x's dtype."""
        product = native.half_product(x.float(), self.panels)
        return product[:, : self._rows].to(x.dtype)

    def rows(self, index: torch.Tensor) -> torch.Tensor:
        """Some rows `[N, in]`."""
        return panel_rows(self.panels, index)


class FloatRows(torch.nn.Module):
    """A small matrix of fp32, for `native.float_product`, by which a row's bits depend on nothing else."""

    weight: torch.nn.Parameter
    row_multiple = 1
    __call__: Callable[..., torch.Tensor]

    def __init__(self, rows: int, columns: int) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.empty((rows, columns)), requires_grad=False)

    def __len__(self) -> int:
        return self.weight.shape[0]

    def fill(self, row: int, rows: torch.Tensor) -> None:
        """Stores rows from `row` on."""
        self.weight.data[row : row + len(rows)].copy_(rows)

    def truncate(self, rows: int) -> None:
        """Keeps the first rows only."""
        self.weight = torch.nn.Parameter(self.weight.data[:rows].clone(), False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """`[N, in] -> [N, out]`."""
        return native.float_product(x.float(), self.weight)

    def rows(self, index: torch.Tensor) -> torch.Tensor:
        """Some rows `[N, in]`."""
        return F.embedding(index, self.weight)


Weight = PlainWeight | HalfPanels | WidePanels | FloatRows | QuantizedWeight | Float8Weight


Rows = torch.Tensor | Float8Rows  # [N, in]


class Linear(torch.nn.Module):
    """`x [N, in] -> x W^T [N, out]`, plus a bias where a model has one."""

    __call__: Callable[..., torch.Tensor]

    def __init__(self, in_features: int, out_features: int, dtype: torch.dtype, *, bias: bool = False) -> None:
        super().__init__()
        self.in_features, self.out_features = in_features, out_features
        self.weight_rows = out_features  # of a weight, at most
        self.weights = torch.nn.ModuleList()  # of `Weight`, one after the other; none before the first rows come
        self.bias = self._made_bias(dtype) if bias else None
        self.changes: Changes | None = None  # of adapters

    def _made_bias(self, dtype: torch.dtype) -> Bias:
        return Bias(self.out_features, dtype)

    def forward(self, x: Rows) -> torch.Tensor:
        """`[N, in] -> [N, out]`."""
        product = self.without_bias(x)
        return product if self.bias is None else product + self.bias.weight

    def without_bias(self, x: Rows) -> torch.Tensor:
        """The same, but for the bias."""
        products = [weight(x) for weight in self.weights]
        product: torch.Tensor = products[0] if len(products) == 1 else torch.cat(products, dim=1)
        if self.changes is not None and self.changes.active:
            assert isinstance(x, torch.Tensor)
            self.changes.add(x, product)
        return product

    def gated(self, x: torch.Tensor) -> torch.Tensor | None:
        """Computes `silu(gate) up` of the two halves of the outputs, where the product can end with that."""
        weight = self.weights[0]
        alone = len(self.weights) == 1 and self.bias is None and not (self.changes and self.changes.active)
        return weight.gated(x) if alone and isinstance(weight, QuantizedWeight) else None

    @property
    def takes_float8(self) -> bool:
        """Tells whether rows may come as 8-bit floats with a scale each."""
        return self.changes is None and all(
            isinstance(weight, Float8Weight) and weight.takes_float8 for weight in self.weights
        )

    @property
    def row_multiple(self) -> int:
        """A row's bits do not depend on the other rows if their number is a multiple of this."""
        return max(weight.row_multiple for weight in self.weights)  # type: ignore[type-var, return-value]

    def share(self, weight: Weight) -> None:
        """Takes a weight that belongs to something else and stays as it is."""
        self.weights = torch.nn.ModuleList([weight])


class Router(Linear):
    """A matrix of few outputs, one for each expert, which is never quantized, and keeps fp32 where it comes in it."""

    def _made_bias(self, dtype: torch.dtype) -> Bias:
        return Bias(self.out_features, torch.float32)


class HeadLinear(Linear):
    """A matrix for each head, whose outputs follow each other: `x [N, heads, in] -> [N, heads * out]`."""

    def __init__(self, heads: int, in_features: int, out_features: int, dtype: torch.dtype) -> None:
        super().__init__(in_features, heads * out_features, dtype)
        self.weight_rows, self.dtype = out_features, dtype
        self.joined: Callable[[torch.Tensor], torch.Tensor] | None = None  # computes all heads together

    def without_bias(self, x: Rows) -> torch.Tensor:
        """See `Linear`."""
        assert isinstance(x, torch.Tensor)
        if self.joined is not None:
            return self.joined(x)
        rows = x.transpose(0, 1).contiguous()
        return torch.cat([weight(each) for weight, each in zip(self.weights, rows, strict=True)], dim=1)

    @property
    def row_multiple(self) -> int:
        """See `Linear.row_multiple`. What took the matrices over has kernels that compute a row alone."""
        return super().row_multiple if len(self.weights) else 1


def rearranges(numbers: int, device: torch.device, dtype: torch.dtype) -> bool:
    """Whether a plain weight of so many numbers is replaced by a rearranged copy once it is there."""
    return numbers >= REARRANGE_FROM and onednn_serves(device, dtype)


Panels = type[WidePanels] | type[HalfPanels]


def panels_for(dtype: torch.dtype, quantized: Callable[[], bool] = lambda: False) -> Panels | None:
    """How a CPU keeps weights of this dtype for compiled products of rows in float32; None if torch's products serve
    better. `quantized` tells whether most other weights are, whose products are compiled."""
    if not native.available():
        return None
    if native.wide_serves(dtype):
        return WidePanels
    if dtype not in (torch.bfloat16, torch.float16):
        return None
    return HalfPanels if not onednn_serves(torch.device("cpu"), dtype) or quantized() else None


def computes_bf16() -> bool:
    """Whether the processor has instructions for bf16. oneDNN says that it serves bf16 with AVX-512 alone, too, where
    it turns each number into fp32 and back."""
    return torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()


def onednn_serves(device: torch.device, dtype: torch.dtype) -> bool:
    """Whether the processor computes in this dtype, by oneDNN."""
    if device.type != "cpu":
        return False
    operations = torch.ops.mkldnn
    if not all(hasattr(operations, name) for name in ("_linear_pointwise", "_reorder_linear_weight")):
        return False  # torch was built without oneDNN
    if dtype == torch.bfloat16:
        return computes_bf16() and bool(operations._is_mkldnn_bf16_supported())
    if dtype == torch.float16:
        return bool(operations._is_mkldnn_fp16_supported())
    return dtype == torch.float32
