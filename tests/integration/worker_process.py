"""A real worker in a process of its own, and short words for talking to it."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import grpc

from tandem.inference.v1 import admin_pb2, admin_pb2_grpc, inference_pb2_grpc
from tandem.inference.v1 import inference_pb2 as pb
from tests import prepared

ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1"}
START_SECONDS = 120  # a bound for a machine under load, not an expectation


@dataclass
class Answer:
    """A whole Generate stream, checked against the invariants of inference.proto."""

    accepted: pb.Accepted | None = None
    ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    ranks: list[int] = field(default_factory=list)
    others: list[pb.TopLogprobs] = field(default_factory=list)
    prompt: pb.PromptLogprobs = field(default_factory=pb.PromptLogprobs)  # its parts, joined
    finished: pb.Finished | None = None
    deltas: int = 0

    def take(self, message: pb.GenerateResponse) -> None:
        event = message.WhichOneof("event")
        assert self.finished is None, "a message follows the finish"
        if event == "accepted":
            assert self.accepted is None and not self.ids, "accepted is first and comes once"
            self.accepted = message.accepted
        elif event == "delta":
            assert self.accepted is not None and message.delta.ids
            assert len(message.delta.logprobs) in (0, len(message.delta.ids)), "arrays are parallel"
            self.ids += message.delta.ids
            self.logprobs += message.delta.logprobs
            self.ranks += message.delta.ranks
            self.others += message.delta.top_logprobs
            self.deltas += 1
        elif event == "prompt_logprobs":
            assert self.accepted is not None and not self.ids, "the prompt comes before the output"
            self.prompt.MergeFrom(message.prompt_logprobs)
        else:
            assert event == "finished"
            self.finished = message.finished
            assert self.finished.usage.completion_tokens == len(self.ids)


@dataclass
class Worker:
    """Stubs of a running worker."""

    address: str
    channel: grpc.aio.Channel
    process: asyncio.subprocess.Process | None = None

    @property
    def inference(self) -> inference_pb2_grpc.InferenceServiceAsyncStub:
        return inference_pb2_grpc.InferenceServiceStub(self.channel)

    @property
    def admin(self) -> admin_pb2_grpc.WorkerAdminServiceAsyncStub:
        return admin_pb2_grpc.WorkerAdminServiceStub(self.channel)

    async def generate(self, request: pb.GenerateRequest, timeout: float = 120) -> Answer:
        answer = Answer()
        async for message in self.inference.Generate(request, timeout=timeout):
            answer.take(message)
        assert answer.finished is not None, "an OK stream has finished"
        return answer

    async def load(self, *, check: bool = True) -> admin_pb2.GetLoadResponse:
        return await self.admin.GetLoad(admin_pb2.GetLoadRequest(check_integrity=check))

    async def settled(self) -> admin_pb2.GetLoadResponse:
        """The load once nothing runs or waits any more."""
        while True:
            load = await self.load()
            assert load.integrity_ok, load.integrity_error
            if not load.running_requests and not load.waiting_requests:
                return load


async def rest(call: grpc.aio.UnaryStreamCall[pb.GenerateRequest, pb.GenerateResponse]) -> list[pb.GenerateResponse]:
    """What is still to come of a call that was begun with `read`."""
    messages = []
    while (message := await call.read()) is not grpc.aio.EOF:
        messages.append(message)
    return messages


def greedy(prompt: Sequence[int], max_tokens: int = 16, **fields: object) -> pb.GenerateRequest:
    """A greedy request."""
    return pb.GenerateRequest(
        prompt_ids=prompt,
        sampling=pb.SamplingParams(temperature=0.0),
        stopping=pb.StoppingParams(max_tokens=max_tokens, ignore_eos=True),
        **fields,  # type: ignore[arg-type]
    )


@asynccontextmanager
async def service_process(
    module: str, folder: Path, *flags: str, environment: Mapping[str, str] | None = None
) -> AsyncIterator[tuple[str, asyncio.subprocess.Process]]:
    """`python -m MODULE FLAGS` until it serves, and its end afterwards; `folder` is for its address file, `environment`
    for variables that it has besides ours."""
    address_file = folder / f"{module}.json"
    temporary = {"TMPDIR": os.environ["TMPDIR"]} if "TMPDIR" in os.environ else {}  # a test may have set it
    variables = ENVIRONMENT | temporary | dict(environment or {})
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", module, "--address-file", str(address_file), *flags, env=variables
    )
    try:
        async with asyncio.timeout(START_SECONDS):
            while not address_file.exists():
                if process.returncode is not None:
                    raise AssertionError(f"{module} ended with {process.returncode}")
                # The file appears by a rename; there is nothing to wait on but the file itself.
                await asyncio.sleep(0.05)
        yield json.loads(address_file.read_text())["address"], process
    finally:
        if process.returncode is None:
            process.terminate()
        await asyncio.wait_for(process.wait(), 60)


@asynccontextmanager
async def running_worker(
    folder: Path, *flags: str, environment: Mapping[str, str] | None = None
) -> AsyncIterator[Worker]:
    """A worker with these flags and variables, and its end afterwards."""
    async with (
        service_process("tandem.worker", folder, "--threads=1", *flags, environment=environment) as (address, process),
        grpc.aio.insecure_channel(address) as channel,
    ):
        yield Worker(address, channel, process)


@asynccontextmanager
async def threaded_worker(folder: Path, *flags: str) -> AsyncIterator[Worker]:
    """A worker whose engine is a thread, forked from a process that has torch: its start is a tenth of another's."""
    address_file = folder / "tandem.worker.json"
    (streams := folder / "streams").mkdir()
    flags = ("--engine=thread", "--threads=1", "--address-file", str(address_file), *flags)
    process = prepared.start(streams, "tandem.worker.__main__", *flags)
    try:
        async with asyncio.timeout(START_SECONDS):
            while not address_file.exists():
                assert process.is_alive(), (streams / "err").read_text()
                await asyncio.sleep(0.05)
        address = json.loads(address_file.read_text())["address"]
        async with grpc.aio.insecure_channel(address) as channel:
            yield Worker(address, channel)
    finally:
        process.terminate()
        await asyncio.to_thread(process.join, 60)
    assert process.exitcode == 0, (streams / "err").read_text()


def failed_start(*flags: str) -> tuple[int, str]:
    """Exit code and standard error of a worker that should not start."""
    done = prepared.run("tandem.worker.__main__", *flags)
    return done.returncode, done.stderr
