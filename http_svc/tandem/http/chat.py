"""POST /v1/chat/completions.

Messages become a prompt by the model's chat template, at the tokenizer service: what they hold never becomes a control
token. What an answer says about tools and its reasoning is told in `tool_calls` and `reasoning_content`.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Literal, Protocol, cast

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from tandem.client import (
    AsyncStream,
    ChatMessage,
    Chunk,
    ContentEvent,
    Conversation,
    GenerateOptions,
    GenerationResult,
    Guide,
    JsonSchema,
    Output,
    StructuralTag,
    ToolCall,
    ToolCallEvent,
)
from tandem.http.answers import RunningUsage, TimingsBody, UsageBody, finish_reason, timings_of, usage_of, usage_until
from tandem.http.call import Call, body_of, call_of
from tandem.http.conversations import check_count, conversation_of
from tandem.http.errors import wrong
from tandem.http.fields import ABSENT, GenerationFields, Json, check_size, decoder, is_given, object_of, text_of
from tandem.http.logprobs import ChatLogprobs, chat_logprobs
from tandem.http.sse import HOLE, Events, EventStream, Relay, Told, cut, event, filled
from tandem.http.tool_choice import called_options, is_forced, thinking_arguments
from tandem.http.upstream import Upstream

# --- the request


class ContentPart(msgspec.Struct, forbid_unknown_fields=True):
    """Only text; the others are known by name, so that the error is about their type."""

    type: str
    text: str | None = None
    image_url: Json = ABSENT
    input_audio: Json = ABSENT
    file: Json = ABSENT
    refusal: Json = ABSENT
    prompt_cache_breakpoint: Json = ABSENT  # ignored, as the next one: every prefix is cached
    cache_control: Json = ABSENT


class FunctionFields(msgspec.Struct, forbid_unknown_fields=True):
    name: str
    arguments: str = "{}"
    parsed_arguments: Json = ABSENT  # ignored: OpenAI's `parse` adds it to an answer, which comes back so


class ToolCallFields(msgspec.Struct, forbid_unknown_fields=True):
    function: FunctionFields
    id: str = ""
    type: Literal["function"] = "function"
    index: Json = ABSENT  # ignored: of a stream's deltas, which clients put together


class MessageFields(msgspec.Struct, forbid_unknown_fields=True):
    """One message; what is None of an answer of ours may come back with it, and what clients add to answers."""

    role: str
    content: str | list[ContentPart] | None = None
    name: str | None = None
    tool_calls: list[ToolCallFields] | None = None
    tool_call_id: str | None = None
    refusal: None = None
    audio: None = None
    function_call: None = None
    annotations: Json = ABSENT  # ignored, as the next one
    parsed: Json = ABSENT
    reasoning_content: str | None = None

    def message(self, place: str) -> ChatMessage:
        """As the SDK has it. Raises ApiError."""
        return ChatMessage(
            # Templates know the older name of the same role.
            role="system" if self.role == "developer" else self.role,
            content=_text(self.content, f"{place}.content"),
            name=self.name,
            tool_calls=[
                ToolCall(call.function.name, call.function.arguments or "{}", call.id) for call in self.tool_calls or ()
            ],
            tool_call_id=self.tool_call_id,
            reasoning_content=self.reasoning_content,
        )


def _text(content: str | list[ContentPart] | None, place: str) -> str | None:
    if not isinstance(content, list):
        return content
    for index, part in enumerate(content):
        if part.type != "text":
            raise wrong(f"{place}[{index}].type", f"must be 'text', not {part.type[:40]!r}", "not_served")
        if part.text is None:
            raise wrong(f"{place}[{index}].text", "is required")
    return "\n".join(part.text or "" for part in content)


class TextFormat(msgspec.Struct, tag_field="type", tag="text", forbid_unknown_fields=True):
    pass


class JsonObjectFormat(msgspec.Struct, tag_field="type", tag="json_object", forbid_unknown_fields=True):
    pass


class NamedSchema(msgspec.Struct, forbid_unknown_fields=True):
    name: str = ""
    description: str | None = None
    schema: Json = ABSENT
    strict: bool | None = None  # every answer is held to its schema


class JsonSchemaFormat(msgspec.Struct, tag_field="type", tag="json_schema", forbid_unknown_fields=True):
    json_schema: NamedSchema


class StructuralTagFormat(msgspec.Struct, tag_field="type", tag="structural_tag", forbid_unknown_fields=True):
    """vLLM's two forms (docs/guided.md)."""

    structures: Json = ABSENT
    triggers: Json = ABSENT
    format: Json = ABSENT

    def tag(self) -> StructuralTag:
        """As the SDK has it."""
        return StructuralTag(
            msgspec.json.encode({k: v for k in self.__struct_fields__ if is_given(v := getattr(self, k))}).decode()
        )


ResponseFormat = TextFormat | JsonObjectFormat | JsonSchemaFormat | StructuralTagFormat


class HasConversation(Protocol):
    """What makes a prompt."""

    messages: list[MessageFields]
    tools: list[Json] | None
    chat_template_kwargs: Json
    add_generation_prompt: bool | None
    continue_final_message: bool | None


def conversation_in(fields: HasConversation, arguments: Mapping[str, Any] | None = None) -> Conversation:
    """What a request asks about; `arguments` are for the template too. Raises ApiError."""
    check_count(len(fields.messages), "messages")
    if fields.continue_final_message and fields.add_generation_prompt:
        raise wrong("add_generation_prompt", "must not be true beside continue_final_message")
    tools = fields.tools or []
    check_size([*tools, fields.chat_template_kwargs], "tools" if tools else "chat_template_kwargs")
    return conversation_of(
        [message.message(f"messages[{index}]") for index, message in enumerate(fields.messages)],
        [_tool(tool, f"tools[{index}]") for index, tool in enumerate(tools)],
        {**(arguments or {}), **object_of(fields.chat_template_kwargs, "chat_template_kwargs")},
        fields.add_generation_prompt is not False,
        bool(fields.continue_final_message),
    )


def _tool(given: Json, place: str) -> dict[str, Any]:
    """As it was given: templates may know more of a tool than its interface does. Raises ApiError."""
    tool = object_of(given, place)
    if not tool:
        raise wrong(place, "must be an object of the type 'function'")
    if tool.get("type", "function") != "function":
        raise wrong(f"{place}.type", "must be 'function'", "not_served")
    function = tool.get("function")
    if not isinstance(function, dict):
        raise wrong(f"{place}.function", "must be an object with the name of the function")
    if not isinstance(name := function.get("name"), str) or not name:
        raise wrong(f"{place}.function.name", "must be a text that is not empty")
    if not isinstance(function.get("parameters"), dict | None):
        raise wrong(f"{place}.function.parameters", "must be an object, a JSON schema")
    if not isinstance(function.get("strict"), bool | None):
        raise wrong(f"{place}.function.strict", "must be true or false")
    return tool


class ChatFields(GenerationFields, kw_only=True):
    """The body of a request."""

    messages: list[MessageFields]
    tools: list[Json] | None = None
    chat_template_kwargs: Json = ABSENT
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    timings: bool | None = None
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    response_format: ResponseFormat | None = None
    tool_choice: Json = ABSENT
    parallel_tool_calls: bool | None = None
    modalities: list[str] | None = None
    reasoning_effort: str | None = None  # a variable of the template
    functions: None = None
    function_call: None = None
    audio: None = None
    prediction: None = None
    verbosity: None = None
    web_search_options: None = None

    def prompt(self) -> Conversation:
        """The conversation. Raises ApiError."""
        return conversation_in(self, thinking_arguments(self.reasoning_effort))

    def generation(self, call: Call) -> GenerateOptions:
        """The keywords of the SDK. Raises ApiError."""
        found = self.options()
        if self.modalities not in (None, ["text"]):
            raise wrong("modalities", "must be ['text']", "not_served")
        limits = {name: value for name in ("max_completion_tokens", "max_tokens")
                  if (value := getattr(self, name)) is not None}  # fmt: skip
        if len(set(limits.values())) > 1:
            raise wrong("max_tokens", "is another number than max_completion_tokens, which takes its place")
        for name, value in limits.items():
            found["max_tokens"] = value
            call.names["max_tokens"] = name
            break
        if self.top_logprobs is not None and not self.logprobs:
            raise wrong("top_logprobs", "needs logprobs to be true")
        if self.logprobs:
            found["logprobs"] = True
            found["top_logprobs"] = self.top_logprobs or None
        if (guide := self._format()) is not None:
            if self.guided is not None:
                raise wrong("guided", "cannot be beside response_format")
            found["guided"] = guide
            call.names["guided"] = "response_format"
        called = called_options(call, self.tool_choice, self.parallel_tool_calls)
        if guide is not None and is_forced(called["tool_choice"]):
            del found["guided"]
        found |= cast(GenerateOptions, called)
        return found

    def _format(self) -> Guide | None:
        match self.response_format:
            case JsonObjectFormat():
                return JsonSchema({"type": "object"})
            case JsonSchemaFormat(json_schema=named):
                if not is_given(named.schema):
                    raise wrong("response_format.json_schema.schema", "is required", "missing_required_parameter")
                return JsonSchema(text_of(named.schema))
            case StructuralTagFormat() as structural:
                return structural.tag()
        return None


read_chat = decoder(ChatFields)

# --- the answer


class FunctionBody(msgspec.Struct, omit_defaults=True):
    name: str | None = None
    arguments: str | None = None


class CallBody(msgspec.Struct, omit_defaults=True):
    """A call of a tool, or more of it, which has an index."""

    function: FunctionBody
    index: int | None = None
    id: str | None = None
    type: str | None = None


class Message(msgspec.Struct):
    content: str | None
    role: str = "assistant"
    refusal: str | None = None
    reasoning_content: str | msgspec.UnsetType = msgspec.UNSET
    tool_calls: list[CallBody] | msgspec.UnsetType = msgspec.UNSET


def _message(output: Output) -> Message:
    calls = [
        CallBody(FunctionBody(call.name, str(call.arguments)), id=call.id, type="function")
        for call in output.tool_calls
    ]
    return Message(
        output.content or (None if calls else ""),
        reasoning_content=output.reasoning or msgspec.UNSET,
        tool_calls=calls or msgspec.UNSET,
    )


class Choice(msgspec.Struct):
    index: int
    message: Message
    finish_reason: str
    logprobs: ChatLogprobs | None = None


class ChatCompletion(msgspec.Struct):
    id: str
    object: str
    created: int
    model: str
    choices: list[msgspec.Raw]  # each is encoded by itself: with logprobs they may be large
    usage: UsageBody
    timings: TimingsBody | msgspec.UnsetType = msgspec.UNSET


class Delta(msgspec.Struct, omit_defaults=True):
    role: str | None = None
    content: str | None = None
    reasoning_content: str | None = None
    tool_calls: list[CallBody] | None = None


def _delta(chunk: Chunk) -> Delta:
    """Has each call once: OpenAI's client takes two parts of a new call for two calls."""
    calls: dict[int, CallBody] = {}
    for said in chunk.events:
        if not isinstance(said, ToolCallEvent) or not (said.name or said.arguments):
            continue
        if (begun := calls.get(said.call)) is not None:
            begun.function.arguments = (begun.function.arguments or "") + said.arguments
        else:
            function = FunctionBody(said.name or None, said.arguments)
            kind = "function" if said.name else None
            calls[said.call] = CallBody(function, said.call, said.id or None, kind)
    return Delta(None, chunk.content or None, chunk.reasoning or None, list(calls.values()) or None)


_NOTHING = Delta()


class ChunkChoice(msgspec.Struct):
    index: int
    delta: Delta
    logprobs: ChatLogprobs | None = None
    finish_reason: str | None = None


class ChatChunk(msgspec.Struct, omit_defaults=True):
    id: str
    object: str
    created: int
    model: str
    choices: list[ChunkChoice]
    usage: UsageBody | RunningUsage | msgspec.UnsetType | None = msgspec.UNSET
    timings: TimingsBody | msgspec.UnsetType = msgspec.UNSET


class ChatCompletions:
    """The endpoint."""

    def __init__(self, upstream: Upstream) -> None:
        self._upstream = upstream

    async def create(self, request: Request) -> Response:
        """The answer."""
        call, fields = call_of(request), read_chat(await body_of(request))
        call.stream = bool(fields.stream)
        options, conversation = fields.generation(call), fields.prompt()
        call.names |= {"prompt": "messages", "routing_key": "prompt_cache_key"}
        await self._upstream.check_model(fields.model, call)
        options |= cast(GenerateOptions, self._upstream.options(call, fields.model, fields.cache_salt or ""))
        pieces = (await self._upstream.vocabulary()).pieces if fields.logprobs else ()
        answer = _Answer(call, fields, pieces)
        client = self._upstream.client
        if fields.stream:
            return EventStream(request, answer.events(client.stream_chat(conversation, **options)))
        completion = await answer.whole(await client.chat(conversation, **options))
        return Response(msgspec.json.encode(completion), media_type="application/json")


class _Answer:
    """One answer, whole or in chunks."""

    def __init__(self, call: Call, fields: ChatFields, pieces: Sequence[bytes]) -> None:
        self._call = call
        self._id = f"chatcmpl-{call.request_id}"
        self._created = int(time.time())
        self._fields = fields
        self._pieces = pieces
        self._counts = fields.continuous_usage
        self._told: RunningUsage | None = None  # in each chunk of a stream, where that was asked for
        self._around: dict[int, tuple[bytes, bytes]] = {}  # what is around the content of a choice

    async def whole(self, result: GenerationResult) -> ChatCompletion:
        self._call.usage = result.usage
        choices = []
        for output in result.outputs:
            logprobs = await self._logprobs(output)
            choice = Choice(output.index, _message(output), finish_reason(output), logprobs)
            choices.append(msgspec.Raw(msgspec.json.encode(choice)))
        return ChatCompletion(
            id=self._id,
            object="chat.completion",
            created=self._created,
            model=self._fields.model,
            choices=choices,
            usage=usage_of(result.usage, result.outputs),
            timings=timings_of(result.timings) if self._fields.timings else msgspec.UNSET,
        )

    async def events(self, stream: AsyncStream) -> Events:
        """The role of each choice, what comes, why each ended, and the usage where it was asked for."""
        async with stream:
            first = await stream.next_chunk()
            if self._counts:
                self._count(stream, None)
            for index in range(self._fields.n or 1):
                yield self._chunk([ChunkChoice(index, Delta(role="assistant", content=""))])
            if first is not None:
                told = self._tell(stream, first)
                yield told if isinstance(told, bytes) else await told()
                yield Relay([stream], lambda _, chunk: b"" if chunk is None else self._tell(stream, chunk))
            result = stream.result
        self._call.usage = result.usage
        for output in result.outputs:
            yield self._chunk([ChunkChoice(output.index, Delta(), finish_reason=finish_reason(output))])
        if self._fields.include_usage or self._fields.timings:
            timings = timings_of(result.timings) if self._fields.timings else msgspec.UNSET
            yield self._chunk([], usage_of(result.usage, result.outputs), timings)

    def _tell(self, stream: AsyncStream, chunk: Chunk) -> Told:
        if self._counts:
            self._count(stream, chunk)
        if chunk.logprobs:
            return partial(self._scored, chunk)
        if not self._counts and len(chunk.events) == 1 and isinstance(said := chunk.events[0], ContentEvent):
            return self._content(chunk.index, said.text) if said.text else b""
        delta = _delta(chunk)
        return b"" if delta == _NOTHING else self._chunk([ChunkChoice(chunk.index, delta)])

    def _content(self, index: int, text: str) -> bytes:
        around = self._around.get(index)
        if around is None:
            around = self._around[index] = cut(self._chunk([ChunkChoice(index, Delta(content=HOLE))]))
        return filled(around, text)

    async def _scored(self, chunk: Chunk) -> bytes:
        return self._chunk([ChunkChoice(chunk.index, _delta(chunk), await self._logprobs(chunk))])

    def _count(self, stream: AsyncStream, chunk: Chunk | None) -> None:
        before = 0 if self._told is None else self._told.completion_tokens
        self._told = usage_until(len(stream.prompt_ids), before + (0 if chunk is None else len(chunk.ids)))

    def _chunk(
        self,
        choices: list[ChunkChoice],
        usage: UsageBody | None = None,
        timings: TimingsBody | msgspec.UnsetType = msgspec.UNSET,
    ) -> bytes:
        """`usage` is there, as null, in all chunks of a stream that ends with one."""
        told = usage or self._told if self._fields.include_usage else msgspec.UNSET
        return event(
            ChatChunk(self._id, "chat.completion.chunk", self._created, self._fields.model, choices, told, timings)
        )

    async def _logprobs(self, part: Chunk | Output) -> ChatLogprobs | None:
        if part.logprobs is None:
            return None
        ids = part.ids if isinstance(part, Chunk) else part.output_ids
        return await chat_logprobs(ids, part.logprobs, part.top_logprobs, self._pieces)
