"""Dense models whose norms are RMS norms."""

from __future__ import annotations

from tests.worker_svc.model.llama_folders import PAGE_SIZE
from tests.worker_svc.model.tiny_models.shared import (
    ABSENT,
    GRANITE,
    GRANITE_SWA,
    LONGROPE,
    MIXED,
    ONE_STEP,
    ORIGINAL,
    RAISED,
    THIRD,
    WINDOW,
    Models,
)

SIX_FACTORS = {"short_factor": [1.0, 1.1, 1.2] * 2, "long_factor": [1.0, 2.5, 4.0] * 2}
CWM = {"num_hidden_layers": 5, "sliding_window": WINDOW, "rope_parameters": {"rope_theta": 100.0, **ONE_STEP}}
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
OLMO3_ROPE = {
    "sliding_attention": {"rope_type": "default", "rope_theta": 300.0},
    "full_attention": {"rope_type": "yarn", "rope_theta": 100.0, "factor": 4.0, **ORIGINAL},
}
OLMO3_SCALED = {
    "head_dim": None,
    "sliding_window": WINDOW,
    "layer_types": ["full_attention", "sliding_attention", "full_attention"],
    "rope_parameters": OLMO3_ROPE,
}

LLAMA_MODELS: Models = {
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
    "granite": ("Granite", GRANITE),
    "granite with biases": ("Granite", GRANITE | {"attention_bias": True, "mlp_bias": True}),
    "phi3": ("Phi3", {"head_dim": None, "pad_token_id": 0}),
    "phi3 with a window": ("Phi3", {"head_dim": None, "pad_token_id": 0, "sliding_window": WINDOW}),
    "phi3, rotated in part, longrope": (
        "Phi3",
        {"head_dim": None, "pad_token_id": 0, "rope_parameters": LONGROPE, "original_max_position_embeddings": 8},
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
    "cwm": ("Cwm", CWM),
    "cwm with biases, layers that are listed": (
        "Cwm",
        CWM
        | {"num_hidden_layers": 3, "head_dim": 8, "mlp_bias": True}
        | {"layer_types": ["sliding_attention", "full_attention", "sliding_attention"]},
    ),
    "iquestcoder": ("IQuestCoder", {"head_dim": 8}),
    "iquestcoder with biases": ("IQuestCoder", {"head_dim": 8, "attention_bias": True, "mlp_bias": True}),
    "apertus": ("Apertus", {"head_dim": 8, "rope_parameters": {"rope_theta": 100.0, **ONE_STEP}}),
    "apertus with biases": ("Apertus", {"attention_bias": True, "rope_parameters": {"rope_theta": 100.0}}),
    "hunyuan": ("HunYuanDenseV1", {"head_dim": 8, "pad_token_id": 0}),
    "hunyuan with biases": ("HunYuanDenseV1", {"attention_bias": True, "pad_token_id": 0}),
    "hunyuan, theta that is raised, a table for both": (
        "HunYuanDenseV1",
        {"tie_word_embeddings": True, "rope_parameters": RAISED, "pad_token_id": 0},
    ),
    "olmo2": ("Olmo2", {"head_dim": None}),
    "olmo3, scaled between pairs": (
        "Olmo3",
        OLMO3_SCALED
        | {"rope_parameters": OLMO3_ROPE | {"full_attention": OLMO3_ROPE["full_attention"] | {"truncate": False}}},
    ),
    "olmo2 with biases": ("Olmo2", {"head_dim": None, "attention_bias": True}),
    "olmo3": ("Olmo3", {"head_dim": None, "num_hidden_layers": 5, "sliding_window": WINDOW}),
    "olmo3, scaled where there is no window": (
        "Olmo3",
        OLMO3_SCALED,
    ),
}
