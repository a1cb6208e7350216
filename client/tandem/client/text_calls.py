"""Turns the arguments of the text calls into messages. They are checked, and every violation is named."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tandem.client.errors import FieldViolation, invalid_argument
from tandem.client.params import CallOptions, CountOptions, DecodeOptions
from tandem.client.prompts import checked_encode_input
from tandem.client.types import EncodePairOptions, EncodePairsOptions, Encoding, TextInput
from tandem.client.validation import RULES, check, check_ids, check_metadata, check_timeout
from tandem.tokenizer.v1 import tokenizer_pb2 as pb

_CALL = CallOptions.__optional_keys__


def check_call(options: Mapping[str, Any], known: frozenset[str] = _CALL) -> None:
    """Checks the keywords. Unknown names raise TypeError, wrong values InvalidArgumentError."""
    if unknown := sorted(options.keys() - known):
        raise TypeError(f"unknown option{'s' if len(unknown) > 1 else ''}: {', '.join(unknown)}")
    violations = (
        check({name: value for name, value in options.items() if name in RULES})
        + check_timeout(options.get("timeout"))
        + check_metadata(options.get("metadata", {}))
    )
    if violations:
        raise invalid_argument(violations)


def check_name(name: str) -> None:
    """Checks the name of a tokenizer. Raises InvalidArgumentError."""
    if violations := check({"tokenizer": name}):
        raise invalid_argument(violations)


def encode_message(text: TextInput, options: EncodePairOptions, field: str = "text") -> pb.EncodeInput:
    check_call(options, EncodePairOptions.__optional_keys__)
    message = _input(text, options, options.get("truncate_to"), field)
    if "pair" in options:
        message.pair.extend(_input(options["pair"], options, None, "pair").segments)
    return message


def encode_messages(texts: Sequence[TextInput], options: EncodePairsOptions) -> list[pb.EncodeInput]:
    check_call(options, EncodePairsOptions.__optional_keys__)
    messages = [_input(text, options, options.get("truncate_to"), field) for field, text in _each("texts", texts)]
    if "pairs" in options:
        pairs = _each("pairs", options["pairs"])
        if len(pairs) != len(messages):
            problem = f"must have a second text for each of {len(messages)} texts, but has {len(pairs)}"
            raise invalid_argument([FieldViolation("pairs", problem)])
        for message, (field, text) in zip(messages, pairs, strict=True):
            message.pair.extend(_input(text, options, None, field).segments)
    return messages


def count_messages(texts: Sequence[TextInput], options: CountOptions) -> list[pb.EncodeInput]:
    check_call(options, CountOptions.__optional_keys__)
    return [_input(text, options, None, field) for field, text in _each("texts", texts)]


def decode_ids(ids: Sequence[int] | Encoding, field: str = "ids") -> Sequence[int]:
    if isinstance(ids, Encoding):
        return ids.ids
    if isinstance(ids, str | bytes) or not isinstance(ids, Sequence):
        raise invalid_argument([FieldViolation(field, f"must be a list of token ids, not {type(ids).__name__}")])
    if violations := check_ids(field, ids):
        raise invalid_argument(violations)
    return ids


def decode_id_lists(id_lists: Sequence[Sequence[int] | Encoding]) -> list[Sequence[int]]:
    return [decode_ids(ids, field) for field, ids in _each("id_lists", id_lists)]


def decode_options(options: DecodeOptions) -> pb.DecodeOptions:
    check_call(options, DecodeOptions.__optional_keys__)
    return pb.DecodeOptions(
        remove_special=options.get("remove_special", False),
        unparse_special=options.get("unparse_special"),
        clean_spaces=options.get("clean_spaces", False),
    )


def _input(text: TextInput, options: CountOptions, truncate_to: int | None, field: str) -> pb.EncodeInput:
    return checked_encode_input(
        text,
        options.get("special_tokens", "text"),
        add_special=options.get("add_special", True),
        truncate_to=truncate_to,
        field=field,
    )


def _each(field: str, values: Sequence[Any]) -> list[tuple[str, Any]]:
    if isinstance(values, str | bytes | Encoding) or not isinstance(values, Sequence):
        raise invalid_argument([FieldViolation(field, f"must be a list, not {type(values).__name__}")])
    return [(f"{field}[{index}]", value) for index, value in enumerate(values)]
