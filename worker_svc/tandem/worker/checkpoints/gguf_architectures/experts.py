"""Models whose feed-forward parts are choices among experts."""

from __future__ import annotations

from tandem.worker.checkpoints import gguf_further as further
from tandem.worker.checkpoints import gguf_kinds as kinds
from tandem.worker.checkpoints import gguf_mimo as mimo
from tandem.worker.checkpoints.gguf_architectures.architecture import LAYER_NAMES, GgufArchitecture, GgufExperts
from tandem.worker.checkpoints.gguf_architectures.names import (
    NORMS_AROUND,
    POST_NORM,
    ROUTER_BIAS,
    SHARED,
    SHARED_ROUTER,
    SIGMOID,
    WITHOUT_OUTPUT_BIAS,
)
from tandem.worker.checkpoints.model_parts.mlp import ClampedSwiGLU

_GATES = {"attention.gate": "attn_gate.weight", "router_bias": "exp_probs_b.bias"}

EXPERTS = {
    "qwen3moe": GgufArchitecture("qwen3_moe", qk_norm="head"),
    # Of models that see, whose files have the text model alone.
    "qwen3vlmoe": GgufArchitecture("qwen3_moe", qk_norm="head"),
    "granitemoe": GgufArchitecture(
        "granitemoe",
        permuted=True,
        layer_names=LAYER_NAMES | SHARED,
        experts=GgufExperts(shared="size", may_share=True),
        sharing="granitemoeshared",
    ),
    "olmoe": GgufArchitecture("olmoe", qk_norm="whole", experts=GgufExperts(normalized=False)),
    "qwen2moe": GgufArchitecture(
        "qwen2_moe",
        layer_names=LAYER_NAMES | SHARED | SHARED_ROUTER,
        experts=GgufExperts(normalized=False, shared="size", always={"shared_router": True}),
    ),
    "phimoe": GgufArchitecture(
        "phimoe",
        longrope=True,
        windowed="phimoe",
        experts=GgufExperts(normalized=False, always={"score": "mixer", "jitter": 0.01}),
        always={"norm": "layer", "norm_bias": True, "logit_bias": True},
    ),
    "glm4moe": GgufArchitecture(
        "glm4_moe",
        may_norm=True,
        partly_rotated=True,
        layer_names=LAYER_NAMES | POST_NORM | SHARED | ROUTER_BIAS,
        experts=GgufExperts(normalized=None, shared="count", scaled=True, dense_first=True, always=SIGMOID),
        drafting_layers=True,
    ),
    "mimo2": GgufArchitecture(
        "mimo_v2_flash",
        partly_rotated=True,
        full_every=6,
        window_rope=0.0,
        layer_names=LAYER_NAMES | {"attention.sinks": "attn_sinks.weight", "router_bias": "exp_probs_b.bias"},
        experts=GgufExperts(always=SIGMOID),
        prepared=mimo.with_long_values,
        further=mimo.mimo,
        always={"sinks": True, "sinks_in_windows": True},
    ),
    "step35": GgufArchitecture(
        "step3p5",
        qk_norm="head",
        divisors=True,
        longer_divisors=True,
        partly_rotated=True,
        full_every=4,
        window_rope=0.0,
        layer_names=LAYER_NAMES | SHARED | _GATES,
        experts=GgufExperts(normalized=None, shared="size", scaled=True, dense_first=True, always=SIGMOID),
        drafting_layers=True,
        prepared=kinds.step_keys,
        further=kinds.step,
        always={"attention_gate": True, "gate_by_head": True},
    ),
    "laguna": GgufArchitecture(
        "laguna",
        qk_norm="head",
        partly_rotated=True,
        windowed="laguna",
        window_rope=0.0,
        layer_names=LAYER_NAMES | SHARED | _GATES,
        experts=GgufExperts(normalized=None, shared="size", scaled=True, dense_first=True, always=SIGMOID),
        prepared=kinds.laguna_keys,
        further=kinds.laguna,
        always={"attention_gate": True, "gate_activation": "softplus"},
    ),
    "afmoe": GgufArchitecture(
        "afmoe",
        qk_norm="head",
        full_every=4,
        unrotated_every=4,
        layer_names=LAYER_NAMES | NORMS_AROUND | SHARED | _GATES,
        experts=GgufExperts(normalized=None, shared="count", scaled=True, dense_first=True, always=SIGMOID),
        further=further.afmoe,
        always={"norm_placement": "both", "attention_gate": True},
    ),
    "minimax-m2": GgufArchitecture(
        "minimax_m2",
        qk_norm="whole",
        partly_rotated=True,
        layer_names=LAYER_NAMES | ROUTER_BIAS,
        experts=GgufExperts(always=SIGMOID),
    ),
    "gpt-oss": GgufArchitecture(
        "gpt_oss",
        layer_names=LAYER_NAMES
        | POST_NORM
        | {"attention.sinks": "attn_sinks.weight", "router_logit_bias": "ffn_gate_inp.bias"}
        | {f"experts.{part}_bias": f"ffn_{part}_exps.bias" for part in ("gate", "up", "down")},
        full_every=2,
        truncate=False,
        experts=GgufExperts(always={"biases": True, "clamped": ClampedSwiGLU(1.702, 7.0)}),
        always={"sinks": True},
    ),
    "llama4": GgufArchitecture(
        "llama4_text",
        permuted=True,
        divisors=True,
        layer_names=LAYER_NAMES | SHARED,
        full_every=4,
        window=8192,
        unrotated_every=4,
        experts=GgufExperts(normalized=False, always={"score": "sigmoid", "weighs_input": True}),
        further=further.llama4,
        always={"chunked": True},
    ),
    "cohere2moe": GgufArchitecture(
        "cohere2_moe",
        permuted=True,
        norm_eps_else="attention.layer_norm_epsilon",
        norm_by_eps=True,
        full_every=4,
        logit_scale_divides=False,
        layer_names=LAYER_NAMES | SHARED,
        experts=GgufExperts(normalized=None, shared="count", may_share=True, scaled=True, dense_first=True),
        further=further.cohere2_moe,
        always={"parallel": True},
    ),
    "hy_v3": GgufArchitecture(
        "hy_v3",
        qk_norm="head",
        layer_names=LAYER_NAMES | SHARED | {"router_bias": "exp_probs_b"},
        experts=GgufExperts(normalized=None, shared="size", scaled=True, always=SIGMOID),
        drafting_layers=True,
        further=further.hunyuan3,
    ),
    "hunyuan-moe": GgufArchitecture(
        "hunyuan_v1_moe",
        qk_norm="behind",
        layer_names=WITHOUT_OUTPUT_BIAS | SHARED,
        experts=GgufExperts(shared="size"),
    ),
    "ernie4_5-moe": GgufArchitecture(
        "ernie4_5_moe",
        permuted=True,
        layer_names=LAYER_NAMES | SHARED | ROUTER_BIAS,
        experts=GgufExperts(shared="size", may_share=True, dense_first=True, always={"biased": True}),
    ),
    "dots1": GgufArchitecture(
        "dots1",
        qk_norm="head",
        layer_names=LAYER_NAMES | SHARED | ROUTER_BIAS,
        experts=GgufExperts(normalized=None, shared="count", scaled=True, dense_first=True, always=SIGMOID),
    ),
}
