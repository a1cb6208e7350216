"""Quantized folders of models whose layers have states, against transformers with the numbers that they store."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from tandem.worker.checkpoints import open_checkpoint
from tandem.worker.model.cpu import native
from tandem.worker.model.float8 import Float8Weight
from tandem.worker.model.loading import load_transformer
from tandem.worker.model.quantization import QuantizedWeight
from tests.exhaustive import some
from tests.worker_svc.checkpoints import test_packed as packed
from tests.worker_svc.checkpoints.test_schemes import FORMATS
from tests.worker_svc.model.llama_folders import logits_in_chunks, some_ids
from tests.worker_svc.model.random_models import saved
from tests.worker_svc.model.tiny_models import MODELS

# Rows of whole blocks of every format.
_SIZES: dict[str, Any] = {"hidden_size": 64, "intermediate_size": 192, "vocab_size": 96, "head_dim": 16}
_SIZES |= {"num_attention_heads": 4, "num_key_value_heads": 2, "initializer_range": 0.1}
_DELTA_NET = {"linear_key_head_dim": 32, "linear_value_head_dim": 32, "linear_num_value_heads": 4}
_EXPERTS = {"moe_intermediate_size": 64}
_MAMBA = {"mamba_n_heads": 8, "mamba_d_state": 8, "head_dim": None}
SIZES: dict[str, dict[str, Any]] = {
    "qwen3 next": _DELTA_NET | _EXPERTS | {"shared_expert_intermediate_size": 64},
    "qwen3.5": _DELTA_NET,
    "lfm2": {"block_auto_adjust_ff_dim": False, "head_dim": None},
    "lfm2 moe": _EXPERTS | {"head_dim": None},
    "granite hybrid": _MAMBA | {"shared_intermediate_size": 64},
    "nemotron h": {"mamba_num_heads": 8, "mamba_head_dim": 16},
    "falcon h1": _MAMBA | {"mamba_d_ssm": 64},
    "nemotron 3, latents, groups": {"mamba_num_heads": 8, "mamba_head_dim": 16, "moe_latent_size": 64}
    | {"moe_intermediate_size": 64, "moe_shared_expert_intermediate_size": 64},
}
STORED = ["fp8, squares", "compressed fp8", "w8a8", "w4a16", "nf4, nested", "llm.int8"]
CASES = {f"{name} in {stored}": (name, stored) for name in SIZES for stored in (*STORED, "gptq", "gptq asymmetric")}
# One of each model and of each format.
ORDINARY = [f"{name} in {stored}" for name, stored in zip(SIZES, [*STORED, "gptq", "gptq asymmetric"], strict=True)]
# Nemotron 3 as it is published.
PUBLISHED = [("nemotron 3, latents, groups", f"modelopt {algorithm}") for algorithm in ("FP8", "NVFP4")]
CASES |= {" in ".join(case): case for case in PUBLISHED}
ORDINARY += [" in ".join(case) for case in PUBLISHED]


def parts_of(weight: torch.Tensor, stored: str) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
    """What a matrix is stored as, and its numbers."""
    if stored in FORMATS:
        return FORMATS[stored][0](weight)
    generator = torch.Generator().manual_seed(len(weight))
    parts, numbers = packed.packed(weight, packed.FORMATS[stored], generator)
    return parts, numbers


def save_stored(name: str, stored: str, folder: Path) -> Any:
    """A random model in that format; returns transformers' model of the numbers that it stores."""
    kind, changes = MODELS[name]
    saved(kind, folder, **changes | _SIZES | SIZES[name])
    tensors = load_file(folder / "model.safetensors")
    plain = dict(tensors)
    for full in [full for full in tensors if full.endswith(".weight") and is_linear(full, tensors[full])]:
        parts, plain[full] = parts_of(tensors.pop(full), stored)
        tensors |= {full.removesuffix("weight") + part: tensor.contiguous() for part, tensor in parts.items()}
    save_file(plain, folder / "model.safetensors", {"format": "pt"})
    reference = transformers.AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager"
    )
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    settings = FORMATS[stored][1] if stored in FORMATS else packed.FORMATS[stored]
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"quantization_config": settings}))
    return reference


def is_linear(name: str, tensor: torch.Tensor) -> bool:
    """Those matrices that are quantized: of layers, and no router."""
    routers = (
        ".gate.weight",
        "router.layer.weight",
        "shared_expert_gate.weight",
        "in_proj_b.weight",
        "in_proj_ba.weight",
    )
    return tensor.dim() == 2 and ".layers." in name and not name.endswith((*routers, "in_proj_a.weight"))


@pytest.mark.parametrize("case", some(CASES, *ORDINARY))
def test_a_quantized_model_with_states_is_that_of_its_numbers(
    case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reference, ids = save_stored(*CASES[case], tmp_path), some_ids(96, 40)
    with torch.inference_mode():
        expected = reference(torch.tensor([ids])).logits[0]
    checkpoint = open_checkpoint(tmp_path)
    assert checkpoint.config.recurrence is not None
    # A part of a matrix has its share of the bytes, rounded down.
    assert sum(tensor.nbytes for _, tensor in checkpoint.tensors()) == pytest.approx(checkpoint.total_bytes, abs=99)
    plain = load_transformer(checkpoint, "cpu", torch.float32, quantization=None)
    torch.testing.assert_close(logits_in_chunks(plain, ids, [40]), expected, atol=2e-4, rtol=0)
    kept = load_transformer(checkpoint, "cpu", torch.float32)
    assert any(isinstance(each, QuantizedWeight | Float8Weight) for each in kept.modules())
    near = logits_in_chunks(kept, ids, [40])
    shares = (near - expected).norm(dim=1) / expected.norm(dim=1)
    if case.endswith(("NVFP4", "in gptq")):  # activations are rounded to 8 bits
        assert shares.median() < 0.1
        monkeypatch.setattr(native, "available", lambda: False)
        unrounded = load_transformer(checkpoint, "cpu", torch.float32)
        torch.testing.assert_close(logits_in_chunks(unrounded, ids, [40]), expected, atol=2e-4, rtol=0)
        monkeypatch.undo()
    else:
        assert shares.median() < 2e-2  # a router may choose another expert for a row
    assert torch.equal(logits_in_chunks(kept, ids, [7, 1]), near)
