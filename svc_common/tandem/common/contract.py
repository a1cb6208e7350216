"""Checks requests against the limits of the contract, each field by itself.

What several fields must keep together, and what depends on the model, each service's own validation says.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

from google.protobuf.message import Message

from tandem.common.errors import FieldViolation
from tandem.limits.fields import Kind, Limit, shown


def limit_violations(request: Message, limits: Mapping[str, Limit]) -> Iterator[FieldViolation]:
    """Yields every field out of its `limits` (`tandem.limits.fields.limits_of`), with the allowed range."""
    for limit in limits.values():
        if limit.kind is Kind.FLAG or not limit.is_in(request):
            continue
        owner: Any = limit.owner(request)
        if limit.optional and not owner.HasField(limit.field):
            continue
        value = getattr(owner, limit.field)
        wrong = _number(limit, value) if limit.scalar else _size(limit, value)
        if wrong:
            yield FieldViolation(limit.path, wrong)
        elif limit.kind is Kind.TEXTS:
            yield from _texts(limit, value)


def _number(limit: Limit, value: float) -> str:
    if limit.allows(value):
        return ""
    kind = "an integer" if limit.kind is Kind.INTEGER else "a finite 32-bit float"
    if limit.high == math.inf:
        bounds = f"{'more than' if limit.low_excluded else 'at least'} {limit.low:g}"
    else:
        bounds = f"{'above ' if limit.low_excluded else ''}{limit.low:.10g} to {limit.high:.10g}"
    return f"must be {kind}, {bounds}, not {shown(value)}"


def _size(limit: Limit, value: Any) -> str:
    size = len(value.encode()) if isinstance(value, str) else len(value)
    if limit.least <= size <= limit.bound:
        return ""
    if limit.kind is Kind.TEXT:
        return f"must have at most {limit.bound} bytes, not {size}" if size else "must not be empty"
    return f"has {size} elements; at most {limit.bound} are allowed" if size else "must have at least one element"


def _texts(limit: Limit, values: Any) -> Iterator[FieldViolation]:
    for place, text in enumerate(values):
        if not text:
            yield FieldViolation(f"{limit.path}[{place}]", "must not be empty")
        elif limit.most_each and len(text.encode()) > limit.most_each:
            yield FieldViolation(f"{limit.path}[{place}]", f"must have at most {limit.most_each} bytes")
