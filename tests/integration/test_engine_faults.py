"""Engines that hang, crash or cannot be made again: noticed, mended, and nobody else's loss."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import signal
import tempfile
import urllib.request
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import grpc
import psutil
import pytest
from google.rpc import error_details_pb2, status_pb2
from grpc_health.v1 import health_pb2, health_pb2_grpc

from tandem.client import AsyncClient, FailoverSettings, QuarantinedError
from tandem.inference.v1 import admin_pb2
from tandem.inference.v1 import inference_pb2 as pb
from tandem.worker.front.quarantine import SUSPICIONS_KEY
from tests.integration.worker_process import ENVIRONMENT, Worker, greedy, rest, running_worker

pytestmark = pytest.mark.slow

SERVICE = "tandem.inference.v1.InferenceService"
SERVING, NOT_SERVING = health_pb2.HealthCheckResponse.SERVING, health_pb2.HealthCheckResponse.NOT_SERVING
POISON = [77, 78, 79]
SECONDS = 120  # a bound for a machine under load, not an expectation

# Read by Python at the start of every process: the engine dies when it computes a prompt with POISON in it.
DEADLY = f"""
import os, sys
if "tandem.worker.engine.process.main" in sys.orig_argv:
    from tandem.worker.model import runner
    inner = runner.ModelRunner.forward
    def forward(self, work, *rest):
        for item in work:
            tokens = list(map(int, item.tokens))
            if any(tokens[at : at + 3] == {POISON!r} for at in range(len(tokens))):
                if os.environ["POISON"] == "raise":
                    raise RuntimeError("poisoned")
                os.kill(os.getpid(), int(os.environ["POISON"]))
        return inner(self, work, *rest)
    runner.ModelRunner.forward = forward
"""


@pytest.fixture
def deadly(tmp_path: Path) -> dict[str, str]:
    """Variables of a worker whose engine dies by SIGSEGV of a request with POISON."""
    folder = tmp_path / "deadly"
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(DEADLY)
    paths = [str(folder), ENVIRONMENT.get("PYTHONPATH", "")]
    return {"PYTHONPATH": os.pathsep.join(filter(None, paths)), "POISON": str(int(signal.SIGSEGV))}


def engine_of(worker: Worker) -> psutil.Process:
    assert worker.process is not None
    children = psutil.Process(worker.process.pid).children()
    (engine,) = [process for process in children if "tandem.worker.engine.process.main" in process.cmdline()]
    return engine


def ranks_of(worker: Worker) -> list[psutil.Process]:
    assert worker.process is not None
    below = psutil.Process(worker.process.pid).children(recursive=True)
    return [process for process in below if "tandem.worker.engine.process.tensor_parallel" in process.cmdline()]


@asynccontextmanager
async def watched(worker: Worker) -> AsyncIterator[grpc.aio.UnaryStreamCall]:
    """A health watch that has heard SERVING."""
    watch = health_pb2_grpc.HealthStub(worker.channel).Watch(health_pb2.HealthCheckRequest(service=SERVICE))
    assert (await watch.read()).status == SERVING
    try:
        yield watch
    finally:
        watch.cancel()


async def becomes(watch: grpc.aio.UnaryStreamCall, status: int) -> None:
    assert (await asyncio.wait_for(watch.read(), SECONDS)).status == status


async def failure(call: object) -> grpc.aio.AioRpcError:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await asyncio.wait_for(rest(call), SECONDS)
    return caught.value


def info_of(error: grpc.aio.AioRpcError) -> error_details_pb2.ErrorInfo:
    trailing = dict(error.trailing_metadata() or ())
    info = error_details_pb2.ErrorInfo()
    for detail in status_pb2.Status.FromString(trailing["grpc-status-details-bin"]).details:
        if detail.Is(info.DESCRIPTOR):
            detail.Unpack(info)
    return info


async def metric(worker: Worker, folder: Path, name: str) -> float:
    text = (folder / "tandem.worker.json").read_text()
    port = re.search(r'"metrics": "([^"]+)"', text)
    assert port is not None
    page = await asyncio.to_thread(
        lambda: urllib.request.urlopen(f"http://{port[1]}/metrics", timeout=SECONDS).read().decode()
    )
    (value,) = re.findall(rf"^{name}{{[^}}]*}} (\S+)$", page, re.MULTILINE)
    return float(value)


@pytest.mark.parametrize("busy", [True, False], ids=["with streams", "idle"])
async def test_a_stopped_engine_is_noticed_killed_and_followed_by_another(
    random_llama: Path, tmp_path: Path, busy: bool
):
    flags = ("--model", str(random_llama), "--engine-stall-seconds=3")
    async with running_worker(tmp_path, *flags) as worker, watched(worker) as watch:
        before = await worker.generate(greedy([1, 5, 9], 30))
        streams = [worker.inference.Generate(greedy([1, 5, 9 + i], 400)) for i in range(4 * busy)]
        for stream in streams:
            await stream.read()
        engine = engine_of(worker)
        engine.suspend()
        checking = asyncio.create_task(failure_of(worker.load()))
        await becomes(watch, NOT_SERVING)
        for error in await asyncio.gather(*map(failure, streams)):
            assert error.code() == grpc.StatusCode.UNAVAILABLE
        assert (await checking).code() in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED)
        await becomes(watch, SERVING)
        assert not engine.is_running()
        assert (await worker.generate(greedy([1, 5, 9], 30))).ids == before.ids
        assert await metric(worker, tmp_path, "tandem_engine_stalls_total") == 1
        assert await metric(worker, tmp_path, "tandem_engine_step_age_seconds") == 0


async def failure_of(answer: object) -> grpc.aio.AioRpcError:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await asyncio.wait_for(answer, SECONDS)  # type: ignore[arg-type]
    return caught.value


async def test_a_stopped_rank_is_noticed_and_leaves_nobody_behind(random_llama: Path, tmp_path: Path):
    flags = ("--model", str(random_llama), "--tensor-parallel=2", "--engine-stall-seconds=4")
    async with running_worker(tmp_path, *flags) as worker, watched(worker) as watch:
        before = await worker.generate(greedy([1, 5, 9], 10))
        engine, ranks = engine_of(worker), ranks_of(worker)
        ranks[0].suspend()
        await becomes(watch, NOT_SERVING)
        await becomes(watch, SERVING)
        assert not psutil.wait_procs([engine, *ranks], timeout=SECONDS)[1]
        assert (await worker.generate(greedy([1, 5, 9], 10))).ids == before.ids


async def test_a_front_that_was_stopped_leaves_its_engine_alone(random_llama: Path, tmp_path: Path):
    flags = ("--model", str(random_llama), "--engine-stall-seconds=1")
    async with running_worker(tmp_path, *flags) as worker:
        assert worker.process is not None
        front, engine = psutil.Process(worker.process.pid), engine_of(worker)
        call = worker.inference.Generate(greedy([1, 5, 9], 400))
        await call.read()
        for process in (front, engine):
            process.suspend()
        await asyncio.sleep(3)  # the very thing: three times as long as an engine may be silent
        for process in (front, engine):
            process.resume()
        assert (await rest(call))[-1].finished.usage.completion_tokens == 400
        assert engine_of(worker) == engine


@pytest.mark.parametrize("gone", ["vanished", "a file"])
async def test_without_a_folder_for_temporary_files_an_engine_still_comes_back(
    random_llama: Path, tmp_path: Path, gone: str, monkeypatch: pytest.MonkeyPatch
):
    with tempfile.TemporaryDirectory(dir="/tmp") as above:
        temporary = Path(above, "temporary")
        temporary.mkdir()  # noqa: ASYNC240
        monkeypatch.setenv("TMPDIR", str(temporary))
        async with running_worker(tmp_path, "--model", str(random_llama)) as worker, watched(worker) as watch:
            before = await worker.generate(greedy([1, 5, 9], 30))
            shutil.rmtree(temporary)
            if gone == "a file":
                temporary.write_text("in the place of the folder")  # noqa: ASYNC240
            engine_of(worker).kill()
            await becomes(watch, NOT_SERVING)
            await becomes(watch, SERVING)
            assert (await worker.generate(greedy([1, 5, 9], 30))).ids == before.ids


@pytest.mark.parametrize("death", [str(int(signal.SIGSEGV)), "raise"], ids=["by a signal", "by an exception"])
async def test_a_request_that_alone_ends_its_engine_is_not_computed_again(
    random_llama: Path, tmp_path: Path, deadly: dict[str, str], death: str
):
    environment = deadly | {"POISON": death}
    async with (
        running_worker(tmp_path, "--model", str(random_llama), environment=environment) as worker,
        watched(worker) as watch,
    ):
        innocent = worker.inference.Generate(greedy([1, 5, 9], 400))
        while not (await innocent.read()).delta.ids:
            pass
        poisoned = greedy([1, *POISON], 10, request_id="deadly")
        error = await failure(worker.inference.Generate(poisoned))
        assert error.code() == grpc.StatusCode.FAILED_PRECONDITION
        assert info_of(error).reason == "REQUEST_QUARANTINED"
        other = await failure(innocent)
        assert other.code() == grpc.StatusCode.UNAVAILABLE
        assert "suspicions" not in info_of(other).metadata, "it had passed its first step"
        await becomes(watch, NOT_SERVING)
        await becomes(watch, SERVING)
        again = greedy([1, *POISON], 10, request_id="the same under another id")
        assert (await failure(worker.inference.Generate(again))).code() == grpc.StatusCode.FAILED_PRECONDITION
        assert (await worker.generate(greedy([1, 5, 9], 10))).ids
        assert (await worker.admin.GetServer(admin_pb2.GetServerRequest())).engine_restarts == 1
        assert await metric(worker, tmp_path, "tandem_requests_quarantined_total") == 2


async def test_a_request_whose_engine_was_killed_has_more_chances_and_says_how_many(
    random_llama: Path, tmp_path: Path, deadly: dict[str, str]
):
    environment = deadly | {"POISON": str(int(signal.SIGKILL))}
    async with (
        running_worker(tmp_path, "--model", str(random_llama), environment=environment) as worker,
        watched(worker) as watch,
    ):
        told = "0"
        for number in (1, 2):
            call = worker.inference.Generate(
                greedy([1, *POISON, number], 10), metadata=[(SUSPICIONS_KEY, told)], wait_for_ready=True
            )
            error = await failure(call)
            assert error.code() == grpc.StatusCode.UNAVAILABLE
            told = info_of(error).metadata["suspicions"]
            assert told == str(number)
            assert "grpc-retry-pushback-ms" in dict(error.trailing_metadata() or ())
            await becomes(watch, NOT_SERVING)
            await becomes(watch, SERVING)
        last = worker.inference.Generate(greedy([1, *POISON, 3], 10), metadata=[(SUSPICIONS_KEY, told)])
        assert (await failure(last)).code() == grpc.StatusCode.FAILED_PRECONDITION


async def test_a_deadly_request_among_many_is_found_and_only_it_is_lost(
    random_llama: Path, tmp_path: Path, deadly: dict[str, str]
):
    failover = FailoverSettings(attempts=20, initial_backoff_seconds=0.5)
    async with AsyncExitStack() as stack:
        workers = []
        for number in range(2):
            folder = tmp_path / str(number)
            folder.mkdir()
            flags = ("--model", str(random_llama), "--model-name=random")
            workers.append(await stack.enter_async_context(running_worker(folder, *flags, environment=deadly)))
        addresses = [worker.address for worker in workers]
        client = await stack.enter_async_context(AsyncClient(worker=addresses, failover=failover, timeout=SECONDS))
        prompts = [[1, 5, 9 + number] for number in range(12)]
        options = {"temperature": 0.0, "ignore_eos": True, "detokenize": False}
        expected = [(await client.generate(prompt, max_tokens=40, **options)).output_ids for prompt in prompts]
        deaths = await asyncio.gather(
            client.generate([1, *POISON], max_tokens=5, **options),
            *(client.generate(prompt, max_tokens=40, **options) for prompt in prompts),
            return_exceptions=True,
        )
        assert isinstance(deaths[0], QuarantinedError), deaths[0]
        assert not deaths[0].retryable
        assert [answer.output_ids for answer in deaths[1:]] == expected
        killed = [engine_restarts(worker) for worker in workers]
        assert sum(await asyncio.gather(*killed)) <= 3


async def engine_restarts(worker: Worker) -> int:
    return (await worker.admin.GetServer(admin_pb2.GetServerRequest())).engine_restarts


async def test_a_request_that_waits_for_its_turn_can_be_aborted(random_llama: Path, tmp_path: Path):
    suspected = ((SUSPICIONS_KEY, "1"),)
    async with running_worker(tmp_path, "--model", str(random_llama)) as worker:
        engine = engine_of(worker)
        engine.suspend()
        holder = worker.inference.Generate(greedy([1, 5], 1, request_id="holder"), metadata=suspected)
        await holder.read()
        waiting = worker.inference.Generate(greedy([1, 6], 1, request_id="waiting"), metadata=suspected)
        while not list((await worker.inference.Abort(pb.AbortRequest(request_ids=["waiting"]))).aborted_ids):
            assert not waiting.done()
        messages = await rest(waiting)
        assert messages[-1].finished.reason == pb.FINISH_REASON_CANCELLED
        engine.resume()
        assert (await rest(holder))[-1].finished.reason == pb.FINISH_REASON_MAX_TOKENS


async def test_a_suspected_request_whose_reader_does_not_read_keeps_nobody_from_a_turn(
    random_llama: Path, tmp_path: Path
):
    suspected = ((SUSPICIONS_KEY, "1"),)
    output = pb.OutputOptions(prompt_logprobs=True, logprob_ids=range(128), top_logprobs=64)
    longer = ("--rope-scale", "8", "--context-length", "4096")  # so long that the answer is more than is sent unread
    async with running_worker(tmp_path, "--model", str(random_llama), *longer) as worker:
        stuck = worker.inference.Generate(greedy([7] * 4000, 0, output=output), metadata=suspected)
        await stuck.read()
        await worker.settled()
        answer = await rest(worker.inference.Generate(greedy([1, 5], 3), metadata=suspected, timeout=60))
        assert answer[-1].finished.reason == pb.FINISH_REASON_MAX_TOKENS
        assert not stuck.done()
        stuck.cancel()
