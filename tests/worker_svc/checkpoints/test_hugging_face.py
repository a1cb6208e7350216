"""Hugging Face folders: what is read from them, and what is refused."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import RepetitionPenaltyLogitsProcessor

from tandem.inference.v1 import inference_pb2 as pb
from tandem.worker.checkpoints import CheckpointError, open_checkpoint
from tandem.worker.checkpoints.model_parts.rope import RopeScaling
from tandem.worker.engine.request import Request, Stopping
from tandem.worker.engine.sampler import Rows, SamplingTable
from tandem.worker.engine.sampler.penalties import penalize
from tandem.worker.front.sampling_rules import to_sampling
from tests.worker_svc.model.llama_folders import random_llama

WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"
Q = "model.layers.1.self_attn.q_proj.weight"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    random_llama().save_pretrained(tmp_path)
    return tmp_path


@pytest.fixture
def sharded(tmp_path: Path) -> Path:
    random_llama().save_pretrained(tmp_path, max_shard_size="100KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 1
    return tmp_path


def edit(file: Path, **changes: Any) -> None:
    """Sets keys of a JSON file."""
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))


def forget(file: Path, *keys: str) -> None:
    file.write_text(json.dumps({key: v for key, v in json.loads(file.read_text()).items() if key not in keys}))


def rewrite(file: Path, change: Callable[[dict[str, torch.Tensor]], object]) -> None:
    """Changes the tensors of a safetensors file."""
    tensors = {name: tensor.clone() for name, tensor in load_file(file).items()}
    change(tensors)
    save_file(tensors, file)


def refusal(folder: Path) -> str:
    with pytest.raises(CheckpointError) as caught:
        open_checkpoint(folder)
    message = str(caught.value)
    assert "\n" not in message
    assert str(folder) in message
    return message


def test_every_tensor_comes_once_with_its_canonical_name_and_shape(folder: Path) -> None:
    checkpoint = open_checkpoint(folder)
    stored = load_file(folder / WEIGHTS)
    came = {name: tensor.clone() for name, tensor in checkpoint.tensors()}
    assert {name: tuple(tensor.shape) for name, tensor in came.items()} == checkpoint.config.tensor_shapes()
    assert torch.equal(came["layers.1.attention.q"], stored[Q])
    assert torch.equal(came["output"], stored["lm_head.weight"])
    assert checkpoint.total_bytes == sum(tensor.nbytes for tensor in stored.values())
    assert (checkpoint.format, checkpoint.dtype) == ("hugging_face", torch.float32)


def test_shards_give_what_one_file_gives(sharded: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    single = tmp_path_factory.mktemp("single")
    random_llama().save_pretrained(single)
    one, several = open_checkpoint(single), open_checkpoint(sharded)
    assert one.config == several.config
    assert one.total_bytes == several.total_bytes
    for (name, tensor), (other_name, other) in zip(one.tensors(), several.tensors(), strict=True):
        assert name == other_name
        assert torch.equal(tensor, other)


def test_releasing_a_tensor_leaves_it_readable(folder: Path) -> None:
    checkpoint = open_checkpoint(folder)
    for name, tensor in checkpoint.tensors():
        before = tensor.clone()
        checkpoint.release(tensor)
        assert torch.equal(tensor, before), name


def test_the_dtype_is_that_of_the_files_whatever_the_config_says(folder: Path) -> None:
    rewrite(folder / WEIGHTS, lambda t: t.update({k: v.bfloat16() for k, v in t.items() if "norm" not in k}))
    edit(folder / "config.json", dtype="float16")
    checkpoint = open_checkpoint(folder)
    assert checkpoint.dtype == torch.bfloat16
    assert {str(tensor.dtype) for _, tensor in checkpoint.tensors()} == {"torch.bfloat16", "torch.float32"}


@pytest.mark.parametrize(
    "rope",
    [
        {"rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 500.0}},
        {"rope_theta": 500.0, "rope_scaling": {"type": "linear", "factor": 2.0}},
    ],
)
def test_old_and_new_spellings_of_rope_mean_the_same(rope: dict[str, Any], folder: Path) -> None:
    forget(folder / "config.json", "rope_parameters")
    edit(folder / "config.json", **rope)
    config = open_checkpoint(folder).config
    assert (config.rope_theta, config.rope_scaling) == (500.0, RopeScaling("linear", 2.0))


def test_the_config_of_llama_3_1_is_understood(folder: Path) -> None:
    forget(folder / "config.json", "rope_parameters")
    scaling = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "rope_type": "llama3"}
    scaling["original_max_position_embeddings"] = 8192
    edit(folder / "config.json", rope_theta=500000.0, rope_scaling=scaling)
    config = open_checkpoint(folder).config
    assert config.rope_scaling == RopeScaling("llama3", 8.0, 1.0, 4.0, 8192)


def test_absent_optional_fields_have_the_architectures_defaults(folder: Path) -> None:
    (folder / "generation_config.json").unlink()
    before = open_checkpoint(folder)
    forget(
        folder / "config.json",
        *("num_key_value_heads", "head_dim", "rope_parameters", "tie_word_embeddings", "hidden_act", "attention_bias"),
        *("mlp_bias", "bos_token_id", "eos_token_id"),
    )
    after = open_checkpoint(folder)
    assert after.config == before.config
    assert (after.bos_id, after.eos_ids) == (1, (2,))


def test_old_tables_of_frequencies_are_ignored(folder: Path) -> None:
    table = {"model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(6)}
    rewrite(folder / WEIGHTS, lambda tensors: tensors.update(table))
    assert all("inv_freq" not in name for name, _ in open_checkpoint(folder).tensors())


def test_generation_config_gives_special_ids_and_sampling_defaults(folder: Path) -> None:
    (folder / "generation_config.json").write_text(
        json.dumps({"bos_token_id": 5, "eos_token_id": [7, 8, 7], "temperature": 0.6, "top_p": 0.9, "top_k": 40})
    )
    checkpoint = open_checkpoint(folder)
    assert (checkpoint.bos_id, checkpoint.eos_ids) == (5, (7, 8))
    assert checkpoint.sampling_defaults == {"temperature": 0.6, "top_p": 0.9, "top_k": 40}
    edit(folder / "generation_config.json", do_sample=False)
    assert open_checkpoint(folder).sampling_defaults == {}


@pytest.mark.parametrize("penalty", [1.05, 1])
def test_a_repetition_penalty_looks_at_the_whole_context_as_in_transformers(folder: Path, penalty: float) -> None:
    (folder / "generation_config.json").write_text(json.dumps({"repetition_penalty": penalty, "top_k": 4}))
    defaults = open_checkpoint(folder).sampling_defaults
    sampling = to_sampling(pb.SamplingParams(temperature=0), defaults, 128, 1)
    prompt = np.random.default_rng(1).integers(0, 300, 100)  # longer than our own window
    logits = torch.randn(1, 300, generator=torch.Generator().manual_seed(1))
    request = Request.make(0, prompt, sampling, Stopping(max_tokens=1))
    ours = logits.clone()
    penalize(ours, Rows([request], np.array([100])), SamplingTable(1).gather([request]))
    theirs = RepetitionPenaltyLogitsProcessor(float(penalty))(torch.from_numpy(prompt)[None], logits.clone())
    assert torch.equal(ours, theirs)


def test_penalties_that_are_none_change_nothing(folder: Path) -> None:
    before = open_checkpoint(folder).sampling_defaults
    edit(folder / "generation_config.json", frequency_penalty=0.0, presence_penalty=0.0)
    assert open_checkpoint(folder).sampling_defaults == before


def test_a_special_id_of_null_means_that_there_is_none(folder: Path) -> None:
    (folder / "generation_config.json").unlink()
    edit(folder / "config.json", bos_token_id=None, eos_token_id=None)
    checkpoint = open_checkpoint(folder)
    assert (checkpoint.bos_id, checkpoint.eos_ids) == (None, ())


def test_a_tied_model_may_store_its_output_twice(tmp_path: Path) -> None:
    random_llama(tie_word_embeddings=True).save_pretrained(tmp_path)
    embedding = load_file(tmp_path / WEIGHTS)["model.embed_tokens.weight"]
    rewrite(tmp_path / WEIGHTS, lambda tensors: tensors.update({"lm_head.weight": embedding.clone()}))
    checkpoint = open_checkpoint(tmp_path)
    assert checkpoint.config.tie_embeddings
    assert "output" not in dict(checkpoint.tensors())


def test_a_tied_model_may_store_only_its_output(tmp_path: Path) -> None:
    random_llama(tie_word_embeddings=True).save_pretrained(tmp_path)
    rewrite(tmp_path / WEIGHTS, lambda t: t.update({"lm_head.weight": t.pop("model.embed_tokens.weight")}))
    expected = load_file(tmp_path / WEIGHTS)["lm_head.weight"]
    assert torch.equal(dict(open_checkpoint(tmp_path).tensors())["embedding"], expected)


def test_an_output_that_differs_from_the_embedding_is_used_even_if_the_config_says_tied(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    edit(folder / "config.json", tie_word_embeddings=True)
    with caplog.at_level(logging.WARNING):
        checkpoint = open_checkpoint(folder)
    assert not checkpoint.config.tie_embeddings
    assert "tie_word_embeddings" in caplog.text


def of(kind: str) -> dict[str, Any]:
    """What names another architecture."""
    return {"architectures": [f"{kind}ForCausalLM"], "model_type": None}


CONFIG_LIES: list[tuple[dict[str, Any], str]] = [
    ({"architectures": ["Gemma3nForCausalLM"]}, "Gemma3nForCausalLM"),
    ({"architectures": ["LlamaForCausalLM", "MistralForCausalLM"]}, "architectures"),
    ({"architectures": [["LlamaForCausalLM"]]}, "architectures"),
    ({**of("Qwen2")}, "q_proj.bias"),
    ({**of("Qwen3")}, "q_norm"),
    ({**of("Mixtral")}, "block_sparse_moe"),
    ({**of("Mixtral"), "num_local_experts": 0}, "num_local_experts"),
    ({**of("Mixtral"), "num_experts_per_tok": 9}, "num_experts_per_tok"),
    ({**of("Mixtral"), "num_local_experts": 10**9}, "num_local_experts"),
    ({**of("Qwen3Moe")}, "moe_intermediate_size"),
    ({**of("Qwen3Moe"), "moe_intermediate_size": 8, "mlp_only_layers": 1}, "mlp_only_layers"),
    ({**of("Mistral"), "sliding_window": 0}, "sliding_window"),
    ({**of("Mistral"), "attention_bias": True}, "attention_bias"),
    ({**of("Qwen2"), "use_sliding_window": True, "layer_types": ["chunked"]}, "layer_types"),
    ({"architectures": "LlamaForCausalLM"}, "architectures"),
    ({"architectures": ["MistralForCausalLM"]}, "MistralForCausalLM and model_type 'llama' contradict each other"),
    ({"model_type": "qwen2"}, "LlamaForCausalLM and model_type 'qwen2' contradict each other"),
    ({"sliding_window": 4096}, "sliding_window"),
    ({"layer_types": ["sliding_attention"] * 3}, "layer_types"),
    ({**of("Mistral"), "sliding_window": None, "layer_types": ["sliding_attention"] * 3}, "layer_types"),
    ({**of("Mixtral"), "sliding_window": 8, "layer_types": ["full_attention"] * 3}, "layer_types"),
    ({**of("Qwen2"), "use_sliding_window": False, "layer_types": ["sliding_attention"] * 3}, "layer_types"),
    ({**of("Qwen3Moe"), "use_sliding_window": True, "max_window_layers": 2}, "max_window_layers"),
    ({**of("Qwen3Moe"), "moe_intermediate_size": 8, "num_experts": 4, "num_local_experts": 8}, "num_experts"),
    ({"rope_scaling": {"type": "linear", "factor": 2.0}}, "rope_scaling contradict each other"),
    ({"rope_theta": 500.0}, "rope_theta"),
    ({"rope_parameters": {"rope_type": "linear", "type": "yarn", "factor": 2.0}}, "rope_parameters.rope_type"),
    ({"rope_parameters": {"factor": 2.0}}, "rope_parameters.factor"),
    ({"rope_parameters": {"rope_type": "linear", "factor": 2.0, "beta_fast": 8}}, "rope_parameters.beta_fast"),
    ({"rope_parameters": {"rope_type": "dynamic", "factor": 2.0, "alpha": 8}}, "rope_parameters.alpha"),
    ({"original_max_position_embeddings": 32, "rope_parameters": {"rope_type": "dynamic", "factor": 2.0}}, "original"),
    ({"per_layer_config": {"1": {"rms_norm_eps": 1.0}}}, "per_layer_config"),
    ({"a_field_of_tomorrow": 1}, "a_field_of_tomorrow (1) is not known"),
    ({"quantization_config": {"quant_method": "gptq", "bits": 4, "act_bits": 8}}, "quantization_config.act_bits"),
    ({"architectures": None, "model_type": "mamba"}, "mamba"),
    ({"vocab_size": 98}, "model.embed_tokens.weight has the shape [97, 60], but the config makes it [98, 60]"),
    ({"vocab_size": -1}, "vocab_size"),
    ({"hidden_size": 61, "head_dim": None}, "hidden_size"),
    ({"hidden_size": 0, "head_dim": None}, "hidden_size"),
    ({"hidden_size": "60"}, "hidden_size"),
    ({"hidden_size": True}, "hidden_size"),
    ({"hidden_size": 60.5}, "hidden_size"),
    ({"intermediate_size": 101}, "gate_proj"),
    ({"intermediate_size": None}, "intermediate_size"),
    ({"num_hidden_layers": 2}, "model.layers.2"),
    ({"num_hidden_layers": 4}, "model.layers.3"),
    ({"num_hidden_layers": 0}, "num_hidden_layers"),
    ({"num_hidden_layers": 10**9}, "num_hidden_layers"),
    ({"num_attention_heads": 0, "head_dim": None}, "num_attention_heads"),
    ({"num_attention_heads": 6, "head_dim": None}, "num_key_value_heads"),
    ({"num_key_value_heads": 1}, "k_proj"),
    ({"num_key_value_heads": 3}, "num_key_value_heads"),
    ({"num_key_value_heads": 0}, "num_key_value_heads"),
    ({"head_dim": 11}, "head_dim"),
    ({"head_dim": 24}, "q_proj"),
    ({"max_position_embeddings": 0}, "max_position_embeddings"),
    ({"max_position_embeddings": -5}, "max_position_embeddings"),
    ({"max_position_embeddings": 10**12}, "max_position_embeddings"),
    ({"hidden_size": 10**400}, "hidden_size must have less than 16 digits"),
    ({"rms_norm_eps": 0}, "rms_norm_eps"),
    ({"rms_norm_eps": float("nan")}, "rms_norm_eps"),
    ({"rope_parameters": {"rope_theta": float("inf")}}, "rope_theta"),
    ({"rope_parameters": {"rope_theta": float("nan")}}, "rope_theta"),
    ({"rope_parameters": {"rope_theta": 10**400}}, "rope_theta"),
    ({"rope_parameters": {"rope_theta": "10000"}}, "rope_theta"),
    ({"rope_parameters": {"rope_theta": 0}}, "rope_theta"),
    ({"rope_parameters": {"rope_type": "longrope", "factor": 4.0}}, "rope_parameters.short_factor"),
    ({"rope_parameters": {"rope_type": "yarn", "factor": 4.0, "beta_fast": 0.5}}, "rope_parameters.beta_fast"),
    ({"rope_parameters": {"full_attention": {"rope_type": "default"}}}, "rope_parameters.full_attention"),
    ({"rope_parameters": {"rope_type": "linear"}}, "rope_parameters.factor"),
    ({"rope_parameters": {"rope_type": "linear", "factor": 0}}, "rope_parameters.factor"),
    ({"rope_parameters": {"rope_type": "llama3", "factor": 8.0}}, "rope_parameters.low_freq_factor"),
    ({"rope_parameters": {"partial_rotary_factor": 0.5}}, "partial_rotary_factor"),
    ({"rope_parameters": [1]}, "rope_parameters"),
    ({"rope_parameters": None, "rope_scaling": {"type": "dynamic"}}, "rope_scaling.factor"),
    ({"attention_bias": True}, "q_proj.bias"),
    ({"attn_logit_softcapping": 50.0}, "attn_logit_softcapping"),
    ({"embedding_multiplier": 12.0}, "embedding_multiplier"),
    ({"no_rope_layers": [1, 0, 1]}, "no_rope_layers"),
    ({"mlp_bias": True}, "mlp.down_proj.bias"),
    ({"use_bias": True}, "use_bias"),
    ({"hidden_act": "mish"}, "mish"),
    ({"quantization_config": {"quant_method": "gptq"}}, "quantization_config"),
    ({"tie_word_embeddings": "yes"}, "tie_word_embeddings"),
]


@pytest.mark.parametrize(("changes", "named"), CONFIG_LIES, ids=[named for _, named in CONFIG_LIES])
def test_a_config_that_lies_is_refused_by_name(changes: dict[str, Any], named: str, folder: Path) -> None:
    edit(folder / "config.json", **changes)
    assert named in refusal(folder)


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"eos_token_id": 97}, "eos_token_id"),
        ({"eos_token_id": [2, -1]}, "eos_token_id"),
        ({"eos_token_id": ["</s>"]}, "eos_token_id"),
        ({"bos_token_id": 1.5}, "bos_token_id"),
        ({"temperature": -1}, "temperature"),
        ({"temperature": float("nan")}, "temperature"),
        ({"temperature": 1e46}, "temperature"),  # no fp32, in which it is computed
        ({"repetition_penalty": 1e39}, "repetition_penalty"),
        ({"top_k": 1 << 32}, "top_k"),
        ({"top_p": 1.5}, "top_p"),
        ({"min_p": -0.1}, "min_p"),
        ({"top_k": -1}, "top_k"),
        ({"top_k": 0.5}, "top_k"),
        ({"repetition_penalty": 0}, "repetition_penalty"),
        ({"do_sample": "true"}, "do_sample"),
        ({"no_repeat_ngram_size": 3}, "no_repeat_ngram_size is 3, which is not served; served: 0"),
        ({"stop_strings": ["end"]}, "stop_strings"),
        ({"presence_penalty": 1.5}, "presence_penalty is 1.5, which is not served; served: 0"),
        ({"a_sampler_of_tomorrow": 1}, "a_sampler_of_tomorrow"),
    ],
)
def test_an_impossible_generation_config_is_refused_by_name(changes: dict[str, Any], named: str, folder: Path) -> None:
    edit(folder / "generation_config.json", **changes)
    message = refusal(folder)
    assert "generation_config.json" in message
    assert named in message


@pytest.mark.parametrize(
    ("content", "named"),
    [
        (b"", "JSON"),
        (b"{", "JSON"),
        (b"[]", "list"),
        (b"null", "NoneType"),
        (b'{"hidden_size": \xff}', "JSON"),
        (b"[" * 100_000, "JSON"),
        (b'{"hidden_size": ' + b"9" * 10_000 + b"}", "JSON"),
    ],
)
def test_a_config_that_is_not_an_object_is_refused(content: bytes, named: str, folder: Path) -> None:
    (folder / "config.json").write_bytes(content)
    message = refusal(folder)
    assert "config.json" in message
    assert named in message


def test_a_config_of_absurd_size_is_refused(folder: Path) -> None:
    with (folder / "config.json").open("r+b") as file:
        file.truncate(1 << 30)  # sparse: no disk is used
    assert "MiB" in refusal(folder)


TENSOR_FAULTS: list[tuple[Callable[[dict[str, torch.Tensor]], object], str]] = [
    (lambda t: t.pop(Q), f"tensor {Q} is missing"),
    (lambda t: [t.pop(name) for name in list(t) if "q_proj" in name], "q_proj"),
    (lambda t: t.pop("lm_head.weight"), "lm_head.weight is missing"),
    (lambda t: t.update({"model.layers.0.extra": torch.ones(1)}), "model.layers.0.extra"),
    (lambda t: t.update({"bad\nname": torch.ones(1)}), "bad name"),
    (lambda t: t.update({Q: torch.ones(60, 61)}), f"{Q} has the shape [60, 61], but the config makes it [60, 60]"),
    (lambda t: t.update({Q: torch.ones(3600)}), "[3600]"),
    (lambda t: t.update({Q: torch.ones(60, 60, dtype=torch.int8)}), "int8"),
    (lambda t: t.update({Q: torch.ones(60, 60, dtype=torch.float64)}), "F64"),
    (lambda t: t.update({Q: torch.ones(60, 60).to(torch.float8_e4m3fn)}), "float8_e4m3fn"),
]


@pytest.mark.parametrize(("fault", "named"), TENSOR_FAULTS, ids=[named for _, named in TENSOR_FAULTS])
def test_tensors_that_do_not_fit_the_config_are_refused_by_name(
    fault: Callable[[dict[str, torch.Tensor]], object], named: str, folder: Path
) -> None:
    rewrite(folder / WEIGHTS, fault)
    assert named in refusal(folder)


@pytest.mark.parametrize("length", [0, 5, 8, 100, 20_000, -1])
def test_a_truncated_file_is_refused(length: int, folder: Path) -> None:
    content = (folder / WEIGHTS).read_bytes()
    (folder / WEIGHTS).write_bytes(content[:length])
    assert WEIGHTS in refusal(folder)


def test_a_missing_shard_is_named(sharded: Path) -> None:
    shard = sorted(sharded.glob("*.safetensors"))[0]
    shard.unlink()
    assert shard.name in refusal(sharded)


def test_a_tensor_that_is_not_in_its_shard_is_named(sharded: Path) -> None:
    index = json.loads((sharded / INDEX).read_text())
    shards = sorted(set(index["weight_map"].values()))
    index["weight_map"][Q] = next(shard for shard in shards if shard != index["weight_map"][Q])
    (sharded / INDEX).write_text(json.dumps(index))
    assert Q in refusal(sharded)


def test_a_tensor_that_only_a_shard_knows_is_named(sharded: Path) -> None:
    shard = sorted(sharded.glob("*.safetensors"))[0]
    rewrite(shard, lambda tensors: tensors.update({"stray": torch.ones(1)}))
    assert "stray" in refusal(sharded)


def test_a_tensor_that_two_shards_have_is_named(sharded: Path) -> None:
    first, second = sorted(sharded.glob("*.safetensors"))[:2]
    twice = next(iter(load_file(first)))
    rewrite(second, lambda tensors: tensors.update({twice: torch.ones(1)}))
    assert f"has the tensor {twice}, which is in" in refusal(sharded)


@pytest.mark.parametrize("shard", ["../model.safetensors", "/etc/passwd", "..", "", 7, None, "sub/x.safetensors"])
def test_an_index_may_not_name_files_elsewhere(shard: Any, sharded: Path) -> None:
    index = json.loads((sharded / INDEX).read_text())
    index["weight_map"][Q] = shard
    (sharded / INDEX).write_text(json.dumps(index))
    assert Q in refusal(sharded)


def test_an_index_without_a_map_is_refused(sharded: Path) -> None:
    (sharded / INDEX).write_text("{}")
    assert "missing" in refusal(sharded)


def test_absent_weights_are_refused_and_other_formats_mentioned(folder: Path) -> None:
    (folder / WEIGHTS).rename(folder / "weights.bin")
    message = refusal(folder)
    assert f"neither {WEIGHTS} nor pytorch_model.bin" in message
    assert "there is weights.bin, which is not served" in message


def pickled(folder: Path) -> dict[str, dict[str, torch.Tensor]]:
    """Makes what `torch.save` writes of each safetensors file."""
    files = {}
    for file in folder.glob("*.safetensors"):
        name = file.name.replace("model", "pytorch_model").replace(".safetensors", ".bin")
        files[name] = load_file(file)
        torch.save(files[name], folder / name)
        file.unlink()
    if (folder / INDEX).exists():
        index = (folder / INDEX).read_text().replace('"model-', '"pytorch_model-').replace(".safetensors", ".bin")
        (folder / "pytorch_model.bin.index.json").write_text(index)
        (folder / INDEX).unlink()
    return files


@pytest.mark.parametrize("shards", ["folder", "sharded"])
def test_weights_of_torch_give_what_safetensors_give(shards: str, request: pytest.FixtureRequest) -> None:
    path: Path = request.getfixturevalue(shards)
    before = open_checkpoint(path)
    expected = {name: tensor.clone() for name, tensor in before.tensors()}
    pickled(path)
    checkpoint = open_checkpoint(path)
    facts = [(one.config, one.dtype, one.total_bytes, one.stored_as, one.eos_ids) for one in (before, checkpoint)]
    assert facts[0] == facts[1]
    for name, tensor in checkpoint.tensors():
        assert torch.equal(tensor, expected[name])
        checkpoint.release(tensor)
        assert torch.equal(tensor, expected[name]), name
    assert len(expected) == len(checkpoint.config.tensor_shapes())


def test_a_table_that_is_tied_may_be_saved_twice(folder: Path) -> None:
    edit(folder / "config.json", tie_word_embeddings=True)
    [[name, state]] = pickled(folder).items()
    state["lm_head.weight"] = state["model.embed_tokens.weight"]
    torch.save(state, folder / name)
    checkpoint = open_checkpoint(folder)
    assert checkpoint.config.tie_embeddings
    assert checkpoint.total_bytes == sum(tensor.nbytes for key, tensor in state.items() if key != "lm_head.weight")


class Intruder:
    """Unpickles into a call that leaves a file."""

    def __init__(self, witness: Path) -> None:
        self._witness = witness

    def __reduce__(self) -> object:
        return (Path.touch, (self._witness,))


def test_weights_of_torch_are_tensors_and_nothing_else(folder: Path, tmp_path: Path) -> None:
    [[name, state]] = pickled(folder).items()
    witness = tmp_path / "witness"
    wrong = {
        "other than weights": state | {"model.norm.weight": Intruder(witness)},
        "model.norm.weight is a int where a tensor": state | {"model.norm.weight": 7},
        "optimizer is a dict where a tensor": state | {"optimizer": {}},
        "the key 3 where names": state | {3: torch.ones(1)},
        "holds a list where a dictionary": [torch.ones(1)],
        f"tensor {Q} is not dense and contiguous": state | {Q: state[Q].t()},
        f"tensor {Q} is stored as float64": state | {Q: state[Q].double()},
    }
    for words, content in wrong.items():
        torch.save(content, folder / name)
        assert words in refusal(folder)
    assert not witness.exists()
    (folder / name).write_bytes(b"PK\x03\x04" + bytes(64))
    assert "damaged or truncated" in refusal(folder)


def test_an_index_of_weights_of_torch_is_held_to_its_word(sharded: Path) -> None:
    [[first, state], *_] = sorted(pickled(sharded).items())
    lost = next(iter(state))
    torch.save({key: tensor for key, tensor in state.items() if key != lost}, sharded / first)
    assert f"tensor {lost} is missing, which pytorch_model.bin.index.json says is there" in refusal(sharded)
    (sharded / first).unlink()
    assert f"{first}: no such file" in refusal(sharded)


def test_weights_that_cannot_be_read_are_not_called_missing(folder: Path) -> None:
    (folder / WEIGHTS).unlink()
    (folder / WEIGHTS).mkdir()
    assert "cannot be read: Is a directory" in refusal(folder)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read every file")
def test_weights_that_may_not_be_read_are_not_called_missing(folder: Path) -> None:
    (folder / WEIGHTS).chmod(0)
    assert "cannot be read: Permission denied" in refusal(folder)
