"""What spans cost: answers through both services without tracing, with 1 % of the requests sampled, and with all.

    pip install 'tandem-llm[otel]'
    python benchmarks/tracing.py [--rounds 9] [--requests 400]

Three stacks with the demo model run side by side, and rounds go around them; those that trace export to a receiver of
OTLP. Reported: each round's requests a second, and the processor time of a request in the tokenizer service and the
worker's front, which other work on the machine hardly changes; the ratios are medians of rounds that follow each other.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import sys
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import grpc.aio
import psutil

from benchmarks.machine import ROOT, add_output_flags, save
from benchmarks.serving import service
from tandem.client import AsyncClient

MODEL = str(ROOT / "models" / "demo")
EXPORT = "opentelemetry.proto.collector.trace.v1.TraceService"
KINDS = {"off": None, "1 %": 0.01, "all": 1.0}


@dataclass
class Stack:
    """One pair of services."""

    client: AsyncClient
    fronts: list[psutil.Process]

    def processor(self) -> float:
        """Seconds that its fronts have computed."""
        return sum(sum(front.cpu_times()[:2]) for front in self.fronts)


@asynccontextmanager
async def receiver() -> AsyncIterator[str]:
    """Takes spans, and forgets them."""

    async def export(request: bytes, context: object) -> bytes:
        return b""

    server = grpc.aio.server()
    method: Any = grpc.unary_unary_rpc_method_handler(export)
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(EXPORT, {"Export": method}),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    yield f"http://127.0.0.1:{port}"
    await server.stop(None)


@asynccontextmanager
async def running(share: float | None, endpoint: str) -> AsyncIterator[Stack]:
    """Both services, tracing this share of the requests."""
    flags = () if share is None else (f"--otlp-endpoint={endpoint}", f"--trace-share={share}")
    before = {each.pid for each in psutil.Process().children()}
    async with AsyncExitStack() as stack:
        tokenizer = await stack.enter_async_context(service("tandem.tokenizer", f"--tokenizer=demo={MODEL}", *flags))
        worker = await stack.enter_async_context(
            service("tandem.worker", f"--model={MODEL}", "--model-name=demo", "--threads=1", *flags)
        )
        fronts = [each for each in psutil.Process().children() if each.pid not in before]
        client = await stack.enter_async_context(AsyncClient(tokenizer, worker, timeout=300))
        yield Stack(client, fronts)


async def one_round(stack: Stack, options: argparse.Namespace) -> dict[str, float]:
    """Requests a second, and milliseconds of the fronts' processor a request."""
    numbers = iter(range(options.requests))

    async def caller() -> None:
        for number in numbers:
            await stack.client.generate(f"{number} ROMEO:", max_tokens=options.tokens, ignore_eos=True)

    began, computed = time.perf_counter(), stack.processor()
    await asyncio.gather(*(caller() for _ in range(options.callers)))
    seconds = time.perf_counter() - began
    return {
        "requests_per_second": options.requests / seconds,
        "processor_ms": 1000 * (stack.processor() - computed) / options.requests,
    }


async def measure(options: argparse.Namespace) -> dict[str, object]:
    rounds: dict[str, list[dict[str, float]]] = {name: [] for name in KINDS}
    async with AsyncExitStack() as stack:
        endpoint = await stack.enter_async_context(receiver())
        stacks = {name: await stack.enter_async_context(running(share, endpoint)) for name, share in KINDS.items()}
        for each in stacks.values():
            await one_round(each, options)  # warm
        for _ in range(options.rounds):
            for name, each in stacks.items():
                rounds[name].append(await one_round(each, options))
    ratios: dict[str, dict[str, float]] = {}
    for name in list(KINDS)[1:]:
        ratios[name] = {
            what: statistics.median(a[what] / b[what] for a, b in zip(rounds[name], rounds["off"], strict=True))
            for what in ("requests_per_second", "processor_ms")
        }
        print(f"{name}: {ratios[name]['requests_per_second']:.3f} x the requests a second, "
              f"{ratios[name]['processor_ms']:.3f} x the processor time")  # fmt: skip
    return {"rounds": rounds, "median_ratios": ratios}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--requests", type=int, default=400)
    parser.add_argument("--callers", type=int, default=16)
    parser.add_argument("--tokens", type=int, default=16)
    add_output_flags(parser)
    options = parser.parse_args()
    save("tracing", options, asyncio.run(measure(options)))


if __name__ == "__main__":
    main()
