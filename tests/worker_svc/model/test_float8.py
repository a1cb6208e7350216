"""Weights of 8-bit floats: what rounding costs, and both ways to multiply them against float64."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tandem.worker.checkpoints import open_checkpoint
from tandem.worker.checkpoints.grouped import Float8Rows, to_float8
from tandem.worker.engine.process.build import quantization_name
from tandem.worker.model.cpu.wide_panels import WidePanels
from tandem.worker.model.cuda.kernels.float8 import rows_to_float8
from tandem.worker.model.float8 import Float8Weight, scaled_product
from tandem.worker.model.linear import PlainWeight
from tandem.worker.model.loading import load_transformer
from tests.worker_svc.model.llama_folders import logits_in_chunks, random_llama, some_ids


def random_rows(rows: int, columns: int) -> torch.Tensor:
    numbers = torch.randn((rows, columns), generator=torch.Generator().manual_seed(rows))
    return numbers * torch.logspace(-4, 4, rows).unsqueeze(1)


def test_numbers_are_rounded_to_the_nearest_with_three_bits_of_their_own() -> None:
    weight = random_rows(30, 200)
    weight[4] = 0
    made = to_float8(weight)
    smallest = made.scale * 2**-10  # half of the least step there is
    assert ((made.dequantize() - weight).abs() <= weight.abs() / 16 * 1.001 + smallest).all()
    largest = weight.abs().argmax(1, keepdim=True)
    torch.testing.assert_close(made.dequantize().gather(1, largest), weight.gather(1, largest))


def filled(matrix: torch.Tensor) -> tuple[Float8Weight, Float8Rows]:
    weight, made = Float8Weight(*matrix.shape, torch.device("cpu")), to_float8(matrix)
    for start in range(0, len(matrix), 7):
        weight.fill(start, Float8Rows(made.q[start : start + 7], made.scale[start : start + 7]))
    return weight, made


def test_without_a_card_the_product_is_that_of_the_rounded_weights() -> None:
    weight, made = filled(random_rows(1500, 48))
    x = random_rows(5, 48)
    exact, size = (f(x).double() @ f(made.dequantize()).double().t() for f in (torch.clone, torch.abs))
    assert ((weight(x).double() - exact).abs() <= 1e-6 * size).all()
    assert torch.equal(weight.rows(torch.tensor([3, 1400])), made.dequantize()[[3, 1400]])
    weight.truncate(40)
    assert len(weight) == 40
    torch.testing.assert_close(weight(x), x @ made.dequantize()[:40].t(), rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("count", [1, 5, 64])
def test_the_scaled_product_is_that_of_rounded_rows_and_weights(count: int, dtype: torch.dtype) -> None:
    made = to_float8(random_rows(32, 64) / 1e4)
    x = random_rows(count, 64).clamp(-100, 100).to(dtype)
    rows = rows_to_float8(x).dequantize().double()
    exact, size = rows @ made.dequantize().double().t(), rows.abs() @ made.dequantize().double().abs().t()
    product = scaled_product(x, made)
    assert product.dtype == dtype
    assert ((product.double() - exact).abs() <= exact.abs() / 128 + 1e-6 * size).all()


def test_a_row_that_is_not_finite_spoils_no_other() -> None:
    made, x = to_float8(random_rows(32, 64)), random_rows(4, 64).bfloat16()
    whole = scaled_product(x, made)
    x[2, 5] = float("nan")
    result = scaled_product(x, made)
    assert result[2].isnan().all()
    assert torch.equal(result[[0, 1, 3]], whole[[0, 1, 3]])


def test_a_model_keeps_its_embedding_output_and_norms(tmp_path: Path) -> None:
    random_llama().save_pretrained(tmp_path)
    ids = some_ids(97, 43)
    whole = logits_in_chunks(load_transformer(open_checkpoint(tmp_path), "cpu", torch.float32), ids, [43])
    model = load_transformer(open_checkpoint(tmp_path), "cpu", torch.float32, quantization="fp8")
    assert quantization_name(model) == "fp8"
    assert isinstance(model.output.weights[0], PlainWeight | WidePanels)
    assert isinstance(model.embedding.stored, PlainWeight)
    logits = logits_in_chunks(model, ids, [43])
    assert torch.equal(logits_in_chunks(model, ids, [5, 1]), logits)
    assert 0 < (logits - whole).norm() / whole.norm() < 0.2
