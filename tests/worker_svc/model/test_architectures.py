"""Every architecture and every rope scaling against transformers, whole and token by token."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from tandem.worker.checkpoints import CheckpointError, open_checkpoint, open_head
from tandem.worker.checkpoints.ggml_blocks import QuantizedTensor
from tandem.worker.convert.comparison import difference
from tandem.worker.model.loading import load_transformer
from tandem.worker.model.row_invariance import choose_padding
from tandem.worker.model.runner import ModelRunner
from tandem.worker.model.transformer import Transformer
from tests.exhaustive import some
from tests.worker_svc.checkpoints.gguf_models import named_tensors, save_gguf
from tests.worker_svc.model.llama_folders import (
    PAGE_SIZE,
    logits_in_chunks,
    new_cache,
    new_states,
    randomized,
    some_ids,
    step,
)

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
SIX_FACTORS = {"short_factor": [1.0, 1.1, 1.2] * 2, "long_factor": [1.0, 2.5, 4.0] * 2}
FOUR_FACTORS = {"short_factor": [1.0, 1.1, 1.2, 1.3], "long_factor": [1.0, 2.5, 4.0, 5.0]}
# Which transformers has a class of, but has not among those that it finds for a config.
transformers.AutoModelForCausalLM.register(transformers.Mistral4Config, transformers.Mistral4ForCausalLM, exist_ok=True)
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
# Those that llama.cpp knows, beside those whose files `test_gguf.py` looks at.
GGUF = [
    "llama, biases everywhere",
    "smollm3",
    "seed oss",
    "arcee",
    "ernie4_5",
    "granite",
    "olmo2",
    "starcoder2 without a window",
    "cohere2",
]
GGUF += [
    "granite with biases",
    "granite moe",
    "olmoe",
    "qwen2 moe",
    "phi3",
    "phi3 with a window",
    "phi3, rotated in part, longrope",
    "phi moe, the jitter of files",
    "glm4",
]
GGUF += ["glm4 moe", "glm4 moe, groups, norms, scaled", "minimax m2, rotated in part", "gpt oss", "gemma2", "gemma3"]
GGUF += ["gemma3, scaled where there is no window", "olmo3, scaled where there is no window"]
GGUF += ["gemma4", "gemma4 with experts", "llama4", "ministral3", "qwen3 next", "qwen3.5", "qwen3.5 moe"]
GGUF += ["lfm2", "lfm2 moe", "granite hybrid", "granite hybrid, dense", "nemotron h", "falcon h1"]
GGUF += ["internlm3", "internlm3 with biases", "falcon h1, tied"]
GGUF += ["falcon h1, norm after the gate", "nemotron 3", "nemotron 3, latents, groups"]
GGUF += [
    "kimi linear",
    "kimi linear, groups, two shared",
    "mistral4",
    "mistral4, groups, a latent of queries, two shared",
]
GGUF += ["mimo v2 flash", "mimo v2 flash, output and embedding one, layers of another order"]
GGUF += ["deepseek v2, groups, no latent of queries", "deepseek v3", "youtu"]
GGUF += ["deepseek v3.2", "glm moe dsa", "glm moe dsa, what is chosen is shared"]
GGUF += ["glm", "ernie4_5 moe", "ernie4_5 moe, nothing shared, two layers dense, output apart"]
GGUF += ["exaone4", "exaone4 without windows", "dots1", "gemma", "cohere"]
GGUF += ["solar open", "granite moe shared", "stablelm", "stablelm with biases, side by side"]
GGUF += ["olmo", "hunyuan", "hunyuan, theta that is raised, a table for both", "hunyuan moe"]
GGUF += ["gpt neox", "falcon", "falcon, newer, a norm each", "falcon, newer, one norm, a size of its own"]
GGUF += ["jais 2", "trinity"]
GGUF += ["gpt2", "gpt bigcode", "apertus", "hunyuan 3", "cohere2 moe", "granite swa", "granite moe swa"]
GGUF += ["cohere2 moe, sigmoids, RMS norms, two shared that are averaged, dense layers of another size"]
GGUF += ["phi 2", "nemotron", "nemotron with biases, a table for both", "exaone, a table for both"]
# What a file cannot say, and llama.cpp takes for granted.
GRANTED: dict[str, dict[str, Any]] = {
    "Qwen3Moe": {"norm_topk_prob": True},
    "Gemma2": {"query_pre_attn_scalar": 12},
    "Gemma3Text": {"query_pre_attn_scalar": 12, "num_hidden_layers": 7, "layer_types": None},
    "GptOss": {"swiglu_limit": 7.0},
    "Glm4Moe": {"n_group": 1, "topk_group": 1},
    "Cohere2Moe": {"attention_bias": False},
    "Apertus": {"rope_parameters": {"rope_type": "default", "rope_theta": 100.0}},
    "DeepseekV2": {"attention_bias": False},
    "DeepseekV3": {
        "attention_bias": False,
        "rope_parameters": YARN_OF_LATENTS | {"mscale": 0.7, "original_max_position_embeddings": 24},
    },
    "KimiLinear": {"linear_num_heads": 6},
    "Mistral4": {"rope_parameters": MISTRAL4["rope_parameters"] | {"mscale_all_dim": 1.0}},
    "DeepseekV32": {
        "attention_bias": False,
        "rope_parameters": YARN_OF_LATENTS | {"mscale_all_dim": 1.0, "original_max_position_embeddings": 24},
    },
    "Llama4Text": {
        "no_rope_layer_interval": 4,
        "attention_chunk_size": 8192,
        "floor_scale": 8192,
        "attn_scale": 0.1,
        "layer_types": None,
    },
    "GraniteMoeHybrid": {"intermediate_size": 40},
    "NemotronH": {"time_step_min": 1e-30},
    "Olmo3": {
        "rope_parameters": {
            "sliding_attention": {"rope_type": "default", "rope_theta": 100.0},
            "full_attention": {"rope_type": "yarn", "rope_theta": 100.0, "factor": 4.0, **ORIGINAL},
        }
    },
}
COMPANY = [
    "llama, biases everywhere",
    "gpt oss",
    "smollm3",
    "ministral3",
    "arcee",
    "ernie4_5",
    "granite",
    "olmo2",
    "olmo3",
    "starcoder2",
    "cohere2",
    "gemma2",
]
COMPANY += [
    "gemma3",
    "qwen2 moe, windows in turns",
    "flex olmo",
    "granite moe",
    "phi3, rotated in part, longrope",
    "phi moe",
]
COMPANY += ["olmoe, queries, keys and values that are limited", "glm4", "glm4 moe, groups, norms, scaled", "minimax m2"]
COMPANY += ["gemma4", "gemma4 with experts", "llama4"]
COMPANY += ["deepseek v2, groups, no latent of queries", "deepseek v3", "minicpm3"]
COMPANY += ["mimo v2 flash", "mistral4", "kimi linear", "deepseek v3.2", "glm moe dsa, what is chosen is shared"]
COMPANY += ["qwen3 next", "qwen3.5", "qwen3.5 moe", "lfm2", "lfm2 moe"]
COMPANY += [
    "granite moe shared",
    "cwm",
    "stablelm with biases, side by side",
    "ernie4_5 moe",
    "exaone4",
    "dots1, biases, groups, windows in upper layers",
]
COMPANY += ["olmo, queries, keys and values that are limited, biases", "hunyuan", "hunyuan moe"]
COMPANY += ["apertus", "bamba", "gpt neox", "gptj", "falcon", "falcon, newer, a norm each, biases"]
COMPANY += ["olmo hybrid", "gpt2", "gpt bigcode", "gpt neo", "opt"]
COMPANY += ["cohere2 moe", "lfm3", "trinity", "hunyuan 3", "jais 2", "sarvam moe", "sarvam mla"]
COMPANY += ["granite swa", "granite moe swa", "vaultgemma"]
COMPANY += ["exaone moe", "mellum", "phi 2", "nemotron with biases, a table for both", "hyperclovax"]
COMPANY += ["granite hybrid", "nemotron h", "falcon h1", "nemotron 3", "nemotron 3, latents, groups"]
NEW = [
    "GptOss",
    "SmolLM3",
    "Ministral3",
    "SeedOss",
    "Helium",
    "InternLM3",
    "Arcee",
    "Ernie4_5",
    "Granite",
    "Olmo",
    "Apertus",
    "GPTNeoX",
    "GPTJ",
    "GPT2",
    "GPTBigCode",
    "GPTNeo",
    "OPT",
    "Falcon",
    "HunYuanDenseV1",
    "HunYuanMoEV1",
    "Olmo2",
    "Olmo3",
    "Starcoder2",
    "Cohere2",
    "Gemma2",
    "Gemma3Text",
    "Gemma4Text",
    "Llama4Text",
    "Qwen2Moe",
    "Olmoe",
    "FlexOlmo",
    "GraniteMoe",
    "Phi3",
    "Phimoe",
    "Glm4",
    "Glm4Moe",
    "DeepseekV2",
    "DeepseekV3",
    "DeepseekV32",
    "GlmMoeDsa",
    "Glm4MoeLite",
    "Youtu",
    "MiniCPM3",
    "MiniMaxM2",
    "Qwen3Next",
    "Qwen3_5Text",
    "Qwen3_5MoeText",
    "Lfm2",
    "Lfm2Moe",
    "GraniteMoeHybrid",
    "NemotronH",
    "FalconH1",
    "Bamba",
    "OlmoHybrid",
    "Glm",
    "Ernie4_5_Moe",
    "Exaone4",
    "Dots1",
    "Gemma",
    "Cohere",
    "Cwm",
    "GraniteMoeShared",
    "StableLm",
    "SolarOpen",
    "ExaoneMoe",
    "Mellum",
    "IQuestCoder",
    "GraniteSWA",
    "GraniteMoeSWA",
    "VaultGemma",
    "Phi",
    "Nemotron",
    "HyperCLOVAX",
    "Exaone",
    "Jais2",
    "SarvamMoE",
    "SarvamMLA",
    "HYV3",
    "Afmoe",
    "Lfm3",
    "Cohere2Moe",
    "Mistral4",
    "KimiLinear",
    "MiMoV2Flash",
]
# Those that are of another name in GGUF files, which llama.cpp has them as.
RENAMED = {"InternLM3": ("llama", "internlm3"), "SolarOpen": ("glm4_moe", "solar_open")}


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
    # A state adds up all tokens; transformers does so in chunks, and is as far from float64 as we are.
    near = 1e-4 if ours.config.recurrence is None else 2e-4
    torch.testing.assert_close(whole, expected, atol=near, rtol=0)
    for chunks in ([PAGE_SIZE + 1, 1], [PAGE_SIZE, 5]):
        assert torch.equal(logits_in_chunks(ours, ids, chunks), whole), chunks


# A bias of six heads, which are no whole register, wrote beyond the room of a compiled layer.
ORDINARY = [*FIRST.values(), "granite hybrid, dense, rotated, biases, limits", "llama, biases everywhere"]
ORDINARY += ["nemotron 3", "nemotron 3, latents, groups"]
# What a run of tests/fuzz/settings.py found.
ORDINARY += ["llama, longrope, squares of what is above 0", "qwen3, what is above 0", "arcee, another activation"]
ORDINARY += ["gemma3, no window in every second layer, logits capped", "gemma3 without windows", "gemma4, heads alike"]
ORDINARY += ["gemma4, heads alike but for their number", "lfm2 moe, experts that hardly score"]
ORDINARY += ["smollm3, windows where nothing is rotated", "qwen3.5 moe without states", "olmo3, scaled between pairs"]


@pytest.mark.parametrize("name", some(MODELS, *ORDINARY))
def test_logits_equal_transformers_around_the_window(name: str, tmp_path: Path) -> None:
    kind, changes = MODELS[name]
    theirs = saved(kind, tmp_path, **changes)
    ours = loaded(tmp_path)
    assert_logits_agree(ours, theirs, 3 * WINDOW)


@pytest.mark.parametrize("name", [name for kind, name in FIRST.items() if kind in NEW])
def test_greedy_answers_are_those_of_transformers(name: str, tmp_path: Path) -> None:
    kind, changes = MODELS[name]
    theirs, prompt = saved(kind, tmp_path, **changes), some_ids(97, 9)
    ours, answer = loaded(tmp_path), list(prompt)
    cache, pages = new_cache(ours, 80), list(range(5))
    states = new_states(ours, cache)
    logits = step(ours, cache, [(answer, 0, pages)], states=states)
    for _ in range(64):  # past the window
        answer.append(int(logits[-1].argmax()))
        logits = step(ours, cache, [(answer[-1:], len(answer) - 1, pages)], states=states)
    with torch.inference_mode():  # what it would have chosen behind each token, in one pass instead of one for each
        expected = theirs(torch.tensor([answer])).logits[0, len(prompt) - 1 : -1].argmax(-1)
    assert answer[len(prompt) :] == expected.tolist()


@pytest.mark.parametrize("name", GGUF)
def test_a_gguf_file_computes_what_the_folder_does(name: str, tmp_path: Path) -> None:
    kind, changes = MODELS[name]
    theirs = saved(kind, tmp_path, **changes | GRANTED.get(kind, {}))
    path = save_gguf(theirs, tmp_path / "model.gguf")
    # Matrices of Falcon-H1 are multiplied by what the folder's config says; dt of Nemotron-H has no least one.
    if kind not in ("FalconH1", "NemotronH"):
        said = open_checkpoint(path).config
        if kind in RENAMED:
            theirs_is, ours_is = RENAMED[kind]
            assert said.architecture == theirs_is
            said = replace(said, architecture=ours_is)
        assert not difference(said, open_checkpoint(tmp_path).config)
    assert_logits_agree(loaded(path), theirs, 2 * WINDOW)


def test_heads_that_llama_cpp_has_in_turns_are_put_in_order_in_quantized_files_too(tmp_path: Path) -> None:
    sizes = {"hidden_size": 64, "intermediate_size": 96, "linear_value_head_dim": 16, "vocab_size": 96}
    theirs = saved("Qwen3_5Text", tmp_path, **HYBRID | sizes)
    plain = dict(open_checkpoint(tmp_path).tensors())
    for name, tensor in open_checkpoint(save_gguf(theirs, tmp_path / "model.gguf", "Q8_0")).tensors():
        numbers = tensor
        if isinstance(tensor, QuantizedTensor):
            grouped, numbers = tensor.grouped(), tensor.dequantize()
            assert grouped is not None
            assert torch.equal(grouped.dequantize(), numbers)
        torch.testing.assert_close(numbers, plain[name], atol=2e-2, rtol=0)


def test_tensors_of_a_layer_that_drafts_are_left_out_where_it_is_not_read(tmp_path: Path) -> None:
    theirs = saved("Ernie4_5_Moe", tmp_path, **ERNIE_MOE)
    tensors = load_file(tmp_path / "model.safetensors")
    further = {f"model.mtp_{name}.0.weight": torch.ones(48) for name in ("emb_norm", "hidden_norm")}
    save_file(tensors | further, tmp_path / "model.safetensors", {"format": "pt"})
    assert_logits_agree(loaded(tmp_path), theirs, WINDOW)


def test_the_layer_of_a_hunyuan_3_that_drafts_is_left_out_and_not_read(tmp_path: Path) -> None:
    theirs = saved("HYV3", tmp_path, **HUNYUAN_3)
    tensors = load_file(tmp_path / "model.safetensors")
    further = {name.replace("layers.2.", "layers.3."): tensor.clone() for name, tensor in tensors.items()}
    save_file(tensors | further, tmp_path / "model.safetensors", {"format": "pt"})
    file = tmp_path / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"num_nextn_predict_layers": 1}))
    assert_logits_agree(loaded(tmp_path), theirs, WINDOW)
    with pytest.raises(CheckpointError, match="has no head that guesses"):
        open_head(tmp_path)


def test_older_gguf_files_of_glm_have_queries_keys_and_values_in_one_tensor(tmp_path: Path) -> None:
    theirs = saved("Glm", tmp_path, **MODELS["glm"][1])
    apart = dict(named_tensors(theirs))
    fused = {
        f"blk.{layer}.attn_qkv.{kind}": torch.cat([apart[f"blk.{layer}.attn_{part}.{kind}"] for part in "qkv"]).numpy()
        for layer in range(3)
        for kind in ("weight", "bias")
    }
    path = save_gguf(theirs, tmp_path / "model.gguf", extra=fused, without=(".attn_q.", ".attn_k.", ".attn_v."))
    assert open_checkpoint(path).config == open_checkpoint(tmp_path).config
    assert_logits_agree(loaded(path), theirs, 2 * WINDOW)


@pytest.mark.parametrize("apart", [True, False])
def test_a_gguf_file_of_latents_is_read_in_both_layouts_and_quantized(apart: bool, tmp_path: Path) -> None:
    sizes = {"hidden_size": 64, "intermediate_size": 96, "vocab_size": 96, "q_lora_rank": 64, "kv_lora_rank": 32}
    sizes |= {"qk_nope_head_dim": 32, "v_head_dim": 32, "moe_intermediate_size": 32}
    theirs = saved("DeepseekV3", tmp_path, **DEEPSEEK_V3 | sizes | {"num_attention_heads": 2, "num_key_value_heads": 2})
    path = save_gguf(theirs, tmp_path / "model.gguf", "Q8_0", latents_apart=apart)
    theirs.save_pretrained(tmp_path)  # the numbers that the file has
    plain = dict(open_checkpoint(tmp_path).tensors())
    quantized = set()
    for name, tensor in open_checkpoint(path).tensors():
        numbers = tensor
        if isinstance(tensor, QuantizedTensor):
            quantized.add(name.partition("attention.")[2])
            numbers = tensor.dequantize()
        assert torch.equal(numbers, plain[name]), name
    assert {"query_latent", "query_up", "latent", "value_up", "output"} <= quantized
    assert ("key_up" in quantized) == apart
    ids = some_ids(96, 30)
    whole = logits_in_chunks(loaded(path), ids, [30])
    with torch.inference_mode():
        expected = theirs(torch.tensor([ids])).logits[0]
    assert (whole - expected).norm() < 2e-2 * expected.norm()
    assert torch.equal(logits_in_chunks(loaded(path), ids, [7, 1]), whole)


def test_mistral_with_layer_types_is_what_transformers_automodel_makes_of_it(tmp_path: Path) -> None:
    saved("Mistral", tmp_path, sliding_window=WINDOW)
    config = json.loads((tmp_path / "config.json").read_text())
    assert (config["architectures"], config["model_type"]) == (["MistralForCausalLM"], "mistral")
    config["layer_types"] = ["sliding_attention", "full_attention", "sliding_attention"]
    (tmp_path / "config.json").write_text(json.dumps(config))
    theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path, attn_implementation="eager")
    assert_logits_agree(loaded(tmp_path), theirs, 3 * WINDOW)


@pytest.mark.parametrize("name", SCALINGS)
def test_logits_equal_transformers_around_the_scaling_boundary(name: str, tmp_path: Path) -> None:
    rope = {"rope_theta": 100.0} | SCALINGS[name]
    theirs = saved("Llama", tmp_path, rope_parameters=rope)
    ours = loaded(tmp_path)
    boundary = rope.get("original_max_position_embeddings", 24)
    for length in (boundary, boundary + 1, 96):
        assert_logits_agree(ours, theirs, length)


@pytest.mark.parametrize("context_length", [31, 32, 33, 64, 96])
def test_dynamic_scaling_is_that_of_a_sequence_which_fills_the_context(context_length: int, tmp_path: Path) -> None:
    rope = {"rope_type": "dynamic", "rope_theta": 100.0, "factor": 3.0}
    theirs = saved("Llama", tmp_path, rope_parameters=rope, max_position_embeddings=32)
    checkpoint = open_checkpoint(tmp_path)
    assert checkpoint.config.context_length == 96
    config = checkpoint.config.with_context_length(context_length)
    ours = load_transformer(checkpoint, "cpu", torch.float32, config=config)
    assert_logits_agree(ours, theirs, context_length)


@pytest.mark.parametrize("kind", ["Phi3", "Phimoe"])
def test_within_the_first_context_longrope_has_its_short_factors(kind: str, tmp_path: Path) -> None:
    factors = {"short_factor": [1.0, 1.1, 1.2, 1.3], "long_factor": [1.0, 2.5, 4.0, 5.0]}
    rope = {"rope_type": "longrope", "rope_theta": 100.0, "original_max_position_embeddings": 32, **factors}
    settings: dict[str, Any] = PHIMOE if kind == "Phimoe" else {"head_dim": None, "pad_token_id": 0}
    if kind == "Phimoe":
        rope |= {"short_mscale": 1.2, "long_mscale": 1.4}
    else:
        settings = settings | {"original_max_position_embeddings": 32}
    theirs = saved(kind, tmp_path, **settings, rope_parameters=rope)
    checkpoint = open_checkpoint(tmp_path)
    config = checkpoint.config.with_context_length(32)
    ours = load_transformer(checkpoint, "cpu", torch.float32, config=config)
    assert_logits_agree(ours, theirs, 32)
    assert not torch.equal(ours.rotations.model.table, loaded(tmp_path).rotations.model.table[:32])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", ["qwen2", "qwen3", "mistral", "mixtral", "qwen3 moe", *COMPANY])
def test_rows_do_not_depend_on_company(name: str, dtype: torch.dtype, tmp_path: Path) -> None:
    kind, changes = MODELS[name]
    saved(kind, tmp_path, **changes)
    model = loaded(tmp_path, dtype)
    cache = new_cache(model, 8 * PAGE_SIZE, dtype)
    assert choose_padding(ModelRunner(model, cache, new_states(model, cache)))


def test_rows_that_choose_every_expert_are_those_of_rows_alone(tmp_path: Path) -> None:
    saved("Mixtral", tmp_path, **EXPERTS)
    layer = loaded(tmp_path).layers[0].feed_forward
    rows = torch.randn(64, 48, generator=torch.Generator().manual_seed(0))
    together = layer(rows)
    for first in range(0, 64, 4):
        assert torch.equal(layer(rows[first : first + 4]), together[first : first + 4])
