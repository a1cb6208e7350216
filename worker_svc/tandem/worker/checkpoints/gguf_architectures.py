"""The architectures of llama.cpp that are served, a row each: what their files leave unsaid, and where tensors are.

Which keys each knows: `gguf_fields.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

LAYER_NAMES = {
    "attention.norm": "attn_norm.weight",
    "attention.q": "attn_q.weight",
    "attention.k": "attn_k.weight",
    "attention.v": "attn_v.weight",
    "attention.output": "attn_output.weight",
    "attention.q_bias": "attn_q.bias",
    "attention.k_bias": "attn_k.bias",
    "attention.v_bias": "attn_v.bias",
    "attention.output_bias": "attn_output.bias",
    "attention.q_norm": "attn_q_norm.weight",
    "attention.k_norm": "attn_k_norm.weight",
    "mlp.norm": "ffn_norm.weight",
    "mlp.gate": "ffn_gate.weight",
    "mlp.up": "ffn_up.weight",
    "mlp.down": "ffn_down.weight",
    "attention.norm_bias": "attn_norm.bias",
    "mlp.norm_bias": "ffn_norm.bias",
    "mlp.up_bias": "ffn_up.bias",
    "mlp.down_bias": "ffn_down.bias",
    "router": "ffn_gate_inp.weight",
    "experts.gate": "ffn_gate_exps.weight",
    "experts.up": "ffn_up_exps.weight",
    "experts.down": "ffn_down_exps.weight",
}
TOP_NAMES = {
    "embedding": "token_embd.weight",
    "output": "output.weight",
    "norm": "output_norm.weight",
    "norm_bias": "output_norm.bias",
}


@dataclass(frozen=True, slots=True)
class GgufArchitecture:
    """What a file that says this in `general.architecture` leaves unsaid."""

    name: str  # ours
    permuted: bool = False  # RoPE pairs of q and k are neighbours
    qk_norm: Literal["head", "whole"] | None = None
    qkv_bias: bool = False
    divisors: bool = False  # llama.cpp reads a tensor of RoPE's divisors
    norm_eps: str = "attention.layer_norm_rms_epsilon"  # which key says it
    full_every: int = 0  # layers whose number is a multiple of it have no window and are not rotated; 0: no windows
    logit_scale_divides: bool = True
    normalized: bool = True  # the chosen experts' weights add up to 1
    unrotated_every: int = 0  # layers whose number, from 1 on, is a multiple of it are not rotated
    layer_names: Mapping[str, str] = field(default_factory=lambda: LAYER_NAMES, repr=False)
    always: Mapping[str, Any] = field(default_factory=dict)  # fields of ModelConfig that are so in every such model


_NORMS_AFTER = {"attention.norm": "post_attention_norm.weight", "mlp.norm": "post_ffw_norm.weight"}
_POST_NORM = {"mlp.norm": "post_attention_norm.weight"}
ARCHITECTURES = {
    "llama": GgufArchitecture("llama", permuted=True, divisors=True),
    "qwen2": GgufArchitecture("qwen2", qkv_bias=True),
    "qwen3": GgufArchitecture("qwen3", qk_norm="head"),
    "qwen3moe": GgufArchitecture("qwen3_moe", qk_norm="head"),
    "smollm3": GgufArchitecture("smollm3", permuted=True, unrotated_every=4),
    "seed_oss": GgufArchitecture("seed_oss", layer_names=LAYER_NAMES | _POST_NORM),
    "arcee": GgufArchitecture("arcee", permuted=True, always={"activation": "relu2", "gated": False}),
    "ernie4_5": GgufArchitecture("ernie4_5", permuted=True),
    "granite": GgufArchitecture("granite", permuted=True),
    "granitemoe": GgufArchitecture("granitemoe", permuted=True),
    "olmoe": GgufArchitecture("olmoe", qk_norm="whole", normalized=False),
    "starcoder2": GgufArchitecture(
        "starcoder2",
        norm_eps="attention.layer_norm_epsilon",
        always={"activation": "gelu_tanh", "gated": False, "norm": "layer", "norm_bias": True},
    ),
    "cohere2": GgufArchitecture(
        "cohere2",
        permuted=True,
        norm_eps="attention.layer_norm_epsilon",
        full_every=4,
        logit_scale_divides=False,
        unrotated_every=4,
        always={"norm": "layer", "parallel": True},
    ),
    "olmo2": GgufArchitecture(
        "olmo2",
        qk_norm="whole",
        layer_names=LAYER_NAMES | _NORMS_AFTER,
        always={"norm_placement": "after"},
    ),
}
