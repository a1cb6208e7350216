"""Models that store latents or compressed keys instead of keys and values; see `latents.py` and `compression.py` of
checkpoints."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from tandem.worker.checkpoints.hugging_face_architectures.architecture import Architecture, ExpertFields
from tandem.worker.checkpoints.hugging_face_architectures.names import GLM4_MOE_NAMES, LATENT_NAMES
from tandem.worker.checkpoints.hugging_face_deepseek_v4 import deepseek_v4, with_one_rope
from tandem.worker.checkpoints.hugging_face_latents import (
    deepseek_v32,
    glm_moe_dsa,
    minicpm3,
    mistral4,
    without_head_dim,
    without_part_of_head,
)
from tandem.worker.checkpoints.hugging_face_sarvam import sarvam_mla
from tandem.worker.checkpoints.model_parts.mlp import ClampedSwiGLU

_LATENT_NAMES = GLM4_MOE_NAMES | LATENT_NAMES
_INDEXED_NAMES = _LATENT_NAMES | {
    "attention.index_query": "self_attn.indexer.wq_b.weight",
    "attention.index_key": "self_attn.indexer.wk.weight",
    "attention.index_norm": "self_attn.indexer.k_norm.weight",
    "attention.index_norm_bias": "self_attn.indexer.k_norm.bias",
    "attention.index_weights": "self_attn.indexer.weights_proj.weight",
}
_INDEXED: Mapping[str, Any] = {
    "layer_names": _INDEXED_NAMES,
    "special_ids": {"bos_token_id": 0, "eos_token_id": 1},
    "attention_bias": False,
    "interleaved": True,
    "latents": True,
    "drafting_layers": True,
    "own_layer_kinds": True,
    "float32_router": True,
}
_INDEXED_EXPERTS: Mapping[str, Any] = {
    "counts": ("n_routed_experts", "num_local_experts"),
    "count": 256,
    "normalized_by_default": True,
    "dense": "kinds",
    "dense_first": 3,
    "shared": "count",
    "grouped": True,
    "scale": 2.5,
    "always": {"score": "sigmoid", "biased": True},
}

_COMPRESSED_NAMES = {
    "attention.norm": "attn_norm.weight",
    "attention.query_latent": "attn.wq_a.weight",
    "attention.query_norm": "attn.q_norm.weight",
    "attention.query_up": "attn.wq_b.weight",
    "attention.key": "attn.wkv.weight",
    "attention.key_norm": "attn.kv_norm.weight",
    "attention.sinks": "attn.attn_sink",
    "attention.grouped": "attn.wo_a.weight",
    "attention.output": "attn.wo_b.weight",
    **{
        f"attention.{ours}_{part}": f"attn.{theirs}compressor.{name}"
        for ours, theirs in (("compressed", ""), ("index", "indexer."))
        for part, name in (("keys", "wkv.weight"), ("gates", "wgate.weight"), ("bias", "ape"), ("norm", "norm.weight"))
    },
    "attention.index_query": "attn.indexer.wq_b.weight",
    "attention.index_weights": "attn.indexer.weights_proj.weight",
    "mlp.norm": "ffn_norm.weight",
    **{
        f"{ours}.hyper{end}": f"hc_{theirs}{end or '_fn'}"
        for ours, theirs in (("attention", "attn"), ("mlp", "ffn"))
        for end in ("", "_base", "_scale")
    },
    "router": "ffn.gate.weight",
    "router_bias": "ffn.gate.bias",
    "router_table": "ffn.gate.tid2eid",
    **{
        f"{ours}.{part}": f"ffn.{theirs}.{name}.weight"
        for ours, theirs in (("experts", "experts.{}"), ("shared", "shared_experts"))
        for part, name in (("gate", "w1"), ("down", "w2"), ("up", "w3"))
    },
}

LATENTS = (
    Architecture(
        "deepseek_v2",
        "DeepseekV2ForCausalLM",
        _LATENT_NAMES,
        attention_bias=False,
        mlp_bias=True,
        interleaved=True,
        latents=True,
        experts=ExpertFields(
            ("n_routed_experts", "num_experts"),
            64,
            dense="first",
            dense_first=0,
            shared="count",
            shared_count=2,
            grouped=True,
            greedy=True,
            always={"best_of_group": 1},
        ),
        float32_router=True,
    ),
    Architecture(
        "deepseek_v3",
        "DeepseekV3ForCausalLM",
        _LATENT_NAMES,
        special_ids={"bos_token_id": 0, "eos_token_id": 1},
        attention_bias=False,
        interleaved=True,
        latents=True,
        drafting_layers=True,
        also_named=("kimi_k2",),
        experts=ExpertFields(
            ("n_routed_experts", "num_local_experts"),
            256,
            normalized_by_default=True,
            dense="first",
            dense_first=3,
            shared="count",
            grouped=True,
            groups={"n_group": 8, "topk_group": 4},
            scale=2.5,
            always={"score": "sigmoid", "biased": True},
        ),
        float32_router=True,
    ),
    Architecture(
        "sarvam_mla",
        "SarvamMLAForCausalLM",
        _LATENT_NAMES,
        also_spelled=("DeepseekV3ForCausalLM",),
        special_ids={"bos_token_id": 0, "eos_token_id": 1},
        attention_bias=False,
        interleaved=True,
        latents=True,
        prepared=sarvam_mla,
        experts=ExpertFields(
            ("n_routed_experts",),
            normalized_by_default=True,
            dense="first",
            shared="count",
            grouped=True,
            scale=2.5,
            always={"score": "sigmoid", "biased": True},
        ),
        float32_router=True,
    ),
    Architecture(
        "deepseek_v32",
        "DeepseekV32ForCausalLM",
        **_INDEXED,
        experts=ExpertFields(**_INDEXED_EXPERTS, groups={"n_group": 8, "topk_group": 4}),
        further=deepseek_v32,
    ),
    Architecture(
        "deepseek_v4",
        "DeepseekV4ForCausalLM",
        _COMPRESSED_NAMES,
        special_ids={"bos_token_id": 0, "eos_token_id": 1},
        head_dim=512,
        own_layer_kinds=True,
        prepared=with_one_rope,
        further=deepseek_v4,
        renamed={
            "embed.": "model.embed_tokens.",
            "head.": "lm_head.",
            "layers.": "model.layers.",
            "norm.": "model.norm.",
            "hc_head_": "model.hc_head.hc_",
        },
        # transformers writes the one name, and DeepSeek the other; and scales as no other does.
        also_stored={".attn.norm.": ".attn.kv_norm.", ".scale": ".weight_scale_inv"},
        whole_numbers=(".tid2eid",),
        experts=ExpertFields(
            ("n_routed_experts", "num_local_experts"),
            256,
            6,
            normalized=True,
            shared="count",
            scaled="routed_scaling_factor",
            scale=1.5,
            clamped=ClampedSwiGLU(1.0, 10.0, 0.0),
            listed=True,
            always={"score": "root_softplus", "biased": True, "sum_offset": 1e-20},
        ),
    ),
    Architecture(
        "glm_moe_dsa",
        "GlmMoeDsaForCausalLM",
        **_INDEXED,
        index_interleaved=True,
        experts=replace(
            ExpertFields(**_INDEXED_EXPERTS), counts=("n_routed_experts", "num_local_experts", "num_experts")
        ),
        prepared=without_part_of_head,
        further=glm_moe_dsa,
    ),
    Architecture(
        "glm4_moe_lite",
        "Glm4MoeLiteForCausalLM",
        _LATENT_NAMES,
        special_ids={"bos_token_id": 0, "eos_token_id": 1},
        attention_bias=False,
        interleaved=True,
        latents=True,
        drafting_layers=True,
        experts=ExpertFields(
            ("n_routed_experts", "num_local_experts"),
            64,
            4,
            normalized_by_default=True,
            dense="kinds",
            shared="count",
            grouped=True,
            scale=1.8,
            always={"score": "sigmoid", "biased": True},
        ),
        float32_router=True,
    ),
    Architecture(
        "mistral4",
        "Mistral4ForCausalLM",
        _LATENT_NAMES
        | dict.fromkeys(("experts.gate", "experts.up"), "mlp.experts.gate_up_proj")
        | {"experts.down": "mlp.experts.down_proj"},
        attention_bias=False,
        interleaved=True,
        latents=True,
        rope_stated=True,
        query_growth=True,
        prepared=without_head_dim,
        further=mistral4,
        experts=ExpertFields(
            ("n_routed_experts", "num_local_experts"),
            128,
            4,
            normalized_by_default=True,
            dense="first",
            dense_first=0,
            shared="count",
            grouped=True,
        ),
    ),
    Architecture(
        "youtu",
        "YoutuForCausalLM",
        _LATENT_NAMES,
        special_ids={"bos_token_id": 128000, "eos_token_id": 128001},
        attention_bias=False,
        interleaved=True,
        latents=True,
        tied=True,
    ),
    Architecture(
        "minicpm3",
        "MiniCPM3ForCausalLM",
        _LATENT_NAMES,
        attention_bias=False,
        mlp_bias=True,
        latents=True,
        longrope=True,
        tied=True,
        prepared=minicpm3,
    ),
)
