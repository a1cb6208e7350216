"""Reads what OLMo Hybrid says: layers with a gated delta rule beside attention, whose norms stand elsewhere."""

from __future__ import annotations

from typing import Any

from tandem.worker.checkpoints.fields import Fields, build
from tandem.worker.checkpoints.hugging_face_delta_net import KEYS
from tandem.worker.checkpoints.model_parts.recurrences import DeltaNet

_STATE, _ATTENTION = _KINDS = ("linear_attention", "full_attention")
_GATE_EPS = 1e-5  # whatever the other norms have, and no file says it


def olmo_hybrid(config: Fields, rope: Fields, _windows: tuple[int, ...]) -> dict[str, Any]:
    """Returns fields of `ModelConfig`. Where theta is null, as in published files, no layer rotates."""
    layers = config.integer("num_hidden_layers")
    usual = [_KINDS[layer % 4 == 3] for layer in range(layers)]
    usual[-1] = usual[-1] if _ATTENTION in usual else _ATTENTION
    kinds = config.kinds("layer_types", _KINDS, layers, usual)
    if set(kinds) != set(_KINDS):
        raise config.error("layer_types", f"must name both {' and '.join(_KINDS)}")
    heads = config.integer("num_attention_heads")
    key_heads = config.integer("linear_num_key_heads", heads)
    key_dim = config.integer(
        "linear_key_head_dim", int(0.75 * config.integer("hidden_size") / key_heads) if key_heads > 0 else 0
    )
    said = next((each.values["rope_theta"] for each in (rope, config) if "rope_theta" in each.values), 0.0)
    return {
        "norm_placement": "after_attention",
        "unrotated_layers": tuple(range(layers)) if said is None else (),
        "recurrence": build(
            DeltaNet,
            config,
            KEYS,
            layers=tuple(layer for layer, kind in enumerate(kinds) if kind == _STATE),
            key_heads=key_heads,
            value_heads=config.integer("linear_num_value_heads", heads),
            key_dim=key_dim,
            value_dim=config.integer("linear_value_head_dim", 2 * key_dim),
            kernel=config.integer("linear_conv_kernel_dim", 4),
            beta_multiplier=2.0 if config.boolean("linear_allow_neg_eigval", True) else 1.0,
            norm_eps=_GATE_EPS,
            apart=True,
        ),
    }
