"""The gateway smg in front of two real workers: the same answers, and one worker drained or lost under load."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import openai
import psutil
import pytest

pytest.importorskip(
    "smg_grpc_proto", reason="the gateway's contract is not installed: pip install 'tandem-llm[gateway]'"
)

from tandem.inference.v1 import admin_pb2
from tandem.inference.v1 import inference_pb2 as pb
from tandem.tokenizer.formats import load_tokenizer
from tests.integration.smg_process import HERE, running_smg
from tests.integration.worker_process import Worker, running_worker

pytestmark = [pytest.mark.slow, pytest.mark.skipif(not HERE, reason="smg is not installed: pip install smg")]
PAGE = 16


@dataclass
class Fleet:
    """Two workers and a client of the gateway in front of them."""

    workers: list[Worker]
    client: openai.AsyncOpenAI

    async def complete(self, prompt: str, max_tokens: int = 8, seed: int = 1) -> str:
        answer = await self.client.completions.create(
            model="demo", prompt=prompt, max_tokens=max_tokens, seed=seed, temperature=0.8
        )
        return answer.choices[0].text

    async def served(self) -> list[int]:
        """Prompt tokens that each worker has admitted."""
        return [(await worker.load(check=False)).prompt_tokens for worker in self.workers]


@asynccontextmanager
async def fleet(
    repository: Path, folder: Path, *flags: str, policy: str = "cache_aware", worker: str = "--metrics-port=0"
) -> AsyncIterator[Fleet]:
    demo = repository / "models" / "demo"
    async with AsyncExitStack() as stack:
        workers = []
        for name in ("one", "two"):
            (folder / name).mkdir()
            settings = ("--gateway", "--kv-cache-tokens=8192", f"--page-size={PAGE}", worker)
            started = running_worker(folder / name, "--model", str(demo), "--model-name=demo", *settings)
            workers.append(await stack.enter_async_context(started))
        addresses = [worker.address for worker in workers]
        client = await stack.enter_async_context(running_smg(folder, addresses, "demo", *flags, policy=policy))
        yield Fleet(workers, client)


async def test_answers_through_the_gateway_are_those_of_the_worker(repository: Path, tmp_path: Path):
    tokenizer = load_tokenizer(repository / "models" / "demo")
    async with fleet(repository, tmp_path) as both:
        for seed, prompt in enumerate(["ROMEO:\n", "  two spaces", "é 😀 \n\n\tx", "the " * 40]):
            through = await both.client.completions.create(
                model="demo", prompt=prompt, max_tokens=24, seed=seed, temperature=0.8, top_p=0.9
            )
            streamed = ""
            async for event in await both.client.completions.create(
                model="demo", prompt=prompt, max_tokens=24, seed=seed, temperature=0.8, top_p=0.9, stream=True
            ):
                streamed += event.choices[0].text if event.choices else ""
            ids = list(map(int, tokenizer.encode(prompt, add_special=False)))  # smg puts no BOS before a text
            for worker in both.workers:
                direct = await worker.generate(
                    pb.GenerateRequest(
                        prompt_ids=ids,
                        # 0.8 and 0.9 as they arrive: the gateway's contract has float32.
                        sampling=pb.SamplingParams(temperature=float32(0.8), top_p=float32(0.9), seed=seed),
                        stopping=pb.StoppingParams(max_tokens=24),
                    )
                )
                text = tokenizer.decode(direct.ids)
                assert through.choices[0].text == streamed == text
                assert through.usage is not None and through.usage.prompt_tokens == len(ids)
                assert through.usage.completion_tokens == len(direct.ids)
        ids = list(map(int, tokenizer.encode("JULIET:\n")))
        direct = await both.workers[0].generate(
            pb.GenerateRequest(
                prompt_ids=ids,
                sampling=pb.SamplingParams(temperature=0.0),
                stopping=pb.StoppingParams(max_tokens=24),
            )
        )
        body = {"max_new_tokens": 24, "temperature": 0.0}
        answer = await both.client.post(
            str(both.client.base_url.copy_with(path="/generate")),
            cast_to=list[dict[str, object]],
            body={"model": "demo", "input_ids": ids, "sampling_params": body},
        )
        assert answer[0]["output_ids"] == direct.ids
        with pytest.raises(openai.BadRequestError, match="max_tokens"):
            await both.complete("a", max_tokens=0)


def float32(value: float) -> float:
    return pb.Delta(logprobs=[value]).logprobs[0]


async def load(both: Fleet, requests: int, going: asyncio.Event) -> list[BaseException]:
    """Sixteen callers; returns what went wrong."""
    failures: list[BaseException] = []
    numbers = iter(range(requests))

    async def caller() -> None:
        for number in numbers:
            try:
                assert await both.complete(f"{number} MENENIUS:\n", 24, number)
            except openai.OpenAIError as error:
                failures.append(error)
            if number > 20:
                going.set()

    await asyncio.gather(*(caller() for _ in range(16)))
    return failures


async def test_a_worker_that_drains_costs_nothing_and_one_that_is_killed_only_what_it_was_doing(
    repository: Path, tmp_path: Path
):
    async with fleet(repository, tmp_path, policy="round_robin") as both:
        first, second = both.workers
        going = asyncio.Event()
        running = asyncio.create_task(load(both, 120, going))
        await going.wait()
        await first.admin.SetDraining(admin_pb2.SetDrainingRequest(draining=True))
        assert not await running, "a drain loses no request"
        before = await both.served()
        assert not await load(both, 30, asyncio.Event())
        assert (await both.served())[0] == before[0], "nothing new came to the one that drains"
        await first.admin.SetDraining(admin_pb2.SetDrainingRequest(draining=False))
        async with asyncio.timeout(60):
            while (await both.served())[0] == before[0]:  # it comes back by itself
                await both.complete("again")

        going = asyncio.Event()
        running = asyncio.create_task(load(both, 120, going))
        await going.wait()
        assert second.process is not None
        second.process.kill()
        failures = await running
        assert len(failures) <= 16, "what ran there, and nothing after it"
        assert not await load(both, 30, asyncio.Event())


async def test_a_worker_whose_engine_hangs_is_left_out(repository: Path, tmp_path: Path):
    flags = ("--worker-wedge-secs", "2")
    async with fleet(repository, tmp_path, *flags, worker="--engine-stall-seconds=3600") as both:
        second = both.workers[1]
        assert second.process is not None
        children = psutil.Process(second.process.pid).children()
        (engine,) = [each for each in children if "tandem.worker.engine.process.main" in each.cmdline()]
        stuck = [asyncio.create_task(both.complete(f"{number} stuck", 400)) for number in range(16)]
        while (await second.load(check=False)).output_tokens < 100:  # a prompt may take long; these are beyond it
            pass
        engine.suspend()
        try:
            in_a_row, asked = 0, 0
            async with asyncio.timeout(120):
                while in_a_row < 8:  # every second one would hang if it were still asked
                    asked += 1
                    try:
                        async with asyncio.timeout(10):
                            await both.complete(f"{asked} is anybody there?", 4)
                        in_a_row += 1
                    except TimeoutError:
                        in_a_row, asked = 0, 0
            assert not all(task.done() for task in stuck), "it hangs still"
            assert "wedged" in (tmp_path / "smg.log").read_text(), "and that is why"
        finally:
            engine.resume()
        await asyncio.gather(*stuck, return_exceptions=True)
