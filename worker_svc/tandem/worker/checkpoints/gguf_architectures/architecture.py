"""What is said of an architecture: what its files leave unsaid, and names of tensors."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from tandem.worker.checkpoints import gguf_further as further
from tandem.worker.checkpoints.fields import Fields

LAYER_NAMES = {
    "attention.norm": "attn_norm.weight",
    "attention.q": "attn_q.weight",
    "attention.k": "attn_k.weight",
    "attention.v": "attn_v.weight",
    "attention.output": "attn_output.weight",
    "attention.q_bias": "attn_q.bias",
    "attention.k_bias": "attn_k.bias",
    "attention.v_bias": "attn_v.bias",
    "attention.output_bias": "attn_output.bias",
    "attention.q_norm": "attn_q_norm.weight",
    "attention.k_norm": "attn_k_norm.weight",
    "mlp.norm": "ffn_norm.weight",
    "mlp.gate": "ffn_gate.weight",
    "mlp.up": "ffn_up.weight",
    "mlp.down": "ffn_down.weight",
    "attention.norm_bias": "attn_norm.bias",
    "mlp.norm_bias": "ffn_norm.bias",
    "router": "ffn_gate_inp.weight",
    "experts.gate": "ffn_gate_exps.weight",
    "experts.up": "ffn_up_exps.weight",
    "experts.down": "ffn_down_exps.weight",
}
TOP_NAMES = {
    "embedding": "token_embd.weight",
    "output": "output.weight",
    "norm": "output_norm.weight",
    "norm_bias": "output_norm.bias",
    "output_bias": "output.bias",
    "positions": "position_embd.weight",
    "per_layer.embedding": "per_layer_token_embd.weight",
    "per_layer.projection": "per_layer_model_proj.weight",
    "per_layer.norm": "per_layer_proj_norm.weight",
}
HEAD_NAMES = {  # of a head that guesses (`heads.py`), in a block behind the model's
    "join.matrix": "nextn.eh_proj.weight",
    "join.embedding_norm": "nextn.enorm.weight",
    "join.hidden_norm": "nextn.hnorm.weight",
    "norm": "nextn.shared_head_norm.weight",
    "embedding": "nextn.embed_tokens.weight",
    "output": "nextn.shared_head_head.weight",
}


@dataclass(frozen=True, slots=True)
class GgufExperts:
    """What a file leaves unsaid about experts."""

    normalized: bool | None = True  # the chosen ones' weights add up to 1; None: `expert_weights_norm` says it
    shared: Literal["size", "count"] | None = None  # `expert_shared_feed_forward_length`; `expert_shared_count`
    may_share: bool = False  # the former need not be there
    scaled: bool = False  # whether it knows `expert_weights_scale`
    dense_first: bool = False  # whether it knows `leading_dense_block_count`
    always: Mapping[str, Any] = field(default_factory=dict)  # fields of Experts that are so in every such model


@dataclass(frozen=True, slots=True)
class GgufArchitecture:
    """What a file that says this in `general.architecture` leaves unsaid."""

    name: str  # ours
    permuted: bool = False  # RoPE pairs of q and k are neighbours
    halves_of_sections: bool = False  # but not in files that say `rope.dimension_sections`, of models that see
    index_permuted: bool = False  # so are those of an indexer
    qk_norm: Literal["head", "whole", "behind"] | None = None
    may_norm: bool = False  # heads of q and k are normalized where there are tensors for it
    qkv_bias: bool = False
    divisors: bool = False  # llama.cpp reads a tensor of RoPE's divisors
    longer_divisors: bool = False  # of which layers without a window have the first ones
    norm_eps: str = "attention.layer_norm_rms_epsilon"  # which key says it
    norm_eps_else: str = ""  # and which one does where that is not there
    norm_by_eps: bool = False  # norms are layer norms where that one does
    full_every: int = 0  # layers whose number is a multiple of it have no window; 0: no windows, or all have one
    window: int = 0  # where the file does not say it
    with_experts: str = ""  # what a file with experts is, which need not have them: the name of the architecture
    sharing: str = ""  # what a file with a shared expert is, which need not have one: the name of the architecture
    windowed: str = ""  # what a file with a window is, which need not have one: the name of the architecture
    window_rope: float | None = None  # theta of layers with a window, which rotate without scaling; 0: as the others
    partly_rotated: bool = False  # whether `rope.dimension_count` may be less than a head has
    longrope: bool = False  # whether it knows tensors of RoPE's factors
    truncate: bool = True  # YaRN blends between whole pairs
    soft_caps: tuple[float, float] | None = None  # of attention and logits, where the file does not say them
    # So many layers are those of the Gemma whose scores are divided by the root of hidden / heads; -1: no Gemma's.
    gemma_width: int = 0
    logit_scale_divides: bool = True
    experts: GgufExperts = GgufExperts()
    drafting_layers: bool = False  # the last `nextn_predict_layers` predict further tokens
    unrotated: bool = False  # no layer is, whatever the file says of it
    unrotated_every: int = 0  # layers whose number, from 1 on, is a multiple of it are not rotated
    layer_names: Mapping[str, str] = field(default_factory=lambda: LAYER_NAMES, repr=False)
    prepared: Callable[[Fields], Fields] | None = None  # says in other words what is read by the rules of all
    folded: bool = False  # keys may have a number for each layer, or one more for layers with a window
    own_norm_names: Mapping[str, str] = field(default_factory=dict)  # where norms are that are of one of two parts each
    hybrid: bool = False  # where tensors are: `gguf_hybrids.py`
    # Layers that look at another one's keys have matrices for keys of their own too, which nobody reads.
    keys_everywhere: bool = False
    further: further.Further | None = None  # reads further fields of ModelConfig
    always: Mapping[str, Any] = field(default_factory=dict)  # fields of ModelConfig that are so in every such model
