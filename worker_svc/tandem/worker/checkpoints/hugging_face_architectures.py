"""The architectures that are served, a row each: transformers' class, the defaults of its configuration, and where its
tensors are. Which fields each knows: `hugging_face_fields.py`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from tandem.worker.checkpoints.fields import Fields
from tandem.worker.checkpoints.hugging_face_ernie import ernie4_5_moe
from tandem.worker.checkpoints.hugging_face_exaone import with_pattern, with_usual_names
from tandem.worker.checkpoints.hugging_face_gemma4 import gemma4
from tandem.worker.checkpoints.hugging_face_granite_swa import granite_swa
from tandem.worker.checkpoints.hugging_face_hyperclovax import hyperclovax
from tandem.worker.checkpoints.hugging_face_internlm3 import with_biases_everywhere
from tandem.worker.checkpoints.hugging_face_latents import deepseek_v32, glm_moe_dsa, minicpm3
from tandem.worker.checkpoints.hugging_face_lfm2 import lfm2, lfm2_moe
from tandem.worker.checkpoints.hugging_face_llama4 import llama4
from tandem.worker.checkpoints.hugging_face_mamba import falcon_h1, granite_hybrid, nemotron_h, with_layers
from tandem.worker.checkpoints.hugging_face_stablelm import stablelm

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
    "mlp.gate_bias": "mlp.gate_proj.bias",
    "mlp.up_bias": "mlp.up_proj.bias",
    "mlp.down_bias": "mlp.down_proj.bias",
    "router": "mlp.gate.weight",
    "experts.gate": "mlp.experts.{}.gate_proj.weight",
    "experts.up": "mlp.experts.{}.up_proj.weight",
    "experts.down": "mlp.experts.{}.down_proj.weight",
}
_NORM_BIASES = {
    "attention.norm_bias": "input_layernorm.bias",
    "mlp.norm_bias": "post_attention_layernorm.bias",
}
_SHARED_EXPERT = {
    "shared_router": "mlp.shared_expert_gate.weight",
    "shared.gate": "mlp.shared_expert.gate_proj.weight",
    "shared.up": "mlp.shared_expert.up_proj.weight",
    "shared.down": "mlp.shared_expert.down_proj.weight",
}
_STARCODER_NAMES = _LAYER_NAMES | {
    **_NORM_BIASES,
    "mlp.up": "mlp.c_fc.weight",
    "mlp.up_bias": "mlp.c_fc.bias",
    "mlp.down": "mlp.c_proj.weight",
    "mlp.down_bias": "mlp.c_proj.bias",
}
_PHI_NAMES = _LAYER_NAMES | {
    **_NORM_BIASES,
    "attention.output": "self_attn.dense.weight",
    "attention.output_bias": "self_attn.dense.bias",
    "mlp.up": "mlp.fc1.weight",
    "mlp.up_bias": "mlp.fc1.bias",
    "mlp.down": "mlp.fc2.weight",
    "mlp.down_bias": "mlp.fc2.bias",
}
_EXAONE_NAMES = {
    name: f"attn.attention.{stored[10:]}" for name, stored in _LAYER_NAMES.items() if "self_attn." in stored
} | {
    "attention.norm": "ln_1.weight",
    "attention.output": "attn.attention.out_proj.weight",
    "mlp.norm": "ln_2.weight",
    "mlp.gate": "mlp.c_fc_0.weight",
    "mlp.up": "mlp.c_fc_1.weight",
    "mlp.down": "mlp.c_proj.weight",
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
_FUSED = {
    "attention.q": "self_attn.qkv_proj.weight",
    "attention.k": "self_attn.qkv_proj.weight",
    "attention.v": "self_attn.qkv_proj.weight",
}
_FUSED_MLP = {"mlp.gate": "mlp.gate_up_proj.weight", "mlp.up": "mlp.gate_up_proj.weight"}
_GLM4_NAMES = (
    _LAYER_NAMES
    | _FUSED_MLP
    | {
        "attention.post_norm": "post_self_attn_layernorm.weight",
        "mlp.post_norm": "post_mlp_layernorm.weight",
    }
)
_GLM4_MOE_NAMES = _LAYER_NAMES | {
    "router_bias": "mlp.gate.e_score_correction_bias",
    "shared.gate": "mlp.shared_experts.gate_proj.weight",
    "shared.up": "mlp.shared_experts.up_proj.weight",
    "shared.down": "mlp.shared_experts.down_proj.weight",
    **{f"shared.{part}_bias": f"mlp.shared_experts.{part}_proj.bias" for part in ("gate", "up", "down")},
}
_ERNIE_MOE_NAMES = _GLM4_MOE_NAMES | {"router_bias": "mlp.moe_statics.e_score_correction_bias"}
_LATENT_NAMES = _GLM4_MOE_NAMES | {
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
_INDEXED_NAMES = _LATENT_NAMES | {
    "attention.index_query": "self_attn.indexer.wq_b.weight",
    "attention.index_key": "self_attn.indexer.wk.weight",
    "attention.index_norm": "self_attn.indexer.k_norm.weight",
    "attention.index_norm_bias": "self_attn.indexer.k_norm.bias",
    "attention.index_weights": "self_attn.indexer.weights_proj.weight",
}
_QWEN2_MOE_NAMES = _LAYER_NAMES | _SHARED_EXPERT
_GRANITE_MOE_NAMES = _LAYER_NAMES | {
    "router": "block_sparse_moe.router.layer.weight",
    "experts.gate": "block_sparse_moe.input_linear.weight",
    "experts.up": "block_sparse_moe.input_linear.weight",
    "experts.down": "block_sparse_moe.output_linear.weight",
}
_GRANITE_SHARED = {
    "shared.gate": "shared_mlp.input_linear.weight",
    "shared.up": "shared_mlp.input_linear.weight",
    "shared.down": "shared_mlp.output_linear.weight",
}
_MIXTRAL_NAMES = _LAYER_NAMES | {
    "router": "block_sparse_moe.gate.weight",
    "experts.gate": "block_sparse_moe.experts.{}.w1.weight",
    "experts.up": "block_sparse_moe.experts.{}.w3.weight",
    "experts.down": "block_sparse_moe.experts.{}.w2.weight",
}
_MINIMAX_NAMES = _MIXTRAL_NAMES | {"router_bias": "block_sparse_moe.e_score_correction_bias"}
_GPT_OSS_NAMES = _LAYER_NAMES | {
    "attention.sinks": "self_attn.sinks",
    "router": "mlp.router.weight",
    "router_logit_bias": "mlp.router.bias",
    "experts.gate": "mlp.experts.gate_up_proj",
    "experts.up": "mlp.experts.gate_up_proj",
    "experts.down": "mlp.experts.down_proj",
    "experts.gate_bias": "mlp.experts.gate_up_proj_bias",
    "experts.up_bias": "mlp.experts.gate_up_proj_bias",
    "experts.down_bias": "mlp.experts.down_proj_bias",
}
_LLAMA4_NAMES = {name: stored.replace("mlp.", "feed_forward.") for name, stored in _LAYER_NAMES.items()} | {
    "router": "feed_forward.router.weight",
    "shared.gate": "feed_forward.shared_expert.gate_proj.weight",
    "shared.up": "feed_forward.shared_expert.up_proj.weight",
    "shared.down": "feed_forward.shared_expert.down_proj.weight",
    "experts.gate": "feed_forward.experts.gate_up_proj",
    "experts.up": "feed_forward.experts.gate_up_proj",
    "experts.down": "feed_forward.experts.down_proj",
}
_PHIMOE_NAMES = _MIXTRAL_NAMES | _NORM_BIASES
_HYBRID_NAMES = _LAYER_NAMES | {
    "delta_net.qkv": "linear_attn.in_proj_qkv.weight",
    "delta_net.z": "linear_attn.in_proj_z.weight",
    "delta_net.b": "linear_attn.in_proj_b.weight",
    "delta_net.a": "linear_attn.in_proj_a.weight",
    "delta_net.filter": "linear_attn.conv1d.weight",
    "delta_net.rate": "linear_attn.A_log",
    "delta_net.bias": "linear_attn.dt_bias",
    "delta_net.norm_weight": "linear_attn.norm.weight",
    "delta_net.output": "linear_attn.out_proj.weight",
    **_SHARED_EXPERT,
}
_LFM2_NAMES = _LAYER_NAMES | {
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
    _GRANITE_MOE_NAMES
    | _mamba_names("mamba")
    | {
        f"{which}.{matrix}": f"shared_mlp.{stored}_linear.weight"
        for which in ("mlp", "shared")
        for matrix, stored in (("gate", "input"), ("up", "input"), ("down", "output"))
    }
)
_KINDS = {"": "weight", "_bias": "bias"}
_NEMOTRON_NAMES = (
    {name: stored.replace("self_attn.", "mixer.") for name, stored in _LAYER_NAMES.items()}
    | _mamba_names("mixer")
    | {"attention.norm": "norm.weight"}
    | {
        name: stored.replace("mlp.", "mixer.")
        for name, stored in _GLM4_MOE_NAMES.items()
        if name.startswith(("mlp.", "router", "shared.", "experts."))
    }
    | {f"into_experts{kind}": f"mixer.fc1_latent_proj.{stored}" for kind, stored in _KINDS.items()}
    | {f"out_of_experts{kind}": f"mixer.fc2_latent_proj.{stored}" for kind, stored in _KINDS.items()}
)
_FALCON_NAMES = (
    {name: stored.replace("mlp.", "feed_forward.") for name, stored in _LAYER_NAMES.items()}
    | _mamba_names("mamba")
    | {"mlp.norm": "pre_ff_layernorm.weight"}
)
EMBEDDING, OUTPUT, NORM = "model.embed_tokens.weight", "lm_head.weight", "model.norm.weight"
NORM_BIAS, OUTPUT_BIAS = "model.norm.bias", "lm_head.bias"

_TOP_NAMES = {
    "embedding": EMBEDDING,
    "output": OUTPUT,
    "output_bias": OUTPUT_BIAS,
    "norm": NORM,
    "norm_bias": NORM_BIAS,
    "per_layer.embedding": "model.embed_tokens_per_layer.weight",
    "per_layer.projection": "model.per_layer_model_projection.weight",
    "per_layer.norm": "model.per_layer_projection_norm.weight",
    "join.matrix": "mtp.fc.weight",
    "join.embedding_norm": "mtp.pre_fc_norm_embedding.weight",
    "join.hidden_norm": "mtp.pre_fc_norm_hidden.weight",
}


@dataclass(frozen=True, slots=True)
class ExpertFields:
    """Which fields describe the experts of a model class, and their defaults."""

    counts: tuple[str, ...] = ("num_experts", "num_local_experts")  # names of one number
    count: int = 128
    per_token: int = 8
    size: str = "moe_intermediate_size"
    normalized: bool | None = None  # None: `norm_topk_prob` says it
    normalized_by_default: bool = False
    # `decoder_sparse_step`, `mlp_only_layers`; `first_k_dense_replace`; `mlp_layer_types`, without which the former
    dense: Literal["listed", "first", "kinds", "none"] = "none"
    dense_first: int = 1  # the default of `first_k_dense_replace`
    shared: Literal["size", "count"] | None = None  # `shared_expert_intermediate_size`; `n_shared_experts` of the size
    shared_count: int = 1  # the default of that last field
    shared_counted: str = "n_shared_experts"  # what it is called
    shared_size: tuple[str, int] = (
        "shared_expert_intermediate_size",
        5632,
    )  # what the first one is called, its default
    grouped: bool = False  # whether it knows `n_group`, `topk_group` and `routed_scaling_factor`; their defaults follow
    groups: Mapping[str, int] = field(default_factory=lambda: {"n_group": 1, "topk_group": 1})
    scale: float = 1.0
    greedy: bool = False  # groups count where `topk_method` says so alone
    clamped: bool = False  # whether it knows `swiglu_alpha` and `swiglu_limit`
    jitter: float = 0.0  # the default of `router_jitter_noise`, where that is looked at
    always: Mapping[str, Any] = field(default_factory=dict)  # fields of Experts that are so in every such model


@dataclass(frozen=True, slots=True)
class Architecture:
    """One of transformers' model classes, and the defaults of its configuration."""

    name: str  # transformers' model_type, and what we call it
    class_name: str
    layer_names: Mapping[str, str] = field(default_factory=lambda: _LAYER_NAMES, repr=False)
    final_norm: str = NORM  # where the norm behind the layers is
    special_ids: Mapping[str, int | tuple[int, ...]] = field(
        default_factory=lambda: {"bos_token_id": 1, "eos_token_id": 2}
    )
    rope_theta: float = 10000.0
    intermediate_size: int | None = None  # where the file does not say it; None: it must
    head_dim: int | None = None  # None: the hidden size over the heads
    qkv_bias: bool = False
    qkv_bias_field: bool | None = None  # the default of `qkv_bias`; None: it does not know it
    qk_norm: Literal["head", "whole"] | None = None
    qkv_limit: bool = False  # whether it knows `clip_qkv`
    qk_norm_field: bool = False  # whether `use_qk_norm` gives it norms of heads
    attention_bias: bool | None = None  # the default of this field, which gives biases to q, k, v and the output
    output_bias_apart: bool = False  # that field is not the output's, which has its own, `attention_out_bias`, or none
    sliding_window: int | None = None  # where the file does not say it
    max_window_layers: int | None = None  # the default of this field, which counts though there is no switch for it
    use_sliding_window: bool = False  # whether it knows this field, without which it has no window
    use_bias: bool | None = None  # the default of this field, which gives biases to all of a layer's matrices
    mlp_bias: bool = False  # whether it knows this field, of the feed-forward part's matrices
    # Without `layer_types`, every second one of the first `max_window_layers` layers has a window, beginning with the
    # first one; elsewhere those behind them have.
    windows_in_turns: bool = False
    norms_from_one: bool = False  # norms multiply by 1 + weight
    norm_eps: str = "rms_norm_eps"  # which field says it
    logit_scale: float = 1.0  # the default of this field
    rotated_windows: bool = False  # layers without a window are not rotated
    rotated_without: bool = False  # but all are where the model has no window
    full_every: int = 0  # without `layer_types`, layers whose number, from 1 on, is a multiple of it have no window
    full_first: bool = False  # these are the first of so many each instead of the last
    window_rope: float | None = None  # the default theta of layers with a window, which rotate without the scaling
    attention_multiplier: float | None = None  # the default of this field
    query_scalar: bool = True  # whether `query_pre_attn_scalar` says it, where embeddings are multiplied by the width
    # The defaults of `attn_logit_softcapping` and `final_logit_softcapping`; 0: none; None: it does not know it.
    attention_soft_cap: float | None = None
    logit_soft_cap: float | None = None
    window_by_layer: bool = False  # whether the window can be that of some layers only
    tied: bool = False  # the default of `tie_word_embeddings`
    # Whether it knows this field, of layers that are not rotated, and have the window without `layer_types`.
    no_rope_layers: bool = False
    interleaved: bool = False  # RoPE pairs are neighbours
    partial_rotary: float | None = None  # the default of `partial_rotary_factor`; None: it does not know it
    longrope: bool = False  # whatever is scaled is scaled by longrope
    original_context: int | None = None  # the default of `original_max_position_embeddings`
    logit_bias: bool | None = None  # the default of `lm_head_bias`; None: it does not know it
    experts: ExpertFields | None = None
    drafting_layers: bool = False  # whether it knows `num_nextn_predict_layers`, behind the others in the files
    float32_router: bool = False  # `transformers` multiplies the router in float32, whatever it is stored in
    transposed_experts: bool = False  # plain experts are stored `[in, out]`
    experts_by_turns: bool = False  # the outputs of their gate and up take turns
    rope_stated: bool = False  # the RoPE parameters have another default than none
    query_growth: bool = False  # whether queries grow with their position
    also_named: tuple[str, ...] = ()  # other model_types of the same
    also_spelled: tuple[str, ...] = ()  # how published files spell the class
    latents: bool = False  # attention is over latents; see latents.py
    index_interleaved: bool = False  # RoPE pairs of an indexer are neighbours too; see indexer.py
    hybrid: bool = False  # some layers have a gated delta rule, the others gates; see hugging_face_hybrids.py
    own_layer_kinds: bool = False  # `further` reads which layers have windows, and which rotate
    proportional: bool = False  # whatever is scaled is scaled by `proportional`
    # Reads further fields of ModelConfig, by the config, its RoPE parameters, and each layer's window.
    further: Callable[[Fields, Fields, tuple[int, ...]], Mapping[str, Any]] | None = None
    # What the names of tensors begin with in the files, and with which beginning we know them.
    renamed: Mapping[str, str] = field(default_factory=dict)
    router_bias_row: bool = False  # the router's bias is stored as a matrix of one row
    unread: tuple[str, ...] = ()  # what the names of tensors begin with that are of a head beside the model
    # Makes a config of one that says the number of layers in another way.
    prepared: Callable[[Fields], Fields] | None = None
    wrapped: tuple[str, str] | None = None  # model_type and class of a model that sees, too, whose text model this is
    always: Mapping[str, Any] = field(default_factory=dict)  # fields of ModelConfig that are so in every such model

    @property
    def class_names(self) -> tuple[str, ...]:
        """Returns what `architectures` may say."""
        return self.class_name, *self.also_spelled

    @property
    def multiplied_by_width(self) -> bool:
        """Tells whether embeddings are multiplied by the root of the hidden size, as in Gemma."""
        return self.norms_from_one and not self.hybrid and self.always.get("norm") != "layer"

    def our_name(self, stored: str) -> str | None:
        """Returns the name by which we know a tensor of a file; None if it is of a head beside the model."""
        if stored.startswith("mtp."):
            return None
        beginning = next((each for each in self.renamed if stored.startswith(each)), "")
        return self.renamed.get(beginning, "") + stored.removeprefix(beginning)

    def their_name(self, ours: str) -> str:
        """Returns the name in the files of a tensor that we know by another one."""
        for theirs, beginning in self.renamed.items():
            if ours.startswith(beginning):
                return theirs + ours.removeprefix(beginning)
        return ours

    def stored_name(self, name: str) -> tuple[str, int | None]:
        """Returns a canonical tensor's name in the files, and the expert if all of a layer's are in one tensor."""
        if not name.startswith("layers."):
            return self.final_norm if name == "norm" else _TOP_NAMES[name], None
        _, layer, part = name.split(".", 2)
        if part.startswith("experts."):
            _, expert, matrix = part.split(".")
            template = self.layer_names[f"experts.{matrix}"]
            stored = f"model.layers.{layer}.{template.format(expert)}"
            return stored, None if "{}" in template else int(expert)
        return f"model.layers.{layer}.{self.layer_names[part]}", None


_SINKS = {"attention.sinks": "self_attn.sinks"}
_GRANITE_MOE_SWA_NAMES = (
    _LAYER_NAMES
    | _GRANITE_SHARED
    | _SINKS
    | {
        "router": "block_sparse_moe.router.weight",
        "experts.gate": "block_sparse_moe.experts.gate_up_proj",
        "experts.up": "block_sparse_moe.experts.gate_up_proj",
        "experts.down": "block_sparse_moe.experts.down_proj",
    }
)
_GRANITE_SWA: Mapping[str, Any] = {
    "attention_bias": False,
    "attention_multiplier": 1.0,
    "sliding_window": 128,
    "window_by_layer": True,
    "full_every": 4,
    "full_first": True,
    "further": granite_swa,
    "always": {"sinks": True},
}
_GRANITE_SHARED_EXPERTS = ExpertFields(
    ("num_local_experts",),
    8,
    2,
    "intermediate_size",
    normalized=True,
    shared="size",
    shared_size=("shared_intermediate_size", 0),
)
_OLMO: Mapping[str, Any] = {
    "layer_names": _NORMS_AFTER,
    "special_ids": {"eos_token_id": 50279},
    "qk_norm": "whole",
    "attention_bias": False,
    "always": {"norm_placement": "after"},
}
_LOCAL_EXPERTS = ExpertFields(("num_local_experts",), 8, 2, "intermediate_size", normalized=True)
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
_GEMMA: Mapping[str, Any] = {
    "special_ids": {"bos_token_id": 2, "eos_token_id": 1},
    "head_dim": 256,
    "attention_bias": False,
    "window_by_layer": True,
    "tied": True,
}
_GELU_AND_NORMS_AROUND = {"activation": "gelu_tanh", "norm_placement": "both"}
_QWEN_WINDOW: Mapping[str, Any] = {"sliding_window": 4096, "use_sliding_window": True}
ARCHITECTURES = {
    each.name: each
    for each in (
        Architecture("llama", "LlamaForCausalLM", attention_bias=False, mlp_bias=True),
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
        Architecture("mixtral", "MixtralForCausalLM", _MIXTRAL_NAMES, rope_theta=1e6, experts=_LOCAL_EXPERTS),
        Architecture(
            "qwen3_moe",
            "Qwen3MoeForCausalLM",
            special_ids={},
            qk_norm="head",
            attention_bias=False,
            **_QWEN_WINDOW,
            experts=ExpertFields(dense="listed"),
        ),
        Architecture(
            "qwen2_moe",
            "Qwen2MoeForCausalLM",
            _QWEN2_MOE_NAMES,
            special_ids={},
            qkv_bias_field=True,
            **_QWEN_WINDOW,
            window_by_layer=True,
            windows_in_turns=True,
            experts=ExpertFields(count=60, per_token=4, dense="listed", shared="size", always={"shared_router": True}),
        ),
        Architecture(
            "olmoe",
            "OlmoeForCausalLM",
            special_ids={"eos_token_id": 50279},
            attention_bias=False,
            qk_norm="whole",
            qkv_limit=True,
            experts=ExpertFields(count=64, size="intermediate_size"),
        ),
        Architecture(
            "granitemoe",
            "GraniteMoeForCausalLM",
            _GRANITE_MOE_NAMES,
            attention_bias=False,
            attention_multiplier=1.0,
            experts=_LOCAL_EXPERTS,
        ),
        Architecture(
            "phi3",
            "Phi3ForCausalLM",
            _LAYER_NAMES | _FUSED | _FUSED_MLP,
            special_ids={"bos_token_id": 1, "eos_token_id": 32000},
            partial_rotary=1.0,
            longrope=True,
            original_context=4096,
        ),
        Architecture(
            "phimoe",
            "PhimoeForCausalLM",
            _PHIMOE_NAMES,
            rope_theta=1e6,
            attention_bias=False,
            longrope=True,
            logit_bias=False,
            experts=ExpertFields(
                ("num_local_experts",),
                16,
                2,
                "intermediate_size",
                normalized=False,
                jitter=0.01,
                always={"score": "mixer"},
            ),
            always={"norm": "layer", "norm_bias": True},
        ),
        Architecture(
            "gpt_oss",
            "GptOssForCausalLM",
            _GPT_OSS_NAMES,
            special_ids={},
            rope_theta=150000.0,
            rope_stated=True,
            head_dim=64,
            attention_bias=True,
            sliding_window=128,
            window_by_layer=True,
            full_every=2,
            experts=ExpertFields(
                ("num_local_experts", "num_experts"),
                per_token=4,
                size="intermediate_size",
                normalized=True,
                clamped=True,
                always={"biases": True},
            ),
            transposed_experts=True,
            experts_by_turns=True,
            always={"sinks": True},
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
            "glm4_moe",
            "Glm4MoeForCausalLM",
            _GLM4_MOE_NAMES,
            special_ids={},
            attention_bias=False,
            output_bias_apart=True,
            qk_norm_field=True,
            drafting_layers=True,
            partial_rotary=0.5,
            experts=ExpertFields(
                ("n_routed_experts",),
                normalized_by_default=True,
                dense="first",
                shared="count",
                grouped=True,
                always={"score": "sigmoid", "biased": True},
            ),
            float32_router=True,
        ),
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
            "deepseek_v32",
            "DeepseekV32ForCausalLM",
            **_INDEXED,
            experts=ExpertFields(**_INDEXED_EXPERTS, groups={"n_group": 8, "topk_group": 4}),
            further=deepseek_v32,
        ),
        Architecture(
            "glm_moe_dsa",
            "GlmMoeDsaForCausalLM",
            **_INDEXED,
            index_interleaved=True,
            experts=ExpertFields(**_INDEXED_EXPERTS),
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
        Architecture(
            "minimax_m2",
            "MiniMaxM2ForCausalLM",
            _MINIMAX_NAMES,
            special_ids={"bos_token_id": 200034, "eos_token_id": 200020},
            rope_theta=5e6,
            head_dim=128,
            qk_norm="whole",
            partial_rotary=1.0,
            experts=ExpertFields(
                ("num_local_experts", "num_experts"),
                256,
                size="intermediate_size",
                normalized=True,
                always={"score": "sigmoid", "biased": True},
            ),
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
            wrapped=("gemma4", "Gemma4ForConditionalGeneration"),
            always=_GELU_AND_NORMS_AROUND | {"value_norm": True, "layer_scale": True},
        ),
        Architecture(
            "llama4_text",
            "Llama4ForCausalLM",
            _LLAMA4_NAMES,
            rope_theta=500000.0,
            head_dim=128,
            attention_bias=False,
            interleaved=True,
            transposed_experts=True,
            own_layer_kinds=True,
            further=llama4,
            wrapped=("llama4", "Llama4ForConditionalGeneration"),
            always={"chunked": True},
        ),
        Architecture("qwen3_next", "Qwen3NextForCausalLM", **_HYBRID),
        Architecture(
            "qwen3_5_text",
            "Qwen3_5ForCausalLM",
            **_HYBRID,
            wrapped=("qwen3_5", "Qwen3_5ForConditionalGeneration"),
        ),
        Architecture(
            "qwen3_5_moe_text",
            "Qwen3_5MoeForCausalLM",
            **_HYBRID,
            wrapped=("qwen3_5_moe", "Qwen3_5MoeForConditionalGeneration"),
        ),
        Architecture("lfm2", "Lfm2ForCausalLM", **_LFM2, intermediate_size=12288, further=lfm2),
        Architecture("lfm2_moe", "Lfm2MoeForCausalLM", **_LFM2, intermediate_size=7168, further=lfm2_moe),
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
            "falcon_h1",
            "FalconH1ForCausalLM",
            _FALCON_NAMES,
            mlp_bias=True,
            final_norm="model.final_layernorm.weight",
            own_layer_kinds=True,
            further=falcon_h1,
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
        Architecture(
            "flex_olmo",
            "FlexOlmoForCausalLM",
            **dict(_OLMO) | {"special_ids": {"eos_token_id": 100257}},
            rope_theta=500000.0,
            experts=ExpertFields(("num_experts",), 7, 5, "intermediate_size"),
        ),
        Architecture(
            "glm",
            "GlmForCausalLM",
            _LAYER_NAMES | _FUSED_MLP,
            special_ids={"eos_token_id": (151329, 151336, 151338)},
            head_dim=128,
            attention_bias=True,
            output_bias_apart=True,
            interleaved=True,
            partial_rotary=0.5,
        ),
        Architecture(
            "ernie4_5_moe",
            "Ernie4_5_MoeForCausalLM",
            _ERNIE_MOE_NAMES,
            rope_theta=500000.0,
            tied=True,
            interleaved=True,
            router_bias_row=True,
            unread=("model.mtp_",),
            further=ernie4_5_moe,
            float32_router=True,
        ),
        Architecture(
            "exaone4",
            "Exaone4ForCausalLM",
            _NORMS_AFTER,
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
            "dots1",
            "Dots1ForCausalLM",
            _GLM4_MOE_NAMES,
            special_ids={},
            qk_norm="head",
            attention_bias=False,
            sliding_window=4096,
            max_window_layers=62,
            window_by_layer=True,
            experts=ExpertFields(
                ("n_routed_experts", "num_local_experts"),
                dense="first",
                dense_first=0,
                shared="count",
                grouped=True,
                always={"score": "sigmoid", "biased": True},
            ),
            float32_router=True,
        ),
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
            "cohere",
            "CohereForCausalLM",
            special_ids={"bos_token_id": 5, "eos_token_id": 255001},
            rope_theta=500000.0,
            attention_bias=False,
            tied=True,
            interleaved=True,
            norm_eps="layer_norm_eps",
            logit_scale=0.0625,
            always={"norm": "layer", "parallel": True},
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
            "granitemoeshared",
            "GraniteMoeSharedForCausalLM",
            _GRANITE_MOE_NAMES | _GRANITE_SHARED,
            attention_bias=False,
            attention_multiplier=1.0,
            experts=_GRANITE_SHARED_EXPERTS,
        ),
        Architecture(
            "stablelm",
            "StableLmForCausalLM",
            _LAYER_NAMES | _NORM_BIASES,
            special_ids={"bos_token_id": 0, "eos_token_id": 0},
            norm_eps="layer_norm_eps",
            partial_rotary=0.25,
            further=stablelm,
            always={"norm": "layer", "norm_bias": True},
        ),
        Architecture(
            "solar_open",
            "SolarOpenForCausalLM",
            _GLM4_MOE_NAMES,
            special_ids={},
            rope_theta=1e6,
            intermediate_size=1280,  # of no layer
            head_dim=128,
            attention_bias=False,
            output_bias_apart=True,
            experts=ExpertFields(
                ("n_routed_experts", "num_local_experts"),
                normalized_by_default=True,
                shared="count",
                grouped=True,
                always={"score": "sigmoid", "biased": True},
            ),
            float32_router=True,
        ),
        Architecture(
            "exaone_moe",
            "ExaoneMoeForCausalLM",
            also_spelled=("ExaoneMoEForCausalLM",),
            layer_names=_GLM4_MOE_NAMES | {"router_bias": "mlp.e_score_correction_bias"},
            special_ids={"bos_token_id": 1, "eos_token_id": 53},
            qk_norm="head",
            sliding_window=4096,
            window_by_layer=True,
            full_every=4,
            rotated_windows=True,
            prepared=with_pattern,
            unread=("mtp.",),
            experts=ExpertFields(
                ("num_experts",),
                64,
                size="moe_intermediate_size",
                normalized_by_default=True,
                dense="kinds",
                shared="count",
                shared_counted="num_shared_experts",
                grouped=True,
                scale=2.5,
                always={"score": "sigmoid", "biased": True},
            ),
            float32_router=True,
        ),
        Architecture(
            "mellum",
            "MellumForCausalLM",
            special_ids={},
            rope_stated=True,
            head_dim=128,
            qk_norm="head",
            attention_bias=False,
            sliding_window=1024,
            window_by_layer=True,
            full_every=1,
            window_rope=10000.0,
            unread=("mtp.",),
            experts=ExpertFields(count=64, normalized_by_default=True, dense="kinds", dense_first=0),
        ),
        Architecture("iquestcoder", "IQuestCoderForCausalLM", head_dim=128, attention_bias=False, mlp_bias=True),
        Architecture(
            "granite_swa",
            "GraniteSWAForCausalLM",
            _LAYER_NAMES | _SINKS,
            **_GRANITE_SWA,
            special_ids={"bos_token_id": 100257, "eos_token_id": 100257},
            mlp_bias=True,
            tied=True,
        ),
        Architecture(
            "granitemoe_swa",
            "GraniteMoeSWAForCausalLM",
            _GRANITE_MOE_SWA_NAMES,
            **_GRANITE_SWA,
            experts=_GRANITE_SHARED_EXPERTS,
        ),
        Architecture(
            "vaultgemma",
            "VaultGemmaForCausalLM",
            _LAYER_NAMES | {"mlp.norm": "pre_feedforward_layernorm.weight"},
            **_GEMMA,
            sliding_window=4096,
            full_every=2,
            attention_soft_cap=50.0,
            logit_soft_cap=30.0,
            norms_from_one=True,
            always={"activation": "gelu_tanh"},
        ),
        Architecture(
            "phi",
            "PhiForCausalLM",
            _PHI_NAMES,
            norm_eps="layer_norm_eps",
            use_bias=True,
            logit_bias=True,
            partial_rotary=0.5,
            renamed={"model.final_layernorm.": "model.norm."},
            always={
                **{"activation": "gelu_tanh", "gated": False, "norm": "layer", "norm_bias": True},
                "parallel": True,
            },
        ),
        Architecture(
            "nemotron",
            "NemotronForCausalLM",
            _LAYER_NAMES | _NORM_BIASES,
            special_ids={"bos_token_id": 2, "eos_token_id": 3},
            norm_eps="norm_eps",
            attention_bias=False,
            mlp_bias=True,
            partial_rotary=0.5,
            norms_from_one=True,
            always={"activation": "relu2", "gated": False, "norm": "layer", "norm_bias": True},
        ),
        Architecture(
            "hyperclovax",
            "HyperCLOVAXForCausalLM",
            _LAYER_NAMES | {"attention.post_norm": "post_norm1.weight", "mlp.post_norm": "post_norm2.weight"},
            attention_bias=False,
            mlp_bias=True,
            further=hyperclovax,
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
    )
}
