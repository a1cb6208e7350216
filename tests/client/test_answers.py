"""Answers as events in the SDK: put together, begun again elsewhere, and tools that are run."""

from __future__ import annotations

import json
import random
import typing
from typing import Any, Literal, TypedDict

import pytest

from tandem.client.answers import (
    AnswerSoFar,
    ContentEvent,
    ReasoningEvent,
    ToolCall,
    ToolCallEvent,
    size_of,
    without_first,
)
from tandem.client.conversations import chat_request, conversation_violations
from tandem.client.errors import InvalidArgumentError
from tandem.client.params import GenerateOptions
from tandem.client.plan import make_plan
from tandem.client.tools import run_tool, tool_schema
from tandem.client.types import ChatMessage, Conversation
from tandem.tokenizer.answers.formats import FORMATS
from tandem.tokenizer.answers.parser import AnswerParser
from tandem.tokenizer.rpc.stream_calls import _event as as_message
from tests.tokenizer_svc.answers.answers import Answer, cut, written

TEXT = written("hermes", Answer("hm", "see", [("f", {"a": "b"}), ("g", {})]))[0] + "<tool_call>{oops</tool_call>x"


def messages_of(parts: list[str]) -> list[Any]:
    parser = AnswerParser(FORMATS["hermes"])
    events = [event for part in parts for event in parser.push(part)] + parser.push("", end=True)
    return [as_message(event) for event in events]


def test_an_answer_that_is_begun_again_anywhere_tells_the_same() -> None:
    chance = random.Random(3)
    whole = AnswerSoFar("seed")
    whole.add(messages_of([TEXT]))
    for _ in range(300):
        told = messages_of(cut(TEXT, chance))
        told = told[: chance.randrange(len(told) + 1)]
        again = messages_of(cut(TEXT, chance))
        answer = AnswerSoFar("seed")
        answer.add(told)
        answer.add(without_first(again, sum(map(size_of, told))))
        assert (answer.content, answer.reasoning, answer.tool_calls, answer.broken_calls) == (
            whole.content, whole.reasoning, whole.tool_calls, whole.broken_calls)  # fmt: skip
        ids = [event.id for event in answer.events if isinstance(event, ToolCallEvent) and event.name]
        assert ids == [call.id for call in whole.tool_calls]


def test_what_an_answer_comes_to() -> None:
    answer = AnswerSoFar("seed")
    answer.add(messages_of([TEXT]))
    assert answer.reasoning == "hm" and answer.content == "see<tool_call>{oops</tool_call>x"
    assert [(call.name, call.parsed) for call in answer.tool_calls] == [("f", {"a": "b"}), ("g", {})]
    assert answer.broken_calls == 1
    assert all(len(call.id) == 9 and call.id.isalnum() for call in answer.tool_calls)
    assert len({call.id for call in answer.tool_calls}) == 2
    assert answer.events[0] == ReasoningEvent("hm")
    assert ContentEvent("x") == answer.events[-1]


class Place(TypedDict):
    city: str
    zip: int


def weather(place: Place, unit: Literal["c", "f"] = "c", days: list[int] | None = None) -> dict[str, Any]:
    """Tells the weather.

    Args:
        place: where to look
        unit: of temperatures
    """
    return {"at": place["city"], "unit": unit, "days": days}


def test_the_schema_of_a_function_is_that_of_its_signature() -> None:
    assert tool_schema(weather) == {
        "type": "function",
        "function": {
            "name": "weather",
            "description": "Tells the weather.",
            "parameters": {
                "type": "object",
                "properties": {
                    "place": {
                        "type": "object",
                        "properties": {"city": {"type": "string"}, "zip": {"type": "integer"}},
                        "required": ["city", "zip"],
                        "description": "where to look",
                    },
                    "unit": {"enum": ["c", "f"], "description": "of temperatures"},
                    "days": {"anyOf": [{"type": "array", "items": {"type": "integer"}}, {"type": "null"}]},
                },
                "required": ["place"],
            },
        },
    }


def test_a_function_whose_annotations_mean_nothing_is_named() -> None:
    def lost(place: Nowhere) -> str:  # type: ignore[name-defined]  # noqa: F821
        return str(place)

    def odd(number: "1 +") -> str:  # type: ignore[valid-type]  # noqa: F722
        return str(number)

    for function in (lost, odd):
        with pytest.raises(InvalidArgumentError) as caught:
            make_plan(Conversation([ChatMessage("user", "x")]), {"tools": [function]}, None)
        (violation,) = caught.value.violations
        assert violation.field == "tools[0]"
        assert violation.description.startswith(f"{function.__name__}: its annotations cannot be resolved")


def test_containers_may_leave_open_what_is_in_them() -> None:
    def take(some: typing.List, named: typing.Dict) -> None:  # type: ignore[type-arg]  # noqa: UP006
        pass

    properties = tool_schema(take)["function"]["parameters"]["properties"]
    assert properties == {
        "some": {"type": "array", "items": {}},
        "named": {"type": "object", "additionalProperties": {}},
    }


async def test_a_tool_tells_what_it_gives_or_what_went_wrong() -> None:
    async def later(text: str) -> str:
        return text * 2

    tools: dict[str, Any] = {"weather": weather, "later": later}
    told = await run_tool(tools, ToolCall("weather", '{"place": {"city": "Bonn"}}'))
    assert json.loads(told) == {"at": "Bonn", "unit": "c", "days": None}
    assert await run_tool(tools, ToolCall("later", {"text": "é"})) == "éé"
    assert (await run_tool(tools, ToolCall("weather", "{}"))).startswith("error: TypeError")
    assert "no tool 'gone'" in await run_tool(tools, ToolCall("gone"))


@pytest.mark.parametrize(
    ("message", "field"),
    [
        ({"role": "user", "content": [{"type": "image_url", "image_url": "x"}]}, "messages[0].content[0].type"),
        ({"role": "user", "content": [{"type": "text"}]}, "messages[0].content[0].text"),
        ({"role": "user", "content": ["x"]}, "messages[0].content[0].type"),
        ({"role": "user", "content": "x", "reasoning_content": 3}, "messages[0].reasoning_content"),
    ],
)
def test_parts_of_other_kinds_are_refused_by_name(message: dict[str, Any], field: str) -> None:
    assert [each.field for each in conversation_violations(Conversation([message]))] == [field]


def test_messages_hold_parts_reasoning_and_calls_without_content() -> None:
    messages: list[Any] = [
        {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
        {"role": "assistant", "content": None, "reasoning_content": "hm", "tool_calls": [ToolCall("f", "{}", "i")]},
        ChatMessage("tool", "1", name="f", tool_call_id="i"),
    ]
    request = chat_request(Conversation(messages, tools=[weather]), "")
    assert request.messages[0].content == "a\nb"
    assert request.messages[1].reasoning_content == "hm" and not request.messages[1].HasField("content")
    assert json.loads(request.tools[0]) == tool_schema(weather)


def test_what_is_parsed_and_with_which_tools() -> None:
    def parsing(prompt: Any, **options: Any) -> Any:
        opening = make_plan(prompt, GenerateOptions(**options), None).decode_open([])
        return opening.answer if opening.HasField("answer") else None

    chat = Conversation([{"role": "user", "content": "a"}])
    assert parsing("text") is None and parsing(chat, answer_format="none") is None
    assert parsing(chat).without_calls and parsing(chat).format == ""
    asked = parsing(chat, tools=[weather], in_reasoning=True)
    assert not asked.without_calls and len(asked.tools) == 1 and asked.in_reasoning
    assert parsing("text", answer_format="hermes").format == "hermes"
    large = {"type": "function", "function": {"name": "f", "description": "x" * 70_000}}
    assert not parsing(chat, tools=[large]).without_calls and not parsing(chat, tools=[large]).tools
