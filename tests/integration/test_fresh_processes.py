"""The same request to fresh processes, each with hashes of its own, gives the same bytes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import grpc.aio
import pytest

from tandem.inference.v1 import inference_pb2
from tandem.tokenizer.v1 import tokenizer_pb2, tokenizer_pb2_grpc
from tests.integration.worker_process import running_worker, service_process

pytestmark = pytest.mark.slow

PROCESSES = 2
TEMPLATE = """{{ bos_token }}{% for tool in tools %}{{ tool | tojson }}{{ tool }}{% endfor %}
{%- for m in messages %}{{ m.role }}: {{ m.content }}{{ m | tojson(indent=2) }}{{ m }}{% endfor %}
{%- for key, value in settings.items() %}{{ key }}{{ value }}{% endfor %}{{ settings }}{{ settings | tojson }}
{{- settings | dictsort }}{{ range(99) | random }}{{ lipsum(1) }}{{ messages | map(attribute='role') | list }}"""
CLIENT = """
import sys
from tandem.client import ChatMessage, Conversation, ToolCall
from tandem.client.conversations import chat_request
value = {name: {other: [1, 2.5, 2**60, None, "é"] for other in "zyxcba"} for name in ("weather", "a", "naïve", "time")}
conversation = Conversation(
    [{"role": "user", "content": "Hi"}, ChatMessage("assistant", "", tool_calls=[ToolCall("weather", value)])],
    tools=[{"function": value}, value], template_arguments={"settings": value}, chat_template=sys.argv[1],
)
request = chat_request(conversation, "", rendered_text=True, content_ranges=True, pieces=True)
sys.stdout.buffer.write(request.SerializeToString())
"""


def sent_by_a_client(repository: Path) -> bytes:
    return subprocess.check_output([sys.executable, "-c", CLIENT, TEMPLATE], cwd=repository)


async def test_the_tokenizer_answers_alike(repository: Path, tmp_path: Path) -> None:
    given = {sent_by_a_client(repository) for _ in range(PROCESSES)}
    assert len(given) == 1, "the SDK sends other bytes in each process"
    chat = tokenizer_pb2.EncodeChatRequest.FromString(given.pop())
    text = tokenizer_pb2.EncodeInput(segments=[tokenizer_pb2.TextSegment(text="ROMEO: é\n\n👩‍🚀 <s>")])
    answers: set[tuple[bytes, ...]] = set()
    for number in range(PROCESSES):
        (folder := tmp_path / str(number)).mkdir()
        flags = (f"--tokenizer={repository}/models/demo", "--no-metrics-enabled")
        async with (
            service_process("tandem.tokenizer", folder, *flags) as (address, _),
            grpc.aio.insecure_channel(address) as channel,
        ):
            stub: Any = tokenizer_pb2_grpc.TokenizerServiceStub(channel)
            encode = tokenizer_pb2.EncodeRequest(input=text, include_offsets=True, include_pieces=True)
            encoded = await stub.Encode(encode)
            decode = tokenizer_pb2.DecodeRequest(input=tokenizer_pb2.DecodeInput(ids=encoded.encoding.ids))
            about = await stub.GetTokenizer(tokenizer_pb2.GetTokenizerRequest())
            calls = [await stub.EncodeChat(chat), encoded, await stub.Decode(decode), about]
            answers.add(tuple(answer.SerializeToString() for answer in calls))
    assert len(answers) == 1
    rendered = tokenizer_pb2.EncodeChatResponse.FromString(answers.pop()[0]).rendered_text
    order = [rendered.index(f'"{name}"') for name in ("weather", "a", "naïve", "time")]
    assert order == sorted(order)


async def test_the_worker_answers_alike(repository: Path, tmp_path: Path) -> None:
    request = inference_pb2.GenerateRequest(request_id="same", prompt_ids=[1, *range(300, 340)])
    request.sampling.temperature, request.sampling.seed = 0.9, 7
    request.sampling.logit_bias.add(id=5, bias=1.5)
    request.sampling.logit_bias.add(id=400, bias=-1.5)
    request.stopping.max_tokens, request.output.top_logprobs = 24, 3
    answers: list[object] = []
    for number in range(PROCESSES):
        (folder := tmp_path / str(number)).mkdir()
        flags = (f"--model={repository}/models/demo", "--kv-cache-tokens=2048", "--no-metrics-enabled")
        async with running_worker(folder, *flags) as worker:
            answer = await worker.generate(request)
        answers.append((answer.accepted, answer.ids, answer.logprobs, answer.ranks, answer.others))
    assert answers == answers[:1] * PROCESSES
    assert len(answer.ids) == 24
