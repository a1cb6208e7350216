"""Our products with matrices of floats equal float64, and a row's bits do not depend on how many rows there are."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Literal
from unittest.mock import Mock, patch

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from tandem.worker.checkpoints import open_checkpoint
from tandem.worker.checkpoints.grouped import to_float8
from tandem.worker.checkpoints.model_parts.heads import KVHeads
from tandem.worker.model import row_invariance
from tandem.worker.model.cpu import native
from tandem.worker.model.cuda import products as cuda_products
from tandem.worker.model.cuda.graphs import GraphedRunner
from tandem.worker.model.cuda.kernels import product as kernel
from tandem.worker.model.cuda.operations import TritonOperations
from tandem.worker.model.cuda.products import few_rows, same_bits
from tandem.worker.model.float8 import Float8Weight
from tandem.worker.model.kv_cache import CacheShape, KVCache
from tandem.worker.model.kv_formats import Plain
from tandem.worker.model.linear import PlainWeight
from tandem.worker.model.loading import load_transformer
from tandem.worker.model.operations import Product, Products
from tandem.worker.model.row_invariance import choose_padding
from tandem.worker.model.work import Work
from tests.worker_svc.model.cuda.kernels.conftest import DEVICE, DTYPES
from tests.worker_svc.model.llama_folders import random_llama

ERRORS = {torch.float32: 2e-6, torch.float16: 1e-3, torch.bfloat16: 8e-3}
PRODUCTS = [pytest.param(same_bits, id="same bits"), pytest.param(few_rows, id="few rows")]


@pytest.fixture(autouse=True)
def _poisoned() -> Iterator[None]:
    """Fills what nobody has written with NaN."""
    torch.use_deterministic_algorithms(True, warn_only=True)
    assert torch.empty(5).isnan().all()
    yield
    torch.use_deterministic_algorithms(False)


def matrix(rows: int, columns: int, dtype: torch.dtype) -> torch.Tensor:
    """Random numbers, with NaN behind the last one."""
    generator = torch.Generator().manual_seed(rows)
    numbers = torch.cat([torch.randn(rows * columns, generator=generator), torch.full((20_000,), float("nan"))])
    return numbers.to(dtype).to(DEVICE)[: rows * columns].view(rows, columns)


def error(ours: torch.Tensor, exact: torch.Tensor) -> float:
    """NaN is as wrong as can be."""
    return ((ours.double().cpu() - exact).norm() / exact.norm()).nan_to_num(nan=1e9).item()


@pytest.mark.parametrize("multiply", PRODUCTS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("outputs", "columns"), [(1, 1), (130, 64), (45, 300), (70, 2100)])
def test_it_equals_float64(outputs: int, columns: int, dtype: torch.dtype, multiply: Product) -> None:
    w = matrix(outputs, columns, dtype)
    for rows in (1, 63, 64, 65) if columns <= 300 else (1, 17):
        x = matrix(rows, columns, dtype)
        ours = multiply(x, w)
        assert ours.shape == (rows, outputs) and ours.dtype == dtype
        assert error(ours, x.double().cpu() @ w.double().cpu().T) < ERRORS[dtype], rows


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("outputs", "columns"), [(45, 300), (70, 2100)])
def test_it_equals_float64_of_8_bit_floats(outputs: int, columns: int, dtype: torch.dtype) -> None:
    weight, x = float8_weight(matrix(outputs, columns, torch.float32)), matrix(3, columns, dtype)
    exact = x.double().cpu() @ weight.rows(slice(None)).double().cpu().T
    weight.product = same_bits
    assert error(weight(x), exact) < ERRORS[dtype]


def float8_weight(numbers: torch.Tensor) -> Float8Weight:
    with patch.object(native, "available", return_value=False):  # which a CPU would multiply by otherwise
        weight = Float8Weight(*numbers.shape, DEVICE)
    weight.fill(0, to_float8(numbers * torch.logspace(-2, 2, len(numbers), device=DEVICE).unsqueeze(1)))
    return weight


@pytest.mark.usefixtures("_rows_alike")
@pytest.mark.parametrize(("dtype", "float8"), [*((dtype, False) for dtype in DTYPES), (DTYPES[-1], True)], ids=str)
def test_a_row_has_the_same_bits_in_any_company(
    dtype: torch.dtype, float8: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    x, numbers = matrix(130, 300, dtype), matrix(140, 300, torch.float32)
    weight: Float8Weight | PlainWeight = float8_weight(numbers) if float8 else PlainWeight(numbers.to(dtype))
    weight.product = same_bits
    monkeypatch.setattr(kernel, "_LEAST_SPLIT", 64)
    monkeypatch.setattr(kernel, "_BUSY", 6)  # programs: all rows are more, with their splits one after the other
    side_by_side = Mock(wraps=kernel.add_up)
    monkeypatch.setattr(kernel, "add_up", side_by_side)
    together = weight(x)
    assert not side_by_side.called
    for rows in (slice(5, 68), slice(64, 128), slice(0, 1), slice(129, 130)):
        assert torch.equal(weight(x[rows]), together[rows])
    assert side_by_side.call_count >= 2


def test_no_rows_are_no_work() -> None:
    assert same_bits(matrix(0, 64, DTYPES[0]), matrix(5, 64, DTYPES[0])).shape == (0, 5)


def test_fast_mode_multiplies_as_many_rows_by_our_kernel_as_it_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    x, w = matrix(17, 600, DTYPES[0]), matrix(40, 600, DTYPES[0])
    monkeypatch.setattr(cuda_products, "FAST_ROWS", 16)
    ((multiply, _),) = TritonOperations(4, reproducible=False).products
    assert torch.equal(multiply(x[:16], w), few_rows(x[:16], w))
    assert not torch.equal(few_rows(x, w), F.linear(x, w))
    assert torch.equal(multiply(x, w), F.linear(x, w))


def dependent(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """A product as of a library that splits the sum where there are few rows."""
    half = x.shape[1] // 2 if len(x) <= 8 else x.shape[1]
    return x[:, :half] @ w[:, :half].T + x[:, half:] @ w[:, half:].T


@pytest.mark.usefixtures("_rows_alike")
@pytest.mark.parametrize("quantization", [None, "fp8"], ids=["plain", "fp8"])
def test_where_the_library_lets_rows_depend_on_others_our_kernel_takes_over(
    quantization: Literal["fp8"] | None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    random_llama(
        hidden_size=32, num_attention_heads=2, num_key_value_heads=1, num_hidden_layers=1, intermediate_size=40
    ).save_pretrained(tmp_path)

    def runner() -> GraphedRunner:
        operations = TritonOperations(4)
        operations.row_multiple = 4  # the interpreter takes its time for each row of padding
        model = load_transformer(
            open_checkpoint(tmp_path), DEVICE, torch.float32, operations=operations, quantization=quantization
        )
        shape = CacheShape((KVHeads(1, model.config.head_dim),), 6, 4, Plain(torch.float32))
        return GraphedRunner(model, KVCache(shape, DEVICE), most_rows=2)

    prompt = [Work(np.arange(7, dtype=np.int32), 0, np.arange(2), 1)]
    expected = runner().forward(prompt)[0].clone()

    monkeypatch.setattr(row_invariance, "_PREFILLS", (20, 36))  # of hundreds of rows, the interpreter's time is most
    monkeypatch.setattr(cuda_products, "LIBRARY", Products(dependent))
    monkeypatch.setattr(F, "linear", dependent)  # with which 8-bit floats are multiplied where no card is
    without = runner()
    without.model.operations.products = without.model.operations.products[:1]
    assert not choose_padding(without)

    ours = runner()
    with caplog.at_level(logging.WARNING, "tandem.worker.engine"):
        assert choose_padding(ours)
    assert "our own kernel" in caplog.text
    weights = [module for module in ours.model.modules() if isinstance(module, PlainWeight | Float8Weight)]
    assert len(weights) >= 5 and all(weight.product is same_bits for weight in weights)
    assert quantization is None or sum(isinstance(weight, Float8Weight) for weight in weights) >= 4
    torch.testing.assert_close(ours.forward(prompt)[0], expected, rtol=1e-4, atol=1e-5)
    ours.prepare()
    ours.forward([Work(prompt[0].tokens + 9, 0, np.arange(2, 4), 1)])
    decodes = [Work(np.array([3], dtype=np.int32), 7, np.arange(first, first + 2), 1) for first in (0, 2)]
    assert torch.equal(ours.forward(decodes)[0], ours.forward(decodes[:1])[0])
