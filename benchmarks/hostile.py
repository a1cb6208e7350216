"""What do others notice of a hostile request? Each one is sent while 16 ordinary streams run and a health probe asks
every 5 ms, both from a process of their own; reported are the longest wait of a probe and of a stream, and the answer.

    python benchmarks/hostile.py [--service tokenizer worker] [--only PART_OF_A_NAME] [--streams 16] [--times 3]

`--check` ends with 1 where a probe waited for longer than 100 ms, or a stream for longer than 500 ms or 5 times its
median, and with 2 where a stream waited that long while nothing hostile was sent, before or after: then the machine
was not quiet enough to tell. What gRPC needs to send and receive 16 MB is not ours to save: a message of that size to
Health.Check, which is refused by its length alone, is measured beside the others, and a stream that waits behind a
request no longer than twice as long as behind that has not waited for what is in it.
"""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing
import multiprocessing.connection
import os
import statistics
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

os.environ.setdefault("OMP_NUM_THREADS", "1")
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from benchmarks.machine import add_output_flags, save
from benchmarks.serving import service
from tandem.inference.v1 import inference_pb2, inference_pb2_grpc
from tandem.tokenizer.v1 import tokenizer_pb2, tokenizer_pb2_grpc

ROOT = Path(__file__).resolve().parent.parent
LARGEST = (16 << 20) - 1024  # a little below the default of max_message_bytes
TOKENIZER = "/tandem.tokenizer.v1.TokenizerService/"
WORKER = "/tandem.inference.v1.InferenceService/"
HEALTH = "/grpc.health.v1.Health/"
PROBE_SECONDS = 0.1
STREAM_SECONDS, STREAM_FACTOR, TRANSPORT_FACTOR = 0.5, 5.0, 2.0
LETTER = 100  # the id of `a` in models/demo
UNLIMITED = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]


class Hostile(NamedTuple):
    """One request, written as it is on the wire. Its name begins with that of its method."""

    name: str
    service: str  # /package.Service/
    raw: bytes

    @property
    def method(self) -> str:
        return self.service + self.name.replace(",", " ").split()[0]

    @property
    def at_once(self) -> int:
        """How often it is sent at once."""
        return 16 if self.name == "EncodeChat, 16 looping templates" else 1


def varint(value: int) -> bytes:
    parts = bytearray()
    while value > 0x7F:
        parts.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*parts, value])


def field(number: int, content: bytes, times: int = 1) -> bytes:
    """A length-delimited field."""
    return (varint(number << 3 | 2) + varint(len(content)) + content) * times


def filled(number: int, content: bytes = b"", size: int = LARGEST) -> bytes:
    """The same as often as `size` bytes have room for."""
    one = field(number, content)
    return one * (size // len(one))


TRANSPORT = Hostile("Check, 16 MB that nobody looks at", HEALTH, b"a" * LARGEST)
PLAIN_TEMPLATE = field(5, b"{% for message in messages %}{{ message.content }}{% endfor %}")


def tokenizer_requests() -> dict[str, bytes]:
    letter = field(1, field(1, b"a"))
    user = field(2, field(1, b"user") + field(2, b"hello"))
    stops = b"".join(field(4, b"a" * 1000 + str(place).encode()) for place in range(64))
    held = field(2, b"".join(field(4, b"a" * (1000 - place) + b"b") for place in range(64)))
    loop = field(5, b"{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}")
    chat = PLAIN_TEMPLATE + b"\x38\x01\x40\x01"
    return {
        "Encode, 1.3 million segments": field(2, letter * 1_300_000),
        "Encode, empty segments": field(2, filled(1)),
        "Encode, 4 million parse_ids": field(2, field(1, field(1, b"a") + field(4, b"\x01" * 4_000_000))),
        "Encode, unpacked parse_ids": field(2, field(1, b"\x20\x01" * (LARGEST // 2))),
        "Encode, 65,536 segments": field(2, letter * 65_536),
        "Encode, 4 MiB of text": field(2, field(1, field(1, b"lorem " * 699_000))),
        "Encode with offsets and pieces, 4 MiB": field(2, field(1, field(1, b"a b c d " * 524_000)))
        + b"\x18\x01\x20\x01",
        "Encode, unknown fields": b"\x78\x01" * (LARGEST // 2),
        "CountTokens, 4,096 x 300 segments": field(2, letter * 300) * 4096,
        "CountTokens, 4,096 x 16 segments": field(2, letter * 16) * 4096,
        "BatchEncode, 4,096 x 4 KB": field(2, field(1, field(1, b"lorem " * 680))) * 4096,
        "BatchEncode, empty inputs": filled(2),
        "Decode, 16 million ids": field(2, field(1, b"\x05" * LARGEST)),
        "Decode, a million ids": field(2, field(1, b"\x85\x03" * (1 << 20))),
        "BatchDecode, empty inputs": filled(2),
        "DecodeStream, empty batch entries": filled(5),
        "DecodeStream, 65,536 ids": field(2, b"") + field(3, b"\x85\x03" * 65_536),
        "DecodeStream, 250 opens of 64 stop strings": b"".join(
            field(5, field(1, str(key).encode()) + field(2, stops)) for key in range(250)
        ),
        "DecodeStream, 65,536 ids that may all begin a stop string": held + field(3, varint(LETTER) * 65_536),
        "DecodeStream, 8 million context ids": field(2, field(3, b"\x85\x03" * (LARGEST // 2))),
        "EncodeChat, 100,000 tools": user + field(4, field(1, field(1, b"a") + field(2, b"")), 100_000),
        "EncodeChat, empty messages": filled(2),
        "EncodeChat, tool calls": field(2, field(1, b"user") + filled(4, size=LARGEST - 64)),
        "EncodeChat, 4 MB of content with pieces": field(2, field(1, b"user") + field(2, b"a b c d " * 500_000))
        + chat
        + b"\x48\x01",
        "EncodeChat, 4,096 messages": user * 4096 + chat,
        "EncodeChat, 16 looping templates": user + loop,
    }


def worker_requests() -> dict[str, bytes]:
    prompt = field(3, b"\x05\x06")
    ids = b"\x05" * 65_535 + b"\x06"
    return {
        "Generate, 7.9 million ids": field(3, b"\x85\x01" * 7_900_000),
        "Generate, 16 million ids": field(3, b"\x05" * LARGEST),
        "Generate, unpacked ids": b"\x18\x05" * (LARGEST // 2),
        "Generate, 500,000 DRY breakers": prompt + field(5, field(17, field(5, field(1, b"\x05")) * 500_000)),
        "Generate, empty breakers": prompt + field(5, field(17, filled(5, size=LARGEST - 64))),
        "Generate, logit_bias": prompt + field(5, filled(18, b"\x08\x05")),
        "Generate, choices": prompt + field(9, field(3, filled(1, b"a"))),
        "Generate, stop_sequences": prompt + field(6, filled(4)),
        "Generate, allowed_ids": prompt + field(5, field(19, b"\x05" * (LARGEST - 64))),
        "Generate, 65,536 allowed and banned ids": prompt
        + field(5, field(19, ids) + field(20, b"\x05" * 65_536))
        + field(6, b"\x08\x10"),
        "Generate, 64 samples of 65,536 allowed ids": prompt
        + field(5, field(19, ids))
        + field(6, b"\x08\x04")
        + b"\x58\x40",
        "Generate, 8,192 DRY breakers": prompt
        + field(5, field(17, field(5, field(1, b"\x05" * 16)) * 8192))
        + field(6, b"\x08\x10"),
        "Generate, a request_id of 16 MB": field(1, b"a" * (LARGEST - 64)),
        "Generate, prompt_logprobs of a full context": field(3, b"\x05" * 500)
        + field(6, b"\x08\x00")
        + field(7, b"\x10\x40\x28\x01"),
        "Abort, 5 million ids": filled(1, b"a"),
    }


# --------------------------------------------------------------------------------------- those who should not notice


async def _probe(channel: grpc.aio.Channel, waits: list[float]) -> None:
    stub = health_pb2_grpc.HealthStub(channel)
    while True:
        began = time.monotonic()
        await stub.Check(health_pb2.HealthCheckRequest(), timeout=60)
        waits.append(time.monotonic() - began)
        await asyncio.sleep(0.005)


async def _decode(channel: grpc.aio.Channel, gaps: list[float]) -> None:
    """A stream of text: an id each 30 ms, as a model makes them."""
    call = tokenizer_pb2_grpc.TokenizerServiceStub(channel).DecodeStream()
    await call.write(tokenizer_pb2.DecodeStreamRequest(open=tokenizer_pb2.DecodeStreamOpen(), ids=[300]))
    await call.read()
    while True:
        await asyncio.sleep(0.03)
        began = time.monotonic()
        await call.write(tokenizer_pb2.DecodeStreamRequest(ids=[300]))
        await call.read()
        gaps.append(0.03 + time.monotonic() - began)


async def _generate(channel: grpc.aio.Channel, gaps: list[float]) -> None:
    request = inference_pb2.GenerateRequest(prompt_ids=[5, 6, 7])
    request.stopping.MergeFrom(inference_pb2.StoppingParams(max_tokens=200, ignore_eos=True))
    while True:
        before: float | None = None
        async for message in inference_pb2_grpc.InferenceServiceStub(channel).Generate(request):
            if message.WhichOneof("event") == "delta":
                now = time.monotonic()
                if before is not None:
                    gaps.append(now - before)
                before = now


async def _ordinary(address: str, kind: str, streams: int, pipe: multiprocessing.connection.Connection) -> None:
    """Answers each message of the pipe with what was measured since the last one; ends with the pipe."""
    waits: list[float] = []
    gaps: list[float] = []
    run = _decode if kind == "tokenizer" else _generate
    loop = asyncio.get_running_loop()
    async with (
        grpc.aio.insecure_channel(address, [("grpc.use_local_subchannel_pool", 1)]) as probes,
        grpc.aio.insecure_channel(address, [("grpc.use_local_subchannel_pool", 1)]) as channel,
    ):
        tasks = [asyncio.create_task(_probe(probes, waits))]
        tasks += [asyncio.create_task(run(channel, gaps)) for _ in range(streams)]
        with suppress(EOFError):
            while True:
                await loop.run_in_executor(None, pipe.recv)
                for task in tasks:
                    if task.done():
                        task.result()
                pipe.send((list(waits), list(gaps)))
                waits.clear()
                gaps.clear()
        for task in tasks:
            task.cancel()


def _ordinary_process(address: str, kind: str, streams: int, pipe: multiprocessing.connection.Connection) -> None:
    asyncio.run(_ordinary(address, kind, streams, pipe))


# --------------------------------------------------------------------------------------- the hostile


async def _send(channel: grpc.aio.Channel, hostile: Hostile) -> str:
    call: Any
    raw: Any = hostile.raw
    try:
        if hostile.method.endswith("DecodeStream"):
            call = channel.stream_stream(hostile.method)(iter([raw]), timeout=120)
            async for _ in call:
                pass
        elif hostile.method.endswith("Generate"):
            call = channel.unary_stream(hostile.method)(raw, timeout=120)
            async for _ in call:
                pass
        else:
            await channel.unary_unary(hostile.method)(raw, timeout=120)
    except grpc.aio.AioRpcError as error:
        return f"{error.code().name}: {error.details()}"
    return "OK"


def _row(name: str, wait: float, gap: float, words: str) -> dict[str, object]:
    print(f"| {name} | {wait * 1e3:.0f} | {gap * 1e3:.0f} | {words} |", flush=True)
    return {"request": name, "probe_ms": round(wait * 1e3, 1), "stream_ms": round(gap * 1e3, 1), "answer": words}


async def measure(
    kind: str, address: str, hostiles: list[Hostile], options: argparse.Namespace, rows: list[dict[str, object]]
) -> tuple[list[str], bool]:
    """The names of those behind which others waited for too long, and whether nobody did without them."""
    ours, theirs = multiprocessing.Pipe()
    context = multiprocessing.get_context("spawn")
    ordinary = context.Process(target=_ordinary_process, args=(address, kind, options.streams, theirs), daemon=True)
    ordinary.start()
    failed: list[str] = []

    def read() -> tuple[list[float], list[float]]:
        ours.send(None)
        answer: tuple[list[float], list[float]] = ours.recv()
        return answer

    async with grpc.aio.insecure_channel(address, UNLIMITED) as channel:
        while not all(read()):  # until all of them run
            await asyncio.sleep(0.5)
        await asyncio.sleep(2)
        read()
        await asyncio.sleep(2)
        quiet_waits, quiet_gaps = read()
        median = statistics.median(quiet_gaps)
        rows.append(_row(f"{kind}, nothing hostile", max(quiet_waits), max(quiet_gaps), f"median {median * 1e3:.0f}"))
        transport, bound = 0.0, min(STREAM_SECONDS, STREAM_FACTOR * median)
        for hostile in [TRANSPORT, *hostiles]:
            if options.only not in hostile.name and hostile is not TRANSPORT:
                continue
            worst_wait = worst_gap = seconds = 0.0
            for _ in range(options.times):
                began = time.monotonic()
                answers = await asyncio.gather(*(_send(channel, hostile) for _ in range(hostile.at_once)))
                seconds = max(seconds, time.monotonic() - began)
                await asyncio.sleep(0.3)
                waits, gaps = read()
                worst_wait, worst_gap = max(worst_wait, max(waits)), max(worst_gap, max(gaps))
            rows.append(_row(hostile.name, worst_wait, worst_gap, f"{seconds:.2f} s, {answers[-1][:110]}"))
            if hostile is TRANSPORT:
                transport = worst_gap
            longest = min(STREAM_SECONDS, max(bound, TRANSPORT_FACTOR * transport))
            if worst_wait > PROBE_SECONDS or worst_gap > longest:
                failed.append(hostile.name)
        read()
        await asyncio.sleep(2)
        waits, gaps = read()
        rows.append(_row(f"{kind}, nothing hostile any more", max(waits), max(gaps), ""))
        quiet = max(*quiet_gaps, *gaps) <= bound and max(*quiet_waits, *waits) <= PROBE_SECONDS
    ours.close()
    ordinary.join(10)
    ordinary.kill()
    return failed, quiet


async def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--service", nargs="+", default=["tokenizer", "worker"], choices=["tokenizer", "worker"])
    parser.add_argument("--model", default=str(ROOT / "models" / "demo"))
    parser.add_argument("--only", default="")
    parser.add_argument("--streams", type=int, default=16)
    parser.add_argument("--times", type=int, default=3)
    parser.add_argument("--check", action="store_true")
    add_output_flags(parser)
    options = parser.parse_args()
    failed: list[str] = []
    loud: list[str] = []
    rows: list[dict[str, object]] = []
    chosen: dict[str, tuple[str, Callable[[], dict[str, bytes]], tuple[str, ...]]] = {
        "tokenizer": (TOKENIZER, tokenizer_requests, ("--tokenizer", f"demo={options.model}")),
        "worker": (WORKER, worker_requests, ("--model", options.model, "--threads=1")),
    }
    for kind in options.service:
        path, requests, flags = chosen[kind]
        hostiles = [Hostile(name, path, raw) for name, raw in requests().items()]
        print("| request | longest wait of a probe, ms | of a stream, ms | answer |\n|---|---|---|---|", flush=True)
        async with service(f"tandem.{kind}", *flags) as address:
            found, quiet = await measure(kind, address, hostiles, options, rows)
        failed += found
        if not quiet:
            loud.append(kind)
    save("hostile", options, rows)
    if failed:
        print("others waited for too long behind:", *failed, sep="\n  ", file=sys.stderr)
    if loud:
        print("not quiet enough to judge, others waited as long without:", *loud, file=sys.stderr)
    return 0 if not options.check else 2 if loud and failed else int(bool(failed))


if __name__ == "__main__":
    raise SystemExit(asyncio.run(main()))
