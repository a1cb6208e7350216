"""What does a flood of one caller leave the others? One worker, five callers by their tokens, in four ways:

    alone    four callers with ordinary requests (64 tokens in, 64 out)
    fair     beside a fifth that asks for what they do: what is fair
    shared   beside a fifth that always has 64 maximal ones (half of the context in, half out)
    blind    shared, but all five show one token: the worker cannot tell them apart

    python benchmarks/callers.py [--model models/demo] [--depths 1 16] [--callers 4] [--rounds 3]

`--depths`: requests that each of the four has at a time. Reported of them: the median time to first token, and of what
the worker computes (prompts that began and output) the smallest share among the four against an equal one. One that
asks for less than an equal share cannot get it: then its rate against the fair one says more, `fair_rate` (of the
caller that got least). `fair_first_token` is the time to first token against the fair one. The goal beside the flood
is 0.8 of the fair rate at least, and 2 times the fair time at most. Rounds alternate between the ways, and medians are
reported.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import statistics
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import grpc
import numpy as np

from benchmarks.machine import add_output_flags, save
from benchmarks.serving import greedy, service
from tandem.inference.v1 import admin_pb2, admin_pb2_grpc, inference_pb2_grpc

ORDINARY, FLOOD = ("b", "c", "d", "e"), 64  # callers; requests
SIZE = (64, 64)  # tokens in and out
WAYS = ("alone", "fair", "shared", "blind")


@dataclass
class Caller:
    """What one caller was served."""

    token: str
    tokens: int = 0
    first: list[float] = field(default_factory=list)  # seconds


class Measurement:
    """One worker's callers."""

    def __init__(
        self, stub: inference_pb2_grpc.InferenceServiceAsyncStub, vocabulary: int, context: int, callers: int
    ) -> None:
        self._ordinary = ORDINARY[:callers]
        self._stub, self._vocabulary, self._maximal = stub, vocabulary, (context // 2, context // 2 - 1)
        self._random = np.random.default_rng(0)

    async def ask(self, caller: Caller, size: tuple[int, int]) -> None:
        request = greedy(self._random.integers(300, self._vocabulary, size[0]).tolist(), size[1])
        began, new = time.perf_counter(), True
        async for message in self._stub.Generate(request, metadata=(("authorization", f"Bearer {caller.token}"),)):
            if message.delta.ids:
                if new:
                    caller.first.append(time.perf_counter() - began)
                    caller.tokens += size[0]
                    new = False
                caller.tokens += len(message.delta.ids)

    async def flood(self, caller: Caller) -> None:
        async def again() -> None:
            while True:
                await self.ask(caller, self._maximal)

        await asyncio.gather(*(again() for _ in range(FLOOD)))

    async def round(self, way: str, depth: int, requests: int) -> dict[str, float]:
        flood = Caller(token_of("flood"))
        callers = [Caller(token_of("flood" if way == "blind" else name)) for name in self._ordinary]
        if way == "fair":
            callers.append(Caller(flood.token))
        flooding = asyncio.create_task(self.flood(flood)) if way in ("shared", "blind") else None
        if flooding is not None:
            while len(flood.first) < 16:
                await asyncio.sleep(0.05)
        before, began = flood.tokens, time.perf_counter()

        async def one(caller: Caller) -> None:
            for _ in range(requests):
                await self.ask(caller, SIZE)

        asking = [asyncio.create_task(one(caller)) for caller in callers for _ in range(depth)]
        # What is left behind the first that has done is less than what a caller could use.
        await asyncio.wait(asking, return_when=asyncio.FIRST_COMPLETED if depth > 1 else asyncio.ALL_COMPLETED)
        seconds = time.perf_counter() - began
        total = sum(caller.tokens for caller in callers) + flood.tokens - before
        served = [caller.tokens for caller in callers]
        await asyncio.wait(asking)
        if flooding is not None:
            flooding.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await flooding
        equal = total / (len(callers) + (flooding is not None))
        return {
            "seconds_to_first_token": statistics.median(second for caller in callers for second in caller.first),
            "tokens_per_second_of_a_caller": statistics.mean(served) / seconds,
            "smallest_tokens_per_second": min(served) / seconds,
            "tokens_per_second_in_all": total / seconds,
            "smallest_share_of_an_equal_one": min(served) / equal,
        }


def token_of(name: str) -> str:
    return f"benchmark-token-of-{name}"


async def measure(options: argparse.Namespace) -> list[dict[str, object]]:
    with tempfile.TemporaryDirectory() as folder:
        tokens = Path(folder, "tokens")
        tokens.write_text("".join(f"{name}: {token_of(name)}\n" for name in ("flood", *ORDINARY)))
        flags = (f"--model={options.model}", f"--threads={options.threads}", f"--dtype={options.dtype}")
        limits = (f"--max-running-requests={options.running}", f"--auth-token-file={tokens}")
        async with service("tandem.worker", *flags, *limits) as address, grpc.aio.insecure_channel(address) as channel:
            admin = admin_pb2_grpc.WorkerAdminServiceStub(channel)
            metadata = (("authorization", f"Bearer {token_of('flood')}"),)
            model = await admin.GetModel(admin_pb2.GetModelRequest(), metadata=metadata)
            measurement = Measurement(
                inference_pb2_grpc.InferenceServiceStub(channel),
                model.vocabulary_size,
                model.context_length,
                options.callers,
            )
            rows: list[dict[str, object]] = []
            for depth in options.depths:
                rounds: dict[str, list[dict[str, float]]] = {way: [] for way in options.ways}
                await measurement.round("alone", depth, 1)  # warms up
                for _ in range(options.rounds):
                    for way in options.ways:
                        # A caller that cannot be told apart waits for whole maximal requests: once says enough.
                        requests = 1 if way == "blind" else max(4, options.requests // depth)
                        rounds[way].append(await measurement.round(way, depth, requests))
                medians = {
                    way: {name: statistics.median(each[name] for each in found) for name in found[0]}
                    for way, found in rounds.items()
                }
                fair = medians["fair"]
                for values in medians.values():
                    values["fair_rate"] = values["smallest_tokens_per_second"] / fair["smallest_tokens_per_second"]
                    values["fair_first_token"] = values["seconds_to_first_token"] / fair["seconds_to_first_token"]
                rows.append({"depth": depth, "medians": medians, "all_rounds": rounds})
                for way, values in medians.items():
                    told = ", ".join(f"{name} {value:.3g}" for name, value in values.items())
                    print(f"{depth} at a time, {way}: {told}", flush=True)
            return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="models/demo")
    parser.add_argument("--depths", type=int, nargs="*", default=[1, 16])
    parser.add_argument("--requests", type=int, default=8, help="of each ordinary caller, one after the other")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--callers", type=int, default=len(ORDINARY), choices=range(1, 1 + len(ORDINARY)))
    parser.add_argument("--ways", nargs="*", default=list(WAYS), choices=WAYS, help="fair is always one of them")
    parser.add_argument("--running", type=int, default=32, help="requests that run at once")
    parser.add_argument("--threads", type=int, default=1, help="of the engine")
    parser.add_argument("--dtype", default="float32")
    add_output_flags(parser)
    options = parser.parse_args()
    options.ways = [way for way in WAYS if way == "fair" or way in options.ways]
    save("callers", options, asyncio.run(measure(options)))


if __name__ == "__main__":
    main()
