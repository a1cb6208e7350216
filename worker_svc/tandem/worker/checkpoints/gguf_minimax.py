"""Reads what files of llama.cpp's `minimax-01` (MiniMax-01, MiniMax-M1) say of layers with lightning attention, and
where it keeps their parts. Of such a layer's norm it takes the model's epsilon; the published one is another."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tandem.worker.checkpoints.fields import Fields, build
from tandem.worker.checkpoints.gguf_further import Facts
from tandem.worker.checkpoints.gguf_hybrids import GgufPiece
from tandem.worker.checkpoints.hugging_face_minimax import rows_by_head
from tandem.worker.checkpoints.model_config import ModelConfig
from tandem.worker.checkpoints.model_parts.recurrences import Lightning
from tandem.worker.checkpoints.model_parts.stream import KeptNorms

LISTED, EVERY, SCALE = "attention.recurrent_layers", "full_attention_interval", "residual_scale"
LAYER_NAMES = {
    "lightning.channels": "attn_qkv.weight",
    "lightning.z": "attn_gate.weight",
    "lightning.norm_weight": "attn_norm_2.weight",
    "lightning.output": "attn_output.weight",
}


def without_scale(fields: Fields) -> Fields:
    """Returns the keys of a file without what is the norms' here, and the residual's elsewhere."""
    return fields.with_values({key: value for key, value in fields.values.items() if key != SCALE})


def minimax(fields: Fields, config: ModelConfig, _facts: Facts) -> Mapping[str, Any]:
    """Layers with states, and by what norms are multiplied that take the stream's place."""
    every, layers = fields.integer(EVERY, 8), config.num_layers
    if every < 1:
        raise fields.error(EVERY, f"must be at least 1, but is {every}")
    listed = fields.values.get(LISTED, [(layer + 1) % every > 0 for layer in range(layers)])
    listed = listed if isinstance(listed, list) else [listed] * layers  # one for all that are equal
    if len(listed) != layers or any(one not in (0, 1) for one in listed):
        raise fields.error(LISTED, f"must be true or false for each of {layers} layers")
    states = tuple(layer for layer, one in enumerate(listed) if one)
    sizes = {"layers": states, "heads": config.num_heads, "head_dim": config.head_dim}
    scale = fields.number(SCALE)
    keys = {"lightning.heads": "attention.head_count"}
    keys |= {f"kept_norms.{part}": SCALE for part in ("attention", "state", "feed_forward")}
    return {
        "recurrence": build(Lightning, fields, keys, **sizes) if states else None,
        "kept_norms": build(KeptNorms, fields, keys, attention=scale, state=scale, feed_forward=scale),
    }


def lightning_pieces(config: ModelConfig, sizes: Lightning) -> dict[str, GgufPiece]:
    """Returns the pieces, by canonical name, of the tensors of such layers that are not stored as they are."""
    shape, rows = (sizes.channels, config.hidden_size), rows_by_head(sizes)
    name = "lightning.channels"
    return {
        f"layers.{layer}.{name}": GgufPiece(f"blk.{layer}.{LAYER_NAMES[name]}", shape, rows) for layer in sizes.layers
    }
