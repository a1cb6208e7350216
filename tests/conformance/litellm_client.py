"""LiteLLM: chat, streams, tools, a format, completions, responses, Anthropic's interface, errors."""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

import litellm

URL = sys.argv[1]
MESSAGES = [{"role": "user", "content": "O Romeo?"}]
BASE: dict[str, Any] = {"model": "openai/demo", "api_base": f"{URL}/v1", "api_key": "none", "max_tokens": 16}
SCHEMA = {
    "type": "object",
    "properties": {"n": {"type": "integer", "minimum": 0, "maximum": 9}},
    "required": ["n"],
    "additionalProperties": False,
}
TOOL = {"type": "function", "function": {"name": "count", "parameters": SCHEMA}}
FORMAT = {"type": "json_schema", "json_schema": {"name": "count", "schema": SCHEMA, "strict": True}}

said = litellm.completion(messages=MESSAGES, **BASE)
assert said.choices[0].message.content and said.usage.completion_tokens
streamed = list(litellm.completion(messages=MESSAGES, stream=True, stream_options={"include_usage": True}, **BASE))
# Newer ones pass the last chunk on, which has the usage and no choices.
assert "".join(choice.delta.content or "" for chunk in streamed for choice in chunk.choices)
assert streamed[-1].usage.completion_tokens
begun = [*MESSAGES, {"role": "assistant", "content": "O, she doth"}]
continued = litellm.completion(messages=begun, extra_body={"continue_final_message": True}, **BASE)
assert continued.choices[0].message.content and continued.usage.prompt_tokens > said.usage.prompt_tokens
assert asyncio.run(litellm.acompletion(messages=MESSAGES, **BASE)).choices[0].finish_reason in ("stop", "length")

more = {**BASE, "max_tokens": 200}
called = litellm.completion(
    messages=MESSAGES, tools=[TOOL], tool_choice="required", parallel_tool_calls=False, **more
).choices[0]
[call] = called.message.tool_calls
assert call.function.name == "count" and json.loads(call.function.arguments)["n"] in range(10)
formed = litellm.completion(messages=MESSAGES, response_format=FORMAT, **more).choices[0]
assert json.loads(formed.message.content)["n"] in range(10)

text = litellm.text_completion(**{**BASE, "model": "text-completion-openai/demo"}, prompt="ROMEO:")
assert text.choices[0].text
response = litellm.responses(**{**BASE, "max_tokens": None}, input="O Romeo?", max_output_tokens=8)
assert response.status in ("completed", "incomplete")
for messages in (MESSAGES, begun):
    claude = litellm.completion(messages=messages, **{**BASE, "model": "anthropic/demo", "api_base": URL})
    assert claude.choices[0].message.content
try:
    litellm.completion(messages=MESSAGES, **{**BASE, "model": "openai/nobody"})
except litellm.NotFoundError:
    print("litellm: passed")
else:
    raise AssertionError("a model that is not served was answered")
