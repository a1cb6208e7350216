"""What other streams notice of guides that were written to hurt: gaps between the tokens of 16 plain streams of the
demo model while 4 of one kind at a time are sent again and again, beside the gaps without them.

    python benchmarks/hostile_guides.py [--streams 16] [--hostile 4] [--seconds 8] [--threads 2]

It fails if a gap is over 500 ms or over 5 times the median without hostile guides, if a stream ends with an error, or
if an engine was started again.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import statistics
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import grpc

from benchmarks.machine import ROOT, add_output_flags, save
from benchmarks.serving import service
from tandem.inference.v1 import admin_pb2, admin_pb2_grpc, inference_pb2_grpc
from tandem.inference.v1 import inference_pb2 as pb
from tests.integration.hostile_guides import ALL

WORST_SECONDS, WORST_RATIO = 0.5, 5.0


def request(seed: int, max_tokens: int, **fields: object) -> pb.GenerateRequest:
    return pb.GenerateRequest(
        prompt_ids=[1, 494, 5 + seed],
        sampling=pb.SamplingParams(seed=seed),
        stopping=pb.StoppingParams(max_tokens=max_tokens, ignore_eos=True),
        **fields,  # type: ignore[arg-type]
    )


async def gaps_of(stub: inference_pb2_grpc.InferenceServiceAsyncStub, streams: int, over: asyncio.Event) -> list[float]:
    """Seconds between the messages of each stream, one stream after the other until it is over."""
    gaps: list[float] = []

    async def one(seed: int) -> None:
        while not over.is_set():
            last = 0.0
            async for message in stub.Generate(request(seed, 200)):
                now = time.perf_counter()
                if message.HasField("delta"):
                    if last:
                        gaps.append(now - last)
                    last = now

    await asyncio.gather(*(one(seed) for seed in range(streams)))
    return gaps


async def hurt(
    stub: inference_pb2_grpc.InferenceServiceAsyncStub,
    guide: dict[str, object],
    over: asyncio.Event,
    ends: dict[str, int],
) -> None:
    while not over.is_set():
        try:
            async for message in stub.Generate(request(1, 20, guided=pb.GuidedDecoding(**guide))):  # type: ignore[arg-type]
                if message.HasField("finished"):
                    ends["finished"] = ends.get("finished", 0) + 1
        except grpc.aio.AioRpcError as error:
            ends[error.code().name] = ends.get(error.code().name, 0) + 1


async def measure(options: argparse.Namespace) -> tuple[list[dict[str, object]], bool]:
    """A row for each kind, and whether all is well."""
    model = f"{ROOT}/models/demo"
    rows: list[dict[str, object]] = []
    well = True
    async with (
        service("tandem.tokenizer", f"--tokenizer=demo={model}") as tokenizer,
        service(
            "tandem.worker", f"--model={model}", f"--tokenizer-address={tokenizer}", f"--threads={options.threads}"
        ) as address,
        grpc.aio.insecure_channel(address) as channel,
    ):
        stub = inference_pb2_grpc.InferenceServiceStub(channel)
        median = 0.0
        for name, guide in {"none": None, **ALL}.items():
            over, ends = asyncio.Event(), dict[str, int]()
            asyncio.get_running_loop().call_later(options.seconds, over.set)
            hostile = [hurt(stub, guide, over, ends) for _ in range(options.hostile)] if guide else []
            gaps, *_ = await asyncio.gather(gaps_of(stub, options.streams, over), *hostile)
            median = median or statistics.median(gaps)
            worst = max(gaps)
            well &= guide is None or worst <= min(WORST_SECONDS, WORST_RATIO * median)
            rows.append(
                {
                    "guide": name,
                    "median_ms": round(1e3 * statistics.median(gaps), 1),
                    "p99_ms": round(1e3 * statistics.quantiles(gaps, n=100)[-1], 1),
                    "worst_ms": round(1e3 * worst, 1),
                    "worst_to_median_without": round(worst / median, 1),
                    "ends": ends,
                }
            )
            print(rows[-1], flush=True)
        server = await admin_pb2_grpc.WorkerAdminServiceStub(channel).GetServer(admin_pb2.GetServerRequest())
        print("engines started again:", server.engine_restarts)
        return rows, well and not server.engine_restarts


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--streams", type=int, default=16)
    parser.add_argument("--hostile", type=int, default=4)
    parser.add_argument("--seconds", type=float, default=8)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    add_output_flags(parser)
    options = parser.parse_args()
    rows, well = asyncio.run(measure(options))
    save("hostile_guides", options, rows)
    return 0 if well else 1


if __name__ == "__main__":
    raise SystemExit(main())
