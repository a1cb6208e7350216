"""Gemma: norms that multiply by one more than their weight, embeddings by the root of the width."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tandem.worker.checkpoints.hugging_face_architectures.architecture import LAYER_NAMES, Architecture
from tandem.worker.checkpoints.hugging_face_gemma3n import gemma3n, with_one_size
from tandem.worker.checkpoints.hugging_face_gemma4 import gemma4

_NORMS_AROUND = LAYER_NAMES | {
    "attention.post_norm": "post_attention_layernorm.weight",
    "mlp.norm": "pre_feedforward_layernorm.weight",
    "mlp.post_norm": "post_feedforward_layernorm.weight",
}
_GEMMA4_NAMES = _NORMS_AROUND | {
    "scale": "layer_scalar",
    "per_layer.gate": "per_layer_input_gate.weight",
    "per_layer.output": "per_layer_projection.weight",
    "per_layer.norm": "post_per_layer_input_norm.weight",
    "router": "router.proj.weight",
    "router_norm": "router.scale",
    "expert_weights": "router.per_expert_scale",
    "experts.gate": "experts.gate_up_proj",
    "experts.up": "experts.gate_up_proj",
    "experts.down": "experts.down_proj",
    "beside.norm": "pre_feedforward_layernorm_2.weight",
    "beside.post_norm": "post_feedforward_layernorm_2.weight",
    "mlp.own_norm": "post_feedforward_layernorm_1.weight",
}
_GEMMA3N_NAMES = _NORMS_AROUND | {
    "per_layer.gate": "per_layer_input_gate.weight",
    "per_layer.output": "per_layer_projection.weight",
    "per_layer.norm": "post_per_layer_input_norm.weight",
    "altup.norm": "altup.router_norm.weight",
    "altup.router": "altup.modality_router.weight",
    "altup.predict": "altup.prediction_coefs.weight",
    "altup.correct": "altup.correction_coefs.weight",
    "altup.scale": "altup.correct_output_scale",
    "laurel.left": "laurel.linear_left.weight",
    "laurel.right": "laurel.linear_right.weight",
    "laurel.norm": "laurel.post_laurel_norm.weight",
}
_GEMMA: Mapping[str, Any] = {
    "special_ids": {"bos_token_id": 2, "eos_token_id": 1},
    "head_dim": 256,
    "attention_bias": False,
    "window_by_layer": True,
    "tied": True,
}
_GELU_AND_NORMS_AROUND = {"activation": "gelu_tanh", "norm_placement": "both"}

GEMMAS = (
    Architecture(
        "gemma",
        "GemmaForCausalLM",
        special_ids={"bos_token_id": 2, "eos_token_id": 1},
        head_dim=256,
        attention_bias=False,
        tied=True,
        query_scalar=False,
        norms_from_one=True,
        always={"activation": "gelu_tanh"},
    ),
    Architecture(
        "gemma2",
        "Gemma2ForCausalLM",
        _NORMS_AROUND,
        **_GEMMA,
        sliding_window=4096,
        full_every=2,
        attention_soft_cap=50.0,
        logit_soft_cap=30.0,
        norms_from_one=True,
        always=_GELU_AND_NORMS_AROUND,
    ),
    Architecture(
        "gemma3_text",
        "Gemma3ForCausalLM",
        _NORMS_AROUND,
        **_GEMMA,
        rope_theta=1e6,
        qk_norm="head",
        sliding_window=4096,
        full_every=6,
        logit_soft_cap=0.0,
        window_rope=10000.0,
        norms_from_one=True,
        always=_GELU_AND_NORMS_AROUND,
    ),
    Architecture(
        "gemma4_text",
        "Gemma4ForCausalLM",
        _GEMMA4_NAMES,
        **_GEMMA,
        rope_stated=True,
        qk_norm="head",
        sliding_window=512,
        full_every=6,
        window_rope=10000.0,
        attention_multiplier=1.0,
        logit_soft_cap=0.0,
        proportional=True,
        further=gemma4,
        always=_GELU_AND_NORMS_AROUND | {"value_norm": True, "layer_scale": True},
    ),
    Architecture(
        "gemma3n_text",
        "Gemma3nForCausalLM",
        _GEMMA3N_NAMES,
        **_GEMMA,
        rope_theta=1e6,
        qk_norm="head",
        intermediate_size=16384,
        sliding_window=512,
        full_every=5,
        window_rope=10000.0,
        attention_multiplier=1.0,
        logit_soft_cap=30.0,
        prepared=with_one_size,
        further=gemma3n,
        always=_GELU_AND_NORMS_AROUND | {"value_norm": True},
    ),
    Architecture(
        "vaultgemma",
        "VaultGemmaForCausalLM",
        LAYER_NAMES | {"mlp.norm": "pre_feedforward_layernorm.weight"},
        **_GEMMA,
        sliding_window=4096,
        full_every=2,
        attention_soft_cap=50.0,
        logit_soft_cap=30.0,
        norms_from_one=True,
        always={"activation": "gelu_tanh"},
    ),
)
