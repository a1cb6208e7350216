"""/v1/completions, /tokenize, /detokenize and /v1/models."""

from __future__ import annotations

import asyncio
import json
from itertools import pairwise
from typing import Any

import httpx
import openai
import pytest

from tandem.http.tokens import texts_of
from tests.http_svc.conftest import Stack

pytestmark = pytest.mark.slow

ASKED: dict[str, Any] = {"model": "demo", "prompt": "ROMEO:", "max_tokens": 16, "seed": 3}


async def test_prompts_of_every_kind_are_the_sdk_s(stack: Stack, client: openai.OpenAI) -> None:
    async with stack.client() as sdk:
        expected = [(await sdk.generate(text, max_tokens=16, seed=3)).text for text in ("ROMEO:", "JULIET:")]
        ids = [(await sdk.encode(text)).ids for text in ("ROMEO:", "JULIET:")]
    prompts: dict[str, tuple[Any, list[str]]] = {
        "a text": ("ROMEO:", expected[:1]),
        "texts": (["ROMEO:", "JULIET:"], expected),
        "ids": (ids[1], expected[1:]),
        "lists of ids": (ids, expected),
    }
    for what, (prompt, texts) in prompts.items():
        whole = client.completions.create(**{**ASKED, "prompt": prompt})
        assert [choice.text for choice in whole.choices] == texts, what
        streamed = [""] * len(texts)
        ended = []
        for chunk in client.completions.create(**{**ASKED, "prompt": prompt}, stream=True):
            [choice] = chunk.choices
            streamed[choice.index] += choice.text
            if choice.finish_reason:
                ended.append(choice.index)
        assert streamed == texts and sorted(ended) == list(range(len(texts))), what


def test_choices_of_several_prompts_are_numbered_through(client: openai.OpenAI) -> None:
    asked: dict[str, Any] = {**ASKED, "prompt": ["ROMEO:", "JULIET:"], "n": 2}
    whole = client.completions.create(**asked)
    assert [choice.index for choice in whole.choices] == [0, 1, 2, 3]
    texts = [""] * 4
    usage = None
    for chunk in client.completions.create(**asked, stream=True, stream_options={"include_usage": True}):
        for choice in chunk.choices:
            texts[choice.index] += choice.text
        usage = chunk.usage or usage
    assert texts == [choice.text for choice in whole.choices]
    assert usage is not None and whole.usage is not None and usage.total_tokens == whole.usage.total_tokens


def test_a_completion_without_a_limit_has_sixteen_tokens(client: openai.OpenAI) -> None:
    usage = client.completions.create(model="demo", prompt="ROMEO:", extra_body={"ignore_eos": True}).usage
    assert usage is not None and usage.completion_tokens == 16


async def test_logprobs_with_echo_score_the_prompt(stack: Stack, client: openai.OpenAI) -> None:
    async with stack.client() as sdk:
        expected = await sdk.generate("ROMEO:", max_tokens=4, seed=3, prompt_logprobs=True, logprobs=True)
    assert expected.prompt_logprobs is not None and expected.logprobs is not None
    choice = client.completions.create(**{**ASKED, "max_tokens": 4}, echo=True, logprobs=2).choices[0]
    told = choice.logprobs
    assert choice.text == f"ROMEO:{expected.text}" and told is not None
    logprobs = [*expected.prompt_logprobs.logprobs, *expected.logprobs]
    assert told.token_logprobs is not None and told.token_logprobs[0] is None
    assert told.token_logprobs[1:] == pytest.approx(logprobs[1:])
    assert told.tokens is not None and told.text_offset is not None and told.top_logprobs is not None
    for token, offset in zip(told.tokens[1:], told.text_offset[1:], strict=True):
        assert choice.text[offset:].startswith(token if offset else token.lstrip(" "))
    assert all(token in (top or {}) for token, top in zip(told.tokens[1:], told.top_logprobs[1:], strict=True))
    scored = client.completions.create(**{**ASKED, "max_tokens": 0}, echo=True, logprobs=0).choices[0]
    assert scored.text == "ROMEO:" and scored.logprobs is not None
    assert scored.logprobs.tokens == told.tokens[: len(expected.prompt_ids)]
    # One token is generated, whatever it is: who scores texts takes the last one off.
    ends = client.completions.create(**{**ASKED, "max_tokens": 1}, echo=True, logprobs=1, logit_bias={"2": 100})
    at_once = ends.choices[0]
    assert (at_once.text, at_once.finish_reason) == ("ROMEO:", "stop") and at_once.logprobs is not None
    assert at_once.logprobs.tokens == [*scored.logprobs.tokens, "</s>"]


@pytest.mark.parametrize("prompt", ["", [1], " ", "   ", "lead", " lead", "   lead", [1, 5]])
def test_offsets_count_in_the_text_whatever_spaces_begin_it(client: openai.OpenAI, prompt: Any) -> None:
    asked: dict[str, Any] = {**ASKED, "prompt": prompt, "logprobs": 0, "seed": 0}
    whole = client.completions.create(**asked).choices[0]
    echoed = client.completions.create(**asked, echo=True).choices[0]
    scored = client.completions.create(**{**asked, "max_tokens": 0}, echo=True).choices[0]
    text, tokens, offsets = "", list[str](), list[int]()
    for chunk in client.completions.create(**asked, stream=True):
        [choice] = chunk.choices
        text += choice.text
        if choice.logprobs is not None:
            tokens += choice.logprobs.tokens or []
            offsets += choice.logprobs.text_offset or []
    assert whole.logprobs is not None and (text, offsets) == (whole.text, whole.logprobs.text_offset)
    for choice in (whole, echoed, scored):
        told = choice.logprobs
        assert told is not None and told.tokens is not None and told.text_offset is not None
        for token, (begin, end) in zip(told.tokens, pairwise([*told.text_offset, len(choice.text)]), strict=True):
            shown = "" if token in ("<s>", "</s>") else token
            first = begin == 0 and len(choice.text[:end]) == len(shown) - 1
            assert choice.text[begin:end] == (shown[1:] if first else shown), (choice.text, told)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("changed", "param"),
    [
        ({"prompt": [99_999]}, "prompt[0]"),
        ({"prompt": [-1]}, "prompt[0]"),
        ({"prompt": [[1, 99_999]]}, "prompt[0][1]"),
        ({"prompt": [[1, 5], [99_999]]}, "prompt[1][0]"),
        ({"prompt": [[1], [-1]]}, "prompt[1][0]"),
        ({"prompt": "", "add_special": False}, "prompt"),
        ({"prompt": ["a", ""], "add_special": False}, "prompt[1]"),
        ({"logprobs": 65}, "logprobs"),
        ({"prompt_cache_key": "k" * 5000}, "prompt_cache_key"),
    ],
)
def test_what_is_wrong_is_named(stack: Stack, changed: dict[str, Any], param: str, stream: bool) -> None:
    answer = httpx.post(f"{stack.base_url}/completions", json={**ASKED, **changed, "stream": stream}, timeout=60)
    if answer.status_code == 400:
        error = answer.json()["error"]
    else:  # something came of another prompt before
        assert stream and param.startswith("prompt[1]")
        error = json.loads(answer.text.split("data: ")[-1])["error"]
    assert (error["param"], error["code"]) == (param, None) and error["message"].startswith(f"{param} must ")


def test_a_prompt_that_is_too_long_is_named(client: openai.OpenAI) -> None:
    for prompt, param in ([5] * 600, "prompt"), ([[5], [5] * 600], "prompt[1]"):
        with pytest.raises(openai.BadRequestError) as error:
            client.completions.create(**{**ASKED, "prompt": prompt})
        assert (error.value.param, error.value.code) == (param, "context_length_exceeded")


def test_control_tokens_of_a_prompt_are_text_unless_the_caller_says_else(stack: Stack) -> None:
    assert 2 not in stack.post("/tokenize", prompt="a</s>")["tokens"]
    assert 2 in stack.post("/tokenize", prompt="a</s>", special_tokens="parse")["tokens"]


def test_tokens_and_text_lead_to_each_other(stack: Stack) -> None:
    told = stack.post("/tokenize", model="demo", prompt="O, é! 🎭", return_token_strs=True)
    assert told["count"] == len(told["tokens"]) and told["max_model_len"] == 512
    assert stack.post("/detokenize", tokens=told["tokens"][1:]) == {"prompt": "O, é! 🎭"}
    refused = httpx.post(f"{stack.url}/detokenize", json={"tokens": [1, 9999]}, timeout=60).json()["error"]
    assert refused["param"] == "tokens[1]" and refused["message"].startswith("tokens[1] ")
    info = httpx.get(f"{stack.url}/tokenizer_info", timeout=60).json()
    assert info["vocab_size"] == 2048 and (info["bos_token"], info["eos_token"]) == ("<s>", "</s>")


def test_models_are_those_of_the_workers(client: openai.OpenAI) -> None:
    [model] = client.models.list().data
    assert model.id == "demo" and client.models.retrieve("demo").id == "demo"
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("other")


async def test_the_texts_of_many_tokens_let_others_run() -> None:
    turns = 0

    async def turn() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    other = asyncio.create_task(turn())
    assert await texts_of([1] * 100_000, [b"x", b"y"]) == ["y"] * 100_000
    other.cancel()
    assert turns > 10


async def test_the_texts_of_tokens_are_the_sdk_s(stack: Stack) -> None:
    text = "O, é! 🎭 </s>"
    async with stack.client() as sdk:
        pieces = (await sdk.encode(text, pieces=True, special_tokens="parse")).pieces
    told = stack.post("/tokenize", prompt=text, return_token_strs=True, special_tokens="parse")["token_strs"]
    assert told == [piece.decode("utf-8", "replace") for piece in pieces]
    assert (told[0], told[-1]) == ("<s>", "</s>")
