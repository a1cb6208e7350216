"""A real worker with several callers: a flood leaves the others their share, and their cache is their own."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable
from pathlib import Path

import grpc
import pytest
import pytest_asyncio

from tandem.inference.v1 import admin_pb2
from tandem.inference.v1 import inference_pb2 as pb
from tests.integration.worker_process import Worker, greedy, running_worker

pytestmark = pytest.mark.asyncio(loop_scope="module")

TOKENS = {name: f"the token of {name}" for name in ("flood", "other", "third")}
OPERATOR = "the token of an operator"
PLACES = 8
# Tokens in and out. Others ask for much too: what a client still has to read when they are done is little beside it.
LONG, SHORT = (300, 200), (20, 300)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def worker(random_llama: Path, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Worker]:
    folder = tmp_path_factory.mktemp("worker")
    (folder / "tokens").write_text("".join(f"{name}: {token}\n" for name, token in TOKENS.items()))
    (folder / "operators").write_text(f"{OPERATOR}\n")
    flags = (
        "--page-size=16",
        "--kv-cache-tokens=8192",
        f"--max-running-requests={PLACES}",
        "--max-waiting-requests=24",
    )
    shared = (
        f"--auth-token-file={folder / 'tokens'}",
        f"--admin-token-file={folder / 'operators'}",
        "--cache-per-caller",
    )
    async with running_worker(folder, "--model", str(random_llama), *flags, *shared) as worker:
        yield worker


class Caller:
    """Generates under its own token, and counts what came."""

    def __init__(self, worker: Worker, name: str) -> None:
        self.worker, self.name = worker, name
        self.tokens = 0  # prompts whose first token came, and output
        self.begun = self.ended = 0
        self.first, self.crowded = asyncio.Event(), asyncio.Event()
        self._serial = 0

    async def generate(self, size: tuple[int, int]) -> pb.Finished:
        prompt, output = size
        self._serial += 1
        ids = [(self._serial * 31 + place * (7 + len(self.name))) % 290 + 3 for place in range(prompt)]
        return await self.send(greedy(ids, output))

    async def send(self, request: pb.GenerateRequest) -> pb.Finished:
        metadata = (("authorization", f"Bearer {TOKENS[self.name]}"),)
        new = True
        finished = pb.Finished()
        async for message in self.worker.inference.Generate(request, timeout=300, metadata=metadata):
            if message.delta.ids:
                self.tokens += len(message.delta.ids) + new * len(request.prompt_ids)
                self.begun += new
                new = False
                self.first.set()
                if self.begun == PLACES:
                    self.crowded.set()
            elif message.HasField("finished"):
                finished = message.finished
        self.ended += 1
        return finished


async def test_a_flood_of_long_requests_leaves_another_caller_its_place_and_its_share(worker: Worker) -> None:
    flood, other = Caller(worker, "flood"), Caller(worker, "other")
    # The whole queue is the flood's, and other callers are let in nevertheless.
    flooding = [asyncio.create_task(flood.generate(LONG)) for _ in range(40)]
    await flood.crowded.wait()
    ended = flood.ended
    asking = [asyncio.create_task(other.generate(SHORT)) for _ in range(12)]
    await other.first.wait()
    # All places were taken by requests with most of their 200 tokens to come.
    assert flood.ended - ended <= PLACES, "the first token waited for the queue"
    # While both ask: what the flood has until the worker knows of the other is not shared.
    before = flood.tokens, other.tokens
    await asyncio.gather(*asking)
    had, others = flood.tokens - before[0], other.tokens - before[1]
    assert others / (others + had) >= 0.3, "half would be fair"
    results = await asyncio.gather(*flooding, return_exceptions=True)
    refused = [result for result in results if isinstance(result, grpc.aio.AioRpcError)]
    assert refused and {error.code() for error in refused} == {grpc.StatusCode.RESOURCE_EXHAUSTED}
    answers = [result for result in results if isinstance(result, pb.Finished)]
    assert len(answers) + len(refused) == 40
    assert all(answer.usage.completion_tokens == LONG[1] for answer in answers)
    assert sum(answer.usage.preemptions for answer in answers) > 0, "places went to the other caller"


async def test_a_request_that_made_way_for_another_callers_gives_the_same_answer(worker: Worker) -> None:
    request = greedy([(place * 13) % 290 + 3 for place in range(100)], 60)
    request.output.logprobs = True

    async def ask() -> tuple[list[int], list[float]]:
        answer_ids: list[int] = []
        logprobs: list[float] = []
        metadata = (("authorization", f"Bearer {TOKENS['flood']}"),)
        async for message in worker.inference.Generate(request, timeout=300, metadata=metadata):
            answer_ids += message.delta.ids
            logprobs += message.delta.logprobs
        return answer_ids, logprobs

    alone = await ask()
    third = Caller(worker, "third")
    several = [asyncio.create_task(ask()) for _ in range(8)]
    short = [asyncio.create_task(third.generate(SHORT)) for _ in range(6)]
    assert await asyncio.gather(*several) == [alone] * 8
    await asyncio.gather(*short)


async def test_callers_share_no_cached_page_where_the_cache_is_each_callers_own(worker: Worker) -> None:
    request = greedy([(place * 17) % 290 + 3 for place in range(160)], 2)
    flood, other = Caller(worker, "flood"), Caller(worker, "other")
    assert (await flood.send(request)).usage.cached_prompt_tokens < 16
    assert (await flood.send(request)).usage.cached_prompt_tokens > 100
    assert (await other.send(request)).usage.cached_prompt_tokens < 16
    assert (await other.send(request)).usage.cached_prompt_tokens > 100


async def test_a_request_is_aborted_by_its_own_caller_and_by_operators_and_is_unknown_to_others(worker: Worker) -> None:
    async def abort(token: str, *ids: str) -> list[str]:
        metadata = (("authorization", f"Bearer {token}"),)
        answer = await worker.inference.Abort(pb.AbortRequest(request_ids=ids), timeout=60, metadata=metadata)
        return list(answer.aborted_ids)

    for token in (TOKENS["flood"], OPERATOR):
        flood = Caller(worker, "flood")
        request = greedy([5, 6, 7], 300)
        request.request_id = "mine"
        stream = asyncio.create_task(flood.send(request))
        await flood.first.wait()
        assert await abort(TOKENS["other"], "mine", "unknown") == []
        assert await abort(token, "mine", "unknown") == ["mine"]
        assert (await stream).reason == pb.FINISH_REASON_CANCELLED


async def test_a_caller_has_the_load_and_no_check_of_the_page_table(worker: Worker) -> None:
    def load(token: str, check: bool) -> Awaitable[admin_pb2.GetLoadResponse]:
        request = admin_pb2.GetLoadRequest(check_integrity=check)
        return worker.admin.GetLoad(request, timeout=60, metadata=(("authorization", f"Bearer {token}"),))

    assert (await load(TOKENS["other"], check=False)).pages_total
    assert (await load(OPERATOR, check=True)).integrity_ok
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await load(TOKENS["other"], check=True)
    assert refused.value.code() is grpc.StatusCode.PERMISSION_DENIED
