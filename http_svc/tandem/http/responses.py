"""POST /v1/responses: OpenAI's newer interface, without its memory.

Nothing is stored: a request holds the whole conversation, and what would need an earlier answer is refused. An answer
has items of the types `reasoning`, `message` and `function_call`.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple, cast

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from tandem.client import (
    AnswerEvent,
    AsyncStream,
    ChatMessage,
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
from tandem.http.errors import ApiError, wrong
from tandem.http.fields import ABSENT, Json, OwnFields, StreamOptions, check_size, decoded, decoder, is_given, object_of
from tandem.http.fields import text_of as json_of
from tandem.http.sse import Events, EventStream, Relay, named_event
from tandem.http.tool_choice import ToolKind, called_options, is_forced, thinking_arguments
from tandem.http.upstream import Upstream

# --- the request


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


def _echo(given: Json) -> Json | dict[str, Any]:
    """As it was given; a stream tells it several times."""
    if msgspec.json.decode(given, type=ToolKind).type != "function":
        return given
    tool = msgspec.json.decode(given, type=FunctionTool)
    parameters = tool.parameters if is_given(tool.parameters) else None
    return {"type": tool.type, "name": tool.name, "description": tool.description, "parameters": parameters,
            "strict": tool.strict}  # fmt: skip


def _told(chosen: Format) -> dict[str, Any]:
    given = {name: getattr(chosen, name) for name in chosen.__struct_fields__}
    return {name: value for name, value in given.items() if value is not None and value is not ABSENT}


read_response = decoder(ResponseFields)

# --- the answer


class OutputText(msgspec.Struct):
    text: str
    type: str = "output_text"
    annotations: tuple[()] = ()
    logprobs: tuple[()] = ()


class OutputMessage(msgspec.Struct):
    id: str
    status: str
    content: Sequence[OutputText]
    type: str = "message"
    role: str = "assistant"


class ReasoningText(msgspec.Struct):
    text: str
    type: str = "reasoning_text"


class ReasoningItem(msgspec.Struct):
    id: str
    status: str
    content: Sequence[ReasoningText]
    summary: tuple[()] = ()
    encrypted_content: str | None = None
    type: str = "reasoning"


class FunctionCall(msgspec.Struct):
    id: str
    status: str
    call_id: str
    name: str
    arguments: str
    namespace: str | msgspec.UnsetType = msgspec.UNSET
    type: str = "function_call"


OutputItem = OutputMessage | ReasoningItem | FunctionCall


class Details(msgspec.Struct):
    cached_tokens: int


class UsageBody(msgspec.Struct):
    input_tokens: int
    input_tokens_details: Details
    output_tokens: int
    output_tokens_details: dict[str, int]
    total_tokens: int


class ResponseBody(msgspec.Struct):
    id: str
    created_at: int
    model: str
    status: str
    output: Sequence[OutputItem]
    usage: UsageBody | None = None
    incomplete_details: dict[str, str] | None = None
    instructions: str | None = None
    max_output_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    error: dict[str, str | None] | None = None
    previous_response_id: None = None
    parallel_tool_calls: bool = True
    store: bool = False
    background: bool = False
    truncation: str = "disabled"
    metadata: msgspec.Raw | dict[str, str] = {}
    text: Mapping[str, Any] = {}
    reasoning: Mapping[str, str | None] = {}
    tool_choice: str | msgspec.Raw = "auto"
    tools: Sequence[msgspec.Raw | dict[str, Any]] = ()
    object: str = "response"


class Responses:
    """The endpoint."""

    def __init__(self, upstream: Upstream) -> None:
        self._upstream = upstream

    async def create(self, request: Request) -> Response:
        """The answer."""
        call, fields = call_of(request), read_response(await body_of(request))
        call.stream = bool(fields.stream)
        call.names |= {"prompt": "input", "messages": "input"}
        options, conversation = fields.generation(call), fields.asked(call)
        await self._upstream.check_model(fields.model, call)
        options |= cast(GenerateOptions, self._upstream.options(call, fields.model, fields.cache_salt or ""))
        answer = _Answer(call, fields)
        client = self._upstream.client
        if fields.stream:
            return EventStream(request, answer.events(client.stream_chat(conversation, **options)))
        result = await client.chat(conversation, **options)
        body = answer.whole(result.outputs[0], result.usage)
        return Response(msgspec.json.encode(body), media_type="application/json")


class _Answer:
    """One answer, whole or in events."""

    def __init__(self, call: Call, fields: ResponseFields) -> None:
        self._call = call
        self._fields = fields
        self._created = int(time.time())
        self._sequence = 0
        self._names = {offer.name: (offer.namespace, offer.tool.name) for offer in fields.offers() if offer.namespace}
        self._seals = ENCRYPTED in (fields.include or ())

    def whole(self, output: Output, usage: Usage, items: Sequence[OutputItem] | None = None) -> ResponseBody:
        self._call.usage = usage
        if output.finish_reason is FinishReason.CANCELLED:
            raise aborted()
        status = "incomplete" if output.finish_reason is FinishReason.MAX_TOKENS else "completed"
        body = self._body(status, self._items(status, output) if items is None else items)
        body.incomplete_details = {"reason": "max_output_tokens"} if status == "incomplete" else None
        body.usage = UsageBody(
            input_tokens=usage.prompt_tokens,
            input_tokens_details=Details(usage.cached_prompt_tokens or 0),
            output_tokens=usage.completion_tokens,
            output_tokens_details={"reasoning_tokens": output.reasoning_tokens},
            total_tokens=usage.prompt_tokens + usage.completion_tokens,
        )
        return body

    def _items(self, status: str, output: Output) -> list[OutputItem]:
        """As a stream of the same answer has them, if it said one after the other."""
        items: list[OutputItem] = []
        if output.reasoning:
            items.append(self._thought(self._id("rs", 0), "completed", output.reasoning))
        if output.content or not output.tool_calls:
            items.append(OutputMessage(self._id("msg", len(items)), status, [OutputText(output.content)]))
        for call in output.tool_calls:
            items.append(self._called(len(items), "completed", call.id, call.name, str(call.arguments)))
        return items

    def _thought(self, name: str, status: str, text: str) -> ReasoningItem:
        return ReasoningItem(
            name, status, [ReasoningText(text)], encrypted_content=SEALED + text if self._seals else None
        )

    def _called(self, index: int, status: str, call_id: str, shown: str, arguments: str) -> FunctionCall:
        namespace, name = self._names.get(shown, (msgspec.UNSET, shown))
        return FunctionCall(self._id("fc", index), status, call_id, name, arguments, namespace)

    def _id(self, kind: str, number: int) -> str:
        return f"{kind}_{self._call.request_id}_{number}"

    async def events(self, stream: AsyncStream) -> Events:
        """Items as they come."""
        items: list[OutputItem] = []
        opened: OutputItem | None = None
        parts: list[str] = []

        def more(events: Sequence[AnswerEvent]) -> Iterator[bytes]:
            nonlocal opened, parts
            for event in events:
                kind = _kind(event)
                if not isinstance(opened, kind) or (isinstance(event, ToolCallEvent) and event.name):
                    if opened is not None:
                        yield from self._close(items, opened, "".join(parts), "completed")
                    parts = []
                    opened = self._new_item(event, len(items))
                    yield from self._open(opened, len(items))
                text = event.arguments if isinstance(event, ToolCallEvent) else event.text
                if text:
                    parts.append(text)
                    yield self._more(opened, len(items), text)

        async with stream:
            chunk = await stream.next_chunk()
            self._call.failed = self._failed
            for name in ("response.created", "response.in_progress"):
                yield self._event(name, response=self._body("in_progress", []))
            if chunk is not None:
                yield b"".join(more(chunk.events))
                yield Relay([stream], lambda _, chunk: b"" if chunk is None else b"".join(more(chunk.events)))
            result = stream.result
        status = "incomplete" if result.outputs[0].finish_reason is FinishReason.MAX_TOKENS else "completed"
        if opened is None:
            opened = OutputMessage(self._id("msg", 0), "in_progress", [])
            for told in self._open(opened, 0):
                yield told
        complete = {call.id for call in result.tool_calls}
        is_complete = isinstance(opened, FunctionCall) and opened.call_id in complete
        for told in self._close(items, opened, "".join(parts), "completed" if is_complete else status):
            yield told
        body = self.whole(result.outputs[0], result.usage, items)
        yield self._event(f"response.{body.status}", response=body)

    def _new_item(self, event: AnswerEvent, index: int) -> OutputItem:
        if isinstance(event, ToolCallEvent):
            return self._called(index, "in_progress", event.id, event.name, "")
        if isinstance(event, ReasoningEvent):
            return ReasoningItem(self._id("rs", index), "in_progress", [])
        return OutputMessage(self._id("msg", index), "in_progress", [])

    def _open(self, item: OutputItem, index: int) -> Iterator[bytes]:
        yield self._event("response.output_item.added", output_index=index, item=item)
        if not isinstance(item, FunctionCall):
            part = OutputText("") if isinstance(item, OutputMessage) else ReasoningText("")
            yield self._event("response.content_part.added", **_place(item, index), part=part)

    def _more(self, item: OutputItem, index: int, text: str) -> bytes:
        match item:
            case FunctionCall():
                name = "response.function_call_arguments.delta"
                return self._event(name, item_id=item.id, output_index=index, delta=text)
            case ReasoningItem():
                return self._event("response.reasoning_text.delta", **_place(item, index), delta=text)
        return self._event("response.output_text.delta", **_place(item, index), delta=text, logprobs=())

    def _close(self, items: list[OutputItem], item: OutputItem, text: str, status: str) -> Iterator[bytes]:
        """Ends an item, which joins the others."""
        index = len(items)
        ended: OutputItem
        match item:
            case FunctionCall():
                done = {"item_id": item.id, "output_index": index, "name": item.name, "arguments": text}
                yield self._event("response.function_call_arguments.done", done)
                ended = FunctionCall(item.id, status, item.call_id, item.name, text, item.namespace)
            case ReasoningItem():
                yield self._event("response.reasoning_text.done", **_place(item, index), text=text)
                yield self._event("response.content_part.done", **_place(item, index), part=ReasoningText(text))
                ended = self._thought(item.id, status, text)
            case _:
                yield self._event("response.output_text.done", **_place(item, index), text=text, logprobs=())
                yield self._event("response.content_part.done", **_place(item, index), part=OutputText(text))
                ended = OutputMessage(item.id, status, [OutputText(text)])
        items.append(ended)
        yield self._event("response.output_item.done", output_index=index, item=ended)

    def _event(self, kind: str, told_too: Mapping[str, Any] | None = None, /, **fields: Any) -> bytes:
        body = {"type": kind, "sequence_number": self._sequence, **(told_too or {}), **fields}
        told = named_event(kind.encode(), body)
        self._sequence += 1
        return told

    def _failed(self, error: ApiError) -> bytes:
        """The events of an error in the middle: what clients call an error, and what they call the end."""
        told = {"code": error.code, "message": error.message, "param": error.param}
        failed = self._event("error", told, error={"type": error.type, **told})
        body = self._body("failed", [])
        body.error = {"code": error.code, "message": error.message}
        return failed + self._event("response.failed", response=body)

    def _body(self, status: str, output: Sequence[OutputItem]) -> ResponseBody:
        fields = self._fields
        return ResponseBody(
            id=f"resp_{self._call.request_id}",
            created_at=self._created,
            model=fields.model,
            status=status,
            output=output,
            instructions=fields.instructions,
            max_output_tokens=fields.max_output_tokens,
            temperature=getattr(fields, "temperature", None),
            top_p=getattr(fields, "top_p", None),
            parallel_tool_calls=fields.parallel_tool_calls is not False,
            tool_choice=fields.tool_choice if is_given(fields.tool_choice) else "auto",
            metadata=fields.metadata if is_given(fields.metadata) else {},
            text={"format": _told(fields.text.format) if fields.text and fields.text.format else {"type": "text"}},
            reasoning={"effort": fields.reasoning.effort if fields.reasoning else None, "summary": None},
            tools=[_echo(tool) for tool in fields.tools or ()],
        )


def _kind(event: AnswerEvent) -> type[OutputItem]:
    if isinstance(event, ToolCallEvent):
        return FunctionCall
    return ReasoningItem if isinstance(event, ReasoningEvent) else OutputMessage


def _place(item: OutputItem, index: int) -> dict[str, Any]:
    return {"item_id": item.id, "output_index": index, "content_index": 0}
