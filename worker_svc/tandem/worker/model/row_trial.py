"""Tries a GPU's matrix products at every number of rows that steps have.

As on a CPU (`product_rows.py`) the sums are of numbers that cancel, so that any other order of adding up shows, which
real numbers, rounded to bf16, mostly hide. All rows are the same one, so that places are compared too.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch

from tandem.worker.checkpoints.grouped import to_float8
from tandem.worker.model.float8 import Float8Weight
from tandem.worker.model.linear import PlainWeight
from tandem.worker.model.product_rows import cancelling

_SHARE = 4  # of the memory that is free, one part is what a matrix and its products may take each
_FEW = 256  # different rows of a matrix; the rest repeats them


def products_ignore_other_rows(model: torch.nn.Module, counts: Iterable[int]) -> bool:
    """Tells whether the products with all matrices of floats, each shape once, give a row the same bits for all
    `counts` of rows. Matrices of integers are multiplied by our own kernel, the same for any number of rows."""
    counts, tried = sorted(counts), set()
    for weight in model.modules():
        if not isinstance(weight, PlainWeight | Float8Weight):
            continue
        shape = _shape(weight)
        if shape not in tried:
            tried.add(shape)
            if not _ignores_other_rows(weight, counts):
                return False
    return True


def _shape(weight: PlainWeight | Float8Weight) -> tuple[object, ...]:
    if isinstance(weight, PlainWeight):
        return weight.weight.shape, weight.weight.dtype
    return len(weight), weight.columns, weight.groups


def _ignores_other_rows(weight: PlainWeight | Float8Weight, counts: list[int]) -> bool:
    plain = isinstance(weight, PlainWeight)
    stored = weight.weight if isinstance(weight, PlainWeight) else weight.q
    columns = stored.shape[1]
    dtype = stored.dtype if plain else torch.bfloat16
    room = torch.cuda.mem_get_info(stored.device)[0] // _SHARE
    outputs = min(len(weight), max(_FEW, room // (columns * 4)))  # a matrix of 8-bit floats is made of wider ones
    row, few = (each.to(dtype) for each in cancelling(min(outputs, _FEW), columns))
    matrix = few.to(stored.device).repeat(-(-outputs // len(few)), 1)[:outputs]
    if plain:
        like: PlainWeight | Float8Weight = PlainWeight(matrix)
    else:
        assert isinstance(weight, Float8Weight)
        like = Float8Weight(outputs, columns, stored.device, groups=weight.groups)
        rows = to_float8(matrix)
        like.q.copy_(rows.q)
        like.scale.copy_(rows.scale.expand_as(like.scale))
    like.product = weight.product
    if isinstance(like, Float8Weight) and isinstance(weight, Float8Weight):
        like.plain_product = weight.plain_product
    counts = [count for count in counts if count * outputs * 4 <= room] or counts[:1]
    x = row.to(stored.device).expand(counts[-1], -1).contiguous()
    expected = like(x[: counts[0]])[:1]
    return all(bool((like(x[:count]) == expected).all()) for count in counts)
