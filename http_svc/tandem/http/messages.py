"""POST /v1/messages and /v1/messages/count_tokens: Anthropic's interface.

Its blocks become the messages that chat templates know: what tools gave is a message of the role `tool`, the system
prompt one of the role `system`. An answer has blocks of the types `thinking`, `text` and `tool_use`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, cast

import msgspec
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from tandem.client import (
    AnswerEvent,
    AsyncStream,
    ChatMessage,
    Chunk,
    Conversation,
    FinishReason,
    GenerateOptions,
    JsonSchema,
    Output,
    ReasoningEvent,
    ToolCall,
    ToolCallEvent,
    Usage,
)
from tandem.http.answers import aborted
from tandem.http.call import Call, body_of, call_of
from tandem.http.conversations import check_count, conversation_of
from tandem.http.errors import wrong
from tandem.http.fields import ABSENT, Json, OwnFields, check_size, decoded, decoder, is_given, object_of, text_of
from tandem.http.sse import Events, EventStream, Relay, named_event
from tandem.http.tool_choice import AnthropicChoice, ToolKind, is_forced, name_guides, thinking_arguments
from tandem.http.upstream import Upstream

# --- the request


class Block(msgspec.Struct, forbid_unknown_fields=True):
    """Text, what the model wanted to be called, or what came of it; the others are known by name."""

    type: str
    text: str | None = None
    id: str | None = None
    name: str | None = None
    input: Json = ABSENT
    tool_use_id: str | None = None
    content: str | list[Block] | None = None
    is_error: bool | None = None
    source: Json = ABSENT
    title: Json = ABSENT
    context: Json = ABSENT
    thinking: str | None = None
    signature: Json = ABSENT
    data: Json = ABSENT
    citations: Json = ABSENT
    cache_control: Json = ABSENT  # ignored: every prefix is cached
    caller: None = None
    toolset_name: None = None


class MessageFields(msgspec.Struct, forbid_unknown_fields=True):
    role: str
    content: str | list[Block]

    def messages(self, place: str) -> list[ChatMessage]:
        """As templates have it: one message, or one for each result of a tool and one for the text beside them."""
        if self.role not in ("user", "assistant", "system"):
            raise wrong(f"{place}.role", "must be 'user' or 'assistant'")
        if isinstance(self.content, str):
            return [ChatMessage(self.role, self.content)]
        texts: list[str] = []
        calls: list[ToolCall] = []
        results: list[ChatMessage] = []
        thoughts: list[str] = []
        for index, block in enumerate(self.content):
            where = f"{place}.content[{index}]"
            if block.type == "tool_use" and self.role == "assistant":
                arguments = text_of(block.input) if is_given(block.input) else "{}"
                if not arguments.startswith("{"):
                    raise wrong(f"{where}.input", "must be an object")
                if not block.name:
                    raise wrong(f"{where}.name", "is required", "missing_required_parameter")
                calls.append(ToolCall(block.name, arguments, block.id or ""))
            elif block.type == "tool_result" and self.role == "user":
                content = _text(block.content or "", f"{where}.content")
                results.append(ChatMessage("tool", content, tool_call_id=block.tool_use_id))
            elif block.type == "thinking" and self.role == "assistant":
                thoughts.append(block.thinking or "")
            else:
                texts.append(_text([block], where))
        if texts or calls or not results:
            text = "\n".join(texts) if texts or not calls else None
            thought = "\n".join(thoughts) or None
            results.append(ChatMessage(self.role, text, tool_calls=calls, reasoning_content=thought))
        return results


def _text(content: str | list[Block], place: str) -> str:
    if isinstance(content, str):
        return content
    for block in content:
        if block.type != "text" or block.text is None:
            raise wrong(place, f"must be text, not a block of the type {block.type[:40]!r}", "not_served")
    return "\n".join(block.text or "" for block in content)


def _system(content: str | list[Block]) -> str:
    """Without what Claude Code writes there for an account: it is another in every request, and nothing behind it would
    be found cached."""
    if not isinstance(content, str):
        content = [block for block in content if not (block.text or "").startswith("x-anthropic-billing-header:")]
    return _text(content, "system")


class ToolFields(msgspec.Struct, forbid_unknown_fields=True):
    """A tool of the caller's; tools that a server runs are not served."""

    name: str
    input_schema: Json
    description: str | None = None
    type: str | None = None
    strict: bool | None = None
    cache_control: Json = ABSENT
    eager_input_streaming: Json = ABSENT  # ignored: arguments are streamed as they are written
    allowed_callers: None = None
    defer_loading: None = None
    input_examples: None = None

    def tool(self, place: str) -> dict[str, Any]:
        """As templates know it."""
        if not self.name:
            raise wrong(f"{place}.name", "must not be empty")
        function: dict[str, Any] = {"name": self.name}
        if self.description is not None:
            function["description"] = self.description
        function["parameters"] = object_of(self.input_schema, f"{place}.input_schema")
        if self.strict is not None:
            function["strict"] = self.strict
        return {"type": "function", "function": function}


def _tool(given: Json, place: str) -> ToolFields:
    if decoded(given, ToolKind, place).type not in (None, "custom"):
        raise wrong(f"{place}.type", "must be 'custom'", "not_served")
    return decoded(given, ToolFields, place)


class ThinkingFields(msgspec.Struct, forbid_unknown_fields=True):
    type: str
    budget_tokens: int | None = None
    display: str | None = None  # ignored: thoughts are told as they are


class FormatFields(msgspec.Struct, forbid_unknown_fields=True):
    type: str
    schema: Json = ABSENT


class OutputFields(msgspec.Struct, forbid_unknown_fields=True):
    format: FormatFields | None = None
    effort: str | None = None  # the variable reasoning_effort of the template


class EditFields(msgspec.Struct):
    type: str


class ContextFields(msgspec.Struct, forbid_unknown_fields=True):
    """What is to be left out of a long conversation: thoughts, of which the template knows which it shows."""

    edits: list[EditFields] | None = None


class PromptFields(OwnFields, kw_only=True):
    """What makes a prompt; all that counting takes."""

    model: str
    messages: list[MessageFields]
    system: str | list[Block] | None = None
    tools: list[Json] | None = None
    tool_choice: AnthropicChoice | None = None
    thinking: ThinkingFields | None = None
    output_config: OutputFields | None = None
    chat_template_kwargs: Json = ABSENT
    cache_control: Json = ABSENT  # ignored
    context_management: ContextFields | None = None

    def conversation(self) -> Conversation:
        """As the SDK has it. Raises ApiError."""
        if not self.messages:
            raise wrong("messages", "must have at least one element")
        check_count(len(self.messages), "messages")
        if self.thinking is not None and self.thinking.type not in ("enabled", "adaptive", "disabled"):
            raise wrong("thinking.type", "must be 'enabled', 'adaptive' or 'disabled'")
        for index, edit in enumerate(self.context_management.edits or () if self.context_management else ()):
            if edit.type != "clear_thinking_20251015":
                place = f"context_management.edits[{index}].type"
                raise wrong(place, "must be 'clear_thinking_20251015'", "not_served")
        hidden = self.tool_choice is not None and self.tool_choice.type == "none"
        tools = [_tool(tool, f"tools[{index}]") for index, tool in enumerate(self.tools or ())]
        check_size([*(tool.input_schema for tool in tools), self.chat_template_kwargs], "tools")
        arguments = object_of(self.chat_template_kwargs, "chat_template_kwargs")
        if self.output_config is not None:
            arguments = {**thinking_arguments(self.output_config.effort), **arguments}
        if self.thinking is not None and self.thinking.type != "adaptive":
            arguments = {"enable_thinking": self.thinking.type == "enabled", **arguments}
        # An empty one is none: templates that have a system prompt of their own show that.
        system = [ChatMessage("system", said)] if (said := _system(self.system or "")) else []
        given = [each.messages(f"messages[{index}]") for index, each in enumerate(self.messages)]
        begun = self.messages[-1].role == "assistant"
        if begun and given[-1][-1].tool_calls:
            raise wrong(f"messages[{len(given) - 1}].content", "must be text, which the answer continues")
        return conversation_of(
            [*system, *(message for several in given for message in several)],
            [] if hidden else [tool.tool(f"tools[{index}]") for index, tool in enumerate(tools)],
            arguments,
            continue_final_message=begun,
        )


class MessagesFields(PromptFields, kw_only=True):
    """The body of a request."""

    max_tokens: int
    stop_sequences: list[str] | None = None  # type: ignore[assignment]  # texts here, ids elsewhere
    stream: bool | None = None
    metadata: Json = ABSENT  # ignored, as the next two
    service_tier: Json = ABSENT
    user_profile_id: Json = ABSENT
    container: None = None
    diagnostics: None = None
    inference_geo: None = None
    mcp_servers: None = None
    speed: None = None

    def generation(self, call: Call) -> GenerateOptions:
        """The keywords of the SDK. Raises ApiError."""
        found = self.own_options()
        if stop := found.pop("stop_sequences", None):
            found["stop"] = stop
            call.names["stop"] = "stop_sequences"
        found["max_tokens"] = self.max_tokens
        chosen = None if self.output_config is None else self.output_config.format
        if chosen is not None:
            if self.guided is not None:
                raise wrong("guided", "cannot be beside output_config.format")
            if chosen.type != "json_schema" or not is_given(chosen.schema):
                raise wrong("output_config.format", "must have the type 'json_schema' and a schema")
            found["guided"] = JsonSchema(text_of(chosen.schema))
            call.names["guided"] = "output_config"
        name_guides(call)
        if self.tool_choice is not None:
            found["tool_choice"] = self.tool_choice.choice()
            if chosen is not None and is_forced(found["tool_choice"]):
                del found["guided"]
            found["parallel_tool_calls"] = self.tool_choice.is_parallel
        return cast(GenerateOptions, found)


read_messages, read_count = decoder(MessagesFields), decoder(PromptFields)

# --- the answer

NOTHING_SIGNED = ""  # thoughts come back as they were told, and nobody checks them
_STOP_REASONS = {FinishReason.MAX_TOKENS: "max_tokens", FinishReason.STOP_STRING: "stop_sequence"}


class TextBlock(msgspec.Struct):
    text: str
    type: str = "text"
    citations: None = None


class ThinkingBlock(msgspec.Struct):
    thinking: str
    type: str = "thinking"
    signature: str = NOTHING_SIGNED


class ToolUseBlock(msgspec.Struct):
    id: str
    name: str
    input: msgspec.Raw
    type: str = "tool_use"


AnswerBlock = TextBlock | ThinkingBlock | ToolUseBlock


def _blocks(output: Output) -> list[AnswerBlock]:
    blocks: list[AnswerBlock] = []
    if output.reasoning:
        blocks.append(ThinkingBlock(output.reasoning))
    if output.content or not output.tool_calls:
        blocks.append(TextBlock(output.content))
    return blocks + [
        ToolUseBlock(call.id, call.name, msgspec.Raw(str(call.arguments).encode())) for call in output.tool_calls
    ]


class UsageBody(msgspec.Struct):
    """Tokens; those of the prompt that were not cached, and those that were."""

    input_tokens: int
    output_tokens: int
    cache_read_input_tokens: int = 0
    cache_creation_input_tokens: int = 0


class Message(msgspec.Struct):
    id: str
    model: str
    content: Sequence[AnswerBlock]
    usage: UsageBody
    stop_reason: str | None = None
    stop_sequence: str | None = None
    type: str = "message"
    role: str = "assistant"


class Messages:
    """Both endpoints."""

    def __init__(self, upstream: Upstream) -> None:
        self._upstream = upstream

    async def count(self, request: Request) -> Response:
        """How many tokens a prompt has."""
        call, fields = call_of(request), read_count(await body_of(request))
        conversation = fields.conversation()
        call.names["prompt"] = "messages"
        call.doubt = _doubt(fields.messages)
        await self._upstream.check_model(fields.model, call)
        client, tokenizer = self._upstream.client, self._upstream.tokenizer
        encoding = await client.encode_chat(conversation, tokenizer=tokenizer, **call.options)
        return JSONResponse({"input_tokens": len(encoding)})

    async def create(self, request: Request) -> Response:
        """The next message."""
        call, fields = call_of(request), read_messages(await body_of(request))
        call.stream = bool(fields.stream)
        options = fields.generation(call)
        conversation = fields.conversation()
        call.names["prompt"] = "messages"
        call.doubt = _doubt(fields.messages)
        await self._upstream.check_model(fields.model, call)
        budget = None if fields.thinking is None else fields.thinking.budget_tokens
        if budget is not None and await self._upstream.bounds_reasoning(with_tools=bool(conversation.tools)):
            options.setdefault("max_reasoning_tokens", budget)
            call.names["max_reasoning_tokens"] = "thinking.budget_tokens"
        options |= cast(GenerateOptions, self._upstream.options(call, fields.model, fields.cache_salt or ""))
        answer = _Answer(call, fields.model)
        client = self._upstream.client
        if fields.stream:
            return EventStream(request, answer.events(client.stream_chat(conversation, **options)))
        result = await client.chat(conversation, **options)
        call.usage = result.usage
        message = answer.message(_blocks(result.outputs[0]), _usage(result.usage), *_stopped(result.outputs[0]))
        return Response(msgspec.json.encode(message), media_type="application/json")


def _doubt(messages: Sequence[MessageFields]) -> str:
    """In Anthropic's words, by which clients know that they have to say it otherwise: Claude Code adds a system message
    behind the user's first, which many templates refuse."""
    return "perhaps role 'system' is not supported on this model" if any(m.role == "system" for m in messages) else ""


class _Answer:
    """One answer, whole or in events."""

    def __init__(self, call: Call, model: str) -> None:
        self._call = call
        self._model = model

    def message(
        self, content: Sequence[AnswerBlock], usage: UsageBody, reason: str | None = None, sequence: str | None = None
    ) -> Message:
        return Message(f"msg_{self._call.request_id}", self._model, content, usage, reason, sequence)

    async def events(self, stream: AsyncStream) -> Events:
        """Blocks as they come; what was cached is told at the end."""
        async with stream:
            chunk = await stream.next_chunk()
            begun = self.message([], UsageBody(len(stream.prompt_ids), 0))
            yield named_event(b"message_start", {"type": "message_start", "message": begun})
            blocks = _BlockEvents()
            if chunk is not None:
                yield blocks.told(chunk)
                yield Relay([stream], lambda _, chunk: b"" if chunk is None else blocks.told(chunk))
            result = stream.result
        self._call.usage = result.usage
        reason, sequence = _stopped(result.outputs[0])
        for told in blocks.end():
            yield told
        ended = {"stop_reason": reason, "stop_sequence": sequence}
        yield named_event(b"message_delta", {"type": "message_delta", "delta": ended, "usage": _usage(result.usage)})
        yield named_event(b"message_stop", {"type": "message_stop"})


class _BlockEvents:
    """Blocks one after the other: what comes next of another kind ends the one before."""

    def __init__(self) -> None:
        self._index = -1
        self._open: tuple[str, int | None] | None = None  # its type, and the number of the call

    def told(self, chunk: Chunk) -> bytes:
        """The events for more of an answer."""
        return b"".join(self._events(chunk.events))

    def _events(self, events: Sequence[AnswerEvent]) -> Iterator[bytes]:
        for event in events:
            if isinstance(event, ToolCallEvent):
                if event.name:
                    block = ToolUseBlock(event.id, event.name, msgspec.Raw(b"{}"))
                    yield from self._begin(("tool_use", event.call), block)
                if event.arguments:
                    yield self._delta({"type": "input_json_delta", "partial_json": event.arguments})
            elif isinstance(event, ReasoningEvent):
                yield from self._begin(("thinking", None), ThinkingBlock(""))
                yield self._delta({"type": "thinking_delta", "thinking": event.text})
            else:
                yield from self._begin(("text", None), TextBlock(""))
                yield self._delta({"type": "text_delta", "text": event.text})

    def end(self) -> Iterator[bytes]:
        """Ends the last block; an answer that says nothing has an empty one."""
        if self._open is None:
            yield from self._begin(("text", None), TextBlock(""))
        yield self._stop()

    def _begin(self, kind: tuple[str, int | None], block: AnswerBlock) -> Iterator[bytes]:
        if kind == self._open:
            return
        if self._open is not None:
            yield self._stop()
        self._open = kind
        self._index += 1
        told = {"type": "content_block_start", "index": self._index, "content_block": block}
        yield named_event(b"content_block_start", told)

    def _delta(self, delta: dict[str, str]) -> bytes:
        told = {"type": "content_block_delta", "index": self._index, "delta": delta}
        return named_event(b"content_block_delta", told)

    def _stop(self) -> bytes:
        return named_event(b"content_block_stop", {"type": "content_block_stop", "index": self._index})


def _usage(usage: Usage) -> UsageBody:
    cached = usage.cached_prompt_tokens or 0
    return UsageBody(usage.prompt_tokens - cached, usage.completion_tokens, cached)


def _stopped(output: Output) -> tuple[str, str | None]:
    """Why it ended, and by which of the caller's texts. Raises ApiError where somebody ended it."""
    if output.finish_reason is FinishReason.CANCELLED:
        raise aborted()
    ended = "tool_use" if output.tool_calls else "end_turn"
    return _STOP_REASONS.get(output.finish_reason, ended), output.matched_stop
