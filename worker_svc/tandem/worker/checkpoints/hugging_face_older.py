"""Reads what older models say by names of their own, or do not say: OLMo 1."""

from __future__ import annotations

from tandem.worker.checkpoints.fields import Fields


def with_constant_eps(config: Fields) -> Fields:
    """Returns the config of an OLMo with the epsilon of its norms, which no file says."""
    return config.with_values(config.values | {"rms_norm_eps": 1e-5})
