"""Reasoning and calls of tools through all three interfaces, by OpenAI's and Anthropic's own clients.

The model is made to say a text by a guide; all else is as with a model that says it by itself.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import anthropic
import jsonschema
import openai
import pytest

from tests.client.test_terminal_chat import chat
from tests.http_svc.conftest import TEMPLATE, Stack, serving

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


def test_an_event_has_one_part_of_a_call(client: openai.OpenAI) -> None:
    said = SAID.replace('{"a": [1, "x"]}', '{"city": "x"}')
    tool: Any = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}, "strict": True}}
    with client.chat.completions.stream(**{**ASKED, "tools": [tool]}, extra_body=says(said)) as stream:
        deltas = [event.chunk.choices[0].delta for event in stream if event.type == "chunk"]
        [call] = stream.get_final_completion().choices[0].message.tool_calls or []
    assert all(len(delta.tool_calls or []) <= 1 for delta in deltas)
    assert json.loads(call.function.arguments) == {"city": "x"}


def test_an_answer_comes_back_as_a_client_has_it(client: openai.OpenAI) -> None:
    strict: Any = {"type": "function", "function": {"name": "f", "parameters": PARAMETERS, "strict": True}}
    asked: dict[str, Any] = {**ASKED, "tools": [strict]}
    parsed = client.chat.completions.parse(**asked, extra_body=says(SAID)).choices[0].message
    with client.chat.completions.stream(**asked, extra_body=says(SAID)) as stream:
        streamed = stream.get_final_completion().choices[0].message
    for message in (parsed, streamed, streamed.model_dump()):
        body = message if isinstance(message, dict) else message.model_dump(exclude_unset=True)
        gave = {"role": "tool", "tool_call_id": body["tool_calls"][0]["id"], "content": "3"}
        talk: list[Any] = [*MESSAGES, message, gave]
        assert client.chat.completions.create(**{**asked, "messages": talk, "max_tokens": 1}).choices
    items: list[Any] = [{"type": "function", "name": "f", "parameters": PARAMETERS, "strict": True}]
    told: dict[str, Any] = {"model": "demo", "tools": items}
    answer = client.responses.parse(**told, input="O?", max_output_tokens=250, extra_body=says(SAID))
    for output in (answer.output, answer.model_dump(by_alias=True)["output"]):
        again: list[Any] = [{"role": "user", "content": "O?"}, *output]
        assert client.responses.create(**told, input=again, max_output_tokens=1).output


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


# --- calls that the answer has to make; the demo model would make none

CITY: dict[str, Any] = {
    "type": "object",
    "properties": {"city": {"enum": ["Rome", "Verona"]}, "days": {"type": "integer", "minimum": 0, "maximum": 9}},
    "required": ["city", "days"],
    "additionalProperties": False,
}
EMPTY: dict[str, Any] = {"type": "object", "properties": {}, "additionalProperties": False}
FUNCTIONS: dict[str, dict[str, Any]] = {"look_up": CITY, "stop": EMPTY}
CHAT_TOOLS: list[Any] = [
    {"type": "function", "function": {"name": name, "parameters": each}} for name, each in FUNCTIONS.items()
]
NAMED: Any = {"type": "function", "function": {"name": "look_up"}}


def check_calls(calls: list[tuple[str, str]], names: set[str]) -> None:
    """Each is one of these, with arguments that its schema allows."""
    assert calls
    for name, arguments in calls:
        assert name in names
        jsonschema.validate(json.loads(arguments), FUNCTIONS[name])


def test_a_chat_calls_what_it_must(client: openai.OpenAI) -> None:
    asked: dict[str, Any] = {**ASKED, "tools": CHAT_TOOLS, "parallel_tool_calls": False, "seed": 1}
    for choice, names in (("required", {"look_up", "stop"}), (NAMED, {"look_up"})):
        if choice == "required":
            told = client.chat.completions.create(**asked, tool_choice=choice).choices[0]
        else:
            with client.chat.completions.stream(**asked, tool_choice=choice) as stream:
                told = stream.get_final_completion().choices[0]
        calls = [(call.function.name, call.function.arguments) for call in told.message.tool_calls or []]
        check_calls(calls, names)
        assert len(calls) == 1 and told.finish_reason == "tool_calls" and not told.message.content


def test_a_tool_that_is_named_is_called_once(client: openai.OpenAI, claude: anthropic.Anthropic) -> None:
    responses: list[Any] = [{"type": "function", "strict": None, "name": "look_up", "parameters": CITY}]
    blocks: list[Any] = [{"name": "look_up", "input_schema": CITY}]
    for seed in range(3):
        more = {"extra_body": {"seed": seed}}
        told = client.chat.completions.create(**{**ASKED, "tools": CHAT_TOOLS}, tool_choice=NAMED, **more).choices[0]
        answer = client.responses.create(
            model="demo", input="O Romeo?", max_output_tokens=250, tools=responses, parallel_tool_calls=True,
            tool_choice={"type": "function", "name": "look_up"}, **more,
        )  # fmt: skip
        said = claude.messages.create(
            model="demo", max_tokens=250, messages=MESSAGES, tools=blocks,
            tool_choice={"type": "tool", "name": "look_up"}, **more,
        )  # fmt: skip
        assert (said.stop_reason, told.finish_reason) == ("tool_use", "tool_calls")
        for calls in (told.message.tool_calls, answer.output, said.content):
            assert calls is not None and len(calls) == 1


def test_strict_tools_are_held_to_their_schemas_in_a_free_answer(client: openai.OpenAI) -> None:
    strict = [{**tool, "function": {**tool["function"], "strict": True}} for tool in CHAT_TOOLS]
    begins = {"guided": {"regex": "(?s).*"}}
    free = client.chat.completions.create(**{**ASKED, "tools": strict, "max_tokens": 8, "seed": 1})
    assert free.choices[0].finish_reason == "length" and free.choices[0].message.content
    with pytest.raises(openai.BadRequestError, match="guided"):
        client.chat.completions.create(**ASKED, tool_choice="required", extra_body=begins)


def test_responses_and_messages_call_what_they_must(client: openai.OpenAI, claude: anthropic.Anthropic) -> None:
    tools: list[Any] = [{"type": "function", "name": n, "parameters": p, "strict": None} for n, p in FUNCTIONS.items()]
    one: Any = {"type": "function", "name": "look_up"}
    allowed: Any = {"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": "stop"}]}
    for choice, names in (("required", set(FUNCTIONS)), (one, {"look_up"}), (allowed, {"stop"})):
        answer = client.responses.create(
            model="demo", input="O Romeo?", max_output_tokens=250, tools=tools, tool_choice=choice,
            parallel_tool_calls=False,
        )  # fmt: skip
        check_calls([(item.name, item.arguments) for item in answer.output if item.type == "function_call"], names)
        told = answer.model_dump(exclude_unset=True)
        assert told["tool_choice"] == choice and told["parallel_tool_calls"] is False
        assert [(tool["name"], tool["parameters"]) for tool in told["tools"]] == list(FUNCTIONS.items())
    blocks: list[Any] = [{"name": name, "input_schema": schema} for name, schema in FUNCTIONS.items()]
    chosen: list[tuple[Any, set[str]]] = [
        ({"type": "any", "disable_parallel_tool_use": True}, set(FUNCTIONS)),
        ({"type": "tool", "name": "look_up"}, {"look_up"}),
    ]
    for choice, names in chosen:
        said = claude.messages.create(model="demo", max_tokens=250, messages=MESSAGES, tools=blocks, tool_choice=choice)
        check_calls([(each.name, json.dumps(each.input)) for each in said.content if each.type == "tool_use"], names)
        assert said.stop_reason in ("tool_use", "max_tokens")


def test_a_call_that_has_to_be_made_needs_no_format(client: openai.OpenAI, claude: anthropic.Anthropic) -> None:
    """As instructor asks for it in its mode for responses; what forms the text of an answer without one is nothing."""
    form = {"type": "json_schema", "name": "n", "schema": CITY}
    answer = client.responses.create(
        model="demo", input="O?", max_output_tokens=250, text={"format": form},  # type: ignore[arg-type]
        tools=[{"type": "function", "name": "stop", "parameters": EMPTY, "strict": None}],
        tool_choice={"type": "function", "name": "stop"},
    )  # fmt: skip
    assert [item.type for item in answer.output] == ["function_call"]
    asked: dict[str, Any] = {**ASKED, "tools": CHAT_TOOLS, "parallel_tool_calls": False, "tool_choice": "required"}
    told = client.chat.completions.create(**asked, response_format={"type": "json_object"}).choices[0].message
    check_calls([(call.function.name, call.function.arguments) for call in told.tool_calls or []], set(FUNCTIONS))
    said = claude.messages.create(
        model="demo", max_tokens=250, messages=MESSAGES, tools=[{"name": "stop", "input_schema": EMPTY}],
        tool_choice={"type": "tool", "name": "stop"}, output_config={"format": {"type": "json_schema", "schema": CITY}},
    )  # fmt: skip
    assert [block.type for block in said.content] == ["tool_use"]


def begins(stack: Stack, text: str) -> dict[str, Any]:
    """Makes a model that may begin so do it."""
    last = stack.post("/tokenize", prompt=f"\n{text}")["tokens"][-1]
    return {"logit_bias": {str(last): 40}}


def test_beside_a_format_a_tool_is_called_or_the_answer_is_in_it(
    stack: Stack, client: openai.OpenAI, claude: anthropic.Anthropic
) -> None:
    record = {
        "type": "object",
        "properties": {"sure": {"type": "boolean"}},
        "required": ["sure"],
        "additionalProperties": False,
    }
    word = {"type": "object", "properties": {"b": {"enum": ["x"]}}, "required": ["b"], "additionalProperties": False}
    strict: Any = {"type": "function", "function": {"name": "f", "parameters": word, "strict": True}}
    named: Any = {"type": "json_schema", "json_schema": {"name": "r", "schema": record, "strict": True}}
    asked: dict[str, Any] = {**ASKED, "max_tokens": 200, "tools": [strict], "seed": 1, "parallel_tool_calls": False}
    for text in ("<", "{"):
        body = begins(stack, text)
        message = client.chat.completions.create(**asked, response_format=named, extra_body=body).choices[0].message
        with client.chat.completions.stream(**asked, response_format=named, extra_body=body) as stream:
            for _ in stream:
                pass
            streamed = stream.get_final_completion().choices[0].message
        assert (streamed.content or "") == (message.content or "")
        if text == "<":
            [call, *_] = message.tool_calls or []
            assert not message.content and json.loads(call.function.arguments) == {"b": "x"}
            assert [each.function.arguments for each in streamed.tool_calls or []] == [
                each.function.arguments for each in message.tool_calls or []
            ]
        else:
            assert not message.tool_calls and json.loads(message.content or "").keys() == {"sure"}
        response = client.responses.create(
            model="demo", input=MESSAGES, max_output_tokens=200, extra_body={**body, "seed": 1},
            parallel_tool_calls=False,
            tools=[{"type": "function", "name": "f", "parameters": word, "strict": True}],
            text={"format": {"type": "json_schema", "name": "r", "schema": record, "strict": True}},
        )  # fmt: skip
        kinds = {item.type for item in response.output}
        assert kinds == ({"function_call"} if text == "<" else {"message"})
        told = claude.messages.create(
            model="demo", messages=MESSAGES, max_tokens=200, extra_body={**body, "seed": 1},
            tools=[{"name": "f", "input_schema": word, "strict": True}],
            output_config={"format": {"type": "json_schema", "schema": record}},
            tool_choice={"type": "auto", "disable_parallel_tool_use": True},
        )  # fmt: skip
        assert {block.type for block in told.content} == ({"tool_use"} if text == "<" else {"text"})


def test_a_terminal_chat_shows_calls_and_takes_what_they_gave(stack: Stack, tmp_path: Path) -> None:
    tool, saved = tmp_path / "tools.json", tmp_path / "talk.json"
    bounded = {
        "type": "object",
        "properties": {"n": {"enum": [1, 2]}},
        "required": ["n"],
        "additionalProperties": False,
    }
    tool.write_text(json.dumps([{"type": "function", "function": {"name": "f", "parameters": bounded}}]))
    addresses: Any = SimpleNamespace(tokenizer_address=stack.tokenizer, worker_address=stack.worker)
    with chat(addresses, tmp_path) as terminal:
        terminal.say(f"/tools {tool}", "tools: f")
        terminal.say("/params tool_choice='[\"f\"]' parallel_tool_calls=false max_tokens=250", "tool_choice=")
        terminal.say("O Romeo?", "what does f give?")
        terminal.say("/params tool_choice= parallel_tool_calls= max_tokens=4 ignore_eos=true", "max_tokens=4")
        terminal.say("seven", "4 tokens")
        terminal.say(f"/save {saved}", "4 messages")
        terminal.say("/clear", "is empty")
        terminal.say(f"/load {saved}", "4 messages")
        assert terminal.leave() == 0
    asked, called, gave, answer = json.loads(saved.read_text())["messages"]
    [call] = called["tool_calls"]
    assert "calls f({" in terminal.shown
    assert asked == {"role": "user", "content": "O Romeo?"} and call["function"]["name"] == "f"
    assert gave == {"role": "tool", "content": "seven", "name": "f", "tool_call_id": call["id"]}
    assert answer["role"] == "assistant"


def test_choices_that_cannot_be_made_are_named(client: openai.OpenAI) -> None:
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"tool_choice": "required", "tools": openai.NOT_GIVEN}, "tool_choice"),
        ({"tool_choice": {"type": "function", "function": {"name": "g"}}}, "tool_choice"),
        ({"tool_choice": {"type": "custom"}}, "tool_choice"),
        ({"tool_choice": "any"}, "tool_choice"),
        ({"extra_body": {"max_reasoning_tokens": 5}}, "max_reasoning_tokens"),
    ]
    for asked, param in wrong:
        with pytest.raises(openai.BadRequestError) as refused:
            client.chat.completions.create(**{**ASKED, **asked})
        assert str(refused.value.param).startswith(param), refused.value


def test_a_structural_tag_holds_what_a_trigger_begins(client: openai.OpenAI) -> None:
    structures = [{"begin": "<city>", "schema": CITY["properties"]["city"], "end": "</city>"}]
    tag = {"begin": "<city>", "content": {"json_schema": structures[0]["schema"]}, "end": "</city>"}
    at_once = {"type": "triggered_tags", "triggers": ["<city>"], "at_least_one": True, "stop_after_first": True,
               "tags": [tag]}  # fmt: skip
    asked = {name: value for name, value in ASKED.items() if name != "tools"}
    once: dict[str, Any] = {"format": at_once}
    for told in (once, {"structures": structures, "triggers": ["<city>"]}):
        body = {"response_format": {"type": "structural_tag", **told}}
        answer = client.chat.completions.create(**{**asked, "max_tokens": 40}, extra_body=body).choices[0]
        if told is once:
            assert answer.message.content in ('<city>"Rome"</city>', '<city>"Verona"</city>')
        assert answer.message.content
    with pytest.raises(openai.BadRequestError, match="response_format"):
        client.chat.completions.create(**asked, extra_body={"response_format": {"type": "structural_tag"}})


# --- a format whose reasoning has a label and whose calls are no JSON


@pytest.fixture(scope="module")
def gemma4(tmp_path_factory: pytest.TempPathFactory, repository: Path) -> Iterator[openai.OpenAI]:
    template = TEMPLATE.replace("<tool_call>", "<|turn>")
    with serving(tmp_path_factory.mktemp("gemma4"), repository / "models" / "demo", template) as running:
        yield openai.OpenAI(base_url=running.base_url, api_key="none", max_retries=0, timeout=120)


def test_gemma_4s_thought_and_calls_are_told(gemma4: openai.OpenAI) -> None:
    said = '<|channel>thought\nhm, so<channel|>See:<|tool_call>call:f{a:[1,<|"|>x<|"|>]}<tool_call|>'
    answer = gemma4.chat.completions.create(**ASKED, extra_body=says(said))
    [choice] = answer.choices
    assert choice.finish_reason == "tool_calls" and choice.message.content == "See:"
    assert choice.message.model_extra == {"reasoning_content": "hm, so"}
    with gemma4.chat.completions.stream(**ASKED, extra_body=says(said)) as stream:
        streamed = stream.get_final_completion().choices[0]
    for message in (choice.message, streamed.message):
        [call] = message.tool_calls or []
        assert call.function.name == "f" and json.loads(call.function.arguments) == {"a": [1, "x"]}
    none = gemma4.chat.completions.create(**{**ASKED, "tools": openai.omit}, extra_body=says(said)).choices[0]
    assert none.message.content == said.partition("<channel|>")[2] and none.message.tool_calls is None


def test_a_call_that_gemma_4_has_to_make_is_made(gemma4: openai.OpenAI) -> None:
    asked: dict[str, Any] = {**ASKED, "tools": CHAT_TOOLS, "tool_choice": "required", "parallel_tool_calls": False}
    answer = gemma4.chat.completions.create(**asked).choices[0]
    calls = [(call.function.name, call.function.arguments) for call in answer.message.tool_calls or []]
    check_calls(calls, set(FUNCTIONS))
