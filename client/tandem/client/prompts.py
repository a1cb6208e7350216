"""Turns prompts and texts into the tokenizer's messages."""

from __future__ import annotations

from collections.abc import Sequence

from tandem.client.conversations import CHAT_POLICIES, conversation_violations
from tandem.client.errors import FieldViolation, invalid_argument
from tandem.client.params import SpecialTokens
from tandem.client.types import Conversation, Encoding, Prompt, Segment, TextInput
from tandem.client.validation import Choice, Text, check_ids
from tandem.tokenizer.v1 import tokenizer_pb2 as pb

POLICIES = {
    **CHAT_POLICIES,
    "parse": pb.SPECIAL_TOKEN_POLICY_PARSE,
    "parse_listed": pb.SPECIAL_TOKEN_POLICY_PARSE_LISTED,
    "reject": pb.SPECIAL_TOKEN_POLICY_REJECT,
}
_POLICY = Choice(tuple(POLICIES))


def ids_of(prompt: Prompt) -> Sequence[int] | None:
    """Returns the token ids of a prompt that is ids already, or None for text. An empty list is a prompt of no ids."""
    if isinstance(prompt, Encoding):
        return prompt.ids
    if isinstance(prompt, str | Segment | Conversation):
        return None
    if len(prompt) and isinstance(prompt[0], str | Segment):
        return None
    return prompt  # type: ignore[return-value]  # what is neither text nor segments is checked as ids


def prompt_violations(prompt: Prompt, special_tokens: SpecialTokens, field: str = "prompt") -> list[FieldViolation]:
    """Returns the violations of a prompt of any kind."""
    if isinstance(prompt, Conversation):
        return conversation_violations(prompt, field)
    if not isinstance(prompt, str | Segment | Encoding) and not _is_list(prompt):
        return [_wrong_kind(field, prompt)]
    ids = ids_of(prompt)
    if ids is not None:
        return check_ids(field, ids, least=1)
    return encode_input(prompt, special_tokens, add_special=True, truncate_to=None, field=field)[1]  # type: ignore[arg-type]


def encode_input(
    text: TextInput,
    special_tokens: SpecialTokens,
    *,
    add_special: bool,
    truncate_to: int | None,
    field: str = "input",
) -> tuple[pb.EncodeInput, list[FieldViolation]]:
    """Returns the message for one text, and its violations (the message is incomplete when there are any)."""
    message = pb.EncodeInput(add_special=add_special)
    if truncate_to is not None:
        message.truncation.max_tokens = truncate_to
    violations = list(_POLICY.problems("special_tokens", special_tokens))
    if violations:
        special_tokens = "text"
    elif special_tokens == "parse_listed" and isinstance(text, str):
        violations.append(
            FieldViolation("special_tokens", 'can be "parse_listed" only for a Segment, which lists the ids')
        )
        special_tokens = "text"
    if isinstance(text, str):
        segments: Sequence[Segment] = [Segment(text, special_tokens)]
    elif isinstance(text, Segment):
        segments = [text]
    elif _is_list(text) and len(text):
        segments = text
    else:
        return message, [*violations, _wrong_kind(field, text)]
    for index, segment in enumerate(segments):
        path = field if isinstance(text, str) else f"{field}.segments[{index}]"
        if not isinstance(segment, Segment):
            what = "a Segment; several texts are a batch" if isinstance(segment, str) else "a Segment"
            violations.append(FieldViolation(path, f"must be {what}, not {type(segment).__name__}"))
            continue
        violations.extend(_segment_violations(path, segment))
        if not violations:
            part = message.segments.add(special_tokens=POLICIES[segment.special_tokens], parse_ids=segment.parse_ids)
            if isinstance(segment.text, bytes):
                part.text_bytes = segment.text
            else:
                part.text = segment.text
    return message, violations


def checked_encode_input(
    text: TextInput, special_tokens: SpecialTokens, *, add_special: bool, truncate_to: int | None, field: str = "input"
) -> pb.EncodeInput:
    """Returns the message for one text. Raises InvalidArgumentError."""
    message, violations = encode_input(
        text, special_tokens, add_special=add_special, truncate_to=truncate_to, field=field
    )
    if violations:
        raise invalid_argument(violations)
    return message


def _segment_violations(path: str, segment: Segment) -> list[FieldViolation]:
    violations: list[FieldViolation] = []
    if isinstance(segment.text, bytes):
        try:
            segment.text.decode()
        except UnicodeDecodeError as error:
            violations.append(FieldViolation(f"{path}.text", f"must be valid UTF-8; it is not at byte {error.start}"))
    else:
        violations.extend(Text(0).problems(path if "segments[" not in path else f"{path}.text", segment.text))
    violations.extend(_POLICY.problems(f"{path}.special_tokens", segment.special_tokens))
    listed = segment.special_tokens == "parse_listed"
    if listed != bool(len(segment.parse_ids)):
        rule = "is required with" if listed else "is allowed only with"
        violations.append(FieldViolation(f"{path}.parse_ids", f'{rule} special_tokens="parse_listed"'))
    violations.extend(check_ids(f"{path}.parse_ids", segment.parse_ids))
    return violations


def _is_list(value: object) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, bytes | bytearray | memoryview)


def _wrong_kind(field: str, value: object) -> FieldViolation:
    shown = "an empty list" if _is_list(value) else type(value).__name__
    return FieldViolation(
        field, f"must be a str, a Segment, a list of Segments, token ids or a Conversation, not {shown}"
    )
