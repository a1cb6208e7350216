"""What `tandem inspect` says of memory is what the engine then takes."""

from __future__ import annotations

from pathlib import Path

import pytest

from tandem.worker.convert.inspection import inspect
from tandem.worker.engine.process import build
from tandem.worker.engine.process.config import EngineConfig
from tests.worker_svc.checkpoints.gguf_models import save_gguf
from tests.worker_svc.model.llama_folders import random_llama

SIZES = {"hidden_size": 256, "intermediate_size": 512, "num_attention_heads": 8, "num_key_value_heads": 4}


def taken(path: Path, **fields: object) -> int:
    return build.build_engine(EngineConfig(model=str(path), kv_cache_tokens=512, threads=1, **fields)).weight_bytes  # type: ignore[arg-type]


@pytest.mark.parametrize("group", [0, 32, 128])
def test_int8_and_int4_have_the_groups_that_are_asked_for(group: int, tmp_path: Path) -> None:
    random_llama(**SIZES, vocab_size=512, tie_word_embeddings=True).save_pretrained(tmp_path)
    said = inspect(tmp_path, group)["weight_bytes"]
    for name in ("int8", "int4"):
        assert said[name] == pytest.approx(taken(tmp_path, quantize=name, quantize_group=group), rel=0.02)
    assert group or said["fp8"] == pytest.approx(taken(tmp_path, quantize="fp8", dtype="bfloat16"), rel=0.02)


@pytest.mark.parametrize(
    "kind", ["Q8_0", "Q4_0", "Q4_K", "IQ4_XS", "MXFP4", "Q5_0", "Q5_1", "Q2_K", "Q5_K", "Q6_K", "NVFP4", "Q1_0"]
)
def test_a_gguf_files_own_integers_have_their_own_groups(kind: str, tmp_path: Path) -> None:
    path = save_gguf(random_llama(**SIZES, vocab_size=512), tmp_path / "model.gguf", kind)
    near = 0.04 if kind == "NVFP4" else 0.02  # whose rows have a float32 each, which counts in so small ones
    assert inspect(path)["weight_bytes"]["as stored"] == pytest.approx(taken(path), rel=near)


def test_a_plain_checkpoint_is_not_said_to_keep_any(tmp_path: Path) -> None:
    random_llama().save_pretrained(tmp_path)
    assert "as stored" not in inspect(tmp_path)["weight_bytes"]
