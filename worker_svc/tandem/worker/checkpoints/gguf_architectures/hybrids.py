"""Models some of whose layers have states."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tandem.worker.checkpoints import gguf_further as further
from tandem.worker.checkpoints import gguf_kimi as kimi
from tandem.worker.checkpoints import gguf_minimax as minimax
from tandem.worker.checkpoints import gguf_states as states
from tandem.worker.checkpoints.gguf_architectures.architecture import LAYER_NAMES, GgufArchitecture, GgufExperts
from tandem.worker.checkpoints.gguf_architectures.names import (
    MLP_BIASES,
    POST_NORM,
    ROUTER_BIAS,
    SHARED,
    SHARED_ROUTER,
    SIGMOID,
)
from tandem.worker.checkpoints.gguf_hybrids import LAYER_NAMES as HYBRID_NAMES
from tandem.worker.checkpoints.gguf_latents import LAYER_NAMES as LATENT_NAMES
from tandem.worker.checkpoints.model_parts.experts import LFM2_SUM_OFFSET

_OFFSET_SIGMOID: Mapping[str, Any] = {**SIGMOID, "sum_offset": LFM2_SUM_OFFSET}
_UNGATED_EXPERTS: Mapping[str, Any] = {**SIGMOID, "gated": False, "activation": "relu2"}
_HYBRID: Mapping[str, Any] = {
    "qk_norm": "head",
    "partly_rotated": True,
    "layer_names": LAYER_NAMES | POST_NORM | HYBRID_NAMES | SHARED | SHARED_ROUTER,
    "experts": GgufExperts(shared="size", always={"shared_router": True}),
    "drafting_layers": True,
    "hybrid": True,
    "further": further.hybrid,
    "always": {"attention_gate": True},
}
_LFM2: Mapping[str, Any] = {
    "qk_norm": "head",
    "folded": True,
    "layer_names": LAYER_NAMES | states.LFM2_NAMES | ROUTER_BIAS,
    "further": states.lfm2,
}

HYBRIDS = {
    "kimi-linear": GgufArchitecture(
        "kimi_linear",
        partly_rotated=True,
        layer_names=LAYER_NAMES | SHARED | LATENT_NAMES | kimi.LAYER_NAMES,
        experts=GgufExperts(shared="count", scaled=True, dense_first=True),
        prepared=kimi.with_heads,
        further=kimi.kimi_linear,
    ),
    "minimax-01": GgufArchitecture(
        "minimax",
        partly_rotated=True,
        layer_names=LAYER_NAMES | minimax.LAYER_NAMES,
        prepared=minimax.without_scale,
        further=minimax.minimax,
    ),
    "qwen3next": GgufArchitecture("qwen3_next", **_HYBRID),
    "qwen35": GgufArchitecture("qwen3_5_text", **_HYBRID),
    "qwen35moe": GgufArchitecture("qwen3_5_moe_text", **_HYBRID),
    "lfm2": GgufArchitecture("lfm2", **_LFM2),
    "lfm2moe": GgufArchitecture("lfm2_moe", experts=GgufExperts(dense_first=True, always=_OFFSET_SIGMOID), **_LFM2),
    "granitehybrid": GgufArchitecture(
        "granitemoehybrid",
        permuted=True,
        folded=True,
        layer_names=LAYER_NAMES | SHARED | states.MAMBA_NAMES,
        experts=GgufExperts(shared="size"),
        further=states.granite_hybrid,
    ),
    "nemotron_h": GgufArchitecture(
        "nemotron_h",
        permuted=True,
        folded=True,
        unrotated=True,
        norm_eps_else="attention.layer_norm_epsilon",
        layer_names=LAYER_NAMES | MLP_BIASES | states.MAMBA_NAMES,
        further=states.nemotron_h,
        always={"activation": "relu2", "gated": False},
    ),
    "nemotron_h_moe": GgufArchitecture(
        "nemotron_h",
        permuted=True,
        folded=True,
        unrotated=True,
        norm_eps_else="attention.layer_norm_epsilon",
        layer_names=LAYER_NAMES | SHARED | states.MAMBA_NAMES | states.LATENT_EXPERTS,
        experts=GgufExperts(normalized=None, shared="size", scaled=True, always=_UNGATED_EXPERTS),
        further=states.nemotron_h_moe,
        always={"activation": "relu2", "gated": False},
    ),
    "falcon-h1": GgufArchitecture(
        "falcon_h1",
        layer_names=LAYER_NAMES | MLP_BIASES | states.MAMBA_NAMES | {"mlp.norm": "ffn_norm"},
        further=states.falcon_h1,
    ),
}
