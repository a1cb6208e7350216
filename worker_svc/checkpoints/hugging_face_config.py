"""From `config.json` to a `ModelConfig`: which architectures are served, and what each leaves unsaid.

RoPE is described by `rope_parameters` (transformers 5) or by `rope_theta` and `rope_scaling` (older). A field that
would change the mathematics in a way that is not served is refused by its name; fields that only concern training are
not looked at.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from worker_svc.checkpoints.fields import Fields, build
from worker_svc.model.config import Experts, ModelConfig, RopeScaling, yarn_attention_factor

KEYS = {
    "num_layers": "num_hidden_layers",
    "num_heads": "num_attention_heads",
    "num_kv_heads": "num_key_value_heads",
    "context_length": "max_position_embeddings",
    "norm_eps": "rms_norm_eps",
    "tie_embeddings": "tie_word_embeddings",
    "windows": "sliding_window",
    "experts.count": "num_experts",
    "experts.per_token": "num_experts_per_tok",
    "experts.intermediate_size": "moe_intermediate_size",
}
ROPE_KEYS = {
    "rope_scaling.factor": "factor",
    "rope_scaling.low_freq_factor": "low_freq_factor",
    "rope_scaling.high_freq_factor": "high_freq_factor",
    "rope_scaling.original_context_length": "original_max_position_embeddings",
    "rope_scaling.beta_fast": "beta_fast",
    "rope_scaling.beta_slow": "beta_slow",
    "rope_scaling.attention_factor": "attention_factor",
}


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
    "router": "mlp.gate.weight",
    "experts.gate": "mlp.experts.{}.gate_proj.weight",
    "experts.up": "mlp.experts.{}.up_proj.weight",
    "experts.down": "mlp.experts.{}.down_proj.weight",
}
_MIXTRAL_NAMES = _LAYER_NAMES | {
    "router": "block_sparse_moe.gate.weight",
    "experts.gate": "block_sparse_moe.experts.{}.w1.weight",
    "experts.up": "block_sparse_moe.experts.{}.w3.weight",
    "experts.down": "block_sparse_moe.experts.{}.w2.weight",
}
EMBEDDING, OUTPUT, NORM = "model.embed_tokens.weight", "lm_head.weight", "model.norm.weight"


@dataclass(frozen=True, slots=True)
class Architecture:
    """One of transformers' model classes, and the defaults of its configuration."""

    name: str  # transformers' model_type, and what we call it
    class_name: str
    layer_names: Mapping[str, str] = field(default_factory=lambda: _LAYER_NAMES, repr=False)
    special_ids: Mapping[str, int] = field(default_factory=lambda: {"bos_token_id": 1, "eos_token_id": 2})
    rope_theta: float = 10000.0
    head_dim: int | None = None  # None: the hidden size over the heads
    qkv_bias: bool = False
    qk_norm: bool = False
    attention_bias: bool = False  # whether it knows this field, which gives biases to q, k, v and the output

    def stored_name(self, name: str) -> str:
        """A canonical tensor's name in the files."""
        if not name.startswith("layers."):
            return {"embedding": EMBEDDING, "output": OUTPUT, "norm": NORM}[name]
        _, layer, part = name.split(".", 2)
        if part.startswith("experts."):
            _, expert, matrix = part.split(".")
            stored = self.layer_names[f"experts.{matrix}"].format(expert)
        else:
            stored = self.layer_names[part]
        return f"model.layers.{layer}.{stored}"


ARCHITECTURES = {
    each.name: each
    for each in (
        Architecture("llama", "LlamaForCausalLM", attention_bias=True),
        Architecture("mistral", "MistralForCausalLM"),
        Architecture("qwen2", "Qwen2ForCausalLM", special_ids={}, qkv_bias=True),
        Architecture("qwen3", "Qwen3ForCausalLM", special_ids={}, head_dim=128, qk_norm=True, attention_bias=True),
        Architecture("mixtral", "MixtralForCausalLM", _MIXTRAL_NAMES, rope_theta=1e6),
        Architecture("qwen3_moe", "Qwen3MoeForCausalLM", special_ids={}, qk_norm=True, attention_bias=True),
    )
}

# What other architectures, or variants of these, compute differently; each with the values that change nothing.
_NEUTRAL: Mapping[str, tuple[Any, ...]] = {
    "hidden_act": ("silu",),
    "mlp_bias": (False,),
    "use_bias": (False,),
    "partial_rotary_factor": (1, 1.0),
    "rope_interleaved": (False,),
    "no_rope_layers": ([],),
    "use_mrope": (False,),
    "dual_chunk_attention_config": (),
    "attention_chunk_size": (),
    "clip_qkv": (),
    "query_pre_attn_scalar": (),
    "attn_logit_softcapping": (),
    "final_logit_softcapping": (),
    "attention_multiplier": (),
    "embedding_multiplier": (1, 1.0),
    "residual_multiplier": (1, 1.0),
    "logits_scaling": (1, 1.0),
    "logit_scale": (1, 1.0),
    "scale_emb": (1, 1.0),
    "shared_expert_intermediate_size": (0,),
    "n_shared_experts": (0,),
    "routed_scaling_factor": (1, 1.0),
    "scoring_func": ("softmax",),
}


def architecture_of(config: Fields) -> Architecture:
    """Which of ours a folder holds; refuses what is not served, by the field's name."""
    classes, kind = config.values.get("architectures"), config.values.get("model_type")
    served = list(ARCHITECTURES.values())
    found = next((each for each in served if ([each.class_name] if classes else each.name) == (classes or kind)), None)
    if found is None and classes:
        names = ", ".join(each.class_name for each in served)
        raise config.error("architectures", f"{str(classes)[:200]} is not served; served are {names}")
    if found is None:
        raise config.error("model_type", f"{str(kind)[:60]!r} is not served; served are {', '.join(ARCHITECTURES)}")
    for key, neutral in _NEUTRAL.items():
        value = config.values.get(key)
        if value is not None and value not in neutral:
            allowed = f"served is {neutral[0]}" if neutral else "models without it are served"
            raise config.error(key, f"is {str(value)[:60]!r}, which is not served; {allowed}")
    if not found.attention_bias and config.boolean("attention_bias", False):
        raise config.error("attention_bias", f"is true, which {found.class_name} does not have")
    return found


def read_config(config: Fields, architecture: Architecture, tied: bool) -> ModelConfig:
    """Raises CheckpointError for impossible or contradicting values, by the field's name."""
    hidden_size, heads = config.integer("hidden_size"), config.integer("num_attention_heads")
    head_dim = config.integer("head_dim", architecture.head_dim)
    if head_dim is None:
        if hidden_size < 1 or heads < 1 or hidden_size % heads:
            raise config.error("hidden_size", f"{hidden_size} cannot be split over num_attention_heads {heads}")
        head_dim = hidden_size // heads
    layers = config.integer("num_hidden_layers")
    rope = config.object("rope_parameters" if config.has("rope_parameters") else "rope_scaling")
    scaling = _rope_scaling(config, rope)
    context_length = config.integer("max_position_embeddings")
    if scaling is not None and scaling.kind == "dynamic":
        context_length = int(context_length * scaling.factor)
    bias = architecture.attention_bias and config.boolean("attention_bias", False)
    return build(
        ModelConfig,
        config,
        KEYS,
        architecture=architecture.name,
        vocab_size=config.integer("vocab_size"),
        hidden_size=hidden_size,
        intermediate_size=config.integer("intermediate_size"),
        num_layers=layers,
        num_heads=heads,
        num_kv_heads=config.integer("num_key_value_heads", heads),
        head_dim=head_dim,
        context_length=context_length,
        norm_eps=config.number("rms_norm_eps"),
        rope_theta=rope.number("rope_theta", config.number("rope_theta", architecture.rope_theta)),
        rope_scaling=scaling,
        tie_embeddings=tied,
        qkv_bias=architecture.qkv_bias or bias,
        output_bias=bias,
        qk_norm=architecture.qk_norm,
        windows=_windows(config, architecture, layers),
        experts=_experts(config, architecture, layers),
    )


def _rope_scaling(config: Fields, rope: Fields) -> RopeScaling | None:
    for key, value in rope.values.items():
        if isinstance(value, dict):
            raise rope.error(key, "is an object; rope parameters that differ by layer are not served")
    kind = rope.text("rope_type", rope.text("type", "default"))
    if rope.number("partial_rotary_factor", 1.0) != 1.0:
        raise rope.error("partial_rotary_factor", "is not 1; rotating a part of the head is not served")
    if kind == "default":
        return None
    trained = config.integer("max_position_embeddings")
    values: dict[str, Any] = {"kind": kind}
    match kind:
        case "linear":
            values["factor"] = rope.number("factor")
        case "dynamic":
            values |= {"factor": rope.number("factor"), "original_context_length": trained}
        case "llama3":
            values |= {
                "factor": rope.number("factor"),
                "low_freq_factor": rope.number("low_freq_factor"),
                "high_freq_factor": rope.number("high_freq_factor"),
                "original_context_length": rope.integer("original_max_position_embeddings", trained),
            }
        case "yarn":
            original = rope.integer("original_max_position_embeddings", trained)
            factor = rope.number("factor", trained / max(original, 1))
            values |= {
                "factor": factor,
                "original_context_length": original,
                "beta_fast": rope.number("beta_fast", 32.0),
                "beta_slow": rope.number("beta_slow", 1.0),
                "attention_factor": rope.number("attention_factor", _attention_factor(rope, factor)),
                "truncate": rope.boolean("truncate", True),
            }
        case _:
            raise rope.error("rope_type", f"{kind!r} is not served; served are default, linear, dynamic, llama3, yarn")
    return build(RopeScaling, rope, ROPE_KEYS, **values)


def _attention_factor(rope: Fields, factor: float) -> float:
    """YaRN's, where the file leaves it out: from the factor, or from two scales of DeepSeek's."""
    above, below = rope.number("mscale", 0.0), rope.number("mscale_all_dim", 0.0)
    if not above or not below or factor <= 1:
        return yarn_attention_factor(factor)
    grown = yarn_attention_factor(factor) - 1
    return (above * grown + 1) / (below * grown + 1)


def _windows(config: Fields, architecture: Architecture, layers: int) -> tuple[int, ...]:
    """Each layer's sliding window; empty where there is none."""
    window: int | None
    if architecture.name == "llama":
        window = None  # such a field is none of its own, and transformers does not look at it
    elif architecture.name in ("mistral", "mixtral"):
        default = 4096 if architecture.name == "mistral" and "sliding_window" not in config.values else None
        window = config.integer("sliding_window", default)
    elif config.boolean("use_sliding_window", False):
        window = config.integer("sliding_window", 4096)
    else:
        window = None
    if window is None or not 0 < layers <= 1 << 12:  # the number of layers is checked later
        return ()
    if window < 1:
        raise config.error("sliding_window", f"must be at least 1, but is {window}")
    kinds = config.values.get("layer_types")
    if architecture.name not in ("qwen2", "qwen3"):
        return (window,) * layers
    if kinds is None:
        full = config.integer("max_window_layers", 28)
        return tuple(0 if layer < full else window for layer in range(layers))
    served = {"sliding_attention": window, "full_attention": 0}
    if not isinstance(kinds, list) or len(kinds) != layers or any(kind not in served for kind in kinds):
        raise config.error("layer_types", f"must name one of {', '.join(served)} for each of the {layers} layers")
    return tuple(served[kind] for kind in kinds)


def _experts(config: Fields, architecture: Architecture, layers: int) -> Experts | None:
    if architecture.name == "mixtral":
        return build(
            Experts,
            config,
            KEYS | {"experts.count": "num_local_experts", "experts.intermediate_size": "intermediate_size"},
            count=config.integer("num_local_experts", 8),
            per_token=config.integer("num_experts_per_tok", 2),
            intermediate_size=config.integer("intermediate_size"),
            normalized=True,
        )
    if architecture.name != "qwen3_moe":
        return None
    step = config.integer("decoder_sparse_step", 1)
    dense = config.values.get("mlp_only_layers") or []
    if not isinstance(dense, list) or any(type(layer) is not int for layer in dense):
        raise config.error("mlp_only_layers", "must be a list of layers' numbers")
    if step < 1:
        raise config.error("decoder_sparse_step", f"must be at least 1, but is {step}")
    count = config.integer("num_experts" if config.has("num_experts") else "num_local_experts", 128)
    return build(
        Experts,
        config,
        KEYS,
        count=count,
        per_token=config.integer("num_experts_per_tok", 8),
        intermediate_size=config.integer("moe_intermediate_size"),
        normalized=config.boolean("norm_topk_prob", False),
        dense_layers=tuple(layer for layer in range(min(layers, 1 << 12)) if layer in dense or (layer + 1) % step),
    )
