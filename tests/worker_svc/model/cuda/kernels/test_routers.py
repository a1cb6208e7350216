"""A router that is stored in float32 is multiplied in float32 by kernels too, in models of 16 bits."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tandem.worker.checkpoints import open_checkpoint
from tandem.worker.model.cuda.operations import TritonOperations
from tandem.worker.model.cuda.products import few_rows, same_bits
from tandem.worker.model.loading import load_transformer
from tandem.worker.model.operations import Product, Products
from tandem.worker.model.transformer import Transformer
from tests.worker_svc.model.cuda.kernels.conftest import DEVICE
from tests.worker_svc.model.llama_folders import logits_in_chunks
from tests.worker_svc.model.sharp_routers import Sharp, sharp

DTYPE = torch.bfloat16 if DEVICE.type == "cuda" else torch.float16  # bf16 is multiplied wrongly by the interpreter


def loaded(case: Sharp, product: Product | None) -> Transformer:
    model = load_transformer(open_checkpoint(case.path), DEVICE, DTYPE, operations=TritonOperations(4, split=64))
    model.multiply_by(Products(product))
    return model


@pytest.mark.usefixtures("_rows_alike")
@pytest.mark.parametrize("product", [None, same_bits, few_rows], ids=["library", "same bits", "few rows"])
@pytest.mark.parametrize("kind", ["softmax", "sigmoid"])
def test_experts_that_float32_tells_apart_are_chosen_as_in_float64(
    kind: str, product: Product | None, tmp_path: Path
) -> None:
    case = sharp(kind, tmp_path, DTYPE, lambda router: router)
    model = loaded(case, product)
    whole = logits_in_chunks(model, case.ids, [40], 8)
    assert case.away(whole.cpu()) < 0.05
    if product is not None:  # the library's is tried at start
        assert torch.equal(logits_in_chunks(model, case.ids, [17, 1, 22], 8), whole)
    rounded = sharp(kind, tmp_path, DTYPE, lambda router: router.to(DTYPE))
    assert rounded.away(logits_in_chunks(loaded(rounded, product), case.ids, [40], 8).cpu()) > 0.5
