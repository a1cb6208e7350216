"""POST /v1/responses: OpenAI's newer interface, without its memory.

Nothing is stored: a request holds the whole conversation, and what would need an earlier answer is refused. An answer
has items of the types `reasoning`, `message` and `function_call`.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, cast

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from tandem.client import (
    AnswerEvent,
    AsyncStream,
    FinishReason,
    GenerateOptions,
    Output,
    ReasoningEvent,
    ToolCallEvent,
    Usage,
)
from tandem.http.answers import aborted
from tandem.http.call import Call, body_of, call_of
from tandem.http.errors import ApiError
from tandem.http.fields import ABSENT, Json, is_given
from tandem.http.response_fields import ENCRYPTED, SEALED, Format, FunctionTool, ResponseFields, read_response
from tandem.http.sse import Events, EventStream, Relay, named_event
from tandem.http.tool_choice import ToolKind
from tandem.http.upstream import Upstream


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
