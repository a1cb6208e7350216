"""Models some of whose layers have states; see `recurrences.py` of checkpoints."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tandem.worker.checkpoints.hugging_face_architectures.architecture import LAYER_NAMES, Architecture, ExpertFields
from tandem.worker.checkpoints.hugging_face_architectures.names import (
    GLM4_MOE_NAMES,
    GRANITE_MOE_NAMES,
    LATENT_NAMES,
    MIXTRAL_NAMES,
    NORMS_AFTER,
    SHARED_EXPERT,
)
from tandem.worker.checkpoints.hugging_face_kimi import kimi_linear, with_usual_names
from tandem.worker.checkpoints.hugging_face_lfm2 import lfm2, lfm2_moe, lfm3
from tandem.worker.checkpoints.hugging_face_ling import ling
from tandem.worker.checkpoints.hugging_face_ling import with_usual_names as ling_names
from tandem.worker.checkpoints.hugging_face_mamba import bamba, falcon_h1, granite_hybrid, nemotron_h, with_layers
from tandem.worker.checkpoints.hugging_face_minimax import minimax
from tandem.worker.checkpoints.hugging_face_minimax import with_usual_names as minimax_names
from tandem.worker.checkpoints.hugging_face_olmo_hybrid import olmo_hybrid

_HYBRID_NAMES = LAYER_NAMES | {
    "delta_net.qkv": "linear_attn.in_proj_qkv.weight",
    "delta_net.z": "linear_attn.in_proj_z.weight",
    "delta_net.b": "linear_attn.in_proj_b.weight",
    "delta_net.a": "linear_attn.in_proj_a.weight",
    "delta_net.filter": "linear_attn.conv1d.weight",
    "delta_net.rate": "linear_attn.A_log",
    "delta_net.bias": "linear_attn.dt_bias",
    "delta_net.norm_weight": "linear_attn.norm.weight",
    "delta_net.output": "linear_attn.out_proj.weight",
    **SHARED_EXPERT,
}
_LFM2_NAMES = LAYER_NAMES | {
    "attention.norm": "operator_norm.weight",
    "attention.output": "self_attn.out_proj.weight",
    "attention.q_norm": "self_attn.q_layernorm.weight",
    "attention.k_norm": "self_attn.k_layernorm.weight",
    "mlp.norm": "ffn_norm.weight",
    "mlp.gate": "feed_forward.w1.weight",
    "mlp.up": "feed_forward.w3.weight",
    "mlp.down": "feed_forward.w2.weight",
    "router": "feed_forward.gate.weight",
    "router_bias": "feed_forward.expert_bias",
    "experts.gate": "feed_forward.experts.{}.w1.weight",
    "experts.up": "feed_forward.experts.{}.w3.weight",
    "experts.down": "feed_forward.experts.{}.w2.weight",
    "short_convolution.gates_and_input": "conv.in_proj.weight",
    "short_convolution.gates_and_input_bias": "conv.in_proj.bias",
    "short_convolution.filter": "conv.conv.weight",
    "short_convolution.filter_bias": "conv.conv.bias",
    "short_convolution.output": "conv.out_proj.weight",
    "short_convolution.output_bias": "conv.out_proj.bias",
}
_LFM3_NAMES = _LFM2_NAMES | {
    "attention.gate": "self_attn.gate_proj.weight",
    "attention.output": "self_attn.o_proj.weight",
    "attention.q_norm": "self_attn.q_norm.weight",
    "attention.k_norm": "self_attn.k_norm.weight",
    "attention.post_norm": "post_operator_norm.weight",
    "mlp.post_norm": "post_ffn_norm.weight",
}


def _mamba_names(module: str) -> dict[str, str]:
    inputs = ("z", "channels", "dt")
    return {
        **{f"mamba.{name}": f"{module}.in_proj.weight" for name in inputs},
        **{f"mamba.{name}_bias": f"{module}.in_proj.bias" for name in inputs},
        "mamba.filter": f"{module}.conv1d.weight",
        "mamba.filter_bias": f"{module}.conv1d.bias",
        "mamba.rate": f"{module}.A_log",
        "mamba.bias": f"{module}.dt_bias",
        "mamba.skip": f"{module}.D",
        "mamba.norm_weight": f"{module}.norm.weight",
        "mamba.output": f"{module}.out_proj.weight",
        "mamba.output_bias": f"{module}.out_proj.bias",
    }


_GRANITE_HYBRID_NAMES = (
    GRANITE_MOE_NAMES
    | _mamba_names("mamba")
    | {
        f"{which}.{matrix}": f"shared_mlp.{stored}_linear.weight"
        for which in ("mlp", "shared")
        for matrix, stored in (("gate", "input"), ("up", "input"), ("down", "output"))
    }
)
_KINDS = {"": "weight", "_bias": "bias"}
_NEMOTRON_NAMES = (
    {name: stored.replace("self_attn.", "mixer.") for name, stored in LAYER_NAMES.items()}
    | _mamba_names("mixer")
    | {"attention.norm": "norm.weight"}
    | {
        name: stored.replace("mlp.", "mixer.")
        for name, stored in GLM4_MOE_NAMES.items()
        if name.startswith(("mlp.", "router", "shared.", "experts."))
    }
    | {f"into_experts{kind}": f"mixer.fc1_latent_proj.{stored}" for kind, stored in _KINDS.items()}
    | {f"out_of_experts{kind}": f"mixer.fc2_latent_proj.{stored}" for kind, stored in _KINDS.items()}
)
_FALCON_NAMES = (
    {name: stored.replace("mlp.", "feed_forward.") for name, stored in LAYER_NAMES.items()}
    | _mamba_names("mamba")
    | {"mlp.norm": "pre_ff_layernorm.weight"}
)
_KIMI_NAMES = GLM4_MOE_NAMES | {
    **LATENT_NAMES,
    **{
        name: stored.replace("mlp.", "block_sparse_moe.")
        for name, stored in GLM4_MOE_NAMES.items()
        if "expert" in stored
    },
    "router": "block_sparse_moe.gate.weight",
    "router_bias": "block_sparse_moe.gate.e_score_correction_bias",
    "experts.gate": "block_sparse_moe.experts.{}.w1.weight",
    "experts.up": "block_sparse_moe.experts.{}.w3.weight",
    "experts.down": "block_sparse_moe.experts.{}.w2.weight",
    **{f"kimi_delta.{name}": f"self_attn.{name}_proj.weight" for name in "qkvb"},
    **{f"kimi_delta.{name}_filter": f"self_attn.{name}_conv1d.weight" for name in "qkv"},
    "kimi_delta.decay_in": "self_attn.f_a_proj.weight",
    "kimi_delta.decay_out": "self_attn.f_b_proj.weight",
    "kimi_delta.gate_in": "self_attn.g_a_proj.weight",
    "kimi_delta.gate_out": "self_attn.g_b_proj.weight",
    "kimi_delta.rate": "self_attn.A_log",
    "kimi_delta.bias": "self_attn.dt_bias",
    "kimi_delta.norm_weight": "self_attn.o_norm.weight",
    "kimi_delta.output": "self_attn.o_proj.weight",
}
_LING_NAMES = (
    GLM4_MOE_NAMES
    | LATENT_NAMES
    | {name: stored for name, stored in _KIMI_NAMES.items() if name.startswith("kimi_delta.")}
    | {
        "attention.gate": "self_attn.g_proj.weight",
        "kimi_delta.decay": "self_attn.f_proj.weight",
        "kimi_delta.gate": "self_attn.g_proj.weight",
        "router_bias": "mlp.gate.expert_bias",
    }
)
_LING_NAMES = {
    name: stored.replace("self_attn.o_proj.", "self_attn.dense.").replace("self_attn.", "attention.")
    for name, stored in _LING_NAMES.items()
}
_HYBRID: Mapping[str, Any] = {
    "layer_names": _HYBRID_NAMES,
    "special_ids": {},
    "head_dim": 256,
    "qk_norm": "head",
    "norms_from_one": True,
    "hybrid": True,
    "always": {"attention_gate": True},
}
_LFM2: Mapping[str, Any] = {
    "layer_names": _LFM2_NAMES,
    "final_norm": "model.embedding_norm.weight",
    "rope_theta": 1e6,
    "qk_norm": "head",
    "tied": True,
    "norm_eps": "norm_eps",
    "own_layer_kinds": True,
}

_OLMO_HYBRID_NAMES = NORMS_AFTER | {
    **{f"delta_net.{part}": f"linear_attn.{part}_proj.weight" for part in "qkvab"},
    "delta_net.filter": "linear_attn.conv1d.weight",
    "delta_net.z": "linear_attn.g_proj.weight",
    "delta_net.rate": "linear_attn.A_log",
    "delta_net.bias": "linear_attn.dt_bias",
    "delta_net.norm_weight": "linear_attn.o_norm.weight",
    "delta_net.output": "linear_attn.o_proj.weight",
}
HYBRIDS = (
    Architecture("qwen3_next", "Qwen3NextForCausalLM", **_HYBRID),
    Architecture(
        "qwen3_5_text",
        "Qwen3_5ForCausalLM",
        **_HYBRID,
    ),
    Architecture(
        "qwen3_5_moe_text",
        "Qwen3_5MoeForCausalLM",
        **_HYBRID,
    ),
    Architecture("lfm2", "Lfm2ForCausalLM", **_LFM2, intermediate_size=12288, further=lfm2),
    Architecture("lfm2_moe", "Lfm2MoeForCausalLM", **_LFM2, intermediate_size=7168, further=lfm2_moe),
    Architecture(
        "lfm3",
        "Lfm3ForCausalLM",
        **dict(_LFM2) | {"layer_names": _LFM3_NAMES},
        special_ids={"bos_token_id": 124894, "eos_token_id": 124900},
        rope_stated=True,
        head_dim=128,
        window_rope=10000.0,
        proportional=True,
        further=lfm3,
    ),
    Architecture(
        "granitemoehybrid",
        "GraniteMoeHybridForCausalLM",
        _GRANITE_HYBRID_NAMES,
        attention_bias=False,
        attention_multiplier=1.0,
        own_layer_kinds=True,
        further=granite_hybrid,
    ),
    Architecture(
        "nemotron_h",
        "NemotronHForCausalLM",
        _NEMOTRON_NAMES,
        mlp_bias=True,
        final_norm="model.norm_f.weight",
        head_dim=128,
        intermediate_size=21504,
        attention_bias=False,
        norm_eps="layer_norm_epsilon",
        own_layer_kinds=True,
        prepared=with_layers,
        further=nemotron_h,
        renamed={"backbone.embeddings.": "model.embed_tokens.", "backbone.": "model."},
        always={"activation": "relu2", "gated": False},
        float32_router=True,
    ),
    Architecture(
        "olmo_hybrid",
        "OlmoHybridForCausalLM",
        _OLMO_HYBRID_NAMES,
        state_names={"attention.norm": "input_layernorm.weight", "mlp.norm": "post_attention_layernorm.weight"},
        special_ids={"eos_token_id": 100257},
        qk_norm="whole",
        attention_bias=False,
        own_layer_kinds=True,
        further=olmo_hybrid,
        joined={"linear_attn.conv1d.weight": tuple(f"linear_attn.{part}_conv1d.weight" for part in "qkv")},
        also_stored={
            ".attention_layer_norm.": ".input_layernorm.",
            ".feedforward_layer_norm.": ".post_attention_layernorm.",
        },
    ),
    Architecture(
        "bamba",
        "BambaForCausalLM",
        _FALCON_NAMES,
        attention_bias=False,
        mlp_bias=True,
        final_norm="model.final_layernorm.weight",
        partial_rotary=0.5,
        own_layer_kinds=True,
        further=bamba,
    ),
    Architecture(
        "falcon_h1",
        "FalconH1ForCausalLM",
        _FALCON_NAMES,
        mlp_bias=True,
        final_norm="model.final_layernorm.weight",
        own_layer_kinds=True,
        further=falcon_h1,
    ),
    Architecture(
        "kimi_linear",
        "KimiLinearForCausalLM",
        _KIMI_NAMES,
        special_ids={"bos_token_id": 163584, "eos_token_id": 163586},
        # as transformers writes dense layers
        also_stored={f".block_sparse_moe.{part}_proj.": f".mlp.{part}_proj." for part in ("gate", "up", "down")},
        attention_bias=False,
        latents=True,
        own_layer_kinds=True,
        float32_router=True,
        prepared=with_usual_names,
        further=kimi_linear,
        experts=ExpertFields(
            ("num_experts", "num_local_experts"),
            256,
            normalized_by_default=True,
            dense="kinds",
            shared="count",
            grouped=True,
            scale=2.446,
            always={"score": "sigmoid", "biased": True},
        ),
    ),
    Architecture(
        "bailing_hybrid",
        "BailingHybridForCausalLM",
        _LING_NAMES,
        special_ids={"eos_token_id": 156895},
        rope_theta=6e6,
        renamed={"model.word_embeddings.": "model.embed_tokens."},
        also_stored={".attention.o_proj.": ".attention.dense."},
        attention_bias=False,
        interleaved=True,
        latents=True,
        own_layer_kinds=True,
        drafting_layers=True,
        drafting_unread=True,
        float32_router=True,
        prepared=ling_names,
        further=ling,
        always={"attention_gate": True, "gate_by_head": True},
        experts=ExpertFields(
            ("num_experts", "num_local_experts"),
            512,
            normalized_by_default=True,
            dense="kinds",
            dense_first=2,
            shared="count",
            grouped=True,
            groups={"n_group": 8, "topk_group": 4},
            scale=2.5,
            always={"score": "sigmoid", "biased": True},
        ),
    ),
    Architecture(
        "minimax",
        "MiniMaxForCausalLM",
        MIXTRAL_NAMES
        | {
            "lightning.channels": "self_attn.qkv_proj.weight",
            "lightning.z": "self_attn.output_gate.weight",
            "lightning.norm_weight": "self_attn.norm.weight",
            "lightning.output": "self_attn.out_proj.weight",
        },
        also_named=("minimax_text_01", "minimax_m1"),
        also_spelled=("MiniMaxText01ForCausalLM", "MiniMaxM1ForCausalLM"),
        rope_theta=1e6,
        partial_rotary=1.0,
        own_layer_kinds=True,
        prepared=minimax_names,
        further=minimax,
        experts=ExpertFields(
            ("num_local_experts", "num_experts"),
            8,
            2,
            "intermediate_size",
            normalized=True,
            scaled="mlp_beta_factor",
        ),
    ),
)
