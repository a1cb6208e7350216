"""From how many rows on a row of a matrix product has the same bits, found out on the processor at hand.

Libraries choose among their kernels by the number of rows, and those add up in different orders. Where the result is
rounded to bf16 that shows in one number of 50,000, too seldom to be noticed at start by computing the model. So here
the sums are of numbers that cancel: nothing is left of them but what was rounded on the way, which any other order
changes. Measured with torch 2.13 on a Zen 5 in bf16: `[32, 32]` needs 5 rows, `[32, 48]` 3, `[2048, 2048]` 2.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import torch

_COMPANY = 64  # rows that the first ones are computed with
_OUTPUTS = 4096  # that are enough to see
MOST_ROWS = 8

Multiply = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]  # x [N, in] and W [out, in] to [N, out]


def row_multiple(multiply: Multiply, outputs: int, columns: int, dtype: torch.dtype) -> int:
    """1, 2, 4 or 8: with a multiple of so many rows, a row of `x W^T` has the bits that it has among many. 8 also where
    even that does not help. `multiply` is called with a W of at most 4,096 rows."""
    return _row_multiple(multiply, min(outputs, _OUTPUTS), columns, dtype, torch.get_num_threads())


@functools.cache
def _row_multiple(multiply: Multiply, outputs: int, columns: int, dtype: torch.dtype, threads: int) -> int:
    del threads  # other threads may mean other kernels
    numbers = torch.Generator().manual_seed(0)
    half, odd = columns // 2, torch.zeros(1, columns % 2)
    x, w = (torch.randn(rows, half, generator=numbers) for rows in (_COMPANY, outputs))
    x = torch.cat([x, -x.flip(1), odd.expand(_COMPANY, -1)], 1).to(dtype)
    w = torch.cat([w, w.flip(1), odd.expand(outputs, -1)], 1).to(dtype)
    many = multiply(x, w)
    for multiple in (1, 2, 4):
        tried = {*range(multiple, 17, multiple), 32 + multiple}
        if all(torch.equal(multiply(x[:rows], w), many[:rows]) for rows in sorted(tried)):
            return multiple
    return MOST_ROWS
