"""Reads what Laguna says in words of its own: heads of queries of each layer, what of a head rotates by the kind of
layer, and gates of attention by heads or by numbers."""

from __future__ import annotations

from typing import Any

from tandem.worker.checkpoints.fields import Fields
from tandem.worker.checkpoints.hugging_face_kinds import FULL, KINDS, WINDOWED, query_heads, windows_part, with_parts
from tandem.worker.checkpoints.model_parts.limits import LIMITS

_USUAL = {
    FULL: {"rope_type": "default", "rope_theta": 500000.0, "partial_rotary_factor": 0.5},
    WINDOWED: {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 1.0},
}
_GATES = {"per-head": True, "per-element": False}  # whether there is one for each head


def with_unsaid(config: Fields) -> Fields:
    """Returns the config with what it leaves unsaid."""
    layers = config.integer("num_hidden_layers")
    if not 0 < layers <= LIMITS["num_layers"]:
        raise config.error("num_hidden_layers", f"must be from 1 to {LIMITS['num_layers']}, but is {layers}")
    values = dict(config.values)
    if not config.has("rope_parameters"):
        values["rope_parameters"] = _USUAL
    if not config.has("mlp_layer_types"):
        values["mlp_layer_types"] = ["dense", *["sparse"] * (layers - 1)]
    kinds = config.kinds("layer_types", KINDS, layers, [FULL] * layers)
    return with_parts(config.with_values(values), _USUAL, kinds)


def laguna(config: Fields, _rope: Fields, windows: tuple[int, ...]) -> dict[str, Any]:
    """Returns fields of `ModelConfig`."""
    layers, heads = config.integer("num_hidden_layers"), config.integer("num_attention_heads")
    listed = config.values.get("num_attention_heads_per_layer")
    listed = [heads] * layers if listed is None else listed
    if not isinstance(listed, list) or len(listed) != layers or any(type(one) is not int for one in listed):
        raise config.error("num_attention_heads_per_layer", f"must be a list of a number for each of {layers} layers")
    gating = config.values.get("gating", True)
    by_head = True if gating is True else _GATES.get(gating) if isinstance(gating, str) else None
    if by_head is None:
        raise config.error("gating", f"{gating!r} is not served; served are true, per-head and per-element")
    return {
        **query_heads(listed),
        **windows_part(config, config.integer("head_dim", 128), windows),
        "gate_by_head": by_head,
    }
