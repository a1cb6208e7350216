"""What llama.cpp's converter says of a model of transformers' classes in a GGUF file, but for its vocabulary."""

from __future__ import annotations

import math
from typing import Any

import gguf
import numpy as np

from tests.worker_svc.checkpoints.gguf_described_parts import (
    describe_gemma3n,
    describe_gemma4,
    describe_hybrid,
    describe_kinds,
    describe_latents,
    describe_mimo,
    describe_states,
)
from tests.worker_svc.checkpoints.gguf_kinds import HYBRIDS, INDEXED, STATES, architecture_of, kv_heads


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
    writer.add_head_count_kv(kv_heads(config))
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
    if config.model_type in (
        "granite",
        "granitemoe",
        "granitemoeshared",
        "granitemoehybrid",
        "granite_swa",
        "granitemoe_swa",
    ):
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
        describe_hybrid(writer, config)
    if architecture_of(config) in STATES:
        describe_states(writer, config)
    if config.model_type == "llama4_text":
        writer.add_interleave_moe_layer_step(config.interleave_moe_layer_step)
        writer.add_expert_feed_forward_length(config.intermediate_size)
        writer.add_expert_gating_func(gguf.ExpertGatingFuncType.SIGMOID)
    if config.model_type == "ministral3":
        writer.add_rope_scaling_yarn_log_mul(rope["mscale_all_dim"])
        writer.add_attn_temperature_scale(rope["llama_4_scaling_beta"])
    if config.model_type == "gemma3n_text":
        describe_gemma3n(writer, config)
    if config.model_type == "gemma4_text":
        describe_gemma4(writer, config)
    if config.model_type == "mimo_v2_flash":
        describe_mimo(writer, config)
    if config.model_type == "minimax":
        writer.add_residual_scale(config.mlp_alpha_factor)
        recurrent = [kind == "linear_attention" for kind in config.layer_types]
        writer.add_array("minimax-01.attention.recurrent_layers", recurrent)
    if config.model_type in ("step3p5", "laguna"):
        describe_kinds(writer, config)
    if config.model_type == "mistral4":
        writer.add_attn_temperature_scale(rope["llama_4_scaling_beta"])
        writer.add_attn_temperature_length(rope["original_max_position_embeddings"])
    if architecture_of(config) in ("deepseek2", "mistral4", "kimi-linear", *INDEXED):
        describe_latents(writer, config)


def _describe_later(writer: gguf.GGUFWriter, config: Any) -> None:
    architecture = architecture_of(config)
    if architecture in ("cohere2moe", "granite_swa"):
        writer.add_sliding_window(config.sliding_window)
        writer.add_sliding_window_pattern([kind == "sliding_attention" for kind in config.layer_types])
    if architecture == "granite_swa":
        writer.add_rope_freq_base(max(config.layer_rope_theta))
        writer.add_array("granite_swa.attention.rope_pattern", [theta > 0 for theta in config.layer_rope_theta])
        if getattr(config, "shared_intermediate_size", 0):
            writer.add_expert_shared_feed_forward_length(config.shared_intermediate_size)
    if architecture in ("hy_v3", "cohere2moe"):
        size = config.moe_intermediate_size if architecture == "hy_v3" else config.intermediate_size
        writer.add_expert_feed_forward_length(size)
        writer.add_expert_shared_count(config.num_shared_experts)
        writer.add_expert_shared_feed_forward_length(size * config.num_shared_experts)
    if architecture == "cohere2moe":  # of hy_v3, tensors alone say which layers are dense
        writer.add_leading_dense_block_count(config.mlp_layer_types.index("sparse"))
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
