"""What callers hear of errors: the status, the body, and the exception of OpenAI's client."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from typing import Any

import grpc
import httpx
import msgspec
import openai
import pytest

from tandem.client import (
    ClientClosedError,
    FieldViolation,
    InvalidArgumentError,
    ResourceExhaustedError,
    UnavailableError,
)
from tandem.client.errors import BY_CODE
from tandem.http.chat import read_chat
from tandem.http.completions import read_completion
from tandem.http.errors import BY_STATUS, ApiError, from_tandem
from tandem.http.messages import read_messages
from tandem.http.responses import read_response
from tests.http_svc.conftest import Stack

pytestmark = pytest.mark.slow

ASKED: dict[str, Any] = {"model": "demo", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 2}

TOOL: dict[str, Any] = {"type": "function", "function": {"name": "f", "parameters": None}}


@pytest.mark.parametrize(
    ("changed", "param", "code"),
    [
        ({"temperature": -1}, "temperature", None),
        ({"top_k": "many"}, "top_k", "invalid_type"),
        ({"mirostat_tau": -1}, "mirostat_tau", None),
        ({"max_tokens": 100_000}, "max_tokens", None),
        ({"max_tokens": None, "max_completion_tokens": 0}, "max_completion_tokens", None),
        ({"max_completion_tokens": 3}, "max_tokens", None),
        ({"stop": [""]}, "stop[0]", None),
        ({"n": 65}, "n", None),
        ({"n": 1.5}, "n", "invalid_type"),
        ({"logit_bias": {"x": 1}}, "logit_bias", "invalid_type"),
        ({"logit_bias": {"99999": 1}}, "logit_bias", None),
        ({"top_logprobs": 2}, "top_logprobs", None),
        ({"messages": []}, "messages", None),
        ({"messages": [{"role": "user", "content": "long " * 600}]}, "messages", "context_length_exceeded"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:"}}]}]},
         "messages[0].content[0].type", "not_served"),
        ({"messages": [{"role": "user", "content": "x", "mood": 1}]}, "messages[0].mood", "unknown_parameter"),
        ({"messages": [{"content": "x"}]}, "messages[0].role", "missing_required_parameter"),
        ({"functions": []}, "functions", "unknown_parameter"),
        ({"modalities": ["audio"]}, "modalities", "not_served"),
        ({"stream_options": {"include_usage": True}}, "stream_options", None),
        ({"stream": True, "stream_options": {"continuous_usage_stats": True}}, "stream_options", None),
        ({"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "nothing"}}}},
         "response_format", None),
        ({"chat_template_kwargs": []}, "chat_template_kwargs", None),
        ({"tools": [{"type": "function", "pad": "x" * 300_000}]}, "tools", "request_too_large"),
        ({"tools": [None]}, "tools[0]", None),
        ({"tools": [{"type": "web_search"}]}, "tools[0].type", "not_served"),
        ({"tools": [{"type": "function", "name": "f"}]}, "tools[0].function", None),
        ({"tools": [{"type": "function", "function": {"parameters": {}}}]}, "tools[0].function.name", None),
        ({"tools": [TOOL, {"type": "function", "function": {"name": "f", "parameters": "x"}}]},
         "tools[1].function.parameters", None),
        ({"tools": [{"type": "function", "function": {"name": "f", "strict": 1}}]}, "tools[0].function.strict", None),
        ({"prompt_cache_key": "k" * 5000}, "prompt_cache_key", None),
        ({"priority": 101}, "priority", None),
        ({"stop_token_ids": list(range(300))}, "stop_token_ids", None),
    ],
)  # fmt: skip
def test_a_wrong_parameter_is_named(
    client: openai.OpenAI, changed: dict[str, Any], param: str, code: str | None
) -> None:
    with pytest.raises(openai.BadRequestError) as error:
        client.post("/chat/completions", cast_to=object, body={**ASKED, **changed})
    told = error.value.body
    assert isinstance(told, dict) and told["type"] == "invalid_request_error"
    assert told["param"].startswith(param) and told["code"] == code and told["message"]
    assert error.value.request_id


@pytest.mark.parametrize(
    ("read", "needed"),
    [
        (read_chat, {"model": "demo", "messages": [{"role": "user", "content": "x"}]}),
        (read_completion, {"model": "demo", "prompt": "x"}),
        (read_response, {"model": "demo", "input": "x"}),
        (read_messages, {"model": "demo", "messages": [{"role": "user", "content": "x"}], "max_tokens": 1}),
    ],
)
def test_null_is_as_good_as_nothing_and_what_is_not_served_is_named(
    read: Callable[[bytes], msgspec.Struct], needed: dict[str, Any]
) -> None:
    fields = msgspec.structs.fields(type(read(json.dumps(needed).encode())))
    taken = {field.name: None for field in fields if field.name not in needed}
    read(json.dumps({**needed, **taken}).encode())
    for name in (field.name for field in fields if field.type is type(None) or field.type is None):
        with pytest.raises(ApiError, match="not a parameter that is served here") as error:
            read(json.dumps({**needed, name: "x"}).encode())
        assert (error.value.param, error.value.code) == (name, "unknown_parameter")


def test_what_is_ignored_on_purpose_is_ignored(client: openai.OpenAI) -> None:
    ignored = {"user": "u", "metadata": {"a": "b"}, "store": False, "service_tier": "auto", "safety_identifier": "x",
               "prompt_cache_retention": "24h", "prompt_cache_key": "k", "modalities": ["text"]}  # fmt: skip
    answer: Any = client.post("/chat/completions", cast_to=object, body={**ASKED, **ignored})
    assert answer["choices"]


@pytest.mark.parametrize(
    ("body", "headers", "status", "code"),
    [
        (b"{", {}, 400, "invalid_json"),
        (b"\xff", {}, 400, "invalid_json"),
        (b'{"model":"demo","messages":[{"role":"user","content":"x"}],"user":"\xff"}', {}, 400, "invalid_json"),
        (b'{"model":"demo","messages":[{"role":"user","content":"x"}],"tools":[{"type":"function","function":'
         b'{"name":"\xff"}}]}', {}, 400, "invalid_json"),
        (b"[]", {}, 400, None),
        (b"{}", {"content-type": "text/plain"}, 415, "unsupported_media_type"),
        (gzip.compress(b"{}", mtime=0), {"content-encoding": "gzip"}, 415, "unsupported_media_type"),
        (json.dumps(ASKED).encode(), {"content-encoding": "identity"}, 200, None),
        (b" " * (5 << 20), {}, 413, "request_too_large"),
        (b'{"metadata":[' + b"[]," * 70_000 + b"[]]}", {}, 413, "request_too_large"),
        (b'{"metadata":' + b"[" * 20_000 + b"]" * 20_000 + b"}", {}, 400, "invalid_json"),
        (json.dumps({**ASKED, "model": "gpt"}).encode(), {}, 404, "model_not_found"),
    ],
)  # fmt: skip
def test_bodies_that_are_none(
    stack: Stack, body: bytes, headers: dict[str, str], status: int, code: str | None
) -> None:
    url = f"{stack.base_url}/chat/completions"
    answer = httpx.post(url, content=body, headers={"content-type": "application/json", **headers})
    assert answer.status_code == status
    if status == 200:
        return
    assert code is None or answer.json()["error"]["code"] == code
    assert set(answer.json()["error"]) == {"message", "type", "param", "code"}


def test_what_texts_hold_does_not_count_as_lists_and_objects() -> None:
    text = json.dumps('[{"a": "\\"}]' * 70_000)
    fields = read_completion(b'{"model":"demo","prompt":' + text.encode() + b"}")
    assert fields.prompt == json.loads(text)
    calls = [{"function": {"name": "f", "arguments": json.dumps([[]] * 70_000)}}]
    body = {**ASKED, "messages": [{"role": "assistant", "tool_calls": calls}]}
    with pytest.raises(ApiError, match="called with"):
        read_chat(json.dumps(body).encode()).prompt()


def test_a_long_body_without_a_length_is_cut_off(stack: Stack) -> None:
    def parts() -> Any:
        for _ in range(80):
            yield b" " * 65536

    answer = httpx.post(f"{stack.base_url}/completions", content=parts(), headers={"content-type": "application/json"})
    assert answer.status_code == 413


def test_unknown_places_are_told_as_everything_else(stack: Stack) -> None:
    for method, path, status in (("GET", "/v2", 404), ("GET", "/v1/completions", 405), ("POST", "/v1/embeddings", 404)):
        answer = httpx.request(method, f"{stack.url}{path}", json={} if method == "POST" else None)
        assert answer.status_code == status and answer.json()["error"]["message"]
        assert answer.headers.get("allow") == ("POST" if status == 405 else None)


def test_every_status_of_our_services_has_its_row() -> None:
    assert set(BY_STATUS) == set(grpc.StatusCode) - {grpc.StatusCode.OK}
    for code, kind in BY_CODE.items():
        told = from_tandem(kind("secret of the house", service="worker", reason="X"), "id")
        assert 400 <= told.status < 600
        if told.status == 500:
            assert "secret" not in told.message and "id" in told.message, code
        assert (told.retry_after is not None) == (told.status in (429, 503)), code


def test_advice_and_parameters_come_through() -> None:
    busy = from_tandem(ResourceExhaustedError("full", service="worker", retry_after=2.3), "id")
    assert busy.status == 429 and dict(busy.headers())[b"retry-after"] == b"3"
    assert from_tandem(ResourceExhaustedError("large", service="worker"), "id").status == 413
    assert from_tandem(UnavailableError("gone", service="worker"), "id").status == 503
    assert from_tandem(ClientClosedError("closed"), "id").status == 503
    violations = [FieldViolation("sampling.mirostat.tau", "must be"), FieldViolation("stopping.stop[1]", "must")]
    told = from_tandem(InvalidArgumentError("x", violations=violations), "id")
    assert told.param == "mirostat_tau" and told.message == "mirostat_tau must be; stop[1] must"
