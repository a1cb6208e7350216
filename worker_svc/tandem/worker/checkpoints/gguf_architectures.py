"""The architectures of llama.cpp that are served, a row each: what their files leave unsaid, and where tensors are.

Which keys each knows: `gguf_fields.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from tandem.worker.checkpoints import gguf_further as further
from tandem.worker.checkpoints import gguf_gemma3n as gemma3n
from tandem.worker.checkpoints import gguf_kimi as kimi
from tandem.worker.checkpoints import gguf_kinds as kinds
from tandem.worker.checkpoints import gguf_mimo as mimo
from tandem.worker.checkpoints import gguf_minimax as minimax
from tandem.worker.checkpoints import gguf_states as states
from tandem.worker.checkpoints.fields import Fields
from tandem.worker.checkpoints.gguf_hybrids import LAYER_NAMES as HYBRID_NAMES
from tandem.worker.checkpoints.gguf_latents import INDEX_NAMES, deepseek32, glm_dsa, latents, mistral4, with_one_head
from tandem.worker.checkpoints.gguf_latents import LAYER_NAMES as LATENT_NAMES
from tandem.worker.checkpoints.model_parts.experts import LFM2_SUM_OFFSET
from tandem.worker.checkpoints.model_parts.mlp import ClampedSwiGLU

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
    may_fuse: bool = False  # older files have q, k and v in one tensor, and their biases in another
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


_NORMS_AROUND = {
    "attention.post_norm": "post_attention_norm.weight",
    "mlp.post_norm": "post_ffw_norm.weight",
}
FUSED = {f"attention.{part}": "attn_qkv.weight" for part in "qkv"}
FUSED_BIASES = {f"attention.{part}_bias": "attn_qkv.bias" for part in "qkv"}
_FUSED_MLP = {"mlp.gate": "ffn_up.weight", "mlp.up": "ffn_up.weight"}
_SHARED = {f"shared.{part}": f"ffn_{part}_shexp.weight" for part in ("gate", "up", "down")}
_GATES = {"attention.gate": "attn_gate.weight", "router_bias": "exp_probs_b.bias"}
_GEMMA: Mapping[str, Any] = {"activation": "gelu_tanh", "norm_placement": "both"}
_SIGMOID: Mapping[str, Any] = {"score": "sigmoid", "biased": True}
_OFFSET_SIGMOID: Mapping[str, Any] = {**_SIGMOID, "sum_offset": LFM2_SUM_OFFSET}
_UNGATED_EXPERTS: Mapping[str, Any] = {**_SIGMOID, "gated": False, "activation": "relu2"}
_NORMS_AFTER = {"attention.norm": "post_attention_norm.weight", "mlp.norm": "post_ffw_norm.weight"}
_POST_NORM = {"mlp.norm": "post_attention_norm.weight"}
_MLP_BIASES = {f"mlp.{part}_bias": f"ffn_{part}.bias" for part in ("gate", "up", "down")}  # of those that may have them
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
FUSED_EXPERTS = dict.fromkeys(("experts.gate", "experts.up"), "ffn_gate_up_exps.weight")  # where files have them so
_INDEXED: Mapping[str, Any] = {
    "partly_rotated": True,
    "layer_names": LAYER_NAMES | _SHARED | LATENT_NAMES | INDEX_NAMES,
    "experts": GgufExperts(normalized=None, shared="count", scaled=True, dense_first=True),
    "drafting_layers": True,
    "prepared": with_one_head,
}
_WITHOUT_OUTPUT_BIAS = {name: stored for name, stored in LAYER_NAMES.items() if name != "attention.output_bias"}
_SHARED_ROUTER = {"shared_router": "ffn_gate_inp_shexp.weight"}
_HYBRID: Mapping[str, Any] = {
    "qk_norm": "head",
    "partly_rotated": True,
    "layer_names": LAYER_NAMES | _POST_NORM | HYBRID_NAMES | _SHARED | _SHARED_ROUTER,
    "experts": GgufExperts(shared="size", always={"shared_router": True}),
    "drafting_layers": True,
    "hybrid": True,
    "further": further.hybrid,
    "always": {"attention_gate": True},
}
_LFM2: Mapping[str, Any] = {
    "qk_norm": "head",
    "folded": True,
    "layer_names": LAYER_NAMES | states.LFM2_NAMES | {"router_bias": "exp_probs_b.bias"},
    "further": states.lfm2,
}
_GPT_2: Mapping[str, Any] = {
    "norm_eps": "attention.layer_norm_epsilon",
    "layer_names": LAYER_NAMES | FUSED | FUSED_BIASES | _MLP_BIASES,
    "unrotated_every": 1,
    "further": further.learned_positions,
    "always": {"activation": "gelu_tanh", "gated": False, "norm": "layer", "norm_bias": True},
}
ARCHITECTURES = {
    "llama": GgufArchitecture("llama", permuted=True, divisors=True, layer_names=LAYER_NAMES | _MLP_BIASES),
    "qwen2": GgufArchitecture("qwen2", qkv_bias=True),
    "qwen3": GgufArchitecture("qwen3", qk_norm="head"),
    "qwen3moe": GgufArchitecture("qwen3_moe", qk_norm="head"),
    # Of models that see, whose files have the text model alone.
    "qwen2vl": GgufArchitecture("qwen2", qkv_bias=True),
    "qwen3vl": GgufArchitecture("qwen3", qk_norm="head"),
    "qwen3vlmoe": GgufArchitecture("qwen3_moe", qk_norm="head"),
    "smollm3": GgufArchitecture("smollm3", permuted=True, unrotated_every=4),
    "seed_oss": GgufArchitecture("seed_oss", layer_names=LAYER_NAMES | _POST_NORM),
    "arcee": GgufArchitecture("arcee", permuted=True, always={"activation": "relu2", "gated": False}),
    "ernie4_5": GgufArchitecture("ernie4_5", permuted=True),
    "granite": GgufArchitecture("granite", permuted=True, layer_names=LAYER_NAMES | _MLP_BIASES),
    "granitemoe": GgufArchitecture(
        "granitemoe",
        permuted=True,
        layer_names=LAYER_NAMES | _SHARED,
        experts=GgufExperts(shared="size", may_share=True),
        sharing="granitemoeshared",
    ),
    "olmoe": GgufArchitecture("olmoe", qk_norm="whole", experts=GgufExperts(normalized=False)),
    "qwen2moe": GgufArchitecture(
        "qwen2_moe",
        layer_names=LAYER_NAMES | _SHARED | _SHARED_ROUTER,
        experts=GgufExperts(normalized=False, shared="size", always={"shared_router": True}),
    ),
    "phi3": GgufArchitecture(
        "phi3",
        layer_names=LAYER_NAMES | FUSED | _FUSED_MLP,
        partly_rotated=True,
        longrope=True,
        windowed="phi3",
    ),
    "phimoe": GgufArchitecture(
        "phimoe",
        longrope=True,
        windowed="phimoe",
        experts=GgufExperts(normalized=False, always={"score": "mixer", "jitter": 0.01}),
        always={"norm": "layer", "norm_bias": True, "logit_bias": True},
    ),
    "glm4": GgufArchitecture(
        "glm4",
        permuted=True,
        halves_of_sections=True,
        partly_rotated=True,
        layer_names=LAYER_NAMES | _NORMS_AROUND | _FUSED_MLP,
        always={"norm_placement": "both"},
    ),
    "glm4moe": GgufArchitecture(
        "glm4_moe",
        may_norm=True,
        partly_rotated=True,
        layer_names=LAYER_NAMES | _POST_NORM | _SHARED | {"router_bias": "exp_probs_b.bias"},
        experts=GgufExperts(normalized=None, shared="count", scaled=True, dense_first=True, always=_SIGMOID),
        drafting_layers=True,
    ),
    "deepseek2": GgufArchitecture(
        "deepseek_v3",
        partly_rotated=True,
        layer_names=LAYER_NAMES | _SHARED | LATENT_NAMES,
        experts=GgufExperts(normalized=None, shared="count", scaled=True, dense_first=True),
        drafting_layers=True,
        prepared=with_one_head,
        further=latents,
    ),
    "mistral4": GgufArchitecture(
        "mistral4",
        partly_rotated=True,
        layer_names=LAYER_NAMES | _SHARED | LATENT_NAMES,
        experts=GgufExperts(normalized=None, shared="count", scaled=True, dense_first=True),
        prepared=with_one_head,
        further=mistral4,
    ),
    "mimo2": GgufArchitecture(
        "mimo_v2_flash",
        partly_rotated=True,
        full_every=6,
        window_rope=0.0,
        layer_names=LAYER_NAMES | {"attention.sinks": "attn_sinks.weight", "router_bias": "exp_probs_b.bias"},
        experts=GgufExperts(always=_SIGMOID),
        prepared=mimo.with_long_values,
        further=mimo.mimo,
        always={"sinks": True, "sinks_in_windows": True},
    ),
    "step35": GgufArchitecture(
        "step3p5",
        qk_norm="head",
        divisors=True,
        longer_divisors=True,
        partly_rotated=True,
        full_every=4,
        window_rope=0.0,
        layer_names=LAYER_NAMES | _SHARED | _GATES,
        experts=GgufExperts(normalized=None, shared="size", scaled=True, dense_first=True, always=_SIGMOID),
        drafting_layers=True,
        prepared=kinds.step_keys,
        further=kinds.step,
        always={"attention_gate": True, "gate_by_head": True},
    ),
    "laguna": GgufArchitecture(
        "laguna",
        qk_norm="head",
        partly_rotated=True,
        windowed="laguna",
        window_rope=0.0,
        layer_names=LAYER_NAMES | _SHARED | _GATES,
        experts=GgufExperts(normalized=None, shared="size", scaled=True, dense_first=True, always=_SIGMOID),
        prepared=kinds.laguna_keys,
        further=kinds.laguna,
        always={"attention_gate": True, "gate_activation": "softplus"},
    ),
    "kimi-linear": GgufArchitecture(
        "kimi_linear",
        partly_rotated=True,
        layer_names=LAYER_NAMES | _SHARED | LATENT_NAMES | kimi.LAYER_NAMES,
        experts=GgufExperts(shared="count", scaled=True, dense_first=True),
        prepared=kimi.with_heads,
        further=kimi.kimi_linear,
    ),
    "deepseek32": GgufArchitecture("deepseek_v32", **_INDEXED, further=deepseek32),
    "glm-dsa": GgufArchitecture("glm_moe_dsa", **_INDEXED, index_permuted=True, further=glm_dsa),
    "afmoe": GgufArchitecture(
        "afmoe",
        qk_norm="head",
        full_every=4,
        unrotated_every=4,
        layer_names=LAYER_NAMES | _NORMS_AROUND | _SHARED | _GATES,
        experts=GgufExperts(normalized=None, shared="count", scaled=True, dense_first=True, always=_SIGMOID),
        further=further.afmoe,
        always={"norm_placement": "both", "attention_gate": True},
    ),
    "minimax-m2": GgufArchitecture(
        "minimax_m2",
        qk_norm="whole",
        partly_rotated=True,
        layer_names=LAYER_NAMES | {"router_bias": "exp_probs_b.bias"},
        experts=GgufExperts(always=_SIGMOID),
    ),
    "minimax-01": GgufArchitecture(
        "minimax",
        partly_rotated=True,
        layer_names=LAYER_NAMES | minimax.LAYER_NAMES,
        prepared=minimax.without_scale,
        further=minimax.minimax,
    ),
    "gpt-oss": GgufArchitecture(
        "gpt_oss",
        layer_names=LAYER_NAMES
        | _POST_NORM
        | {"attention.sinks": "attn_sinks.weight", "router_logit_bias": "ffn_gate_inp.bias"}
        | {f"experts.{part}_bias": f"ffn_{part}_exps.bias" for part in ("gate", "up", "down")},
        full_every=2,
        truncate=False,
        experts=GgufExperts(always={"biases": True, "clamped": ClampedSwiGLU(1.702, 7.0)}),
        always={"sinks": True},
    ),
    "gemma2": GgufArchitecture(
        "gemma2",
        layer_names=LAYER_NAMES | _NORMS_AROUND,
        full_every=2,
        window=4096,
        soft_caps=(50.0, 30.0),
        gemma_width=46,
        always=_GEMMA,
    ),
    "gemma3": GgufArchitecture(
        "gemma3_text",
        qk_norm="head",
        layer_names=LAYER_NAMES | _NORMS_AROUND,
        full_every=6,
        window_rope=10000.0,
        gemma_width=62,
        always=_GEMMA,
    ),
    "gemma4": GgufArchitecture(
        "gemma4_text",
        qk_norm="head",
        divisors=True,
        layer_names=LAYER_NAMES | _NORMS_AROUND | _GEMMA4_NAMES,
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
        layer_names=LAYER_NAMES | _NORMS_AROUND | gemma3n.LAYER_NAMES,
        full_every=5,
        window_rope=10000.0,
        soft_caps=(0.0, 30.0),
        keys_everywhere=True,
        prepared=gemma3n.with_one_size,
        further=gemma3n.gemma3n,
        always=dict(_GEMMA) | {"value_norm": True},
    ),
    "llama4": GgufArchitecture(
        "llama4_text",
        permuted=True,
        divisors=True,
        layer_names=LAYER_NAMES | _SHARED,
        full_every=4,
        window=8192,
        unrotated_every=4,
        experts=GgufExperts(normalized=False, always={"score": "sigmoid", "weighs_input": True}),
        further=further.llama4,
        always={"chunked": True},
    ),
    "mistral3": GgufArchitecture("ministral3", permuted=True, further=further.ministral3),
    "qwen3next": GgufArchitecture("qwen3_next", **_HYBRID),
    "qwen35": GgufArchitecture("qwen3_5_text", **_HYBRID),
    "qwen35moe": GgufArchitecture("qwen3_5_moe_text", **_HYBRID),
    "lfm2": GgufArchitecture("lfm2", **_LFM2),
    "lfm2moe": GgufArchitecture("lfm2_moe", experts=GgufExperts(dense_first=True, always=_OFFSET_SIGMOID), **_LFM2),
    "granitehybrid": GgufArchitecture(
        "granitemoehybrid",
        permuted=True,
        folded=True,
        layer_names=LAYER_NAMES | _SHARED | states.MAMBA_NAMES,
        experts=GgufExperts(shared="size"),
        further=states.granite_hybrid,
    ),
    "nemotron_h": GgufArchitecture(
        "nemotron_h",
        permuted=True,
        folded=True,
        unrotated=True,
        norm_eps_else="attention.layer_norm_epsilon",
        layer_names=LAYER_NAMES | _MLP_BIASES | states.MAMBA_NAMES,
        further=states.nemotron_h,
        always={"activation": "relu2", "gated": False},
    ),
    "nemotron_h_moe": GgufArchitecture(
        "nemotron_h",
        permuted=True,
        folded=True,
        unrotated=True,
        norm_eps_else="attention.layer_norm_epsilon",
        layer_names=LAYER_NAMES | _SHARED | states.MAMBA_NAMES | states.LATENT_EXPERTS,
        experts=GgufExperts(normalized=None, shared="size", scaled=True, always=_UNGATED_EXPERTS),
        further=states.nemotron_h_moe,
        always={"activation": "relu2", "gated": False},
    ),
    "falcon-h1": GgufArchitecture(
        "falcon_h1",
        layer_names=LAYER_NAMES | _MLP_BIASES | states.MAMBA_NAMES | {"mlp.norm": "ffn_norm"},
        further=states.falcon_h1,
    ),
    "starcoder2": GgufArchitecture(
        "starcoder2",
        norm_eps="attention.layer_norm_epsilon",
        layer_names=LAYER_NAMES | _MLP_BIASES,
        always={"activation": "gelu_tanh", "gated": False, "norm": "layer", "norm_bias": True},
    ),
    "phi2": GgufArchitecture(
        "phi",
        norm_eps="attention.layer_norm_epsilon",
        partly_rotated=True,
        may_fuse=True,
        layer_names=LAYER_NAMES | _MLP_BIASES,
        always={
            **{"activation": "gelu_tanh", "gated": False, "norm": "layer", "norm_bias": True},
            **{"parallel": True, "logit_bias": True},
        },
    ),
    "gptneox": GgufArchitecture(
        "gpt_neox",
        norm_eps="attention.layer_norm_epsilon",
        partly_rotated=True,
        layer_names=LAYER_NAMES | FUSED | FUSED_BIASES | _MLP_BIASES,
        further=further.gpt_neox,
        always={"activation": "gelu", "gated": False, "norm": "layer", "norm_bias": True},
    ),
    "gpt2": GgufArchitecture("gpt2", **_GPT_2),
    "starcoder": GgufArchitecture("gpt_bigcode", **_GPT_2),
    "falcon": GgufArchitecture(
        "falcon",
        norm_eps="attention.layer_norm_epsilon",
        layer_names=LAYER_NAMES | FUSED,
        own_norm_names={
            **{"attention.norm": "attn_norm_2.weight", "attention.norm_bias": "attn_norm_2.bias"},
            **{"mlp.norm": "attn_norm.weight", "mlp.norm_bias": "attn_norm.bias"},
        },
        further=further.falcon,
        always={"activation": "gelu", "gated": False, "norm": "layer", "norm_bias": True, "parallel": True},
    ),
    "nemotron": GgufArchitecture(
        "nemotron",
        norm_eps="attention.layer_norm_epsilon",
        partly_rotated=True,
        layer_names=LAYER_NAMES | _MLP_BIASES,
        always={"activation": "relu2", "gated": False, "norm": "layer", "norm_bias": True},
    ),
    "jais2": GgufArchitecture(
        "jais2",
        norm_eps="attention.layer_norm_epsilon",
        layer_names=LAYER_NAMES | _MLP_BIASES,
        always={"activation": "relu2", "gated": False, "norm": "layer", "norm_bias": True},
    ),
    "exaone": GgufArchitecture("exaone", divisors=True),
    "cohere2moe": GgufArchitecture(
        "cohere2_moe",
        permuted=True,
        norm_eps_else="attention.layer_norm_epsilon",
        norm_by_eps=True,
        full_every=4,
        logit_scale_divides=False,
        layer_names=LAYER_NAMES | _SHARED,
        experts=GgufExperts(normalized=None, shared="count", may_share=True, scaled=True, dense_first=True),
        further=further.cohere2_moe,
        always={"parallel": True},
    ),
    "hy_v3": GgufArchitecture(
        "hy_v3",
        qk_norm="head",
        layer_names=LAYER_NAMES | _SHARED | {"router_bias": "exp_probs_b"},
        experts=GgufExperts(normalized=None, shared="size", scaled=True, dense_first=True, always=_SIGMOID),
        drafting_layers=True,
    ),
    "granite_swa": GgufArchitecture(
        "granite_swa",
        permuted=True,
        full_every=4,
        with_experts="granitemoe_swa",
        layer_names=LAYER_NAMES
        | _MLP_BIASES
        | {"attention.sinks": "attn_sinks.weight", "shared.down": "ffn_down_shexp.weight"}
        | dict.fromkeys(("shared.gate", "shared.up"), "ffn_up_shexp.weight"),
        experts=GgufExperts(shared="size", may_share=True),
        further=further.granite_swa,
        always={"sinks": True},
    ),
    "apertus": GgufArchitecture(
        "apertus", qk_norm="head", divisors=True, always={"activation": "xielu", "gated": False}
    ),
    "cohere2": GgufArchitecture(
        "cohere2",
        permuted=True,
        norm_eps="attention.layer_norm_epsilon",
        full_every=4,
        logit_scale_divides=False,
        unrotated_every=4,
        always={"norm": "layer", "parallel": True},
    ),
    "olmo": GgufArchitecture(
        "olmo",
        permuted=True,
        norm_eps="attention.layer_norm_epsilon",
        layer_names=_WITHOUT_OUTPUT_BIAS,
        always={"norm": "layer", "norm_weights": False},
    ),
    "hunyuan-dense": GgufArchitecture("hunyuan_v1_dense", qk_norm="behind", layer_names=_WITHOUT_OUTPUT_BIAS),
    "hunyuan-moe": GgufArchitecture(
        "hunyuan_v1_moe",
        qk_norm="behind",
        layer_names=_WITHOUT_OUTPUT_BIAS | _SHARED,
        experts=GgufExperts(shared="size"),
    ),
    "olmo2": GgufArchitecture(
        "olmo2",
        qk_norm="whole",
        full_every=4,
        windowed="olmo3",
        window_rope=0.0,
        layer_names=LAYER_NAMES | _NORMS_AFTER,
        always={"norm_placement": "after"},
    ),
    "chatglm": GgufArchitecture(
        "glm", permuted=True, partly_rotated=True, layer_names=LAYER_NAMES | _FUSED_MLP, may_fuse=True
    ),
    "ernie4_5-moe": GgufArchitecture(
        "ernie4_5_moe",
        permuted=True,
        layer_names=LAYER_NAMES | _SHARED | {"router_bias": "exp_probs_b.bias"},
        experts=GgufExperts(shared="size", may_share=True, dense_first=True, always={"biased": True}),
    ),
    "exaone4": GgufArchitecture(
        "exaone4",
        qk_norm="head",
        divisors=True,
        full_every=4,
        windowed="exaone4",
        layer_names=LAYER_NAMES | _NORMS_AFTER,
        further=further.exaone4,
        always={"norm_placement": "after"},
    ),
    "dots1": GgufArchitecture(
        "dots1",
        qk_norm="head",
        layer_names=LAYER_NAMES | _SHARED | {"router_bias": "exp_probs_b.bias"},
        experts=GgufExperts(normalized=None, shared="count", scaled=True, dense_first=True, always=_SIGMOID),
    ),
    "gemma": GgufArchitecture("gemma", gemma_width=-1, always={"activation": "gelu_tanh"}),
    "stablelm": GgufArchitecture(
        "stablelm",
        norm_eps="attention.layer_norm_epsilon",
        partly_rotated=True,
        further=further.stablelm,
        always={"norm": "layer", "norm_bias": True},
    ),
    "command-r": GgufArchitecture(
        "cohere",
        permuted=True,
        norm_eps="attention.layer_norm_epsilon",
        logit_scale_divides=False,
        always={"norm": "layer", "parallel": True},
    ),
}
