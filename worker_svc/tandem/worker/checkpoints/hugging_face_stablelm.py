"""Reads what a StableLM says by fields of its own: biases of q, k and v, and parts side by side."""

from __future__ import annotations

from typing import Any

from tandem.worker.checkpoints.fields import Fields


def stablelm(config: Fields, _rope: Fields, _windows: tuple[int, ...]) -> dict[str, Any]:
    """Returns fields of `ModelConfig`."""
    return {
        "qkv_bias": config.boolean("use_qkv_bias", False),
        "parallel": config.boolean("use_parallel_residual", False),
    }
