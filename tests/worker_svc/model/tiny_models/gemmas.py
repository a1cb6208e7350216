"""Gemma and VaultGemma."""

from __future__ import annotations

from tests.worker_svc.model.tiny_models.shared import ABSENT, WINDOW, Models

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

GEMMA_MODELS: Models = {
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
    "vaultgemma": ("VaultGemma", GEMMA2),
    "vaultgemma without caps, layers that are listed": (
        "VaultGemma",
        GEMMA2
        | {"attn_logit_softcapping": ABSENT, "final_logit_softcapping": ABSENT}
        | {"layer_types": ["full_attention", "sliding_attention", "sliding_attention"]},
    ),
}
