"""Templates that callers send: where they are run, and whom they may keep waiting."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path
from typing import Any

import grpc
import pytest

from tandem.tokenizer.settings import TokenizerSettings
from tandem.tokenizer.v1 import tokenizer_pb2 as pb

LOOP = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"
USER = [pb.ChatMessage(role="user", content="hello")]


@pytest.mark.parametrize(
    ("chosen", "host", "taken"),
    [
        ("auto", "127.0.0.1", True),
        ("auto", "::1", True),
        ("auto", "localhost", True),
        ("auto", "0.0.0.0", False),
        ("auto", "10.0.0.7", False),
        ("yes", "0.0.0.0", True),
        ("no", "127.0.0.1", False),
    ],
)
def test_by_default_they_are_taken_on_this_machine_alone(chosen: Any, host: str, taken: bool) -> None:
    assert TokenizerSettings(caller_templates=chosen, host=host).takes_caller_templates is taken


async def test_where_they_are_off_they_are_refused_and_the_tokenizers_own_is_rendered(
    start_service: Any, shared_data: Path, refusal: Any
) -> None:
    one = await start_service(tokenizer=(f"{shared_data}/formats/llama3",), caller_templates="no")
    no = await refusal(one.stub.EncodeChat(pb.EncodeChatRequest(messages=USER, chat_template="x")))
    assert (no.code, no.reason) == (grpc.StatusCode.PERMISSION_DENIED, "CALLER_TEMPLATES_OFF")
    assert (await one.stub.EncodeChat(pb.EncodeChatRequest(messages=USER))).ids


async def test_nobody_waits_behind_looping_templates_and_each_caller_has_a_bound(
    start_service: Any, shared_data: Path
) -> None:
    one = await start_service(
        tokenizer=(f"{shared_data}/formats/llama3",), chat_render_seconds=600, caller_template_queue=4
    )
    loops = [
        asyncio.ensure_future(one.stub.EncodeChat(pb.EncodeChatRequest(messages=USER, chat_template=LOOP)))
        for _ in range(16)
    ]
    async with asyncio.timeout(120):
        while len(ended := [each for each in loops if each.done()]) < 12:
            await asyncio.wait([each for each in loops if not each.done()], return_when=asyncio.FIRST_COMPLETED)
    for each in ended:
        error = each.exception()
        assert isinstance(error, grpc.aio.AioRpcError) and error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert float(dict(error.trailing_metadata())["grpc-retry-pushback-ms"]) > 0
    assert (await one.stub.EncodeChat(pb.EncodeChatRequest(messages=USER), timeout=120)).ids
    assert Counter(each.done() for each in loops) == {True: 12, False: 4}, "the honest one did not wait for them"
    for each in loops:
        each.cancel()
    await asyncio.gather(*loops, return_exceptions=True)
    answer = await one.stub.EncodeChat(pb.EncodeChatRequest(messages=USER, chat_template="{{ messages[0].content }}"))
    assert answer.ids
