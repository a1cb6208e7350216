"""Settings of small models, as pieces that those of several architectures are made of."""

from __future__ import annotations

from typing import Any

ABSENT = object()  # a setting that is null
SIZES: dict[str, Any] = {
    "vocab_size": 97,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 12,  # not the hidden size over the heads
    "max_position_embeddings": 96,
    "initializer_range": 0.15,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "attn_implementation": "eager",
}
EXPERTS = {"num_experts_per_tok": 2, "num_local_experts": 5}
QWEN_EXPERTS = {"num_experts_per_tok": 3, "num_experts": 6, "moe_intermediate_size": 28}
QWEN2_MOE = QWEN_EXPERTS | {"head_dim": None, "shared_expert_intermediate_size": 40}
THIRD = {"rope_type": "default", "partial_rotary_factor": 1 / 3}
LONGROPE = {
    "rope_type": "longrope",
    "rope_theta": 100.0,
    "partial_rotary_factor": 0.75,
    "short_factor": [1.0, 1.1, 1.2],
    "long_factor": [1.0, 2.5, 4.0],
    "original_max_position_embeddings": 8,
}
PHIMOE = {
    "head_dim": None,
    "num_local_experts": 5,
    "attention_bias": True,
    "lm_head_bias": True,
    "router_jitter_noise": 0.2,
    "pad_token_id": 0,
}
GLM4_MOE = {
    "num_experts_per_tok": 3,
    "n_routed_experts": 8,
    "moe_intermediate_size": 28,
    "first_k_dense_replace": 1,
    "pad_token_id": 0,
}
ERNIE_MOE = {"moe_num_experts": 6, "moe_k": 3, "moe_intermediate_size": 28, "pad_token_id": 0}
SOLAR = {"num_experts_per_tok": 3, "n_routed_experts": 8, "moe_intermediate_size": 28, "pad_token_id": 0}
LATENTS = {
    "num_key_value_heads": 6,
    "head_dim": None,
    "kv_lora_rank": 24,
    "q_lora_rank": 32,
    "qk_nope_head_dim": 12,
    "qk_rope_head_dim": 8,
    "v_head_dim": 10,
    "pad_token_id": 0,
}
DEEPSEEK = LATENTS | {
    "num_experts_per_tok": 3,
    "n_routed_experts": 8,
    "moe_intermediate_size": 28,
    "first_k_dense_replace": 1,
}
DEEPSEEK_V3 = DEEPSEEK | {"n_group": 4, "topk_group": 2}
# Heads enough that no token's queries are all below 0: of equal scores, transformers takes any.
INDEXED = {"index_topk": 6, "index_head_dim": 16, "index_n_heads": 16, "pad_token_id": ABSENT}
COMPRESSED = {
    **{"num_hidden_layers": 5, "num_key_value_heads": 1, "head_dim": 32, "q_lora_rank": 20, "intermediate_size": None},
    **{"n_routed_experts": 6, "num_experts_per_tok": 3, "moe_intermediate_size": 28, "sliding_window": 7},
    **{"o_groups": 2, "o_lora_rank": 12, "index_topk": 3, "index_head_dim": 16, "index_n_heads": 18},
    "layer_types": [
        "sliding_attention",
        "compressed_sparse_attention",
        "heavily_compressed_attention",
        "compressed_sparse_attention",
        "heavily_compressed_attention",
    ],
    "mlp_layer_types": ["hash_moe", "hash_moe", "moe", "moe", "moe"],
    "compress_rates": {"compressed_sparse_attention": 4, "heavily_compressed_attention": 16},
    **{"partial_rotary_factor": 0.25, "swiglu_limit": 0.8, "rope_theta": 300.0, "compress_rope_theta": 100.0},
    "rope_parameters": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 24},
}
SIX_FACTORS = {"short_factor": [1.0, 1.1, 1.2] * 2, "long_factor": [1.0, 2.5, 4.0] * 2}
FOUR_FACTORS = {"short_factor": [1.0, 1.1, 1.2, 1.3], "long_factor": [1.0, 2.5, 4.0, 5.0]}
YARN_OF_LATENTS = {
    "rope_type": "yarn",
    "rope_theta": 100.0,
    "factor": 4.0,
    "original_max_position_embeddings": 24,
    "mscale": 1.0,
    "mscale_all_dim": 0.7,
}
MINIMAX = {"num_experts_per_tok": 3, "num_local_experts": 6, "intermediate_size": 28, "pad_token_id": 0}
WINDOW = 21
ORIGINAL = {"original_max_position_embeddings": 24}
# Nothing between what is stretched and what is kept, as published.
ONE_STEP = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 1.0, **ORIGINAL}
GEMMA2 = {
    "sliding_window": WINDOW,
    "query_pre_attn_scalar": 20,
    "attn_logit_softcapping": 3.0,
    "final_logit_softcapping": 5.0,
    "pad_token_id": 0,
}
GEMMA3 = {"num_hidden_layers": 7, "sliding_window": WINDOW, "query_pre_attn_scalar": 20, "pad_token_id": 0}
GEMMA4 = {
    "num_hidden_layers": 7,
    "layer_types": ["sliding_attention", "sliding_attention", "full_attention"] * 2 + ["full_attention"],
    "sliding_window": WINDOW,
    "head_dim": 8,
    "global_head_dim": 16,
    "hidden_size_per_layer_input": 10,
    "vocab_size_per_layer_input": 97,
    "num_kv_shared_layers": 3,
    "final_logit_softcapping": 30.0,
    "pad_token_id": 0,
    "rope_parameters": {
        "sliding_attention": {"rope_type": "default", "rope_theta": 300.0},
        "full_attention": {"rope_type": "proportional", "rope_theta": 500.0, "partial_rotary_factor": 0.25},
    },
}
GEMMA3N = {
    "num_hidden_layers": 7,
    "layer_types": ["sliding_attention", "sliding_attention", "full_attention"] * 2 + ["sliding_attention"],
    "sliding_window": WINDOW,
    "head_dim": 8,
    "hidden_size_per_layer_input": 10,
    "vocab_size_per_layer_input": 97,
    "num_kv_shared_layers": 3,
    "activation_sparsity_pattern": [0.95, 0.6, 0.0, 0.3, 0.0, 0.0, 0.0],
    "laurel_rank": 6,
    "pad_token_id": 0,
    "rope_parameters": {
        "sliding_attention": {"rope_type": "default", "rope_theta": 300.0},
        "full_attention": {"rope_type": "default", "rope_theta": 700.0},
    },
}
GEMMA4_EXPERTS = GEMMA4 | {
    "num_hidden_layers": 3,
    "layer_types": ["sliding_attention", "sliding_attention", "full_attention"],
    "hidden_size_per_layer_input": 0,
    "num_kv_shared_layers": 0,
    "attention_k_eq_v": True,
    "num_global_key_value_heads": 1,
    "enable_moe_block": True,
    "num_experts": 6,
    "top_k_experts": 3,
    "moe_intermediate_size": 28,
    "final_logit_softcapping": 5.0,
}
LLAMA4 = {
    "num_hidden_layers": 5,
    "no_rope_layer_interval": 3,
    "attention_chunk_size": WINDOW,
    "interleave_moe_layer_step": 2,
    "num_experts_per_tok": 1,
    "num_local_experts": 5,
    "intermediate_size": 28,
    "intermediate_size_mlp": 80,
    "floor_scale": 8,
    "attn_scale": 0.5,
    "pad_token_id": 0,
}
COHERE2 = {
    "head_dim": None,
    "num_hidden_layers": 5,
    "sliding_window": WINDOW,
    "logit_scale": 0.5,
    "pad_token_id": 0,
    "rope_parameters": {"rope_theta": 300.0},
}
GRANITE = {
    "head_dim": None,
    "embedding_multiplier": 12.0,
    "residual_multiplier": 0.22,
    "attention_multiplier": 0.25,
    "logits_scaling": 0.5,
}
EXAONE_MOE = {
    "num_hidden_layers": 5,
    "sliding_window": WINDOW,
    "num_experts": 8,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 28,
}
TRINITY = QWEN_EXPERTS | {
    **{"num_hidden_layers": 5, "head_dim": 8, "sliding_window": WINDOW, "num_dense_layers": 1, "route_scale": 2.5},
    "mup_enabled": True,
}
COHERE2_MOE = COHERE2 | {"head_dim": 8, "num_experts": 6, "num_experts_per_tok": 3, "intermediate_size": 28}
HUNYUAN_3 = QWEN_EXPERTS | {"head_dim": 8}
MELLUM = QWEN_EXPERTS | {
    "sliding_window": WINDOW,
    "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
    "rope_parameters": {
        "sliding_attention": {"rope_type": "default", "rope_theta": 300.0},
        "full_attention": {"rope_type": "yarn", "rope_theta": 100.0, "factor": 4.0, **ORIGINAL},
    },
}
CWM = {"num_hidden_layers": 5, "sliding_window": WINDOW, "rope_parameters": {"rope_theta": 100.0, **ONE_STEP}}
STABLELM = {"head_dim": None, "hidden_size": 96, "rope_parameters": {"rope_theta": 100.0, "rope_type": "default"}}
MIXED = ["full_attention", "sliding_attention", "sliding_attention", "full_attention", "sliding_attention"]
GRANITE_SWA = GRANITE | {"num_hidden_layers": 5, "sliding_window": WINDOW, "tie_word_embeddings": False}
WHOLE, HALF = ({"rope_theta": 100.0, "rope_type": "default", "partial_rotary_factor": part} for part in (1.0, 0.5))
# As published they say gelu_new, which is the same in other operations.
PHI = {"head_dim": None, "hidden_act": "gelu_pytorch_tanh", "rope_parameters": HALF}
HYPERCLOVAX = {"attention_multiplier": 0.2, "rope_parameters": {"rope_theta": 100.0, "rope_type": "default"}}
SMOLLM3 = {"num_hidden_layers": 8, "tie_word_embeddings": True, "head_dim": None, "pad_token_id": 0}
MINISTRAL3 = {
    "rope_type": "yarn",
    "rope_theta": 100.0,
    "factor": 4.0,
    "original_max_position_embeddings": 24,
    "mscale": 1.0,
    "mscale_all_dim": 1.0,
    "llama_4_scaling_beta": 0.5,
}
MISTRAL4 = DEEPSEEK | {"rope_parameters": YARN_OF_LATENTS | {"llama_4_scaling_beta": 0.5}}
KIMI = {key: value for key, value in DEEPSEEK.items() if key not in ("q_lora_rank", "n_routed_experts")} | {
    **{"num_hidden_layers": 4, "first_k_dense_replace": None, "num_experts": 8, "eos_token_id": 2},
    **{"linear_head_dim": 16, "linear_num_heads": 3},
    "layer_types": ["linear_attention", "full_attention", "linear_attention", "linear_attention"],
}
LING = {key: value for key, value in KIMI.items() if not key.startswith("linear_")} | {
    **{"head_dim": 16, "short_conv_kernel_size": 4, "first_k_dense_replace": 1, "num_mtp_layers": 0, "n_group": 1},
    **{"topk_group": 1, "num_attention_heads": 4, "num_key_value_heads": 4, "v_head_dim": 16},
}
SIX_TENTHS = {"partial_rotary_factor": 0.6}
MIMO = {
    **{"num_hidden_layers": 4, "num_attention_heads": 8, "v_head_dim": 8, "sliding_window": WINDOW, "pad_token_id": 0},
    **{"n_routed_experts": 8, "num_experts_per_tok": 3, "moe_intermediate_size": 28},
    "layer_types": ["full_attention", "sliding_attention", "sliding_attention", "full_attention"],
}
GPT_NEOX = {
    **{"hidden_size": 96, "head_dim": None, "num_key_value_heads": None},
    "rope_parameters": {"rope_theta": 100.0, "partial_rotary_factor": 0.5},
}
GPT_J = {
    **{"head_dim": None, "num_key_value_heads": None, "hidden_size": None, "intermediate_size": None},
    **{"num_hidden_layers": None, "num_attention_heads": None, "max_position_embeddings": None},
    "activation_function": "gelu_pytorch_tanh",
    **{"n_embd": 48, "n_head": 6, "n_layer": 3, "n_positions": 96, "rotary_dim": 4},
}
_UNNAMED = {"head_dim": None, "num_key_value_heads": None, "hidden_size": None, "intermediate_size": None}
_UNNAMED |= {"num_hidden_layers": None, "num_attention_heads": None, "rope_parameters": None}
GPT_2 = _UNNAMED | {"max_position_embeddings": None, "n_embd": 48, "n_head": 6, "n_layer": 3, "n_positions": 96}
GPT_NEO = _UNNAMED | {"hidden_size": 48, "num_heads": 6, "num_layers": 3, "window_size": WINDOW}
GPT_NEO |= {"attention_types": [[["global", "local"], 1], [["global"], 1]]}
OPT = {"head_dim": None, "num_key_value_heads": None, "intermediate_size": None, "rope_parameters": None, "ffn_dim": 80}
FALCON_7B = {"head_dim": None, "num_key_value_heads": None, "intermediate_size": None}
RAISED = {"rope_type": "dynamic", "alpha": 50.0, "rope_theta": 100.0, "factor": 1.0}
HUNYUAN_MOE = {"num_experts": 5, "moe_topk": 2, "intermediate_size": 28, "head_dim": 8, "pad_token_id": 0}
GPT_OSS = {
    "head_dim": 8,
    "num_hidden_layers": 4,
    "sliding_window": WINDOW,
    "num_local_experts": 6,
    "num_experts_per_tok": 3,
    "swiglu_limit": 1.5,  # that it clamps something
    "rope_parameters": {
        **{"rope_type": "yarn", "rope_theta": 100.0, "factor": 4.0, "truncate": False},
        "original_max_position_embeddings": 24,
    },
}
HYBRID = {
    "num_hidden_layers": 4,
    "head_dim": 16,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 6,
    "linear_key_head_dim": 32,
    "linear_value_head_dim": 24,
}
SHARED_EXPERT = QWEN_EXPERTS | {"shared_expert_intermediate_size": 20}
LFM2 = {
    "num_hidden_layers": 4,
    "head_dim": None,
    "layer_types": ["conv", "full_attention", "conv", "conv"],
    "block_multiple_of": 16,
    "pad_token_id": 0,
}
DEFAULT = {"rope_type": "default"}
LFM3_ROPE = {
    "sliding_attention": {**DEFAULT, "rope_theta": 300.0},
    "full_attention": {"rope_type": "proportional", "rope_theta": 500.0, "partial_rotary_factor": 0.5},
}
LFM3 = {
    "num_hidden_layers": 5,
    "head_dim": 16,
    "num_attention_heads": 8,
    "sliding_window": WINDOW,
    "pad_token_id": 0,
    "rope_parameters": LFM3_ROPE,
}
LFM2_MOE = LFM2 | QWEN_EXPERTS | {"num_dense_layers": 1, "block_multiple_of": None}
MAMBA = {
    "num_hidden_layers": 4,
    "mamba_n_heads": 6,
    "mamba_d_state": 8,
    "mamba_n_groups": 2,
    "mamba_chunk_size": 16,
    "head_dim": None,
    "pad_token_id": 0,
}
GRANITE_HYBRID = (
    GRANITE
    | EXPERTS
    | MAMBA
    | {"shared_intermediate_size": 40, "layer_types": ["mamba", "attention", "mamba", "mamba"]}
)
NEMOTRON = {
    "num_hidden_layers": None,
    "hybrid_override_pattern": "M-*M-",
    "mamba_num_heads": 6,
    "mamba_head_dim": 8,
    "ssm_state_size": 8,
    "n_groups": 2,
    "chunk_size": 16,
    "pad_token_id": 0,
    "num_logits_to_keep": None,
}
NEMOTRON_3 = NEMOTRON | {
    "hybrid_override_pattern": "ME*ME",
    "n_routed_experts": 6,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 28,
    "moe_shared_expert_intermediate_size": 40,
    "routed_scaling_factor": 2.5,
}
UNROTATED = {"rope_type": "default", "rope_theta": None}
OLMO_HYBRID = {
    **{"head_dim": None, "num_key_value_heads": 6, "linear_key_head_dim": 8, "linear_value_head_dim": 16},
    **{"layer_types": ["linear_attention", "full_attention", "linear_attention"], "rope_parameters": UNROTATED},
    **{"pad_token_id": 0, "linear_num_key_heads": 3, "linear_num_value_heads": 3},
}
BAMBA = MAMBA | {"attn_layer_indices": [1], "num_logits_to_keep": None}
FALCON = MAMBA | {
    "num_hidden_layers": 2,
    "mamba_d_ssm": 48,
    "embedding_multiplier": 5.6,
    "lm_head_multiplier": 0.4,
    "attention_in_multiplier": 0.9,
    "attention_out_multiplier": 0.7,
    "key_multiplier": 0.8,
    "mlp_multipliers": [0.9, 0.6],
    "ssm_multipliers": [0.8, 0.9, 1.3, 1.2, 0.7],
    "ssm_in_multiplier": 1.25,
    "ssm_out_multiplier": 0.6,
    "num_logits_to_keep": None,
}
# theta 100: wavelengths of 6 to 290 positions with 12 coordinates, on both sides of every boundary below.
SCALINGS: dict[str, dict[str, Any]] = {
    "linear": {"rope_type": "linear", "factor": 4.0},
    "llama3": {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 48,
    },
    "yarn": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 24},
    "yarn, all said": {
        "rope_type": "yarn",
        "factor": 3.0,
        "original_max_position_embeddings": 32,
        "beta_fast": 8.0,
        "beta_slow": 2.0,
        "attention_factor": 1.3,
        "truncate": False,
    },
    "yarn with two scales": {
        "rope_type": "yarn",
        "factor": 4.0,
        "original_max_position_embeddings": 24,
        "mscale": 1.0,
        "mscale_all_dim": 0.7,
    },
}
_PARTS = {
    "full_attention": {**SCALINGS["yarn"], "rope_theta": 100.0, "partial_rotary_factor": 0.5},
    "sliding_attention": {**DEFAULT, "rope_theta": 300.0, "partial_rotary_factor": 1.0},
}
_BY_KIND = QWEN_EXPERTS | {
    **{"num_hidden_layers": 4, "num_attention_heads": 4, "head_dim": 16, "sliding_window": WINDOW, "pad_token_id": 0},
    "layer_types": ["full_attention", "sliding_attention", "sliding_attention", "sliding_attention"],
    "rope_parameters": _PARTS,
}
# Parts that give less than what they are added to, as published.
MINIMAX_01 = EXPERTS | {
    **{"num_hidden_layers": 4, "head_dim": 8, "full_attn_alpha_factor": 2.5, "linear_attn_alpha_factor": 2.5},
    **{"mlp_alpha_factor": 2.5, "block_size": 8},
    "layer_types": ["linear_attention", "full_attention", "linear_attention", "linear_attention"],
}
LAGUNA = _BY_KIND | {
    **{"num_attention_heads_per_layer": [4, 6, 6, 6], "shared_expert_intermediate_size": 24},
}
# Limits that are felt. Half of a head rotates where there is no window.
STEP = {key: value for key, value in _BY_KIND.items() if key != "num_experts"} | {
    **{"n_routed_experts": 6, "num_local_experts": None, "share_expert_dim": 24, "num_sliding_attention_heads": 6},
    **{"mlp_layer_types": ["dense", "sparse", "sparse", "sparse"], "initializer_range": 0.12},
    **{"swiglu_limits": [0.0, 0.0, None, 0.3], "swiglu_limits_shared": [0.4, 0, 0.3, None]},
    "rope_parameters": _PARTS | {"full_attention": WHOLE | {"partial_rotary_factor": 0.5}},
}
