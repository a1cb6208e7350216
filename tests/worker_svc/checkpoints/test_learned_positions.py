"""Positions that are vectors: older spellings of GPT-2's tensors, where a context ends, what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from tandem.worker.checkpoints import CheckpointError, open_checkpoint
from tandem.worker.checkpoints.model_parts.limits import ConfigError
from tandem.worker.engine.process.build import BuildError, served_config
from tandem.worker.engine.process.config import EngineConfig
from tandem.worker.model.loading import load_transformer
from tandem.worker.model.quantization import INT8
from tests.worker_svc.checkpoints.gguf_models import save_gguf
from tests.worker_svc.model.llama_folders import logits_in_chunks, some_ids
from tests.worker_svc.model.random_models import assert_logits_agree, loaded, saved
from tests.worker_svc.model.tiny_models import MODELS


def spelled(folder: Path, tensors: dict[str, torch.Tensor], *, pickled: bool) -> None:
    (folder / "model.safetensors").unlink()
    if pickled:
        torch.save(tensors, folder / "pytorch_model.bin")
    else:
        save_file(tensors, folder / "model.safetensors", {"format": "pt"})


@pytest.mark.parametrize("pickled", [False, True])
@pytest.mark.parametrize("first", ["transformer.", ""])
@pytest.mark.parametrize("name", ["gpt2", "gpt neo"])
def test_tensors_may_be_named_as_in_older_files(name: str, first: str, pickled: bool, tmp_path: Path) -> None:
    kind, changes = MODELS[name]
    theirs = saved(kind, tmp_path, **changes)
    tensors = load_file(tmp_path / "model.safetensors")
    there = {first + key.removeprefix("transformer."): tensor for key, tensor in tensors.items()}
    middle = "attn" if name == "gpt2" else "attn.attention"
    there |= {f"{first}h.{layer}.{middle}.bias": torch.ones(1, 1, 96, 96).tril() for layer in range(3)}
    there |= {f"{first}h.{layer}.{middle}.masked_bias": torch.tensor(-1e4) for layer in range(3)}
    if pickled:
        there["lm_head.weight"] = there[f"{first}wte.weight"]  # the same memory, as torch.save keeps it
    spelled(tmp_path, there, pickled=pickled)
    assert_logits_agree(loaded(tmp_path), theirs, 60)


def test_tensors_of_opt_may_be_named_as_in_older_files(tmp_path: Path) -> None:
    theirs = saved("OPT", tmp_path, **MODELS["opt"][1])
    tensors = load_file(tmp_path / "model.safetensors")
    spelled(tmp_path, {key.removeprefix("model."): tensor for key, tensor in tensors.items()}, pickled=True)
    assert_logits_agree(loaded(tmp_path), theirs, 60)


@pytest.mark.parametrize("name", ["gpt2", "gpt bigcode", "gpt neo", "opt"])
def test_a_context_ends_where_the_positions_do(name: str, tmp_path: Path) -> None:
    kind, changes = MODELS[name]
    theirs = saved(kind, tmp_path, **changes | ({"max_position_embeddings": 96} if kind in ("GPTNeo", "OPT") else {}))
    model = open_checkpoint(tmp_path).config
    assert model.context_length == 96
    assert_logits_agree(loaded(tmp_path), theirs, 96)
    assert served_config(model, EngineConfig(model="x", context_length=96)) == model
    assert served_config(model, EngineConfig(model="x", context_length=40)).context_length == 40
    for scale in (1.0, 4.0):
        with pytest.raises(BuildError, match=r"context_length 97 is more than the 96 positions .* has learned"):
            served_config(model, EngineConfig(model="x", context_length=97, rope_scale=scale))
    with pytest.raises(ConfigError, match="context_length is 97, but the model has learned 96 positions"):
        model.with_context_length(97)


def test_a_gguf_files_context_is_no_longer_than_its_table(tmp_path: Path) -> None:
    theirs = saved("GPT2", tmp_path, **MODELS["gpt2"][1])
    path = save_gguf(theirs, tmp_path / "model.gguf", metadata={"gpt2.context_length": 97})
    with pytest.raises(CheckpointError, match="context_length is 97, but the model has learned 96 positions"):
        open_checkpoint(path)
    path = save_gguf(theirs, tmp_path / "model.gguf", metadata={"gpt2.context_length": 40})
    assert open_checkpoint(path).config.context_length == 40


def test_int8_and_int4_leave_the_table_of_positions_as_it_is(tmp_path: Path) -> None:
    saved("GPT2", tmp_path, **MODELS["gpt2"][1])
    plain, eight = (
        load_transformer(open_checkpoint(tmp_path), "cpu", torch.float32, quantization=kind) for kind in (None, INT8)
    )
    rows = torch.arange(96)
    assert plain.positions is not None
    assert eight.positions is not None
    assert torch.equal(plain.positions(rows), eight.positions(rows))
    ids = some_ids(97, 40)
    whole, other = logits_in_chunks(plain, ids, [40]), logits_in_chunks(eight, ids, [40])
    assert (whole - other).norm() < 0.05 * whole.norm()


@pytest.mark.parametrize(
    ("name", "changes", "problem"),
    [
        ("opt", {"do_layer_norm_before": False}, "do_layer_norm_before is false, which OPT-350M alone has"),
        ("opt", {"word_embed_proj_dim": 24}, "word_embed_proj_dim is 24, which is not served; hidden_size 48 is"),
        ("opt", {"_remove_final_layer_norm": True}, "_remove_final_layer_norm is true"),
        ("opt", {"layer_norm_elementwise_affine": False}, "layer_norm_elementwise_affine is false"),
        ("gpt2", {"scale_attn_by_inverse_layer_idx": True}, "scale_attn_by_inverse_layer_idx is true"),
        ("gpt2", {"add_cross_attention": True}, "add_cross_attention is true"),
        ("gpt2", {"n_positions": 0}, "context_length|n_positions|max_position_embeddings"),
        ("gpt neo", {"attention_types": [[["global"], 2]]}, "attention_types must be a list of"),
        ("gpt neo", {"attention_types": [[["global", "far"], 1], [["local"], 1]]}, "attention_types must be a list of"),
        ("gpt neo", {"attention_types": [[["global"] * 4096, 4096]]}, "attention_types must be a list of"),
        ("gpt neo", {"attention_layers": ["global"] * 3}, "attention_layers are not those that attention_types has"),
        ("gpt neo", {"window_size": 0}, "window_size must be at least 1, but is 0"),
    ],
)
def test_what_is_not_served_is_refused_by_its_field(
    name: str, changes: dict[str, Any], problem: str, tmp_path: Path
) -> None:
    kind, settings = MODELS[name]
    saved(kind, tmp_path, **settings)
    file = tmp_path / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))
    with pytest.raises(CheckpointError, match=problem):
        open_checkpoint(tmp_path)
