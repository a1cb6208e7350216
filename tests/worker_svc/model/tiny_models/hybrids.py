"""Models some of whose layers have states."""

from __future__ import annotations

from tests.worker_svc.model.tiny_models.shared import (
    ABSENT,
    DEEPSEEK,
    DEFAULT,
    EXPERTS,
    GRANITE,
    QWEN_EXPERTS,
    WINDOW,
    YARN_OF_LATENTS,
    Models,
)

KIMI = {key: value for key, value in DEEPSEEK.items() if key not in ("q_lora_rank", "n_routed_experts")} | {
    **{"num_hidden_layers": 4, "first_k_dense_replace": None, "num_experts": 8, "eos_token_id": 2},
    **{"linear_head_dim": 16, "linear_num_heads": 3},
    "layer_types": ["linear_attention", "full_attention", "linear_attention", "linear_attention"],
}
LING = {key: value for key, value in KIMI.items() if not key.startswith("linear_")} | {
    **{"head_dim": 16, "short_conv_kernel_size": 4, "first_k_dense_replace": 1, "num_mtp_layers": 0, "n_group": 1},
    **{"topk_group": 1, "num_attention_heads": 4, "num_key_value_heads": 4, "v_head_dim": 16},
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
# Parts that give less than what they are added to, as published.
MINIMAX_01 = EXPERTS | {
    **{"num_hidden_layers": 4, "head_dim": 8, "full_attn_alpha_factor": 2.5, "linear_attn_alpha_factor": 2.5},
    **{"mlp_alpha_factor": 2.5, "block_size": 8},
    "layer_types": ["linear_attention", "full_attention", "linear_attention", "linear_attention"],
}

HYBRID_MODELS: Models = {
    "minimax 01": ("MiniMax", MINIMAX_01),
    "minimax 01, factors of its own, windows, a table for both, sizes that are not compiled": (
        "MiniMax",
        MINIMAX_01
        | {"head_dim": 10, "sliding_window": WINDOW, "tie_word_embeddings": True, "layer_types": None}
        | {"full_attn_alpha_factor": 1.5, "linear_attn_alpha_factor": 1.2, "mlp_alpha_factor": 0.8}
        | {"full_attn_beta_factor": 0.7, "linear_attn_beta_factor": 1.3, "mlp_beta_factor": 0.9},
    ),
    "minimax 01 without states": ("MiniMax", MINIMAX_01 | {"layer_types": ["full_attention"] * 4}),
    "qwen3 next": ("Qwen3Next", HYBRID | SHARED_EXPERT),
    "qwen3 next, layers that are listed": (
        "Qwen3Next",
        HYBRID
        | SHARED_EXPERT
        | {
            "layer_types": ["full_attention", "linear_attention", "full_attention", "linear_attention"],
            "mlp_only_layers": [1],
            "norm_topk_prob": False,
            "linear_conv_kernel_dim": 3,
        },
    ),
    "qwen3.5": ("Qwen3_5Text", HYBRID | {"rope_parameters": {"rope_theta": 300.0, "partial_rotary_factor": 0.5}}),
    "qwen3.5, sizes that are not compiled": (
        "Qwen3_5Text",
        HYBRID | {"linear_key_head_dim": 6, "linear_value_head_dim": 10, "linear_num_value_heads": 2},
    ),
    "qwen3.5 moe": ("Qwen3_5MoeText", HYBRID | SHARED_EXPERT),
    "qwen3.5 moe without states": ("Qwen3_5MoeText", HYBRID | SHARED_EXPERT | {"layer_types": ["full_attention"] * 4}),
    "lfm2": ("Lfm2", LFM2),
    "lfm2, biases, another window, sizes that are not compiled": (
        "Lfm2",
        LFM2
        | {"conv_bias": True, "conv_L_cache": 5, "block_auto_adjust_ff_dim": False, "hidden_size": 60}
        | {"num_attention_heads": 5, "num_key_value_heads": 1}
        | {"tie_word_embeddings": False, "rope_parameters": {"rope_theta": 300.0}},
    ),
    "lfm2 moe": ("Lfm2Moe", LFM2_MOE),
    # Of one expert a token the weight is 1, but where its score is nothing beside 1e-6.
    "lfm2 moe, experts that hardly score": (
        "Lfm2Moe",
        LFM2_MOE | {"hidden_size": 432, "num_experts_per_tok": 1, "num_experts": 2, "norm_eps": 1e-5},
    ),
    "lfm2 moe, not normalized, no biases": (
        "Lfm2Moe",
        LFM2_MOE | {"use_expert_bias": False, "norm_topk_prob": False, "routed_scaling_factor": 1.7},
    ),
    "lfm3": ("Lfm3", LFM3),
    "lfm3, no gates, norms before alone, biases, rotated whole, output apart": (
        "Lfm3",
        LFM3
        | {"use_attention_gate": False, "use_sandwich_norm": False, "conv_bias": True, "conv_L_cache": 3}
        | {"tie_word_embeddings": False, "layer_types": ["sliding_attention", "conv", "full_attention"]}
        | {"num_hidden_layers": 3, "rope_parameters": LFM3_ROPE | {"full_attention": {**DEFAULT, "rope_theta": 500.0}}},
    ),
    "lfm3, sizes that are not compiled, windows alone": (
        "Lfm3",
        LFM3
        | {"head_dim": 12, "hidden_size": 60, "num_attention_heads": 5, "num_key_value_heads": 1}
        | {"num_hidden_layers": 3, "layer_types": ["conv", "sliding_attention", "conv"]},
    ),
    "kimi linear": ("KimiLinear", KIMI),
    "kimi linear, a latent of queries, groups, layers that are listed, another window, sizes that are not compiled": (
        "KimiLinear",
        KIMI
        | {"q_lora_rank": 32, "n_group": 4, "topk_group": 2, "linear_head_dim": 6, "linear_conv_kernel_dim": 3}
        | {"mlp_layer_types": ["sparse", "dense", "sparse", "dense"], "attention_bias": True, "norm_topk_prob": False}
        | {"n_shared_experts": 2, "kv_lora_rank": 22, "v_head_dim": 9},
    ),
    "kimi linear, groups, two shared": (
        "KimiLinear",
        KIMI | {"n_group": 4, "topk_group": 2, "n_shared_experts": 2, "routed_scaling_factor": 1.3},
    ),
    "ling 3": ("BailingHybrid", LING),
    "ling 3, a latent of queries, groups, layers that are listed, softplus, yarn, sizes that are not compiled": (
        "BailingHybrid",
        LING
        | {"q_lora_rank": 32, "n_group": 4, "topk_group": 2, "head_dim": 6, "short_conv_kernel_size": 3}
        | {"mlp_layer_types": ["sparse", "dense", "sparse", "dense"], "attention_bias": True, "norm_topk_prob": False}
        | {"n_shared_experts": 2, "kv_lora_rank": 22, "v_head_dim": 9, "kda_safe_gate": False}
        | {"rope_parameters": YARN_OF_LATENTS},
    ),
    "ling 3, groups, two shared, another bound, all of one group, a latent of queries": (
        "BailingHybrid",
        LING
        | {"n_group": 4, "topk_group": 2, "n_shared_experts": 2, "routed_scaling_factor": 1.3, "q_lora_rank": 32}
        | {"kda_lower_bound": -1.5, "layer_types": None, "layer_group_size": 2},
    ),
    "granite hybrid": ("GraniteMoeHybrid", GRANITE_HYBRID),
    "granite hybrid, dense": ("GraniteMoeHybrid", GRANITE_HYBRID | {"num_local_experts": 0, "num_experts_per_tok": 0}),
    "granite hybrid, dense, rotated, biases, limits": (
        "GraniteMoeHybrid",
        GRANITE_HYBRID
        | {"num_local_experts": 0, "position_embedding_type": "rope", "mamba_proj_bias": True, "mamba_conv_bias": False}
        | {"time_step_limit": (0.4, 0.9), "attention_bias": True},
    ),
    "granite hybrid without states": (
        "GraniteMoeHybrid",
        GRANITE_HYBRID | {"layer_types": ["attention"] * 4, "num_local_experts": 0},
    ),
    "nemotron h": ("NemotronH", NEMOTRON),
    "nemotron h, biases, another order, sizes that are not compiled": (
        "NemotronH",
        NEMOTRON
        | {"hybrid_override_pattern": "*M-M", "mamba_head_dim": 6, "use_bias": True, "mlp_bias": True}
        | {"use_conv_bias": False, "time_step_min": 0.3, "n_groups": 3, "conv_kernel": 3},
    ),
    "nemotron 3": ("NemotronH", NEMOTRON_3),
    "nemotron 3, latents, groups": (
        "NemotronH",
        NEMOTRON_3 | {"moe_latent_size": 24, "n_group": 3, "topk_group": 2, "norm_topk_prob": False},
    ),
    "nemotron 3, latents, biases, dense layers too, sizes that are not compiled": (
        "NemotronH",
        NEMOTRON_3
        | {"hybrid_override_pattern": "E*-ME", "moe_latent_size": 20, "moe_shared_expert_intermediate_size": 18}
        | {"mlp_bias": True, "use_bias": True},
    ),
    "olmo hybrid": ("OlmoHybrid", OLMO_HYBRID),
    "olmo hybrid, rotated, biases, betas as they are, fewer keys": (
        "OlmoHybrid",
        OLMO_HYBRID
        | {"layer_types": ["full_attention", "linear_attention", "linear_attention"], "attention_bias": True}
        | {"linear_allow_neg_eigval": False, "linear_num_key_heads": 2, "linear_num_value_heads": 4}
        | {"rope_parameters": {"rope_theta": 100.0, "rope_type": "default"}, "tie_word_embeddings": True},
    ),
    "bamba": ("Bamba", BAMBA),
    "bamba, biases, attention in two layers, limits": (
        "Bamba",
        BAMBA
        | {"attn_layer_indices": [0, 2], "attention_bias": True, "mlp_bias": True, "mamba_proj_bias": True}
        | {"mamba_conv_bias": False, "time_step_limit": (0.4, 0.9), "tie_word_embeddings": True},
    ),
    "falcon h1": ("FalconH1", FALCON),
    "falcon h1, norm before the gate": (
        "FalconH1",
        FALCON | {"mamba_rms_norm": True, "projectors_bias": True, "mlp_bias": True},
    ),
    "falcon h1, norm after the gate": (
        "FalconH1",
        FALCON | {"mamba_rms_norm": True, "mamba_norm_before_gate": False, "mamba_d_ssm": ABSENT},
    ),
    "falcon h1, tied": ("FalconH1", FALCON | {"tie_word_embeddings": True}),
}
