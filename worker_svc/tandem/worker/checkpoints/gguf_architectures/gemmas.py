"""Gemma."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tandem.worker.checkpoints import gguf_further as further
from tandem.worker.checkpoints import gguf_gemma3n as gemma3n
from tandem.worker.checkpoints.gguf_architectures.architecture import LAYER_NAMES, GgufArchitecture
from tandem.worker.checkpoints.gguf_architectures.names import NORMS_AROUND

_GEMMA: Mapping[str, Any] = {"activation": "gelu_tanh", "norm_placement": "both"}
_GEMMA4_NAMES = {
    "scale": "layer_output_scale.weight",
    "per_layer.gate": "inp_gate.weight",
    "per_layer.output": "proj.weight",
    "per_layer.norm": "post_norm.weight",
    "router_norm": "ffn_gate_inp.scale",
    "expert_weights": "ffn_down_exps.scale",
    "beside.norm": "pre_ffw_norm_2.weight",
    "beside.post_norm": "post_ffw_norm_2.weight",
    "mlp.own_norm": "post_ffw_norm_1.weight",
}

GEMMAS = {
    "gemma2": GgufArchitecture(
        "gemma2",
        layer_names=LAYER_NAMES | NORMS_AROUND,
        full_every=2,
        window=4096,
        soft_caps=(50.0, 30.0),
        gemma_width=46,
        always=_GEMMA,
    ),
    "gemma3": GgufArchitecture(
        "gemma3_text",
        qk_norm="head",
        layer_names=LAYER_NAMES | NORMS_AROUND,
        full_every=6,
        window_rope=10000.0,
        gemma_width=62,
        always=_GEMMA,
    ),
    "gemma4": GgufArchitecture(
        "gemma4_text",
        qk_norm="head",
        divisors=True,
        layer_names=LAYER_NAMES | NORMS_AROUND | _GEMMA4_NAMES,
        full_every=6,
        window_rope=10000.0,
        soft_caps=(0.0, 30.0),
        folded=True,
        further=further.gemma4,
        always=dict(_GEMMA) | {"value_norm": True, "layer_scale": True},
    ),
    "gemma3n": GgufArchitecture(
        "gemma3n_text",
        qk_norm="head",
        layer_names=LAYER_NAMES | NORMS_AROUND | gemma3n.LAYER_NAMES,
        full_every=5,
        window_rope=10000.0,
        soft_caps=(0.0, 30.0),
        keys_everywhere=True,
        prepared=gemma3n.with_one_size,
        further=gemma3n.gemma3n,
        always=dict(_GEMMA) | {"value_norm": True},
    ),
    "gemma": GgufArchitecture("gemma", gemma_width=-1, always={"activation": "gelu_tanh"}),
}
