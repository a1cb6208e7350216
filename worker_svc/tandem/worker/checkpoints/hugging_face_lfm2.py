"""Reads what LFM2 and LFM3 say beyond other architectures: which layers have a convolution instead of attention, a
window, norms and gates, and sizes."""

from __future__ import annotations

from typing import Any

from tandem.worker.checkpoints.fields import Fields, build, shown
from tandem.worker.checkpoints.hugging_face_gemma4 import turning
from tandem.worker.checkpoints.model_parts.experts import LFM2_SUM_OFFSET, Experts
from tandem.worker.checkpoints.model_parts.limits import LIMITS
from tandem.worker.checkpoints.model_parts.recurrences import ShortConvolution

KEYS = {"short_convolution.kernel": "conv_L_cache"}
_EXPERT_KEYS = {
    "experts.count": "num_experts",
    "experts.per_token": "num_experts_per_tok",
    "experts.intermediate_size": "moe_intermediate_size",
    "experts.scale": "routed_scaling_factor",
}
_KINDS = ("conv", "full_attention")
_WINDOW = "sliding_attention"  # of LFM3


def lfm2(config: Fields, _rope: Fields, _windows: tuple[int, ...]) -> dict[str, Any]:
    """Returns fields of `ModelConfig` for dense models."""
    layers = config.integer("num_hidden_layers")
    usual = None
    if not config.has("layer_types"):
        listed = config.values.get("full_attn_idxs")
        if listed is None:
            listed = list(range(layers))
        if not isinstance(listed, list) or any(type(one) is not int for one in listed):
            raise config.error("full_attn_idxs", "must be a list of layers' numbers")
        attending = set(listed)
        usual = [_KINDS[layer in attending] for layer in range(layers)]
    kinds = config.kinds("layer_types", _KINDS, layers, usual)
    return {"intermediate_size": _intermediate_size(config), "recurrence": _convolutions(config, kinds)}


def lfm2_moe(config: Fields, _rope: Fields, _windows: tuple[int, ...]) -> dict[str, Any]:
    """Returns fields of `ModelConfig` for models with experts."""
    layers = config.integer("num_hidden_layers")
    dense = config.integer("num_dense_layers", 2)
    if dense < 0:
        raise config.error("num_dense_layers", f"must be at least 0, but is {dense}")
    experts = build(
        Experts,
        config,
        _EXPERT_KEYS,
        count=config.integer("num_experts", 32),
        per_token=config.integer("num_experts_per_tok", 4),
        intermediate_size=config.integer("moe_intermediate_size", 1792),
        normalized=config.boolean("norm_topk_prob", True),
        dense_layers=tuple(range(min(dense, layers))),
        score="sigmoid",
        biased=config.boolean("use_expert_bias", True),
        scale=config.number("routed_scaling_factor", 1.0),
        sum_offset=LFM2_SUM_OFFSET,
    )
    return {"experts": experts, "recurrence": _convolutions(config, config.kinds("layer_types", _KINDS, layers))}


def lfm3(config: Fields, rope: Fields, _windows: tuple[int, ...]) -> dict[str, Any]:
    """Returns fields of `ModelConfig`; `rope` are the parameters of layers without a window."""
    layers = config.integer("num_hidden_layers")
    turns = (_WINDOW, "conv", "full_attention", "conv")
    usual = ["conv", *(turns[layer % 4] for layer in range(1, layers))]
    kinds = config.kinds("layer_types", (*_KINDS, _WINDOW), layers, usual)
    recurrence = _convolutions(config, kinds, kernel=7)
    found: dict[str, Any] = {"recurrence": recurrence, "rotary_dim": turning(rope, config.integer("head_dim", 128))}
    if _WINDOW in kinds:
        # null says that there is none, unlike a field that is absent
        window = config.integer("sliding_window", None if "sliding_window" in config.values else 256)
        if window is None or window < 1:
            raise config.error("sliding_window", f"must be at least 1, as layers have it, but is {shown(window)}")
        found["windows"] = tuple(window if kind == _WINDOW else 0 for kind in kinds)
    gated = config.boolean("use_attention_gate", True)
    around = config.boolean("use_sandwich_norm", True)
    found |= {"attention_gate": gated, "gate_by_head": gated, "norm_placement": "both" if around else "before"}
    return found


def _convolutions(config: Fields, kinds: list[str], *, kernel: int = 3) -> ShortConvolution | None:
    found = tuple(layer for layer, kind in enumerate(kinds) if kind == _KINDS[0])
    if not found:
        return None
    return build(
        ShortConvolution,
        config,
        KEYS,
        layers=found,
        channels=config.integer("hidden_size"),
        kernel=config.integer("conv_L_cache", kernel),
        biases=config.boolean("conv_bias", False),
    )


def _intermediate_size(config: Fields) -> int:
    """Reads the size that matrices have: two thirds of what is said, by a factor and up to a multiple, if adjusted."""
    key = "block_ff_dim" if config.has("block_ff_dim") else "intermediate_size"
    size = config.integer(key, 12288)
    if not 1 <= size <= LIMITS["intermediate_size"]:
        raise config.error(key, f"must be from 1 to {LIMITS['intermediate_size']}, but is {size}")
    if not config.boolean("block_auto_adjust_ff_dim", True):
        return size
    factor, multiple = config.number("block_ffn_dim_multiplier", 1.0), config.integer("block_multiple_of", 256)
    if not 0 < factor <= 64:
        raise config.error("block_ffn_dim_multiplier", f"must be more than 0 and at most 64, but is {factor:g}")
    if not 1 <= multiple <= 1 << 16:
        raise config.error("block_multiple_of", f"must be from 1 to {1 << 16}, but is {multiple}")
    return -(-int(factor * int(2 * size / 3)) // multiple) * multiple
