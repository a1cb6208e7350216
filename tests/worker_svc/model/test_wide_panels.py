"""The compiled products of bf16, fp16 and fp32 weights for AVX-512 and AMX: against float64, and against themselves in
other company. Each way that the processor has."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch

from tandem.worker.model.cpu import native
from tandem.worker.model.cpu.wide_panels import WidePanels

WAYS = [  # of what a processor may have
    pytest.param((torch.bfloat16, "amx"), id="bf16 by AMX"),
    pytest.param((torch.bfloat16, "twos"), id="bf16 by products of two"),
    pytest.param((torch.bfloat16, "shifts"), id="bf16 by shifts"),
    pytest.param((torch.float16, None), id="fp16"),
    pytest.param((torch.float32, None), id="fp32"),
]
SHAPES = [(64, 64), (50, 172), (16, 1100), (3, 20), (33, 31), (1, 1), (256, 640), (100, 5000)]
ERROR = 4e-7  # of the sum of all products' sizes: fp32 adds up some thousand of them one after the other


Rounding = Callable[[torch.Tensor], torch.Tensor]


@pytest.fixture(params=WAYS)
def way(request: pytest.FixtureRequest) -> Iterator[tuple[torch.dtype, str | None]]:
    dtype, way = request.param
    if not native.wide_serves(dtype):
        pytest.skip("no AVX-512, or no C compiler")
    if way is not None and not native.limit_bf16(way):
        native.limit_bf16("amx")
        pytest.skip(f"no {way}")
    yield dtype, way
    native.limit_bf16("amx")


@pytest.fixture
def dtype(way: tuple[torch.dtype, str | None]) -> torch.dtype:
    return way[0]


@pytest.fixture
def rounded(way: tuple[torch.dtype, str | None]) -> Rounding:
    """What becomes of activations before they are multiplied."""
    return (lambda x: x.bfloat16().float()) if way[1] in ("amx", "twos") else (lambda x: x)


def numbers(rows: int, columns: int, seed: int = 0) -> torch.Tensor:
    return torch.randn((rows, columns), generator=torch.Generator().manual_seed(seed))


def filled(matrix: torch.Tensor, piece: int = 21) -> WidePanels:
    weight = WidePanels(*matrix.shape, matrix.dtype)
    for start in range(0, len(matrix), piece):
        weight.fill(start, matrix[start : start + piece])
    return weight


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_it_equals_float64_and_a_row_has_the_same_bits_in_any_company(
    shape: tuple[int, int], dtype: torch.dtype, rounded: Rounding
) -> None:
    outputs, columns = shape
    matrix, x = numbers(outputs, columns, 1).to(dtype), numbers(300, columns)
    weight = filled(matrix)
    taken = rounded(x).double()
    exact, size = taken @ matrix.double().t(), taken.abs() @ matrix.double().abs().t()
    together = weight(x)
    assert ((together.double() - exact).abs() <= ERROR * size).all()
    for count in (*range(71), 239, 240, 241):
        assert torch.equal(weight(x[:count]), together[:count]), count
        assert torch.equal(weight(x[300 - count :]), together[300 - count :]), count


def test_threads_change_no_bit(dtype: torch.dtype) -> None:
    weight, x = filled(numbers(700, 640, 1).to(dtype)), numbers(130, 640)
    before = torch.get_num_threads()
    try:
        answers = []
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            answers += [torch.cat([weight(x[:1]), weight(x[1:18]), weight(x[18:])])]
    finally:
        torch.set_num_threads(before)
    assert all(torch.equal(answer, answers[0]) for answer in answers)


@pytest.mark.parametrize("piece", [1, 32, 45, 100])
def test_rows_come_back_as_they_were_stored(piece: int, dtype: torch.dtype) -> None:
    matrix = numbers(100, 77).to(dtype)
    weight = filled(matrix, piece)
    assert torch.equal(weight.rows(torch.arange(100)), matrix)
    assert torch.equal(weight.rows(torch.tensor([99, 0, 31, 32, 31])), matrix[[99, 0, 31, 32, 31]])
    x, whole = numbers(5, 77), weight(numbers(5, 77))
    weight.truncate(41)
    assert len(weight) == 41
    assert torch.equal(weight(x), whole[:, :41])


@pytest.mark.parametrize("rows", [1, 7, 40])
@pytest.mark.parametrize("broken", [float("nan"), float("inf"), float("-inf"), 3.4e38])
def test_what_is_not_finite_stays_so_in_its_row_as_torch_has_it(
    broken: float, rows: int, dtype: torch.dtype, rounded: Rounding
) -> None:
    matrix, x = numbers(50, 90, 1).to(dtype), numbers(rows, 90)
    matrix[:, 3] = matrix[:, 3].abs() + 1
    weight = filled(matrix)
    whole = weight(x)
    x[rows // 2, 3] = broken
    result, expected = weight(x), rounded(x) @ matrix.float().t()
    torch.testing.assert_close(result, expected, rtol=1e-4, atol=1e-3, equal_nan=True)
    others = [row for row in range(rows) if row != rows // 2]
    assert torch.equal(result[others], whole[others])
    matrix[7, 3] = broken
    spoilt = filled(matrix)(numbers(rows, 90))
    assert torch.equal(spoilt[:, :7], whole[:, :7]) and torch.equal(spoilt[:, 8:], whole[:, 8:])
    torch.testing.assert_close(
        spoilt[:, 7],
        (rounded(numbers(rows, 90)) @ matrix.float().t())[:, 7],
        rtol=1e-4,
        atol=1e-3,
        equal_nan=True,
    )
