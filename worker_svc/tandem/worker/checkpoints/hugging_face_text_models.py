"""Text models as they stand in one that sees or hears, too: which architecture each is, and what its configuration
says where the file leaves it out, as files of such models do, which have of it what differs from its class."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


class OverHeads:
    """The default of `head_dim` that is the hidden size over the heads, where an architecture has another one."""


@dataclass(frozen=True, slots=True)
class TextModel:
    """One of transformers' text classes."""

    architecture: str  # what it is to us
    defaults: Mapping[str, Any] = field(default_factory=dict)  # of transformers' class, where they are not ours
    three_positions: bool = False  # rotated by time, height and width, which are one of text alone (M-RoPE)


def _usual(
    vocab: int, hidden: int, inner: int, layers: int, heads: int, kv_heads: int, context: int, eps: float, **more: Any
) -> dict[str, Any]:
    values: dict[str, Any] = {
        "vocab_size": vocab,
        "hidden_size": hidden,
        "intermediate_size": inner,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "max_position_embeddings": context,
        "rms_norm_eps": eps,
    }
    return values | ({"num_key_value_heads": kv_heads} if kv_heads else {}) | more  # 0: as many as heads


_LLAMA = _usual(32000, 4096, 11008, 32, 32, 0, 2048, 1e-6)
_QWEN2_VL = _usual(152064, 8192, 29568, 80, 64, 8, 32768, 1e-5, rope_theta=1e6, max_window_layers=80)
_QWEN3_VL = _usual(151936, 4096, 22016, 32, 32, 32, 128000, 1e-6, rope_theta=5e5)
_QWEN3_VL_MOE = _usual(151936, 2048, 5632, 24, 16, 16, 128000, 1e-6, rope_theta=5e5, head_dim=OverHeads)
_QWEN3_VL_MOE |= {"moe_intermediate_size": 1408, "num_experts": 60, "num_experts_per_tok": 4, "norm_topk_prob": True}
_GLM4V = _usual(151552, 4096, 13696, 40, 32, 2, 32768, 1e-5, head_dim=OverHeads, partial_rotary_factor=1.0)
_GLM4V_MOE = _usual(151424, 4096, 10944, 46, 96, 8, 65536, 1e-5, attention_bias=True, moe_intermediate_size=1408)
_MISTRAL4 = _usual(131072, 4096, 12288, 36, 32, 32, 1048576, 1e-6, moe_intermediate_size=2048, v_head_dim=128)
_MISTRAL4 |= {"q_lora_rank": 1024, "kv_lora_rank": 256, "qk_nope_head_dim": 64, "qk_rope_head_dim": 64}
_GEMMA4 = _usual(262144, 2304, 9216, 30, 8, 4, 131072, 1e-6)
_GEMMA3N = {key: value for key, value in _usual(262400, 2048, 0, 35, 8, 2, 32768, 1e-6).items() if value}
_COHERE2 = {key: value for key, value in _usual(256000, 8192, 22528, 40, 64, 64, 8192, 0).items() if value}
_LFM2 = {key: value for key, value in _usual(65536, 2560, 12288, 32, 32, 8, 128000, 0).items() if value}

# By transformers' model_type. Those that are not here are what they are outside, and say everything.
TEXT_MODELS: Mapping[str, TextModel] = {
    "llama": TextModel("llama", _LLAMA),
    "mistral": TextModel("mistral", _usual(32000, 4096, 14336, 32, 32, 8, 131072, 1e-6)),
    "ministral3": TextModel("ministral3", _usual(131072, 4096, 14336, 34, 32, 8, 262144, 1e-5)),
    "mistral4": TextModel("mistral4", _MISTRAL4),
    "gemma": TextModel("gemma", _usual(256000, 3072, 24576, 28, 16, 16, 8192, 1e-6)),
    "gemma2": TextModel("gemma2", _usual(256000, 2304, 9216, 26, 8, 4, 8192, 1e-6)),
    "gemma3_text": TextModel("gemma3_text", _usual(262208, 2304, 9216, 26, 8, 4, 131072, 1e-6)),
    "gemma3n_text": TextModel("gemma3n_text", _GEMMA3N),
    "gemma4_text": TextModel("gemma4_text", _GEMMA4),
    "gemma4_unified_text": TextModel(
        "gemma4_text",
        _GEMMA4 | {"max_position_embeddings": 262144, "sliding_window": 1024, "hidden_size_per_layer_input": 0},
    ),
    "qwen2": TextModel("qwen2", _usual(151936, 4096, 22016, 32, 32, 32, 32768, 1e-6)),
    "qwen2_vl_text": TextModel("qwen2", _QWEN2_VL, three_positions=True),
    "qwen2_5_vl_text": TextModel("qwen2", _QWEN2_VL, three_positions=True),
    "qwen3": TextModel("qwen3", _usual(151936, 4096, 22016, 32, 32, 32, 32768, 1e-6)),
    "qwen3_moe": TextModel("qwen3_moe", _usual(151936, 2048, 6144, 24, 32, 4, 32768, 1e-6, moe_intermediate_size=768)),
    "qwen3_vl_text": TextModel("qwen3", _QWEN3_VL, three_positions=True),
    "qwen3_vl_moe_text": TextModel("qwen3_moe", _QWEN3_VL_MOE, three_positions=True),
    "qwen2_5_omni_text": TextModel(
        "qwen2",
        _usual(152064, 3584, 18944, 28, 28, 4, 32768, 1e-6, max_window_layers=28),
        three_positions=True,
    ),
    "qwen3_omni_moe_text": TextModel(
        "qwen3_moe",
        _usual(3584, 2048, 18944, 28, 28, 4, 32768, 1e-6, moe_intermediate_size=768, norm_topk_prob=True),
        three_positions=True,
    ),
    "glm4v_text": TextModel("glm4", _GLM4V, three_positions=True),
    "glm4v_moe_text": TextModel("glm4_moe", _GLM4V_MOE, three_positions=True),
    "cohere2": TextModel("cohere2", _COHERE2 | {"layer_norm_eps": 1e-5}),
    "lfm2": TextModel("lfm2", _LFM2 | {"norm_eps": 1e-5}),
    "exaone4": TextModel("exaone4", _usual(102400, 4096, 16384, 32, 32, 32, 2048, 1e-5)),
    "exaone4_5_text": TextModel("exaone4", _usual(102400, 4096, 16384, 32, 32, 32, 2048, 1e-5)),
    "granite": TextModel("granite", _LLAMA),
    "granite4_vision_text": TextModel("granite", _LLAMA),
    "hyperclovax": TextModel("hyperclovax", _LLAMA),
    "hunyuan_vl_text": TextModel(
        "hunyuan_v1_dense", _usual(290943, 4096, 11008, 32, 32, 0, 2048, 1e-5), three_positions=True
    ),
    "step3p5": TextModel("step3p5", _usual(128815, 4096, 11264, 45, 64, 8, 128000, 1e-5, moe_intermediate_size=1280)),
    "phi3": TextModel("phi3", _usual(32064, 3072, 8192, 32, 32, 0, 4096, 1e-5)),
    "phi4_multimodal": TextModel("phi3", _usual(200064, 3072, 8192, 32, 32, 8, 131072, 1e-5)),
}
