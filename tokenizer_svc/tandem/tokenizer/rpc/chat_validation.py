"""Validates EncodeChat requests and turns them into questions to the template renderer. Every violated field is
named."""

from __future__ import annotations

import re
from typing import Any

import grpc

from tandem.common.errors import ServiceError, failed_precondition, resource_exhausted
from tandem.limits.fields import limits_of
from tandem.tokenizer.chat.named_templates import template_for
from tandem.tokenizer.encoding import Policy
from tandem.tokenizer.rpc.answer_guides import check_answer
from tandem.tokenizer.rpc.validation import Violations
from tandem.tokenizer.settings import TokenizerSettings
from tandem.tokenizer.tokenizer import Tokenizer
from tandem.tokenizer.v1 import tokenizer_pb2 as pb

CHAT_POLICIES = {
    pb.SPECIAL_TOKEN_POLICY_UNSPECIFIED: Policy.PLAIN,
    pb.SPECIAL_TOKEN_POLICY_PLAIN: Policy.PLAIN,
    pb.SPECIAL_TOKEN_POLICY_TEXT: Policy.TEXT,
}
_ROLE = re.compile(r"[A-Za-z][A-Za-z0-9_.-]{0,63}")
_LIMITS = limits_of(pb.EncodeChatRequest.DESCRIPTOR)
MAX_TEMPLATE_BYTES = _LIMITS["chat_template"].bound
MAX_TOOLS = _LIMITS["tools"].bound
MAX_TOOL_CALLS = limits_of(pb.ChatMessage.DESCRIPTOR)["tool_calls"].bound  # of all messages together


def chat_question(
    request: pb.EncodeChatRequest, tokenizer: Tokenizer, template: str | None, settings: TokenizerSettings
) -> dict[str, Any]:
    """Returns the question for `ChatRenderer.render`; JSON stays text, which the renderer reads. `template` is the one
    where the request has none. Raises ServiceError."""
    size = request.ByteSize() - len(request.chat_template.encode())
    if size > settings.max_input_bytes:
        raise resource_exhausted(
            f"a conversation of {size} bytes; at most {settings.max_input_bytes} are taken",
            reason="INPUT_TOO_LARGE",
            retry_after=None,
        )
    if request.chat_template and not settings.takes_caller_templates:
        raise ServiceError(
            grpc.StatusCode.PERMISSION_DENIED,
            "chat_template: this server does not accept templates from callers (setting caller_templates)",
            reason="CALLER_TEMPLATES_OFF",
        )
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
    template = request.chat_template or template_for(template, bool(request.tools))
    if len(request.chat_template.encode()) > MAX_TEMPLATE_BYTES:
        violations.add("chat_template", f"is longer than {MAX_TEMPLATE_BYTES} bytes")
    if request.special_tokens not in CHAT_POLICIES:
        violations.add("special_tokens", "must be PLAIN or TEXT")
    if len(request.tools) > MAX_TOOLS:
        violations.add("tools", f"has {len(request.tools)} entries; at most {MAX_TOOLS} are allowed")
    if (calls := sum(len(message.tool_calls) for message in request.messages)) > MAX_TOOL_CALLS:
        violations.add("messages.tool_calls", f"has {calls} entries in all; at most {MAX_TOOL_CALLS} are allowed")
    check_answer(request, violations)
    if request.continue_final_message:
        _check_continued(request, violations)
    violations.raise_any()
    if template is None:
        raise failed_precondition(
            "this tokenizer has no chat template; give one in chat_template", reason="NO_CHAT_TEMPLATE"
        )
    return {
        "template": template,
        "messages": list(map(_message, request.messages)),
        "tools": list(request.tools),
        "add_generation_prompt": request.add_generation_prompt
        if request.HasField("add_generation_prompt")
        else not request.continue_final_message,
        "continue_final_message": request.continue_final_message,
        "arguments": request.template_arguments or "{}",
        "special_tokens": _special_tokens(tokenizer),
    }


def _check_continued(request: pb.EncodeChatRequest, violations: Violations) -> None:
    """Adds what keeps an answer from continuing the last message."""
    if request.add_generation_prompt:
        violations.add("add_generation_prompt", "must not be true where the last message is continued")
    for index, message in list(enumerate(request.messages))[-1:]:
        if not message.HasField("content"):
            violations.add(f"messages[{index}].content", "is needed: it is to be continued")
        if message.tool_calls:
            violations.add(f"messages[{index}].tool_calls", "must be empty: they stand behind what is to be continued")


def _message(message: pb.ChatMessage) -> dict[str, Any]:
    found: dict[str, Any] = {"role": message.role}
    for name in ("content", "name", "tool_call_id", "reasoning_content"):
        if message.HasField(name):
            found[name] = getattr(message, name)
    if message.tool_calls:
        found["tool_calls"] = [_call(call) for call in message.tool_calls]
    return found


def _call(call: pb.ChatToolCall) -> dict[str, Any]:
    function = {"name": call.name, "arguments": call.arguments or "{}"}
    return {**({"id": call.id} if call.id else {}), "type": "function", "function": function}


def _special_tokens(tokenizer: Tokenizer) -> dict[str, str]:
    """Returns the texts that templates write for special tokens; empty where there is none."""
    config = tokenizer.config
    named = {"bos_token": config.bos_id, "eos_token": config.eos_id, "unk_token": config.unk_id}
    named |= {"pad_token": config.pad_id, "sep_token": config.sep_id}
    return {
        name: "" if index is None else tokenizer.table.pieces[index].decode("utf-8", "replace")
        for name, index in named.items()
    }
