"""The compiled products against the same arithmetic in float64, and against themselves in other company."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from tandem.worker.checkpoints.grouped import E8M0, FLOAT8, UNIT, Grouped, Quantization
from tandem.worker.model.cpu import native
from tandem.worker.model.linear import HalfPanels
from tandem.worker.model.quantization import QuantizedWeight

FLOATS4 = [Quantization(4, group, "e2m1") for group in (16, 32)]  # whose scales may be e4m3
KINDS = [
    Quantization(8, 0),
    *(Quantization(bits, group) for bits in (8, 4) for group in (16, 32, 64, 128)),
    Quantization(6, 16),
    *(Quantization(4, group, "int4") for group in (16, 32, 128)),
    *FLOATS4,
    Quantization(4, 64, "nf4"),
    *(Quantization(4, group, "iq4") for group in (32, 128)),
    Quantization(4, 32, "fp4"),
]
LEAST = (16, 128)  # groups in which int8 has least numbers here
CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def _compiled() -> None:
    if not native.available():
        pytest.skip("no AVX2, or no C compiler")


def random_matrix(kind: Quantization, rows: int, columns: int, dtype: torch.dtype) -> Grouped:
    generator = torch.Generator().manual_seed(rows * columns)
    groups = -(-columns // kind.group) if kind.group else 1
    if dtype == torch.int8:
        return in_multiples(random_matrix(kind, rows, columns, torch.float16), generator)
    if dtype == FLOAT8:
        matrix = random_matrix(kind, rows, columns, torch.float32)
        return replace(matrix, scale=scales_of_float8(matrix.scale), units=(torch.rand((rows, 1)) + 1, None))
    scale = torch.rand((rows, groups), generator=generator).to(dtype)
    if kind.code == "e2m1" and kind.group == 32 and dtype != torch.float32:
        scale = torch.randint(110, 130, scale.shape, dtype=E8M0, generator=generator)
    if kind.bits == 6:
        q = torch.randint(-32, 32, (rows, columns), dtype=torch.int8, generator=generator)
        return Grouped(kind, q, scale, None)
    if kind.bits == 8:
        # -128 too: files of others may hold it.
        q = torch.randint(-128, 128, (rows, columns), dtype=torch.int8, generator=generator)
        least = torch.randn((rows, groups), generator=generator).to(dtype) if kind.group in LEAST else None
        return Grouped(kind, q, scale, least)
    q = torch.randint(0, 16, (rows, columns), dtype=torch.uint8, generator=generator)
    if kind.code:
        return Grouped(kind, q, scale, None, torch.randperm(columns, generator=generator) if kind.group == 64 else None)
    return Grouped(kind, q, scale, torch.randn((rows, groups), generator=generator).to(dtype))


def in_multiples(matrix: Grouped, generator: torch.Generator) -> Grouped:
    """With scales, and least numbers if it has some, that are multiples of units."""

    def counts(least: int, most: int) -> torch.Tensor:
        return torch.randint(least, most + 1, matrix.scale.shape, dtype=torch.int8, generator=generator)

    rows, columns = matrix.q.shape
    scale_unit, least_unit = torch.rand((2, rows, -(-columns // UNIT)), generator=generator).half()
    if matrix.least is None:
        return replace(matrix, scale=counts(-128, 127), units=(scale_unit, None))
    return replace(matrix, scale=counts(0, 63), least=counts(-63, 0), units=(scale_unit, least_unit))


def scales_of_float8(like: torch.Tensor) -> torch.Tensor:
    """e4m3 of all exponents, of those below the normal ones too."""
    every = torch.arange(127, dtype=torch.uint8).repeat(-(-like.numel() // 127))
    return every[: like.numel()].view(like.shape).view(FLOAT8)


def stored(matrix: Grouped) -> QuantizedWeight:
    rows, columns = matrix.q.shape
    weight = QuantizedWeight(matrix.kind, rows, columns, matrix, CPU)
    for start in range(0, rows, 7):
        part = slice(start, start + 7)
        least = None if matrix.least is None else matrix.least[part]
        units = None
        if matrix.units is not None:
            scale_unit, least_unit = matrix.units
            units = scale_unit[part], None if least_unit is None else least_unit[part]
        weight.fill(start, Grouped(matrix.kind, matrix.q[part], matrix.scale[part], least, matrix.order, units))
    return weight


def random_rows(count: int, columns: int) -> torch.Tensor:
    rows = torch.randn((count, columns), generator=torch.Generator().manual_seed(count))
    return rows * torch.logspace(-3, 3, count).unsqueeze(-1)


def steps_of(kind: Quantization) -> int:
    """Into how many steps activations up to a group's largest are divided."""
    return 127 if kind.bits < 8 and kind.group <= 32 and kind.code in ("", "int4", "e2m1", "iq4") else 32767


def rounded(x: torch.Tensor, kind: Quantization, group: int) -> torch.Tensor:
    """What `x` `[count, columns]` is to a product in groups: the product with ones on the diagonal."""
    columns = x.shape[1]
    scale = torch.ones((columns, -(-columns // group)))
    if steps_of(kind) == 127:
        diagonal = torch.eye(columns, dtype=torch.uint8)
        return stored(Grouped(Quantization(4, group), diagonal, scale, torch.zeros_like(scale)))(x)
    return stored(Grouped(Quantization(8, group), torch.eye(columns, dtype=torch.int8), scale, None))(x)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.int8, FLOAT8])
@pytest.mark.parametrize("kind", KINDS, ids=str)
@pytest.mark.parametrize(("rows", "columns"), [(50, 172), (33, 64), (100, 600), (3, 20)])
def test_a_quantized_product_is_that_of_the_quantized_numbers(
    kind: Quantization, dtype: torch.dtype, rows: int, columns: int
) -> None:
    if dtype == torch.int8 and (not kind.group or kind.code == "e2m1"):
        pytest.skip("its scales are no multiples")
    if dtype == FLOAT8 and kind not in FLOATS4:
        pytest.skip("its scales are no e4m3")
    matrix = random_matrix(kind, rows, columns, dtype)
    weight = stored(matrix)
    assert torch.equal(weight.rows(slice(None)), matrix.dequantize())
    for count in (1, 2, 3, 4, 5, 9):
        x = random_rows(count, columns)
        order = torch.arange(columns) if matrix.order is None else matrix.order
        numbers = torch.empty_like(x).index_copy_(1, order, rounded(x[:, order], kind, weight.group)).double()
        exact = numbers @ matrix.dequantize().double().t()
        size = numbers.abs() @ matrix.dequantize().double().abs().t()
        assert ((weight(x).double() - exact).abs() <= 1e-6 * size).all()


def test_numbers_of_6_bits_give_the_bits_that_the_same_give_in_4() -> None:
    fewer = random_matrix(Quantization(4, 16, "int4"), 100, 1300, torch.int8)
    more = replace(fewer, kind=Quantization(6, 16), q=(fewer.q.to(torch.int8) - 8))
    assert stored(more).q.nbytes * 4 == stored(fewer).q.nbytes * 6
    for count in (*range(1, 9), 40, 100):
        x = random_rows(count, 1300)
        assert torch.equal(stored(fewer)(x), stored(more)(x))


def test_scales_and_least_numbers_of_6_bits_take_the_bytes_that_they_have_in_files() -> None:
    together, apart = (
        stored(random_matrix(Quantization(4, 32), 16, columns, torch.int8)) for columns in (1024, 1024 + 32)
    )
    assert together.scale.nbytes == 16 * 32 * 2 * 6 // 8
    assert together.least is together.scale
    assert sum(buffer.nbytes for buffer in together.buffers()) == 16 * 1024 // 256 * 144  # as Q4_K has them
    assert apart.least is not None
    assert apart.scale.nbytes + apart.least.nbytes == 16 * 33 * 2  # an odd group has none to lie with
    together.truncate(3)
    assert torch.equal(
        together.rows(slice(None)), stored(random_matrix(Quantization(4, 32), 16, 1024, torch.int8)).rows(slice(3))
    )


@pytest.fixture(params=["by AMX", "by VNNI"])
def by_amx(request: pytest.FixtureRequest) -> Iterator[None]:
    """What many rows are multiplied by, of what AVX2 is not for."""
    if not native.allow_wide(True):
        pytest.skip("no AVX-512 with VNNI")
    there = native.allow_amx(request.param == "by AMX")
    if request.param == "by AMX" and not there:
        pytest.skip("no AMX")
    yield
    native.allow_amx(True)


@pytest.mark.usefixtures("by_amx")
@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_wide_registers_and_tiles_change_no_bit(kind: Quantization) -> None:
    dtypes = (
        torch.float32,
        torch.float16,
        torch.float32,
        *([torch.int8] if kind.group and kind.code != "e2m1" else []),
        *([FLOAT8] if kind in FLOATS4 else []),
    )
    for dtype, (rows, columns) in zip(dtypes, ((100, 1300), (33, 64), (3, 20), (40, 600)), strict=False):
        weight = stored(random_matrix(kind, rows, columns, dtype))
        for count in (*range(1, 18), *range(24, 34), 40, 48, 49, 95, 96, 103, 131, 256, 257, 515):
            x = random_rows(count, columns)
            x[0, -1] = float("inf") if count % 3 else 1.0
            wide = weight(x)
            native.allow_wide(False)
            try:
                narrow = weight(x)
            finally:
                native.allow_wide(True)
            torch.testing.assert_close(wide, narrow, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("kind", [Quantization(bits, group) for bits in (8, 4) for group in (16, 32, 64, 128)], ids=str)
def test_activations_are_rounded_to_the_nearest_step_of_their_groups_largest(kind: Quantization) -> None:
    x, group = random_rows(9, 172), kind.group
    x[3] = 0
    error = torch.nn.functional.pad(rounded(x, kind, group) - x, (0, -172 % group)).view(9, -1, group)
    largest = torch.nn.functional.pad(x, (0, -172 % group)).view(9, -1, group).abs().amax(-1, keepdim=True)
    assert (error.abs() <= largest / steps_of(kind) / 2 * 1.01).all()
    assert error.any()


@pytest.mark.parametrize(
    "kind", [Quantization(4, 32, "int4"), Quantization(4, 32), Quantization(4, 32, "iq4"), *FLOATS4], ids=str
)
def test_sums_of_the_largest_digits_are_exact(kind: Quantization) -> None:
    columns, groups = 256, 256 // kind.group
    least = None if kind.code else torch.ones((16, groups))
    for digit in (0, 7, 15):
        q = torch.full((16, columns), digit, dtype=torch.uint8)
        matrix = Grouped(kind, q, torch.ones((16, groups)), least)
        for number in (127.0, -127.0):
            x = torch.full((9, columns), number)
            exact = x @ matrix.dequantize().t()
            assert torch.equal(stored(matrix)(x), exact)
            assert torch.equal(stored(matrix)(x[:1]), exact[:1])


@pytest.fixture
def int8_activations() -> Iterator[None]:
    native.round_to_int8(True)
    yield
    native.round_to_int8(False)


SMALL_GROUPS = [Quantization(8, 16), Quantization(8, 32)]  # beside which activations may be int8


def without_least(kind: Quantization, rows: int, columns: int, dtype: torch.dtype) -> Grouped:
    return replace(random_matrix(kind, rows, columns, dtype), least=None)


@pytest.mark.usefixtures("int8_activations")
@pytest.mark.parametrize("kind", SMALL_GROUPS, ids=str)
def test_activations_beside_int8_are_rounded_to_int8_where_it_is_asked_for(kind: Quantization) -> None:
    matrix, x = without_least(kind, 100, 600, torch.float16), random_rows(9, 600)
    numbers = rounded(x, Quantization(4, kind.group), kind.group).double()
    exact, size = numbers @ matrix.dequantize().double().t(), numbers.abs() @ matrix.dequantize().double().abs().t()
    for count in (1, 2, 9):
        assert ((stored(matrix)(x[:count]).double() - exact[:count]).abs() <= 1e-6 * size[:count]).all()


@pytest.mark.usefixtures("by_amx", "int8_activations")
@pytest.mark.parametrize("kind", SMALL_GROUPS, ids=str)
def test_int8_by_int8_has_the_same_bits_on_every_way_and_in_any_company(kind: Quantization) -> None:
    for dtype, (rows, columns) in zip((torch.float32, torch.float16), ((100, 1300), (33, 64)), strict=True):
        weight, x = stored(without_least(kind, rows, columns, dtype)), random_rows(515, columns)
        x[7, -1] = float("nan")
        together = weight(x)
        assert not together[7].isfinite().any()
        for count in (*range(1, 14), 24, 25, 48, 49, 256, 257, 515):
            torch.testing.assert_close(weight(x[:count]), together[:count], rtol=0, atol=0, equal_nan=True)
        native.allow_wide(False)
        try:
            torch.testing.assert_close(weight(x), together, rtol=0, atol=0, equal_nan=True)
        finally:
            native.allow_wide(True)


@pytest.mark.usefixtures("int8_activations")
@pytest.mark.parametrize("number", [127.0, -127.0])
@pytest.mark.parametrize("weight", [127, -128])
def test_sums_of_the_largest_int8_are_exact(weight: int, number: float) -> None:
    matrix = Grouped(Quantization(8, 32), torch.full((16, 256), weight, dtype=torch.int8), torch.ones((16, 8)), None)
    for count in (1, 9, 60):
        x = torch.full((count, 256), number)
        assert torch.equal(stored(matrix)(x), x @ matrix.dequantize().t())


def test_larger_groups_and_least_numbers_take_int16_whatever_is_asked_for(int8_activations: None) -> None:
    for kind in (Quantization(8, 16), *(Quantization(8, group) for group in (64, 128, 0))):
        weight, x = stored(random_matrix(kind, 50, 600, torch.float16)), random_rows(30, 600)
        asked = weight(x)
        native.round_to_int8(False)
        assert torch.equal(weight(x), asked)
        native.round_to_int8(True)


@pytest.mark.parametrize("kind", [KINDS[0], KINDS[5]], ids=str)
@pytest.mark.parametrize("broken", [float("nan"), float("inf"), float("-inf")])
def test_a_row_that_is_not_finite_stays_so_and_spoils_no_other(kind: Quantization, broken: float) -> None:
    weight = stored(random_matrix(kind, 40, 200, torch.float32))
    x = random_rows(6, 200)
    whole = weight(x)
    x[2, 150] = broken
    result = weight(x)
    assert not result[2].isfinite().any()
    others = [0, 1, 3, 4, 5]
    assert torch.equal(result[others], whole[others])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize(("rows", "columns"), [(50, 172), (16, 1100), (3, 20), (64, 512)])
def test_a_half_precision_product_equals_that_in_float64(dtype: torch.dtype, rows: int, columns: int) -> None:
    matrix = random_rows(rows, columns).to(dtype)
    weight = HalfPanels(rows, columns, dtype)
    for start in range(0, rows, 21):
        weight.fill(start, matrix[start : start + 21])
    assert torch.equal(weight.rows(torch.arange(rows)), matrix)
    for count in (1, 5, 6, 7, 20):
        x = random_rows(count, columns)
        exact, size = x.double() @ matrix.double().t(), x.double().abs() @ matrix.double().abs().t()
        assert ((weight(x).double() - exact).abs() <= 3e-6 * size).all()


def half_panels() -> HalfPanels:
    weight = HalfPanels(150, 700, torch.bfloat16)
    weight.fill(0, random_rows(150, 700).bfloat16())
    return weight


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize(
    "make",
    [
        half_panels,
        *(lambda kind=kind: stored(random_matrix(kind, 150, 700, torch.float16)) for kind in KINDS),
        *(lambda kind=kind: stored(random_matrix(kind, 150, 700, torch.int8)) for kind in KINDS[2:7:4]),
        *(lambda kind=kind: stored(random_matrix(kind, 150, 700, FLOAT8)) for kind in FLOATS4),
    ],
    ids=[
        "half",
        *map(str, KINDS),
        *(f"{kind} in multiples" for kind in KINDS[2:7:4]),
        *(f"{kind} by e4m3" for kind in FLOATS4),
    ],
)
def test_a_row_has_the_same_bits_in_any_company(make: Callable[[], torch.nn.Module], threads: int) -> None:
    weight, x = make(), random_rows(130, 700)
    together = weight(x)
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        for start, count in ((0, 1), (5, 2), (3, 3), (40, 4), (1, 6), (2, 7), (30, 100)):
            assert torch.equal(weight(x[start : start + count]), together[start : start + count])
    finally:
        torch.set_num_threads(before)


def test_without_a_compiler_torch_computes_with_the_same_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    matrix = random_matrix(Quantization(4, 32), 1500, 172, torch.float16)
    compiled, x = stored(matrix), random_rows(4, 172)
    monkeypatch.setattr(native, "available", lambda: False)
    plain = stored(matrix)
    assert plain.row_multiple == 8
    size = x.abs() @ matrix.dequantize().abs().t()
    assert ((plain(x) - x @ matrix.dequantize().t()).abs() <= 1e-6 * size).all()
    assert (plain(x) - compiled(x)).norm() < 0.02 * plain(x).norm()


def test_a_compiler_that_fails_is_reported_and_missed_by_nobody_else(tmp_path: Path) -> None:
    code = "import torch\nfrom tandem.worker.model.cpu import native\nprint(native.available())"
    environment = {"CC": "false", "XDG_CACHE_HOME": str(tmp_path), "PATH": "/nowhere"}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
    assert "half-precision and quantized weights will be slow" in done.stderr
    assert list((tmp_path / "tandem").iterdir()) == []
