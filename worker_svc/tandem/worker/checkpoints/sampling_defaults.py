"""Reads what a model's makers sample with, where a checkpoint says it."""

from __future__ import annotations

from collections.abc import Mapping

from tandem.worker.checkpoints.fields import Fields

# The least and the most; top_k apart, which is a whole number.
_RANGES: Mapping[str, tuple[float, float | None]] = {
    "temperature": (0.0, None),
    "top_p": (0.0, 1.0),
    "min_p": (0.0, 1.0),
    "repetition_penalty": (0.0, None),
}


def sampling_defaults(fields: Fields, keys: Mapping[str, str] | None = None) -> dict[str, float | int]:
    """Returns those that are stated, by our names; `keys` are the file's where they differ. Raises CheckpointError."""
    keys = keys or {}
    defaults: dict[str, float | int] = {}
    for name, (least, most) in _RANGES.items():
        key = keys.get(name, name)
        value = fields.number(key, None)
        if value is None:
            continue
        if value < least or (most is not None and value > most) or (name == "repetition_penalty" and value == 0):
            raise fields.error(key, f"is out of range: {value:g}")
        defaults[name] = value
    key = keys.get("top_k", "top_k")
    top_k = fields.integer(key, None)
    if top_k is not None:
        if top_k < 0:
            raise fields.error(key, f"must be at least 0, but is {top_k}")
        defaults["top_k"] = top_k
    return defaults
