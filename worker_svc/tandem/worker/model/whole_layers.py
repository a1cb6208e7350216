"""Which layers a CPU computes in one compiled call (`cpu/layer.py`), and what others have that it has not. Sizes
that are no multiples of a register's and matrices without a compiled product may still prevent it."""

from __future__ import annotations

from collections.abc import Mapping

from tandem.worker.checkpoints.model_config import ModelConfig


def not_compiled(config: ModelConfig, layer: int) -> str:
    """Names what keeps a layer from the call; empty where all before its feed-forward part at least is one."""
    if not config.mixes(layer) or not config.feeds(layer):
        return "one part alone"
    has_state = config.recurrence is not None and layer in config.recurrence.layers
    return _first(
        {
            "a state beside attention": has_state and config.beside_attention,
            "latents": config.latents is not None,
            "a bias of gates": config.attention_gate and config.qkv_bias and not has_state,
            "keys that are values": not config.projects_values(layer),
            "another layer's keys": not config.stores(layer),
            "parts side by side": config.parallel,
        }
    )


def behind_the_call(config: ModelConfig, layer: int) -> str:
    """Names what a layer has behind the call; empty where its feed-forward part is in it."""
    return _first(
        {
            "experts": config.has_experts(layer),
            "inputs or scales of layers": config.layer_scale or config.per_layer_inputs is not None,
        }
    )


def _first(found: Mapping[str, bool]) -> str:
    return next((name for name, there in found.items() if there), "")
