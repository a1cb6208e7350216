"""GGUF files of transformers' models, written by the gguf package the way llama.cpp's converter does."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt
import torch

from tandem.worker.checkpoints.ggml_blocks import BLOCK_KINDS
from tests.worker_svc.checkpoints.random_blocks import dequantized, random_blocks

ARCHITECTURES = {
    "llama": "llama",
    "mistral": "llama",
    "mixtral": "llama",
    "internlm3": "llama",
    "qwen2": "qwen2",
    "qwen3": "qwen3",
    "qwen3_moe": "qwen3moe",
    "smollm3": "smollm3",
    "seed_oss": "seed_oss",
    "arcee": "arcee",
    "ernie4_5": "ernie4_5",
    "granite": "granite",
    "granitemoe": "granitemoe",
    "olmoe": "olmoe",
    "olmo": "olmo",
    "gpt_neox": "gptneox",
    "falcon": "falcon",
    "apertus": "apertus",
    "hy_v3": "hy_v3",
    "cohere2_moe": "cohere2moe",
    "granite_swa": "granite_swa",
    "granitemoe_swa": "granite_swa",
    "gpt2": "gpt2",
    "gpt_bigcode": "starcoder",
    "hunyuan_v1_dense": "hunyuan-dense",
    "hunyuan_v1_moe": "hunyuan-moe",
    "olmo2": "olmo2",
    "starcoder2": "starcoder2",
    "cohere2": "cohere2",
    "qwen2_moe": "qwen2moe",
    "phi3": "phi3",
    "phimoe": "phimoe",
    "glm4": "glm4",
    "glm4_moe": "glm4moe",
    "deepseek_v2": "deepseek2",
    "deepseek_v3": "deepseek2",
    "youtu": "deepseek2",
    "mistral4": "mistral4",
    "kimi_linear": "kimi-linear",
    "mimo_v2_flash": "mimo2",
    "step3p5": "step35",
    "laguna": "laguna",
    "minimax": "minimax-01",
    "deepseek_v32": "deepseek32",
    "glm_moe_dsa": "glm-dsa",
    "minimax_m2": "minimax-m2",
    "afmoe": "afmoe",
    "gpt_oss": "gpt-oss",
    "gemma2": "gemma2",
    "gemma3_text": "gemma3",
    "olmo3": "olmo2",
    "gemma3n_text": "gemma3n",
    "gemma4_text": "gemma4",
    "llama4_text": "llama4",
    "ministral3": "mistral3",
    "qwen3_next": "qwen3next",
    "qwen3_5_text": "qwen35",
    "qwen3_5_moe_text": "qwen35moe",
    "lfm2": "lfm2",
    "lfm2_moe": "lfm2moe",
    "granitemoehybrid": "granitehybrid",
    "nemotron_h": "nemotron_h",
    "falcon_h1": "falcon-h1",
    "glm": "chatglm",
    "ernie4_5_moe": "ernie4_5-moe",
    "exaone4": "exaone4",
    "dots1": "dots1",
    "gemma": "gemma",
    "stablelm": "stablelm",
    "phi": "phi2",
    "nemotron": "nemotron",
    "jais2": "jais2",
    "exaone": "exaone",
    "solar_open": "glm4moe",
    "granitemoeshared": "granitemoe",
    "cohere": "command-r",
}


def architecture_of(config: Any) -> str:
    """What `general.architecture` says of a model."""
    with_experts = config.model_type == "nemotron_h" and "moe" in config.layers_block_type
    return "nemotron_h_moe" if with_experts else ARCHITECTURES[config.model_type]


HYBRIDS = ("qwen3next", "qwen35", "qwen35moe")
INDEXED = ("deepseek32", "glm-dsa")
STATES = ("lfm2", "lfm2moe", "granitehybrid", "nemotron_h", "nemotron_h_moe", "falcon-h1")
# By llama.cpp's converter, whatever turns.
PERMUTED = ("llama", "smollm3", "arcee", "granite", "granitemoe", "mistral3", "granitehybrid", "nemotron_h")
PERMUTED += ("nemotron_h_moe", "olmo", "granite_swa")
# Those that the package may not know, and one whose tensors are named as theirs are.
LATER = {"hy_v3": "dots1", "cohere2_moe": "dots1", "granite_swa": "granite", "granitemoe_swa": "granitemoe"}
LATER |= {"laguna": "step35", "minimax": "minimax-m2"}


PLAIN = {
    "ffn_gate_inp",
    "ssm_conv1d",
    "ssm_conv1d_q",
    "ssm_conv1d_k",
    "ssm_conv1d_v",
    "ssm_a",
    "ssm_d",
    "ssm_norm",
    "altup_predict_coef",
    "altup_correct_coef",
}  # always F32


def save_gguf(
    model: Any,
    path: Path,
    kind: str = "F32",
    metadata: Mapping[str, Any] | None = None,
    extra: Mapping[str, npt.NDArray[np.float32]] | None = None,
    split_max_tensors: int = 0,
    others: Mapping[str, str] | None = None,
    *,
    latents_apart: bool = True,
    without: tuple[str, ...] = (),
) -> Path:
    """Writes `model`, whose matrices become what the file says: quantized ones lose precision in the model too, and
    kinds that the gguf package cannot quantize to are random blocks. `metadata` wins over what describes the model;
    `others` are the kinds of matrices whose names have such a part. Not `latents_apart`: as llama.cpp once had them.
    Tensors whose names have a part of `without` are left out."""
    config = model.config
    writer = gguf.GGUFWriter(path, architecture_of(config), split_max_tensors=split_max_tensors)
    describe(writer, config)
    if not latents_apart:
        _describe_as_once(writer, config)
    if config.model_type == "apertus":
        activations = [layer.mlp.act_fn for layer in model.model.layers]
        for name in ("alpha_p", "alpha_n", "beta", "eps"):
            writer.add_array(f"xielu.{name}", [getattr(each, name).item() for each in activations])
    for key, value in (metadata or {}).items():
        writer.kv_data[0].pop(key, None)
        add_field(writer, key, value)
    for name, tensor in named_tensors(model, latents_apart=latents_apart):
        if any(part in name for part in without):
            continue
        own = next((other for part, other in (others or {}).items() if part in name), kind)
        quantized = "F32" if is_plain(name, tensor) else own
        data = _encoded(tensor, quantized, len(name))
        writer.add_tensor(name, data, raw_dtype=gguf.GGMLQuantizationType[quantized])
    for name, array in (extra or {}).items():
        writer.add_tensor(name, array)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def is_plain(name: str, tensor: torch.Tensor) -> bool:
    """Whether llama.cpp's converter leaves a tensor in F32, whatever the kind of the file."""
    return tensor.dim() < 2 or name.endswith((".bias", ".shortconv.conv.weight")) or bool(PLAIN & set(name.split(".")))


def describe(writer: gguf.GGUFWriter, config: Any) -> None:
    """Adds what llama.cpp's converter says of a model of transformers' classes, but for its vocabulary."""
    if config.model_type in ("gemma4_text", "step3p5"):
        config.allow_global_per_layer_attribute_access = True
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    inner = getattr(config, "intermediate_size_mlp", getattr(config, "intermediate_size", None))
    if config.model_type in ("gpt2", "gpt_bigcode"):
        inner = config.n_inner or 4 * config.n_embd
    if (inner := inner or getattr(config, "ffn_hidden_size", None)) is not None:
        writer.add_feed_forward_length(inner)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(_kv_heads(config))
    writer.add_key_length(head_dim)
    writer.add_value_length(head_dim)
    if config.model_type in ("stablelm", "gpt_neox"):
        writer.add_parallel_residual(config.use_parallel_residual)
    if config.model_type in ("starcoder2", "cohere", "cohere2", "stablelm", "jais2"):
        writer.add_layer_norm_eps(config.norm_epsilon if config.model_type == "starcoder2" else config.layer_norm_eps)
    elif config.model_type in ("phi", "gpt_neox", "nemotron"):
        writer.add_layer_norm_eps(config.norm_eps if config.model_type == "nemotron" else config.layer_norm_eps)
    elif config.model_type == "olmo":
        writer.add_layer_norm_eps(1e-5)
        if config.clip_qkv is not None:
            writer.add_clamp_kqv(config.clip_qkv)
    elif config.model_type in ("nemotron_h", "falcon", "gpt2", "gpt_bigcode"):
        writer.add_layer_norm_eps(config.layer_norm_epsilon)
    elif config.model_type == "cohere2_moe" and config.rms_norm_eps is None:
        writer.add_layer_norm_eps(config.layer_norm_eps)
    else:
        writer.add_layer_norm_rms_eps(config.norm_eps if "lfm2" in config.model_type else config.rms_norm_eps)
    if config.model_type == "cohere2":
        writer.add_sliding_window(config.sliding_window)
    if config.model_type in ("cohere", "cohere2", "cohere2_moe"):
        writer.add_logit_scale(config.logit_scale)
    writer.add_rope_dimension_count(head_dim)
    if (
        config.model_type
        in (
            "gemma2",
            "gemma3_text",
            "gemma3n_text",
            "gemma4_text",
            "gpt_oss",
            "olmo3",
            "phi3",
            "phimoe",
            "exaone4",
            "afmoe",
        )
        and config.sliding_window
    ):
        writer.add_sliding_window(config.sliding_window)
    if config.model_type == "olmo3" or (config.model_type == "exaone4" and config.sliding_window):
        writer.add_sliding_window_pattern([kind == "sliding_attention" for kind in config.layer_types])
    rope = getattr(config, "rope_parameters", {"rope_type": "default", "rope_theta": 10000.0})
    rope = rope.get("full_attention", rope)
    raised = rope.get("alpha", 1.0) ** (head_dim / (head_dim - 2))  # of HunYuan
    writer.add_rope_freq_base(rope["rope_theta"] * raised)
    if config.model_type in ("gemma3_text", "gemma3n_text", "gemma4_text"):
        writer.add_rope_freq_base_swa(config.rope_parameters["sliding_attention"]["rope_theta"])
    if (share := rope.get("partial_rotary_factor")) and rope["rope_type"] != "proportional":
        writer.kv_data[0].pop(f"{architecture_of(config)}.rope.dimension_count")
        writer.add_rope_dimension_count(int(head_dim * share))
    if rope["rope_type"] in ("linear", "yarn"):
        writer.add_rope_scaling_type(gguf.RopeScalingType(rope["rope_type"]))
        writer.add_rope_scaling_factor(rope["factor"])
    if rope["rope_type"] == "yarn":
        writer.add_rope_scaling_orig_ctx_len(rope["original_max_position_embeddings"])
    if rope["rope_type"] == "longrope":
        trained, original = config.max_position_embeddings, rope["original_max_position_embeddings"]
        writer.add_rope_scaling_orig_ctx_len(original)
        writer.add_rope_scaling_attn_factors((1 + math.log(trained / original) / math.log(original)) ** 0.5)
        for which in ("long", "short"):
            writer.add_tensor(f"rope_factors_{which}.weight", np.array(rope[f"{which}_factor"], np.float32))
    if config.model_type == "gemma2":
        writer.add_attn_logit_softcapping(config.attn_logit_softcapping)
        writer.add_final_logit_softcapping(config.final_logit_softcapping)
    if config.model_type in ("glm4_moe", "minimax_m2", "dots1", "solar_open", "afmoe"):
        writer.add_expert_gating_func(gguf.ExpertGatingFuncType.SIGMOID)
    if config.model_type in ("glm4_moe", "dots1", "solar_open"):
        writer.add_leading_dense_block_count(getattr(config, "first_k_dense_replace", 0))
        writer.add_expert_shared_count(config.n_shared_experts)
        writer.add_expert_weights_scale(config.routed_scaling_factor)
        writer.add_expert_weights_norm(config.norm_topk_prob)
    if config.model_type == "afmoe":
        writer.add_leading_dense_block_count(config.num_dense_layers)
        writer.add_expert_shared_count(config.num_shared_experts)
        writer.add_expert_weights_scale(config.route_scale)
        writer.add_expert_weights_norm(True)
        writer.add_expert_feed_forward_length(config.moe_intermediate_size)
    if config.model_type == "ernie4_5_moe":
        writer.add_interleave_moe_layer_step(config.moe_layer_interval)
        writer.add_leading_dense_block_count(config.moe_layer_start_index)
        writer.add_expert_feed_forward_length(config.moe_intermediate_size)
        writer.add_expert_shared_count(config.moe_num_shared_experts)
        if config.moe_num_shared_experts:
            writer.add_expert_shared_feed_forward_length(config.moe_num_shared_experts * config.moe_intermediate_size)
    if config.model_type == "qwen2_moe":
        writer.add_expert_shared_feed_forward_length(config.shared_expert_intermediate_size)
    if getattr(config, "num_experts_per_tok", None) and config.model_type != "nemotron_h":
        count = getattr(config, "n_routed_experts", None) or getattr(config, "num_local_experts", None)
        writer.add_expert_count(count or config.num_experts)
        writer.add_expert_used_count(config.num_experts_per_tok)
    if config.model_type == "hunyuan_v1_moe":
        writer.add_expert_feed_forward_length(config.intermediate_size)
        writer.add_expert_shared_feed_forward_length(config.intermediate_size)
        writer.add_expert_shared_count(1)
    if config.model_type in ("granite", "granitemoe", "granitemoeshared", "granitemoehybrid"):
        writer.add_attention_scale(config.attention_multiplier)
        writer.add_embedding_scale(config.embedding_multiplier)
        writer.add_residual_scale(config.residual_multiplier)
        writer.add_logit_scale(config.logits_scaling)
    if config.model_type == "granitemoeshared" and config.shared_intermediate_size:
        writer.add_expert_shared_feed_forward_length(config.shared_intermediate_size)
    if config.model_type in ("minimax_m2", "gpt_oss"):
        writer.add_expert_feed_forward_length(config.intermediate_size)
    if config.model_type in (
        "qwen3_moe",
        "qwen2_moe",
        "glm4_moe",
        "dots1",
        "solar_open",
        "qwen3_next",
        "qwen3_5_moe_text",
    ):
        writer.add_expert_feed_forward_length(config.moe_intermediate_size)
    if architecture_of(config) in ("hy_v3", "cohere2moe", "granite_swa", "apertus"):
        _describe_later(writer, config)
    if architecture_of(config) in HYBRIDS:
        _describe_hybrid(writer, config)
    if architecture_of(config) in STATES:
        _describe_states(writer, config)
    if config.model_type == "llama4_text":
        writer.add_interleave_moe_layer_step(config.interleave_moe_layer_step)
        writer.add_expert_feed_forward_length(config.intermediate_size)
        writer.add_expert_gating_func(gguf.ExpertGatingFuncType.SIGMOID)
    if config.model_type == "ministral3":
        writer.add_rope_scaling_yarn_log_mul(rope["mscale_all_dim"])
        writer.add_attn_temperature_scale(rope["llama_4_scaling_beta"])
    if config.model_type == "gemma3n_text":
        _describe_gemma3n(writer, config)
    if config.model_type == "gemma4_text":
        _describe_gemma4(writer, config)
    if config.model_type == "mimo_v2_flash":
        _describe_mimo(writer, config)
    if config.model_type == "minimax":
        writer.add_residual_scale(config.mlp_alpha_factor)
        recurrent = [kind == "linear_attention" for kind in config.layer_types]
        writer.add_array("minimax-01.attention.recurrent_layers", recurrent)
    if config.model_type in ("step3p5", "laguna"):
        _describe_kinds(writer, config)
    if config.model_type == "mistral4":
        writer.add_attn_temperature_scale(rope["llama_4_scaling_beta"])
        writer.add_attn_temperature_length(rope["original_max_position_embeddings"])
    if architecture_of(config) in ("deepseek2", "mistral4", "kimi-linear", *INDEXED):
        _describe_latents(writer, config)


def _describe_later(writer: gguf.GGUFWriter, config: Any) -> None:
    architecture = architecture_of(config)
    if architecture in ("cohere2moe", "granite_swa"):
        writer.add_sliding_window(config.sliding_window)
        writer.add_sliding_window_pattern([kind == "sliding_attention" for kind in config.layer_types])
    if architecture == "granite_swa":
        writer.add_attention_scale(config.attention_multiplier)
        writer.add_embedding_scale(config.embedding_multiplier)
        writer.add_residual_scale(config.residual_multiplier)
        writer.add_logit_scale(config.logits_scaling)
        writer.add_rope_freq_base(max(config.layer_rope_theta))
        writer.add_array("granite_swa.attention.rope_pattern", [theta > 0 for theta in config.layer_rope_theta])
        if getattr(config, "shared_intermediate_size", 0):
            writer.add_expert_shared_feed_forward_length(config.shared_intermediate_size)
    if architecture in ("hy_v3", "cohere2moe"):
        dense = config.mlp_layer_types.index("sparse")
        size = config.moe_intermediate_size if architecture == "hy_v3" else config.intermediate_size
        writer.add_leading_dense_block_count(dense)
        writer.add_expert_feed_forward_length(size)
        writer.add_expert_shared_count(config.num_shared_experts)
        writer.add_expert_shared_feed_forward_length(size * config.num_shared_experts)
    if architecture == "hy_v3":
        writer.add_expert_gating_func(gguf.ExpertGatingFuncType.SIGMOID)
        writer.add_expert_weights_norm(True)
        writer.add_expert_weights_scale(config.router_scaling_factor)
    if architecture == "cohere2moe":
        writer.kv_data[0].pop("cohere2moe.feed_forward_length", None)
        writer.add_feed_forward_length(config.prefix_dense_intermediate_size or config.intermediate_size)
        of_softmax = config.expert_selection_fn == "softmax"
        kinds = gguf.ExpertGatingFuncType
        writer.add_expert_gating_func(kinds.SOFTMAX if of_softmax else kinds.SIGMOID)
        writer.add_expert_weights_norm(of_softmax or config.norm_topk_prob)


def _kv_heads(config: Any) -> int:
    if config.model_type == "falcon":
        many = config.num_kv_heads if config.new_decoder_architecture else config.num_attention_heads
        return many if config.new_decoder_architecture or not config.multi_query else 1  # type: ignore[no-any-return]
    return getattr(config, "num_key_value_heads", config.num_attention_heads)


def _describe_latents(writer: gguf.GGUFWriter, config: Any) -> None:
    architecture = architecture_of(config)
    for key in ("head_count_kv", "key_length", "value_length"):
        writer.kv_data[0].pop(f"{architecture}.attention.{key}", None)
    writer.kv_data[0].pop(f"{architecture}.rope.dimension_count", None)
    writer.add_head_count_kv(1)
    writer.add_key_length(config.kv_lora_rank + config.qk_rope_head_dim)
    writer.add_value_length(config.kv_lora_rank)
    writer.add_key_length_mla(config.qk_nope_head_dim + config.qk_rope_head_dim)
    writer.add_value_length_mla(config.v_head_dim)
    writer.add_kv_lora_rank(config.kv_lora_rank)
    if config.q_lora_rank:
        writer.add_q_lora_rank(config.q_lora_rank)
    writer.add_rope_dimension_count(config.qk_rope_head_dim)
    if architecture == "kimi-linear":
        writer.kv_data[0].pop(f"{architecture}.attention.head_count_kv")
        writer.add_head_count_kv([int(kind == "full_attention") for kind in config.layer_types])
        writer.add_ssm_conv_kernel(config.linear_conv_kernel_dim)
        writer.add_kda_head_dim(config.linear_head_dim)
    elif every := config.rope_parameters.get("mscale_all_dim"):
        writer.add_rope_scaling_yarn_log_mul(0.1 * every)
    experts = config.model_type != "youtu"
    dense = config.num_hidden_layers
    if experts:
        kinds = getattr(config, "mlp_layer_types", None)
        dense = config.first_k_dense_replace if kinds is None else kinds.count("dense")
    writer.add_leading_dense_block_count(dense)
    writer.add_expert_feed_forward_length(config.moe_intermediate_size if experts else config.intermediate_size)
    writer.add_expert_shared_count(config.n_shared_experts if experts else 0)
    if not experts:
        return
    if architecture in INDEXED:
        writer.add_indexer_head_count(config.index_n_heads)
        writer.add_indexer_key_length(config.index_head_dim)
        writer.add_indexer_top_k(config.index_topk)
    if architecture == "glm-dsa" and (kinds := config.indexer_types) is not None:
        writer.add_array("glm-dsa.attention.indexer.types", [kind == "full" for kind in kinds])
    sigmoid = config.model_type not in ("deepseek_v2", "mistral4")
    kinds = gguf.ExpertGatingFuncType
    writer.add_expert_gating_func(kinds.SIGMOID if sigmoid else kinds.SOFTMAX)
    writer.add_expert_weights_scale(config.routed_scaling_factor)
    if config.model_type != "deepseek_v2" and config.norm_topk_prob:
        writer.add_expert_weights_norm(True)
    if config.n_group:
        writer.add_expert_group_count(config.n_group)
        writer.add_expert_group_used_count(config.topk_group)


def _describe_mimo(writer: gguf.GGUFWriter, config: Any) -> None:
    for key in ("attention.head_count_kv", "attention.value_length"):
        writer.kv_data[0].pop(f"mimo2.{key}")
    windows, heads = [kind == "sliding_attention" for kind in config.layer_types], config.num_key_value_heads
    writer.add_head_count_kv([heads * (2 if window else 1) for window in windows])
    writer.add_sliding_window(config.sliding_window)
    writer.add_sliding_window_pattern(windows)
    writer.add_value_length(config.v_head_dim)
    writer.add_rope_freq_base_swa(config.rope_parameters["sliding_attention"]["rope_theta"])
    writer.add_expert_feed_forward_length(config.moe_intermediate_size)
    writer.add_expert_gating_func(gguf.ExpertGatingFuncType.SIGMOID)
    if config.attention_value_scale is not None:
        writer.add_float32("mimo2.attention.value_scale", config.attention_value_scale)


def _describe_kinds(writer: gguf.GGUFWriter, config: Any) -> None:
    architecture, rope = architecture_of(config), config.rope_parameters
    windows = [kind == "sliding_attention" for kind in config.layer_types]
    for key in ("attention.head_count", "rope.dimension_count"):
        writer.kv_data[0].pop(f"{architecture}.{key}")
    heads = [config.num_attention_heads] * len(windows)
    if architecture == "laguna":
        heads = config.num_attention_heads_per_layer
        turning = int(config.head_dim * rope["full_attention"]["partial_rotary_factor"])
        shared, scale = config.shared_expert_intermediate_size, config.moe_routed_scaling_factor
    else:
        heads = [config.num_sliding_attention_heads if one else each for one, each in zip(windows, heads, strict=True)]
        turning = config.head_dim
        shared, scale = config.share_expert_dim, config.moe_router_scaling_factor
        writer.add_sliding_window_pattern(windows)
        writer.add_swiglu_clamp_exp([one or 0.0 for one in config.swiglu_limits])
        writer.add_swiglu_clamp_shexp([one or 0.0 for one in config.swiglu_limits_shared])
    writer.add_head_count(heads)
    writer.add_rope_dimension_count(turning)
    if any(windows):
        window = rope["sliding_attention"]
        writer.add_sliding_window(config.sliding_window)
        writer.add_rope_freq_base_swa(window["rope_theta"])
        writer.add_rope_dimension_count_swa(int(config.head_dim * window["partial_rotary_factor"]))
    writer.add_expert_feed_forward_length(config.moe_intermediate_size)
    writer.add_expert_shared_feed_forward_length(shared)
    writer.add_expert_weights_scale(scale)
    writer.add_expert_weights_norm(True)
    writer.add_expert_gating_func(gguf.ExpertGatingFuncType.SIGMOID)
    writer.add_leading_dense_block_count(config.mlp_layer_types.index("sparse"))


def _describe_as_once(writer: gguf.GGUFWriter, config: Any) -> None:
    for key in ("head_count_kv", "key_length", "value_length", "key_length_mla", "value_length_mla"):
        writer.kv_data[0].pop(f"deepseek2.attention.{key}")
    writer.add_head_count_kv(config.num_attention_heads)
    writer.add_key_length(config.qk_nope_head_dim + config.qk_rope_head_dim)
    writer.add_value_length(config.v_head_dim)


def _describe_hybrid(writer: gguf.GGUFWriter, config: Any) -> None:
    writer.add_ssm_conv_kernel(config.linear_conv_kernel_dim)
    writer.add_ssm_state_size(config.linear_key_head_dim)
    writer.add_ssm_group_count(config.linear_num_key_heads)
    writer.add_ssm_time_step_rank(config.linear_num_value_heads)
    writer.add_ssm_inner_size(config.linear_value_head_dim * config.linear_num_value_heads)
    writer.add_full_attention_interval(4)
    if getattr(config, "shared_expert_intermediate_size", None):
        writer.add_expert_shared_feed_forward_length(config.shared_expert_intermediate_size)
    if config.model_type != "qwen3_next":
        writer.add_rope_dimension_sections([11, 11, 10, 0])


def _describe_states(writer: gguf.GGUFWriter, config: Any) -> None:
    architecture = architecture_of(config)
    for key in ("attention.head_count_kv", "feed_forward_length", "rope.dimension_count"):
        writer.kv_data[0].pop(f"{architecture}.{key}", None)
    heads, inner = config.num_key_value_heads, config.intermediate_size
    if architecture == "falcon-h1":
        writer.add_head_count_kv(heads)
        writer.add_feed_forward_length(inner)
        sizes = config.mamba_n_groups, config.mamba_d_state, config.mamba_d_conv
        _describe_mamba(writer, _falcon_size(config), config.mamba_n_heads, *sizes)
        return
    nemotron = config.model_type == "nemotron_h"
    kinds = config.layers_block_type if nemotron else config.layer_types
    attending = [kind in ("full_attention", "attention") for kind in kinds]
    writer.add_head_count_kv([heads if one else 0 for one in attending])
    if nemotron:
        if architecture == "nemotron_h_moe":
            inner = config.moe_intermediate_size
            _describe_nemotron_experts(writer, config)
        writer.add_feed_forward_length([inner if kind in ("mlp", "moe") else 0 for kind in kinds])
        writer.add_rope_scaling_finetuned(False)
        sizes = config.n_groups, config.ssm_state_size, config.conv_kernel
        _describe_mamba(writer, config.mamba_num_heads * config.mamba_head_dim, config.mamba_num_heads, *sizes)
    elif architecture == "granitehybrid":
        writer.add_feed_forward_length(inner)
        writer.add_expert_shared_feed_forward_length(config.shared_intermediate_size)
        writer.add_rope_scaling_finetuned(config.position_embedding_type == "rope")
        sizes = config.mamba_n_groups, config.mamba_d_state, config.mamba_d_conv
        _describe_mamba(writer, config.mamba_expand * config.hidden_size, config.mamba_n_heads, *sizes)
    else:
        if architecture == "lfm2" and config.block_auto_adjust_ff_dim:
            several = config.block_multiple_of
            inner = several * -(-int(config.block_ffn_dim_multiplier * int(2 * inner / 3)) // several)
        writer.add_feed_forward_length(inner)
        writer.add_shortconv_l_cache(config.conv_L_cache)
    if architecture == "lfm2moe":
        writer.add_expert_feed_forward_length(config.moe_intermediate_size)
        writer.add_leading_dense_block_count(config.num_dense_layers)
        writer.add_expert_gating_func(gguf.ExpertGatingFuncType.SIGMOID)


def _describe_nemotron_experts(writer: gguf.GGUFWriter, config: Any) -> None:
    writer.add_expert_count(config.n_routed_experts)
    writer.add_expert_used_count(config.num_experts_per_tok)
    writer.add_expert_feed_forward_length(config.moe_intermediate_size)
    writer.add_expert_shared_feed_forward_length(config.moe_shared_expert_intermediate_size)
    writer.add_expert_shared_count(config.n_shared_experts)
    writer.add_expert_weights_norm(config.norm_topk_prob)
    writer.add_expert_weights_scale(config.routed_scaling_factor)
    writer.add_expert_gating_func(gguf.ExpertGatingFuncType.SIGMOID)
    if config.n_group > 1:
        writer.add_expert_group_count(config.n_group)
        writer.add_expert_group_used_count(config.topk_group)
    if config.moe_latent_size is not None:
        writer.add_moe_latent_size(config.moe_latent_size)


def _describe_mamba(writer: gguf.GGUFWriter, inner: int, heads: int, groups: int, state_size: int, kernel: int) -> None:
    writer.add_ssm_inner_size(inner)
    writer.add_ssm_time_step_rank(heads)
    writer.add_ssm_group_count(groups)
    writer.add_ssm_state_size(state_size)
    writer.add_ssm_conv_kernel(kernel)


def _describe_gemma3n(writer: gguf.GGUFWriter, config: Any) -> None:
    normal = torch.distributions.normal.Normal(0, 1)
    shares = torch.tensor(config.activation_sparsity_pattern, dtype=torch.float32)
    writer.add_altup_active_idx(config.altup_active_idx)
    writer.add_altup_num_inputs(config.altup_num_inputs)
    writer.add_embedding_length_per_layer_input(config.hidden_size_per_layer_input)
    writer.add_shared_kv_layers(config.num_kv_shared_layers)
    writer.add_activation_sparsity_scale(normal.icdf(shares).tolist())
    writer.add_sliding_window_pattern([kind == "sliding_attention" for kind in config.layer_types])
    if config.final_logit_softcapping:
        writer.add_final_logit_softcapping(config.final_logit_softcapping)


def _describe_gemma4(writer: gguf.GGUFWriter, config: Any) -> None:
    windows = [kind == "sliding_attention" for kind in config.layer_types]
    full = config.per_layer_config[windows.index(False)]
    first = config.num_hidden_layers - config.num_kv_shared_layers
    inner = config.intermediate_size
    for key in ("attention.key_length", "attention.value_length", "attention.head_count_kv", "feed_forward_length"):
        writer.kv_data[0].pop(f"gemma4.{key}", None)
    writer.kv_data[0].pop("gemma4.rope.dimension_count", None)
    writer.add_shared_kv_layers(config.num_kv_shared_layers)
    writer.add_embedding_length_per_layer_input(config.hidden_size_per_layer_input or 0)
    writer.add_sliding_window_pattern(windows)
    writer.add_key_length(full.head_dim)
    writer.add_value_length(full.head_dim)
    writer.add_key_length_swa(config.head_dim)
    writer.add_value_length_swa(config.head_dim)
    writer.add_rope_dimension_count(full.head_dim)
    writer.add_rope_dimension_count_swa(config.head_dim)
    heads = config.num_key_value_heads
    writer.add_head_count_kv([heads if window else full.num_key_value_heads for window in windows])
    wide = 2 if config.use_double_wide_mlp else 1
    writer.add_feed_forward_length([inner * (1 if layer < first else wide) for layer in range(len(windows))])
    if config.enable_moe_block:
        writer.add_expert_count(config.num_experts)
        writer.add_expert_used_count(config.top_k_experts)
        writer.add_expert_feed_forward_length(config.moe_intermediate_size)
    if config.final_logit_softcapping != 30:  # which llama.cpp has without being told
        writer.add_final_logit_softcapping(config.final_logit_softcapping)
    pairs = full.head_dim // 2
    turning = int(config.rope_parameters["full_attention"].get("partial_rotary_factor", 1.0) * pairs)
    divisors = np.array([1.0] * turning + [1e30] * (pairs - turning), np.float32)
    writer.add_tensor("rope_freqs.weight", divisors)


def add_field(writer: gguf.GGUFWriter, key: str, value: Any) -> None:
    """Adds a field of metadata, of the type that the value has."""
    add = {str: writer.add_string, bool: writer.add_bool, int: writer.add_uint32, float: writer.add_float32}
    add.get(type(value), writer.add_array)(key, value)


def named_tensors(model: Any, *, latents_apart: bool = True) -> list[tuple[str, torch.Tensor]]:
    """The model's parameters under llama.cpp's names, as views of them where they are not permuted copies."""
    found = []
    architecture = architecture_of(model.config)
    permute = architecture in PERMUTED
    # The package that is there may not know DeepSeek V3.2, whose tensors are named as GLM-5's.
    known = "glm-dsa" if architecture in INDEXED else LATER.get(model.config.model_type, architecture)
    number = next(number for number, name in gguf.MODEL_ARCH_NAMES.items() if name == known)
    names = gguf.get_tensor_name_map(number, model.config.num_hidden_layers)
    for name, parameter in model.named_parameters():
        tensor = parameter.data
        layer = name.split(".")[2] if "layers" in name else ""
        if architecture in HYBRIDS and "experts" not in name:
            found += _of_hybrid(tensor, name, layer, model.config, names)
            continue
        if architecture == "llama4" and ".experts." in name:  # stored `[in, out]`
            found += _of_llama4(tensor, name.rpartition(".")[2], layer)
            continue
        if "altup_projections" in name or "altup_unembed_projections" in name:
            if ".0." in name:  # those of all other streams are one tensor
                stem = name.partition(".0.")[0]
                others = [
                    model.get_submodule(f"{stem}.{n}").weight.data for n in range(model.config.altup_num_inputs - 1)
                ]
                found.append((f"{names.get_name(stem)}.weight", torch.stack(others)))
            continue
        if architecture == "gemma4" and (place := _GEMMA4.get(name.split(".", 3)[-1])):
            found.append((f"blk.{layer}.{place}", tensor))
            continue
        if architecture in STATES and (made := _of_states(tensor, name, layer, model.config)):
            found += made
            continue
        if architecture == "apertus" and ".act_fn." in name:
            continue
        if architecture == "granite_swa" and name.endswith("self_attn.sinks"):
            found.append((f"blk.{layer}.attn_sinks.weight", tensor))
            continue
        if architecture == "granite_swa" and "shared_mlp" in name:
            which = "up" if "input_linear" in name else "down"
            found.append((f"blk.{layer}.ffn_{which}_shexp.weight", tensor))
            continue
        if architecture == "gpt2" and name.endswith(("c_attn.weight", "c_proj.weight", "c_fc.weight")):
            tensor = tensor.t()  # which the model has `[in, out]`
        if architecture == "gpt-oss" and ".experts." in name:
            found += _of_gpt_oss(tensor, name.rpartition(".")[2], layer)
            continue
        if "query_key_value" in name:
            layer, heads = name.split(".")[2], _kv_heads(model.config)
            groups = tensor.view(
                heads, -1, model.config.hidden_size // model.config.num_attention_heads, *tensor.shape[1:]
            )
            parts = (groups[:, :-2], groups[:, -2:-1], groups[:, -1:])
            rows = torch.cat([part.reshape(-1, *tensor.shape[1:]) for part in parts])
            found.append((f"blk.{layer}.attn_qkv.{name.rpartition('.')[2]}", rows))
            continue
        if architecture == "minimax-01" and (stored := _MINIMAX.get(name.split(".", 3)[-1])):
            found.append((f"blk.{layer}.{stored}", tensor))
            continue
        if architecture == "kimi-linear" and (made := _of_kimi(tensor, name, layer)):
            found += made
            continue
        if name.endswith(("mlp.expert_bias", "mlp.gate.e_score_correction_bias")):
            found.append((f"blk.{layer}.exp_probs_b.bias", tensor))
            continue
        if name.endswith("moe_statics.e_score_correction_bias"):
            found.append((f"blk.{layer}.exp_probs_b.bias", tensor[0]))
            continue
        if name.endswith("experts.gate_up_proj"):
            half = tensor.shape[1] // 2
            found += [(f"blk.{layer}.ffn_gate_exps.weight", tensor[:, :half])]
            found += [(f"blk.{layer}.ffn_up_exps.weight", tensor[:, half:])]
            continue
        if model.config.model_type == "granitemoeshared" and name.endswith("shared_mlp.input_linear.weight"):
            gate, up = tensor.chunk(2)
            found += [(f"blk.{layer}.ffn_gate_shexp.weight", gate), (f"blk.{layer}.ffn_up_shexp.weight", up)]
            continue
        stem, _, suffix = name.rpartition(".") if name.endswith(("weight", "bias")) else (name, "", "weight")
        rest = stem.split(".", 3)[-1]
        for module in ("block_sparse_moe", "feed_forward"):
            stem = stem.replace(f"{module}.experts.down_proj", "mlp.experts.down_proj")
        stem = stem.replace("mixer.experts", "mlp.experts")
        if architecture.startswith("nemotron_h") and stem.startswith("model.") and ".mlp." not in stem:
            stem = "backbone." + stem.removeprefix("model.")
        if rest == "self_attn.kv_b_proj" and latents_apart:
            found += _of_latents(tensor, layer, model.config)
            continue
        stem = stem.replace("block_sparse_moe.router", "block_sparse_moe.router.layer")
        if architecture in ("gemma", "gemma2", "gemma3", "nemotron", "step35") and name.endswith("norm.weight"):
            tensor = tensor + 1  # llama.cpp's converter does
        if name.endswith("shared_expert_gate.weight"):
            tensor = tensor.squeeze()
        if permute and rest.split(".")[-1] in ("q_proj", "k_proj"):
            tensor = _Permuted.of(tensor, model.config, rest)
        ours = names.get_name(f"{stem}.{suffix}") or f"{names.get_name(stem)}.{suffix}"
        found.append((ours, tensor))
    for name, buffer in model.named_buffers():
        if name.endswith(("e_score_correction_bias", "expert_bias")):
            suffix = "" if architecture == "hy_v3" else ".bias"
            found.append((f"blk.{name.split('.')[2]}.exp_probs_b{suffix}", buffer))
        if name.endswith("layer_scalar"):
            found.append((f"blk.{name.split('.')[2]}.layer_output_scale.weight", buffer))
    if architecture == "gemma3n":
        found += _unread(model.config)
    return found


def _unread(config: Any) -> list[tuple[str, torch.Tensor]]:
    """What published files have of layers that look at another one's keys, and transformers leaves out."""
    size, layers = config.head_dim, config.num_hidden_layers
    rows = torch.zeros(config.num_key_value_heads * size, config.hidden_size)
    parts = {"attn_k": rows, "attn_v": rows, "attn_k_norm": torch.zeros(size)}
    blocks = range(layers - config.num_kv_shared_layers, layers)
    return [(f"blk.{block}.{part}.weight", tensor) for block in blocks for part, tensor in parts.items()]


_GEMMA4 = {
    "router.scale": "ffn_gate_inp.scale",
    "router.per_expert_scale": "ffn_down_exps.scale",
    "experts.gate_up_proj": "ffn_gate_up_exps.weight",
    "experts.down_proj": "ffn_down_exps.weight",
}


_MINIMAX = {
    "self_attn.qkv_proj.weight": "attn_qkv.weight",
    "self_attn.output_gate.weight": "attn_gate.weight",
    "self_attn.norm.weight": "attn_norm_2.weight",
    "self_attn.out_proj.weight": "attn_output.weight",
}


def _of_kimi(tensor: torch.Tensor, name: str, layer: str) -> list[tuple[str, torch.Tensor]]:
    """What llama.cpp's converter changes of layers with Kimi's delta rule."""
    block, part = f"blk.{layer}.", name.partition("self_attn.")[2]
    match part.removeprefix("forget_gate."):
        case "A_log":
            return [(f"{block}ssm_a", -tensor.exp())]
        case "dt_bias":
            return [(f"{block}ssm_dt.bias", tensor)]
        case "conv1d.weight":
            parts = zip("qkv", tensor.chunk(3), strict=True)
            return [(f"{block}ssm_conv1d_{which}.weight", rows.unsqueeze(0)) for which, rows in parts]
        case "f_a_proj.weight" | "f_b_proj.weight":
            return [(f"{block}ssm_{part.removeprefix('forget_gate.')[:3]}.weight", tensor)]
    return []


def _of_states(tensor: torch.Tensor, name: str, layer: str, config: Any) -> list[tuple[str, torch.Tensor]]:
    """What llama.cpp's converter changes of layers with states, and Falcon-H1's multipliers, which it multiplies by."""
    block = f"blk.{layer}."
    if config.model_type == "falcon_h1":
        tensor = _multiplied(tensor, name, config)
    part = name.split(".", 3)[-1].partition(".")[2] if "layers" in name else name
    match part:
        case "A_log":
            return [(f"{block}ssm_a", -tensor.exp().unsqueeze(1))]
        case "D":
            return [(f"{block}ssm_d", tensor.unsqueeze(1))]
        case "dt_bias":
            return [(f"{block}ssm_dt.bias", tensor)]
        case "conv1d.weight":
            return [(f"{block}ssm_conv1d.weight", tensor.squeeze(1))]
        case "conv.weight":
            return [(f"{block}shortconv.conv.weight", tensor.squeeze(1))]
        case "norm.weight":
            groups = config.n_groups if config.model_type == "nemotron_h" else config.mamba_n_groups
            return [(f"{block}ssm_norm.weight", tensor.view(groups, -1))]
        case "input_linear.weight" if "shared_mlp" in name:
            gate, up = tensor.chunk(2)
            suffix = "_shexp" if config.num_local_experts else ""
            return [(f"{block}ffn_gate{suffix}.weight", gate), (f"{block}ffn_up{suffix}.weight", up)]
        case "output_linear.weight" if "shared_mlp" in name and not config.num_local_experts:
            return [(f"{block}ffn_down.weight", tensor)]
    if config.model_type != "falcon_h1":
        return []
    ours = {
        "self_attn.q_proj.weight": "attn_q.weight",
        "self_attn.k_proj.weight": "attn_k.weight",
        "self_attn.v_proj.weight": "attn_v.weight",
        "self_attn.o_proj.weight": "attn_output.weight",
        "mamba.in_proj.weight": "ssm_in.weight",
        "mamba.out_proj.weight": "ssm_out.weight",
        "feed_forward.gate_proj.weight": "ffn_gate.weight",
        "feed_forward.down_proj.weight": "ffn_down.weight",
    }.get(name.split(".", 3)[-1])
    top = {
        "model.embed_tokens.weight": "token_embd.weight",
        "lm_head.weight": "output.weight",
        "model.final_layernorm.weight": "output_norm.weight",
    }.get(name)
    return [(top, tensor)] if top else [(block + ours, tensor)] if ours else []


def _falcon_size(config: Any) -> int:
    size: int = config.mamba_d_ssm or config.mamba_expand * config.hidden_size
    return size


def _multiplied(tensor: torch.Tensor, name: str, config: Any) -> torch.Tensor:
    enters = config.attention_in_multiplier
    by = {
        "q_proj": enters,
        "k_proj": enters * config.key_multiplier,
        "v_proj": enters,
        "o_proj": config.attention_out_multiplier,
        "gate_proj": config.mlp_multipliers[0],
        "down_proj": config.mlp_multipliers[1],
        "out_proj": config.ssm_out_multiplier,
        "lm_head": config.lm_head_multiplier,
        "embed_tokens": config.embedding_multiplier,
    }
    if config.tie_word_embeddings:  # our own way: llama.cpp's converter does not multiply logits then
        by["final_layernorm"] = config.lm_head_multiplier / config.embedding_multiplier
    module = name.split(".")[-2]
    if module == "in_proj":
        size, group = _falcon_size(config), config.mamba_n_groups * config.mamba_d_state
        rows = torch.tensor([size, size, group, group, config.mamba_n_heads])
        each = torch.tensor(config.ssm_multipliers).repeat_interleave(rows)
        return tensor * config.ssm_in_multiplier * each.to(tensor.device).unsqueeze(1)
    return tensor * by.get(module, 1.0)


def _of_latents(tensor: torch.Tensor, layer: str, config: Any) -> list[tuple[str, torch.Tensor]]:
    heads, keys = config.num_attention_heads, config.qk_nope_head_dim
    rows = tensor.view(heads, -1, tensor.shape[1])
    return [
        (f"blk.{layer}.attn_k_b.weight", rows[:, :keys].transpose(1, 2)),
        (f"blk.{layer}.attn_v_b.weight", rows[:, keys:]),
    ]


def _of_llama4(tensor: torch.Tensor, name: str, layer: str) -> list[tuple[str, torch.Tensor]]:
    rows = tensor.transpose(1, 2)
    if name == "down_proj":
        return [(f"blk.{layer}.ffn_down_exps.weight", rows)]
    half = rows.shape[1] // 2
    return [(f"blk.{layer}.ffn_gate_exps.weight", rows[:, :half]), (f"blk.{layer}.ffn_up_exps.weight", rows[:, half:])]


def _of_hybrid(
    tensor: torch.Tensor, name: str, layer: str, config: Any, names: gguf.TensorNameMap
) -> list[tuple[str, torch.Tensor]]:
    """llama.cpp has heads of values of Qwen3.5 in turns, one of each key head, and Qwen3-Next's q, k and v apart from
    z; norms have their 1, and the decay is minus its exponential."""
    keys, values = config.linear_num_key_heads, config.linear_num_value_heads
    key_dim, value_dim, group = config.linear_key_head_dim, config.linear_value_head_dim, values // keys
    tiled = config.model_type != "qwen3_next"

    def turns(rows: torch.Tensor, width: int) -> torch.Tensor:
        if not tiled:
            return rows
        heads = rows.reshape(keys, group, width, *rows.shape[1:])
        return heads.transpose(0, 1).reshape(rows.shape)

    part = name.split("linear_attn.")[-1]
    match part:
        case "A_log":
            return [(f"blk.{layer}.ssm_a", -turns(tensor, 1).exp())]
        case "dt_bias":
            return [(f"blk.{layer}.ssm_dt.bias", turns(tensor, 1))]
        case "norm.weight" if "linear_attn" in name:
            return [(f"blk.{layer}.ssm_norm.weight", tensor)]
        case "conv1d.weight":
            rows, both = tensor.squeeze(1), 2 * keys * key_dim
            whole = torch.cat((rows[:both], turns(rows[both:], value_dim)))
            return [(f"blk.{layer}.ssm_conv1d.weight", whole)]
        case "in_proj_qkvz.weight":
            sizes = [key_dim, key_dim, group * value_dim, group * value_dim]
            q, k, v, z = (
                each.reshape(-1, tensor.shape[1]) for each in tensor.view(keys, -1, tensor.shape[1]).split(sizes, 1)
            )
            return [(f"blk.{layer}.attn_qkv.weight", torch.cat((q, k, v))), (f"blk.{layer}.attn_gate.weight", z)]
        case "in_proj_ba.weight":
            return [(f"blk.{layer}.ssm_ba.weight", tensor)]
        case "in_proj_qkv.weight":
            both = 2 * keys * key_dim
            whole = torch.cat((tensor[:both], turns(tensor[both:], value_dim)))
            return [(f"blk.{layer}.attn_qkv.weight", whole)]
        case "in_proj_z.weight":
            return [(f"blk.{layer}.attn_gate.weight", turns(tensor, value_dim))]
        case "in_proj_b.weight" | "in_proj_a.weight":
            which = "beta" if "_b." in part else "alpha"
            return [(f"blk.{layer}.ssm_{which}.weight", turns(tensor, 1))]
        case "out_proj.weight":
            return [(f"blk.{layer}.ssm_out.weight", turns(tensor.t(), value_dim).t())]
    if name.endswith("norm.weight"):
        tensor = tensor + 1
    if name.endswith("shared_expert_gate.weight"):
        tensor = tensor.squeeze()
    stem, _, suffix = name.rpartition(".")
    return [(f"{names.get_name(stem)}.{suffix}", tensor)]


def _of_gpt_oss(tensor: torch.Tensor, name: str, layer: str) -> list[tuple[str, torch.Tensor]]:
    """Its experts are stored `[in, out]`, gate and up taking turns."""
    kind = "bias" if name.endswith("_bias") else "weight"
    rows = tensor if kind == "bias" else tensor.transpose(1, 2)
    if name.startswith("down"):
        return [(f"blk.{layer}.ffn_down_exps.{kind}", rows)]
    return [(f"blk.{layer}.ffn_{part}_exps.{kind}", rows[:, turn::2]) for turn, part in enumerate(("gate", "up"))]


class _Permuted(torch.Tensor):
    """A permuted copy that remembers where it came from."""

    @staticmethod
    def of(tensor: torch.Tensor, config: Any, name: str) -> torch.Tensor:
        heads = config.num_attention_heads if "q_proj" in name else config.num_key_value_heads
        # llama.cpp's permute()
        swapped = tensor.reshape(heads, 2, len(tensor) // heads // 2, *tensor.shape[1:]).swapaxes(1, 2)
        copy: Any = swapped.reshape(tensor.shape).clone().as_subclass(_Permuted)
        copy.origin, copy.heads = tensor, heads
        return copy  # type: ignore[no-any-return]


def _encoded(tensor: torch.Tensor, kind: str, seed: int) -> npt.NDArray[Any]:
    """The numbers as they are stored; what is lost is lost in the model too."""
    plain = tensor.as_subclass(torch.Tensor).float().numpy()
    quantization = gguf.GGMLQuantizationType[kind]
    if kind == "F32":
        return np.ascontiguousarray(plain)
    if kind in _SCALES:
        sizes = BLOCK_KINDS[kind]
        rows = plain.size // plain.shape[-1]
        blocks = random_blocks(kind, plain.size // sizes.block_numbers, seed, scale=_SCALES[kind])
        data = blocks.reshape(*plain.shape[:-1], -1) if rows else blocks
    else:
        data = gguf.quantize(np.ascontiguousarray(plain), quantization)
    _write_back(tensor, torch.from_numpy(dequantized(data, kind).copy()).view(plain.shape))
    return data


# Scales of blocks that give numbers of about 0.06: activations of a model of width 256 neither die nor burst.
_SCALES = {
    **{"Q2_K": 4e-3, "Q3_K": 8e-4, "Q4_K": 2e-4, "Q5_K": 1e-4, "Q6_K": 4e-5},
    **{"IQ2_XXS": 1.5e-3, "IQ2_XS": 1.5e-3, "IQ2_S": 1.5e-3, "IQ3_XXS": 5e-4, "IQ3_S": 5e-4},
    **{"IQ1_S": 8e-3, "IQ1_M": 8e-3, "IQ4_NL": 1e-3, "IQ4_XS": 5e-5, "MXFP4": 0.0, "NVFP4": 0.0, "Q1_0": 6e-2},
}


def _write_back(tensor: torch.Tensor, numbers: torch.Tensor) -> None:
    if isinstance(tensor, _Permuted):
        heads = tensor.heads  # type: ignore[attr-defined]
        swapped = numbers.reshape(heads, len(numbers) // heads // 2, 2, *numbers.shape[1:]).swapaxes(1, 2)
        tensor.origin.copy_(swapped.reshape(numbers.shape))  # type: ignore[attr-defined]
    else:
        tensor.copy_(numbers)
