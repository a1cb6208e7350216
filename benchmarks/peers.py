"""Other people's servers, each started in a process of its own by an interpreter that has it."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import tempfile
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import httpx

PATIENCE = 600  # seconds that a server may take to be ready: vLLM compiles
_BLOCK = 32  # tokens of a page of transformers' continuous batching


class Limits(NamedTuple):
    """What a server must hold."""

    streams: int
    tokens: int  # of a stream, prompt and answer
    threads: int


@dataclass(frozen=True)
class Launch:
    """How a server is started, and asked."""

    command: list[str]
    model: str
    environment: dict[str, str] = field(default_factory=dict)
    extra: dict[str, object] = field(default_factory=dict)  # in each request, beside OpenAI's own fields
    takes_ids: bool = True  # else prompts are text


class Peer(NamedTuple):
    """A server that is ready."""

    address: str
    pid: int
    model: str
    extra: dict[str, object]
    takes_ids: bool


_LLAMA_CPP = """
import sys, threading
import xllamacpp
path, port, streams, room, threads = sys.argv[1], *map(int, sys.argv[2:])
p = xllamacpp.CommonParams()
p.model.path, p.hostnames, p.port = path, ["127.0.0.1"], port
p.n_parallel, p.n_ctx, p.kv_unified, p.n_gpu_layers = streams, streams * room, False, 0
p.cpuparams.n_threads = p.cpuparams_batch.n_threads = threads
p.cache_prompt, p.cache_ram_mib = False, 0
server = xllamacpp.Server(p)
threading.Event().wait()
"""


def _llama_cpp(interpreter: str, path: Path, port: int, limits: Limits) -> Launch:
    room = -(-limits.tokens // 256) * 256  # it has contexts of whole 256 tokens
    numbers = map(str, (port, limits.streams, room, limits.threads))
    return Launch(
        [interpreter, "-c", _LLAMA_CPP, f"{path}.gguf", *numbers],
        "model",
        extra={"ignore_eos": True, "cache_prompt": False},
    )


def _vllm(interpreter: str, path: Path, port: int, limits: Limits) -> Launch:
    flags = [f"--model={path}", "--served-model-name=model", "--host=127.0.0.1", f"--port={port}", "--dtype=bfloat16"]
    flags += [f"--max-model-len={limits.tokens + 16}", f"--max-num-seqs={limits.streams}"]
    return Launch(
        [interpreter, "-m", "vllm.entrypoints.openai.api_server", *flags, "--no-enable-prefix-caching"],
        "model",
        {
            "VLLM_CPU_KVCACHE_SPACE": "2",
            "VLLM_CPU_OMP_THREADS_BIND": f"0-{limits.threads - 1}",
            "VLLM_NO_USAGE_STATS": "1",
            "HF_HUB_OFFLINE": "1",
        },
        {"ignore_eos": True},
    )


def _transformers(interpreter: str, path: Path, port: int, limits: Limits) -> Launch:
    blocks = limits.streams * (-(-limits.tokens // _BLOCK) + 1)
    flags = ["--host=127.0.0.1", f"--port={port}", "--device=cpu", "--dtype=bfloat16", "--continuous-batching"]
    flags += [f"--cb-block-size={_BLOCK}", f"--cb-num-blocks={blocks}", "--attn-implementation=sdpa"]
    return Launch(
        [interpreter, "-m", "transformers.cli.transformers", "serve", *flags, str(path)],
        str(path),
        {"OMP_NUM_THREADS": str(limits.threads), "HF_HUB_OFFLINE": "1"},
        takes_ids=False,
    )


PEERS: dict[str, Callable[[str, Path, int, Limits], Launch]] = {
    "llama.cpp": _llama_cpp,
    "vllm": _vllm,
    "transformers": _transformers,
}


@asynccontextmanager
async def peer(name: str, interpreter: str, path: Path, limits: Limits) -> AsyncIterator[Peer]:
    """A server of `PEERS` for the model at `path`, once it is ready. Raises RuntimeError with the end of what it wrote
    where it gives up."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    launch = PEERS[name](interpreter, path, port, limits)
    with tempfile.TemporaryFile() as log:
        process = await asyncio.create_subprocess_exec(
            *launch.command, env={**os.environ, **launch.environment}, stdout=log, stderr=log, start_new_session=True
        )
        try:
            await _ready(f"http://127.0.0.1:{port}/health", process)
            yield Peer(f"127.0.0.1:{port}", process.pid, launch.model, launch.extra, launch.takes_ids)
        except _GivenUpError:
            log.seek(0)
            said = log.read().decode(errors="replace").strip().splitlines()
            raise RuntimeError(f"{name} did not start: {' | '.join(said[-3:])}") from None
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            await process.wait()


class _GivenUpError(Exception):
    """A server ended, or was not ready in time."""


async def _ready(url: str, process: asyncio.subprocess.Process) -> None:
    async with httpx.AsyncClient() as client, asyncio.timeout(PATIENCE):
        while True:
            if process.returncode is not None:
                raise _GivenUpError
            with suppress(httpx.TransportError):
                if (await client.get(url)).status_code == 200:
                    return
            await asyncio.sleep(0.2)
