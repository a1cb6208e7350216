"""Turns conversations into the tokenizer's request, and finds what is wrong with them."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from typing import TypeGuard

from tandem.client.answers import ToolCall
from tandem.client.errors import FieldViolation
from tandem.client.tools import Tool, tool_schema
from tandem.client.types import ChatMessage, Conversation, Message
from tandem.client.validation import Choice, Text
from tandem.tokenizer.v1 import tokenizer_pb2 as pb

CHAT_POLICIES = {"text": pb.SPECIAL_TOKEN_POLICY_TEXT, "plain": pb.SPECIAL_TOKEN_POLICY_PLAIN}
_KEYS = frozenset(field.name for field in dataclasses.fields(ChatMessage))


class _WrongFieldError(ValueError):
    """One field of a conversation is wrong."""

    def __init__(self, field: str, description: str) -> None:
        super().__init__(description)
        self.violation = FieldViolation(field, description)


def conversation_violations(conversation: Conversation, field: str = "") -> list[FieldViolation]:
    """Returns the violations of a conversation; `field` is its path."""
    place = f"{field}." if field else ""
    violations: list[FieldViolation] = []
    if not _is_list(conversation.messages) or not len(conversation.messages):
        return [FieldViolation(f"{place}messages", "must be a list of at least one message")]
    for index, message in enumerate(conversation.messages):
        try:
            _message(message, f"{place}messages[{index}]")
        except _WrongFieldError as error:
            violations.append(error.violation)
    violations += tools_violations(conversation.tools, f"{place}tools")
    try:
        _json(conversation.template_arguments, f"{place}template_arguments")
    except _WrongFieldError as error:
        violations.append(error.violation)
    violations += Text(0).problems(f"{place}chat_template", conversation.chat_template)
    violations += Choice(tuple(CHAT_POLICIES)).problems(f"{place}special_tokens", conversation.special_tokens)
    return violations


def chat_request(
    conversation: Conversation,
    tokenizer: str,
    *,
    rendered_text: bool = False,
    content_ranges: bool = False,
    pieces: bool = False,
) -> pb.EncodeChatRequest:
    """Returns the request for a conversation without violations."""
    return pb.EncodeChatRequest(
        tokenizer=tokenizer,
        messages=[_message(message, "messages") for message in conversation.messages],
        add_generation_prompt=conversation.add_generation_prompt and not conversation.continue_final_message,
        continue_final_message=conversation.continue_final_message,
        tools=tool_texts(conversation.tools),
        chat_template=conversation.chat_template,
        template_arguments=_json(conversation.template_arguments, "template_arguments"),
        include_rendered_text=rendered_text,
        include_content_mask=content_ranges,
        include_pieces=pieces,
        special_tokens=CHAT_POLICIES[conversation.special_tokens],
    )


def tool_texts(tools: Sequence[Tool]) -> list[str]:
    """Returns tools without violations as JSON."""
    return [_json(tool_schema(tool), "tools") for tool in tools]


def tools_violations(tools: object, field: str = "tools") -> list[FieldViolation]:
    """Returns the violations of a list of tools."""
    if not _is_list(tools):
        return [FieldViolation(field, f"must be a list, not {type(tools).__name__}")]
    violations: list[FieldViolation] = []
    for index, tool in enumerate(tools):
        place = f"{field}[{index}]"
        try:
            _json(tool_schema(tool), place)  # type: ignore[arg-type]
        except _WrongFieldError as error:
            violations.append(error.violation)
        except (TypeError, ValueError) as error:
            violations.append(FieldViolation(place, str(error)))
    return violations


def _message(given: Message, field: str) -> pb.ChatMessage:
    """Returns the message of the contract. Raises _WrongFieldError."""
    message = given if isinstance(given, ChatMessage) else _from_mapping(given, field)
    for name in ("role", "content", "name", "tool_call_id", "reasoning_content"):
        value = getattr(message, name)
        if value is not None or name == "role":
            for violation in Text(1 if name == "role" else 0).problems(f"{field}.{name}", value):
                raise _WrongFieldError(violation.field, violation.description)
    calls: list[pb.ChatToolCall] = []
    for index, call in enumerate(message.tool_calls):
        place = f"{field}.tool_calls[{index}]"
        for name in ("name", "id"):
            for violation in Text(0).problems(f"{place}.{name}", getattr(call, name)):
                raise _WrongFieldError(violation.field, violation.description)
        arguments = _json(call.arguments, f"{place}.arguments", as_text=True)
        calls.append(pb.ChatToolCall(id=call.id, name=call.name, arguments=arguments))
    return pb.ChatMessage(
        role=message.role,
        content=message.content,
        name=message.name,
        tool_calls=calls,
        tool_call_id=message.tool_call_id,
        reasoning_content=message.reasoning_content,
    )


def _from_mapping(given: object, field: str) -> ChatMessage:
    """Reads a message in the format of OpenAI's API."""
    if not isinstance(given, Mapping):
        raise _WrongFieldError(field, f"must be a ChatMessage or a mapping, not {type(given).__name__}")
    if unknown := sorted(map(str, given.keys() - _KEYS)):
        raise _WrongFieldError(field, f"has the unknown key {unknown[0]!r}; known are {', '.join(sorted(_KEYS))}")
    values = {name: value for name, value in given.items() if value is not None}
    values.setdefault("role", "")
    if _is_list(values.get("content")):
        values["content"] = _joined_parts(values["content"], f"{field}.content")
    calls = values.get("tool_calls", ())
    if not _is_list(calls):
        raise _WrongFieldError(f"{field}.tool_calls", f"must be a list, not {type(calls).__name__}")
    values["tool_calls"] = [_call(call, f"{field}.tool_calls[{index}]") for index, call in enumerate(calls)]
    return ChatMessage(**values)


def _joined_parts(parts: Sequence[object], field: str) -> str:
    """Joins parts of text by line ends. Raises _WrongFieldError for parts of other kinds."""
    texts: list[str] = []
    for index, part in enumerate(parts):
        kind = part.get("type") if isinstance(part, Mapping) else None
        if not isinstance(part, Mapping) or kind != "text":
            shown = repr(kind) if isinstance(kind, str) else type(part).__name__
            raise _WrongFieldError(f"{field}[{index}].type", f"must be 'text', not {shown}: only text is served")
        if not isinstance(part.get("text"), str):
            raise _WrongFieldError(f"{field}[{index}].text", "must be a str")
        texts.append(part["text"])
    return "\n".join(texts)


def _call(given: object, field: str) -> ToolCall:
    if isinstance(given, ToolCall):
        return given
    function = given.get("function") if isinstance(given, Mapping) else None
    if not isinstance(given, Mapping) or not isinstance(function, Mapping):
        raise _WrongFieldError(field, "must be a ToolCall or a mapping with a function")
    return ToolCall(function.get("name", ""), function.get("arguments") or {}, given.get("id") or "")


def _json(value: object, field: str, as_text: bool = False) -> str:
    """Returns a mapping as JSON text, in its order. With `as_text` a str that is JSON already stays as it is.

    Raises _WrongFieldError.
    """
    if as_text and isinstance(value, str):
        try:
            value.encode()
            if isinstance(json.loads(value), dict):
                return value
        except (ValueError, RecursionError) as error:
            raise _WrongFieldError(field, f"is no JSON: {error}") from None
        raise _WrongFieldError(field, "is JSON, but not an object")
    if not isinstance(value, Mapping):
        raise _WrongFieldError(field, f"must be a mapping, not {type(value).__name__}")
    try:
        text = json.dumps(_plain(value), ensure_ascii=False, allow_nan=False, separators=(",", ":"))
        text.encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise _WrongFieldError(field, f"must be what JSON can hold: {error}") from None
    return text


def _plain(value: object) -> object:
    """Returns a value that `json` takes: any mapping as a dict with str keys, any sequence as a list."""
    if isinstance(value, Mapping):
        for key in value:
            if not isinstance(key, str):
                raise TypeError(f"the key {key!r} is no str")
        return {str(key): _plain(each) for key, each in value.items()}
    return [_plain(each) for each in value] if _is_list(value) else value


def _is_list(value: object) -> TypeGuard[Sequence[object]]:
    return isinstance(value, Sequence) and not isinstance(value, str | bytes | bytearray | memoryview)
