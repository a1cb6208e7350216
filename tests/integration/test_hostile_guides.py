"""A guide hurts its own request at most: engines stay, and other streams have the same bits."""

from __future__ import annotations

import asyncio
import json
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import psutil
import pytest
import pytest_asyncio

from tandem.inference.v1 import admin_pb2
from tandem.inference.v1 import inference_pb2 as pb
from tests.integration.hostile_guides import DEEP, OVERFLOWING, SLOW, guides_processes, some_work
from tests.integration.worker_process import Answer, Worker, greedy, rest, running_worker, service_process

DEMO = Path(__file__).parents[2] / "models" / "demo"

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def worker(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Worker]:
    folder = tmp_path_factory.mktemp("hostile")
    flags = ("--kv-cache-tokens=16384", "--guide-mask-seconds=0.3", "--guide-compile-seconds=1")
    async with (
        service_process("tandem.tokenizer", folder, f"--tokenizer=demo={DEMO}") as (address, _),
        running_worker(folder, f"--model={DEMO}", f"--tokenizer-address={address}", *flags) as worker,
    ):
        yield worker


def guided(max_tokens: int = 40, drafts: int = 0, **guide: Any) -> pb.GenerateRequest:
    speculation = pb.SpeculationParams(max_draft_tokens=drafts)
    return greedy([1, 494, 410, 1987], max_tokens, guided=pb.GuidedDecoding(**guide), speculation=speculation)


async def restarts(worker: Worker) -> int:
    return (await worker.admin.GetServer(admin_pb2.GetServerRequest())).engine_restarts


async def refused(worker: Worker, **guide: Any) -> grpc.aio.AioRpcError:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await worker.generate(guided(**guide))
    return caught.value


@pytest.mark.parametrize("case", [*DEEP, *OVERFLOWING])
async def test_a_guide_that_overflows_a_stack_is_refused_and_other_streams_do_not_notice(worker: Worker, case: str):
    free = greedy([1, 494, 410], 150, output=pb.OutputOptions(logprobs=True))
    alone = await worker.generate(free)
    others = [asyncio.create_task(worker.generate(free)) for _ in range(4)]
    error = await refused(worker, **{**DEEP, **OVERFLOWING}[case])
    assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
    words = "guided.grammar: its process has ended twice" if case in OVERFLOWING else "in a row; at most"
    assert words in (error.details() or "")
    for answer in await asyncio.gather(*others):
        assert (answer.ids, answer.logprobs) == (alone.ids, alone.logprobs)
    assert await restarts(worker) == 0


@pytest.mark.parametrize("case", SLOW)
async def test_a_guide_that_takes_long_ends_alone_with_a_reason_and_others_go_on(worker: Worker, case: str):
    free = greedy([1, 494, 410], 150, output=pb.OutputOptions(logprobs=True))
    alone = await worker.generate(free)
    hostile = asyncio.create_task(worker.generate(guided(8, drafts=1, **SLOW[case])))
    honest = asyncio.create_task(worker.generate(guided(max_tokens=60, regex="[a-z ]{50}")))
    others = [asyncio.create_task(worker.generate(free)) for _ in range(3)]
    for answer in await asyncio.gather(*others):
        assert (answer.ids, answer.logprobs) == (alone.ids, alone.logprobs)
    assert (await honest).finished is not None
    (end,) = await asyncio.gather(hostile, return_exceptions=True)
    if isinstance(end, grpc.aio.AioRpcError):
        assert end.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert "which is the limit here" in (end.details() or "") or "lexer" in (end.details() or "")
    else:
        assert isinstance(end, Answer) and end.finished is not None
        assert end.finished.reason == pb.FINISH_REASON_MAX_TOKENS
    assert await restarts(worker) == 0
    assert (await worker.settled()).pages_referenced == 0


async def test_others_finish_while_a_mask_is_being_made(worker: Worker):
    """The hostile one ends by its budget of processor time; what began later and is longer than a step ends before."""
    call = worker.inference.Generate(guided(drafts=1, **SLOW["powers"]), timeout=120)
    assert (await call.read()).WhichOneof("event") == "accepted"
    hostile = asyncio.create_task(rest(call))
    answer = await worker.generate(greedy([1, 5], 12))
    assert len(answer.ids) == 12
    assert not hostile.done()
    with pytest.raises(grpc.aio.AioRpcError, match="one mask takes more than"):
        await hostile


async def test_answers_survive_the_death_of_their_guides_processes(worker: Worker):
    requests = [guided(300, regex=r"([a-z]{3} ){200}"), guided(300, json_schema='{"type": "string", "minLength": 400}')]
    alone = [(await worker.generate(request)).ids for request in requests]
    for number in (signal.SIGKILL, signal.SIGSEGV):
        calls = [worker.inference.Generate(request, timeout=120) for request in requests]
        answers = [Answer() for _ in calls]
        for call, answer in zip(calls, answers, strict=True):
            while len(answer.ids) < 20:
                message = await call.read()
                assert isinstance(message, pb.GenerateResponse)
                answer.take(message)
        for process in guides_processes(worker):
            process.send_signal(number)
        for call, answer in zip(calls, answers, strict=True):
            for message in await rest(call):
                answer.take(message)
        assert [answer.ids for answer in answers] == alone
    assert await restarts(worker) == 0


async def test_answers_survive_the_death_of_the_process_that_starts_the_others(worker: Worker):
    request = guided(300, regex=r"([a-z]{3} ){200}")
    alone = await worker.generate(request)
    call = worker.inference.Generate(request, timeout=120)
    answer = Answer()
    while len(answer.ids) < 20:
        message = await call.read()
        assert isinstance(message, pb.GenerateResponse)
        answer.take(message)
    (starter,) = {process.ppid() for process in guides_processes(worker)}
    psutil.Process(starter).kill()
    for message in await rest(call):
        answer.take(message)
    assert answer.ids == alone.ids


@pytest.mark.slow
async def test_a_compilation_that_nobody_waits_for_is_ended_and_another_caller_is_served(worker: Worker):
    wildcards = SLOW["wildcards"]["regex"]
    calls = [worker.inference.Generate(guided(regex=wildcards + "a" * number), timeout=120) for number in range(1, 5)]
    first = [asyncio.create_task(call.read()) for call in calls]
    while not some_work(worker):  # noqa: ASYNC110
        await asyncio.sleep(0.02)
    for call in calls:
        call.cancel()
    await asyncio.gather(*first, return_exceptions=True)
    schema = json.dumps({"enum": ["one", "two"]})
    assert (await worker.generate(guided(json_schema=schema))).finished is not None
    while some_work(worker, 50):  # noqa: ASYNC110
        await asyncio.sleep(0.02)
