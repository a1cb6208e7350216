"""Dense models that add a vector of each position to the token's."""

from __future__ import annotations

from tests.worker_svc.model.tiny_models.shared import WINDOW, Models

_UNNAMED = {"head_dim": None, "num_key_value_heads": None, "hidden_size": None, "intermediate_size": None}
_UNNAMED |= {"num_hidden_layers": None, "num_attention_heads": None, "rope_parameters": None}
GPT_2 = _UNNAMED | {"max_position_embeddings": None, "n_embd": 48, "n_head": 6, "n_layer": 3, "n_positions": 96}
GPT_NEO = _UNNAMED | {"hidden_size": 48, "num_heads": 6, "num_layers": 3, "window_size": WINDOW}
GPT_NEO |= {"attention_types": [[["global", "local"], 1], [["global"], 1]]}
OPT = {"head_dim": None, "num_key_value_heads": None, "intermediate_size": None, "rope_parameters": None, "ffn_dim": 80}

LEARNED_POSITION_MODELS: Models = {
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
}
