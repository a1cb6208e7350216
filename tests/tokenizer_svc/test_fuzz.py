"""Random and damaged messages at every method: each gets a status that fits, and the service goes on."""

from __future__ import annotations

import random
from contextlib import suppress
from typing import Any

import grpc
import pytest

from tandem.tokenizer.v1 import tokenizer_pb2 as pb

UNARY = (
    "ListTokenizers",
    "GetTokenizer",
    "Encode",
    "BatchEncode",
    "CountTokens",
    "Decode",
    "BatchDecode",
    "EncodeChat",
)
FITTING = {
    grpc.StatusCode.OK,
    grpc.StatusCode.INVALID_ARGUMENT,
    grpc.StatusCode.NOT_FOUND,
    grpc.StatusCode.RESOURCE_EXHAUSTED,
    grpc.StatusCode.FAILED_PRECONDITION,
}


def valid_messages() -> list[bytes]:
    """One full message of each kind, to be damaged."""
    text = pb.EncodeInput(
        segments=[
            pb.TextSegment(text="hé <s>", special_tokens=pb.SPECIAL_TOKEN_POLICY_PARSE),
            pb.TextSegment(text_bytes=b"x", special_tokens=pb.SPECIAL_TOKEN_POLICY_PARSE_LISTED, parse_ids=[1]),
        ],
        truncation=pb.Truncation(max_tokens=5),
    )
    ids = pb.DecodeInput(ids=[1, 300, 511])
    chat = pb.EncodeChatRequest(
        messages=[pb.ChatMessage(role="user", content="hi", tool_calls=[pb.ChatToolCall(name="f")])],
        chat_template="{% for m in messages %}{{ m.content }}{% endfor %}",
        include_content_mask=True,
    )
    opening = pb.DecodeStreamOpen(stop_strings=["a", "bc"])
    stream = pb.DecodeStreamRequest(stream_key="k", open=opening, ids=[1, 2, 300])
    messages: list[Any] = [
        pb.GetTokenizerRequest(tokenizer="small"),
        pb.EncodeRequest(input=text, include_offsets=True, include_pieces=True),
        pb.BatchEncodeRequest(inputs=[text, text]),
        pb.DecodeRequest(input=ids, options=pb.DecodeOptions(unparse_special=True, clean_spaces=True)),
        pb.BatchDecodeRequest(inputs=[ids, ids]),
        chat,
        stream,
        pb.DecodeStreamRequest(batch=[stream, pb.DecodeStreamRequest(stream_key="k", ids=[5], end=True)]),
    ]
    return [message.SerializeToString() for message in messages]


def damaged(chance: random.Random, messages: list[bytes]) -> bytes:
    data = bytearray(chance.choice(messages))
    for _ in range(chance.randrange(4)):
        match chance.randrange(4):
            case 0:
                data[chance.randrange(len(data))] = chance.randrange(256)
            case 1:
                del data[chance.randrange(len(data)) :]
            case 2:
                data += chance.choice(messages)
            case _:
                data += chance.randbytes(chance.randrange(12))
        if not data:
            return b""
    return bytes(data)


@pytest.mark.parametrize("seed", range(3))
async def test_damaged_messages_get_a_fitting_status_and_the_service_goes_on(start_service: Any, seed: int) -> None:
    running = await start_service(chat_render_seconds=5.0)
    chance = random.Random(seed)
    messages = valid_messages()
    for number in range(400):
        method = chance.choice(UNARY)
        data = chance.randbytes(chance.randrange(40)) if number % 4 == 0 else damaged(chance, messages)
        call = running.channel.unary_unary(f"/tandem.tokenizer.v1.TokenizerService/{method}")(data)
        assert await call.code() in FITTING, (method, data, await call.details())
    for _ in range(100):
        requests = iter([damaged(chance, messages) for _ in range(4)])
        call = running.channel.stream_stream("/tandem.tokenizer.v1.TokenizerService/DecodeStream")(requests)
        with suppress(grpc.aio.AioRpcError):
            async for _ in call:
                pass
    # What the service answered; a client that still writes when the answer comes reports an error of its own.
    registry = running.service.metrics.registry
    answered = {
        sample.labels["grpc_code"]
        for metric in registry.collect()
        for sample in metric.samples
        if sample.name == "tandem_grpc_server_handled_total"
        and sample.labels["grpc_method"] in (*UNARY, "DecodeStream")
    }
    assert "OK" in answered
    assert answered <= {code.name for code in FITTING} | {"CANCELLED"}
    assert registry.get_sample_value("tandem_tokenizer_open_streams") == 0
    assert (await running.stub.ListTokenizers(pb.ListTokenizersRequest())).tokenizers
