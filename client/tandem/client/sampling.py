"""Sampling parameters: presets and strategies, rules between fields, and the message of the wire."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from tandem.client.errors import FieldViolation
from tandem.client.params import StoppingParams
from tandem.client.sampling_params import SamplingParams
from tandem.inference.v1 import inference_pb2 as pb
from tandem.limits.fields import Kind, Limit, limits_of

# By our names, in their order.
LIMITS: Mapping[str, Limit] = {limit.name: limit for limit in limits_of(pb.SamplingParams.DESCRIPTOR).values()}

# What temperature, top_k, top_p and repetition_penalty a preset stands for.
PRESETS: Mapping[str, Mapping[str, float]] = {
    "creative": {"temperature": 0.9, "top_k": 50, "top_p": 0.95, "repetition_penalty": 1.05},
    "balanced": {"temperature": 0.7, "top_k": 40, "top_p": 0.9, "repetition_penalty": 1.1},
    "focused": {"temperature": 0.3, "top_k": 20, "top_p": 0.8, "repetition_penalty": 1.15},
    "deterministic": {"temperature": 0.0},
}
_OFF: Mapping[str, float] = {
    name: limit.default for name, limit in LIMITS.items() if limit.filter and limit.default is not None
}
_FILTERS_OFF = {name: value for name, value in _OFF.items() if name != "dynamic_temperature_range"}
# Which filters a strategy leaves on: field -> the value it takes if neither a preset nor the caller names one.
# "combined" leaves everything as it is.
STRATEGIES: Mapping[str, Mapping[str, float]] = {
    "greedy": {},
    "top_k": {"top_k": 40},
    "top_p": {"top_p": 0.9},
    "temperature": {},
    "combined": {},
}


def with_preset(params: SamplingParams, preset: str | None, strategy: str | None) -> SamplingParams:
    """Returns the parameters; those that are None get the strategy's value, and then the preset's."""
    values: dict[str, Any] = dict(PRESETS[preset]) if preset is not None else {}
    if strategy == "greedy":
        values = {**_FILTERS_OFF, "temperature": 0.0, **_only(values, "repetition_penalty")}
    elif strategy is not None and strategy != "combined":
        own = STRATEGIES[strategy]
        kept = _only(values, "temperature", "repetition_penalty", *own)
        values = {**_FILTERS_OFF, **own, **kept}
    explicit = {name: value for name in LIMITS if (value := getattr(params, name)) is not None}
    return dataclasses.replace(SamplingParams(), **{**values, **explicit})


def _only(values: Mapping[str, Any], *names: str) -> dict[str, Any]:
    return {name: values[name] for name in names if name in values}


def violations_between(params: SamplingParams, stopping: StoppingParams) -> list[FieldViolation]:
    """Returns the violations between fields that are valid alone. Fields of a wrong type have been named before."""
    found: list[FieldViolation] = []
    if params.mirostat in (1, 2):
        found.extend(
            FieldViolation(f"sampling.{name}", "must be off with mirostat, which takes its place")
            for name, off in _OFF.items()
            if getattr(params, name) not in (None, off)
        )
    least, most = stopping.min_tokens, stopping.max_tokens
    if isinstance(least, int) and isinstance(most, int) and least > most:
        found.append(FieldViolation("stopping.min_tokens", f"must be at most max_tokens {most}, not {least}"))
    allowed = _numbers(params.allowed_ids)
    if allowed and allowed <= _numbers(params.banned_ids) | (_numbers(stopping.stop_token_ids) if least else set()):
        found.append(
            FieldViolation(
                "sampling.allowed_ids", "must leave at least one id that is not banned (nor stops before min_tokens)"
            )
        )
    return found


def _numbers(ids: object) -> set[int]:
    return {each for each in ids if isinstance(each, int)} if isinstance(ids, Sequence) else set()


def to_message(params: SamplingParams) -> pb.SamplingParams:
    """Returns the message of valid parameters. Numbers of other libraries are converted to Python's own, as protobuf
    requires."""
    message = pb.SamplingParams()
    for name, limit in LIMITS.items():
        value = getattr(params, name)
        if value is None:
            continue
        owner: Any = limit.owner(message)
        match limit.kind:
            case Kind.BIASES:
                message.logit_bias.extend(pb.LogitBias(id=int(key), bias=float(bias)) for key, bias in value.items())
            case Kind.SEQUENCES:
                getattr(owner, limit.field).extend(pb.TokenSequence(ids=[int(each) for each in ids]) for ids in value)
            case Kind.IDS:
                getattr(owner, limit.field).extend(int(each) for each in value)
            case Kind.FLAG:
                setattr(owner, limit.field, value)
            case _:
                setattr(owner, limit.field, int(value) if limit.kind is Kind.INTEGER else float(value))
    return message


def from_message(message: pb.SamplingParams) -> SamplingParams:
    """Returns the parameters that a worker reports."""
    values: dict[str, Any] = {}
    for name, limit in LIMITS.items():
        owner: Any = limit.owner(message)
        match limit.kind:
            case Kind.BIASES:
                values[name] = {each.id: each.bias for each in message.logit_bias} or None
            case Kind.SEQUENCES:
                values[name] = [list(each.ids) for each in getattr(owner, limit.field)] or None
            case Kind.IDS:
                values[name] = list(getattr(owner, limit.field)) or None
            case _:
                if owner.HasField(limit.field):
                    values[name] = getattr(owner, limit.field)
    return SamplingParams(**values)
