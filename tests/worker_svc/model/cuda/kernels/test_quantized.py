"""Products with quantized matrices equal those with the numbers that the integers stand for, in float64."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from tandem.worker.checkpoints import open_checkpoint
from tandem.worker.checkpoints.grouped import E8M0, Grouped, Quantization
from tandem.worker.checkpoints.model_parts.heads import KVHeads
from tandem.worker.model.cuda import quantized as cuda_quantized
from tandem.worker.model.cuda.kernels import quantized, words
from tandem.worker.model.cuda.kernels.swiglu import swiglu
from tandem.worker.model.cuda.operations import TritonOperations
from tandem.worker.model.cuda.quantized import KernelWeight
from tandem.worker.model.kv_cache import CacheShape, KVCache
from tandem.worker.model.kv_formats import Plain
from tandem.worker.model.loading import load_transformer
from tandem.worker.model.operations import TorchOperations
from tandem.worker.model.quantization import QuantizedWeight, quantize
from tandem.worker.model.runner import ModelRunner
from tandem.worker.model.work import Work
from tests.worker_svc.model.cuda.kernels.conftest import DEVICE, DTYPES
from tests.worker_svc.model.llama_folders import random_llama

KINDS = [
    Quantization(8, 0),
    Quantization(8, 64),
    Quantization(4, 32),
    Quantization(4, 128),
    Quantization(4, 64, "int4"),
    Quantization(4, 32, "e2m1"),
    Quantization(4, 64, "iq4"),
]
ERRORS = {torch.float32: 1e-6, torch.float16: 1e-3, torch.bfloat16: 8e-3}
MODES = [pytest.param(True, id="reproducible"), pytest.param(False, id="fast")]


def weight(kind: Quantization, rows: int, columns: int, *, reproducible: bool) -> tuple[KernelWeight, torch.Tensor]:
    """A random matrix, filled in two pieces, and what it stands for."""
    torch.manual_seed(columns)
    if kind.code:
        shape = (rows, -(-columns // kind.group))
        scale = torch.randint(120, 130, shape, dtype=E8M0) if kind.code == "e2m1" else torch.rand(shape)
        q, order = torch.randint(0, 16, (rows, columns), dtype=torch.uint8), torch.randperm(columns)
        grouped = Grouped(kind, q, scale, None, order if kind.code == "iq4" else None)
    else:
        grouped = quantize(torch.randn(rows, columns), kind)
    made = KernelWeight(kind, rows, columns, grouped, DEVICE, reproducible=reproducible)
    for start, end in ((0, 7), (7, rows)):
        part = slice(start, end)
        least = None if grouped.least is None else grouped.least[part]
        made.fill(start, type(grouped)(kind, grouped.q[part], grouped.scale[part], least))
    return made, grouped.dequantize()


@pytest.mark.parametrize("reproducible", MODES)
@pytest.mark.parametrize("kind", KINDS, ids=str)
@pytest.mark.parametrize(("columns", "dtype"), [(256, DTYPES[0]), (300, DTYPES[-1])], ids=str)
def test_it_equals_float64(
    kind: Quantization, columns: int, dtype: torch.dtype, reproducible: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cuda_quantized, "MOST_ROWS", 16)
    monkeypatch.setattr(cuda_quantized, "_PIECE_ROWS", 32)
    made, plain = weight(kind, 45, columns, reproducible=reproducible)
    torch.testing.assert_close(made.rows(slice(None)).cpu(), plain, rtol=0, atol=0)
    assert len(made) == 45
    for rows in (1, 17):
        x = torch.randn(rows, columns).to(dtype).to(DEVICE)
        exact = x.cpu().double() @ plain.double().T
        error = ((made(x).cpu().double() - exact).norm() / exact.norm()).item()
        # Made plain, the weights are rounded to x's dtype as well.
        assert error < ERRORS[dtype], rows


@pytest.mark.usefixtures("_rows_alike")
@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_a_row_has_the_same_bits_in_any_company(kind: Quantization, monkeypatch: pytest.MonkeyPatch) -> None:
    made, _ = weight(kind, 40, 384, reproducible=True)
    assert made.row_multiple == 1
    x = torch.randn(70, 384, device=DEVICE)
    monkeypatch.setattr(quantized, "_SPLIT", 128)
    monkeypatch.setattr(words, "_SPLIT", 1)
    for kernel in (quantized, words):
        monkeypatch.setattr(kernel, "BUSY", 0)  # splits one after the other
    together = made(x)
    for kernel in (quantized, words):
        monkeypatch.setattr(kernel, "BUSY", 300)  # side by side
    for rows in (slice(0, 1), slice(66, 70)):
        assert torch.equal(made(x[rows]), together[rows])


@pytest.mark.parametrize("kind", [KINDS[0], KINDS[1], KINDS[2], KINDS[6]], ids=str)
def test_a_gate_that_ends_a_product_has_the_bits_of_one_behind_it(
    kind: Quantization, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, _ = weight(kind, 256, 300, reproducible=False)
    monkeypatch.setattr(quantized, "_SPLIT", 128)
    monkeypatch.setattr(words, "_SPLIT", 1)
    x = torch.randn(17, 300).to(DTYPES[1]).to(DEVICE)
    for rows in (1, 17):
        apart = swiglu(made(x[:rows]), 128)
        with monkeypatch.context() as only:
            for kernel in (quantized, words):
                only.setattr(kernel, "swiglu", None)
            assert torch.equal(made.gated(x[:rows]), apart)
    for kernel in (quantized, words):
        monkeypatch.setattr(kernel, "BUSY", 0)  # splits one after the other: their own kernel gates
    torch.testing.assert_close(made.gated(x), apart)


def test_a_matrix_of_several_kinds_keeps_its_first_rows() -> None:
    made, plain = weight(KINDS[3], 45, 256, reproducible=True)
    made.truncate(20)
    assert len(made) == 20
    torch.testing.assert_close(made.rows(torch.tensor([19, 0], device=DEVICE)).cpu(), plain[[19, 0]], rtol=0, atol=0)


def test_a_model_computes_with_them(tmp_path: Path) -> None:
    random_llama(hidden_size=48, num_attention_heads=4, num_key_value_heads=2, num_hidden_layers=1).save_pretrained(
        tmp_path
    )
    logits = []
    for operations in (TritonOperations(4), TorchOperations()):
        model = load_transformer(
            open_checkpoint(tmp_path), DEVICE, torch.float32, operations=operations, quantization=Quantization(4, 32)
        )
        shape = CacheShape((KVHeads(2, model.config.head_dim),), 2, 16, Plain(torch.float32))
        runner = ModelRunner(model, KVCache(shape, DEVICE))
        runner.row_multiple = 1
        logits.append(runner.forward([Work(np.arange(9, dtype=np.int32), 0, np.arange(2), 1)])[0].clone())
        made = [module for module in model.modules() if isinstance(module, QuantizedWeight)]
        assert len(made) >= 5
        assert all(isinstance(weight, KernelWeight) for weight in made) == isinstance(operations, TritonOperations)
    # On a CPU, activations are quantized too.
    assert (logits[0] - logits[1]).norm() < 0.05 * logits[1].norm()
