"""A matrix for each head on CUDA: all of a layer's in one launch (`kernels/heads.py`).

They are kept in the model's dtype, whatever they are stored as: of a model's numbers they are few, and products of them
are of few columns.
"""

from __future__ import annotations

import torch

from tandem.worker.model.cuda.kernels.heads import head_product
from tandem.worker.model.cuda.kernels.product import Tile
from tandem.worker.model.float8 import Float8Weight
from tandem.worker.model.linear import HeadLinear, PlainWeight
from tandem.worker.model.quantization import QuantizedWeight

MANY_ROWS = Tile(64, 64, 64)  # what Hopper's matrix units take
FEW_ROWS = Tile(16, 64, 64)
FLOAT32 = Tile(16, 64, 32)  # which has no matrix unit: more rows would not fit into registers


class JoinedHeads(torch.nn.Module):
    """The product of a `HeadLinear`, for any number of rows."""

    weight: torch.Tensor  # [heads, out, in]

    def __init__(self, linear: HeadLinear, *, reproducible: bool) -> None:
        """Takes the matrices over: `linear` has none afterwards."""
        super().__init__()
        self._reproducible = reproducible
        rows = [_plain(weight, linear.dtype) for weight in linear.weights]
        linear.weights = torch.nn.ModuleList()
        self.register_buffer("weight", torch.cat(rows).view(-1, linear.weight_rows, linear.in_features))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """`[N, heads, in] -> [N, heads * out]`."""
        if x.dtype == torch.float32:
            tile = FLOAT32
        else:
            tile = FEW_ROWS if not self._reproducible and len(x) <= FEW_ROWS.rows else MANY_ROWS
        return head_product(x, self.weight, tile).view(len(x), -1)


def _plain(weight: torch.nn.Module, dtype: torch.dtype) -> torch.Tensor:
    """Returns the rows of a matrix `[out, in]`, which may be some of a head's."""
    if isinstance(weight, PlainWeight):
        return weight.weight.detach()
    assert isinstance(weight, QuantizedWeight | Float8Weight)
    return weight.rows(slice(None)).to(dtype)
