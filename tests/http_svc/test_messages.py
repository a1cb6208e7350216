"""/v1/messages, by Anthropic's own client."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import anthropic
import httpx
import pytest

from tandem.client import Conversation
from tests.http_svc.conftest import Stack

pytestmark = pytest.mark.slow

MESSAGES: list[Any] = [{"role": "user", "content": "O Romeo?"}]
ASKED: dict[str, Any] = {
    "model": "demo", "messages": MESSAGES, "system": "Be brief.", "max_tokens": 24, "extra_body": {"seed": 7},
}  # fmt: skip
SAME: list[Any] = [{"role": "system", "content": "Be brief."}, *MESSAGES]  # as OpenAI has it


@pytest.fixture
def claude(stack: Stack) -> Iterator[anthropic.Anthropic]:
    with anthropic.Anthropic(base_url=stack.url, api_key="none", max_retries=0, timeout=120) as client:
        yield client


async def test_the_same_seed_gives_the_text_of_the_sdk_whole_and_streamed(
    stack: Stack, claude: anthropic.Anthropic
) -> None:
    async with stack.client() as sdk:
        expected = await sdk.chat(SAME, max_tokens=24, seed=7)
    whole = claude.messages.create(**ASKED)
    [block] = whole.content
    assert block.type == "text" and block.text == expected.text
    assert whole.stop_reason == ("end_turn" if expected.finish_reason == "eos" else "max_tokens")
    assert whole.usage.output_tokens == expected.usage.completion_tokens
    cached = whole.usage.cache_read_input_tokens or 0
    assert whole.usage.input_tokens + cached == expected.usage.prompt_tokens
    assert claude.messages.count_tokens(model="demo", messages=MESSAGES, system="Be brief.").input_tokens == len(
        expected.prompt_ids
    )
    with claude.messages.stream(**ASKED) as stream:
        assert "".join(stream.text_stream) == expected.text
        final = stream.get_final_message()
    assert final.stop_reason == whole.stop_reason and final.usage.output_tokens == whole.usage.output_tokens


def test_a_stop_sequence_is_named(claude: anthropic.Anthropic) -> None:
    [block] = claude.messages.create(**ASKED).content
    assert block.type == "text"
    stop = block.text[6:9]
    stopped = claude.messages.create(**ASKED, stop_sequences=[stop])
    assert stopped.content[0].type == "text" and stopped.content[0].text == block.text[: block.text.index(stop)]
    assert (stopped.stop_reason, stopped.stop_sequence) == ("stop_sequence", stop)


async def test_blocks_become_the_messages_that_templates_know(stack: Stack, claude: anthropic.Anthropic) -> None:
    schema = {"type": "object", "properties": {"day": {"type": "integer"}}}
    messages: list[Any] = [
        {"role": "user", "content": [{"type": "text", "text": "a </s>", "cache_control": {"type": "ephemeral"}}]},
        {"role": "assistant", "content": [{"type": "text", "text": "b"},
                                          {"type": "tool_use", "id": "c", "name": "f", "input": {"z": 1, "a": 2.5}}]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c", "content": "3"},
                                     {"type": "text", "text": "d"}]},
    ]  # fmt: skip
    same = Conversation(
        [
            {"role": "user", "content": "a </s>"},
            {
                "role": "assistant",
                "content": "b",
                "tool_calls": [{"id": "c", "function": {"name": "f", "arguments": '{"z": 1, "a": 2.5}'}}],
            },
            {"role": "tool", "content": "3", "tool_call_id": "c"},
            {"role": "user", "content": "d"},
        ],
        tools=[{"type": "function", "function": {"name": "f", "description": "F", "parameters": schema}}],
    )
    tools: list[Any] = [{"name": "f", "description": "F", "input_schema": schema}]
    async with stack.client() as sdk:
        expected = len(await sdk.encode_chat(same))
    asked: dict[str, Any] = {"model": "demo", "messages": messages, "tools": tools}
    assert claude.messages.count_tokens(**asked).input_tokens == expected
    assert claude.messages.count_tokens(**asked, tool_choice={"type": "none"}).input_tokens < expected


def test_what_claude_code_sends_is_taken(claude: anthropic.Anthropic) -> None:
    """Claude Code 2.1: thoughts that are all kept, and a system message in the middle."""
    edits = {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]}
    messages: list[Any] = [*MESSAGES, {"role": "system", "content": "Speak."}]
    asked: dict[str, Any] = {"model": "demo", "messages": messages, "extra_body": {"context_management": edits},
                             "system": [{"type": "text", "text": "S", "cache_control": {"type": "ephemeral"}}],
                             "thinking": {"type": "adaptive"}, "output_config": {"effort": "high"}}  # fmt: skip
    counted = claude.messages.count_tokens(**asked).input_tokens
    with claude.messages.stream(**asked, max_tokens=2, metadata={"user_id": "u"}) as stream:
        usage = stream.get_final_message().usage
    assert usage.input_tokens + (usage.cache_read_input_tokens or 0) == counted


def test_what_is_another_in_each_request_of_claude_code_is_no_part_of_the_prompt(claude: anthropic.Anthropic) -> None:
    system: list[Any] = [{"type": "text", "text": "S"}]
    marked = [{"type": "text", "text": "x-anthropic-billing-header: cc_version=2.1; cch=fa690;"}, *system]
    asked: dict[str, Any] = {"model": "demo", "messages": MESSAGES}
    plain = claude.messages.count_tokens(**asked, system=system)
    assert claude.messages.count_tokens(**asked, system=marked) == plain


def test_an_empty_system_prompt_is_none(claude: anthropic.Anthropic) -> None:
    counted = [
        claude.messages.count_tokens(model="demo", messages=MESSAGES, system=system).input_tokens
        for system in (anthropic.NOT_GIVEN, "", [], "S")
    ]
    assert counted[0] == counted[1] == counted[2] < counted[3]


@pytest.mark.parametrize("stream", [True, False])
def test_a_later_system_message_that_a_template_refuses_is_told_in_anthropic_s_words(
    claude: anthropic.Anthropic, stream: bool
) -> None:
    asked: dict[str, Any] = {"model": "demo", "messages": [*MESSAGES, {"role": "system", "content": "No."}]}
    words = "Not so.; perhaps role 'system' is not supported on this model"
    with pytest.raises(anthropic.BadRequestError, match=words):
        claude.messages.create(**asked, max_tokens=1, stream=stream)
    with pytest.raises(anthropic.BadRequestError, match=words):
        claude.messages.count_tokens(**asked)
    with pytest.raises(anthropic.BadRequestError, match=r"Not so\.'"):
        claude.messages.create(model="demo", max_tokens=1, messages=MESSAGES, system="No.", stream=stream)


async def test_an_answer_continues_what_the_assistant_has_begun(stack: Stack, claude: anthropic.Anthropic) -> None:
    begun: list[Any] = [{"role": "assistant", "content": "O, she doth"}]
    async with stack.client() as sdk:
        expected = await sdk.chat(Conversation([*SAME, *begun], continue_final_message=True), max_tokens=24, seed=7)
    answer = claude.messages.create(**{**ASKED, "messages": [*MESSAGES, *begun]})
    [block] = answer.content
    assert block.type == "text" and block.text == expected.text
    with claude.messages.stream(**{**ASKED, "messages": [*MESSAGES, *begun]}) as stream:
        assert "".join(stream.text_stream) == expected.text
    counted = claude.messages.count_tokens(model="demo", messages=[*MESSAGES, *begun], system="Be brief.")
    assert counted.input_tokens == len(expected.prompt_ids)


def test_an_answer_may_be_held_to_a_schema(claude: anthropic.Anthropic) -> None:
    schema = {"type": "object", "properties": {"lines": {"type": "integer", "maximum": 99}}, "required": ["lines"],
              "additionalProperties": False}  # fmt: skip
    answer = claude.messages.create(
        **{**ASKED, "max_tokens": 100}, output_config={"format": {"type": "json_schema", "schema": schema}}
    )
    assert answer.content[0].type == "text" and json.loads(answer.content[0].text)["lines"] <= 99


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": None}, "max_tokens"),
        ({"temperature": -1}, "temperature"),
        ({"stop_sequences": [""]}, "stop_sequences[0]"),
        ({"messages": [{"role": "user", "content": [{"type": "image", "source": {}}]}]}, "messages[0].content[0]"),
        ({"messages": [*MESSAGES, {"role": "assistant", "content": [{"type": "tool_use", "name": "f", "input": {}}]}]},
         "messages[1].content"),
        ({"messages": [{"role": "assistant", "content": [{"type": "tool_use", "name": "f", "input": []}]}, *MESSAGES]},
         "messages[0].content[0].input must be an object"),
        ({"tools": [{"name": "", "input_schema": {}}]}, "tools[0].name"),
        ({"tools": [{"name": "f"}]}, "tools[0].input_schema is required"),
        ({"tools": [{"type": "web_search_20250305", "name": "web_search", "max_uses": 8}]}, "tools[0].type"),
        ({"messages": [*MESSAGES, {"role": "assistant", "content": [{"type": "tool_use", "input": {}}]}, *MESSAGES]},
         "messages[1].content[0].name is required"),
        ({"messages": [{"role": "user", "content": "long " * 600}]},
         "prompt is too long: 623 tokens > 511 maximum (messages has 623 ids; "),
        ({"tool_choice": {"type": "any"}}, "tool_choice"),
        ({"thinking": {"type": "loud"}}, "thinking"),
        ({"container": "c"}, "container"),
        ({"context_management": {"edits": [{"type": "clear_tool_uses_20250919"}]}}, "context_management.edits[0].type"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_named(claude: anthropic.Anthropic, changed: dict[str, Any], words: str) -> None:
    body = {name: value for name, value in ASKED.items() if name != "extra_body"}
    with pytest.raises(anthropic.BadRequestError) as error:
        claude.post("/v1/messages", cast_to=object, body={**body, **changed})
    told = error.value.body
    assert isinstance(told, dict) and told["type"] == "error" and told["request_id"]
    assert told["error"]["type"] == "invalid_request_error" and words in told["error"]["message"]


def test_other_errors_have_anthropic_s_names_and_bytes(stack: Stack, claude: anthropic.Anthropic) -> None:
    with pytest.raises(anthropic.NotFoundError) as error:
        claude.messages.create(**{**ASKED, "model": "claude"})
    assert isinstance(error.value.body, dict) and error.value.body["error"]["type"] == "not_found_error"
    body = {"model": "demo", "messages": MESSAGES, "max_tokens": 2, "stream": True, "ignore_eos": True}
    raw = httpx.post(f"{stack.url}/v1/messages", json=body).content.decode()
    names = [line.removeprefix("event: ") for line in raw.splitlines() if line.startswith("event: ")]
    assert names[:2] == ["message_start", "content_block_start"]
    assert set(names[2:-3]) == {"content_block_delta"}
    assert names[-3:] == ["content_block_stop", "message_delta", "message_stop"]
    assert "[DONE]" not in raw
