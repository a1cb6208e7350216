"""Reads what Ling 3.0 says of its layers: latents with a gate a head in some, a delta rule with a decay of each channel
of the keys in the others, as Kimi Linear has it (`hugging_face_kimi.py`) but for what decays and gates are made of."""

from __future__ import annotations

from typing import Any

from tandem.worker.checkpoints.fields import Fields, build
from tandem.worker.checkpoints.model_parts.recurrences import KimiDelta

KEYS = {
    "kimi_delta.heads": "linear_num_heads",
    "kimi_delta.head_dim": "linear_head_dim",
    "kimi_delta.kernel": "linear_conv_kernel_dim",
    "kimi_delta.least": "kda_lower_bound",
}
_USUAL_NAMES = {
    "model_max_length": "max_position_embeddings",
    "moe_renormalize": "norm_topk_prob",
    "num_expert_group": "n_group",
    "num_experts_per_token": "num_experts_per_tok",
    "num_mtp_layers": "num_nextn_predict_layers",
    "num_shared_experts": "n_shared_experts",
}
_KINDS = ("linear_attention", "full_attention")


def with_usual_names(config: Fields) -> Fields:
    """Returns the config with the names that others have, and its `head_dim` as what it is of: states. transformers
    writes both, and another `head_dim` then."""
    config = config.renamed(_USUAL_NAMES)
    values = {"q_lora_rank": None} | {key: value for key, value in config.values.items() if key != "head_dim"}
    rope = values.get("rope_parameters")
    if isinstance(rope, dict) and rope.get("rope_theta") is not None:
        values.pop("rope_theta", None)  # transformers writes its default beside it
    usual = {
        "linear_head_dim": config.integer("head_dim", 128),
        "linear_num_heads": config.integer("num_attention_heads"),
        "linear_conv_kernel_dim": config.integer("short_conv_kernel_size", 4),
    }
    return config.with_values(usual | values)


def ling(config: Fields, _rope: Fields, _windows: tuple[int, ...]) -> dict[str, Any]:
    """Returns fields of `ModelConfig`."""
    layers, every = config.integer("num_hidden_layers"), config.integer("layer_group_size", 6)
    if every < 1:
        raise config.error("layer_group_size", f"must be at least 1, but is {every}")
    usual = [_KINDS[(layer + 1) % every == 0] for layer in range(layers)]
    kinds = config.kinds("layer_types", _KINDS, layers, usual)
    states = tuple(layer for layer, kind in enumerate(kinds) if kind == _KINDS[0])
    sizes: dict[str, Any] = {
        name.removeprefix("kimi_delta."): config.integer(key) for name, key in KEYS.items() if "linear" in key
    }
    least = config.number("kda_lower_bound", -5.0)
    if config.boolean("kda_safe_gate", True):
        if least >= 0:
            raise config.error("kda_lower_bound", f"must be less than 0, but is {least:g}")
        sizes["least"] = least
    recurrence = build(KimiDelta, config, KEYS, layers=states, directly=True, **sizes) if states else None
    return {"recurrence": recurrence}
