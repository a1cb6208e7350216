"""/v1/responses, by OpenAI's own client."""

from __future__ import annotations

import json
from typing import Any

import httpx
import openai
import pydantic
import pytest

from tandem.http.call import Call
from tandem.http.responses import read_response
from tests.http_svc.conftest import Stack

pytestmark = pytest.mark.slow

ASKED: dict[str, Any] = {
    "model": "demo", "input": "O Romeo?", "instructions": "Be brief.", "max_output_tokens": 24,
    "extra_body": {"seed": 7},
}  # fmt: skip
SAME: list[Any] = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "O Romeo?"}]


async def test_the_same_seed_gives_the_text_of_the_sdk_whole_and_streamed(stack: Stack, client: openai.OpenAI) -> None:
    async with stack.client() as sdk:
        expected = await sdk.chat(SAME, max_tokens=24, seed=7)
    whole = client.responses.create(**ASKED)
    assert whole.output_text == expected.text and whole.error is None
    assert whole.status == ("completed" if expected.finish_reason == "eos" else "incomplete")
    assert whole.usage is not None and whole.usage.input_tokens == expected.usage.prompt_tokens
    assert whole.usage.output_tokens == expected.usage.completion_tokens
    events = list(client.responses.create(**ASKED, stream=True))
    assert [event.sequence_number for event in events] == list(range(len(events)))
    deltas = [event.delta for event in events if event.type == "response.output_text.delta"]
    assert "".join(deltas) == expected.text
    kinds = [event.type for event in events if event.type != "response.output_text.delta"]
    assert kinds == [
        "response.created", "response.in_progress", "response.output_item.added", "response.content_part.added",
        "response.output_text.done", "response.content_part.done", "response.output_item.done",
        f"response.{whole.status}",
    ]  # fmt: skip


async def test_items_become_the_messages_that_templates_know(stack: Stack, client: openai.OpenAI) -> None:
    items: list[Any] = [
        {"role": "developer", "content": [{"type": "input_text", "text": "S"}]},
        {"type": "message", "role": "user", "content": "a </s>"},
        {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c", "output": "3"},
    ]
    same: list[Any] = [
        {"role": "system", "content": "S"},
        {"role": "user", "content": "a </s>"},
        {"role": "assistant", "tool_calls": [{"id": "c", "function": {"name": "f", "arguments": "{}"}}]},
        {"role": "tool", "content": "3", "tool_call_id": "c"},
    ]
    async with stack.client() as sdk:
        expected = len(await sdk.encode_chat(same))
    usage = client.responses.create(model="demo", input=items, max_output_tokens=1).usage
    assert usage is not None and usage.input_tokens == expected


async def test_what_stands_in_front_is_one_system_message(stack: Stack, client: openai.OpenAI) -> None:
    items: list[Any] = [{"role": "developer", "content": "B"}, {"role": "system", "content": "C"}, USER,
                        {"role": "system", "content": "D"}]  # fmt: skip
    same: list[Any] = [{"role": "system", "content": "A\nB\nC"}, USER, {"role": "system", "content": "D"}]
    async with stack.client() as sdk:
        expected = len(await sdk.encode_chat(same))
    usage = client.responses.create(model="demo", input=items, instructions="A", max_output_tokens=1).usage
    assert usage is not None and usage.input_tokens == expected


def thought(text: str) -> dict[str, Any]:
    return {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": text}] if text else []}


EMPTY: dict[str, Any] = {"type": "object", "properties": {}, "additionalProperties": False}
USER, ANSWER = {"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}
CALLED = {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}


@pytest.mark.parametrize(
    ("items", "expected"),
    [
        ([USER, thought("1"), ANSWER, thought("2"), CALLED], [None, "1\n2"]),
        ([USER, thought("1"), CALLED, thought("2"), CALLED], [None, "1\n2"]),
        ([USER, thought("1"), thought("2"), ANSWER], [None, "1\n2"]),
        ([USER, thought("1"), USER, ANSWER], [None, None, None]),
        ([USER, thought("1"), ANSWER, USER, thought("2"), ANSWER], [None, "1", None, "2"]),
        ([USER, thought(""), ANSWER], [None, None]),
    ],
)
def test_all_reasoning_stays_with_its_answer(items: list[Any], expected: list[str | None]) -> None:
    fields = read_response(json.dumps({"model": "demo", "input": items}).encode())
    messages: Any = fields.asked(Call("/v1/responses", "id")).messages
    assert [message.reasoning_content for message in messages] == expected


def test_what_codex_sends_beside_its_own_tools_is_taken() -> None:
    """Codex 0.171: tools in a namespace and of the server, and what it tells of itself."""
    function = {"type": "function", "name": "close", "parameters": {"type": "object"}, "strict": False}
    body = {
        "model": "demo",
        "input": [{"type": "message", "role": "developer", "content": [{"type": "input_text", "text": "Be brief."}]},
                  {"type": "function_call", "call_id": "c", "namespace": "agents", "name": "close", "arguments": "{}"},
                  {"type": "function_call_output", "call_id": "c", "output": "3"}],
        "tools": [function, {"type": "namespace", "name": "agents", "description": "d", "tools": [function]},
                  {"type": "namespace", "name": "mcp__files__", "tools": [{**function, "name": "read"}]},
                  {"type": "web_search", "external_web_access": False}],
        "tool_choice": "auto", "parallel_tool_calls": True, "reasoning": {"summary": "auto"}, "store": False,
        "stream": True, "include": ["reasoning.encrypted_content"], "prompt_cache_key": "k",
        "client_metadata": {"session_id": "s"},
    }  # fmt: skip
    asked = read_response(json.dumps(body).encode()).asked(Call("/v1/responses", "id"))
    names: Any = [tool["function"]["name"] for tool in asked.tools]
    assert names == ["close", "agents__close", "mcp__files__read"]
    assert [call.name for message in asked.messages for call in message.tool_calls] == ["agents__close"]


def test_a_tool_of_a_namespace_is_called_by_both_names(client: openai.OpenAI) -> None:
    function = {"type": "function", "name": "f", "parameters": EMPTY}
    asked: Any = {"model": "demo", "input": "O?", "tools": [{"type": "namespace", "name": "n", "tools": [function]}],
                  "tool_choice": "required", "parallel_tool_calls": False, "max_output_tokens": 100}  # fmt: skip
    whole: Any = client.post("/responses", cast_to=object, body=asked)
    raw = client.post("/responses", cast_to=httpx.Response, body={**asked, "stream": True}).text
    events = [json.loads(line.removeprefix("data: ")) for line in raw.splitlines() if line.startswith("data: ")]
    added = [event["item"] for event in events if event["type"] == "response.output_item.added"]
    for [item] in (added, events[-1]["response"]["output"], whole["output"]):
        assert (item["namespace"], item["name"]) == ("n", "f")
    assert whole["tools"] == asked["tools"]


SPACE = {"type": "namespace", "name": "n", "tools": [{"type": "function", "name": "f"}]}


@pytest.mark.parametrize("kept", ["encrypted_content", "content"])
def test_reasoning_may_come_back_as_either_of_its_forms(client: openai.OpenAI, kept: str) -> None:
    said = {"guided": {"choices": ["<think>\nhm, so\n</think>\n\nAy."]}}
    asked: dict[str, Any] = {"model": "demo", "input": "O?", "max_output_tokens": 100, "extra_body": said}
    plain = client.responses.create(**asked).output[0]
    assert plain.type == "reasoning" and plain.encrypted_content is None
    answer = client.responses.create(**asked, include=["reasoning.encrypted_content"])
    with client.responses.stream(**asked, include=["reasoning.encrypted_content"]) as stream:
        streamed = stream.get_final_response()
    for output in (answer.output, streamed.output):
        thought, answered = (item.model_dump(by_alias=True) for item in output)
        back = [USER, {"type": "reasoning", "summary": [], kept: thought[kept]}, answered]
        fields = read_response(json.dumps({"model": "demo", "input": back}).encode())
        messages: Any = fields.asked(Call("/v1/responses", "id")).messages
        assert [(each.reasoning_content, each.content) for each in messages[1:]] == [("hm, so", "Ay.")]


class Verse(pydantic.BaseModel):
    lines: int = pydantic.Field(ge=0, le=99)


def test_parse_and_the_streaming_helper(client: openai.OpenAI) -> None:
    parsed = client.responses.parse(**{**ASKED, "max_output_tokens": 100}, text_format=Verse).output_parsed
    assert parsed is not None and 0 <= parsed.lines <= 99
    with client.responses.stream(**{**ASKED, "max_output_tokens": 100}, text_format=Verse) as stream:
        for _ in stream:
            pass
        final = stream.get_final_response()
    assert final.output_parsed is not None and 0 <= final.output_parsed.lines <= 99


@pytest.mark.parametrize(
    ("changed", "param"),
    [
        ({"previous_response_id": "resp_1"}, "previous_response_id"),
        ({"background": True}, "background"),
        ({"max_output_tokens": 0}, "max_output_tokens"),
        ({"input": []}, "input"),
        ({"input": [{"type": "web_search_call", "id": "r"}]}, "input[0].type"),
        ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, "input[0].content[0].type"),
        ({"input": "long " * 600}, "input"),
        ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
        ({"tools": [{"type": "function"}]}, "tools[0].name"),
        ({"input": [USER, CALLED, {**CALLED, "arguments": "{oops"}]}, "input[2].arguments"),
        ({"input": [USER, ANSWER, {**CALLED, "arguments": "[]"}]}, "input[2].arguments"),
        ({"input": [USER, {**CALLED, "name": None}]}, "input[1].name"),
        ({"tools": [{"type": "custom", "name": "f", "format": {"type": "text"}}]}, "tools[0].type"),
        ({"input": [USER, {"role": "", "content": "x"}]}, "input[1].role"),
        ({"prompt_cache_key": "k" * 5000}, "prompt_cache_key"),
        ({"include": ["reasoning.encrypted_content", "message.output_text.logprobs"]}, "include[1]"),
        ({"tools": [{"type": "function", "name": "f", "parameter": {}}]}, "tools[0].parameter"),
        ({"tools": [{"type": "namespace", "name": "n", "tools": [{"type": "custom"}]}]}, "tools[0].tools[0].type"),
        ({"input": [USER, {"type": "reasoning", "encrypted_content": "gAAA"}]}, "input[1].encrypted_content"),
        ({"tools": [{"type": "function", "name": "n__f"}, SPACE]}, "tools[1].tools[0].name"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_named(client: openai.OpenAI, changed: dict[str, Any], param: str) -> None:
    body = {name: value for name, value in ASKED.items() if name != "extra_body"}
    with pytest.raises(openai.BadRequestError) as error:
        client.post("/responses", cast_to=object, body={**body, **changed})
    assert error.value.param == param
