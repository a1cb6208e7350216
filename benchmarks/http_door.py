"""What the HTTP door costs: tokens/s of streams of server-sent events, beside the same streams through the SDK; and
microseconds of the processor a token in the door's process, by the kernel's clock of it.

    python benchmarks/http_door.py [--streams 64] [--tokens 64] [--rounds 5] [--size HIDDEN LAYERS] [--beside CHECKOUT]

    sdk           ids in, text out, through the SDK in this process
    completions   the same ids to /v1/completions
    chat          as many ids as text to /v1/chat/completions, whose answers are parsed at the tokenizer service

All alternate round by round; every round has prompts of its own, so that nothing is cached. The reader of the events
decodes the JSON of each. With `--beside`, the door of another checkout serves the same services and takes turns. With
`--size`, the model is a random one with the demo model's tokenizer, whose steps empty the caches of the processor.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import msgspec

from benchmarks.machine import HOMES, ROOT, add_output_flags, save
from benchmarks.serving import prompts, running, service, write_larger
from tandem.client import AsyncClient

VOCABULARY = 2048
GREEDY: dict[str, Any] = {"temperature": 0.0, "repetition_penalty": 1.0, "ignore_eos": True}


async def over_sdk(client: AsyncClient, batch: list[list[int]], tokens: int) -> int:
    """Returns how many chunks came."""

    async def one(prompt: list[int]) -> int:
        chunks = 0
        async with client.stream(prompt, max_tokens=tokens, **GREEDY) as stream:
            async for _ in stream:
                chunks += 1
        assert stream.result.usage.completion_tokens == tokens
        return chunks

    return sum(await asyncio.gather(*map(one, batch)))


async def over_http(address: str, path: str, bodies: list[dict[str, object]], tokens: int) -> int:
    """Returns how many events came."""
    host, _, port = address.rpartition(":")
    decode = msgspec.json.Decoder().decode

    async def one(asked: dict[str, object]) -> int:
        body = json.dumps(asked).encode()
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(
            b"POST %b HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\nconnection: close\r\n"
            b"content-length: %d\r\n\r\n%b" % (path.encode(), len(body), body)
        )
        events = 0
        last = None
        while line := await reader.readline():
            if line.startswith(b"data: {"):
                last = decode(line[6:])
                events += 1
        writer.close()
        assert last is not None and last["usage"]["completion_tokens"] == tokens, last
        return events

    return sum(await asyncio.gather(*map(one, bodies)))


def completion(prompt: list[int], tokens: int) -> dict[str, object]:
    asked = {"model": "demo", "prompt": prompt, "max_tokens": tokens, "stream": True}
    return {**asked, "stream_options": {"include_usage": True}, **GREEDY}


def chat(prompt: list[int], tokens: int) -> dict[str, object]:
    text = " ".join(str(number) for number in prompt[: len(prompt) // 4])
    asked = {"model": "demo", "messages": [{"role": "user", "content": text}], "max_tokens": tokens, "stream": True}
    return {**asked, "stream_options": {"include_usage": True}, **GREEDY}


async def measure(model: str, options: argparse.Namespace) -> dict[str, object]:
    async with AsyncExitStack() as stack:
        enter = stack.enter_async_context
        tokenizer = await enter(service("tandem.tokenizer", f"--tokenizer={model}"))
        settings = (f"--threads={options.threads}", f"--dtype={options.dtype}", "--model-name=demo")
        worker = await enter(service("tandem.worker", f"--model={model}", *settings))
        flags = (f"--tokenizer-address={tokenizer}", f"--worker-address={worker}")
        doors = {"": await enter(running("tandem.http", *flags))}
        if options.beside:
            places = os.pathsep.join(f"{options.beside}/{home}" for home in HOMES)
            doors[" beside"] = await enter(running("tandem.http", *flags, environment={"PYTHONPATH": places}))
        client = await enter(AsyncClient(tokenizer=tokenizer, worker=worker))

        def through(address: str, path: str, body: Callable[..., dict[str, object]]) -> Callable[..., Awaitable[int]]:
            return lambda batch: over_http(address, path, [body(ids, options.tokens) for ids in batch], options.tokens)

        ways: dict[str, Callable[[list[list[int]]], Awaitable[int]]] = {}
        pids = {}
        if "sdk" in options.ways:
            ways["sdk"], pids["sdk"] = lambda batch: over_sdk(client, batch, options.tokens), os.getpid()
        paths = {"completions": ("/v1/completions", completion), "chat": ("/v1/chat/completions", chat)}
        for name, (path, body) in paths.items():
            for suffix, door in doors.items():
                if name in options.ways:
                    ways[name + suffix], pids[name + suffix] = through(door.address, path, body), door.pid
        rates: dict[str, list[float]] = {name: [] for name in ways}
        costs: dict[str, list[float]] = {name: [] for name in ways}
        events = dict.fromkeys(ways, 0)
        count = options.streams * options.tokens
        for round_number in range(options.rounds + 1):  # the first one warms up
            for place, (name, way) in enumerate(ways.items()):
                batch = prompts(options.streams, VOCABULARY, seed=len(ways) * round_number + place)
                clock = ~pids[name] << 3 | 2
                used, began = time.clock_gettime(clock), time.perf_counter()
                events[name] = await way(batch)
                if round_number:
                    rates[name].append(count / (time.perf_counter() - began))
                    costs[name].append((time.clock_gettime(clock) - used) / count * 1e6)
    rows: dict[str, dict[str, object]] = {}
    for name in ways:
        rows[name] = {
            "tokens_per_second": round(statistics.median(rates[name])),
            "microseconds_a_token": round(statistics.median(costs[name]), 1),
            "all_microseconds": [round(cost, 1) for cost in costs[name]],
            "events_per_token": round(events[name] / count, 2),
        }
        if "sdk" in ways and name != "sdk":
            ratios = [one / sdk for one, sdk in zip(rates[name], rates["sdk"], strict=True)]
            rows[name] |= {"ratio": round(statistics.median(ratios), 3), "ratios": [round(each, 3) for each in ratios]}
        print(name, rows[name])
    return {"streams": options.streams, **rows}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--streams", type=int, default=64)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1, help="of the engine")
    parser.add_argument(
        "--size", type=int, nargs=2, metavar=("HIDDEN", "LAYERS"), help="a random model like the demo's"
    )
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--ways", nargs="*", default=["sdk", "completions", "chat"])
    parser.add_argument("--beside", default="", help="another checkout, whose door takes turns")
    add_output_flags(parser)
    options = parser.parse_args()
    demo = ROOT / "models/demo"
    if options.size is None:
        save("http_door", options, asyncio.run(measure(str(demo), options)))
        return
    with tempfile.TemporaryDirectory(prefix="tandem-door-") as folder:
        write_larger(Path(folder), demo, *options.size)
        save("http_door-{}x{}".format(*options.size), options, asyncio.run(measure(folder, options)))


if __name__ == "__main__":
    main()
