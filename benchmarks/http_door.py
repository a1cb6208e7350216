"""What the HTTP door costs: tokens/s of streams of server-sent events, beside the same streams through the SDK.

    python benchmarks/http_door.py [--streams 64] [--tokens 64] [--rounds 5]

Both alternate round by round; every round has prompts of its own, so that nothing is cached. The reader of the events
decodes the JSON of each.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import sys
import time
from contextlib import AsyncExitStack
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import msgspec

from benchmarks.machine import ROOT, add_output_flags, save
from benchmarks.serving import prompts, service
from tandem.client import AsyncClient

VOCABULARY = 2048
GREEDY = {"temperature": 0.0, "repetition_penalty": 1.0, "ignore_eos": True}


async def over_sdk(client: AsyncClient, batch: list[list[int]], tokens: int) -> None:
    async def one(prompt: list[int]) -> None:
        async with client.stream(prompt, max_tokens=tokens, **GREEDY) as stream:
            async for _ in stream:
                pass
        assert stream.result.usage.completion_tokens == tokens

    await asyncio.gather(*map(one, batch))


async def over_http(address: str, batch: list[list[int]], tokens: int) -> int:
    """Returns how many events came."""
    host, _, port = address.rpartition(":")
    decode = msgspec.json.Decoder().decode

    async def one(prompt: list[int]) -> int:
        asked = {"model": "demo", "prompt": prompt, "max_tokens": tokens, "stream": True,
                 "stream_options": {"include_usage": True}, **GREEDY}  # fmt: skip
        body = json.dumps(asked).encode()
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(
            b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\nconnection: close\r\n"
            b"content-length: %d\r\n\r\n%b" % (len(body), body)
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

    return sum(await asyncio.gather(*map(one, batch)))


async def measure(options: argparse.Namespace) -> dict[str, object]:
    model = f"{ROOT}/models/demo"
    async with AsyncExitStack() as stack:
        enter = stack.enter_async_context
        tokenizer = await enter(service("tandem.tokenizer", f"--tokenizer={model}"))
        worker = await enter(service("tandem.worker", f"--model={model}", f"--threads={options.threads}"))
        flags = (f"--tokenizer-address={tokenizer}", f"--worker-address={worker}")
        door = await enter(service("tandem.http", *flags))
        client = await enter(AsyncClient(tokenizer=tokenizer, worker=worker))
        rates: dict[str, list[float]] = {"sdk": [], "http": []}
        events = 0
        for round_number in range(options.rounds + 1):  # the first one warms up
            for place, way in enumerate(rates):
                batch = prompts(options.streams, VOCABULARY, seed=2 * round_number + place)
                began = time.perf_counter()
                if way == "sdk":
                    await over_sdk(client, batch, options.tokens)
                else:
                    events = await over_http(door, batch, options.tokens)
                if round_number:
                    rates[way].append(options.streams * options.tokens / (time.perf_counter() - began))
    medians = {way: statistics.median(found) for way, found in rates.items()}
    ratios = [http / sdk for http, sdk in zip(rates["http"], rates["sdk"], strict=True)]
    row = {
        "streams": options.streams,
        "tokens_per_second": {way: round(rate) for way, rate in medians.items()},
        "ratio": round(statistics.median(ratios), 3),
        "ratios": [round(ratio, 3) for ratio in ratios],
        "events_per_token": round(events / (options.streams * options.tokens), 2),
    }
    print(row)
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--streams", type=int, default=64)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1)
    add_output_flags(parser)
    options = parser.parse_args()
    save("http_door", options, asyncio.run(measure(options)))


if __name__ == "__main__":
    main()
