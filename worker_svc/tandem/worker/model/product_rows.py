"""With how many rows a library's matrix product may be called, found out on the processor at hand.

Libraries choose among their kernels by the number of rows, and those add up in different orders. So a product is called
with some numbers of rows only (`_COUNTS`), all of which were tried: from some multiple on, and up to the most for which
all give the same bits. More rows are cut into several calls, and a call is filled up with zeros. A row's bits then
depend neither on the others nor on their number nor on its place.

Where the result is rounded to bf16, another order shows in one number of 50,000. So the sums are of numbers that
cancel: nothing is left of them but what was rounded on the way, which any other order changes. All rows are the same
one, so that places are compared too. Measured with torch 2.13, calls of up to 512 rows unless said otherwise:

| processor | dtype | multiple, and the most rows |
|---|---|---|
| Zen 5 | bf16 | `[32, 32]` 5, `[32, 48]` 3, `[2048, 2048]` 2; not tried for all numbers of rows |
| Xeon with AMX | bf16 | 1, most 32: `[2048, 2048]` changes at 33, 37 and 384 rows, `[256, 640]` at 33 and 256 |
| the same | fp32, oneDNN | 2 |
| the same | fp32, MKL | 2, most 8 to 14: changes at 2, 11 or 16, and 257 rows |
| the same | fp16 | 2 |
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F

from tandem.common.kept_facts import keep_fact, kept_fact
from tandem.worker.model.cpu.measured_with import measured_with

MOST_ROWS = 8  # of padding that may help
_COUNTS = (*range(1, 33), *range(40, 65, 8), *range(80, 129, 16), *range(160, 513, 32))
MOST_IN_A_CALL = _COUNTS[-1]
_SAMPLED = (*range(1, 9), 16, 32, 64, 128, 256, 512)  # of a wide matrix, whose kernels may be others again
_SUMS = 64  # at least, of each number of rows: of a few, all can be nothing in whatever order
_OUTPUTS = 4096  # up to which a matrix is tried with all counts
_NUMBERS = 1 << 25  # in the largest matrix that is tried

Multiply = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]  # x [N, in] and W [out, in] to [N, out]
Prepare = Callable[[torch.Tensor], torch.Tensor]  # W to the order in which a product takes it


class RowCounts(NamedTuple):
    """The numbers of rows of one call: multiples of `multiple`, up to `most`."""

    multiple: int
    most: int


def row_counts(
    multiply: Multiply,
    outputs: int,
    columns: int,
    dtype: torch.dtype,
    prepare: Prepare | None = None,
    *,
    kept_as: str = "",
) -> RowCounts:
    """How `multiply` may be called with x `[N, columns]` and W `[outputs, columns]`, which was prepared. With a name to
    be `kept_as`, it is not tried again on this machine."""
    return _row_counts(multiply, outputs, columns, dtype, prepare, torch.get_num_threads(), kept_as)


def in_calls(multiply: Multiply, x: torch.Tensor, weight: torch.Tensor, counts: RowCounts) -> torch.Tensor:
    """`multiply(x, weight)`, in calls that were tried."""
    rows = len(x)
    if rows <= counts.most and _filled_up(rows, counts.multiple) == rows:
        return multiply(x, weight)
    products = []
    for start in range(0, rows, counts.most):
        part = x[start : start + counts.most]
        padding = _filled_up(len(part), counts.multiple) - len(part)
        product = multiply(F.pad(part, (0, 0, 0, padding)) if padding else part, weight)
        products.append(product[: len(part)])
    return torch.cat(products) if len(products) > 1 else products[0]


def linear(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """`F.linear`, on a CPU in calls that were tried."""
    if weight.device.type != "cpu":
        return F.linear(x, weight)
    outputs, columns = weight.shape
    return in_calls(F.linear, x, weight, row_counts(F.linear, outputs, columns, weight.dtype, kept_as="linear"))


def choose(bits: Callable[[int], Hashable], counts: Iterable[int] = _COUNTS) -> RowCounts:
    """The smallest multiple of which all counts have the same `bits`; else the one that has the most of them in a row.
    None are the bits of a call whose rows differ."""
    counts, best = tuple(counts), RowCounts(1, 1)
    for multiple in (1, 2, 4, MOST_ROWS):
        tried = [count for count in counts if count % multiple == 0]
        first, most = bits(tried[0]), 0
        for count in tried:
            if first is None or bits(count) != first:
                break
            most = count
        if most > best.most:
            best = RowCounts(multiple, most)
        if most == tried[-1]:
            break
    return best


def cancelling(outputs: int, columns: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Makes a row `[1, columns]` and a matrix `[outputs, columns]` of which all products are 0 but for rounding."""
    numbers = np.random.default_rng(0)
    half, odd = columns // 2, torch.zeros(1, columns % 2)
    sizes = (numbers.standard_normal((rows, half), np.float32) for rows in (1, outputs))
    # Of a few products of bf16 that are alike in size, fp32 rounds none: they are of many sizes.
    row, w = (torch.from_numpy(np.ldexp(each, numbers.integers(-8, 5, each.shape))) for each in sizes)
    return torch.cat([row, -row.flip(1), odd], 1), torch.cat([w, w.flip(1), odd.expand(outputs, -1)], 1)


def _filled_up(rows: int, multiple: int) -> int:
    rows = -(-rows // multiple) * multiple
    return rows if rows <= 32 else next(count for count in _COUNTS if count >= rows)


@functools.cache
def _row_counts(
    multiply: Multiply,
    outputs: int,
    columns: int,
    dtype: torch.dtype,
    prepare: Prepare | None,
    threads: int,  # others may mean other kernels
    kept_as: str,
) -> RowCounts:
    if not kept_as:
        return _tried(multiply, outputs, columns, dtype, prepare)
    weight = {"outputs": outputs, "columns": columns, "dtype": str(dtype), "prepared": prepare is not None}
    about = measured_with() | weight | {"product": kept_as, "threads": threads}
    match kept_fact("product", about):
        case [int(multiple), int(most)]:
            return RowCounts(multiple, most)
    counts = _tried(multiply, outputs, columns, dtype, prepare)
    keep_fact("product", about, counts)
    return counts


def _tried(multiply: Multiply, outputs: int, columns: int, dtype: torch.dtype, prepare: Prepare | None) -> RowCounts:
    few = min(outputs, _OUTPUTS)
    row, w = (each.to(dtype) for each in cancelling(few * -(-_SUMS // few), columns))
    x = row.expand(MOST_IN_A_CALL, -1).contiguous()

    def chosen(matrices: Sequence[torch.Tensor], counts: Iterable[int]) -> RowCounts:
        weights = matrices if prepare is None else [prepare(matrix) for matrix in matrices]

        @functools.cache
        def bits(count: int) -> bytes | None:
            products = torch.cat([multiply(x[:count], weight) for weight in weights], 1)
            first = products[0].float()
            return first.numpy().tobytes() if bool((products == first).all()) else None

        with torch.no_grad():
            return choose(bits, counts)

    # Each a copy, which begins where memory is aligned.
    counts = chosen([matrix.clone() for matrix in w.view(-1, few, columns).unbind()], _COUNTS)
    wide = min(outputs, _NUMBERS // max(1, columns))
    if wide <= few:
        return counts
    there = chosen([w.repeat(-(-wide // few), 1)[:wide]], [count for count in _SAMPLED if count <= counts.most])
    return RowCounts(max(counts.multiple, there.multiple), min(counts.most, there.most))
