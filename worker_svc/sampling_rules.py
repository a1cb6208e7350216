"""SamplingParams of the wire: what is allowed, and the engine's form of it.

Pure. Ranges and defaults are those of the contract (`tandem.limits`); here stands what holds between fields.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from svc_common.errors import FieldViolation
from tandem.inference.v1 import inference_pb2 as pb
from tandem.limits.fields import FLOAT32_MAX, FLOAT32_SMALLEST, Kind, Limit, given, limits_of, shown, stateful
from worker_svc.engine.sampling import Sampling

LIMITS = limits_of(pb.SamplingParams.DESCRIPTOR)
# What mirostat takes the place of: with it, these stay off.
_REPLACED = [limit for limit in LIMITS.values() if limit.filter]
_SCALARS: Mapping[Kind, Callable[[float], float]] = {
    Kind.INTEGER: int,
    Kind.NUMBER: lambda value: float(value) if abs(value) >= FLOAT32_SMALLEST else 0.0,  # what it is to the sampler
    Kind.FLAG: bool,
}

SAMPLING_FIELDS = frozenset(
    {
        *(f"sampling.{path}" for path in LIMITS),
        *(f"sampling.{path.partition('.')[0]}" for path in LIMITS),
        "sampling.logit_bias.id",
        "sampling.logit_bias.bias",
    }
)


def refusal(limit: Limit, value: float) -> str:
    """What is wrong with a number; empty if nothing is."""
    if limit.allows(value):
        return ""
    kind = "an integer" if limit.kind is Kind.INTEGER else "a finite 32-bit float"
    least = f"{'more than' if limit.low_excluded else 'at least'} {limit.low:g}"
    most = f" and at most {limit.high:.10g}" if limit.high < math.inf else ""
    return f"must be {kind}, {least}{most}, not {shown(value)}"


def sampling_violations(
    request: pb.GenerateRequest, vocabulary_size: int, eos_ids: Sequence[int]
) -> Iterator[FieldViolation]:
    """Everything that is wrong with a request's SamplingParams."""
    sampling = request.sampling
    values = dict(_given(sampling))
    for path, value in values.items():
        if wrong := refusal(LIMITS[path], value):
            yield FieldViolation(f"sampling.{path}", wrong)
    yield from _list_violations(sampling, vocabulary_size)
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
        left = set(sampling.allowed_ids) - set(sampling.banned_ids)
        if request.stopping.min_tokens:
            left -= set(request.stopping.stop_token_ids)
            left -= set() if request.stopping.ignore_eos else set(eos_ids)
        if not left:
            yield FieldViolation(
                "sampling.allowed_ids", "must leave at least one id that is not banned (nor stops before min_tokens)"
            )


def _list_violations(sampling: pb.SamplingParams, vocabulary_size: int) -> Iterator[FieldViolation]:
    for path, limit in LIMITS.items():
        if limit.scalar:
            continue
        values: Sequence[Any] = getattr(limit.owner(sampling), limit.field)
        field = f"sampling.{path}"
        if limit.most is not None and len(values) > limit.most:
            yield FieldViolation(field, f"has {len(values)} elements; at most {limit.most} are allowed")
        elif limit.kind is Kind.BIASES:
            yield from id_violations(f"{field}.id", [each.id for each in values], vocabulary_size)
            for place, each in enumerate(values):
                if not abs(each.bias) <= FLOAT32_MAX:
                    yield FieldViolation(
                        f"{field}[{place}].bias", f"must be a finite 32-bit float, not {shown(each.bias)}"
                    )
            if len({each.id for each in values}) < len(values):
                yield FieldViolation(field, "must name each id once")
        elif limit.kind is Kind.IDS:
            yield from id_violations(field, values, vocabulary_size)
        else:
            yield from sequence_violations(field, values, limit.most_each, vocabulary_size)


def sequence_violations(
    field: str, sequences: Sequence[pb.TokenSequence], most_ids: int, vocabulary_size: int
) -> Iterator[FieldViolation]:
    """Each sequence has 1 to `most_ids` ids of the vocabulary."""
    for place, sequence in enumerate(sequences):
        if not 1 <= len(sequence.ids) <= most_ids:
            yield FieldViolation(f"{field}[{place}].ids", f"must have 1 to {most_ids} ids, not {len(sequence.ids)}")
        yield from id_violations(f"{field}[{place}].ids", sequence.ids, vocabulary_size)


def id_violations(field: str, ids: Sequence[int], vocabulary_size: int) -> Iterator[FieldViolation]:
    """Names the first id that is out of the vocabulary."""
    if not ids:
        return
    array = np.asarray(ids, dtype=np.int64)
    bad = np.flatnonzero(array >= vocabulary_size)
    if bad.size:
        place = int(bad[0])
        yield FieldViolation(
            f"{field}[{place}]", f"must be below the vocabulary size {vocabulary_size}, not {array[place]}"
        )


def to_sampling(sampling: pb.SamplingParams, defaults: Mapping[str, float], context_length: int, seed: int) -> Sampling:
    """The engine's form of valid parameters: given values, then the model's `defaults`, then ours. `seed` is used where
    none is given. Windows longer than the context are cut to it."""
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
    """A repeated field as tuples."""
    if limit.kind is Kind.BIASES:
        return tuple((each.id, each.bias) for each in values)
    return tuple(tuple(each.ids) for each in values) if limit.kind is Kind.SEQUENCES else tuple(values)


def effective_sampling(sampling: Sampling) -> pb.SamplingParams:
    """What Accepted reports: every scalar and every list, the seed included."""
    message = pb.SamplingParams()
    for limit in LIMITS.values():
        value, owner = getattr(sampling, limit.name), limit.owner(message)
        if limit.scalar:
            setattr(owner, limit.field, value)
        elif limit.kind is Kind.BIASES:
            message.logit_bias.extend(pb.LogitBias(id=id_, bias=bias) for id_, bias in value)
        elif limit.kind is Kind.SEQUENCES:
            getattr(owner, limit.field).extend(pb.TokenSequence(ids=ids) for ids in value)
        else:
            getattr(owner, limit.field).extend(value)
    return message


def _given(sampling: pb.SamplingParams) -> Iterator[tuple[str, float]]:
    """The numbers that are set, by path."""
    return ((limit.path, value) for limit, value in given(sampling, LIMITS))
