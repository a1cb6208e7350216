"""In which dtype a CPU keeps a model where none is asked for."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tandem.worker.checkpoints import open_checkpoint
from tandem.worker.engine.process import device as devices
from tandem.worker.engine.process.build import build_engine
from tandem.worker.engine.process.config import EngineConfig
from tandem.worker.model.linear import panels_for
from tests.worker_svc.model.llama_folders import random_llama

CPU = torch.device("cpu")
HALVES = (torch.bfloat16, torch.float16)


def save_llama(dtype: torch.dtype, folder: Path) -> None:
    model = random_llama()
    torch.nn.Module.to(model, dtype)
    model.save_pretrained(folder)


@pytest.mark.parametrize("dtype", [torch.float32, *HALVES], ids=str)
def test_a_cpu_keeps_the_checkpoints_own(dtype: torch.dtype, tmp_path: Path) -> None:
    if dtype in HALVES and panels_for(dtype) is None:
        pytest.skip(f"this processor has no compiled products for {dtype}")
    save_llama(dtype, tmp_path)
    built = build_engine(EngineConfig(model=str(tmp_path), device="cpu", kv_cache_tokens=1024))
    assert built.dtype == str(dtype).removeprefix("torch.")


@pytest.mark.parametrize(("has_bf16", "chosen"), [(True, torch.bfloat16), (False, torch.float32)])
@pytest.mark.parametrize("dtype", HALVES, ids=str)
def test_without_compiled_products_the_processors_instructions_decide(
    dtype: torch.dtype, has_bf16: bool, chosen: torch.dtype, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(devices, "panels_for", lambda dtype: None)
    monkeypatch.setattr(devices, "computes_bf16", lambda: has_bf16)
    save_llama(dtype, tmp_path)
    checkpoint = open_checkpoint(tmp_path)
    assert devices.choose_dtype("auto", CPU, checkpoint) == chosen
    assert devices.choose_dtype("float16", CPU, checkpoint) == torch.float16
