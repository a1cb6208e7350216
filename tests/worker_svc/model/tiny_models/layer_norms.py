"""Dense models that have layer norms."""

from __future__ import annotations

from tests.worker_svc.model.tiny_models.shared import COHERE2, HALF, SCALINGS, WHOLE, WINDOW, Models

STABLELM = {"head_dim": None, "hidden_size": 96, "rope_parameters": {"rope_theta": 100.0, "rope_type": "default"}}
# As published they say gelu_new, which is the same in other operations.
PHI = {"head_dim": None, "hidden_act": "gelu_pytorch_tanh", "rope_parameters": HALF}
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
FALCON_7B = {"head_dim": None, "num_key_value_heads": None, "intermediate_size": None}

LAYER_NORM_MODELS: Models = {
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
    "jais 2": ("Jais2", {}),
    "jais 2 without biases, another activation, a table for both": (
        "Jais2",
        {"attention_bias": False, "mlp_bias": False, "hidden_act": "relu", "tie_word_embeddings": True},
    ),
    "gpt neox": ("GPTNeoX", GPT_NEOX),
    "gpt neox, one part after the other, no biases of attention, scaled": (
        "GPTNeoX",
        GPT_NEOX
        | {"use_parallel_residual": False, "attention_bias": False, "hidden_act": "gelu_pytorch_tanh"}
        | {"rope_parameters": {"rope_theta": 100.0, "rope_type": "linear", "factor": 2.0}},
    ),
    "gptj": ("GPTJ", GPT_J),
    "gptj, rotated whole, a size of its own": ("GPTJ", GPT_J | {"rotary_dim": 8, "n_inner": 80}),
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
}
