"""Reads what a HyperCLOVA X says by fields of its own: norms behind each part, and what multiplies the logits."""

from __future__ import annotations

from typing import Any

from tandem.worker.checkpoints.fields import Fields


def hyperclovax(config: Fields, _rope: Fields, _windows: tuple[int, ...]) -> dict[str, Any]:
    """Returns fields of `ModelConfig`."""
    return {
        "norm_placement": "both" if config.boolean("use_post_norm", True) else "before",
        "logit_multiplier": config.number("logits_scaling", 1.0),  # which divides them in others
    }
