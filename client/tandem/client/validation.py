"""The rules for requests, which are checked before anything is sent; those of the contract are read from it."""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Protocol

from tandem.client.errors import FieldViolation
from tandem.inference.v1 import inference_pb2 as pb
from tandem.limits.fields import FLOAT32_MAX, FLOAT32_SMALLEST, Kind, Limit, limits_of
from tandem.tokenizer.v1 import tokenizer_pb2

UINT32_MAX = 2**32 - 1
UINT64_MAX = 2**64 - 1
_FLAGS = [array("I", [flag]).tobytes() for flag in (False, True)]
MAX_TIMEOUT_SECONDS = 1e9  # what gRPC's deadlines can express with room to spare


class Rule(Protocol):
    def problems(self, field: str, value: object) -> Iterator[FieldViolation]: ...


@dataclass(frozen=True, slots=True)
class Number:
    """A finite number that a 32-bit float can hold."""

    low: float
    high: float | None = None
    low_allowed: bool = True

    @property
    def words(self) -> str:
        if self.high is not None:
            return f"a number from {self.low:g} to {self.high:g}"
        return f"a finite number {'>=' if self.low_allowed else '>'} {self.low:g}"

    def problems(self, field: str, value: object) -> Iterator[FieldViolation]:
        if isinstance(value, Real) and not isinstance(value, bool):
            number = float(value)
            above = number >= self.low if self.low_allowed else number - self.low >= FLOAT32_SMALLEST
            if math.isfinite(number) and above and number <= (FLOAT32_MAX if self.high is None else self.high):
                return
        yield _violation(field, self.words, value)


@dataclass(frozen=True, slots=True)
class Integer:
    low: int
    high: int

    @property
    def words(self) -> str:
        return f"an integer from {self.low} to {self.high}"

    def problems(self, field: str, value: object) -> Iterator[FieldViolation]:
        if not isinstance(value, Integral) or isinstance(value, bool) or not self.low <= int(value) <= self.high:
            yield _violation(field, self.words, value)


@dataclass(frozen=True, slots=True)
class Flag:
    def problems(self, field: str, value: object) -> Iterator[FieldViolation]:
        if not isinstance(value, bool):
            yield _violation(field, "True or False", value)


@dataclass(frozen=True, slots=True)
class Text:
    """A string that UTF-8 can express, of so many bytes. Violations do not repeat the value, which may be private."""

    low: int
    high: int | None = None

    @property
    def words(self) -> str:
        if self.high is None:
            return "a string"
        return f"a string of {f'{self.low} to' if self.low else 'at most'} {self.high} bytes of UTF-8"

    def problems(self, field: str, value: object) -> Iterator[FieldViolation]:
        if not isinstance(value, str):
            yield FieldViolation(field, f"must be {self.words}, not {type(value).__name__}")
            return
        try:
            size = len(value.encode())
        except UnicodeEncodeError as error:
            yield FieldViolation(
                field,
                f"must be valid Unicode: U+{ord(value[error.start]):04X} at position {error.start} is a lone surrogate",
            )
            return
        if size < self.low or (self.high is not None and size > self.high):
            yield FieldViolation(field, f"must be {self.words}, not {size}")


@dataclass(frozen=True, slots=True)
class Printable:
    """A string that the metadata of a call can carry. Violations do not repeat it, as those of texts."""

    most: int

    def problems(self, field: str, value: object) -> Iterator[FieldViolation]:
        allowed = f"a string of at most {self.most} printable ASCII characters"
        if not isinstance(value, str):
            yield FieldViolation(field, f"must be {allowed}, not {type(value).__name__}")
        elif not value.isascii() or not value.isprintable():
            place = next(index for index, one in enumerate(value) if not one.isascii() or not one.isprintable())
            yield FieldViolation(field, f"must be {allowed}: U+{ord(value[place]):04X} at position {place} is none")
        elif len(value) > self.most:
            yield FieldViolation(field, f"must be {allowed}, not {len(value)}")


@dataclass(frozen=True, slots=True)
class Each:
    """A sequence with a rule for each element."""

    rule: Rule
    most: int
    least: int = 0

    def problems(self, field: str, value: object) -> Iterator[FieldViolation]:
        if isinstance(value, str | bytes) or not isinstance(value, Sequence):
            yield _violation(field, "a sequence", value)
            return
        if not self.least <= len(value) <= self.most:
            allowed = f"{self.least} to {self.most}" if self.least else f"at most {self.most}"
            yield FieldViolation(field, f"must have {allowed} elements, not {len(value)}")
            return
        for index, element in enumerate(value):
            yield from self.rule.problems(f"{field}[{index}]", element)


@dataclass(frozen=True, slots=True)
class Choice:
    """One of some words."""

    words: tuple[str, ...]

    def problems(self, field: str, value: object) -> Iterator[FieldViolation]:
        if value not in self.words:
            yield _violation(field, f"one of {', '.join(self.words)}", value)


@dataclass(frozen=True, slots=True)
class Ids:
    """Token ids, many of them."""

    most: int

    def problems(self, field: str, value: object) -> Iterator[FieldViolation]:
        if isinstance(value, str | bytes) or not isinstance(value, Sequence):
            yield _violation(field, "a sequence of token ids", value)
        elif len(value) > self.most:
            yield FieldViolation(field, f"must have at most {self.most} elements, not {len(value)}")
        else:
            yield from check_ids(field, value)


@dataclass(frozen=True, slots=True)
class Biases:
    """A mapping of token ids to finite numbers."""

    most: int

    def problems(self, field: str, value: object) -> Iterator[FieldViolation]:
        if not isinstance(value, Mapping):
            yield _violation(field, "a mapping of token ids to numbers", value)
        elif len(value) > self.most:
            yield FieldViolation(field, f"must have at most {self.most} elements, not {len(value)}")
        else:
            for key, bias in value.items():
                yield from Integer(0, UINT32_MAX).problems(f"{field} key", key)
                yield from Number(-FLOAT32_MAX, FLOAT32_MAX).problems(f"{field}[{key!r}]", bias)


def _rule(limit: Limit) -> Rule:
    match limit.kind:
        case Kind.NUMBER:
            return Number(limit.low, limit.high if limit.high < math.inf else None, not limit.low_excluded)
        case Kind.INTEGER:
            return Integer(int(limit.low), int(limit.high))
        case Kind.FLAG:
            return Flag()
        case Kind.IDS:
            return Ids(limit.bound)
        case Kind.BIASES:
            return Biases(limit.bound)
        case Kind.SEQUENCES:
            return Each(Each(Integer(0, UINT32_MAX), most=limit.most_each, least=1), most=limit.bound)
        case Kind.TEXT:
            return Text(limit.least, limit.bound)
        case Kind.TEXTS:
            return Each(Text(1, limit.most_each), most=limit.bound, least=limit.least)
    raise AssertionError(limit)


_REQUEST = limits_of(pb.GenerateRequest.DESCRIPTOR)
_STOP_STRINGS = _rule(limits_of(tokenizer_pb2.DecodeStreamOpen.DESCRIPTOR)["stop_strings"])
# Parameters that the contract limits, and where they stand in GenerateRequest.
_PLACES = {
    **{f"sampling.{limit.name}": f"sampling.{path}" for path, limit in limits_of(pb.SamplingParams.DESCRIPTOR).items()},
    **{f"stopping.{name}": f"stopping.{name}" for name in ("min_tokens", "stop_token_ids", "stop_sequences")},
    **{
        name: f"output.{name}"
        for name in ("top_logprobs", "logprob_ids", "stream_interval_tokens", "stream_max_delay_ms")
    },
    **{name: name for name in ("model", "n", "best_of", "length_penalty", "priority")},
    "draft_tokens": "speculation.max_draft_tokens",
    "prompt_lookup": "speculation.prompt_lookup_ngram",
    "cache_salt": "cache.salt",
}

RULES: Mapping[str, Rule] = {
    **{name: _rule(_REQUEST[path]) for name, path in _PLACES.items()},
    "request_id": Printable(_REQUEST["request_id"].bound),  # it travels in the metadata too
    "preset": Choice(("creative", "balanced", "focused", "deterministic")),
    "strategy": Choice(("greedy", "top_k", "top_p", "temperature", "combined")),
    "stopping.max_tokens": Integer(1, UINT32_MAX),  # 0 too, with prompt_logprobs
    "stopping.stop": _STOP_STRINGS,
    "dry_breakers": _STOP_STRINGS,
    "stopping.ignore_eos": Flag(),
    "stopping.include_stop": Flag(),
    "logprobs": Flag(),
    "processed_logprobs": Flag(),
    "prompt_logprobs": Flag(),
    "echo": Flag(),
    "detokenize": Flag(),
    "graphemes": Flag(),
    "tokenizer": _rule(limits_of(tokenizer_pb2.EncodeRequest.DESCRIPTOR)["tokenizer"]),
    "answer_format": _rule(limits_of(tokenizer_pb2.AnswerParsing.DESCRIPTOR)["format"]),
    "in_reasoning": Flag(),
    "add_special": Flag(),
    "bypass_cache": Flag(),
    "routing_key": Text(0, 1024),
    "truncate_to": Integer(1, UINT32_MAX),
    "offsets": Flag(),
    "pieces": Flag(),
    "rendered_text": Flag(),
    "content_ranges": Flag(),
    "remove_special": Flag(),
    "unparse_special": Flag(),
    "clean_spaces": Flag(),
}


def check(values: Mapping[str, object]) -> list[FieldViolation]:
    """Returns all violations among `values` (name of a rule -> value), in their order. None counts as absent and is
    always allowed."""
    return [
        violation
        for field, value in values.items()
        if value is not None
        for violation in RULES[field].problems(field, value)
    ]


def check_ids(field: str, ids: Sequence[int], *, least: int = 0) -> list[FieldViolation]:
    """Checks that token ids are integers of 32 bits. Only the first violation is named, because lists may be long."""
    if len(ids) < least:
        return [FieldViolation(field, f"must have at least {least} element{'s' if least > 1 else ''}")]
    try:
        good = not _has_flag(ids, array("I", ids).tobytes())  # at the speed of C
    except (TypeError, OverflowError, ValueError):
        good = False
    if not good:  # only now is the offender searched
        rule = Integer(0, UINT32_MAX)
        for index, value in enumerate(ids):
            for violation in rule.problems(f"{field}[{index}]", value):
                return [violation]
    return []


def _has_flag(ids: Sequence[int], packed: bytes) -> bool:
    """Tells whether there is a bool among ids, which counts as 0 or 1. Types are looked at only where one of those two
    is among them: that takes longer than all else. Most prompts begin with such an id."""
    if not len(ids) or isinstance(ids[0], bool):
        return len(ids) > 0
    return any(packed.find(flag, len(flag)) > 0 for flag in _FLAGS) and bool in map(type, ids)


def check_timeout(timeout: object) -> list[FieldViolation]:
    """Checks a timeout in seconds, which is above zero; None means no limit."""
    if timeout is None:
        return []
    if isinstance(timeout, Real) and not isinstance(timeout, bool) and 0 < float(timeout) <= MAX_TIMEOUT_SECONDS:
        return []
    return [_violation("timeout", f"a number of seconds > 0 and <= {MAX_TIMEOUT_SECONDS:g}, or None", timeout)]


def check_metadata(metadata: object) -> list[FieldViolation]:
    """Checks that gRPC can carry the metadata as ASCII."""
    if not isinstance(metadata, Mapping):
        return [_violation("metadata", "a mapping", metadata)]
    violations = []
    for key, value in metadata.items():
        if not isinstance(key, str) or not key or not key.isascii() or key != key.lower() or key.endswith("-bin"):
            violations.append(FieldViolation("metadata", f"must have lower-case ASCII keys without -bin, not {key!r}"))
        elif not all(character in "-_." or character.isalnum() for character in key):
            violations.append(
                FieldViolation("metadata", f"must have keys of letters, digits, '-', '_', '.', not {key!r}")
            )
        elif not isinstance(value, str) or not value.isascii() or not value.isprintable():
            violations.append(FieldViolation(f"metadata[{key!r}]", "must be printable ASCII"))
    return violations


def _violation(field: str, allowed: str, value: object) -> FieldViolation:
    shown = repr(value)
    if len(shown) > 60:
        shown = f"{shown[:57]}..."
    return FieldViolation(field, f"must be {allowed}, not {shown}")
