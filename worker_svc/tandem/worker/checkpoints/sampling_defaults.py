"""Reads what a model's makers sample with, where a checkpoint says it."""

from __future__ import annotations

from collections.abc import Mapping

from tandem.inference.v1 import inference_pb2 as pb
from tandem.limits.fields import limits_of, shown
from tandem.worker.checkpoints.fields import Fields

_LIMITS = limits_of(pb.SamplingParams.DESCRIPTOR)  # those of a request
_NUMBERS = ("temperature", "top_p", "min_p", "repetition_penalty")
_INTEGERS = ("top_k",)
WHOLE_CONTEXT = 0xFFFF_FFFF  # a window that is cut to the context


def sampling_defaults(fields: Fields, keys: Mapping[str, str] | None = None) -> dict[str, float | int]:
    """Returns those that are stated, by our names; `keys` are the file's where they differ. Raises CheckpointError."""
    keys = keys or {}
    defaults: dict[str, float | int] = {}
    for names, read in ((_NUMBERS, fields.number), (_INTEGERS, fields.integer)):
        for name in names:
            key, limit = keys.get(name, name), _LIMITS[name]
            value = read(key, None)
            if value is None:
                continue
            if not limit.allows(value):
                raise fields.error(key, f"must be {limit.range}, but is {shown(value)}")
            defaults[name] = value
    return defaults
