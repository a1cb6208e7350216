"""While hostile inputs are served, a health probe never waits for the end of one."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from tandem.tokenizer.v1 import tokenizer_pb2 as pb
from tandem.tokenizer.v1 import tokenizer_pb2_grpc
from tests.tokenizer_svc.hostile import KINDS

PROBES = 20
ROUNDS = 15  # how often the hostile calls are made at most, until so many probes came back during them
FITTING = {grpc.StatusCode.OK, grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.RESOURCE_EXHAUSTED}


@pytest.fixture(scope="module")
def address(repository: Path, shared_data: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A service in a process of its own, without a cache that would make the second call an easy one."""
    file = tmp_path_factory.mktemp("service") / "address.json"
    command = [sys.executable, "-m", "tandem.tokenizer", f"--tokenizer={shared_data}/formats/llama3"]
    command += [f"--address-file={file}", "--encode-cache-bytes=0", "--log-level=warning", "--no-metrics-enabled"]
    command += ["--chat-render-seconds=0.5", "--exit-when-stdin-closes"]
    with subprocess.Popen(command, cwd=repository, stdin=subprocess.PIPE) as process:
        while not file.exists():
            time.sleep(0.02)
            assert process.poll() is None
        yield json.loads(file.read_text())["address"]
        assert process.poll() is None
        process.terminate()
        assert process.wait(30) == 0


@pytest.mark.parametrize("kind", KINDS)
async def test_probes_are_answered_while_hostile_inputs_are_served(address: str, kind: str) -> None:
    options = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]
    async with grpc.aio.insecure_channel(address, options) as channel, grpc.aio.insecure_channel(address) as calm:
        stub = tokenizer_pb2_grpc.TokenizerServiceStub(channel)
        health = health_pb2_grpc.HealthStub(calm)
        await health.Check(health_pb2.HealthCheckRequest())
        during = 0  # probes that were asked and answered while every hostile call was still open
        for _ in range(ROUNDS):
            calls = asyncio.ensure_future(KINDS[kind](stub))
            while not calls.done():
                await health.Check(health_pb2.HealthCheckRequest())
                during += not calls.done()
            assert set(await calls) <= FITTING
            if during >= PROBES:
                break
        assert during >= PROBES
        answer = await stub.Encode(pb.EncodeRequest(input=pb.EncodeInput(segments=[pb.TextSegment(text="fine")])))
        assert answer.encoding.ids
