"""Dense models whose norms are RMS norms: Llama and what differs from it in fields."""

from __future__ import annotations

from tandem.worker.checkpoints.hugging_face_architectures.architecture import LAYER_NAMES, Architecture
from tandem.worker.checkpoints.hugging_face_architectures.names import (
    GRANITE_SWA,
    HUNYUAN_NAMES,
    NORMS_AFTER,
    OLMO,
    QWEN_WINDOW,
    SINKS,
)
from tandem.worker.checkpoints.hugging_face_exaone import with_pattern, with_usual_names
from tandem.worker.checkpoints.hugging_face_hunyuan import with_theta
from tandem.worker.checkpoints.hugging_face_hyperclovax import hyperclovax
from tandem.worker.checkpoints.hugging_face_internlm3 import with_biases_everywhere
from tandem.worker.checkpoints.model_parts.mlp import XIELU_CONSTANTS

_APERTUS_NAMES = LAYER_NAMES | {
    "attention.norm": "attention_layernorm.weight",
    "mlp.norm": "feedforward_layernorm.weight",
    **{f"mlp.{name}": f"mlp.act_fn.{name}" for name in XIELU_CONSTANTS},
}
_EXAONE_NAMES = {
    name: f"attn.attention.{stored[10:]}" for name, stored in LAYER_NAMES.items() if "self_attn." in stored
} | {
    "attention.norm": "ln_1.weight",
    "attention.output": "attn.attention.out_proj.weight",
    "mlp.norm": "ln_2.weight",
    "mlp.gate": "mlp.c_fc_0.weight",
    "mlp.up": "mlp.c_fc_1.weight",
    "mlp.down": "mlp.c_proj.weight",
}
_FUSED = {
    "attention.q": "self_attn.qkv_proj.weight",
    "attention.k": "self_attn.qkv_proj.weight",
    "attention.v": "self_attn.qkv_proj.weight",
}
_FUSED_MLP = {"mlp.gate": "mlp.gate_up_proj.weight", "mlp.up": "mlp.gate_up_proj.weight"}
_GLM4_NAMES = (
    LAYER_NAMES
    | _FUSED_MLP
    | {
        "attention.post_norm": "post_self_attn_layernorm.weight",
        "mlp.post_norm": "post_mlp_layernorm.weight",
    }
)

LLAMAS = (
    Architecture("llama", "LlamaForCausalLM", attention_bias=False, mlp_bias=True),
    Architecture("mistral", "MistralForCausalLM", sliding_window=4096),
    Architecture("ministral", "MinistralForCausalLM", sliding_window=4096, window_by_layer=True),
    Architecture(
        "qwen2",
        "Qwen2ForCausalLM",
        special_ids={},
        qkv_bias=True,
        **QWEN_WINDOW,
        window_by_layer=True,
        # MiMo's is this one with a head that drafts.
        also_named=("mimo",),
        also_spelled=("MiMoForCausalLM",),
        unread=("model.mtp_layers.",),
    ),
    Architecture(
        "qwen3",
        "Qwen3ForCausalLM",
        special_ids={},
        head_dim=128,
        qk_norm="head",
        attention_bias=False,
        **QWEN_WINDOW,
        window_by_layer=True,
    ),
    Architecture(
        "phi3",
        "Phi3ForCausalLM",
        LAYER_NAMES | _FUSED | _FUSED_MLP,
        special_ids={"bos_token_id": 1, "eos_token_id": 32000},
        partial_rotary=1.0,
        longrope=True,
        original_context=4096,
    ),
    Architecture(
        "glm",
        "GlmForCausalLM",
        LAYER_NAMES | _FUSED_MLP,
        special_ids={"eos_token_id": (151329, 151336, 151338)},
        head_dim=128,
        attention_bias=True,
        output_bias_apart=True,
        interleaved=True,
        partial_rotary=0.5,
    ),
    Architecture(
        "glm4",
        "Glm4ForCausalLM",
        _GLM4_NAMES,
        special_ids={"eos_token_id": (151329, 151336, 151338)},
        head_dim=128,
        attention_bias=True,
        output_bias_apart=True,
        interleaved=True,
        partial_rotary=0.5,
        always={"norm_placement": "both"},
    ),
    Architecture(
        "smollm3",
        "SmolLM3ForCausalLM",
        special_ids={"bos_token_id": 128000, "eos_token_id": 128001},
        rope_theta=2e6,
        attention_bias=False,
        mlp_bias=True,
        use_sliding_window=True,
        window_by_layer=True,
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
        mlp_bias=True,
    ),
    Architecture(
        "helium",
        "HeliumForCausalLM",
        rope_theta=100000.0,
        head_dim=128,
        attention_bias=False,
        output_bias_apart=True,
        mlp_bias=True,
        interleaved=True,
    ),
    Architecture(
        "internlm3",
        "InternLM3ForCausalLM",
        head_dim=128,
        attention_bias=False,
        mlp_bias=True,
        prepared=with_biases_everywhere,
    ),
    Architecture(
        "arcee",
        "ArceeForCausalLM",
        special_ids={"bos_token_id": 128000, "eos_token_id": 128001},
        attention_bias=False,
        mlp_bias=True,
        always={"activation": "relu2", "gated": False},
    ),
    Architecture(
        "apertus",
        "ApertusForCausalLM",
        _APERTUS_NAMES,
        rope_theta=12e6,
        rope_stated=True,
        qk_norm="head",
        attention_bias=False,
        scalars=(".act_fn.beta", ".act_fn.eps"),
        always={"activation": "xielu", "gated": False},
    ),
    Architecture(
        "ernie4_5",
        "Ernie4_5ForCausalLM",
        rope_theta=500000.0,
        head_dim=128,
        tied=True,
        use_bias=False,
        interleaved=True,
    ),
    Architecture("granite", "GraniteForCausalLM", attention_bias=False, mlp_bias=True, attention_multiplier=1.0),
    Architecture(
        "granite_swa",
        "GraniteSWAForCausalLM",
        LAYER_NAMES | SINKS,
        **GRANITE_SWA,
        special_ids={"bos_token_id": 100257, "eos_token_id": 100257},
        mlp_bias=True,
        tied=True,
    ),
    Architecture("olmo2", "Olmo2ForCausalLM", **OLMO),
    Architecture(
        "olmo3",
        "Olmo3ForCausalLM",
        **OLMO,
        rope_theta=500000.0,
        sliding_window=4096,
        window_by_layer=True,
        full_every=4,
        window_rope=500000.0,
    ),
    Architecture(
        "exaone",
        "ExaoneForCausalLM",
        _EXAONE_NAMES,
        special_ids={"bos_token_id": 1, "eos_token_id": 361},
        rope_theta=500000.0,
        prepared=with_usual_names,
        renamed={
            "transformer.wte.": "model.embed_tokens.",
            "transformer.h.": "model.layers.",
            "transformer.ln_f.": "model.norm.",
        },
    ),
    Architecture(
        "exaone4",
        "Exaone4ForCausalLM",
        NORMS_AFTER,
        special_ids={"bos_token_id": 0, "eos_token_id": 2},
        qk_norm="head",
        sliding_window=4096,
        window_by_layer=True,
        full_every=4,
        rotated_windows=True,
        rotated_without=True,
        prepared=with_pattern,
        always={"norm_placement": "after"},
    ),
    Architecture(
        "cwm",
        "CwmForCausalLM",
        special_ids={"bos_token_id": 128000, "eos_token_id": (128001, 128008, 128009)},
        rope_theta=1e6,
        rope_stated=True,
        head_dim=128,
        mlp_bias=True,
        sliding_window=8192,
        window_by_layer=True,
        full_every=4,
        full_first=True,
    ),
    Architecture(
        "hunyuan_v1_dense",
        "HunYuanDenseV1ForCausalLM",
        HUNYUAN_NAMES,
        attention_bias=False,
        qk_norm="behind",
        prepared=with_theta,
    ),
    Architecture("iquestcoder", "IQuestCoderForCausalLM", head_dim=128, attention_bias=False, mlp_bias=True),
    Architecture(
        "hyperclovax",
        "HyperCLOVAXForCausalLM",
        LAYER_NAMES | {"attention.post_norm": "post_norm1.weight", "mlp.post_norm": "post_norm2.weight"},
        attention_bias=False,
        mlp_bias=True,
        further=hyperclovax,
    ),
)
