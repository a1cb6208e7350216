"""EncodeChat requests to what the template renderer is asked. Every violated field is named."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from google.protobuf.json_format import MessageToDict
from google.protobuf.struct_pb2 import Struct

from svc_common.errors import failed_precondition, resource_exhausted
from tandem.tokenizer.v1 import tokenizer_pb2 as pb
from tokenizer_svc.chat.formats import template_of
from tokenizer_svc.settings import TokenizerSettings
from tokenizer_svc.tokenizer import Tokenizer
from tokenizer_svc.validation import Violations

_ROLE = re.compile(r"[A-Za-z][A-Za-z0-9_.-]{0,63}")
_MAX_TEMPLATE_BYTES = 256 * 1024
_MAX_DEPTH = 32


def chat_question(request: pb.EncodeChatRequest, tokenizer: Tokenizer, settings: TokenizerSettings) -> dict[str, Any]:
    """What `ChatRenderer.render` takes. Raises ServiceError."""
    violations = Violations()
    if not 1 <= len(request.messages) <= settings.max_chat_messages:
        violations.add(
            "messages", f"has {len(request.messages)} entries; 1 to {settings.max_chat_messages} are allowed"
        )
    for index, message in enumerate(request.messages):
        if not _ROLE.fullmatch(message.role):
            violations.add(
                f"messages[{index}].role",
                f"{message.role[:80]!r} is no role: a letter, then letters, digits and . _ -, at most 64 in all",
            )
    template = request.chat_template or template_of(tokenizer)
    if len(request.chat_template.encode()) > _MAX_TEMPLATE_BYTES:
        violations.add("chat_template", f"is longer than {_MAX_TEMPLATE_BYTES} bytes")
    arguments = _plain(request.template_arguments, "template_arguments", violations)
    tools = [_plain(tool, f"tools[{index}]", violations) for index, tool in enumerate(request.tools)]
    messages = [_message(message, f"messages[{index}]", violations) for index, message in enumerate(request.messages)]
    violations.raise_any()
    size = request.ByteSize() - len(request.chat_template)
    if size > settings.max_input_bytes:
        raise resource_exhausted(
            f"a conversation of {size} bytes; at most {settings.max_input_bytes} are taken",
            reason="INPUT_TOO_LARGE",
            retry_after=None,
        )
    if template is None:
        raise failed_precondition(
            "this tokenizer has no chat template; give one in chat_template", reason="NO_CHAT_TEMPLATE"
        )
    return {
        "template": template,
        "messages": messages,
        "tools": tools,
        "add_generation_prompt": request.add_generation_prompt if request.HasField("add_generation_prompt") else True,
        "arguments": arguments,
        "special_tokens": _special_tokens(tokenizer),
    }


def _message(message: pb.ChatMessage, field: str, violations: Violations) -> dict[str, Any]:
    found: dict[str, Any] = {"role": message.role, "content": message.content}
    if message.HasField("name"):
        found["name"] = message.name
    if message.HasField("tool_call_id"):
        found["tool_call_id"] = message.tool_call_id
    if message.tool_calls:
        found["tool_calls"] = [
            {
                "id": call.id,
                "type": "function",
                "function": {
                    "name": call.name,
                    "arguments": _plain(call.arguments, f"{field}.tool_calls[{index}].arguments", violations),
                },
            }
            for index, call in enumerate(message.tool_calls)
        ]
    return found


def _plain(struct: Struct, field: str, violations: Violations) -> dict[str, Any]:
    try:
        found: dict[str, Any] = _numbers(MessageToDict(struct), 0)
    except (ValueError, RecursionError) as error:
        violations.add(field, f"cannot be used: {error or 'nested too deep'}")
        return {}
    return found


def _numbers(value: Any, depth: int) -> Any:
    """A Struct knows only floats; whole ones were most likely written as integers."""
    if depth > _MAX_DEPTH:
        raise ValueError(f"nested deeper than {_MAX_DEPTH}")
    if isinstance(value, float) and value.is_integer() and abs(value) < 2**53:
        return int(value)
    if isinstance(value, Mapping):
        return {key: _numbers(each, depth + 1) for key, each in value.items()}
    if isinstance(value, list):
        return [_numbers(each, depth + 1) for each in value]
    return value


def _special_tokens(tokenizer: Tokenizer) -> dict[str, str]:
    """The texts that templates write for special tokens; empty where there is none."""
    config = tokenizer.config
    named = {"bos_token": config.bos_id, "eos_token": config.eos_id, "unk_token": config.unk_id}
    named |= {"pad_token": config.pad_id, "sep_token": config.sep_id}
    return {
        name: "" if index is None else tokenizer.table.pieces[index].decode("utf-8", "replace")
        for name, index in named.items()
    }
