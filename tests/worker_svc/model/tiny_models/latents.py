"""Models that store latents or compressed keys."""

from __future__ import annotations

from tests.worker_svc.model.tiny_models.shared import (
    ABSENT,
    DEEPSEEK,
    LATENTS,
    LONGROPE,
    WINDOW,
    YARN_OF_LATENTS,
    Models,
)

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
FOUR_FACTORS = {"short_factor": [1.0, 1.1, 1.2, 1.3], "long_factor": [1.0, 2.5, 4.0, 5.0]}
MISTRAL4 = DEEPSEEK | {"rope_parameters": YARN_OF_LATENTS | {"llama_4_scaling_beta": 0.5}}

LATENT_MODELS: Models = {
    "deepseek v2": ("DeepseekV2", DEEPSEEK | {"first_k_dense_replace": 0}),
    "deepseek v2, groups, no latent of queries": (
        "DeepseekV2",
        DEEPSEEK
        | {"q_lora_rank": ABSENT, "topk_method": "group_limited_greedy", "n_group": 4, "topk_group": 2}
        | {"routed_scaling_factor": 1.7, "n_shared_experts": 1, "attention_bias": True},
    ),
    "deepseek v2, biases of feed-forward parts": ("DeepseekV2", DEEPSEEK | {"mlp_bias": True}),
    "deepseek v3": ("DeepseekV3", DEEPSEEK_V3 | {"rope_parameters": YARN_OF_LATENTS, "attention_bias": True}),
    "deepseek v3, halves, not normalized": (
        "DeepseekV3",
        DEEPSEEK_V3 | {"rope_interleave": False, "q_lora_rank": ABSENT, "norm_topk_prob": False, "n_shared_experts": 2},
    ),
    "deepseek v3, sizes that are not compiled": ("DeepseekV3", DEEPSEEK_V3 | {"kv_lora_rank": 22, "v_head_dim": 9}),
    "deepseek v3.2": ("DeepseekV32", DEEPSEEK_V3 | INDEXED | {"rope_parameters": YARN_OF_LATENTS}),
    "deepseek v3.2, sizes that are not compiled, kinds that are listed": (
        "DeepseekV32",
        DEEPSEEK_V3
        | INDEXED
        | {"kv_lora_rank": 22, "v_head_dim": 9, "index_head_dim": 10, "index_n_heads": 18, "attention_bias": True}
        | {"mlp_layer_types": ["sparse", "dense", "sparse"]},
    ),
    "deepseek v4": ("DeepseekV4", COMPRESSED),
    "deepseek v4, two streams, long entries, no scaling, sizes that are not compiled": (
        "DeepseekV4",
        COMPRESSED
        | {"hc_mult": 2, "hc_sinkhorn_iters": 3, "hc_eps": 1e-3, "head_dim": 20, "partial_rotary_factor": 0.5}
        | {"compress_rates": {"compressed_sparse_attention": 6, "heavily_compressed_attention": 20}}
        | {"o_groups": 3, "o_lora_rank": 7, "q_lora_rank": 18, "index_head_dim": 14, "rope_parameters": None}
        | {"sliding_window": WINDOW, "layer_types": ["compressed_sparse_attention"] * 4 + ["sliding_attention"]}
        | {"mlp_layer_types": ["moe", "hash_moe"] * 2 + ["moe"], "index_topk": 4, "moe_intermediate_size": 26},
    ),
    "glm moe dsa": ("GlmMoeDsa", DEEPSEEK | INDEXED | {"index_topk": 16}),
    "glm moe dsa, what is chosen is shared": (
        "GlmMoeDsa",
        DEEPSEEK | INDEXED | {"num_hidden_layers": 5, "indexer_types": ["full", "shared", "full", "shared", "shared"]},
    ),
    "glm4 moe lite": ("Glm4MoeLite", DEEPSEEK | {"first_k_dense_replace": None}),
    "glm4 moe lite, kinds that are listed": (
        "Glm4MoeLite",
        DEEPSEEK
        | {"first_k_dense_replace": None, "mlp_layer_types": ["sparse", "dense", "sparse"], "rope_interleave": False},
    ),
    "mistral4": ("Mistral4", MISTRAL4),
    "mistral4, groups, halves, no latent of queries, biases, not normalized, sizes that are not compiled": (
        "Mistral4",
        MISTRAL4
        | {"n_group": 4, "topk_group": 2, "rope_interleave": False, "q_lora_rank": ABSENT, "attention_bias": True}
        | {"norm_topk_prob": False, "n_shared_experts": 2, "routed_scaling_factor": 1.7, "first_k_dense_replace": 0}
        | {"kv_lora_rank": 22, "v_head_dim": 9},
    ),
    "mistral4, groups, a latent of queries, two shared": (
        "Mistral4",
        MISTRAL4 | {"n_group": 4, "topk_group": 2, "n_shared_experts": 2, "routed_scaling_factor": 1.7},
    ),
    "youtu": ("Youtu", LATENTS),
    "minicpm3": (
        "MiniCPM3",
        LATENTS
        | {"scale_emb": 3, "dim_model_base": 32, "original_max_position_embeddings": 8}
        | {"rope_parameters": LONGROPE | {"partial_rotary_factor": 1.0, **FOUR_FACTORS}},
    ),
    "minicpm3 without multipliers": (
        "MiniCPM3",
        LATENTS
        | {"q_lora_rank": ABSENT, "scale_depth": ABSENT, "dim_model_base": ABSENT, "v_head_dim": ABSENT}
        | {"mlp_bias": True},
    ),
    "sarvam mla": ("SarvamMLA", DEEPSEEK | {"q_lora_rank": ABSENT}),
    "sarvam mla, a latent of queries, groups, yarn": (
        "SarvamMLA",
        DEEPSEEK_V3 | {"attention_bias": True, "rope_parameters": YARN_OF_LATENTS, "first_k_dense_replace": 2},
    ),
}
