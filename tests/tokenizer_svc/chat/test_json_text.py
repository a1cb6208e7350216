"""JSON that a request carries as text: what is refused, and that each refusal names its field."""

from __future__ import annotations

import json
from typing import Any

import grpc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandem.tokenizer.chat.json_text import MAX_DEPTH, JsonTextError, parse_object, read_question
from tandem.tokenizer.v1 import tokenizer_pb2 as pb

values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)


@given(st.dictionaries(st.text(), values, max_size=5))
def test_what_is_written_is_read_in_its_order(value: dict[str, Any]) -> None:
    found = parse_object(json.dumps(value, ensure_ascii=False))
    assert json.dumps(found) == json.dumps(value)


REFUSED = {
    "": "not JSON",
    "{": "not JSON",
    "{} {}": "not JSON",
    "[]": "not an object",
    "null": "not an object",
    '{"a": 1, "b": {"c": 1, "c": 2}}': "'c' twice",
    '{"a": [NaN]}': "NaN",
    '{"a": -Infinity}': "-Infinity",
    '{"a": 1e999}': "64-bit float",
    '{"a": ' + "9" * 5000 + "}": "digits",
    '{"a": "\\ud800"}': "half a character",
    '{"\\udc00": 1}': "half a character",
    '{"a": "\n"}': "not JSON",
    '{"a": ' + "[" * MAX_DEPTH + "]" * MAX_DEPTH + "}": f"deeper than {MAX_DEPTH}",
    '{"a": ' + "[" * 200_000 + "]" * 200_000 + "}": f"deeper than {MAX_DEPTH}",
}


@pytest.mark.parametrize("text", REFUSED)
def test_what_is_no_object_in_json_is_refused_with_the_reason(text: str) -> None:
    with pytest.raises(ValueError, match=REFUSED[text]):
        parse_object(text)


def test_an_object_may_be_as_deep_as_the_limit() -> None:
    depth = MAX_DEPTH - 1
    assert parse_object('{"a": ' + "[" * depth + "]" * depth + "}")


def test_every_text_that_is_wrong_is_named_in_one_answer() -> None:
    question = {
        "tools": ["{}", "[]"],
        "arguments": '{"messages": 1}',
        "messages": [
            {"role": "user", "content": "a"},
            {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "{"}}]},
        ],
    }
    with pytest.raises(JsonTextError) as caught:
        read_question(question)
    fields = [field for field, _ in caught.value.violations]
    assert fields == ["template_arguments", "tools[1]", "messages[1].tool_calls[0].arguments"]


async def test_a_service_names_the_fields_and_reads_nothing_that_is_too_large(start_service: Any, refusal: Any) -> None:
    running = await start_service(max_input_bytes=1000)
    user = pb.ChatMessage(role="user", content="a")
    refused = await refusal(
        running.stub.EncodeChat(pb.EncodeChatRequest(messages=[user], tools=["x", "{}", "7"], chat_template="t"))
    )
    assert refused.code is grpc.StatusCode.INVALID_ARGUMENT
    assert list(refused.violations) == ["tools[0]", "tools[2]"]
    broken = '{"a": "' + "x" * 1000
    large = await refusal(
        running.stub.EncodeChat(pb.EncodeChatRequest(messages=[user], template_arguments=broken, chat_template="t"))
    )
    assert (large.code, large.reason) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "INPUT_TOO_LARGE")
