"""How many tokens a second do whole servers stream over the network, beside each other's?

Closed loops of `--streams` callers, `--prompt` tokens in and `--tokens` out, greedy, the end of the text ignored; no
two prompts share anything, so that nothing is cached. All servers run at once and take turns, so that only one of them
computes; their client and they share the cores. One client for all: the `openai` package over `/v1/completions` with
server-sent events. `tandem sdk` are the same services through Tandem's own client over gRPC, ids in and text out.

tandem         tokenizer service, worker and HTTP door
llama.cpp      its own server, which `xllamacpp` contains            (--llama-cpp PYTHON: an interpreter that has it)
vllm           its OpenAI server, of the CPU build                   (--vllm PYTHON; for BF16)
transformers   `transformers serve`, continuous batching  (--transformers PYTHON, that has `accelerate` too; for BF16)

    python benchmarks/servers.py --llama-cpp PYTHON --vllm PYTHON [--layers 4] [--kinds BF16 Q8_0]

A round begins when the servers whose turns are over have come to rest: some poll for seconds after their last answer,
on the cores of whose turn is next.

Reported: tokens/s of a round, medians; seconds to the first token and between two messages (ITL), p50 and p99 over all
requests; milliseconds of the processor a token, in the server's processes and in the client, and what other processes
took of the cores meanwhile. The first round has the same prompts for all and is not counted: how much of a text begins
as Tandem's does shows that all compute the same model, until rounding leads two of them apart.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Collection, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import numpy as np
import openai

from benchmarks.machine import add_output_flags, busy_seconds, save
from benchmarks.peers import PEERS, Limits, peer
from benchmarks.serving import running
from benchmarks.shapes import SHAPES
from benchmarks.word_model import prompts, text_of, write_model
from tandem.client import AsyncClient

GREEDY: dict[str, Any] = {"temperature": 0.0, "repetition_penalty": 1.0, "ignore_eos": True}
KINDS = ("BF16", "Q8_0", "Q4_0")
REST_CORES = 0.05  # that all servers together may use between two rounds
LONGEST_REST_SECONDS = 60.0


@dataclass
class Answer:
    """When its messages came, in seconds after it was asked for, and what they said."""

    times: list[float] = field(default_factory=list)
    text: str = ""
    tokens: int = 0


Ask = Callable[[list[int], int], Awaitable[Answer]]  # a prompt, and how many tokens are wanted


def over_http(address: str, model: str, extra: Mapping[str, object], *, takes_ids: bool = True) -> Ask:
    """Asks a server of OpenAI's completions; `takes_ids` says whether prompts may be ids, else they are text."""
    client = openai.AsyncOpenAI(base_url=f"http://{address}/v1", api_key="none", max_retries=0, timeout=3600)

    async def ask(prompt: list[int], tokens: int) -> Answer:
        answer, began = Answer(), time.perf_counter()
        stream = await client.completions.create(
            model=model,
            prompt=prompt if takes_ids else text_of(prompt),
            max_tokens=tokens,
            temperature=0.0,
            stream=True,
            stream_options={"include_usage": True},
            extra_body=extra,
        )
        async for chunk in stream:
            if chunk.usage is not None:
                answer.tokens = chunk.usage.completion_tokens
            if chunk.choices and chunk.choices[0].text:
                answer.times.append(time.perf_counter() - began)
                answer.text += chunk.choices[0].text
        return answer

    return ask


def over_sdk(client: AsyncClient) -> Ask:
    async def ask(prompt: list[int], tokens: int) -> Answer:
        answer, began = Answer(), time.perf_counter()
        async with client.stream(prompt, max_tokens=tokens, **GREEDY) as stream:
            async for chunk in stream:
                answer.times.append(time.perf_counter() - began)
                answer.text += chunk.text
        answer.tokens = stream.result.usage.completion_tokens
        return answer

    return ask


def processor_seconds(pids: list[int]) -> float:
    """Of these processes and all their descendants that still run."""
    total = 0.0
    for pid in pids:
        total += time.clock_gettime(~pid << 3 | 2)
        for thread in Path(f"/proc/{pid}/task").iterdir():
            total += processor_seconds([int(child) for child in (thread / "children").read_text().split()])
    return total


async def closed_loop(ask: Ask, batch: list[list[int]], streams: int, tokens: int) -> list[Answer]:
    """Each of `streams` callers asks for the next prompt as soon as it has its answer. Raises ValueError where an
    answer has another number of tokens."""
    waiting = iter(enumerate(batch))
    answers: dict[int, Answer] = {}

    async def caller() -> None:
        for number, prompt in waiting:
            answers[number] = answer = await ask(prompt, tokens)
            if answer.tokens != tokens:
                raise ValueError(f"an answer has {answer.tokens} tokens instead of {tokens}")

    await asyncio.gather(*(caller() for _ in range(streams)))
    return [answers[number] for number in range(len(batch))]


@dataclass
class Way:
    """A server and how it is asked."""

    ask: Ask
    pids: list[int]  # of its processes, less their children
    rates: list[float] = field(default_factory=list)
    answers: list[Answer] = field(default_factory=list)
    first: list[str] = field(default_factory=list)
    seconds: dict[str, list[float]] = field(default_factory=lambda: {"server": [], "client": []})
    others: list[float] = field(default_factory=list)  # cores that other processes took

    async def measure(self, batch: list[list[int]], streams: int, tokens: int) -> None:
        """A round."""
        busy, before, ours, began = (
            busy_seconds(),
            processor_seconds(self.pids),
            time.process_time(),
            time.perf_counter(),
        )
        self.answers += await closed_loop(self.ask, batch, streams, tokens)
        wall = time.perf_counter() - began
        client, server = time.process_time() - ours, processor_seconds(self.pids) - before
        self.rates.append(len(batch) * tokens / wall)
        self.seconds["client"].append(client)
        self.seconds["server"].append(server)
        self.others.append((busy_seconds() - busy - client - server) / wall)


async def rest(ways: Collection[Way]) -> None:
    """Waits until no server does anything, for a bounded time."""
    pids = sorted({pid for way in ways for pid in way.pids})
    until = time.perf_counter() + LONGEST_REST_SECONDS
    while time.perf_counter() < until:
        used = processor_seconds(pids)
        await asyncio.sleep(1)
        if processor_seconds(pids) - used <= REST_CORES:
            return


async def tandem(stack: AsyncExitStack, path: Path, options: argparse.Namespace) -> dict[str, Way]:
    """Tandem's three services, and two ways to ask them."""
    enter = stack.enter_async_context
    file = f"{path}.gguf"
    tokenizer = await enter(running("tandem.tokenizer", f"--tokenizer={file}"))
    room = options.streams * (options.prompt + options.tokens + 64)
    flags = [f"--model={file}", f"--threads={options.threads}", f"--kv-cache-tokens={room}", "--dtype=bfloat16"]
    worker = await enter(running("tandem.worker", *flags))
    addresses = [f"--tokenizer-address={tokenizer.address}", f"--worker-address={worker.address}"]
    door = await enter(running("tandem.http", *addresses))
    client = await enter(AsyncClient(tokenizer=tokenizer.address, worker=worker.address))
    model = await asyncio.to_thread(_served, door.address)
    services = [tokenizer.pid, worker.pid]
    return {
        "tandem": Way(over_http(door.address, model, GREEDY), [*services, door.pid]),
        "tandem sdk": Way(over_sdk(client), services),
    }


def _served(address: str) -> str:
    """The first model of a server."""
    client = openai.OpenAI(base_url=f"http://{address}/v1", api_key="none")
    return next(iter(client.models.list())).id


async def measure(
    kind: str, path: Path, options: argparse.Namespace, tell: Callable[[dict[str, object]], None]
) -> None:
    """Tells what is known after each round: what ends a run early leaves the rounds before."""
    async with AsyncExitStack() as stack:
        ways = await tandem(stack, path, options)
        failed = await add_peers(stack, ways, kind, path, options)
        failed |= await warm_up(ways, options)
        count = options.streams * options.requests
        for round_number in range(options.rounds):
            for place, (name, way) in enumerate(ways.items()):
                batch = prompts(count, options.prompt, seed=1 + round_number * len(ways) + place)
                await rest(ways.values())
                await way.measure(batch, options.streams, options.tokens)
                told = f"{way.rates[-1]:.1f} tokens/s, others {way.others[-1]:.2f} cores"
                print(f"  {name}: {told}", flush=True)
            rows = {name: row(way, ways["tandem"], count * options.tokens) for name, way in ways.items()}
            tell({**rows, **failed})


async def add_peers(
    stack: AsyncExitStack, ways: dict[str, Way], kind: str, path: Path, options: argparse.Namespace
) -> dict[str, str]:
    """Adds the peers that were asked for and read the kind to `ways`; returns why one did not start."""
    limits = Limits(options.streams, options.prompt + options.tokens, options.threads)
    failed: dict[str, str] = {}
    for name in PEERS:
        interpreter = getattr(options, name)
        if not interpreter or (kind != "BF16" and name != "llama.cpp"):
            continue
        try:
            found = await stack.enter_async_context(peer(name, interpreter, path, limits))
        except RuntimeError as error:
            failed[name] = str(error)
            continue
        ask = over_http(found.address, found.model, found.extra, takes_ids=found.takes_ids)
        ways[name] = Way(ask, [found.pid])
    return failed


async def warm_up(ways: dict[str, Way], options: argparse.Namespace) -> dict[str, str]:
    """The same prompts for all; peers that cannot answer leave `ways`. Returns why."""
    failed: dict[str, str] = {}
    batch = prompts(options.streams, options.prompt, seed=0)
    for name, way in list(ways.items()):
        try:
            answers = await closed_loop(way.ask, batch, options.streams, options.warm_tokens)
        except (openai.OpenAIError, ValueError) as error:
            if name not in PEERS:
                raise
            failed[name] = str(error)
            del ways[name]
        else:
            way.first = [answer.text for answer in answers]
            print(f"  {name} is warm", flush=True)
    return failed


def alike(a: str, b: str) -> str:
    """What both begin with."""
    return "".join(x for x, _ in itertools.takewhile(lambda pair: pair[0] == pair[1], zip(a, b, strict=False)))


def row(way: Way, ours: Way, tokens: int) -> dict[str, object]:
    gaps = [gap for answer in way.answers for gap in np.diff(answer.times)]
    firsts = [answer.times[0] for answer in way.answers]
    common = [len(alike(a, b)) / max(1, len(a)) for a, b in zip(ours.first, way.first, strict=True)]
    return {
        "tokens_per_second": statistics.median(way.rates),
        "all_rounds": way.rates,
        "cores_of_others": way.others,
        "tandem_is": statistics.median(a / b for a, b in zip(ours.rates, way.rates, strict=True)),
        "ttft_seconds": {f"p{at}": float(np.percentile(firsts, at)) for at in (50, 99)},
        "itl_seconds": {f"p{at}": float(np.percentile(gaps, at)) for at in (50, 99)},
        "messages_per_token": sum(len(answer.times) for answer in way.answers)
        / sum(answer.tokens for answer in way.answers),
        "processor_ms_per_token": {
            side: 1e3 * statistics.median(seconds) / tokens for side, seconds in way.seconds.items()
        },
        "text_in_common": statistics.median(common),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in PEERS:
        parser.add_argument(f"--{name.replace('.', '-')}", dest=name, default="", metavar="PYTHON")
    parser.add_argument("--shape", default="llama-1b", choices=SHAPES)
    parser.add_argument("--layers", type=int, help="instead of the shape's own")
    parser.add_argument("--kinds", nargs="+", default=["BF16"], choices=KINDS)
    parser.add_argument("--streams", type=int, default=16)
    parser.add_argument("--prompt", type=int, default=128)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--warm-tokens", type=int, default=32, help="out, in the first round, which is not counted")
    parser.add_argument("--requests", type=int, default=2, help="of each caller in a round")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--folder", help="where the models are, or stay once they are made")
    parser.add_argument("--write", action="store_true", help="make the models in --folder, and measure nothing")
    add_output_flags(parser)
    options = parser.parse_args()
    shape = SHAPES[options.shape]
    layers = options.layers or shape.layers
    results: dict[str, dict[str, object]] = {}
    asked = [name for name in PEERS if getattr(options, name)]
    benchmark = "-".join(["servers", *asked, f"{layers}-layers"])
    with tempfile.TemporaryDirectory(prefix="tandem-servers-") as temporary:
        for kind in options.kinds:
            path = Path(options.folder or temporary) / f"{options.shape}-{layers}-layers-{kind}"
            if not path.with_name(f"{path.name}.gguf").exists():
                write_model(path, kind, shape, layers)
            if options.write:
                continue

            def tell(found: dict[str, object], kind: str = kind) -> None:
                results[kind] = found
                save(benchmark, options, results)

            asyncio.run(measure(kind, path, options, tell))
            for name, told in results[kind].items():
                print(f"{kind} {name}: {json.dumps(told)}", flush=True)


if __name__ == "__main__":
    main()
