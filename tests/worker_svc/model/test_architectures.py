"""Every architecture and every rope scaling against transformers, whole and token by token."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from tandem.worker.checkpoints import CheckpointError, open_checkpoint, open_head
from tandem.worker.checkpoints.ggml_blocks import QuantizedTensor
from tandem.worker.convert.comparison import difference
from tandem.worker.model.loading import load_transformer
from tandem.worker.model.row_invariance import choose_padding
from tandem.worker.model.runner import ModelRunner
from tests.exhaustive import some
from tests.worker_svc.checkpoints.gguf_models import save_gguf
from tests.worker_svc.checkpoints.gguf_tensors import named_tensors
from tests.worker_svc.model.llama_folders import (
    PAGE_SIZE,
    logits_in_chunks,
    new_cache,
    new_states,
    some_ids,
    step,
)
from tests.worker_svc.model.random_models import assert_logits_agree, loaded, saved
from tests.worker_svc.model.tiny_lists import GGUF, GRANTED, NEW, RENAMED
from tests.worker_svc.model.tiny_models import FIRST, MODELS
from tests.worker_svc.model.tiny_models.experts import ERNIE_MOE, HUNYUAN_3, PHIMOE
from tests.worker_svc.model.tiny_models.hybrids import HYBRID
from tests.worker_svc.model.tiny_models.latents import DEEPSEEK_V3
from tests.worker_svc.model.tiny_models.shared import EXPERTS, SCALINGS, WINDOW

COMPANY = [
    "llama, biases everywhere",
    "gpt oss",
    "smollm3",
    "ministral3",
    "arcee",
    "ernie4_5",
    "granite",
    "olmo2",
    "olmo3",
    "starcoder2",
    "cohere2",
    "gemma2",
]
COMPANY += [
    "gemma3",
    "qwen2 moe, windows in turns",
    "flex olmo",
    "granite moe",
    "phi3, rotated in part, longrope",
    "phi moe",
]
COMPANY += ["olmoe, queries, keys and values that are limited", "glm4", "glm4 moe, groups, norms, scaled", "minimax m2"]
COMPANY += ["gemma3n", "gemma4", "gemma4 with experts", "llama4"]
COMPANY += ["deepseek v2, groups, no latent of queries", "deepseek v3", "minicpm3"]
COMPANY += ["minimax 01", "step 3.5", "laguna", "laguna, gates of each number, heads of any number, biases"]
COMPANY += ["ling 3"]
COMPANY += ["ling 3, groups, two shared, another bound, all of one group, a latent of queries"]
COMPANY += ["mimo v2 flash", "mistral4", "kimi linear", "deepseek v3.2", "glm moe dsa, what is chosen is shared"]
COMPANY += ["deepseek v4", "deepseek v4, two streams, long entries, no scaling, sizes that are not compiled"]
COMPANY += ["qwen3 next", "qwen3.5", "qwen3.5 moe", "lfm2", "lfm2 moe"]
COMPANY += [
    "granite moe shared",
    "cwm",
    "stablelm with biases, side by side",
    "ernie4_5 moe",
    "exaone4",
    "dots1, biases, groups, windows in upper layers",
]
COMPANY += ["olmo, queries, keys and values that are limited, biases", "hunyuan", "hunyuan moe"]
COMPANY += ["apertus", "bamba", "gpt neox", "gptj", "falcon", "falcon, newer, a norm each, biases"]
COMPANY += ["olmo hybrid", "gpt2", "gpt bigcode", "gpt neo", "opt"]
COMPANY += ["cohere2 moe", "lfm3", "trinity", "hunyuan 3", "jais 2", "sarvam moe", "sarvam mla"]
COMPANY += ["granite swa", "granite moe swa", "vaultgemma"]
COMPANY += ["exaone moe", "mellum", "phi 2", "nemotron with biases, a table for both", "hyperclovax"]
COMPANY += ["granite hybrid", "nemotron h", "falcon h1", "nemotron 3", "nemotron 3, latents, groups"]
# A bias of six heads, which are no whole register, wrote beyond the room of a compiled layer.
ORDINARY = [*FIRST.values(), "granite hybrid, dense, rotated, biases, limits", "llama, biases everywhere"]
ORDINARY += ["nemotron 3", "nemotron 3, latents, groups"]
ORDINARY += ["deepseek v4, two streams, long entries, no scaling, sizes that are not compiled"]
# What a run of tests/fuzz/settings.py found.
ORDINARY += ["llama, longrope, squares of what is above 0", "qwen3, what is above 0", "arcee, another activation"]
ORDINARY += ["gemma3, no window in every second layer, logits capped", "gemma3 without windows", "gemma4, heads alike"]
ORDINARY += ["gemma4, heads alike but for their number", "lfm2 moe, experts that hardly score"]
ORDINARY += ["smollm3, windows where nothing is rotated", "qwen3.5 moe without states", "olmo3, scaled between pairs"]


@pytest.mark.parametrize("name", some(MODELS, *ORDINARY))
def test_logits_equal_transformers_around_the_window(name: str, tmp_path: Path) -> None:
    kind, changes = MODELS[name]
    theirs = saved(kind, tmp_path, **changes)
    ours = loaded(tmp_path)
    assert_logits_agree(ours, theirs, 3 * WINDOW)


@pytest.mark.parametrize("name", [name for kind, name in FIRST.items() if kind in NEW])
def test_greedy_answers_are_those_of_transformers(name: str, tmp_path: Path) -> None:
    kind, changes = MODELS[name]
    theirs, prompt = saved(kind, tmp_path, **changes), some_ids(97, 9)
    ours, answer = loaded(tmp_path), list(prompt)
    cache, pages = new_cache(ours, 80), list(range(5))
    states = new_states(ours, cache)
    logits = step(ours, cache, [(answer, 0, pages)], states=states)
    for _ in range(64):  # past the window
        answer.append(int(logits[-1].argmax()))
        logits = step(ours, cache, [(answer[-1:], len(answer) - 1, pages)], states=states)
    with torch.inference_mode():  # what it would have chosen behind each token, in one pass instead of one for each
        expected = theirs(torch.tensor([answer])).logits[0, len(prompt) - 1 : -1].argmax(-1)
    assert answer[len(prompt) :] == expected.tolist()


@pytest.mark.parametrize("name", GGUF)
def test_a_gguf_file_computes_what_the_folder_does(name: str, tmp_path: Path) -> None:
    kind, changes = MODELS[name]
    theirs = saved(kind, tmp_path, **changes | GRANTED.get(kind, {}))
    path = save_gguf(theirs, tmp_path / "model.gguf")
    # Matrices of Falcon-H1 are multiplied by what the folder's config says; dt of Nemotron-H has no least one.
    if kind not in ("FalconH1", "NemotronH"):
        said = open_checkpoint(path).config
        if kind in RENAMED:
            theirs_is, ours_is = RENAMED[kind]
            assert said.architecture == theirs_is
            said = replace(said, architecture=ours_is)
        assert not difference(said, open_checkpoint(tmp_path).config)
    assert_logits_agree(loaded(path), theirs, 2 * WINDOW)


def test_heads_that_llama_cpp_has_in_turns_are_put_in_order_in_quantized_files_too(tmp_path: Path) -> None:
    sizes = {"hidden_size": 64, "intermediate_size": 96, "linear_value_head_dim": 16, "vocab_size": 96}
    theirs = saved("Qwen3_5Text", tmp_path, **HYBRID | sizes)
    plain = dict(open_checkpoint(tmp_path).tensors())
    for name, tensor in open_checkpoint(save_gguf(theirs, tmp_path / "model.gguf", "Q8_0")).tensors():
        numbers = tensor
        if isinstance(tensor, QuantizedTensor):
            grouped, numbers = tensor.grouped(), tensor.dequantize()
            assert grouped is not None
            assert torch.equal(grouped.dequantize(), numbers)
        torch.testing.assert_close(numbers, plain[name], atol=2e-2, rtol=0)


def test_tensors_of_a_layer_that_drafts_are_left_out_where_it_is_not_read(tmp_path: Path) -> None:
    theirs = saved("Ernie4_5_Moe", tmp_path, **ERNIE_MOE)
    tensors = load_file(tmp_path / "model.safetensors")
    further = {f"model.mtp_{name}.0.weight": torch.ones(48) for name in ("emb_norm", "hidden_norm")}
    save_file(tensors | further, tmp_path / "model.safetensors", {"format": "pt"})
    assert_logits_agree(loaded(tmp_path), theirs, WINDOW)


def test_the_layer_of_a_hunyuan_3_that_drafts_is_left_out_and_not_read(tmp_path: Path) -> None:
    theirs = saved("HYV3", tmp_path, **HUNYUAN_3)
    tensors = load_file(tmp_path / "model.safetensors")
    further = {name.replace("layers.2.", "layers.3."): tensor.clone() for name, tensor in tensors.items()}
    save_file(tensors | further, tmp_path / "model.safetensors", {"format": "pt"})
    file = tmp_path / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"num_nextn_predict_layers": 1}))
    assert_logits_agree(loaded(tmp_path), theirs, WINDOW)
    with pytest.raises(CheckpointError, match="has no head that guesses"):
        open_head(tmp_path)


def test_mimo_is_qwen2_beside_a_layer_that_drafts(tmp_path: Path) -> None:
    kind, changes = MODELS["qwen2"]
    theirs = saved(kind, tmp_path, **changes)
    tensors = load_file(tmp_path / "model.safetensors")
    drafting = {f"model.mtp_layers.0.{name}.weight": torch.ones(3) for name in ("input_proj", "self_attn.q_proj")}
    save_file(tensors | drafting, tmp_path / "model.safetensors", {"format": "pt"})
    file = tmp_path / "config.json"
    said = {"architectures": ["MiMoForCausalLM"], "model_type": "mimo", "num_nextn_predict_layers": 1}
    file.write_text(json.dumps(json.loads(file.read_text()) | said | {"attention_bias": True}))
    assert_logits_agree(loaded(tmp_path), theirs, WINDOW)


def test_older_gguf_files_of_glm_have_queries_keys_and_values_in_one_tensor(tmp_path: Path) -> None:
    theirs = saved("Glm", tmp_path, **MODELS["glm"][1])
    apart = dict(named_tensors(theirs))
    fused = {
        f"blk.{layer}.attn_qkv.{kind}": torch.cat([apart[f"blk.{layer}.attn_{part}.{kind}"] for part in "qkv"]).numpy()
        for layer in range(3)
        for kind in ("weight", "bias")
    }
    path = save_gguf(theirs, tmp_path / "model.gguf", extra=fused, without=(".attn_q.", ".attn_k.", ".attn_v."))
    assert open_checkpoint(path).config == open_checkpoint(tmp_path).config
    assert_logits_agree(loaded(path), theirs, 2 * WINDOW)


@pytest.mark.parametrize("apart", [True, False])
def test_a_gguf_file_of_latents_is_read_in_both_layouts_and_quantized(apart: bool, tmp_path: Path) -> None:
    sizes = {"hidden_size": 64, "intermediate_size": 96, "vocab_size": 96, "q_lora_rank": 64, "kv_lora_rank": 32}
    sizes |= {"qk_nope_head_dim": 32, "v_head_dim": 32, "moe_intermediate_size": 32}
    theirs = saved("DeepseekV3", tmp_path, **DEEPSEEK_V3 | sizes | {"num_attention_heads": 2, "num_key_value_heads": 2})
    path = save_gguf(theirs, tmp_path / "model.gguf", "Q8_0", latents_apart=apart)
    theirs.save_pretrained(tmp_path)  # the numbers that the file has
    plain = dict(open_checkpoint(tmp_path).tensors())
    quantized = set()
    for name, tensor in open_checkpoint(path).tensors():
        numbers = tensor
        if isinstance(tensor, QuantizedTensor):
            quantized.add(name.partition("attention.")[2])
            numbers = tensor.dequantize()
        assert torch.equal(numbers, plain[name]), name
    assert {"query_latent", "query_up", "latent", "value_up", "output"} <= quantized
    assert ("key_up" in quantized) == apart
    ids = some_ids(96, 30)
    whole = logits_in_chunks(loaded(path), ids, [30])
    with torch.inference_mode():
        expected = theirs(torch.tensor([ids])).logits[0]
    assert (whole - expected).norm() < 2e-2 * expected.norm()
    assert torch.equal(logits_in_chunks(loaded(path), ids, [7, 1]), whole)


def test_mistral_with_layer_types_is_what_transformers_automodel_makes_of_it(tmp_path: Path) -> None:
    saved("Mistral", tmp_path, sliding_window=WINDOW)
    config = json.loads((tmp_path / "config.json").read_text())
    assert (config["architectures"], config["model_type"]) == (["MistralForCausalLM"], "mistral")
    config["layer_types"] = ["sliding_attention", "full_attention", "sliding_attention"]
    (tmp_path / "config.json").write_text(json.dumps(config))
    theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path, attn_implementation="eager")
    assert_logits_agree(loaded(tmp_path), theirs, 3 * WINDOW)


@pytest.mark.parametrize("name", SCALINGS)
def test_logits_equal_transformers_around_the_scaling_boundary(name: str, tmp_path: Path) -> None:
    rope = {"rope_theta": 100.0} | SCALINGS[name]
    theirs = saved("Llama", tmp_path, rope_parameters=rope)
    ours = loaded(tmp_path)
    boundary = rope.get("original_max_position_embeddings", 24)
    for length in (boundary, boundary + 1, 96):
        assert_logits_agree(ours, theirs, length)


@pytest.mark.parametrize("context_length", [31, 32, 33, 64, 96])
def test_dynamic_scaling_is_that_of_a_sequence_which_fills_the_context(context_length: int, tmp_path: Path) -> None:
    rope = {"rope_type": "dynamic", "rope_theta": 100.0, "factor": 3.0}
    theirs = saved("Llama", tmp_path, rope_parameters=rope, max_position_embeddings=32)
    checkpoint = open_checkpoint(tmp_path)
    assert checkpoint.config.context_length == 96
    config = checkpoint.config.with_context_length(context_length)
    ours = load_transformer(checkpoint, "cpu", torch.float32, config=config)
    assert_logits_agree(ours, theirs, context_length)


@pytest.mark.parametrize("kind", ["Phi3", "Phimoe"])
def test_within_the_first_context_longrope_has_its_short_factors(kind: str, tmp_path: Path) -> None:
    factors = {"short_factor": [1.0, 1.1, 1.2, 1.3], "long_factor": [1.0, 2.5, 4.0, 5.0]}
    rope = {"rope_type": "longrope", "rope_theta": 100.0, "original_max_position_embeddings": 32, **factors}
    settings: dict[str, Any] = PHIMOE if kind == "Phimoe" else {"head_dim": None, "pad_token_id": 0}
    if kind == "Phimoe":
        rope |= {"short_mscale": 1.2, "long_mscale": 1.4}
    else:
        settings = settings | {"original_max_position_embeddings": 32}
    theirs = saved(kind, tmp_path, **settings, rope_parameters=rope)
    checkpoint = open_checkpoint(tmp_path)
    config = checkpoint.config.with_context_length(32)
    ours = load_transformer(checkpoint, "cpu", torch.float32, config=config)
    assert_logits_agree(ours, theirs, 32)
    assert not torch.equal(ours.rotations.model.table, loaded(tmp_path).rotations.model.table[:32])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", ["qwen2", "qwen3", "mistral", "mixtral", "qwen3 moe", *COMPANY])
def test_rows_do_not_depend_on_company(name: str, dtype: torch.dtype, tmp_path: Path) -> None:
    kind, changes = MODELS[name]
    saved(kind, tmp_path, **changes)
    model = loaded(tmp_path, dtype)
    cache = new_cache(model, 8 * PAGE_SIZE, dtype)
    assert choose_padding(ModelRunner(model, cache, new_states(model, cache)))


def test_rows_that_choose_every_expert_are_those_of_rows_alone(tmp_path: Path) -> None:
    saved("Mixtral", tmp_path, **EXPERTS)
    layer = loaded(tmp_path).layers[0].feed_forward
    rows = torch.randn(64, 48, generator=torch.Generator().manual_seed(0))
    together = layer(rows)
    for first in range(0, 64, 4):
        assert torch.equal(layer(rows[first : first + 4]), together[first : first + 4])
