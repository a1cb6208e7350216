"""smg from PyPI in front of real workers."""

from __future__ import annotations

import asyncio
import shutil
import socket
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import openai

START_SECONDS = 180  # a bound for a machine under load
SMG = shutil.which("smg")  # in our environment, or in one of its own that is on PATH
HERE = SMG is not None


def free_port() -> int:
    with socket.socket() as opened:
        opened.bind(("127.0.0.1", 0))
        return int(opened.getsockname()[1])


@asynccontextmanager
async def running_smg(
    folder: Path, workers: Sequence[str], model: str, *flags: str, policy: str = "cache_aware"
) -> AsyncIterator[openai.AsyncOpenAI]:
    """smg until its end, and OpenAI's client of it; ready when it has answered. `flags` override ours."""
    port = free_port()
    with (folder / "smg.log").open("wb") as log:
        process = await asyncio.create_subprocess_exec(
            *(
                SMG or "smg",
                "launch",
                "--host",
                "127.0.0.1",
                "--port",
                str(port),
                "--backend",
                "vllm",
                "--policy",
                policy,
            ),
            *("--prometheus-host", "127.0.0.1", "--prometheus-port", str(free_port()), "--log-level", "info"),
            *("--health-check-interval-secs", "1", "--health-failure-threshold", "1", "--load-monitor-interval", "1"),
            *("--worker-urls", *(f"grpc://{address}" for address in workers), *flags),
            stdout=log,
            stderr=log,
        )
    try:
        url = f"http://127.0.0.1:{port}/v1"
        async with openai.AsyncOpenAI(base_url=url, api_key="none", max_retries=0, timeout=60) as client:
            async with asyncio.timeout(START_SECONDS):
                while True:
                    assert process.returncode is None, (folder / "smg.log").read_text()[-2000:]
                    try:
                        await client.completions.create(model=model, prompt="a", max_tokens=1)
                        break
                    except openai.OpenAIError:  # its tokenizer is still on its way
                        await asyncio.sleep(0.2)
            yield client
    finally:
        if process.returncode is None:
            process.terminate()
        try:
            await asyncio.wait_for(process.wait(), 15)
        except TimeoutError:
            process.kill()
            await process.wait()
