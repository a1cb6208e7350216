"""Sampling parameters: presets and strategies, rules between fields, and the message of the wire."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from tandem.inference.v1 import inference_pb2 as pb

from .errors import FieldViolation
from .params import SamplingParams

# What temperature, top_k, top_p and repetition_penalty a preset stands for.
PRESETS: Mapping[str, Mapping[str, float]] = {
    "creative": {"temperature": 0.9, "top_k": 50, "top_p": 0.95, "repetition_penalty": 1.05},
    "balanced": {"temperature": 0.7, "top_k": 40, "top_p": 0.9, "repetition_penalty": 1.1},
    "focused": {"temperature": 0.3, "top_k": 20, "top_p": 0.8, "repetition_penalty": 1.15},
    "deterministic": {"temperature": 0.0},
}
_FILTERS_OFF: Mapping[str, float] = {
    "top_k": 0,
    "tail_free_z": 1.0,
    "typical_p": 1.0,
    "top_p": 1.0,
    "min_p": 0.0,
    "top_a": 0.0,
    "xtc_probability": 0.0,
}
# Which filters a strategy leaves on: field -> the value it takes if neither a preset nor the caller names one.
# "combined" leaves everything as it is.
STRATEGIES: Mapping[str, Mapping[str, float]] = {
    "greedy": {},
    "top_k": {"top_k": 40},
    "top_p": {"top_p": 0.9},
    "temperature": {},
    "combined": {},
}

# Where a field stands in the message, if not at the top under its own name.
PATHS: Mapping[str, str] = {
    "dynamic_temperature_range": "dynamic_temperature.range",
    "dynamic_temperature_exponent": "dynamic_temperature.exponent",
    "xtc_probability": "xtc.probability",
    "xtc_threshold": "xtc.threshold",
    "mirostat": "mirostat.version",
    "mirostat_tau": "mirostat.tau",
    "mirostat_eta": "mirostat.eta",
    "dry_multiplier": "dry.multiplier",
    "dry_base": "dry.base",
    "dry_allowed_length": "dry.allowed_length",
    "dry_window": "dry.window",
    "dry_sequence_breakers": "dry.sequence_breakers",
}
FIELDS = tuple(field.name for field in dataclasses.fields(SamplingParams))
_SEQUENCES = ("banned_sequences", "dry_sequence_breakers")
_IDS = ("allowed_ids", "banned_ids")
_INTEGERS = (
    "top_k",
    "mirostat",
    "repetition_window",
    "repetition_decay",
    "dry_allowed_length",
    "dry_window",
    "seed",
)


def with_preset(params: SamplingParams, preset: str | None, strategy: str | None) -> SamplingParams:
    """The parameters, and where they leave something open the strategy's and then the preset's value."""
    values: dict[str, Any] = dict(PRESETS[preset]) if preset is not None else {}
    if strategy == "greedy":
        values = {**_FILTERS_OFF, "temperature": 0.0, **_only(values, "repetition_penalty")}
    elif strategy is not None and strategy != "combined":
        own = STRATEGIES[strategy]
        kept = _only(values, "temperature", "repetition_penalty", *own)
        values = {**_FILTERS_OFF, **own, **kept}
    explicit = {name: value for name in FIELDS if (value := getattr(params, name)) is not None}
    return dataclasses.replace(SamplingParams(), **{**values, **explicit})


def _only(values: Mapping[str, Any], *names: str) -> dict[str, Any]:
    return {name: values[name] for name in names if name in values}


def violations_between(params: SamplingParams) -> list[FieldViolation]:
    """What is wrong although each field alone is right. Fields of a wrong type have been named before."""
    found: list[FieldViolation] = []
    if params.mirostat in (1, 2):
        found.extend(
            FieldViolation(f"sampling.{name}", "must be off with mirostat, which takes its place")
            for name in (*_FILTERS_OFF, "dynamic_temperature_range")
            if getattr(params, name) not in (None, _FILTERS_OFF.get(name, 0))
        )
    allowed = _numbers(params.allowed_ids)
    if allowed and allowed <= _numbers(params.banned_ids):
        found.append(FieldViolation("sampling.allowed_ids", "must leave at least one id that is not banned"))
    return found


def _numbers(ids: object) -> set[int]:
    return {each for each in ids if isinstance(each, int)} if isinstance(ids, Sequence) else set()


def to_message(params: SamplingParams) -> pb.SamplingParams:
    """Valid parameters as they travel; numbers of other libraries are welcome, protobuf wants Python's own."""
    message = pb.SamplingParams()
    for name in FIELDS:
        value = getattr(params, name)
        if value is None:
            continue
        owner, field = _place(message, name)
        if name == "logit_bias":
            message.logit_bias.extend(pb.LogitBias(id=int(key), bias=float(bias)) for key, bias in value.items())
        elif name in _SEQUENCES:
            getattr(owner, field).extend(pb.TokenSequence(ids=[int(each) for each in ids]) for ids in value)
        elif name in _IDS:
            getattr(owner, field).extend(int(each) for each in value)
        elif name == "temperature_last":
            message.temperature_last = value
        else:
            setattr(owner, field, int(value) if name in _INTEGERS else float(value))
    return message


def from_message(message: pb.SamplingParams) -> SamplingParams:
    """What a worker reports."""
    values: dict[str, Any] = {}
    for name in FIELDS:
        owner, field = _place(message, name)
        if name == "logit_bias":
            values[name] = {each.id: each.bias for each in message.logit_bias} or None
        elif name in _SEQUENCES:
            values[name] = [list(each.ids) for each in getattr(owner, field)] or None
        elif name in _IDS:
            values[name] = list(getattr(owner, field)) or None
        elif owner.HasField(field):
            values[name] = getattr(owner, field)
    return SamplingParams(**values)


def _place(message: pb.SamplingParams, name: str) -> tuple[Any, str]:
    """The message that holds a field, and the field's name there."""
    owner: Any = message
    *parents, field = PATHS.get(name, name).split(".")
    for parent in parents:
        owner = getattr(owner, parent)
    return owner, field
