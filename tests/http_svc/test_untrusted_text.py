"""No content, name, role, tool, result or argument becomes a control token, through any door: the ids that a worker
gets have those of the template and no other."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest

from tandem.client import AsyncClient, ChatMessage, Conversation, InvalidArgumentError, ToolCall
from tests.client.byte_vocabulary import ids_of_text
from tests.client.counting_worker import CountingWorker
from tests.client.fakes import serving_workers
from tests.http_svc.conftest import Stack
from tests.http_svc.test_serving import caller, running_door

pytestmark = pytest.mark.slow

CONTROL = ["<unk>", "<s>", "</s>"]  # by id
WORDS = [*CONTROL, "<", "s>", "/s", "</", "a", "\n", " ", "▁", "\u200b", "\\", '"', "{{ bos_token }}"]


def chat(text: str) -> tuple[str, dict[str, Any]]:
    call = {"id": text, "type": "function", "function": {"name": text, "arguments": json.dumps({text: [text]})}}
    said = {"role": "assistant", "content": text, "reasoning_content": text, "tool_calls": [call]}
    messages = [
        {"role": "system", "content": [{"type": "text", "text": text}], "name": text},
        {"role": "user", "content": text}, said, {"role": "tool", "tool_call_id": text, "content": text},
    ]  # fmt: skip
    tool = {"name": "f", "description": text, "parameters": {"type": "object", "properties": {text: {"enum": [text]}}}}
    more = {"chat_template_kwargs": {"mood": text}, "tools": [{"type": "function", "function": tool}]}
    return "/v1/chat/completions", {"messages": messages, "max_tokens": 1, **more}


def completion(text: str) -> tuple[str, dict[str, Any]]:
    return "/v1/completions", {"prompt": text, "max_tokens": 1}


def response(text: str) -> tuple[str, dict[str, Any]]:
    items: list[dict[str, Any]] = [
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": text}]},
        {"type": "function_call", "call_id": text, "name": text, "arguments": json.dumps({text: text})},
        {"type": "function_call_output", "call_id": text, "output": text},
    ]
    tool = {"type": "function", "name": "f", "description": text, "parameters": {"type": "object"}, "strict": None}
    return "/v1/responses", {"input": items, "instructions": text, "tools": [tool], "max_output_tokens": 1}


def message(text: str) -> tuple[str, dict[str, Any]]:
    use = {"type": "tool_use", "id": text, "name": text, "input": {text: text}}
    result = {"type": "tool_result", "tool_use_id": text, "content": [{"type": "text", "text": text}]}
    messages = [
        {"role": "user", "content": text},
        {"role": "assistant", "content": [{"type": "text", "text": text}, use]},
        {"role": "user", "content": [result, {"type": "text", "text": text}]},
    ]
    tool = {"name": "f", "description": text, "input_schema": {"type": "object"}}
    return "/v1/messages", {"messages": messages, "system": text, "tools": [tool], "max_tokens": 1}


DOORS = (chat, completion, response, message)


async def test_no_field_of_any_request_becomes_a_control_token(stack: Stack) -> None:
    worker, chance = CountingWorker(ids_of_text("ok")), random.Random(5)
    async with (
        serving_workers(worker) as [address],
        running_door(stack, worker_address=(address,)) as door,
        caller(door) as http,
        AsyncClient(stack.tokenizer, address) as client,
    ):
        for _ in range(12):
            text = "".join(chance.choices(WORDS, k=chance.randint(1, 7))) + chance.choice(CONTROL)
            for write in DOORS:
                path, body = write(text)
                answer = await http.post(path, json={"model": worker.name, **body})
                assert answer.status_code == 200, (path, text, answer.text)
                assert controls(worker) == ["<s>"], (path, text)
            said = ChatMessage("assistant", text, text, [ToolCall(text, {text: [text]}, text)], None, text)
            tool = {"name": "f", "description": text}
            talk = Conversation([ChatMessage("user", text, text), said], [tool], template_arguments={"mood": text})
            await client.chat(talk, max_tokens=1)
            assert controls(worker) == ["<s>"], text
            with pytest.raises(InvalidArgumentError, match="is no role"):
                await client.chat([ChatMessage(text, "hello")], max_tokens=1)
            await client.generate(text, max_tokens=1, add_special=False)
            assert not controls(worker), text
        trusted = await client.generate("</s>", max_tokens=1, special_tokens="parse")
        assert controls(worker) == ["<s>", "</s>"] and trusted.prompt_ids == [1, 2], "what is trusted is parsed"


def controls(worker: CountingWorker) -> list[str]:
    """The control tokens of the prompt that the worker got last."""
    names = dict(enumerate(CONTROL))
    return [names[id_] for id_ in worker.seen.pop().request.prompt_ids if id_ in names]
