"""A matrix for each head, all in one call of the compiled library; see `native/heads.c`.

Processor time of 16 heads `[512, 128]` on one core of an EPYC with AVX2, one by one / in one call, microseconds:

| rows                     | 1         | 8          |
|--------------------------|-----------|------------|
| bf16                     | 880 / 110 | 1150 / 420 |
| int4 in groups of 32     | 970 / 120 | 1420 / 520 |
"""

from __future__ import annotations

import ctypes

import torch

from tandem.worker.model.cpu.matrices import ALIKE, Matrix, matrices_of
from tandem.worker.model.cpu.native.library import calls
from tandem.worker.model.linear import HeadLinear


class CompiledHeads:
    """The product of a `HeadLinear`, for any number of rows."""

    def __init__(self, linear: HeadLinear) -> None:
        """Takes its matrices where they are; raises ValueError where they are not served."""
        found = matrices_of(linear)
        if len(found) * linear.weight_rows != linear.out_features:
            raise ValueError("there are no kernels for its matrices")
        if len({tuple(getattr(matrix, name) for name in ALIKE) for matrix in found}) > 1:
            raise ValueError("heads' matrices are of different kinds")
        self.matrices = (Matrix * len(found))(*found)
        self.width, self._outputs = found[0].width, linear.weight_rows

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """`[N, heads, in] -> [N, heads * out]`."""
        rows, heads, _ = x.shape
        inputs = x.float().transpose(0, 1).contiguous()
        out = torch.empty((heads, rows, self.width))
        failed = calls().tandem_heads(
            ctypes.addressof(self.matrices), heads, inputs.data_ptr(), out.data_ptr(), rows, torch.get_num_threads()
        )
        if failed:
            raise MemoryError("no memory for heads' products")
        return out[..., : self._outputs].transpose(0, 1).reshape(rows, -1).to(x.dtype)
