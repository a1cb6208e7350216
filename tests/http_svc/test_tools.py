"""Reasoning and calls of tools through all three interfaces, by OpenAI's and Anthropic's own clients.

The model is made to say a text by a guide; all else is as with a model that says it by itself.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import anthropic
import openai
import pytest

from tests.http_svc.conftest import Stack

pytestmark = pytest.mark.slow

SAID = '<think>\nhm, so\n</think>\n\nSee: <tool_call>\n{"name": "f", "arguments": {"a": [1, "x"]}}\n</tool_call>'
BROKEN = '<tool_call>{"name": "f", "arguments": {oops}}</tool_call>'
MESSAGES: list[Any] = [{"role": "user", "content": "O Romeo?"}]
PARAMETERS: dict[str, Any] = {"type": "object", "properties": {"a": {"type": "array"}}}
TOOL: Any = {"type": "function", "function": {"name": "f", "parameters": PARAMETERS}}
ASKED: dict[str, Any] = {"model": "demo", "messages": MESSAGES, "max_tokens": 250, "tools": [TOOL]}


def says(text: str) -> dict[str, Any]:
    return {"guided": {"choices": [text]}}


def test_a_chat_tells_reasoning_and_calls(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(**ASKED, extra_body=says(SAID))
    [choice] = answer.choices
    assert choice.finish_reason == "tool_calls" and choice.message.content == "See:"
    assert choice.message.model_extra == {"reasoning_content": "hm, so"}
    [call] = choice.message.tool_calls or []
    assert call.type == "function" and call.function.name == "f" and len(call.id) == 9
    assert json.loads(call.function.arguments) == {"a": [1, "x"]}
    details = answer.usage and answer.usage.completion_tokens_details
    assert details is not None and answer.usage is not None
    assert 0 < (details.reasoning_tokens or 0) < answer.usage.completion_tokens
    given = {"role": "tool", "tool_call_id": call.id, "content": "3"}
    again = client.chat.completions.create(**{**ASKED, "messages": [*MESSAGES, choice.message, given], "max_tokens": 1})
    assert again.choices


def test_a_stream_tells_the_same(client: openai.OpenAI) -> None:
    with client.chat.completions.stream(**ASKED, extra_body=says(SAID)) as stream:
        deltas = [event.chunk.choices[0].delta for event in stream if event.type == "chunk"]
        whole = stream.get_final_completion().choices[0]
    assert "".join((delta.model_extra or {}).get("reasoning_content") or "" for delta in deltas) == "hm, so"
    assert whole.message.content == "See:" and whole.finish_reason == "tool_calls"
    [call] = whole.message.tool_calls or []
    assert call.function.name == "f" and json.loads(call.function.arguments) == {"a": [1, "x"]}


def test_a_broken_call_is_content_and_without_tools_nothing_is_a_call(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(**ASKED, extra_body=says(BROKEN)).choices[0]
    assert answer.message.content == BROKEN and answer.message.tool_calls is None
    assert answer.finish_reason == "stop"
    none = client.chat.completions.create(**ASKED, tool_choice="none", extra_body=says(SAID)).choices[0]
    assert none.message.content == SAID.partition("</think>\n\n")[2] and none.message.tool_calls is None


def test_responses_have_items_whole_and_streamed(client: openai.OpenAI) -> None:
    asked: dict[str, Any] = {
        "model": "demo", "input": "O Romeo?", "max_output_tokens": 250,
        "tools": [{"type": "function", "name": "f", "parameters": PARAMETERS, "strict": None}],
    }  # fmt: skip
    whole = client.responses.create(**asked, extra_body=says(SAID))
    with client.responses.stream(**asked, extra_body=says(SAID)) as stream:
        kinds = [event.type for event in stream]
        streamed = stream.get_final_response()
    for answer in (whole, streamed):
        assert [item.type for item in answer.output] == ["reasoning", "message", "function_call"]
        reasoning, _, call = answer.output
        assert reasoning.type == "reasoning" and (reasoning.content or [])[0].text == "hm, so"
        assert answer.output_text == "See:" and answer.status == "completed"
        assert call.type == "function_call" and json.loads(call.arguments) == {"a": [1, "x"]}
        assert answer.usage is not None and answer.usage.output_tokens_details.reasoning_tokens > 0
    assert "response.function_call_arguments.delta" in kinds and "response.reasoning_text.delta" in kinds
    items: list[Any] = [{"role": "user", "content": "O Romeo?"}, *whole.output]
    items.append({"type": "function_call_output", "call_id": whole.output[2].call_id, "output": "3"})  # type: ignore[union-attr]
    assert client.responses.create(**{**asked, "input": items, "max_output_tokens": 1}).output


@pytest.fixture
def claude(stack: Stack) -> Iterator[anthropic.Anthropic]:
    with anthropic.Anthropic(base_url=stack.url, api_key="none", max_retries=0, timeout=120) as client:
        yield client


def test_messages_have_blocks_whole_and_streamed(claude: anthropic.Anthropic) -> None:
    asked: dict[str, Any] = {
        "model": "demo", "max_tokens": 250, "messages": MESSAGES,
        "tools": [{"name": "f", "input_schema": PARAMETERS}], "thinking": {"type": "enabled", "budget_tokens": 1024},
    }  # fmt: skip
    whole = claude.messages.create(**asked, extra_body=says(SAID))
    with claude.messages.stream(**asked, extra_body=says(SAID)) as stream:
        streamed = stream.get_final_message()
    for answer in (whole, streamed):
        thought, text, call = answer.content
        assert thought.type == "thinking" and thought.thinking == "hm, so"
        assert text.type == "text" and text.text == "See:"
        assert call.type == "tool_use" and call.name == "f" and call.input == {"a": [1, "x"]}
        assert answer.stop_reason == "tool_use"
    given = {"role": "user", "content": [{"type": "tool_result", "tool_use_id": whole.content[2].id, "content": "3"}]}  # type: ignore[union-attr]
    talk: list[Any] = [*MESSAGES, {"role": "assistant", "content": whole.content}, given]
    assert claude.messages.create(**{**asked, "messages": talk, "max_tokens": 1}).content
