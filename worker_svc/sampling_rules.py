"""SamplingParams of the wire: what is allowed, what is the default, and the engine's form of it.

Pure. `NUMBERS` is the one list of ranges and defaults on this side; docs/sampling.md shows it, and the SDK's own rules
are tested against it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from google.protobuf.message import Message

from svc_common.errors import FieldViolation
from tandem.inference.v1 import inference_pb2 as pb
from worker_svc.engine.request import Sampling

UINT32_MAX = 2**32 - 1


@dataclass(frozen=True, slots=True)
class Range:
    """A number's default and bounds; an infinite bound stands for any finite number. Integers are whole."""

    default: float
    low: float
    high: float
    low_allowed: bool = True
    integer: bool = False

    def refusal(self, value: float) -> str:
        """What is wrong with a value; empty if nothing is."""
        above = value >= self.low if self.low_allowed else value > self.low
        if math.isfinite(value) and above and value <= self.high:
            return ""
        kind = "an integer" if self.integer else "a finite number"
        least = f"{'at least' if self.low_allowed else 'more than'} {self.low:g}"
        most = f" and at most {self.high:.10g}" if self.high < math.inf else ""
        return f"must be {kind}, {least}{most}, not {value:g}"


# Paths in SamplingParams.
NUMBERS: dict[str, Range] = {
    "temperature": Range(1.0, 0, math.inf),
    "dynamic_temperature.range": Range(0.0, 0, math.inf),
    "dynamic_temperature.exponent": Range(1.0, 0, math.inf),
    "top_k": Range(0, 0, UINT32_MAX, integer=True),
    "tail_free_z": Range(1.0, 0, 1),
    "typical_p": Range(1.0, 0, 1),
    "top_p": Range(1.0, 0, 1),
    "min_p": Range(0.0, 0, 1),
    "top_a": Range(0.0, 0, 1),
    "xtc.probability": Range(0.0, 0, 1),
    "xtc.threshold": Range(0.1, 0, 1),
    "mirostat.version": Range(0, 0, 2, integer=True),
    "mirostat.tau": Range(5.0, 0, math.inf),
    "mirostat.eta": Range(0.1, 0, math.inf),
    "repetition_penalty": Range(1.0, 0, math.inf, low_allowed=False),
    "repetition_window": Range(64, 0, UINT32_MAX, integer=True),
    "repetition_decay": Range(0, 0, UINT32_MAX, integer=True),
    "presence_penalty": Range(0.0, -2, 2),
    "frequency_penalty": Range(0.0, -2, 2),
    "dry.multiplier": Range(0.0, 0, math.inf),
    "dry.base": Range(1.75, 1, math.inf),
    "dry.allowed_length": Range(2, 1, UINT32_MAX, integer=True),
    "dry.window": Range(UINT32_MAX, 0, UINT32_MAX, integer=True),  # the whole context
}
# Lists: most elements, and most ids in each where they are sequences.
LISTS: dict[str, tuple[int, int]] = {
    "logit_bias": (4096, 0),
    "allowed_ids": (65_536, 0),
    "banned_ids": (65_536, 0),
    "banned_sequences": (256, 64),
    "dry.sequence_breakers": (64, 16),
}
# What mirostat takes the place of: with it, these stay off.
_REPLACED = (
    "top_k",
    "tail_free_z",
    "typical_p",
    "top_p",
    "min_p",
    "top_a",
    "xtc.probability",
    "dynamic_temperature.range",
)
_OFF = {path: NUMBERS[path].default for path in _REPLACED}

SAMPLING_FIELDS = frozenset(
    {
        *(f"sampling.{path}" for path in (*NUMBERS, *LISTS)),
        *(f"sampling.{name}" for name in ("temperature_last", "dynamic_temperature", "xtc", "mirostat", "dry", "seed")),
        "sampling.logit_bias.id",
        "sampling.logit_bias.bias",
    }
)


def sampling_violations(
    request: pb.GenerateRequest, vocabulary_size: int, eos_ids: Sequence[int]
) -> Iterator[FieldViolation]:
    """Everything that is wrong with a request's SamplingParams."""
    sampling = request.sampling
    given = dict(_given(sampling))
    for path, value in given.items():
        if refusal := NUMBERS[path].refusal(value):
            yield FieldViolation(f"sampling.{path}", refusal)
    yield from _list_violations(sampling, vocabulary_size)
    if given.get("mirostat.version"):
        for path in _REPLACED:
            if given.get(path, _OFF[path]) != _OFF[path]:
                yield FieldViolation(f"sampling.{path}", "cannot be combined with mirostat, which takes its place")
        if request.resumed_output_ids:
            yield FieldViolation(
                "resumed_output_ids",
                "cannot be combined with sampling.mirostat: its state after these ids is not known here",
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
    lists: dict[str, Sequence[Any]] = {
        "logit_bias": sampling.logit_bias,
        "allowed_ids": sampling.allowed_ids,
        "banned_ids": sampling.banned_ids,
        "banned_sequences": sampling.banned_sequences,
        "dry.sequence_breakers": sampling.dry.sequence_breakers,
    }
    for path, values in lists.items():
        most, most_ids = LISTS[path]
        field = f"sampling.{path}"
        if len(values) > most:
            yield FieldViolation(field, f"has {len(values)} elements; at most {most} are allowed")
        elif path == "logit_bias":
            yield from id_violations(f"{field}.id", [each.id for each in values], vocabulary_size)
            for place, each in enumerate(values):
                if not math.isfinite(each.bias):
                    yield FieldViolation(f"{field}[{place}].bias", f"must be a finite number, not {each.bias:g}")
            if len({each.id for each in values}) < len(values):
                yield FieldViolation(field, "must name each id once")
        elif not most_ids:
            yield from id_violations(field, values, vocabulary_size)
        else:
            yield from sequence_violations(field, values, most_ids, vocabulary_size)


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
    given = dict(_given(sampling))
    mirostat = bool(given.get("mirostat.version"))
    numbers: dict[str, Any] = {}
    for path, bounds in NUMBERS.items():
        value = given.get(path, _OFF[path] if mirostat and path in _OFF else defaults.get(path, bounds.default))
        numbers[_attribute(path)] = int(value) if bounds.integer else float(value)
    for name in ("repetition_window", "repetition_decay", "dry_window"):
        numbers[name] = min(numbers[name], context_length)
    return Sampling(
        **numbers,
        temperature_last=sampling.temperature_last if sampling.HasField("temperature_last") else True,
        dry_breakers=tuple(tuple(each.ids) for each in sampling.dry.sequence_breakers),
        bias_ids=tuple(each.id for each in sampling.logit_bias),
        biases=tuple(each.bias for each in sampling.logit_bias),
        allowed_ids=tuple(sampling.allowed_ids),
        banned_ids=tuple(sampling.banned_ids),
        banned_sequences=tuple(tuple(each.ids) for each in sampling.banned_sequences),
        seed=sampling.seed if sampling.HasField("seed") else seed,
    )


def effective_sampling(sampling: Sampling) -> pb.SamplingParams:
    """What Accepted reports: every scalar and every list, the seed included."""
    message = pb.SamplingParams(
        temperature_last=sampling.temperature_last,
        seed=sampling.seed,
        allowed_ids=sampling.allowed_ids,
        banned_ids=sampling.banned_ids,
        banned_sequences=[pb.TokenSequence(ids=ids) for ids in sampling.banned_sequences],
        logit_bias=[
            pb.LogitBias(id=id_, bias=bias) for id_, bias in zip(sampling.bias_ids, sampling.biases, strict=True)
        ],
    )
    message.dry.sequence_breakers.extend(pb.TokenSequence(ids=ids) for ids in sampling.dry_breakers)
    for path in NUMBERS:
        owner: Any = message
        *parents, name = path.split(".")
        for parent in parents:
            owner = getattr(owner, parent)
        setattr(owner, name, getattr(sampling, _attribute(path)))
    return message


def _given(sampling: pb.SamplingParams) -> Iterator[tuple[str, float]]:
    """The numbers that are set, by path."""
    for path in NUMBERS:
        owner: Message = sampling
        *parents, name = path.split(".")
        for parent in parents:
            owner = getattr(owner, parent)
        if owner.HasField(name):
            yield path, getattr(owner, name)


def _attribute(path: str) -> str:
    return "mirostat" if path == "mirostat.version" else path.replace(".", "_")
