"""Settings of small models, as pieces that those of several kinds are made of."""

from __future__ import annotations

from typing import Any, TypeAlias

# By name: the class, and what its configuration says beyond SIZES.
Models: TypeAlias = dict[str, tuple[str, dict[str, Any]]]

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
THIRD = {"rope_type": "default", "partial_rotary_factor": 1 / 3}
LONGROPE = {
    "rope_type": "longrope",
    "rope_theta": 100.0,
    "partial_rotary_factor": 0.75,
    "short_factor": [1.0, 1.1, 1.2],
    "long_factor": [1.0, 2.5, 4.0],
    "original_max_position_embeddings": 8,
}
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
YARN_OF_LATENTS = {
    "rope_type": "yarn",
    "rope_theta": 100.0,
    "factor": 4.0,
    "original_max_position_embeddings": 24,
    "mscale": 1.0,
    "mscale_all_dim": 0.7,
}
WINDOW = 21
ORIGINAL = {"original_max_position_embeddings": 24}
# Nothing between what is stretched and what is kept, as published.
ONE_STEP = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 1.0, **ORIGINAL}
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
MIXED = ["full_attention", "sliding_attention", "sliding_attention", "full_attention", "sliding_attention"]
GRANITE_SWA = GRANITE | {"num_hidden_layers": 5, "sliding_window": WINDOW, "tie_word_embeddings": False}
WHOLE, HALF = ({"rope_theta": 100.0, "rope_type": "default", "partial_rotary_factor": part} for part in (1.0, 0.5))
RAISED = {"rope_type": "dynamic", "alpha": 50.0, "rope_theta": 100.0, "factor": 1.0}
DEFAULT = {"rope_type": "default"}
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
