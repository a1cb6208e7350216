"""The largest logits of a row, which the compiled library finds and orders."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tandem.worker.model.cpu import native
from tandem.worker.model.cpu.native import choice

pytestmark = pytest.mark.skipif(not native.available(), reason="no compiled library")

INFINITY = float("inf")


def expected(x: torch.Tensor, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """A stable sort: of equal numbers the first come first."""
    order = np.argsort(-x.numpy().astype(np.float64), axis=-1, kind="stable")[:, :count]
    places = torch.from_numpy(order.astype(np.int64))
    return x.gather(1, places), places


def kinds(rows: int, size: int) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(size)
    normal = torch.randn(rows, size, generator=generator)
    rising = torch.arange(size, dtype=torch.float32).expand(rows, size)
    return {
        "normal": normal,
        "steep": -2.0 * (torch.rand(rows, size, generator=generator) * size + 1).log(),
        "many alike": (normal * 3).round(),
        "all alike": torch.full((rows, size), 1.5),
        "few possible": torch.where(torch.rand(rows, size, generator=generator) < 0.01, normal, -INFINITY),
        "none possible": torch.full((rows, size), -INFINITY),
        "one infinite": normal.index_fill(1, torch.tensor([size // 2]), INFINITY),
        "rising": rising,
        "falling": rising.flip(1),
        "of all sizes": normal * torch.exp2(torch.randint(-120, 120, (rows, size), generator=generator).float()),
    }


@pytest.mark.parametrize("size", [1, 5, 31, 32, 33, 512, 513, 1000, 16_384, 32_001, 151_936])
def test_the_largest_come_in_order_and_equal_ones_by_their_places(size: int) -> None:
    for name, x in kinds(3, size).items():
        for count in {1, min(2, size), min(40, size), min(512, size)}:
            values, places = choice.largest(x, count)
            wanted, where = expected(x, count)
            assert torch.equal(values, wanted) and torch.equal(places, where), (name, count)


def test_a_row_has_the_same_alone_and_in_company() -> None:
    x = torch.cat(list(kinds(2, 20_000).values()))
    values, places = choice.largest(x, 512)
    for row in range(len(x)):
        alone = choice.largest(x[row : row + 1], 512)
        assert torch.equal(alone[0][0], values[row]) and torch.equal(alone[1][0], places[row])


@pytest.mark.parametrize("size", [1, 7, 8, 33, 1000, 32_001])
def test_the_first_largest_is_numpys_also_of_rows_that_lie_apart(size: int) -> None:
    of_all_kinds = kinds(2, size)
    of_all_kinds["a NaN behind an infinite one"] = of_all_kinds["one infinite"].index_fill(
        1, torch.tensor([size - 1]), float("nan")
    )
    of_all_kinds["all NaN"] = torch.full((2, size), float("nan"))
    x = torch.cat(list(of_all_kinds.values()))
    wide = torch.full((len(x), size + 5), INFINITY)
    wide[:, :size] = x
    expected_places = x.numpy().argmax(axis=-1)
    for given in (x, wide[:, :size]):
        places, finite = choice.first_largest(given, len(given))
        assert places.tolist() == expected_places.tolist()
        assert finite.tolist() == np.isfinite(x.numpy()[np.arange(len(x)), expected_places]).tolist()
