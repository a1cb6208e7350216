"""The architectures that are served, a row each: transformers' class, the defaults of its configuration, and where its
tensors are. Which fields each knows: `hugging_face_fields.py`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

_LAYER_NAMES = {
    "attention.norm": "input_layernorm.weight",
    "attention.q": "self_attn.q_proj.weight",
    "attention.k": "self_attn.k_proj.weight",
    "attention.v": "self_attn.v_proj.weight",
    "attention.output": "self_attn.o_proj.weight",
    "attention.q_bias": "self_attn.q_proj.bias",
    "attention.k_bias": "self_attn.k_proj.bias",
    "attention.v_bias": "self_attn.v_proj.bias",
    "attention.output_bias": "self_attn.o_proj.bias",
    "attention.q_norm": "self_attn.q_norm.weight",
    "attention.k_norm": "self_attn.k_norm.weight",
    "mlp.norm": "post_attention_layernorm.weight",
    "mlp.gate": "mlp.gate_proj.weight",
    "mlp.up": "mlp.up_proj.weight",
    "mlp.down": "mlp.down_proj.weight",
    "router": "mlp.gate.weight",
    "experts.gate": "mlp.experts.{}.gate_proj.weight",
    "experts.up": "mlp.experts.{}.up_proj.weight",
    "experts.down": "mlp.experts.{}.down_proj.weight",
}
_STARCODER_NAMES = _LAYER_NAMES | {
    "attention.norm_bias": "input_layernorm.bias",
    "mlp.norm_bias": "post_attention_layernorm.bias",
    "mlp.up": "mlp.c_fc.weight",
    "mlp.up_bias": "mlp.c_fc.bias",
    "mlp.down": "mlp.c_proj.weight",
    "mlp.down_bias": "mlp.c_proj.bias",
}
_NORMS_AFTER = _LAYER_NAMES | {
    "attention.norm": "post_attention_layernorm.weight",
    "mlp.norm": "post_feedforward_layernorm.weight",
}
_NORMS_AROUND = _LAYER_NAMES | {
    "attention.post_norm": "post_attention_layernorm.weight",
    "mlp.norm": "pre_feedforward_layernorm.weight",
    "mlp.post_norm": "post_feedforward_layernorm.weight",
}
_MIXTRAL_NAMES = _LAYER_NAMES | {
    "router": "block_sparse_moe.gate.weight",
    "experts.gate": "block_sparse_moe.experts.{}.w1.weight",
    "experts.up": "block_sparse_moe.experts.{}.w3.weight",
    "experts.down": "block_sparse_moe.experts.{}.w2.weight",
}
EMBEDDING, OUTPUT, NORM = "model.embed_tokens.weight", "lm_head.weight", "model.norm.weight"
NORM_BIAS = "model.norm.bias"


@dataclass(frozen=True, slots=True)
class Architecture:
    """One of transformers' model classes, and the defaults of its configuration."""

    name: str  # transformers' model_type, and what we call it
    class_name: str
    layer_names: Mapping[str, str] = field(default_factory=lambda: _LAYER_NAMES, repr=False)
    special_ids: Mapping[str, int] = field(default_factory=lambda: {"bos_token_id": 1, "eos_token_id": 2})
    rope_theta: float = 10000.0
    head_dim: int | None = None  # None: the hidden size over the heads
    qkv_bias: bool = False
    qk_norm: Literal["head", "whole"] | None = None
    attention_bias: bool | None = None  # the default of this field, which gives biases to q, k, v and the output
    output_bias_apart: bool = False  # whether the output's bias is a field of its own, `attention_out_bias`
    sliding_window: int | None = None  # where the file does not say it
    use_sliding_window: bool = False  # whether it knows this field, without which it has no window
    use_bias: bool | None = None  # the default of this field, which gives biases to all of a layer's matrices
    norms_from_one: bool = False  # norms multiply by 1 + weight
    norm_eps: str = "rms_norm_eps"  # which field says it
    logit_scale: float = 1.0  # the default of this field
    rotated_windows: bool = False  # layers without a window are not rotated
    full_every: int = 0  # without `layer_types`, layers whose number, from 1 on, is a multiple of it have no window
    window_rope: float | None = None  # the default theta of layers with a window, which rotate without the scaling
    attention_multiplier: float | None = None  # the default of this field
    window_by_layer: bool = False  # whether the window can be that of some layers only
    tied: bool = False  # the default of `tie_word_embeddings`
    no_rope_layers: bool = False  # whether it knows this field, of layers that are not rotated
    interleaved: bool = False  # RoPE pairs are neighbours
    query_growth: bool = False  # whether queries grow with their position
    always: Mapping[str, Any] = field(default_factory=dict)  # fields of ModelConfig that are so in every such model

    def stored_name(self, name: str) -> str:
        """Returns a canonical tensor's name in the files."""
        if not name.startswith("layers."):
            return {"embedding": EMBEDDING, "output": OUTPUT, "norm": NORM, "norm_bias": NORM_BIAS}[name]
        _, layer, part = name.split(".", 2)
        if part.startswith("experts."):
            _, expert, matrix = part.split(".")
            stored = self.layer_names[f"experts.{matrix}"].format(expert)
        else:
            stored = self.layer_names[part]
        return f"model.layers.{layer}.{stored}"


_OLMO: Mapping[str, Any] = {
    "layer_names": _NORMS_AFTER,
    "special_ids": {"eos_token_id": 50279},
    "qk_norm": "whole",
    "attention_bias": False,
    "always": {"norm_placement": "after"},
}
_QWEN_WINDOW: Mapping[str, Any] = {"sliding_window": 4096, "use_sliding_window": True}
ARCHITECTURES = {
    each.name: each
    for each in (
        Architecture("llama", "LlamaForCausalLM", attention_bias=False),
        Architecture("mistral", "MistralForCausalLM", sliding_window=4096),
        Architecture("ministral", "MinistralForCausalLM", sliding_window=4096, window_by_layer=True),
        Architecture("qwen2", "Qwen2ForCausalLM", special_ids={}, qkv_bias=True, **_QWEN_WINDOW, window_by_layer=True),
        Architecture(
            "qwen3",
            "Qwen3ForCausalLM",
            special_ids={},
            head_dim=128,
            qk_norm="head",
            attention_bias=False,
            **_QWEN_WINDOW,
            window_by_layer=True,
        ),
        Architecture("mixtral", "MixtralForCausalLM", _MIXTRAL_NAMES, rope_theta=1e6),
        Architecture(
            "qwen3_moe", "Qwen3MoeForCausalLM", special_ids={}, qk_norm="head", attention_bias=False, **_QWEN_WINDOW
        ),
        Architecture(
            "smollm3",
            "SmolLM3ForCausalLM",
            special_ids={"bos_token_id": 128000, "eos_token_id": 128001},
            rope_theta=2e6,
            attention_bias=False,
            use_sliding_window=True,
            tied=True,
            no_rope_layers=True,
        ),
        Architecture("ministral3", "Ministral3ForCausalLM", rope_theta=1e6, head_dim=128, query_growth=True),
        Architecture(
            "seed_oss",
            "SeedOssForCausalLM",
            special_ids={"bos_token_id": 0, "eos_token_id": 2},
            head_dim=128,
            attention_bias=True,
            output_bias_apart=True,
        ),
        Architecture("internlm3", "InternLM3ForCausalLM", head_dim=128),
        Architecture(
            "arcee",
            "ArceeForCausalLM",
            special_ids={"bos_token_id": 128000, "eos_token_id": 128001},
            attention_bias=False,
            always={"activation": "relu2", "gated": False},
        ),
        Architecture("ernie4_5", "Ernie4_5ForCausalLM", rope_theta=500000.0, head_dim=128, tied=True, interleaved=True),
        Architecture("granite", "GraniteForCausalLM", attention_bias=False, attention_multiplier=1.0),
        Architecture(
            "starcoder2",
            "Starcoder2ForCausalLM",
            _STARCODER_NAMES,
            special_ids={"bos_token_id": 50256, "eos_token_id": 50256},
            tied=True,
            use_bias=True,
            norm_eps="norm_epsilon",
            always={"activation": "gelu_tanh", "gated": False, "norm": "layer", "norm_bias": True},
        ),
        Architecture(
            "cohere2",
            "Cohere2ForCausalLM",
            special_ids={"bos_token_id": 5, "eos_token_id": 255001},
            attention_bias=False,
            sliding_window=4096,
            window_by_layer=True,
            full_every=4,
            tied=True,
            interleaved=True,
            norm_eps="layer_norm_eps",
            logit_scale=0.0625,
            rotated_windows=True,
            always={"norm": "layer", "parallel": True},
        ),
        Architecture(
            "gemma3_text",
            "Gemma3ForCausalLM",
            _NORMS_AROUND,
            special_ids={"bos_token_id": 2, "eos_token_id": 1},
            rope_theta=1e6,
            head_dim=256,
            qk_norm="head",
            attention_bias=False,
            sliding_window=4096,
            window_by_layer=True,
            full_every=6,
            window_rope=10000.0,
            tied=True,
            norms_from_one=True,
            always={"activation": "gelu_tanh", "norm_placement": "both"},
        ),
        Architecture("olmo2", "Olmo2ForCausalLM", **_OLMO),
        Architecture(
            "olmo3",
            "Olmo3ForCausalLM",
            **_OLMO,
            rope_theta=500000.0,
            sliding_window=4096,
            window_by_layer=True,
            full_every=4,
            window_rope=500000.0,
        ),
    )
}
