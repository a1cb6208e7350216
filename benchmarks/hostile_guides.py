"""What other streams notice of guides that were written to hurt: gaps between the tokens of 16 plain streams while 4
of one kind at a time are sent again and again, in turn with the same streams without them, for as long.

    python benchmarks/hostile_guides.py [--model models/demo] [--only powers wildcards] [--seconds 4] [--rounds 2]

It ends with 1 if a gap beside them is over 500 ms or over 5 times the median without hostile guides, if a stream ends
with an error, or if an engine was started again. A kind beside which that happens is not judged where it happens to the
same streams without them as well: the machine did something else then. If that is all that there is, it ends with 2.
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
HELD, MISSED, NOT_QUIET = "held", "missed", "not quiet enough to judge"


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


def stolen() -> float:
    """Seconds that this machine's cores had to wait for the machine below it, so far."""
    lines = Path("/proc/stat").read_text("ascii").splitlines() if Path("/proc/stat").exists() else []
    return int(lines[0].split()[8]) / os.sysconf("SC_CLK_TCK") if lines else 0.0


def judged(without: Gaps, beside: Gaps) -> str:
    """Whether the goal is held beside a kind of guide."""
    bound = 1e3 * min(WORST_SECONDS, WORST_RATIO * without.median_ms / 1e3)
    if beside.worst_ms <= bound:
        return HELD
    return NOT_QUIET if without.worst_ms > bound else MISSED


async def measure(options: argparse.Namespace) -> tuple[list[dict[str, object]], int]:
    """A row for each kind, and the exit status."""
    rows: list[dict[str, object]] = []
    async with (
        service("tandem.tokenizer", f"--tokenizer=served={options.tokenizer or options.model}") as tokenizer,
        service(
            "tandem.worker",
            *(f"--model={options.model}", f"--tokenizer-address={tokenizer}", f"--threads={options.threads}"),
        ) as address,
        grpc.aio.insecure_channel(address) as channel,
    ):
        stub = inference_pb2_grpc.InferenceServiceStub(channel)

        async def measured(guide: dict[str, object] | None, ends: dict[str, int]) -> list[float]:
            over = asyncio.Event()
            asyncio.get_running_loop().call_later(options.seconds, over.set)
            hostile = [hurt(stub, guide, over, ends) for _ in range(options.hostile)] if guide else []
            ends_of_hostile = asyncio.gather(*hostile)
            gaps = await gaps_of(stub, options.streams, over)
            await ends_of_hostile
            return gaps

        await measured(None, {})  # warms up
        for name, guide in ALL.items():
            if options.only and name not in options.only:
                continue
            ends: dict[str, int] = {}
            seconds: tuple[list[float], list[float]] = ([], [])
            waits = [0.0, 0.0]
            for turn in range(2 * options.rounds):
                before = stolen()
                seconds[turn % 2].extend(await measured(guide if turn % 2 else None, ends))
                waits[turn % 2] += stolen() - before
            without, beside = map(Gaps.of, seconds)
            rows.append(
                {
                    "guide": name,
                    "without": asdict(without),
                    "beside": asdict(beside),
                    "worst_to_median_without": round(beside.worst_ms / without.median_ms, 1),
                    "stolen_ms_without": round(1e3 * waits[0]),
                    "stolen_ms_beside": round(1e3 * waits[1]),
                    "goal": judged(without, beside),
                    "ends": ends,
                }
            )
            print(rows[-1], flush=True)
        server = await admin_pb2_grpc.WorkerAdminServiceStub(channel).GetServer(admin_pb2.GetServerRequest())
        print("engines started again:", server.engine_restarts)
        goals = {row["goal"] for row in rows}
        return rows, 1 if server.engine_restarts or MISSED in goals else 2 if NOT_QUIET in goals else 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--streams", type=int, default=16)
    parser.add_argument("--hostile", type=int, default=4)
    parser.add_argument("--seconds", type=float, default=4, help="of each round, without and beside")
    parser.add_argument("--rounds", type=int, default=2)
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
