"""What a model thinks before it answers: where it ends, how long it may be, and what is guided."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tandem.client.errors import FieldViolation
from tandem.client.validation import UINT32_MAX, Each, Integer
from tandem.inference.v1 import inference_pb2 as pb
from tandem.limits.fields import limits_of

_LIMITS = limits_of(pb.ReasoningParams.DESCRIPTOR)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reasoning:
    """The reasoning ends with `end_ids`; what is `guided` begins behind them."""

    end_ids: Sequence[int]  # 1 to 64 ids, such as those of "</think>"
    begin_ids: Sequence[int] = ()  # it begins behind them; empty: the output begins within it
    # With `guided`, begin_ids stand at the beginning of the output, or there is no reasoning.
    max_tokens: int | None = None  # after so many tokens of reasoning, end_ids are forced; None: never


def reasoning_violations(reasoning: object) -> Iterator[FieldViolation]:
    """Yields what is wrong with a reasoning."""
    if reasoning is None:
        return
    if not isinstance(reasoning, Reasoning):
        yield FieldViolation("reasoning", f"must be Reasoning, not {type(reasoning).__name__}")
        return
    number = Integer(0, UINT32_MAX)
    for name in ("end_ids", "begin_ids"):
        limit = _LIMITS[name]
        yield from Each(number, limit.bound, limit.least).problems(f"reasoning.{name}", getattr(reasoning, name))
    if reasoning.max_tokens is not None:
        yield from number.problems("reasoning.max_tokens", reasoning.max_tokens)


def reasoning_message(reasoning: Reasoning | None) -> pb.ReasoningParams | None:
    """Returns the message of a valid reasoning."""
    if reasoning is None:
        return None
    return pb.ReasoningParams(begin_ids=reasoning.begin_ids, end_ids=reasoning.end_ids, max_tokens=reasoning.max_tokens)
