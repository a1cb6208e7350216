"""What other streams notice of guides that were written to hurt: gaps between the tokens of 16 plain streams while 4
of one kind at a time are sent again and again, each beside the gaps of the same streams without them just before.

    python benchmarks/hostile_guides.py [--model models/demo] [--only powers wildcards] [--seconds 8] [--threads 2]

It ends with 1 if a gap beside them is over 500 ms or over 5 times the median without hostile guides, if a stream ends
with an error, or if an engine was started again; with 2 if the gaps without them are over that already: then the
machine is too busy to tell.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import statistics
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import grpc

from benchmarks.machine import ROOT, add_output_flags, save
from benchmarks.serving import service
from tandem.inference.v1 import admin_pb2, admin_pb2_grpc, inference_pb2_grpc
from tandem.inference.v1 import inference_pb2 as pb
from tests.integration.hostile_guides import ALL

WORST_SECONDS, WORST_RATIO = 0.5, 5.0


@dataclass(frozen=True, slots=True)
class Gaps:
    """Between two messages of a stream."""

    median_ms: float
    p99_ms: float
    worst_ms: float

    @classmethod
    def of(cls, seconds: list[float]) -> Gaps:
        each = (statistics.median(seconds), statistics.quantiles(seconds, n=100)[-1], max(seconds))
        return cls(*(round(1e3 * value, 1) for value in each))


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


async def measure(options: argparse.Namespace) -> tuple[list[dict[str, object]], int]:
    """A row for each kind, and the exit status."""
    rows: list[dict[str, object]] = []
    status = 0
    async with (
        service("tandem.tokenizer", f"--tokenizer=served={options.tokenizer or options.model}") as tokenizer,
        service(
            "tandem.worker",
            *(f"--model={options.model}", f"--tokenizer-address={tokenizer}", f"--threads={options.threads}"),
        ) as address,
        grpc.aio.insecure_channel(address) as channel,
    ):
        stub = inference_pb2_grpc.InferenceServiceStub(channel)

        async def measured(guide: dict[str, object] | None, ends: dict[str, int]) -> Gaps:
            over = asyncio.Event()
            asyncio.get_running_loop().call_later(options.seconds, over.set)
            hostile = [hurt(stub, guide, over, ends) for _ in range(options.hostile)] if guide else []
            ends_of_hostile = asyncio.gather(*hostile)
            gaps = await gaps_of(stub, options.streams, over)
            await ends_of_hostile
            return Gaps.of(gaps)

        await measured(None, {})  # warms up
        for name, guide in ALL.items():
            if options.only and name not in options.only:
                continue
            ends: dict[str, int] = {}
            without, beside = await measured(None, ends), await measured(guide, ends)
            bound = 1e3 * min(WORST_SECONDS, WORST_RATIO * without.median_ms / 1e3)
            if without.worst_ms > bound:
                status = status or 2
            elif beside.worst_ms > bound:
                status = 1
            ratio = round(beside.worst_ms / without.median_ms, 1)
            rows.append(
                {
                    "guide": name,
                    "without": asdict(without),
                    "beside": asdict(beside),
                    "worst_to_median_without": ratio,
                    "ends": ends,
                }
            )
            print(rows[-1], flush=True)
        server = await admin_pb2_grpc.WorkerAdminServiceStub(channel).GetServer(admin_pb2.GetServerRequest())
        print("engines started again:", server.engine_restarts)
        return rows, 1 if server.engine_restarts else status


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--streams", type=int, default=16)
    parser.add_argument("--hostile", type=int, default=4)
    parser.add_argument("--seconds", type=float, default=8)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--model", default=f"{ROOT}/models/demo", help="the folder or file that the worker serves")
    parser.add_argument("--tokenizer", default="", help="its tokenizer, if that is elsewhere")
    parser.add_argument("--only", nargs="*", default=[], choices=list(ALL), metavar="GUIDE")
    parser.add_argument("--result", default="hostile_guides", help="name of the result")
    add_output_flags(parser)
    options = parser.parse_args()
    rows, status = asyncio.run(measure(options))
    options.model = Path(options.model).name
    options.tokenizer = Path(options.tokenizer).name
    save(options.result, options, rows)
    return status


if __name__ == "__main__":
    raise SystemExit(main())
