"""Checks that all token ids of a request are of the model's vocabulary. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from google.protobuf.message import Message

from tandem.common.errors import FieldViolation
from tandem.inference.v1 import inference_pb2 as pb
from tandem.limits.fields import FLOAT32_MAX, Kind, Limit


def id_violations(request: Message, limits: Mapping[str, Limit], vocabulary_size: int) -> Iterator[FieldViolation]:
    """Yields a violation for the first wrong id of every field of ids; fields that are too long already are skipped."""
    for limit in limits.values():
        if limit.kind not in (Kind.IDS, Kind.SEQUENCES, Kind.BIASES):
            continue
        values: Sequence[Any] = getattr(limit.owner(request), limit.field)
        if not values or (limit.most is not None and len(values) > limit.most):
            continue
        if limit.kind is Kind.IDS:
            yield from _ids(limit.path, values, vocabulary_size)
        elif limit.kind is Kind.SEQUENCES:
            yield from _sequences(limit, values, vocabulary_size)
        else:
            yield from _biases(limit.path, values, vocabulary_size)


def _ids(field: str, ids: Sequence[int], vocabulary_size: int) -> Iterator[FieldViolation]:
    """Yields the first id that is out of the vocabulary."""
    array = np.asarray(ids, dtype=np.int64)
    bad = np.flatnonzero(array >= vocabulary_size)
    if bad.size:
        place = int(bad[0])
        yield FieldViolation(
            f"{field}[{place}]", f"must be below the vocabulary size {vocabulary_size}, not {array[place]}"
        )


def _sequences(limit: Limit, sequences: Sequence[pb.TokenSequence], vocabulary_size: int) -> Iterator[FieldViolation]:
    together = pb.TokenSequence().ids  # protobuf copies from list to list; Python would make an object of each id
    for sequence in sequences:
        together.extend(sequence.ids)
    lengths = [len(sequence.ids) for sequence in sequences]
    if min(lengths) >= 1 and max(lengths) <= limit.most_each and np.asarray(together).max() < vocabulary_size:
        return
    for place, sequence in enumerate(sequences):
        field = f"{limit.path}[{place}].ids"
        if not 1 <= len(sequence.ids) <= limit.most_each:
            yield FieldViolation(field, f"must have 1 to {limit.most_each} ids, not {len(sequence.ids)}")
        yield from _ids(field, sequence.ids, vocabulary_size)


def _biases(field: str, biases: Sequence[pb.LogitBias], vocabulary_size: int) -> Iterator[FieldViolation]:
    yield from _ids(f"{field}.id", [each.id for each in biases], vocabulary_size)
    for place, each in enumerate(biases):
        if not abs(each.bias) <= FLOAT32_MAX:
            yield FieldViolation(f"{field}[{place}].bias", f"must be a finite 32-bit float, not {each.bias:g}")
    if len({each.id for each in biases}) < len(biases):
        yield FieldViolation(field, "must name each id once")
