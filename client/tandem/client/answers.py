"""What an answer says, as events: content, reasoning and calls of tools."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tandem.tokenizer.v1 import tokenizer_pb2 as pb

_ID_LETTERS = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
_ID_LENGTH = 9  # Mistral's templates take ids of nine letters and digits, and no other; all others take any


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call of a tool that an assistant's message asks for."""

    name: str
    arguments: Mapping[str, Any] | str = field(default_factory=dict)  # or a JSON object as text, as models write it
    id: str = ""

    @property
    def parsed(self) -> dict[str, Any]:
        """The arguments as a dict. Raises ValueError for a text that is no JSON object."""
        value = json.loads(self.arguments or "{}") if isinstance(self.arguments, str) else dict(self.arguments)
        if not isinstance(value, dict):
            raise ValueError(f"the arguments of {self.name} are not an object")
        return value


@dataclass(frozen=True, slots=True)
class ContentEvent:
    """More text for the reader."""

    text: str
    broken_call: bool = False  # it is what begins as a call of a tool and cannot be read as one
    call: int | None = None  # the number of that call, where events of it came before; it does not count


@dataclass(frozen=True, slots=True)
class ReasoningEvent:
    """More text that the model wrote for itself."""

    text: str


@dataclass(frozen=True, slots=True)
class ToolCallEvent:
    """More of a call of a tool."""

    call: int  # its number in the answer, from 0
    name: str = ""  # in its first event
    id: str = ""  # likewise
    arguments: str = ""  # more of a JSON object as text
    complete: bool = False  # nothing more comes, and the arguments are a whole object


AnswerEvent = ContentEvent | ReasoningEvent | ToolCallEvent


class AnswerSoFar:
    """An answer that is put together of its events."""

    def __init__(self, id_seed: str) -> None:
        """Ids of calls that the model gave none are made from `id_seed`."""
        self.events: list[AnswerEvent] = []
        self.reasoning_tokens = 0
        self._id_seed = id_seed
        self._contents: list[str] = []
        self._reasonings: list[str] = []
        self._calls: dict[int, ToolCall] = {}
        self._arguments: dict[int, list[str]] = {}
        self._complete: list[int] = []
        self.broken_calls = 0

    @property
    def content(self) -> str:
        """All content, that of broken calls included."""
        return "".join(self._contents)

    @property
    def reasoning(self) -> str:
        """All reasoning."""
        return "".join(self._reasonings)

    @property
    def tool_calls(self) -> list[ToolCall]:
        """The calls that are complete."""
        return [self._calls[number] for number in self._complete]

    def add(self, messages: Sequence[pb.AnswerEvent]) -> None:
        """Adds events as the tokenizer tells them."""
        for message in messages:
            self._add(message)

    def _add(self, message: pb.AnswerEvent) -> None:
        match message.WhichOneof("event"):
            case "content":
                self._contents.append(message.content)
                self.events.append(ContentEvent(message.content))
            case "reasoning":
                self._reasonings.append(message.reasoning)
                self.events.append(ReasoningEvent(message.reasoning))
            case "broken_call":
                broken = message.broken_call
                follows = bool(self.events) and isinstance(last := self.events[-1], ContentEvent) and last.broken_call
                self.broken_calls += not follows
                self._contents.append(broken.text)
                number = broken.index if broken.HasField("index") else None
                self.events.append(ContentEvent(broken.text, True, number))
            case "tool_call":
                self._add_call(message.tool_call)

    def _add_call(self, call: pb.ToolCallDelta) -> None:
        number = call.index
        id_ = ""
        if call.name:
            id_ = call.id or _id(f"{self._id_seed}:{number}")
            self._calls[number] = ToolCall(call.name, "", id_)
            self._arguments[number] = []
        self._arguments[number].append(call.arguments)
        if call.complete:
            begun = self._calls[number]
            self._calls[number] = ToolCall(begun.name, "".join(self._arguments[number]), begun.id)
            self._complete.append(number)
        self.events.append(ToolCallEvent(number, call.name, id_, call.arguments, call.complete))


def _id(seed: str) -> str:
    number = int.from_bytes(hashlib.sha256(seed.encode()).digest())
    letters = []
    for _ in range(_ID_LENGTH):
        number, place = divmod(number, len(_ID_LETTERS))
        letters.append(_ID_LETTERS[place])
    return "".join(letters)


def size_of(event: pb.AnswerEvent) -> int:
    """Returns how much an event tells: characters, and the begin and the end of a call. Of the same answer any first
    events tell the same where they tell equally much."""
    match event.WhichOneof("event"):
        case "content":
            return len(event.content)
        case "reasoning":
            return len(event.reasoning)
        case "broken_call":
            return len(event.broken_call.text)
    call = event.tool_call
    return bool(call.name) + len(call.arguments) + call.complete


def without_first(events: Sequence[pb.AnswerEvent], size: int) -> list[pb.AnswerEvent]:
    """Returns events without what the first so much of them tell."""
    left: list[pb.AnswerEvent] = []
    for event in events:
        whole = size_of(event)
        if size <= 0:
            left.append(event)
        elif whole > size:
            left.append(_without(event, size))
        size -= whole
    return left


def _without(event: pb.AnswerEvent, size: int) -> pb.AnswerEvent:
    rest = pb.AnswerEvent()
    rest.CopyFrom(event)
    match event.WhichOneof("event"):
        case "content":
            rest.content = event.content[size:]
        case "reasoning":
            rest.reasoning = event.reasoning[size:]
        case "broken_call":
            rest.broken_call.text = event.broken_call.text[size:]
        case _:
            skipped = size - bool(event.tool_call.name)
            rest.tool_call.name = rest.tool_call.id = ""
            rest.tool_call.arguments = event.tool_call.arguments[skipped:]
    return rest
