"""Guided decoding: the answer matches a JSON schema, a regular expression, one of some choices, a grammar, or
has structures in its text."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from tandem.client.errors import FieldViolation
from tandem.inference.v1 import inference_pb2 as pb
from tandem.limits.fields import limits_of

_LIMITS = limits_of(pb.GuidedDecoding.DESCRIPTOR)
MAX_GUIDE_BYTES = _LIMITS["grammar"].bound  # of any guide
MAX_CHOICES = _LIMITS["choices.choices"].bound


@dataclass(frozen=True, slots=True)
class JsonSchema:
    """The answer is a JSON document that the schema allows. The schema `{}` allows any JSON."""

    schema: Mapping[str, Any] | str  # a str is the schema's own JSON


@dataclass(frozen=True, slots=True)
class Regex:
    """The whole answer matches a regular expression in Rust's syntax, without look-around and back references."""

    pattern: str


@dataclass(frozen=True, slots=True)
class Choices:
    """The answer is one of these strings."""

    choices: Sequence[str]


@dataclass(frozen=True, slots=True)
class Grammar:
    """The answer is a sentence of a grammar in Lark's syntax, whose start rule is `start`."""

    lark: str


@dataclass(frozen=True, slots=True)
class StructuralTag:
    """The answer is text in which a trigger begins one of several structures, each JSON of a schema, as docs/guided.md
    shows."""

    tag: Mapping[str, Any] | str  # a str is its own JSON


class HasJsonSchema(Protocol):
    """A class that tells its JSON schema, as pydantic's models do."""

    @classmethod
    def model_json_schema(cls) -> dict[str, Any]:
        """Returns the schema."""
        ...


Guide = JsonSchema | Regex | Choices | Grammar | StructuralTag


def as_guide(guide: object) -> object:
    """Returns the JSON schema of a class that has one, anything else as it is."""
    if isinstance(guide, type) and hasattr(guide, "model_json_schema"):
        return JsonSchema(guide.model_json_schema())
    return guide


def guide_violations(guide: object) -> Iterator[FieldViolation]:
    """Yields the violations that can be found before the worker compiles the guide."""
    match guide:
        case None:
            return
        case Choices(choices):
            if isinstance(choices, str) or not isinstance(choices, Sequence) or not 1 <= len(choices) <= MAX_CHOICES:
                yield FieldViolation("guided.choices", f"must be a sequence of 1 to {MAX_CHOICES} strings")
                return
            for place, choice in enumerate(choices):
                if not isinstance(choice, str) or not choice:
                    yield FieldViolation(f"guided.choices[{place}]", "must be a string that is not empty")
                    return
        case JsonSchema(content) | StructuralTag(content) if not isinstance(content, str):
            try:
                json.dumps(content, allow_nan=False)
            except (TypeError, ValueError, RecursionError) as error:
                kind = "json_schema" if isinstance(guide, JsonSchema) else "structural_tag"
                yield FieldViolation(f"guided.{kind}", f"must be expressible as JSON: {error}")
                return
        case JsonSchema() | Regex() | Grammar() | StructuralTag():
            pass
        case _:
            known = "JsonSchema, Regex, Choices, Grammar, StructuralTag or a pydantic model"
            yield FieldViolation("guided", f"must be {known}, not {type(guide).__name__}")
            return
    kind, text = _kind_and_text(guide)
    if not isinstance(text, str) or not text:
        yield FieldViolation(f"guided.{kind}", "must be a string that is not empty")
        return
    try:
        size = len(text.encode())
    except UnicodeEncodeError:
        yield FieldViolation(f"guided.{kind}", "must be valid Unicode, without lone surrogates")
        return
    if size > MAX_GUIDE_BYTES:
        yield FieldViolation(f"guided.{kind}", f"must have at most {MAX_GUIDE_BYTES} bytes, not {size}")


def guide_message(guide: Guide | None) -> pb.GuidedDecoding | None:
    """Returns the message of a valid guide."""
    if guide is None:
        return None
    if isinstance(guide, Choices):
        return pb.GuidedDecoding(choices=pb.ChoiceList(choices=guide.choices))
    kind, text = _kind_and_text(guide)
    return pb.GuidedDecoding(**{kind: text})  # type: ignore[arg-type]


def schema_text(guide: Guide | None) -> str:
    """Returns the JSON of a guide that is a schema; "" for any other."""
    return _kind_and_text(guide)[1] if isinstance(guide, JsonSchema) else ""


def _kind_and_text(guide: Guide) -> tuple[str, str]:
    match guide:
        case JsonSchema(schema):
            return "json_schema", schema if isinstance(schema, str) else json.dumps(schema, ensure_ascii=False)
        case Regex(pattern):
            return "regex", pattern
        case Choices(choices):
            return "choices", json.dumps(list(choices), ensure_ascii=False)
        case Grammar(lark):
            return "grammar", lark
        case StructuralTag(tag):
            return "structural_tag", tag if isinstance(tag, str) else json.dumps(tag, ensure_ascii=False)
