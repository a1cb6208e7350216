"""Where tensors are that architectures of several kinds have, and other facts that they share."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tandem.worker.checkpoints.hugging_face_architectures.architecture import LAYER_NAMES
from tandem.worker.checkpoints.hugging_face_granite_swa import granite_swa

NORM_BIASES = {
    "attention.norm_bias": "input_layernorm.bias",
    "mlp.norm_bias": "post_attention_layernorm.bias",
}
SHARED_EXPERT = {
    "shared_router": "mlp.shared_expert_gate.weight",
    "shared.gate": "mlp.shared_expert.gate_proj.weight",
    "shared.up": "mlp.shared_expert.up_proj.weight",
    "shared.down": "mlp.shared_expert.down_proj.weight",
}
NORMS_AFTER = LAYER_NAMES | {
    "attention.norm": "post_attention_layernorm.weight",
    "mlp.norm": "post_feedforward_layernorm.weight",
}
GLM4_MOE_NAMES = LAYER_NAMES | {
    "router_bias": "mlp.gate.e_score_correction_bias",
    "shared.gate": "mlp.shared_experts.gate_proj.weight",
    "shared.up": "mlp.shared_experts.up_proj.weight",
    "shared.down": "mlp.shared_experts.down_proj.weight",
    **{f"shared.{part}_bias": f"mlp.shared_experts.{part}_proj.bias" for part in ("gate", "up", "down")},
}
MIXTRAL_NAMES = LAYER_NAMES | {
    "router": "block_sparse_moe.gate.weight",
    "experts.gate": "block_sparse_moe.experts.{}.w1.weight",
    "experts.up": "block_sparse_moe.experts.{}.w3.weight",
    "experts.down": "block_sparse_moe.experts.{}.w2.weight",
}
LATENT_NAMES = {
    "attention.query_latent": "self_attn.q_a_proj.weight",
    "attention.query_latent_bias": "self_attn.q_a_proj.bias",
    "attention.query_norm": "self_attn.q_a_layernorm.weight",
    "attention.query_up": "self_attn.q_b_proj.weight",
    "attention.latent": "self_attn.kv_a_proj_with_mqa.weight",
    "attention.latent_bias": "self_attn.kv_a_proj_with_mqa.bias",
    "attention.latent_norm": "self_attn.kv_a_layernorm.weight",
    "attention.key_up": "self_attn.kv_b_proj.weight",
    "attention.value_up": "self_attn.kv_b_proj.weight",
}
GRANITE_MOE_NAMES = LAYER_NAMES | {
    "router": "block_sparse_moe.router.layer.weight",
    "experts.gate": "block_sparse_moe.input_linear.weight",
    "experts.up": "block_sparse_moe.input_linear.weight",
    "experts.down": "block_sparse_moe.output_linear.weight",
}
HUNYUAN_NAMES = LAYER_NAMES | {
    "attention.q_norm": "self_attn.query_layernorm.weight",
    "attention.k_norm": "self_attn.key_layernorm.weight",
}
SINKS = {"attention.sinks": "self_attn.sinks"}
GRANITE_SWA: Mapping[str, Any] = {
    "attention_bias": False,
    "attention_multiplier": 1.0,
    "sliding_window": 128,
    "window_by_layer": True,
    "full_every": 4,
    "full_first": True,
    "further": granite_swa,
    "always": {"sinks": True},
}
OLMO: Mapping[str, Any] = {
    "layer_names": NORMS_AFTER,
    "special_ids": {"eos_token_id": 50279},
    "qk_norm": "whole",
    "attention_bias": False,
    "always": {"norm_placement": "after"},
}
QWEN_WINDOW: Mapping[str, Any] = {"sliding_window": 4096, "use_sliding_window": True}
