"""Products and draws at the sizes that only a card computes."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tandem.worker.checkpoints.grouped import Quantization, to_float8
from tandem.worker.engine.request import LogprobOptions, Request, Stopping
from tandem.worker.engine.sampler import Rows, SamplingTable, launch, sample
from tandem.worker.engine.sampling import Sampling
from tandem.worker.model.cuda.kernels.float8 import rows_to_float8
from tandem.worker.model.cuda.products import few_rows, same_bits
from tandem.worker.model.cuda.quantized import KernelWeight
from tandem.worker.model.float8 import Float8Weight
from tandem.worker.model.quantization import quantize

BF16 = torch.bfloat16
CUDA = torch.device("cuda")
ERRORS = {BF16: 8e-3, torch.float16: 1e-3, torch.float32: 1e-5}
MODES = [pytest.param(True, id="reproducible"), pytest.param(False, id="fast")]


def error(ours: torch.Tensor, exact: torch.Tensor) -> float:
    return ((ours.double() - exact).norm() / exact.norm()).nan_to_num(nan=1e9).item()


@pytest.mark.parametrize("dtype", [BF16, torch.float16, torch.float32], ids=str)
@pytest.mark.parametrize(
    ("outputs", "columns"), [(4096, 4096), (4096, 14336), (28672, 4096), (128256, 2048), (1000, 3001)]
)
def test_plain_products_equal_float64_and_a_row_has_the_same_bits_in_any_company(
    outputs: int, columns: int, dtype: torch.dtype
) -> None:
    w = torch.randn(outputs, columns, device="cuda", dtype=dtype)
    x = torch.randn(2100, columns, device="cuda", dtype=dtype)
    some = torch.arange(0, outputs, 7, device="cuda")
    exact = x[:300].double() @ w[some].double().T
    whole = same_bits(x, w)
    assert error(whole[:300, some], exact) < ERRORS[dtype]
    for rows in (1, 16, 63, 64, 65, 256, 300):
        assert torch.equal(same_bits(x[:rows], w), whole[:rows]), rows
        assert error(few_rows(x[:rows], w)[:, some], exact[:rows]) < ERRORS[dtype], rows
    for rows in (slice(1, 2), slice(63, 65), slice(2000, 2100)):
        assert torch.equal(same_bits(x[rows], w), whole[rows]), rows


@pytest.mark.parametrize("reproducible", MODES)
@pytest.mark.parametrize("kind", [Quantization(8, 0), Quantization(4, 32), Quantization(4, 64)], ids=str)
@pytest.mark.parametrize(("outputs", "columns"), [(4096, 14336), (28672, 4096), (128256, 2048), (1000, 3000)])
def test_quantized_products_equal_float64(outputs: int, columns: int, kind: Quantization, reproducible: bool) -> None:
    grouped = quantize(torch.randn(outputs, columns, device="cuda"), kind)
    weight = KernelWeight(kind, outputs, columns, grouped, CUDA, reproducible=reproducible)
    weight.fill(0, grouped)
    some = torch.arange(0, outputs, 7, device="cuda")
    exact_rows = weight.rows(some).double()
    x = torch.randn(300, columns, device="cuda", dtype=BF16)
    exact = x.double() @ exact_rows.T
    whole = weight(x)
    assert error(whole[:, some], exact) < 8e-3
    for rows in (1, 16, 17, 64, 200):
        ours = weight(x[:rows])
        assert error(ours[:, some], exact[:rows]) < 8e-3, rows
        assert not reproducible or torch.equal(ours, whole[:rows]), rows


def test_fp8_products_equal_float64_of_what_is_multiplied() -> None:
    weight = Float8Weight(4096, 14336, CUDA)
    weight.fill(0, to_float8(torch.randn(4096, 14336, device="cuda")))
    for rows in (1, 5, 64, 300):
        x = torch.randn(rows, 14336, device="cuda", dtype=BF16)
        made = rows_to_float8(x)
        q, scale = made.q, made.scale
        exact = (q.double() * scale) @ weight.rows(slice(None)).double().T
        assert error(weight(x), exact) < 8e-3, rows


def test_fp8_products_of_our_kernel_equal_float64_and_a_row_has_the_same_bits_in_any_company() -> None:
    weight = Float8Weight(4096, 14336, CUDA)
    weight.fill(0, to_float8(torch.randn(4096, 14336, device="cuda")))
    weight.product = same_bits
    x = torch.randn(300, 14336, device="cuda", dtype=BF16)
    whole = weight(x)
    assert error(whole, x.double() @ weight.rows(slice(None)).double().T) < ERRORS[BF16]
    for rows in (slice(0, 1), slice(63, 65), slice(100, 164), slice(0, 200)):
        assert torch.equal(weight(x[rows]), whole[rows]), rows


def test_draws_over_a_large_vocabulary_are_those_of_a_cpu() -> None:
    count = 64
    kinds = [
        {}, {"top_p": 0.9}, {"top_k": 20, "top_p": 0.95}, {"min_p": 0.02}, {"top_n_sigma": 1.0}, {"top_k": 600},
        {"repetition_penalty": 1.2}, {"frequency_penalty": 0.5, "top_p": 0.9, "banned_ids": (5,)},
    ]  # fmt: skip
    requests = [
        Request.make(i, [i], Sampling(temperature=float(i % 4) / 2, seed=i, **kinds[i % 8]), Stopping(9))  # type: ignore[arg-type]
        for i in range(count)
    ]
    logits = torch.randn(count, 128256, generator=torch.Generator().manual_seed(0)) * 3
    rows, table = Rows.next_tokens(requests), SamplingTable(2 * count)
    on_cpu = sample(logits.clone(), rows, table).ids
    launched = launch(logits.cuda(), rows, table)
    assert launched.ids.is_cuda and not launched.waited
    assert np.array_equal(launched.read().ids, on_cpu)
    # In the company of rows that ask for more, by the general way.
    other = Request.make(count, [1], Sampling(top_p=0.9), Stopping(9), logprobs=LogprobOptions(sampled=True))
    mixed = Rows.next_tokens([*requests, other])
    together = launch(torch.cat([logits, logits[:1]]).cuda(), mixed, table).read()
    assert np.array_equal(together.ids[:count], on_cpu)
