"""What llama.cpp's converter says of parts that few architectures have: latents, states, heads and sizes by layer."""

from __future__ import annotations

from typing import Any

import gguf
import numpy as np
import torch

from tests.worker_svc.checkpoints.gguf_kinds import INDEXED, architecture_of, falcon_size


def describe_latents(writer: gguf.GGUFWriter, config: Any) -> None:
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


def describe_mimo(writer: gguf.GGUFWriter, config: Any) -> None:
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


def describe_kinds(writer: gguf.GGUFWriter, config: Any) -> None:
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


def describe_hybrid(writer: gguf.GGUFWriter, config: Any) -> None:
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


def describe_states(writer: gguf.GGUFWriter, config: Any) -> None:
    architecture = architecture_of(config)
    for key in ("attention.head_count_kv", "feed_forward_length", "rope.dimension_count"):
        writer.kv_data[0].pop(f"{architecture}.{key}", None)
    heads, inner = config.num_key_value_heads, config.intermediate_size
    if architecture == "falcon-h1":
        writer.add_head_count_kv(heads)
        writer.add_feed_forward_length(inner)
        sizes = config.mamba_n_groups, config.mamba_d_state, config.mamba_d_conv
        _describe_mamba(writer, falcon_size(config), config.mamba_n_heads, *sizes)
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


def describe_gemma3n(writer: gguf.GGUFWriter, config: Any) -> None:
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


def describe_gemma4(writer: gguf.GGUFWriter, config: Any) -> None:
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
