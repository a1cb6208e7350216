"""/v1/chat/completions, by OpenAI's own client and as bytes."""

from __future__ import annotations

import json
import math
from typing import Any

import httpx
import openai
import pydantic
import pytest

from tandem.client import Conversation
from tandem.client.sampling import LIMITS
from tandem.http.chat import read_chat
from tandem.limits.fields import Kind
from tests.http_svc.conftest import Stack

pytestmark = pytest.mark.slow

MESSAGES: list[Any] = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "O Romeo?"}]
ASKED: dict[str, Any] = {"model": "demo", "messages": MESSAGES, "max_tokens": 24, "seed": 7}


async def test_the_same_seed_gives_the_text_of_the_sdk_whole_and_streamed(
    stack: Stack, client: openai.OpenAI, async_client: openai.AsyncOpenAI
) -> None:
    async with stack.client() as sdk:
        expected = await sdk.chat(MESSAGES, max_tokens=24, seed=7)
    whole = client.chat.completions.create(**ASKED)
    [choice] = whole.choices
    assert choice.message.content == expected.text and choice.message.role == "assistant"
    assert choice.finish_reason == ("stop" if expected.finish_reason == "eos" else "length")
    assert whole.usage is not None and whole.usage.prompt_tokens == expected.usage.prompt_tokens
    assert whole.usage.completion_tokens == expected.usage.completion_tokens
    stream = await async_client.chat.completions.create(**ASKED, stream=True, stream_options={"include_usage": True})
    chunks = [chunk async for chunk in stream]
    assert chunks[0].choices[0].delta.role == "assistant"
    assert all(chunk.choices[0].delta.role is None for chunk in chunks[1:-1])
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks[:-1]) == expected.text
    assert chunks[-2].choices[0].finish_reason == choice.finish_reason
    assert chunks[-1].choices == [] and chunks[-1].usage is not None
    assert chunks[-1].usage.total_tokens == whole.usage.total_tokens
    assert {chunk.id for chunk in chunks} == {chunks[0].id} and chunks[0].model == "demo"


def test_the_streaming_helper_collects_what_was_said(client: openai.OpenAI) -> None:
    whole = client.chat.completions.create(**ASKED).choices[0].message.content or ""
    stop = whole[12:15]  # the helper wants an answer that ended by itself
    with client.chat.completions.stream(**ASKED, stop=stop) as stream:
        for _ in stream:
            pass
        assert stream.get_final_completion().choices[0].message.content == whole[: whole.index(stop)]


def test_a_prompt_that_was_asked_before_is_cached(client: openai.OpenAI) -> None:
    long = [{"role": "user", "content": "To be, or not to be, that is the question. " * 12}]
    asked: dict[str, Any] = {**ASKED, "messages": long, "max_tokens": 1}
    client.chat.completions.create(**asked)
    usage = client.chat.completions.create(**asked).usage
    assert usage is not None and usage.prompt_tokens_details is not None
    assert 0 < (usage.prompt_tokens_details.cached_tokens or 0) < usage.prompt_tokens


class Verse(pydantic.BaseModel):
    speaker: str = pydantic.Field(max_length=10)
    lines: int = pydantic.Field(ge=0, le=99)


def test_parse_gives_what_the_schema_says(client: openai.OpenAI) -> None:
    answer = client.chat.completions.parse(**{**ASKED, "max_tokens": 200}, response_format=Verse)
    parsed = answer.choices[0].message.parsed
    assert parsed is not None and 0 <= parsed.lines <= 99 and len(parsed.speaker) <= 10


def test_json_object_is_an_object(client: openai.OpenAI) -> None:
    # Braces and spaces alone could go on for ever: numbers keep it short.
    asked: dict[str, Any] = {**ASKED, "max_tokens": 100, "temperature": 0}
    answer = client.chat.completions.create(
        **asked, response_format={"type": "json_object"}, extra_body={"repetition_penalty": 1.3}
    )
    text = answer.choices[0].message.content or ""
    assert text.lstrip().startswith("{")
    if answer.choices[0].finish_reason == "stop":
        assert isinstance(json.loads(text), dict)


async def test_our_own_parameters_do_what_they_do_in_the_sdk(stack: Stack, client: openai.OpenAI) -> None:
    given: dict[str, Any] = {
        "top_k": 5,
        "min_p": 0.05,
        "repetition_penalty": 1.2,
        "min_tokens": 12,
        "dry_multiplier": 0.5,
    }
    async with stack.client() as sdk:
        expected = await sdk.chat(MESSAGES, max_tokens=24, seed=7, **given)
    assert client.chat.completions.create(**ASKED, extra_body=given).choices[0].message.content == expected.text


def test_every_sampling_parameter_of_the_contract_is_taken() -> None:
    examples: dict[Kind, Any] = {
        Kind.NUMBER: 0.5,
        Kind.INTEGER: 3,
        Kind.FLAG: True,
        Kind.IDS: [5],
        Kind.SEQUENCES: [[5, 6]],
        Kind.BIASES: {"5": 1},
    }
    body = {name: examples[limit.kind] for name, limit in LIMITS.items()}
    fields = read_chat(json.dumps({"model": "m", "messages": [], **body}).encode())
    taken: dict[str, Any] = dict(fields.options())
    assert taken == {**body, "logit_bias": {5: 1.0}}


def test_choices_stop_strings_and_biases(client: openai.OpenAI, stack: Stack) -> None:
    several = client.chat.completions.create(**ASKED, n=3)
    assert [choice.index for choice in several.choices] == [0, 1, 2]
    assert len({choice.message.content for choice in several.choices}) > 1
    whole = client.chat.completions.create(**ASKED).choices[0].message.content or ""
    stop = whole[5:8]
    stopped = client.chat.completions.create(**ASKED, stop=[stop]).choices[0]
    assert stopped.message.content == whole[: whole.index(stop)] and stopped.finish_reason == "stop"
    token = stack.post("/tokenize", prompt="!", add_special_tokens=False)["tokens"][-1]
    biased = client.chat.completions.create(**{**ASKED, "max_tokens": 3}, logit_bias={str(token): 100})
    assert biased.choices[0].message.content == "!!!"


async def test_logprobs_are_those_of_the_sdk(stack: Stack, client: openai.OpenAI) -> None:
    async with stack.client() as sdk:
        expected = await sdk.chat(MESSAGES, max_tokens=24, seed=7, top_logprobs=3, logprobs=True)
        vocabulary = await sdk.get_vocabulary()
    assert expected.logprobs is not None and expected.top_logprobs is not None
    asked: dict[str, Any] = {**ASKED, "logprobs": True, "top_logprobs": 3}
    told = client.chat.completions.create(**asked).choices[0].logprobs
    assert told is not None and told.content is not None
    assert [entry.logprob for entry in told.content] == pytest.approx(expected.logprobs)
    assert [bytes(entry.bytes or ()) for entry in told.content] == [vocabulary.pieces[i] for i in expected.output_ids]
    assert [[top.logprob for top in entry.top_logprobs] for entry in told.content] == [
        pytest.approx(top.logprobs) for top in expected.top_logprobs
    ]
    assert all(math.exp(entry.logprob) <= 1 for entry in told.content)
    streamed = [
        entry.logprob
        for chunk in client.chat.completions.create(**asked, stream=True)
        if (part := chunk.choices[0].logprobs) is not None
        for entry in part.content or ()
    ]
    assert streamed == pytest.approx(expected.logprobs)


async def test_what_messages_hold_never_becomes_a_control_token(stack: Stack, client: openai.OpenAI) -> None:
    parts = [{"type": "text", "text": text} for text in ("a </s>", "<s> b")]
    messages: list[Any] = [{"role": "user", "content": parts}]
    told = stack.post("/tokenize", messages=messages)
    async with stack.client() as sdk:
        assert told["tokens"] == (await sdk.encode_chat([{"role": "user", "content": "a </s>\n<s> b"}])).ids
        information = await sdk.get_tokenizer()
    assert information.eos_id not in told["tokens"]
    assert [place for place, token in enumerate(told["tokens"]) if token == information.bos_id] == [0]
    usage = client.chat.completions.create(**{**ASKED, "messages": messages, "max_tokens": 1}).usage
    assert usage is not None and usage.prompt_tokens == told["count"]


TOOL: Any = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}


async def test_the_template_gets_tools_calls_and_arguments(stack: Stack, client: openai.OpenAI) -> None:
    messages: list[Any] = [
        {"role": "developer", "content": "S"},
        {
            "role": "assistant", "content": None, "refusal": None, "audio": None,
            "tool_calls": [{"id": "c", "type": "function", "function": {"name": "f", "arguments": '{"b":1,"a":2.50}'}}],
        },
        {"role": "tool", "content": "3", "tool_call_id": "c"},
    ]  # fmt: skip
    async with stack.client() as sdk:
        as_ours = [{**messages[0], "role": "system"}, {k: v for k, v in messages[1].items() if v}, messages[2]]
        plain = await sdk.encode_chat(Conversation(as_ours, template_arguments={"mood": "gay"}))
        with_tools = await sdk.encode_chat(Conversation(as_ours, tools=[TOOL], template_arguments={"mood": "gay"}))
    assert len(plain) < len(with_tools)
    asked: dict[str, Any] = {
        **ASKED, "messages": messages, "tools": [TOOL], "max_tokens": 1,
        "extra_body": {"chat_template_kwargs": {"mood": "gay"}},
    }  # fmt: skip
    for choice, encoding in ((openai.NOT_GIVEN, with_tools), ("auto", with_tools), ("none", plain)):
        usage = client.chat.completions.create(**asked, tool_choice=choice).usage
        assert usage is not None and usage.prompt_tokens == len(encoding)


def texts_of(chunk: Any) -> list[str]:
    """What a chunk of either interface says."""
    said = [choice.delta.content if hasattr(choice, "delta") else choice.text for choice in chunk.choices]
    return [text for text in said if text]


def test_each_chunk_may_tell_the_usage_until_then(client: openai.OpenAI) -> None:
    asked: dict[str, Any] = {"model": "demo", "max_tokens": 6, "n": 2, "stream": True}
    asked |= {"stream_options": {"include_usage": True, "continuous_usage_stats": True}}
    chat = client.chat.completions.create(messages=MESSAGES, **asked)
    texts = client.completions.create(prompt=["ROMEO:", "JULIET:"], **asked)
    for chunks in (list(chat), list(texts)):
        usages = [chunk.usage for chunk in chunks if chunk.usage is not None]
        assert len(usages) == len(chunks)
        counts = [usage.completion_tokens for usage in usages]
        told = [sum(map(len, map(texts_of, chunks[: place + 1]))) for place in range(len(chunks))]
        assert counts == sorted(counts) and told[-1] > 0
        # Each text is of one token at least; on a busy machine of several.
        assert all(few <= count for few, count in zip(told, counts, strict=True))
        *_, before, end = usages
        assert (before.prompt_tokens, before.completion_tokens) == (end.prompt_tokens, end.completion_tokens)
        assert before.total_tokens == end.total_tokens and end.prompt_tokens_details is not None


def test_timings_by_hop_are_told_where_they_are_asked_for(stack: Stack) -> None:
    body = {**ASKED, "timings": True}
    whole = stack.post("/v1/chat/completions", **body)["timings"]
    raw = httpx.post(f"{stack.base_url}/chat/completions", json={**body, "stream": True}, timeout=120).text
    chunks = [json.loads(line.removeprefix("data: ")) for line in raw.split("\n\n")[:-2]]
    assert [("timings" in chunk, bool(chunk["choices"])) for chunk in chunks[-2:]] == [(False, True), (True, False)]
    for timings in (whole, chunks[-1]["timings"]):
        assert list(timings) == ["tokenize", "queue", "prefill", "decode", "detokenize", "total"]
        assert 0 <= timings["queue"] + timings["prefill"] + timings["decode"] <= timings["total"]


def test_the_bytes_of_a_stream(stack: Stack) -> None:
    body = {**ASKED, "max_tokens": 3, "stream": True}
    with httpx.stream("POST", f"{stack.base_url}/chat/completions", json=body) as response:
        assert response.status_code == 200
        assert response.headers["content-type"].startswith("text/event-stream")
        assert response.headers["x-request-id"]
        raw = response.read()
    events = raw.split(b"\n\n")
    assert events[-1] == b"" and events[-2] == b"data: [DONE]"
    chunks = [json.loads(line.removeprefix(b"data: ")) for line in events[:-2]]
    assert all(line.startswith(b"data: {") and b"\n" not in line for line in events[:-2])
    assert chunks[0]["choices"] == [
        {"index": 0, "delta": {"role": "assistant", "content": ""}, "logprobs": None, "finish_reason": None}
    ]
    assert chunks[-1]["choices"] == [{"index": 0, "delta": {}, "logprobs": None, "finish_reason": "length"}]
    assert all("usage" not in chunk and chunk["object"] == "chat.completion.chunk" for chunk in chunks)


async def test_an_answer_may_continue_the_last_message(stack: Stack, client: openai.OpenAI) -> None:
    messages: list[Any] = [*MESSAGES, {"role": "assistant", "content": "O, she doth"}]
    fields: dict[str, Any] = {"continue_final_message": True, "add_generation_prompt": False}
    async with stack.client() as sdk:
        expected = await sdk.chat(Conversation(messages, continue_final_message=True), max_tokens=16, seed=7)
    shown = stack.post("/tokenize", messages=messages, **fields)
    assert shown["tokens"] == expected.prompt_ids
    for body in (fields, {"continue_final_message": True}):
        answer = client.chat.completions.create(model="demo", messages=messages, max_tokens=16, seed=7, extra_body=body)
        assert answer.choices[0].message.content == expected.text
    with pytest.raises(openai.BadRequestError, match=r"messages\[2\].content"):
        client.chat.completions.create(
            model="demo", messages=[*MESSAGES, {"role": "assistant"}], max_tokens=1, extra_body=fields
        )
    with pytest.raises(openai.BadRequestError, match="add_generation_prompt must not be true"):
        client.chat.completions.create(
            model="demo", messages=messages, max_tokens=1, extra_body={**fields, "add_generation_prompt": True}
        )
