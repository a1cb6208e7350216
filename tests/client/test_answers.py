"""Answers as events in the SDK: put together, begun again elsewhere, and tools that are run."""

from __future__ import annotations

import json
import random
import typing
from typing import Any, Literal, TypedDict

import jsonschema
import pytest
from pydantic import BaseModel, create_model

from tandem.client import AsyncClient
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
from tandem.client.types import ChatMessage, Conversation, Output
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


class Sure(BaseModel):
    sure: bool


def test_an_answer_that_calls_tools_instead_has_no_record() -> None:
    def output(content: str, calls: list[ToolCall]) -> Output:
        given: Any = {"index": 0, "text": "", "output_ids": [], "logprobs": None, "ranks": None, "top_logprobs": None}
        return Output(**given, finish_reason="eos", content=content, tool_calls=calls, response_format=Sure)

    assert output('{"sure": true}', []).parsed == Sure(sure=True)
    assert output("\n", [ToolCall("f", "{}", "id")]).parsed is None
    for content, calls in (("", []), ('{"sure": tr', []), ("Yes.", [ToolCall("f", "{}", "id")])):
        with pytest.raises(ValueError):
            _ = output(content, calls).parsed


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


class Item(BaseModel):
    name: str
    parts: list[Item] = []


class Order(BaseModel):
    items: list[Item]


def ordered(order: Order, more: list[Item] | None = None, tags: set[str] | None = None) -> Item:
    more = more or []
    return Item(name=f"{order.items[0].name} {len(more)} {sorted(tags or ())}", parts=more)


def test_classes_within_classes_are_found_where_the_schema_refers_to_them() -> None:
    schema = tool_schema(ordered)["function"]["parameters"]
    jsonschema.Draft202012Validator.check_schema(schema)
    validator = jsonschema.Draft202012Validator(schema)
    assert validator.is_valid({"order": {"items": [{"name": "a", "parts": [{"name": "b"}]}]}})
    assert not validator.is_valid({"order": {"items": [{"name": "a", "parts": [{"name": 1}]}]}})


def test_two_classes_of_one_name_are_told_apart_by_their_tool() -> None:
    other = create_model("Order", items=(list[create_model("Item", name=(int, ...))], ...))

    def both(one: Order, two: other) -> None:  # type: ignore[valid-type]
        pass

    both.__annotations__ = {"one": Order, "two": other}
    with pytest.raises(TypeError, match="parameter 'two' has a class 'Item', and so has another one"):
        tool_schema(both)


async def test_a_function_gets_records_of_its_parameters_types_and_may_give_one() -> None:
    arguments = {"order": {"items": [{"name": "a"}]}, "more": [{"name": "b"}], "tags": ["x", "x"]}
    told = await run_tool({"ordered": ordered}, ToolCall("ordered", json.dumps(arguments)))
    assert json.loads(told) == {"name": "a 1 ['x']", "parts": [{"name": "b", "parts": []}]}
    wrong = await run_tool({"ordered": ordered}, ToolCall("ordered", {"order": {"items": [{"name": 1}]}}))
    assert wrong.startswith("error: ValidationError") and "items.0.name" in wrong
    either: list[Item | str] = []

    def takes(values: list[Item | str]) -> None:
        either.extend(values)

    await run_tool({"takes": takes}, ToolCall("takes", {"values": ["x", {"name": "y"}]}))
    assert either == ["x", Item(name="y")]


async def test_functions_that_a_model_could_not_tell_apart_are_refused(client: AsyncClient) -> None:
    def named() -> Any:
        def search(text: str) -> str:
            return text

        return search

    with pytest.raises(InvalidArgumentError, match="has several functions named 'search'"):
        await client.run_tools([ChatMessage("user", "x")], [named(), weather, named()])


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
