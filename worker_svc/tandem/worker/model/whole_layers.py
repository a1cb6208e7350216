"""Which layers a CPU computes in one compiled call (`cpu/layer.py`), and what others have that it has not. Sizes
that are no multiples of a register's and matrices without a compiled product may still prevent it."""

from __future__ import annotations

from tandem.worker.checkpoints.model_config import ModelConfig
from tandem.worker.checkpoints.model_parts.recurrences import KimiDelta


def not_compiled(config: ModelConfig, layer: int) -> str:
    """Names what keeps a layer from the call; empty where all before its feed-forward part at least is one."""
    if config.compression is not None:
        return "compressed keys, several streams"
    behind = behind_the_call(config)
    if behind and (not config.mixes(layer) or config.parallel):
        return behind
    has_state = config.recurrence is not None and layer in config.recurrence.layers
    found = {
        "several streams": config.streams is not None,
        "gates by two matrices": has_state
        and isinstance(config.recurrence, KimiDelta)
        and not config.recurrence.directly,
        "a bias of keys that are values": config.qkv_bias and not config.projects_values(layer),
        "experts beside attention": config.parallel and config.has_experts(layer),
    }
    return next((name for name, there in found.items() if there), "")


def behind_the_call(config: ModelConfig) -> str:
    """Names what a layer has behind the call; empty where its feed-forward part is in it."""
    if config.activation == "xielu":
        return "xIELU"
    if any(config.sparsity):
        return "gates that are thinned"
    return "experts beside" if config.experts is not None and config.experts.beside else ""
