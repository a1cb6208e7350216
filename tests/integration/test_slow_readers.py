"""Readers that do not read: the engine goes on, the front stays small, and nothing of the answer is lost."""

from __future__ import annotations

import asyncio
from pathlib import Path

import grpc
import psutil
import pytest

from tandem.inference.v1 import inference_pb2_grpc
from tests.integration.worker_process import Answer, greedy, rest, running_worker

STREAMS, TOKENS = 16, 300
# A client that takes so much without being asked, and no more: the rest stays in the server.
SMALL_WINDOW = (("grpc.http2.lookahead_bytes", 1024), ("grpc.http2.bdp_probe", 0))


@pytest.mark.slow
async def test_readers_that_do_not_read_leave_the_front_small_and_miss_nothing(random_llama: Path, tmp_path: Path):
    requests = [greedy([1, 5, 9 + number], TOKENS) for number in range(STREAMS)]
    async with running_worker(tmp_path, "--model", str(random_llama)) as worker:
        assert worker.process is not None
        front = psutil.Process(worker.process.pid)
        expected = await asyncio.gather(*(worker.generate(request) for request in requests))
        before = front.memory_info().rss

        async with grpc.aio.insecure_channel(worker.address, options=SMALL_WINDOW) as channel:
            calls = [inference_pb2_grpc.InferenceServiceStub(channel).Generate(request) for request in requests]
            answers = [Answer() for _ in calls]
            for call, answer in zip(calls, answers, strict=True):
                answer.take(await call.read())
            await worker.settled()  # every token is made, and nobody has read one
            growth = front.memory_info().rss - before

            for call, answer, whole in zip(calls, answers, expected, strict=True):
                for message in await rest(call):
                    answer.take(message)
                assert answer.ids == whole.ids
                assert answer.finished is not None
        # What the window took goes out as it was made, all the rest as one message.
        assert max(answer.deltas for answer in answers) < TOKENS / 2
        # 0.9 MB was measured.
        assert growth < 4 << 20
