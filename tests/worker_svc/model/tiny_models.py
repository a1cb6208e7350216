"""A small random model of every architecture, and of what its configuration may say, by transformers' classes."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import torch
import transformers

from tandem.worker.checkpoints import open_checkpoint
from tandem.worker.model.loading import load_transformer
from tandem.worker.model.transformer import Transformer
from tests.worker_svc.model.llama_folders import (
    PAGE_SIZE,
    logits_in_chunks,
    randomized,
    some_ids,
)
from tests.worker_svc.model.step_model import register
from tests.worker_svc.model.tiny_settings import (
    ABSENT,
    BAMBA,
    COHERE2,
    COHERE2_MOE,
    COMPRESSED,
    CWM,
    DEEPSEEK,
    DEEPSEEK_V3,
    DEFAULT,
    ERNIE_MOE,
    EXAONE_MOE,
    EXPERTS,
    FALCON,
    FALCON_7B,
    FOUR_FACTORS,
    GEMMA2,
    GEMMA3,
    GEMMA3N,
    GEMMA4,
    GEMMA4_EXPERTS,
    GLM4_MOE,
    GPT_2,
    GPT_J,
    GPT_NEO,
    GPT_NEOX,
    GPT_OSS,
    GRANITE,
    GRANITE_HYBRID,
    GRANITE_SWA,
    HALF,
    HUNYUAN_3,
    HUNYUAN_MOE,
    HYBRID,
    HYPERCLOVAX,
    INDEXED,
    KIMI,
    LAGUNA,
    LATENTS,
    LFM2,
    LFM2_MOE,
    LFM3,
    LFM3_ROPE,
    LING,
    LLAMA4,
    LONGROPE,
    MELLUM,
    MIMO,
    MINIMAX,
    MINIMAX_01,
    MINISTRAL3,
    MISTRAL4,
    MIXED,
    NEMOTRON,
    NEMOTRON_3,
    OLMO_HYBRID,
    ONE_STEP,
    OPT,
    ORIGINAL,
    PHI,
    PHIMOE,
    QWEN2_MOE,
    QWEN_EXPERTS,
    RAISED,
    SCALINGS,
    SHARED_EXPERT,
    SIX_FACTORS,
    SIX_TENTHS,
    SIZES,
    SMOLLM3,
    SOLAR,
    STABLELM,
    STEP,
    THIRD,
    TRINITY,
    WHOLE,
    WINDOW,
    YARN_OF_LATENTS,
)

# Which transformers has a class of, but has not among those that it finds for a config.
transformers.AutoModelForCausalLM.register(transformers.Mistral4Config, transformers.Mistral4ForCausalLM, exist_ok=True)
register()
# The class, and what its configuration says beyond SIZES.
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama with biases": ("Llama", {"attention_bias": True}),
    "llama, biases everywhere": ("Llama", {"attention_bias": True, "mlp_bias": True}),
    "llama, longrope, squares of what is above 0": (
        "Llama",
        {"hidden_act": "relu2", "rope_parameters": LONGROPE | {"partial_rotary_factor": 1.0, **SIX_FACTORS}},
    ),
    "mistral": ("Mistral", {"sliding_window": WINDOW}),
    "mistral, window of a page": ("Mistral", {"sliding_window": PAGE_SIZE}),
    "mistral, window of one": ("Mistral", {"sliding_window": 1}),
    "mistral without a window": ("Mistral", {"sliding_window": None}),
    "ministral": (
        "Ministral",
        {"sliding_window": WINDOW, "layer_types": ["full_attention", "sliding_attention", "full_attention"]},
    ),
    "qwen2": ("Qwen2", {"head_dim": None}),
    "qwen2, window in upper layers": (
        "Qwen2",
        {"head_dim": None, "use_sliding_window": True, "sliding_window": WINDOW, "max_window_layers": 1},
    ),
    "qwen2, window by layer": (
        "Qwen2",
        {
            "head_dim": None,
            "use_sliding_window": True,
            "sliding_window": WINDOW,
            "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
        },
    ),
    "qwen3": ("Qwen3", {}),
    "qwen3 with biases and a window": (
        "Qwen3",
        {"attention_bias": True, "use_sliding_window": True, "sliding_window": WINDOW, "max_window_layers": 2},
    ),
    "qwen3, what is above 0": ("Qwen3", {"hidden_act": "relu"}),
    "mixtral": ("Mixtral", EXPERTS),
    "mixtral with a window": ("Mixtral", EXPERTS | {"sliding_window": WINDOW}),
    "qwen3 moe": ("Qwen3Moe", QWEN_EXPERTS),
    "qwen3 moe, normalized, one layer dense": (
        "Qwen3Moe",
        QWEN_EXPERTS | {"norm_topk_prob": True, "mlp_only_layers": [1]},
    ),
    "qwen3 moe, every second layer": ("Qwen3Moe", QWEN_EXPERTS | {"decoder_sparse_step": 2}),
    "smollm3": ("SmolLM3", SMOLLM3),
    "smollm3, layers that are listed": ("SmolLM3", SMOLLM3 | {"no_rope_layers": [0, 1] * 4, "attention_bias": True}),
    "smollm3, windows where nothing is rotated": (
        "SmolLM3",
        SMOLLM3 | {"use_sliding_window": True, "sliding_window": WINDOW, "no_rope_layer_interval": 3},
    ),
    "smollm3, windows that are listed": (
        "SmolLM3",
        SMOLLM3
        | {"use_sliding_window": True, "sliding_window": WINDOW}
        | {"layer_types": ["sliding_attention", "sliding_attention", "full_attention", "full_attention"] * 2},
    ),
    "smollm3, biases of the feed-forward part": ("SmolLM3", SMOLLM3 | {"mlp_bias": True}),
    "ministral3": ("Ministral3", {"rope_parameters": MINISTRAL3}),
    "ministral3 with a window": ("Ministral3", {"rope_parameters": MINISTRAL3, "sliding_window": WINDOW}),
    "seed oss": ("SeedOss", {}),
    "seed oss, biases everywhere": ("SeedOss", {"attention_out_bias": True, "mlp_bias": True}),
    "helium": ("Helium", {"head_dim": 8, "pad_token_id": 0}),
    "helium with biases": ("Helium", {"head_dim": 8, "pad_token_id": 0, "attention_bias": True, "mlp_bias": True}),
    "internlm3": ("InternLM3", {"rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 500.0}}),
    "internlm3 with biases": ("InternLM3", {"attention_bias": True, "mlp_bias": True}),
    "arcee": ("Arcee", {"head_dim": 8}),
    "arcee, another activation": ("Arcee", {"head_dim": 8, "hidden_act": "silu"}),
    "arcee with biases": ("Arcee", {"head_dim": 8, "mlp_bias": True}),
    "ernie4_5": ("Ernie4_5", {}),
    "ernie4_5 with biases": ("Ernie4_5", {"use_bias": True, "head_dim": 8}),
    "ernie4_5, output apart": ("Ernie4_5", {"tie_word_embeddings": False, "rope_parameters": {"rope_theta": 100.0}}),
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
    "granite": ("Granite", GRANITE),
    "granite with biases": ("Granite", GRANITE | {"attention_bias": True, "mlp_bias": True}),
    "starcoder2": ("Starcoder2", {"head_dim": None, "sliding_window": WINDOW}),
    "starcoder2 without a window": ("Starcoder2", {"head_dim": None}),
    "starcoder2 without biases": ("Starcoder2", {"head_dim": None, "use_bias": False, "tie_word_embeddings": False}),
    "cohere": ("Cohere", {"head_dim": None, "logit_scale": 0.5, "pad_token_id": 0}),
    "cohere with biases": (
        "Cohere",
        {"head_dim": None, "attention_bias": True, "pad_token_id": 0, "tie_word_embeddings": False}
        | {"logit_scale": 0.5, "rope_parameters": {"rope_theta": 300.0}},
    ),
    "cohere2": ("Cohere2", COHERE2),
    "cohere2 with biases, one layer full": (
        "Cohere2",
        COHERE2 | {"attention_bias": True, "layer_types": ["sliding_attention"] * 4 + ["full_attention"]},
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
    "olmoe": ("Olmoe", {"head_dim": None, "num_experts": 6, "num_experts_per_tok": 3, "pad_token_id": 0}),
    "olmoe with biases, normalized": (
        "Olmoe",
        {
            "head_dim": None,
            "num_experts": 6,
            "num_experts_per_tok": 3,
            "norm_topk_prob": True,
            "attention_bias": True,
            "pad_token_id": 0,
        },
    ),
    "olmoe, queries, keys and values that are limited": (
        "Olmoe",
        {"head_dim": None, "num_experts": 6, "num_experts_per_tok": 3, "clip_qkv": 0.6, "pad_token_id": 0},
    ),
    "flex olmo": ("FlexOlmo", {"head_dim": None, "num_experts": 6, "num_experts_per_tok": 3, "pad_token_id": 0}),
    "flex olmo with biases, normalized": (
        "FlexOlmo",
        {
            "head_dim": None,
            "num_experts": 6,
            "num_experts_per_tok": 3,
            "norm_topk_prob": True,
            "attention_bias": True,
            "pad_token_id": 0,
        },
    ),
    "granite moe": ("GraniteMoe", GRANITE | EXPERTS),
    "granite moe with biases": ("GraniteMoe", GRANITE | EXPERTS | {"attention_bias": True}),
    "granite moe shared": ("GraniteMoeShared", GRANITE | EXPERTS | {"shared_intermediate_size": 40}),
    "granite moe shared, nothing shared, biases": (
        "GraniteMoeShared",
        GRANITE | EXPERTS | {"shared_intermediate_size": 0, "attention_bias": True},
    ),
    "phi3": ("Phi3", {"head_dim": None, "pad_token_id": 0}),
    "phi3 with a window": ("Phi3", {"head_dim": None, "pad_token_id": 0, "sliding_window": WINDOW}),
    "phi3, rotated in part, longrope": (
        "Phi3",
        {"head_dim": None, "pad_token_id": 0, "rope_parameters": LONGROPE, "original_max_position_embeddings": 8},
    ),
    "phi moe": ("Phimoe", PHIMOE),
    "phi moe, the jitter of files": ("Phimoe", PHIMOE | {"router_jitter_noise": 0.01, "sliding_window": WINDOW}),
    "phi moe with a window, without biases": (
        "Phimoe",
        PHIMOE | {"sliding_window": WINDOW, "attention_bias": False, "lm_head_bias": False},
    ),
    "glm4": ("Glm4", {"pad_token_id": 0}),
    "glm4 without biases, rotated in another part": (
        "Glm4",
        {"pad_token_id": 0, "attention_bias": False, "rope_parameters": {"rope_theta": 100.0, **THIRD}},
    ),
    "glm": ("Glm", {"pad_token_id": 0}),
    "glm without biases, rotated in another part": (
        "Glm",
        {"pad_token_id": 0, "attention_bias": False, "rope_parameters": {"rope_theta": 100.0, **THIRD}},
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
    "minimax 01": ("MiniMax", MINIMAX_01),
    "minimax 01, factors of its own, windows, a table for both, sizes that are not compiled": (
        "MiniMax",
        MINIMAX_01
        | {"head_dim": 10, "sliding_window": WINDOW, "tie_word_embeddings": True, "layer_types": None}
        | {"full_attn_alpha_factor": 1.5, "linear_attn_alpha_factor": 1.2, "mlp_alpha_factor": 0.8}
        | {"full_attn_beta_factor": 0.7, "linear_attn_beta_factor": 1.3, "mlp_beta_factor": 0.9},
    ),
    "minimax 01 without states": ("MiniMax", MINIMAX_01 | {"layer_types": ["full_attention"] * 4}),
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
    "minimax m2": ("MiniMaxM2", MINIMAX),
    "minimax m2, rotated in part": ("MiniMaxM2", MINIMAX | {"rope_parameters": {"rope_theta": 100.0, **THIRD}}),
    "gemma": ("Gemma", {"pad_token_id": 0}),
    "gemma with biases, output apart": (
        "Gemma",
        {"pad_token_id": 0, "attention_bias": True, "tie_word_embeddings": False, "head_dim": 8},
    ),
    "gemma2": ("Gemma2", GEMMA2),
    "gemma2, layers that are listed, caps that bite": (
        "Gemma2",
        GEMMA2
        | {
            "layer_types": ["full_attention", "sliding_attention", "full_attention"],
            "attn_logit_softcapping": 0.7,
            "final_logit_softcapping": 2.0,
        },
    ),
    "gemma2 without caps": ("Gemma2", GEMMA2 | {"attn_logit_softcapping": ABSENT, "final_logit_softcapping": ABSENT}),
    "gpt oss": ("GptOss", GPT_OSS),
    "gpt oss, another gate, no window first": (
        "GptOss",
        GPT_OSS
        | {"swiglu_alpha": 0.9, "attention_bias": False, "num_hidden_layers": 3}
        | {"layer_types": ["full_attention", "sliding_attention", "full_attention"]},
    ),
    "gemma3": ("Gemma3Text", GEMMA3),
    "gemma3, scaled where there is no window": (
        "Gemma3Text",
        GEMMA3
        | {
            "num_hidden_layers": 3,
            "layer_types": ["full_attention", "sliding_attention", "full_attention"],
            "rope_parameters": {
                "sliding_attention": {"rope_type": "default", "rope_theta": 300.0},
                "full_attention": {"rope_type": "linear", "rope_theta": 500.0, "factor": 8.0},
            },
        },
    ),
    "gemma3, no window in every second layer, logits capped": (
        "Gemma3Text",
        GEMMA3 | {"num_hidden_layers": 3, "sliding_window_pattern": 2, "final_logit_softcapping": 3.0},
    ),
    "gemma3 without windows": ("Gemma3Text", GEMMA3 | {"num_hidden_layers": 2, "layer_types": ["full_attention"] * 2}),
    "gemma3n": ("Gemma3nText", GEMMA3N),
    "gemma3n, words that layers do not know, sizes of their own, another active stream": (
        "Gemma3nText",
        GEMMA3N
        | {"vocab_size_per_layer_input": 80, "intermediate_size": [80, 40, 80, 56, 80, 72, 24], "head_dim": 12}
        | {"altup_num_inputs": 3, "altup_active_idx": 2, "attention_bias": True}
        | {"final_logit_softcapping": 2.0, "tie_word_embeddings": False},
    ),
    "gemma3n, two streams, nothing shared, layers that follow a rule": (
        "Gemma3nText",
        GEMMA3N
        | {"altup_num_inputs": 2, "altup_correct_scale": False, "num_kv_shared_layers": 0, "num_hidden_layers": 11}
        | {"layer_types": ABSENT, "activation_sparsity_pattern": ABSENT, "final_logit_softcapping": 30.0}
        | {"rope_parameters": ABSENT, "intermediate_size": 400},
    ),
    "gemma4": ("Gemma4Text", GEMMA4 | {"use_double_wide_mlp": True}),
    "gemma4 with experts": ("Gemma4Text", GEMMA4_EXPERTS),
    "gemma4, sizes that are not compiled": (
        "Gemma4Text",
        GEMMA4
        | {"head_dim": 12, "global_head_dim": 20, "attention_k_eq_v": True, "attention_bias": True}
        | {
            "rope_parameters": {
                "sliding_attention": {"rope_type": "default", "rope_theta": 300.0},
                "full_attention": {"rope_type": "proportional", "rope_theta": 500.0, "factor": 4.0},
            }
        },
    ),
    "gemma4, heads alike": ("Gemma4Text", GEMMA4 | {"head_dim": 16}),
    "gemma4, heads alike but for their number": (
        "Gemma4Text",
        GEMMA4 | {"head_dim": 16, "attention_k_eq_v": True, "num_global_key_value_heads": 3},
    ),
    "llama4": ("Llama4Text", LLAMA4),
    "llama4, layers that are listed, scaled": (
        "Llama4Text",
        LLAMA4
        | {"no_rope_layers": [1, 0, 1, 0, 1], "moe_layers": [1, 3], "attn_temperature_tuning": False}
        | {"use_qk_norm": False, "head_dim": 8}
        | {"rope_parameters": {"rope_theta": 100.0, **ONE_STEP}},
    ),
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
    "exaone4": ("Exaone4", {"num_hidden_layers": 5, "sliding_window": WINDOW}),
    "exaone4 without windows": (
        "Exaone4",
        {"sliding_window": ABSENT, "layer_types": ["full_attention"] * 3, "rope_parameters": {"rope_theta": 100.0}},
    ),
    "exaone4, layers that are listed, scaled": (
        "Exaone4",
        {
            "head_dim": 8,
            "sliding_window": WINDOW,
            "layer_types": ["full_attention", "sliding_attention", "full_attention"],
            "rope_parameters": {"rope_theta": 100.0, **ONE_STEP},
        },
    ),
    "stablelm": ("StableLm", STABLELM),
    "stablelm with biases, side by side": (
        "StableLm",
        STABLELM
        | {"use_qkv_bias": True, "use_parallel_residual": True}
        | {"rope_parameters": {"rope_theta": 100.0, "partial_rotary_factor": 0.5}},
    ),
    "phi 2": ("Phi", PHI),
    "phi 2, rotated whole, relu": (
        "Phi",
        PHI | {"hidden_act": "relu", "rope_parameters": WHOLE, "num_key_value_heads": 6},
    ),
    "nemotron": ("Nemotron", {"rope_parameters": HALF}),
    "nemotron with biases, a table for both": (
        "Nemotron",
        {"attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True, "rope_parameters": HALF},
    ),
    "sarvam moe": ("SarvamMoE", GLM4_MOE | {"head_dim": 8}),
    "sarvam moe, biases, no norms, groups, a part rotated": (
        "SarvamMoE",
        GLM4_MOE
        | {"head_dim": 8, "attention_bias": True, "use_qk_norm": False, "n_group": 4, "topk_group": 2}
        | {"n_shared_experts": 2, "norm_topk_prob": False, "rope_parameters": HALF},
    ),
    "sarvam mla": ("SarvamMLA", DEEPSEEK | {"q_lora_rank": ABSENT}),
    "sarvam mla, a latent of queries, groups, yarn": (
        "SarvamMLA",
        DEEPSEEK_V3 | {"attention_bias": True, "rope_parameters": YARN_OF_LATENTS, "first_k_dense_replace": 2},
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
    "jais 2": ("Jais2", {}),
    "jais 2 without biases, another activation, a table for both": (
        "Jais2",
        {"attention_bias": False, "mlp_bias": False, "hidden_act": "relu", "tie_word_embeddings": True},
    ),
    "hyperclovax": ("HyperCLOVAX", HYPERCLOVAX | {"embedding_multiplier": 3.0, "logits_scaling": 0.6}),
    "hyperclovax, norms before alone, biases, residuals multiplied": (
        "HyperCLOVAX",
        HYPERCLOVAX | {"use_post_norm": False, "residual_multiplier": 0.4, "attention_bias": True, "mlp_bias": True},
    ),
    "exaone": ("Exaone", {"rope_parameters": {"rope_theta": 100.0, **ONE_STEP}}),
    "exaone, a table for both": ("Exaone", {"tie_word_embeddings": True, "head_dim": None}),
    "granite swa": ("GraniteSWA", GRANITE_SWA | {"layer_rope_theta": [0.0, 100.0, 100.0, 100.0, 0.0]}),
    "granite swa, another theta in windows, layers that are listed, biases": (
        "GraniteSWA",
        GRANITE_SWA
        | {"layer_rope_theta": [1000.0, 100.0, 0.0, 1000.0, 100.0], "layer_types": MIXED, "mlp_bias": True}
        | {"attention_bias": True},
    ),
    "granite moe swa": ("GraniteMoeSWA", GRANITE_SWA | EXPERTS | {"shared_intermediate_size": 40}),
    "granite moe swa, nothing shared, scaled, a table for both": (
        "GraniteMoeSWA",
        GRANITE_SWA | EXPERTS | {"tie_word_embeddings": True, "rope_parameters": {"rope_theta": 100.0, **ONE_STEP}},
    ),
    "vaultgemma": ("VaultGemma", GEMMA2),
    "vaultgemma without caps, layers that are listed": (
        "VaultGemma",
        GEMMA2
        | {"attn_logit_softcapping": ABSENT, "final_logit_softcapping": ABSENT}
        | {"layer_types": ["full_attention", "sliding_attention", "sliding_attention"]},
    ),
    "cwm": ("Cwm", CWM),
    "cwm with biases, layers that are listed": (
        "Cwm",
        CWM
        | {"num_hidden_layers": 3, "head_dim": 8, "mlp_bias": True}
        | {"layer_types": ["sliding_attention", "full_attention", "sliding_attention"]},
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
    "iquestcoder": ("IQuestCoder", {"head_dim": 8}),
    "iquestcoder with biases": ("IQuestCoder", {"head_dim": 8, "attention_bias": True, "mlp_bias": True}),
    "gpt neox": ("GPTNeoX", GPT_NEOX),
    "gpt neox, one part after the other, no biases of attention, scaled": (
        "GPTNeoX",
        GPT_NEOX
        | {"use_parallel_residual": False, "attention_bias": False, "hidden_act": "gelu_pytorch_tanh"}
        | {"rope_parameters": {"rope_theta": 100.0, "rope_type": "linear", "factor": 2.0}},
    ),
    "gptj": ("GPTJ", GPT_J),
    "gptj, rotated whole, a size of its own": ("GPTJ", GPT_J | {"rotary_dim": 8, "n_inner": 80}),
    "gpt2": ("GPT2", GPT_2),
    "gpt2, a size of its own, scores as they are, another activation, an output of its own": (
        "GPT2",
        GPT_2
        | {"n_inner": 80, "scale_attn_weights": False, "activation_function": "relu"}
        | {"tie_word_embeddings": False},
    ),
    "gpt bigcode": ("GPTBigCode", GPT_2),
    "gpt bigcode, many heads": ("GPTBigCode", GPT_2 | {"multi_query": False, "n_inner": 80}),
    "gpt neo": ("GPTNeo", GPT_NEO),
    "gpt neo, windows everywhere, a size of its own": (
        "GPTNeo",
        GPT_NEO | {"attention_types": [[["local"], 3]], "intermediate_size": 80, "activation_function": "gelu"},
    ),
    "opt": ("OPT", OPT),
    "opt without biases, an output of its own": (
        "OPT",
        OPT | {"enable_bias": False, "activation_function": "gelu", "tie_word_embeddings": False},
    ),
    "falcon": ("Falcon", FALCON_7B),
    "falcon, newer, a norm each, biases": (
        "Falcon",
        FALCON_7B | {"new_decoder_architecture": True, "num_kv_heads": 2, "bias": True, "tie_word_embeddings": False},
    ),
    "falcon, newer, a norm each": ("Falcon", FALCON_7B | {"new_decoder_architecture": True, "num_kv_heads": 2}),
    "falcon, newer, one norm, a size of its own": (
        "Falcon",
        FALCON_7B
        | {"new_decoder_architecture": True, "num_kv_heads": 3, "num_ln_in_parallel_attn": 1, "ffn_hidden_size": 80}
        | {"rope_parameters": {"rope_theta": 100.0, **SCALINGS["linear"]}},
    ),
    "falcon, one part after the other, many heads, what is above 0": (
        "Falcon",
        FALCON_7B | {"multi_query": False, "parallel_attn": False, "activation": "relu"},
    ),
    "olmo": ("Olmo", {"head_dim": None}),
    "olmo, queries, keys and values that are limited, biases": (
        "Olmo",
        {"head_dim": 8, "clip_qkv": 0.5, "attention_bias": True, "tie_word_embeddings": True},
    ),
    "apertus": ("Apertus", {"head_dim": 8, "rope_parameters": {"rope_theta": 100.0, **ONE_STEP}}),
    "apertus with biases": ("Apertus", {"attention_bias": True, "rope_parameters": {"rope_theta": 100.0}}),
    "hunyuan": ("HunYuanDenseV1", {"head_dim": 8, "pad_token_id": 0}),
    "hunyuan with biases": ("HunYuanDenseV1", {"attention_bias": True, "pad_token_id": 0}),
    "hunyuan, theta that is raised, a table for both": (
        "HunYuanDenseV1",
        {"tie_word_embeddings": True, "rope_parameters": RAISED, "pad_token_id": 0},
    ),
    "hunyuan moe": ("HunYuanMoEV1", HUNYUAN_MOE),
    "hunyuan moe, every expert, biases": (
        "HunYuanMoEV1",
        HUNYUAN_MOE | {"moe_topk": 5, "attention_bias": True, "rope_parameters": RAISED},
    ),
    "olmo2": ("Olmo2", {"head_dim": None}),
    "olmo3, scaled between pairs": (
        "Olmo3",
        {
            "head_dim": None,
            "sliding_window": WINDOW,
            "layer_types": ["full_attention", "sliding_attention", "full_attention"],
            "rope_parameters": {
                "sliding_attention": {"rope_type": "default", "rope_theta": 300.0},
                "full_attention": {"rope_type": "yarn", "rope_theta": 100.0, "factor": 4.0, "truncate": False}
                | ORIGINAL,
            },
        },
    ),
    "olmo2 with biases": ("Olmo2", {"head_dim": None, "attention_bias": True}),
    "olmo3": ("Olmo3", {"head_dim": None, "num_hidden_layers": 5, "sliding_window": WINDOW}),
    "olmo3, scaled where there is no window": (
        "Olmo3",
        {
            "head_dim": None,
            "sliding_window": WINDOW,
            "layer_types": ["full_attention", "sliding_attention", "full_attention"],
            "rope_parameters": {
                "sliding_attention": {"rope_type": "default", "rope_theta": 300.0},
                "full_attention": {"rope_type": "yarn", "rope_theta": 100.0, "factor": 4.0, **ORIGINAL},
            },
        },
    ),
}


def saved(kind: str, folder: Path, **changes: Any) -> Any:
    """A random model of one of transformers' classes, and its folder."""
    settings = {key: value for key, value in (SIZES | changes).items() if value is not None or key == "sliding_window"}
    settings = {key: None if value is ABSENT else value for key, value in settings.items()}
    torch.manual_seed(0)
    config = getattr(transformers, f"{kind}Config")(**settings)
    ways = {"attn_implementation": "eager", "experts_implementation": "eager"}  # which take any size
    model = randomized(transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32, **ways))
    model.save_pretrained(folder)
    if kind in ("InternLM3", "IQuestCoder", "Exaone"):  # whose own class transformers has as Llama's
        file = folder / "config.json"
        file.write_text(json.dumps(json.loads(file.read_text()) | {"architectures": [f"{kind}ForCausalLM"]}))
    return model


def loaded(folder: Path, dtype: torch.dtype = torch.float32) -> Transformer:
    return load_transformer(open_checkpoint(folder), "cpu", dtype)


FIRST = {kind: name for name, (kind, _) in reversed(MODELS.items())}  # of each kind


def assert_logits_agree(ours: Transformer, theirs: Any, length: int) -> None:
    """With transformers' in one piece, and with our own in chunks and token by token, those to the bit."""
    ids = some_ids(97, length)
    whole = logits_in_chunks(ours, ids, [length])
    with torch.inference_mode():
        expected = theirs(torch.tensor([ids])).logits[0].float()
    assert expected.std() > 0.3
    # A state adds up all tokens; transformers does so in chunks, and is as far from float64 as we are. Little is left
    # of a thinned gate, and a norm makes it large again.
    near = 1e-4 if ours.config.recurrence is None and not ours.config.sparsity else 2e-4
    torch.testing.assert_close(whole, expected, atol=near, rtol=0)
    for chunks in ([PAGE_SIZE + 1, 1], [PAGE_SIZE, 5]):
        assert torch.equal(logits_in_chunks(ours, ids, chunks), whole), chunks
