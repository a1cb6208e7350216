"""What is said of an architecture: its class in transformers, the defaults of its configuration, names of tensors."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from tandem.worker.checkpoints.fields import Fields
from tandem.worker.checkpoints.model_parts.mlp import ClampedSwiGLU

LAYER_NAMES = {
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
EMBEDDING, OUTPUT, NORM = "model.embed_tokens.weight", "lm_head.weight", "model.norm.weight"
NORM_BIAS, OUTPUT_BIAS = "model.norm.bias", "lm_head.bias"

_TOP_NAMES = {
    "hyper": "model.hc_head.hc_fn",
    "hyper_base": "model.hc_head.hc_base",
    "hyper_scale": "model.hc_head.hc_scale",
    "embedding": EMBEDDING,
    "output": OUTPUT,
    "output_bias": OUTPUT_BIAS,
    "norm": NORM,
    "norm_bias": NORM_BIAS,
    "positions": "model.embed_positions.weight",
    "per_layer.embedding": "model.embed_tokens_per_layer.weight",
    "per_layer.projection": "model.per_layer_model_projection.weight",
    "per_layer.norm": "model.per_layer_projection_norm.weight",
    "join.matrix": "mtp.fc.weight",
    "join.embedding_norm": "mtp.pre_fc_norm_embedding.weight",
    "join.hidden_norm": "mtp.pre_fc_norm_hidden.weight",
}
_STREAMS = {"in": "altup_projections", "out": "altup_unembed_projections"}  # from the second stream on


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
    scaled: str | None = None  # which field says the scale where it does not know groups; its default is `scale`
    scale: float = 1.0
    greedy: bool = False  # groups count where `topk_method` says so alone
    # The gate where it is clamped: the defaults of `swiglu_alpha`, if it knows that, and `swiglu_limit`.
    clamped: ClampedSwiGLU | None = None
    listed: bool = False  # whether the first layers have a table of who is chosen; see hugging_face_deepseek_v4.py
    jitter: float = 0.0  # the default of `router_jitter_noise`, where that is looked at
    always: Mapping[str, Any] = field(default_factory=dict)  # fields of Experts that are so in every such model


@dataclass(frozen=True, slots=True)
class Architecture:
    """One of transformers' model classes, and the defaults of its configuration."""

    name: str  # transformers' model_type, and what we call it
    class_name: str
    layer_names: Mapping[str, str] = field(default_factory=lambda: LAYER_NAMES, repr=False)
    # Where the norms of layers with states are, if elsewhere.
    state_names: Mapping[str, str] = field(default_factory=dict)
    final_norm: str = NORM  # where the norm behind the layers is
    special_ids: Mapping[str, int | tuple[int, ...]] = field(
        default_factory=lambda: {"bos_token_id": 1, "eos_token_id": 2}
    )
    rope_theta: float = 10000.0
    intermediate_size: int | None = None  # where the file does not say it; None: it must
    head_dim: int | None = None  # None: the hidden size over the heads
    qkv_bias: bool = False
    qkv_bias_field: bool | None = None  # the default of `qkv_bias`; None: it does not know it
    qk_norm: Literal["head", "whole", "behind"] | None = None
    qkv_limit: bool = False  # whether it knows `clip_qkv`
    qk_norm_field: bool = False  # whether `use_qk_norm` gives it norms of heads; `qk_norm` says by default
    attention_bias: bool | None = None  # the default of this field, which gives biases to q, k, v and the output
    output_bias_apart: bool = False  # that field is not the output's, which has its own, `attention_out_bias`, or none
    sliding_window: int | None = None  # where the file does not say it
    max_window_layers: int | None = None  # the default of this field, which counts though there is no switch for it
    use_sliding_window: bool = False  # whether it knows this field, without which it has no window
    use_bias: bool | None = None  # the default of this field, which gives biases to all of a layer's matrices
    mlp_bias: bool = False  # whether it knows this field, of the feed-forward part's matrices
    mlp_bias_usual: bool = False  # the default of that field
    # Without `layer_types`, every second one of the first `max_window_layers` layers has a window, beginning with the
    # first one; elsewhere those behind them have.
    windows_in_turns: bool = False
    norms_from_one: bool = False  # norms multiply by 1 + weight
    gemma: bool = True  # and embeddings by the root of the hidden size, where norms are RMS norms
    norm_eps: str = "rms_norm_eps"  # which field says it
    activation_field: str = "hidden_act"
    logit_scale: float = 1.0  # the default of this field
    unrotated: bool = False  # no layer is rotated
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
    drafting_unread: bool = False  # which are not read
    float32_router: bool = False  # `transformers` multiplies the router in float32, whatever it is stored in
    transposed_experts: bool = False  # plain experts are stored `[in, out]`
    transposed: tuple[str, ...] = ()  # what the names of other matrices end with that are stored so
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
    own_norm_names: Mapping[str, str] = field(
        default_factory=dict
    )  # the same of norms that are of one of two parts each
    # Parts of names of tensors that some files have otherwise, and as we know them.
    also_stored: Mapping[str, str] = field(default_factory=dict)
    grouped_qkv: bool = False  # q, k and v are one tensor by heads of keys (`places.py`)
    router_bias_row: bool = False  # the router's bias is stored as a matrix of one row
    scalars: tuple[str, ...] = ()  # what the names of tensors end with that are numbers, not vectors of one
    whole_numbers: tuple[str, ...] = ()  # what the names of tensors end with that are numbers of experts
    # What the names of tensors end with that lie below each other in several of the files: transformers cuts OLMo
    # Hybrid's filters in equal parts, whatever the sizes of queries, keys and values are.
    joined: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    unread: tuple[str, ...] = ()  # what the names of tensors begin with that are of a head beside the model
    # Makes a config of one that says the number of layers in another way.
    prepared: Callable[[Fields], Fields] | None = None
    always: Mapping[str, Any] = field(default_factory=dict)  # fields of ModelConfig that are so in every such model

    @property
    def class_names(self) -> tuple[str, ...]:
        """Returns what `architectures` may say."""
        return self.class_name, *self.also_spelled

    @property
    def multiplied_by_width(self) -> bool:
        """Tells whether embeddings are multiplied by the root of the hidden size, as in Gemma."""
        return self.norms_from_one and self.gemma and not self.hybrid and self.always.get("norm") != "layer"

    def is_transposed(self, stored: str, expert: int | None) -> bool:
        """Tells whether a matrix, or that of an expert in a tensor with all of a layer's, is stored `[in, out]`."""
        return stored.endswith(self.transposed) if expert is None else self.transposed_experts

    def our_name(self, stored: str) -> str | None:
        """Returns the name by which we know a tensor of a file; None if it is of a head beside the model."""
        if stored.startswith("mtp."):
            return None
        beginning = next((each for each in self.renamed if stored.startswith(each)), "")
        name = self.renamed.get(beginning, "") + stored.removeprefix(beginning)
        for theirs, ours in (*self.own_norm_names.items(), *self.also_stored.items()):
            name = name.replace(theirs, ours)
        return name

    def their_name(self, ours: str, *, parallel_norms: bool) -> str:
        """Returns the name in the files of a tensor that we know by another one."""
        for theirs, name in self.own_norm_names.items() if parallel_norms else ():
            ours = ours.replace(name, theirs)
        for theirs, beginning in self.renamed.items():
            if ours.startswith(beginning):
                return theirs + ours.removeprefix(beginning)
        return ours

    def stored_name(self, name: str) -> tuple[str, int | None]:
        """Returns a canonical tensor's name in the files, and the expert if all of a layer's are in one tensor."""
        if name.startswith("streams."):
            _, way, stream = name.split(".")
            return f"model.{_STREAMS[way]}.{int(stream) - 1}.weight", None
        if not name.startswith("layers."):
            return self.final_norm if name == "norm" else _TOP_NAMES[name], None
        _, layer, part = name.split(".", 2)
        if part.startswith("experts."):
            _, expert, matrix = part.split(".")
            template = self.layer_names[f"experts.{matrix}"]
            stored = f"model.layers.{layer}.{template.format(expert)}"
            return stored, None if "{}" in template else int(expert)
        return f"model.layers.{layer}.{self.layer_names[part]}", None
