"""Kinds of llama.cpp that came with numbers of whole matrices, beside transformers and llama.cpp."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tandem.worker.checkpoints import CheckpointError, open_checkpoint
from tandem.worker.model.loading import load_transformer
from tests.worker_svc.checkpoints.beside_llama_cpp import absent, logits_of_llama_cpp
from tests.worker_svc.checkpoints.gguf_models import save_gguf
from tests.worker_svc.model.llama_folders import logits_in_chunks, some_ids
from tests.worker_svc.model.random_models import saved

EXPERTS = 4
SIZES: dict[str, Any] = {"hidden_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4, "head_dim": 32}
SIZES |= {"num_experts": EXPERTS, "num_experts_per_tok": 2, "moe_intermediate_size": 128, "norm_topk_prob": True}
FACTORS = {"attn_q": 0.7, "attn_k": 1.3, "attn_v": 0.9, "attn_output": 1.2}
OF_EXPERTS = {"ffn_gate_exps": (1.1, 0.6, 0.8, 1.4), "ffn_up_exps": (0.9, 1.2, 0.7, 1.1)}
OF_EXPERTS |= {"ffn_down_exps": (0.5, 0.75, 1.5, 1.25)}


def with_factors(folder: Path, kind: str) -> tuple[Any, Path]:
    """A model whose file has such tensors, where it is of NVFP4, and the file."""
    theirs = saved("Qwen3Moe", folder, **SIZES)
    vocabulary = {"tokenizer.ggml.model": "no_vocab", "qwen3moe.vocab_size": 97}
    extra: dict[str, Any] = {}
    if kind == "NVFP4":
        for layer in range(2):
            extra |= {f"blk.{layer}.{name}.scale": np.array([each], np.float32) for name, each in FACTORS.items()}
            extra |= {f"blk.{layer}.{name}.scale": np.array(each, np.float32) for name, each in OF_EXPERTS.items()}
            extra |= {f"blk.{layer}.attn_q.input_scale": np.array([0.01], np.float32)}
        extra["output.scale"] = np.array([0.8], np.float32)
    path = save_gguf(theirs, folder / "model.gguf", kind, metadata=vocabulary, extra=extra)
    if kind == "NVFP4":
        for layer in theirs.model.layers:
            for name, factor in FACTORS.items():
                part = name.replace("attn_output", "attn_o").replace("attn_", "") + "_proj"
                getattr(layer.self_attn, part).weight.data.mul_(factor)
            gate, up, down = (torch.tensor(each).view(-1, 1, 1) for each in OF_EXPERTS.values())
            layer.mlp.experts.gate_up_proj.data[:, :128].mul_(gate)
            layer.mlp.experts.gate_up_proj.data[:, 128:].mul_(up)
            layer.mlp.experts.down_proj.data.mul_(down)
        theirs.lm_head.weight.data.mul_(0.8)
    return theirs, path


@pytest.mark.parametrize("kind", ["NVFP4", "Q1_0"])
def test_matrices_with_numbers_of_their_own_give_transformers_logits_and_llama_cpps(kind: str, tmp_path: Path) -> None:
    theirs, path = with_factors(tmp_path, kind)
    ids = some_ids(97, 40)
    with torch.inference_mode():
        expected = theirs(torch.tensor([ids])).logits[0]
    plain = load_transformer(open_checkpoint(path), "cpu", torch.float32, quantization=None)
    torch.testing.assert_close(logits_in_chunks(plain, ids, [40]), expected, atol=2e-4 * float(expected.std()), rtol=0)
    kept = load_transformer(open_checkpoint(path), "cpu", torch.float32)
    whole = logits_in_chunks(kept, ids, [40])
    assert torch.equal(logits_in_chunks(kept, ids, [17, 1]), whole)
    assert (whole - expected).norm() < 0.05 * expected.norm()
    if problem := absent():
        pytest.skip(problem)
    share = {"NVFP4": 0.05, "Q1_0": 0.15}[kind]  # it rounds activations to 8 bits, beside signs to more effect
    assert (logits_of_llama_cpp(path, ids) - expected).norm() < share * expected.norm()


@pytest.mark.parametrize(
    ("name", "numbers"),
    [("attn_q", [1.0, 2.0]), ("ffn_up_exps", [1.0]), ("attn_q", [float("nan")])],
    ids=["two of one", "one of four", "none"],
)
def test_numbers_that_are_not_those_of_its_matrices_are_refused_by_name(
    name: str, numbers: list[float], tmp_path: Path
) -> None:
    theirs = saved("Qwen3Moe", tmp_path, **SIZES)
    extra = {f"blk.0.{name}.scale": np.array(numbers, np.float32)}
    path = save_gguf(theirs, tmp_path / "model.gguf", "NVFP4", extra=extra)
    with pytest.raises(CheckpointError, match=rf"blk.0.{name}.scale must be one finite number of each matrix"):
        open_checkpoint(path)


def test_numbers_of_matrices_of_another_kind_are_refused(tmp_path: Path) -> None:
    theirs = saved("Qwen3Moe", tmp_path, **SIZES)
    path = save_gguf(theirs, tmp_path / "model.gguf", "Q8_0", extra={"blk.0.attn_q.scale": np.ones(1, np.float32)})
    with pytest.raises(CheckpointError, match=r"blk.0.attn_q.scale is not part of the model"):
        open_checkpoint(path)
