"""A row of a product has the same bits whatever the number of rows, by each kind of weight on this very processor, and
by a library whose bits change at some numbers of rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
import torch
import torch.nn.functional as F

from tandem.worker.checkpoints.grouped import Quantization, to_float8
from tandem.worker.model.cpu import native
from tandem.worker.model.float8 import Float8Weight
from tandem.worker.model.linear import HalfPanels, PlainWeight, Weight, onednn_serves
from tandem.worker.model.product_rows import MOST_IN_A_CALL, MOST_ROWS, Multiply, choose, in_calls, row_counts
from tandem.worker.model.quantization import QuantizedWeight, quantize

CPU = torch.device("cpu")
SHAPES = [(32, 48), (256, 640), (640, 256), (100, 7), (32, 12)]
LARGE = (2048, 2048)
SAMPLES = (1, 2, 3, 5, 8, 13, 16, 17, 31, 32, 33, 36, 37, 48, 64, 96, 128, 257, 353, 384, 512, 600)


def cancelling(rows: int, columns: int, sign: int, seed: int) -> torch.Tensor:
    """Rows of two kinds of them cancel each other, so that nothing is left but what was rounded on the way."""
    half = torch.randn(rows, columns // 2, generator=torch.Generator().manual_seed(seed))
    return F.pad(torch.cat([half, sign * half.flip(1)], 1), (0, columns % 2))


def plain(matrix: torch.Tensor, dtype: torch.dtype, *, shared: bool = False) -> Weight:
    weight = PlainWeight(matrix.to(dtype), shared=shared)
    if not shared:
        weight.settle()
    return weight


def half(matrix: torch.Tensor) -> Weight:
    weight = HalfPanels(*matrix.shape, torch.bfloat16)
    weight.fill(0, matrix.bfloat16())
    return weight


def quantized(matrix: torch.Tensor) -> Weight:
    grouped = quantize(matrix, Quantization(8, 32))
    weight = QuantizedWeight(grouped.kind, *matrix.shape, grouped, CPU)
    weight.fill(0, grouped)
    return weight


def float8(matrix: torch.Tensor) -> Weight:
    weight = Float8Weight(*matrix.shape, CPU)
    weight.fill(0, to_float8(matrix))
    return weight


KINDS: dict[str, tuple[torch.dtype, Callable[[torch.Tensor], Weight]]] = {
    "fp32": (torch.float32, lambda matrix: plain(matrix, torch.float32)),
    "fp32, shared": (torch.float32, lambda matrix: plain(matrix, torch.float32, shared=True)),
    "bf16": (torch.bfloat16, lambda matrix: plain(matrix, torch.bfloat16)),
    "bf16, shared": (torch.bfloat16, lambda matrix: plain(matrix, torch.bfloat16, shared=True)),
    "fp16": (torch.float16, lambda matrix: plain(matrix, torch.float16)),
    "bf16 in panels": (torch.float32, half),
    "int8": (torch.float32, quantized),
    "fp8 in fp32": (torch.float32, float8),
    "fp8 in bf16": (torch.bfloat16, float8),
}


def assert_rows_are_alone(weight: Weight, x: torch.Tensor, counts: Sequence[int]) -> None:
    """The first and the last row of as many are what each is in all other numbers of rows."""
    padded = F.pad(x[:1], (0, 0, 0, MOST_ROWS - 1))
    first = weight(padded)[0]
    for count in counts:
        rows = x[:count]
        rows[-1] = x[0]
        multiple = weight.row_multiple
        product = weight(F.pad(rows, (0, 0, 0, -count % multiple)))
        assert product.isfinite().all()
        assert torch.equal(product[0], first), count
        assert torch.equal(product[count - 1], first), count


@pytest.mark.parametrize("kind", KINDS)
def test_a_row_has_the_same_bits_among_any_number_of_rows(kind: str) -> None:
    dtype, make = KINDS[kind]
    if kind == "bf16 in panels" and not native.available():
        pytest.skip("no AVX2, or no C compiler")
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        for shape in SHAPES:
            x = cancelling(600, shape[1], -1, 2).to(dtype)
            assert_rows_are_alone(make(cancelling(*shape, 1, 1)), x, [*range(1, 65), *SAMPLES])
        if dtype == torch.float32 or onednn_serves(CPU, dtype):  # else torch takes minutes
            torch.set_num_threads(2)
            x = cancelling(600, LARGE[1], -1, 2).to(dtype)
            assert_rows_are_alone(make(cancelling(*LARGE, 1, 1)), x, SAMPLES)
    finally:
        torch.set_num_threads(before)


def test_without_a_compiler_quantized_rows_are_alone_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native, "available", lambda: False)
    for dtype in (torch.float32, torch.bfloat16):
        assert_rows_are_alone(quantized(cancelling(256, 640, 1, 1)), cancelling(600, 640, -1, 2).to(dtype), SAMPLES)


@pytest.mark.parametrize("columns", [6, 8, 12])
def test_few_products_of_bf16_show_another_order_too(columns: int) -> None:
    """Those of like size are added without rounding, in whatever order."""

    def multiply(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        places, total = range(columns), torch.zeros(len(x), len(weight))
        for place in places if len(x) < 5 else (*places[::2], *places[1::2]):
            total += x[:, place, None].float() * weight[:, place].float()
        return total.bfloat16()

    assert row_counts(multiply, 32, columns, torch.bfloat16) == (8, MOST_IN_A_CALL)


def changing(limits: tuple[int, ...], called: list[int] | None = None) -> Multiply:
    """A library that computes with other kernels from each of these numbers of rows on."""

    def multiply(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        if called is not None:
            called.append(len(x))
        return F.linear(x, weight) * 0 + (1 + sum(len(x) >= limit for limit in limits)) + x[:, :1]

    return multiply


@pytest.mark.parametrize(
    ("limits", "multiple", "most"),
    [
        ((), 1, MOST_IN_A_CALL),
        ((2,), 2, MOST_IN_A_CALL),
        ((5,), 8, MOST_IN_A_CALL),
        ((33, 37, 384), 1, 32),
        ((2, 16, 257), 2, 14),
        ((100,), 1, 96),
        ((2, 10, 11), 2, 8),
        ((512,), 1, 480),
        ((2, 3, 5, 9), 8, 8),
    ],
)
def test_calls_have_the_numbers_of_rows_for_which_all_were_alike(
    limits: tuple[int, ...], multiple: int, most: int
) -> None:
    called: list[int] = []
    multiply = changing(limits, called)
    counts = row_counts(multiply, 16, 4, torch.float32)
    assert counts == (multiple, most)
    tried = set(called)
    weight, x = torch.zeros(16, 4), torch.randn(1200, 4, generator=torch.Generator().manual_seed(0))
    called.clear()
    expected = multiply(F.pad(x[:1], (0, 0, 0, multiple - 1)), weight)[0, 0] - x[0, 0] + x[:, :1].expand(-1, 16)
    for rows in (0, *range(1, 70), 129, 511, 512, 513, 1200):
        assert torch.allclose(in_calls(multiply, x[:rows], weight, counts), expected[:rows])
    assert set(called) <= tried | {0}


def test_a_call_whose_rows_differ_by_their_place_is_none_to_be_made() -> None:
    def multiply(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return x[:, :1] * 0 + (torch.arange(len(x)) >= 24).float().unsqueeze(-1)  # rows beyond a tile of 24

    assert row_counts(multiply, 16, 4, torch.float32) == (1, 24)


@pytest.mark.parametrize("outputs", [1, 2, 3])
@pytest.mark.parametrize("columns", [4, 8, 12, 20])
def test_another_order_shows_in_a_matrix_of_few_outputs_too(outputs: int, columns: int) -> None:
    def multiply(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        places, total = range(columns), torch.zeros(len(x), outputs)
        for place in places if len(x) < 5 else (*places[::2], *places[1::2]):
            total += x[:, place, None] * weight[:, place]
        return total

    assert row_counts(multiply, outputs, columns, torch.float32) == (8, MOST_IN_A_CALL)


def test_a_wide_matrix_is_tried_as_wide() -> None:
    def multiply(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return x[:, :1].expand(-1, 4) * 0 + float(len(weight) > 4096 and len(x) >= 128)

    assert row_counts(multiply, 4096, 4, torch.float32) == (1, MOST_IN_A_CALL)
    assert row_counts(multiply, 6000, 4, torch.float32) == (1, 64)


def test_the_smallest_multiple_is_chosen_that_all_counts_allow() -> None:
    assert choose(lambda count: count % 4) == (4, MOST_IN_A_CALL)
    assert choose(lambda count: count) == (8, 8)
    assert choose(lambda count: None) == (1, 1)
