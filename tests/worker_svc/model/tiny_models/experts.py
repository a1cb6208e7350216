"""Models whose feed-forward parts are choices among experts."""

from __future__ import annotations

import math

from tests.worker_svc.model.tiny_models.shared import (
    ABSENT,
    COHERE2,
    DEFAULT,
    EXPERTS,
    GRANITE,
    GRANITE_SWA,
    HALF,
    MIXED,
    ONE_STEP,
    ORIGINAL,
    QWEN_EXPERTS,
    RAISED,
    SCALINGS,
    THIRD,
    WHOLE,
    WINDOW,
    Models,
)

QWEN2_MOE = QWEN_EXPERTS | {"head_dim": None, "shared_expert_intermediate_size": 40}
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
MINIMAX = {"num_experts_per_tok": 3, "num_local_experts": 6, "intermediate_size": 28, "pad_token_id": 0}
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
SIX_TENTHS = {"partial_rotary_factor": 0.6}
MIMO = {
    **{"num_hidden_layers": 4, "num_attention_heads": 8, "v_head_dim": 8, "sliding_window": WINDOW, "pad_token_id": 0},
    **{"n_routed_experts": 8, "num_experts_per_tok": 3, "moe_intermediate_size": 28},
    "layer_types": ["full_attention", "sliding_attention", "sliding_attention", "full_attention"],
}
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
_PARTS = {
    "full_attention": {**SCALINGS["yarn"], "rope_theta": 100.0, "partial_rotary_factor": 0.5},
    "sliding_attention": {**DEFAULT, "rope_theta": 300.0, "partial_rotary_factor": 1.0},
}
_BY_KIND = QWEN_EXPERTS | {
    **{"num_hidden_layers": 4, "num_attention_heads": 4, "head_dim": 16, "sliding_window": WINDOW, "pad_token_id": 0},
    "layer_types": ["full_attention", "sliding_attention", "sliding_attention", "sliding_attention"],
    "rope_parameters": _PARTS,
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
OLMOE = {"head_dim": None, "num_experts": 6, "num_experts_per_tok": 3, "pad_token_id": 0}

EXPERT_MODELS: Models = {
    "mixtral": ("Mixtral", EXPERTS),
    "mixtral with a window": ("Mixtral", EXPERTS | {"sliding_window": WINDOW}),
    "qwen3 moe": ("Qwen3Moe", QWEN_EXPERTS),
    "qwen3 moe, normalized, one layer dense": (
        "Qwen3Moe",
        QWEN_EXPERTS | {"norm_topk_prob": True, "mlp_only_layers": [1]},
    ),
    "qwen3 moe, every second layer": ("Qwen3Moe", QWEN_EXPERTS | {"decoder_sparse_step": 2}),
    "ernie4_5 moe": ("Ernie4_5_Moe", ERNIE_MOE),
    "ernie4_5 moe, nothing shared, two layers dense, output apart": (
        "Ernie4_5_Moe",
        ERNIE_MOE
        | {"moe_layer_start_index": 2, "moe_num_shared_experts": 0, "tie_word_embeddings": False}
        | {"rope_parameters": {"rope_theta": 100.0}},
    ),
    "ernie4_5 moe, every second layer but the last": (
        "Ernie4_5_Moe",
        ERNIE_MOE | {"num_hidden_layers": 6, "moe_layer_interval": 2, "moe_layer_end_index": 4},
    ),
    "qwen2 moe": ("Qwen2Moe", QWEN2_MOE),
    "qwen2 moe, normalized, one layer dense, no biases": (
        "Qwen2Moe",
        QWEN2_MOE | {"norm_topk_prob": True, "mlp_only_layers": [1], "qkv_bias": False},
    ),
    "qwen2 moe, windows in turns": (
        "Qwen2Moe",
        QWEN2_MOE
        | {"num_hidden_layers": 5, "use_sliding_window": True, "sliding_window": WINDOW, "max_window_layers": 3},
    ),
    "qwen2 moe, windows that are listed": (
        "Qwen2Moe",
        QWEN2_MOE
        | {"use_sliding_window": True, "sliding_window": WINDOW}
        | {"layer_types": ["full_attention", "sliding_attention", "sliding_attention"]},
    ),
    "olmoe": ("Olmoe", OLMOE),
    "olmoe with biases, normalized": ("Olmoe", OLMOE | {"norm_topk_prob": True, "attention_bias": True}),
    "olmoe, queries, keys and values that are limited": ("Olmoe", OLMOE | {"clip_qkv": 0.6}),
    "flex olmo": ("FlexOlmo", OLMOE),
    "flex olmo with biases, normalized": ("FlexOlmo", OLMOE | {"norm_topk_prob": True, "attention_bias": True}),
    "granite moe": ("GraniteMoe", GRANITE | EXPERTS),
    "granite moe with biases": ("GraniteMoe", GRANITE | EXPERTS | {"attention_bias": True}),
    "granite moe shared": ("GraniteMoeShared", GRANITE | EXPERTS | {"shared_intermediate_size": 40}),
    "granite moe shared, nothing shared, biases": (
        "GraniteMoeShared",
        GRANITE | EXPERTS | {"shared_intermediate_size": 0, "attention_bias": True},
    ),
    "phi moe": ("Phimoe", PHIMOE),
    "phi moe, the jitter of files": ("Phimoe", PHIMOE | {"router_jitter_noise": 0.01, "sliding_window": WINDOW}),
    "phi moe with a window, without biases": (
        "Phimoe",
        PHIMOE | {"sliding_window": WINDOW, "attention_bias": False, "lm_head_bias": False},
    ),
    "glm4 moe": ("Glm4Moe", GLM4_MOE),
    "solar open": ("SolarOpen", SOLAR),
    "solar open, biases, groups, scaled": (
        "SolarOpen",
        SOLAR
        | {"attention_bias": True, "n_group": 4, "topk_group": 2, "norm_topk_prob": False, "n_shared_experts": 2}
        | {"routed_scaling_factor": 1.7, "rope_parameters": {"rope_theta": 100.0}},
    ),
    "glm4 moe, groups, norms, scaled": (
        "Glm4Moe",
        GLM4_MOE
        | {
            "use_qk_norm": True,
            "attention_bias": True,
            "n_group": 4,
            "topk_group": 2,
            "routed_scaling_factor": 1.7,
            "norm_topk_prob": False,
            "first_k_dense_replace": 2,
            "n_shared_experts": 2,
        },
    ),
    # 44 times the next smaller number than this share is less than 30.
    "glm4 moe, 30 of 44 rotated": (
        "Glm4Moe",
        GLM4_MOE | {"head_dim": 44, "rope_parameters": {"partial_rotary_factor": math.nextafter(30 / 44, 1)}},
    ),
    "glm4 moe, rotated whole": ("Glm4Moe", GLM4_MOE | {"rope_parameters": {"partial_rotary_factor": 1.0}}),
    "dots1": ("Dots1", GLM4_MOE | {"n_shared_experts": 2, "routed_scaling_factor": 2.5, "norm_topk_prob": True}),
    "dots1, biases, groups, windows in upper layers": (
        "Dots1",
        GLM4_MOE
        | {"attention_bias": True, "n_group": 4, "topk_group": 2, "n_shared_experts": 1, "first_k_dense_replace": 2}
        | {"sliding_window": WINDOW, "max_window_layers": 1},
    ),
    "mimo v2 flash": ("MiMoV2Flash", MIMO),
    "mimo v2 flash, biases, groups, other parts, values as long as keys, no window": (
        "MiMoV2Flash",
        MIMO
        | {"attention_bias": True, "n_group": 4, "topk_group": 2, "norm_topk_prob": False, "v_head_dim": 12}
        | {"attention_value_scale": ABSENT, "routed_scaling_factor": 1.7, "layer_types": ["full_attention"] * 4}
        | {"mlp_layer_types": ["sparse", "dense", "sparse", "dense"]}
        | {"rope_parameters": dict.fromkeys(("full_attention", "sliding_attention"), HALF)},
    ),
    "mimo v2 flash, output and embedding one, layers of another order": (
        "MiMoV2Flash",
        MIMO
        | {"tie_word_embeddings": True, "attention_value_scale": ABSENT, "num_key_value_heads": 1, "v_head_dim": 4}
        | {"layer_types": ["sliding_attention", "full_attention", "sliding_attention", "sliding_attention"]},
    ),
    "mimo v2 flash, biases, windows alone, sizes that are not compiled": (
        "MiMoV2Flash",
        MIMO
        | {"attention_bias": True, "v_head_dim": 5, "layer_types": ["sliding_attention"] * 4, "head_dim": 10}
        | {"rope_parameters": {kind: {"rope_theta": 100.0, **DEFAULT, **SIX_TENTHS} for kind in MIXED[:2]}},
    ),
    "step 3.5": ("Step3p7Text", STEP),
    "step 3.5, biases, layers of another order, as many heads, llama 3's scaling, scaled": (
        "Step3p7Text",
        STEP
        | {"attention_bias": True, "mlp_bias": True, "num_sliding_attention_heads": None, "query_pre_attn_scalar": 20}
        | {"layer_types": MIXED[1:], "mlp_layer_types": ["sparse", "dense", "sparse", "dense"]}
        | {"moe_router_scaling_factor": 1.7, "tie_word_embeddings": True, "initializer_range": 0.1}
        | {
            "rope_parameters": {
                "full_attention": {"rope_theta": 100.0, **SCALINGS["llama3"], "partial_rotary_factor": 0.75},
                "sliding_attention": {"rope_theta": 300.0, **DEFAULT, "partial_rotary_factor": 0.25},
            }
        },
    ),
    "step 3.5 without windows, sizes that are not compiled": (
        "Step3p7Text",
        STEP
        | {"layer_types": None, "mlp_layer_types": None, "head_dim": 12, "share_expert_dim": 20, "swiglu_limits": None}
        | {"rope_parameters": {"full_attention": HALF | {"partial_rotary_factor": 0.5}}},
    ),
    "laguna": ("Laguna", LAGUNA),
    "laguna, gates of each number, heads of any number, biases": (
        "Laguna",
        LAGUNA
        | {"gating": "per-element", "attention_bias": True, "num_attention_heads_per_layer": [2, 8, 4, 6]}
        | {"layer_types": MIXED[1:], "mlp_layer_types": ["sparse", "dense", "sparse", "sparse"]}
        | {"moe_routed_scaling_factor": 1.7, "tie_word_embeddings": True},
    ),
    "laguna without windows, gates of each number": (
        "Laguna",
        LAGUNA
        | {"gating": "per-element", "layer_types": None, "num_attention_heads_per_layer": None, "head_dim": 12}
        | {"rope_parameters": {"full_attention": HALF}, "mlp_layer_types": ["dense", "dense", "sparse", "sparse"]},
    ),
    "minimax m2": ("MiniMaxM2", MINIMAX),
    "minimax m2, rotated in part": ("MiniMaxM2", MINIMAX | {"rope_parameters": {"rope_theta": 100.0, **THIRD}}),
    "gpt oss": ("GptOss", GPT_OSS),
    "gpt oss, another gate, no window first": (
        "GptOss",
        GPT_OSS
        | {"swiglu_alpha": 0.9, "attention_bias": False, "num_hidden_layers": 3}
        | {"layer_types": ["full_attention", "sliding_attention", "full_attention"]},
    ),
    "llama4": ("Llama4Text", LLAMA4),
    "llama4, layers that are listed, scaled": (
        "Llama4Text",
        LLAMA4
        | {"no_rope_layers": [1, 0, 1, 0, 1], "moe_layers": [1, 3], "attn_temperature_tuning": False}
        | {"use_qk_norm": False, "head_dim": 8}
        | {"rope_parameters": {"rope_theta": 100.0, **ONE_STEP}},
    ),
    "sarvam moe": ("SarvamMoE", GLM4_MOE | {"head_dim": 8}),
    "sarvam moe, biases, no norms, groups, a part rotated": (
        "SarvamMoE",
        GLM4_MOE
        | {"head_dim": 8, "attention_bias": True, "use_qk_norm": False, "n_group": 4, "topk_group": 2}
        | {"n_shared_experts": 2, "norm_topk_prob": False, "rope_parameters": HALF},
    ),
    "trinity": ("Afmoe", TRINITY),
    "trinity, layers that are listed, embeddings as they are": (
        "Afmoe",
        TRINITY
        | {"layer_types": MIXED, "num_dense_layers": 2, "num_shared_experts": 1, "mup_enabled": False}
        | {"rope_parameters": {"rope_theta": 100.0, **ONE_STEP}},
    ),
    "cohere2 moe": ("Cohere2Moe", COHERE2_MOE),
    "cohere2 moe, sigmoids, RMS norms, two shared that are averaged, dense layers of another size": (
        "Cohere2Moe",
        COHERE2_MOE
        | {"expert_selection_fn": "sigmoid", "rms_norm_eps": 1e-5, "num_shared_experts": 2, "attention_bias": True}
        | {"shared_expert_combination_strategy": "average", "prefix_dense_intermediate_size": 64}
        | {"first_k_dense_replace": 2, "tie_word_embeddings": False},
    ),
    "cohere2 moe, layers that are listed, one shared that is added, sigmoids as they are": (
        "Cohere2Moe",
        COHERE2_MOE
        | {"layer_types": MIXED, "mlp_layer_types": ["dense", "sparse", "dense", "sparse", "sparse"]}
        | {"num_shared_experts": 1, "shared_expert_combination_strategy": "sum", "expert_selection_fn": "sigmoid"}
        | {"norm_topk_prob": False, "prefix_dense_sliding_window_pattern": 2},
    ),
    "hunyuan 3": ("HYV3", HUNYUAN_3),
    "hunyuan 3, biases, layers that are listed, two shared": (
        "HYV3",
        HUNYUAN_3
        | {"attention_bias": True, "mlp_bias": True, "mlp_layer_types": ["sparse", "dense", "sparse"]}
        | {"num_shared_experts": 2, "router_scaling_factor": 0.7, "rope_parameters": {"rope_theta": 300.0}},
    ),
    "granite moe swa": ("GraniteMoeSWA", GRANITE_SWA | EXPERTS | {"shared_intermediate_size": 40}),
    "granite moe swa, nothing shared, scaled, a table for both": (
        "GraniteMoeSWA",
        GRANITE_SWA | EXPERTS | {"tie_word_embeddings": True, "rope_parameters": {"rope_theta": 100.0, **ONE_STEP}},
    ),
    "exaone moe": ("ExaoneMoe", EXAONE_MOE),
    "exaone moe, layers that are listed, groups, two shared": (
        "ExaoneMoe",
        EXAONE_MOE
        | {"mlp_layer_types": ["sparse", "dense", "sparse"], "num_hidden_layers": 3, "norm_topk_prob": False}
        | {"layer_types": ["full_attention", "sliding_attention", "full_attention"], "num_shared_experts": 2}
        | {"n_group": 4, "topk_group": 2, "first_k_dense_replace": 0},
    ),
    "mellum": ("Mellum", MELLUM),
    "mellum, no windows, one layer dense, biases": (
        "Mellum",
        MELLUM
        | {"layer_types": ["full_attention"] * 3, "mlp_layer_types": ["sparse", "dense", "sparse"]}
        | {"attention_bias": True, "norm_topk_prob": False},
    ),
    "hunyuan moe": ("HunYuanMoEV1", HUNYUAN_MOE),
    "hunyuan moe, every expert, biases": (
        "HunYuanMoEV1",
        HUNYUAN_MOE | {"moe_topk": 5, "attention_bias": True, "rope_parameters": RAISED},
    ),
}
