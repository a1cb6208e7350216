"""Checks SamplingParams of the wire and converts them to the engine's form.

Pure. Ranges and defaults are those of the contract (`tandem.limits`); here stands what holds between fields.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from tandem.common.errors import FieldViolation
from tandem.inference.v1 import inference_pb2 as pb
from tandem.limits.fields import FLOAT32_SMALLEST, Kind, Limit, given, limits_of, stateful
from tandem.worker.engine.sampling import Sampling

LIMITS = limits_of(pb.SamplingParams.DESCRIPTOR)
# What mirostat takes the place of: with it, these stay off.
_REPLACED = [limit for limit in LIMITS.values() if limit.filter]
_SCALARS: Mapping[Kind, Callable[[float], float]] = {
    Kind.INTEGER: int,
    Kind.NUMBER: lambda value: float(value) if abs(value) >= FLOAT32_SMALLEST else 0.0,  # what it is to the sampler
    Kind.FLAG: bool,
}


def sampling_violations(request: pb.GenerateRequest, eos_ids: Sequence[int]) -> Iterator[FieldViolation]:
    """Yields what is wrong between fields of SamplingParams that are each valid alone."""
    sampling = request.sampling
    values = dict(_given(sampling))
    if values.get("mirostat.version"):
        for limit in _REPLACED:
            if values.get(limit.path, limit.default) != limit.default:
                yield FieldViolation(
                    f"sampling.{limit.path}", "cannot be combined with mirostat, which takes its place"
                )
    if request.resumed_output_ids:
        for path in stateful(sampling, LIMITS):
            yield FieldViolation(
                "resumed_output_ids",
                f"cannot be combined with sampling.{path}: its state after these ids is not known here",
            )
    if sampling.allowed_ids:
        gone = [np.asarray(sampling.banned_ids, np.uint32)]
        if request.stopping.min_tokens:
            gone.append(np.asarray(request.stopping.stop_token_ids, np.uint32))
            gone.append(np.asarray([] if request.stopping.ignore_eos else eos_ids, np.uint32))
        if np.isin(np.asarray(sampling.allowed_ids, np.uint32), np.concatenate(gone)).all():
            yield FieldViolation(
                "sampling.allowed_ids", "must leave at least one id that is not banned (nor stops before min_tokens)"
            )


def to_sampling(sampling: pb.SamplingParams, defaults: Mapping[str, float], context_length: int, seed: int) -> Sampling:
    """Converts valid parameters to the engine's form: given values, then the model's `defaults`, then ours. `seed` is
    used where none is given. Windows longer than the context are cut to it."""
    values = dict(_given(sampling))
    mirostat = bool(values.get("mirostat.version"))
    parameters: dict[str, Any] = {}
    for path, limit in LIMITS.items():
        if not limit.scalar:
            parameters[limit.name] = _plain(limit, getattr(limit.owner(sampling), limit.field))
            continue
        default = limit.default if mirostat and limit.filter else defaults.get(path, limit.default)
        value = values.get(path, seed if default is None else default)
        parameters[limit.name] = _SCALARS[limit.kind](value)
    for name in ("repetition_window", "repetition_decay", "dry_window"):
        parameters[name] = min(parameters[name], context_length)
    return Sampling(**parameters)


def _plain(limit: Limit, values: Sequence[Any]) -> tuple[Any, ...]:
    """Converts a repeated field to tuples."""
    if limit.kind is Kind.BIASES:
        return tuple((each.id, each.bias) for each in values)
    return tuple(tuple(each.ids) for each in values) if limit.kind is Kind.SEQUENCES else tuple(values)


def effective_sampling(sampling: Sampling, asked: pb.SamplingParams) -> pb.SamplingParams:
    """Returns what Accepted reports for the request's `asked`: every scalar, the seed included, and its lists."""
    message = pb.SamplingParams()
    message.CopyFrom(asked)
    for limit in LIMITS.values():
        if limit.scalar:
            setattr(limit.owner(message), limit.field, getattr(sampling, limit.name))
    return message


def _given(sampling: pb.SamplingParams) -> Iterator[tuple[str, float]]:
    """Returns the numbers that are set, by path."""
    return ((limit.path, value) for limit, value in given(sampling, LIMITS))
