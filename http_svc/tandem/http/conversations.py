"""Conversations, whatever interface they came by, within what the contract and an event loop take."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tandem.client import ChatMessage, Conversation
from tandem.http.errors import wrong
from tandem.http.fields import check_containers
from tandem.limits.fields import limits_of
from tandem.tokenizer.v1 import tokenizer_pb2

MAX_MESSAGES = limits_of(tokenizer_pb2.EncodeChatRequest.DESCRIPTOR)["messages"].bound
MAX_CALLS = limits_of(tokenizer_pb2.ChatMessage.DESCRIPTOR)["tool_calls"].bound  # of all messages together


def conversation_of(
    messages: Sequence[ChatMessage],
    tools: Sequence[Mapping[str, Any]],
    arguments: Mapping[str, Any],
    add_generation_prompt: bool = True,
    continue_final_message: bool = False,
) -> Conversation:
    """As the SDK has it; `arguments` are for the template. Raises ApiError for one that would be looked at for long."""
    calls = [call.arguments for message in messages for call in message.tool_calls]
    if len(calls) > MAX_CALLS:
        raise wrong("messages", f"must have at most {MAX_CALLS} calls of tools, not {len(calls)}")
    # JSON within texts, which the SDK reads.
    given = "".join(each for each in calls if isinstance(each, str))
    check_containers(given.encode("utf-8", "replace"), "what tools were called with")
    return Conversation(
        messages=messages,
        tools=tools,
        template_arguments=arguments,
        add_generation_prompt=add_generation_prompt,
        continue_final_message=continue_final_message,
    )


def check_count(count: int, param: str) -> None:
    """Raises ApiError for too many messages."""
    if count > MAX_MESSAGES:
        raise wrong(param, f"must have at most {MAX_MESSAGES} elements, not {count}")
