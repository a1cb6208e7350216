"""The body of a request to /v1/responses: its fields, and the conversation, tools and options that they ask for."""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple, cast

import msgspec

from tandem.client import ChatMessage, Conversation, GenerateOptions, JsonSchema, ToolCall
from tandem.http.call import Call
from tandem.http.conversations import check_count, conversation_of
from tandem.http.errors import wrong
from tandem.http.fields import ABSENT, Json, OwnFields, StreamOptions, check_size, decoded, decoder, is_given, object_of
from tandem.http.fields import text_of as json_of
from tandem.http.tool_choice import ToolKind, called_options, is_forced, thinking_arguments


class Part(msgspec.Struct, forbid_unknown_fields=True):
    """Only text; the others are known by name."""

    type: str
    text: str | None = None
    annotations: Json = ABSENT
    logprobs: Json = ABSENT
    image_url: Json = ABSENT
    detail: Json = ABSENT
    file_id: Json = ABSENT
    file_data: Json = ABSENT
    file_url: Json = ABSENT
    filename: Json = ABSENT
    refusal: Json = ABSENT
    prompt_cache_breakpoint: Json = ABSENT  # ignored: every prefix is cached
    parsed: Json = ABSENT  # ignored: OpenAI's `parse` adds it to an answer, which comes back so


class Item(msgspec.Struct, forbid_unknown_fields=True):
    """A message, what the model wanted to be called, or what came of it."""

    type: str = "message"
    role: str | None = None
    content: str | list[Part] | None = None
    call_id: str | None = None
    name: str | None = None
    arguments: str | None = None
    parsed_arguments: Json = ABSENT  # ignored, as `parsed` is
    output: str | list[Part] | None = None
    summary: list[Part] | None = None
    encrypted_content: str | None = None
    id: Json = ABSENT
    status: Json = ABSENT
    phase: Json = ABSENT
    caller: None = None
    namespace: str | None = None
    created_by: None = None
    is_async: None = msgspec.field(default=None, name="async")


class FunctionTool(msgspec.Struct, forbid_unknown_fields=True):
    """A tool of the caller's."""

    type: str
    name: str = ""
    description: str | None = None
    parameters: Json = ABSENT
    strict: bool | None = None
    allowed_callers: None = None
    defer_loading: bool | None = None  # ignored: all tools are shown
    output_schema: None = None
    is_async: None = msgspec.field(default=None, name="async")


class NamespaceTool(msgspec.Struct, forbid_unknown_fields=True):
    """Several functions, which are called by the name of the namespace and their own."""

    type: str
    name: str
    tools: list[FunctionTool]
    description: Json = ABSENT  # ignored: those of the functions are shown


class Offer(NamedTuple):
    """A function that the model is shown, and where it was given."""

    tool: FunctionTool
    place: str
    namespace: str = ""

    @property
    def name(self) -> str:
        """As the model knows it."""
        return shown_name(self.namespace, self.tool.name)


def shown_name(namespace: str, name: str) -> str:
    """Of a function of a namespace, which templates know nothing of."""
    return f"{namespace.removesuffix('__')}__{name}" if namespace else name


# A server's tools, which agents offer in every request beside their own.
LEFT_OUT = ("web_search", "image_generation")
ENCRYPTED = "reasoning.encrypted_content"
SEALED = "tandem:"  # begins reasoning that clients keep as it is: some send nothing else of it back


class Format(msgspec.Struct, forbid_unknown_fields=True):
    type: str
    name: str | None = None
    description: str | None = None
    schema: Json = ABSENT
    strict: bool | None = None


class TextFields(msgspec.Struct, forbid_unknown_fields=True):
    format: Format | None = None
    verbosity: None = None


class ReasoningFields(msgspec.Struct, forbid_unknown_fields=True):
    effort: str | None = None  # a variable of the template
    summary: Json = ABSENT  # ignored, as the next one: the reasoning itself is told
    generate_summary: Json = ABSENT
    context: None = None
    mode: None = None


class ResponseFields(OwnFields, kw_only=True):
    """The body of a request."""

    model: str
    input: str | list[Item]
    instructions: str | None = None
    max_output_tokens: int | None = None
    text: TextFields | None = None
    reasoning: ReasoningFields | None = None
    tools: list[Json] | None = None
    tool_choice: Json = ABSENT
    chat_template_kwargs: Json = ABSENT
    prompt_cache_key: str | None = None
    stop: str | list[str] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    parallel_tool_calls: bool | None = None
    background: bool | None = None
    truncation: str | None = None
    previous_response_id: None = None
    conversation: None = None
    prompt: None = None
    background_options: None = None
    context_management: None = None
    moderation: None = None
    image: None = None
    top_logprobs: None = None
    include: list[str] | None = None
    max_tool_calls: Json = ABSENT  # ignored: of tools that a server runs there are none
    # Ignored on purpose: accounts and storage.
    store: Json = ABSENT
    user: Json = ABSENT
    metadata: Json = ABSENT
    service_tier: Json = ABSENT
    safety_identifier: Json = ABSENT
    prompt_cache_retention: Json = ABSENT
    prompt_cache_options: Json = ABSENT
    access_programs: Json = ABSENT
    client_metadata: Json = ABSENT

    def asked(self, call: Call) -> Conversation:
        """The conversation. Raises ApiError."""
        for name, served in (("background", False), ("truncation", "disabled")):
            if getattr(self, name) not in (None, served):
                raise wrong(name, f"must be {served!r}", "not_served")
        for index, each in enumerate(self.include or ()):
            if each != ENCRYPTED:
                raise wrong(
                    f"include[{index}]", f"must be {ENCRYPTED!r}: nothing else is besides the answer", "not_served"
                )
        offers = self.offers()
        check_size([*(offer.tool.parameters for offer in offers), self.chat_template_kwargs], "tools")
        effort = None if self.reasoning is None else self.reasoning.effort
        arguments = {**thinking_arguments(effort), **object_of(self.chat_template_kwargs, "chat_template_kwargs")}
        first = [ChatMessage("system", self.instructions)] if self.instructions else []
        if first:
            call.names["messages[0].content"] = "instructions"
        return conversation_of(
            _messages(self.input, call.names, first),
            [_tool(offer) for offer in offers],
            arguments,
        )

    def offers(self) -> list[Offer]:
        """The functions that the model may call. Raises ApiError."""
        found: list[Offer] = []
        left_out = ""
        for index, given in enumerate(self.tools or ()):
            place = f"tools[{index}]"
            kind = decoded(given, ToolKind, place).type
            if kind == "function":
                found.append(Offer(decoded(given, FunctionTool, place), place))
            elif kind == "namespace":
                space = decoded(given, NamespaceTool, place)
                if not space.name:
                    raise wrong(f"{place}.name", "must be a text that is not empty")
                found += [Offer(tool, f"{place}.tools[{n}]", space.name) for n, tool in enumerate(space.tools)]
            elif kind in LEFT_OUT:
                left_out = left_out or place
            else:
                raise wrong(f"{place}.type", "must be 'function' or 'namespace'", "not_served")
        names: dict[str, Offer] = {}
        for offer in found:
            if (other := names.setdefault(offer.name, offer)) is not offer and other.namespace != offer.namespace:
                what = f"is shown to the model as {offer.name!r}, as {other.place} is: choose another name"
                raise wrong(f"{offer.place}.name", what)
        if left_out and not found:
            raise wrong(f"{left_out}.type", "must be 'function' or 'namespace'", "not_served")
        return found

    def generation(self, call: Call) -> GenerateOptions:
        """The keywords of the SDK. Raises ApiError."""
        found = self.own_options()
        if self.max_output_tokens is not None:
            found["max_tokens"] = self.max_output_tokens
            call.names["max_tokens"] = "max_output_tokens"
        if self.stop is not None:
            found["stop"] = self.stop
        if self.prompt_cache_key:
            found["routing_key"] = self.prompt_cache_key
            call.names["routing_key"] = "prompt_cache_key"
        chosen = None if self.text is None else self.text.format
        if chosen is not None and chosen.type != "text":
            if self.guided is not None:
                raise wrong("guided", "cannot be beside text.format")
            call.names["guided"] = "text.format"
            if chosen.type == "json_object":
                found["guided"] = JsonSchema({"type": "object"})
            elif chosen.type == "json_schema" and is_given(chosen.schema):
                found["guided"] = JsonSchema(json_of(chosen.schema))
            else:
                raise wrong("text.format", "must be text, json_object, or json_schema with a schema")
        called = called_options(call, self.tool_choice, self.parallel_tool_calls)
        if chosen is not None and is_forced(called["tool_choice"]) and self.guided is None:
            found.pop("guided", None)
        found |= called
        return cast(GenerateOptions, found)


def _messages(given: str | list[Item], names: dict[str, str], first: list[ChatMessage]) -> list[ChatMessage]:
    """Behind the first ones; `names` gets what the caller calls the messages, and the calls in them."""
    if isinstance(given, str):
        return [*first, ChatMessage("user", given)]
    if not given:
        raise wrong("input", "must have at least one element")
    check_count(len(given), "input")
    messages = [*first]
    thoughts: list[str] = []  # belong to the assistant's message behind them, or to the one that calls
    for index, item in enumerate(given):
        place = f"input[{index}]"
        if item.type == "reasoning":
            said = item.content or item.summary or ""
            thought = _text(said, f"{place}.content", "reasoning_text", "summary_text")
            if not thought and item.encrypted_content:
                if not item.encrypted_content.startswith(SEALED):
                    raise wrong(f"{place}.encrypted_content", "is not of this server", "not_served")
                thought = item.encrypted_content.removeprefix(SEALED)
            if thought:
                thoughts.append(thought)
            continue
        if item.type == "message":
            if item.role is None:
                raise wrong(f"{place}.role", "is required", "missing_required_parameter")
            role = "system" if item.role == "developer" else item.role
            text = _text(item.content or "", f"{place}.content")
            if role == "system" and all(message.role == "system" for message in messages):
                # Many templates know one in front; Codex sends two.
                text = "\n".join([*(message.content or "" for message in messages), text])
                messages.clear()
            thought = "\n".join(thoughts) if role == "assistant" else ""
            messages.append(ChatMessage(role, text, reasoning_content=thought or None))
            thoughts = []
        elif item.type == "function_call":
            follows = bool(messages) and messages[-1].role == "assistant"
            message = messages.pop() if follows else ChatMessage("assistant")
            if message.reasoning_content:
                thoughts.insert(0, message.reasoning_content)
            names[f"messages[{len(messages)}].tool_calls[{len(message.tool_calls)}]"] = place
            if not item.name:
                raise wrong(f"{place}.name", "is required", "missing_required_parameter")
            call = ToolCall(shown_name(item.namespace or "", item.name), item.arguments or "{}", item.call_id or "")
            calls = [*message.tool_calls, call]
            messages.append(
                dataclasses.replace(message, tool_calls=calls, reasoning_content="\n".join(thoughts) or None)
            )
            thoughts = []
        elif item.type == "function_call_output":
            messages.append(ChatMessage("tool", _text(item.output or "", f"{place}.output"), tool_call_id=item.call_id))
        else:
            raise wrong(f"{place}.type", f"is not served: {item.type[:40]!r}", "not_served")
        names.setdefault(f"messages[{len(messages) - 1}]", place)
    return messages


def _text(content: str | list[Part], place: str, *kinds: str) -> str:
    if isinstance(content, str):
        return content
    for index, part in enumerate(content):
        if part.type not in (kinds or ("input_text", "output_text", "text")) or part.text is None:
            raise wrong(f"{place}[{index}].type", f"must be text, not {part.type[:40]!r}", "not_served")
    return "\n".join(part.text or "" for part in content)


def _tool(offer: Offer) -> dict[str, Any]:
    tool, place = offer.tool, offer.place
    if tool.type != "function":
        raise wrong(f"{place}.type", "must be 'function'", "not_served")
    if not tool.name:
        raise wrong(f"{place}.name", "must be a text that is not empty")
    function: dict[str, Any] = {"name": offer.name}
    if tool.description is not None:
        function["description"] = tool.description
    function["parameters"] = object_of(tool.parameters, f"{place}.parameters")
    if tool.strict is not None:
        function["strict"] = tool.strict
    return {"type": "function", "function": function}


read_response = decoder(ResponseFields)
