"""What does tokenizing as a service cost, and how fast is it? Ratios within one run:

    encode     1 MB texts and batches of 256 short ones through gRPC, beside the bare library in this process
    threads    ten texts of 100 kB in this process: two threads and two processes beside one; and through the service
    decode     BatchDecode through gRPC: ten large lists, a million ids, and 4,000 small ones; one thread and two
    peers      Llama 3 in process, beside Hugging Face `tokenizers`
    stream     the incremental detokenizer in process, beside Hugging Face's DecodeStream; through gRPC with 64 streams
    sdk        streams of the SDK, which share a call: CPU of the server and of the client a request
    floor      the same messages through a bare grpc.aio echo, which is what the transport alone costs
    cache      the last turn of a 20-turn conversation, beside encoding it whole
    load       seconds until a Llama 3 vocabulary is there
    chat       EncodeChat of a question by published templates: the service's CPU a call, its renderers included, and
               what transformers takes to render the same, which keeps what it has compiled, too
    health     the longest that a health probe waited while hostile inputs were served

    python benchmarks/tokenizer.py [--data ../shared/data] [--rounds 20]

Rounds alternate between what is compared, and medians are reported: on a shared machine only ratios within one run mean
something. The client runs on the same cores as the service.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

sys.path[0] = str(Path(__file__).resolve().parent.parent)

import grpc
import grpc.aio
import psutil
import tiktoken
import tokenizers
from grpc_health.v1 import health_pb2, health_pb2_grpc
from sentencepiece import SentencePieceProcessor
from tiktoken.load import load_tiktoken_bpe
from transformers.utils.chat_template_utils import render_jinja_template

from benchmarks.machine import add_output_flags, save
from tandem.client.deadline import Deadline
from tandem.client.decode_calls import DecodeCalls
from tandem.client.decoding import TextDecoder
from tandem.client.metrics import ClientMetrics
from tandem.client.rpc import CallContext
from tandem.client.settings import FailoverSettings
from tandem.common.gguf import read_metadata
from tandem.tokenizer.encode_cache import EncodeCache
from tandem.tokenizer.encoding import Policy, Segment
from tandem.tokenizer.formats import load_tokenizer
from tandem.tokenizer.formats.byte_alphabet import ALPHABET
from tandem.tokenizer.tokenizer import Tokenizer
from tandem.tokenizer.v1 import tokenizer_pb2 as pb
from tandem.tokenizer.v1 import tokenizer_pb2_grpc
from tandem.tokenizer.vocabularies.bpe.pre_tokenizers import LLAMA3
from tandem.tokenizer.vocabulary import Vocabulary
from tests.tokenizer_svc.hostile import KINDS

Measured = dict[str, float]
Running = tuple["tokenizer_pb2_grpc.TokenizerServiceAsyncStub", psutil.Process, str]


@asynccontextmanager
async def service(
    *flags: str,
) -> AsyncIterator[Running]:
    """A tokenizer service in a process of its own: a stub, the process, and its address."""
    with tempfile.TemporaryDirectory() as folder:
        address_file = Path(folder, "address.json")
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "tandem.tokenizer", "--address-file", str(address_file)),
            *("--log-level=warning", "--encode-cache-bytes=0", *flags),
        )
        try:
            while not address_file.exists():
                assert process.returncode is None, f"the service ended with {process.returncode}"
                await asyncio.sleep(0.05)
            address = json.loads(address_file.read_text())["address"]
            options = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]
            async with grpc.aio.insecure_channel(address, options=options) as channel:
                yield tokenizer_pb2_grpc.TokenizerServiceStub(channel), psutil.Process(process.pid), address
        finally:
            process.terminate()
            await process.wait()


async def alternate(rounds: int, **ways: Callable[[], Awaitable[object] | object]) -> Measured:
    """Median seconds of each way, measured in turns; the first turn is not counted."""
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for turn in range(rounds + 1):
        for name, way in ways.items():
            started = time.perf_counter()
            result = way()
            if isinstance(result, Awaitable):
                await result
            if turn:
                seconds[name].append(time.perf_counter() - started)
    return {name: statistics.median(values) for name, values in seconds.items()}


_WORKED_ON: tuple[Vocabulary, list[str]]  # what the processes of `measure_threads` find when they are forked


def _encode_half(half: int) -> int:
    vocabulary, texts = _WORKED_ON
    return sum(len(vocabulary.encode(text)) for text in texts[half::2])


def _in_threads(threads: ThreadPoolExecutor) -> list[int]:
    return list(threads.map(_encode_half, (0, 1)))


async def measure_threads(data: Path, corpus: str, rounds: int) -> dict[str, object]:
    """Ten texts of 100 kB. What two processes make of it is what the machine has to give."""
    global _WORKED_ON
    texts = [corpus[at : at + 100_000] for at in range(0, 10**6, 10**5)]
    results: dict[str, object] = {}
    for name in ("llama3", "llama2"):
        _WORKED_ON = load_tokenizer(data / "formats" / name).vocabulary, texts
        with get_context("fork").Pool(2) as processes, ThreadPoolExecutor(2) as threads:
            seconds = await alternate(
                max(rounds, 20),
                one=lambda: [_encode_half(0), _encode_half(1)],
                threads=partial(_in_threads, threads),
                processes=partial(processes.map, _encode_half, (0, 1), chunksize=1),
            )
        results[name] = {
            "seconds": seconds,
            "two threads / one": seconds["one"] / seconds["threads"],
            "two processes / one": seconds["one"] / seconds["processes"],
        }
    return results


def each_of(function: Callable[[str], object], texts: list[str]) -> list[object]:
    return [function(text) for text in texts]


async def cpu_share(
    library: Callable[[], object], stub: Any, process: psutil.Process, request: object, times: int
) -> float:
    """The library's CPU time as a share of what the service takes for the same, its wire included. Other processes on
    the same cores matter less to this than to a clock on the wall."""
    method = stub.Encode if isinstance(request, pb.EncodeRequest) else stub.BatchEncode
    ours = theirs = 0.0
    for _ in range(times):
        before = sum(process.cpu_times()[:2])
        for _ in range(4):
            await method(request)
        ours += sum(process.cpu_times()[:2]) - before
        before = time.thread_time()
        for _ in range(4):
            library()
        theirs += time.thread_time() - before
    return theirs / ours


def input_of(text: str) -> pb.EncodeInput:
    return pb.EncodeInput(segments=[pb.TextSegment(text=text)], add_special=False)


async def measure_encode(data: Path, corpus: str, rounds: int) -> dict[str, object]:
    """Through the service, beside the libraries."""
    megabyte = corpus[:1_000_000]
    short = [corpus[at : at + 200] for at in range(0, 256 * 200, 200)]
    ranks = load_tiktoken_bpe(str(data / "formats/llama3/tokenizer.model"))
    libraries: dict[str, Callable[[str], object]] = {
        "llama3": tiktoken.Encoding("x", pat_str=LLAMA3, mergeable_ranks=ranks, special_tokens={}).encode_ordinary,
        "llama2": SentencePieceProcessor(model_file=str(data / "formats/llama2/tokenizer.model")).encode,
    }
    results: dict[str, object] = {}
    for name, library in libraries.items():
        flags = (f"--tokenizer={data}/formats/{name}",)
        async with service(*flags, "--threads=1") as (one, *_), service(*flags, "--threads=2") as (two, two_process, _):
            whole = pb.EncodeRequest(input=input_of(megabyte))
            batch = pb.BatchEncodeRequest(inputs=[input_of(text) for text in short])
            large = pb.BatchEncodeRequest(inputs=[input_of(corpus[at : at + 100_000]) for at in range(0, 10**6, 10**5)])
            seconds = await alternate(
                rounds,
                library_1mb=partial(library, megabyte),
                service_1mb=partial(two.Encode, whole),
                library_256x200=partial(each_of, library, short),
                service_256x200=partial(two.BatchEncode, batch),
                one_thread_10x100kb=partial(one.BatchEncode, large),
                two_threads_10x100kb=partial(two.BatchEncode, large),
            )
            cpu = {
                "1 MB": await cpu_share(partial(library, megabyte), two, two_process, whole, 5),
                "256 x 200": await cpu_share(partial(each_of, library, short), two, two_process, batch, 50),
            }
        results[name] = {
            "seconds": seconds,
            "CPU time of the library / of the service's process": cpu,
            "service / library, 1 MB": seconds["library_1mb"] / seconds["service_1mb"],
            "service / library, 256 x 200": seconds["library_256x200"] / seconds["service_256x200"],
            "service, two threads / one": seconds["one_thread_10x100kb"] / seconds["two_threads_10x100kb"],
        }
    return results


async def measure_decode(data: Path, ours: Tokenizer, corpus: str, rounds: int) -> dict[str, object]:
    """Through the service; million ids/s."""
    ids = ours.encode(corpus, add_special=False) * 4
    lists = {
        "10 lists of 30,000": [ids[at : at + 30_000] for at in range(0, 300_000, 30_000)],
        "32 lists of 32,768": [ids[at : at + 32_768] for at in range(0, 1 << 20, 32_768)],
        "4,000 lists of 50": [ids[at : at + 50] for at in range(0, 200_000, 50)],
        "16 lists of 50": [ids[at : at + 50] for at in range(0, 800, 50)],
    }
    flags = (f"--tokenizer={data}/formats/llama3",)
    results: dict[str, object] = {}
    async with service(*flags, "--threads=1") as (one, *_), service(*flags, "--threads=2") as (two, *_):
        for name, parts in lists.items():
            request = pb.BatchDecodeRequest(inputs=[pb.DecodeInput(ids=part) for part in parts])
            seconds = await alternate(
                rounds,
                one=partial(one.BatchDecode, request),
                two=partial(two.BatchDecode, request),
            )
            count = sum(map(len, parts)) / 1e6
            results[name] = {f"{threads} thread(s)": count / taken for threads, taken in seconds.items()}
    return results


def hugging_face_llama3(data: Path) -> tokenizers.Tokenizer:
    """The Llama 3 vocabulary in the `tokenizers` library."""
    path = data / "vocabularies/ggml-vocab-llama-bpe.gguf"
    metadata = read_metadata(path, lambda key: key.startswith("tokenizer.ggml."))
    texts = [token.decode() for token in metadata["tokenizer.ggml.tokens"]]
    merges = [tuple(merge.decode().split(" ")) for merge in metadata["tokenizer.ggml.merges"]]
    vocabulary = {text: index for index, text in enumerate(texts[:128_000])}
    assert set(ALPHABET) <= vocabulary.keys()
    library = tokenizers.Tokenizer(tokenizers.models.BPE(vocabulary, merges, ignore_merges=True))
    library.pre_tokenizer = tokenizers.pre_tokenizers.Sequence(
        [
            tokenizers.pre_tokenizers.Split(tokenizers.Regex(LLAMA3), "isolated"),
            tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    library.decoder = tokenizers.decoders.ByteLevel()
    return library


async def measure_peers(
    data: Path, ours: Tokenizer, theirs: tokenizers.Tokenizer, corpus: str, rounds: int
) -> dict[str, object]:
    """In process, one thread each; and our own RWKV."""
    rwkv = load_tokenizer(data / "vocabularies/ggml-vocab-rwkv-world.gguf")
    text = corpus[:100_000]
    short = [corpus[at : at + 200] for at in range(0, 256 * 200, 200)]
    assert ours.encode(text, add_special=False) == theirs.encode(text, add_special_tokens=False).ids
    seconds = await alternate(
        rounds,
        ours_100kb=lambda: ours.encode(text, add_special=False),
        tokenizers_100kb=lambda: theirs.encode(text, add_special_tokens=False).ids,
        ours_256x200=lambda: [ours.encode(each, add_special=False) for each in short],
        tokenizers_256x200=lambda: [theirs.encode(each, add_special_tokens=False).ids for each in short],
        rwkv_100kb=lambda: rwkv.encode(text, add_special=False),
    )
    return {
        "seconds": seconds,
        "ours / tokenizers, 100 kB": seconds["tokenizers_100kb"] / seconds["ours_100kb"],
        "RWKV, MB/s": 0.1 / seconds["rwkv_100kb"],
        "ours / tokenizers, 256 x 200": seconds["tokenizers_256x200"] / seconds["ours_256x200"],
    }


async def measure_streams(
    data: Path, ours: Tokenizer, theirs: tokenizers.Tokenizer, corpus: str, rounds: int
) -> dict[str, object]:
    """Ids one by one and eight by eight in process; then 64 streams over the wire."""
    ids = ours.encode(corpus[:100_000], add_special=False)
    ones = [[index] for index in ids]
    eights = [ids[at : at + 8] for at in range(0, len(ids), 8)]
    many = [ids[at : at + 64] for at in range(0, len(ids), 64)]

    def decode(parts: list[list[int]], **options: object) -> None:
        push = ours.stream(**options).push  # type: ignore[arg-type]
        for part in parts:
            push(part)

    def decode_theirs() -> None:
        stream = tokenizers.decoders.DecodeStream()
        for index in ids:
            stream.step(theirs, index)

    seconds = await alternate(
        rounds,
        one_by_one=lambda: decode(ones),
        eight_by_eight=lambda: decode(eights),
        one_by_one_with_stop=lambda: decode(ones, stop_strings=["\n\nZZZ", "<stop>"]),
        eight_by_eight_with_stop=lambda: decode(eights, stop_strings=["\n\nZZZ", "<stop>"]),
        sixty_four_with_stop=lambda: decode(many, stop_strings=["\n\nZZZ", "<stop>"]),
        one_by_one_with_frequent_stop=lambda: decode(ones, stop_strings=["the ende", "stopx"]),
        eight_by_eight_with_frequent_stop=lambda: decode(eights, stop_strings=["the ende", "stopx"]),
        sixty_four_with_frequent_stop=lambda: decode(many, stop_strings=["the ende", "stopx"]),
        tokenizers_one_by_one=decode_theirs,
    )
    result: dict[str, object] = {f"million tokens/s, {name}": len(ids) / taken / 1e6 for name, taken in seconds.items()}
    async with service(f"--tokenizer={data}/formats/llama3") as (stub, process, _):
        for width in (1, 8):
            result[f"server CPU microseconds a message, 64 streams, {width} ids"] = await wire_cost(
                stub, process, ids, width
            )
            result[f"server CPU microseconds a request, 64 streams in batches, {width} ids"] = await batch_cost(
                stub, process, ids, width
            )
    return result


async def wire_cost(
    stub: tokenizer_pb2_grpc.TokenizerServiceAsyncStub, process: psutil.Process, ids: list[int], width: int
) -> float:
    """64 streams in 64 calls, 300 messages each."""
    messages = [pb.DecodeStreamRequest(ids=ids[at : at + width]) for at in range(0, 300 * width, width)]

    async def one() -> None:
        call = stub.DecodeStream()
        await call.write(pb.DecodeStreamRequest(open=pb.DecodeStreamOpen()))
        await call.read()
        for message in messages:
            await call.write(message)
            await call.read()
        await call.done_writing()

    await asyncio.gather(*(one() for _ in range(8)))
    before = sum(process.cpu_times()[:2])
    await asyncio.gather(*(one() for _ in range(64)))
    return (sum(process.cpu_times()[:2]) - before) / (64 * len(messages)) * 1e6


async def batch_cost(
    stub: tokenizer_pb2_grpc.TokenizerServiceAsyncStub, process: psutil.Process, ids: list[int], width: int
) -> float:
    """The same 64 streams in one call: a batch of 64 requests is one message."""
    keys = [str(number) for number in range(64)]
    messages = [
        pb.DecodeStreamRequest(batch=[pb.DecodeStreamRequest(stream_key=key, ids=ids[at : at + width]) for key in keys])
        for at in range(0, 300 * width, width)
    ]
    opening = [pb.DecodeStreamRequest(stream_key=key, open=pb.DecodeStreamOpen()) for key in keys]

    async def one() -> None:
        call = stub.DecodeStream()
        await call.write(pb.DecodeStreamRequest(batch=opening))
        await call.read()
        for message in messages:
            await call.write(message)
            await call.read()
        await call.done_writing()

    await one()
    before = sum(process.cpu_times()[:2])
    await one()
    await one()
    return (sum(process.cpu_times()[:2]) - before) / (2 * 64 * len(messages)) * 1e6


async def measure_sdk(data: Path) -> dict[str, object]:
    """One id a request, as the SDK's answers send them: all streams of a client share a call."""
    result: dict[str, object] = {}
    async with service(f"--tokenizer={data}/formats/llama3") as (stub, process, _):
        calls = DecodeCalls(stub)
        context = CallContext(deadline=Deadline.after(None), closed=lambda: False)
        metrics = ClientMetrics(None)

        async def one(count: int) -> None:
            decoder = TextDecoder(calls, pb.DecodeStreamOpen(), context, FailoverSettings(), metrics)
            for index in range(count):
                await decoder.feed([300 + index % 1000])
            decoder.close()

        me = psutil.Process()
        for streams in (1, 16, 64):
            await asyncio.gather(*(one(50) for _ in range(streams)))
            count = 300 if streams > 1 else 1500
            before = [sum(each.cpu_times()[:2]) for each in (process, me)]
            started = time.perf_counter()
            await asyncio.gather(*(one(count) for _ in range(streams)))
            wall = time.perf_counter() - started
            after = [sum(each.cpu_times()[:2]) for each in (process, me)]
            server, client = ((b - a) / (streams * count) * 1e6 for a, b in zip(before, after, strict=True))
            result[f"{streams} streams"] = {
                "server CPU microseconds a request": server,
                "client CPU microseconds a request": client,
                "requests a second": streams * count / wall,
            }
        await calls.close()
    return result


@asynccontextmanager
async def echo_service() -> AsyncIterator[tuple[grpc.aio.Channel, psutil.Process]]:
    """A server that answers each message with itself, in a process of its own."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, __file__, "--echo"), stdout=asyncio.subprocess.PIPE
    )
    assert process.stdout is not None
    address = (await process.stdout.readline()).decode().strip()
    try:
        async with grpc.aio.insecure_channel(address) as channel:
            yield channel, psutil.Process(process.pid)
    finally:
        process.terminate()
        await process.wait()


async def measure_floor() -> dict[str, object]:
    """64 streams through the bare echo, one message each way."""
    async with echo_service() as (channel, server):

        async def one(count: int) -> None:
            call: Any = channel.stream_stream("/echo/Stream")()
            for _ in range(count):
                await call.write(b"a message")
                await call.read()
            await call.done_writing()

        await asyncio.gather(*(one(50) for _ in range(64)))
        before = sum(server.cpu_times()[:2])
        await asyncio.gather(*(one(300) for _ in range(64)))
        cost = (sum(server.cpu_times()[:2]) - before) / (64 * 300) * 1e6
    return {"server CPU microseconds a message, 64 streams": cost}


async def measure_small(data: Path, corpus: str, rounds: int) -> dict[str, object]:
    """An Encode of one short text, and the same bytes through the bare echo, in turns: what a call costs the server, by
    the kernel's clock of its process."""
    request = pb.EncodeRequest(input=pb.EncodeInput(segments=[pb.TextSegment(text=corpus[:40])]))
    result: dict[str, object] = {}
    async with service(f"--tokenizer={data}/formats/llama3") as (stub, process, _), echo_service() as (channel, bare):
        servers = {"encode": process.pid, "echo": bare.pid}
        same: Any = channel.unary_unary("/echo/Unary")
        raw = request.SerializeToString()
        calls: dict[str, Callable[[], Awaitable[object]]] = {
            "encode": lambda: stub.Encode(request),
            "echo": lambda: same(raw),
        }

        async def one(call: Callable[[], Awaitable[object]], count: int) -> None:
            for _ in range(count):
                await call()

        for at_once in (1, 16, 64):
            costs: dict[str, list[float]] = {name: [] for name in calls}
            count = 512 // at_once
            for turn in range(rounds + 1):
                for name, call in calls.items():
                    clock = ~servers[name] << 3 | 2
                    before = time.clock_gettime(clock)
                    await asyncio.gather(*(one(call, count) for _ in range(at_once)))
                    if turn:
                        costs[name].append((time.clock_gettime(clock) - before) / (at_once * count) * 1e6)
            medians = {name: statistics.median(values) for name, values in costs.items()}
            result[f"{at_once} at once, microseconds a call"] = medians | {"ratio": medians["encode"] / medians["echo"]}
    return result


async def measure_chat(data: Path, rounds: int) -> dict[str, object]:
    """Templates of models, one after the other as if there were only one: its renderers have each compiled."""
    turns = [("system", "You are a helpful assistant."), ("user", "What is the capital of France?")]
    messages = [pb.ChatMessage(role=role, content=text) for role, text in turns]
    plain = [{"role": role, "content": text} for role, text in turns]
    result: dict[str, object] = {}
    async with service(f"--tokenizer={data}/formats/llama3", "--caller-template-renderers=1") as (stub, process, _):

        def cpu() -> float:
            return sum(sum(each.cpu_times()[:2]) for each in (process, *process.children(recursive=True)))

        for name in ("meta-llama-Llama-3.3-70B-Instruct", "Qwen-Qwen2.5-7B-Instruct", "google-gemma-2-2b-it"):
            template = (data / f"chat/templates/{name}.jinja").read_text(encoding="utf-8")
            used = plain[1:] if "gemma" in name else plain
            request = pb.EncodeChatRequest(messages=messages[-len(used) :], chat_template=template)
            await stub.EncodeChat(request)
            latencies, before = [], cpu()
            for _ in range(20 * rounds):
                began = time.perf_counter()
                await stub.EncodeChat(request)
                latencies.append(time.perf_counter() - began)
            ours = (cpu() - before) / (20 * rounds)
            before = time.process_time()
            for _ in range(20 * rounds):
                render_jinja_template([used], chat_template=template, add_generation_prompt=True, bos_token="<s>")
            result[name] = {
                "milliseconds": statistics.median(latencies) * 1e3,
                "cpu_milliseconds": ours * 1e3,
                "transformers_cpu_milliseconds": (time.process_time() - before) / (20 * rounds) * 1e3,
            }
    return result


async def echo() -> None:
    async def stream(requests: AsyncIterator[bytes], context: object) -> AsyncIterator[bytes]:
        async for request in requests:
            yield request

    async def unary(request: bytes, context: object) -> bytes:
        return request

    server = grpc.aio.server()
    handlers: dict[str, grpc.RpcMethodHandler[bytes, bytes]] = {
        "Stream": grpc.stream_stream_rpc_method_handler(stream),
        "Unary": grpc.unary_unary_rpc_method_handler(unary),
    }
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("echo", handlers),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    print(f"127.0.0.1:{port}", flush=True)
    await server.wait_for_termination()


async def measure_health(data: Path) -> dict[str, object]:
    """Probes one after the other, 2 ms apart, from a process of their own; milliseconds."""
    result: dict[str, object] = {}
    async with service(f"--tokenizer={data}/formats/llama3") as (stub, _, address):
        prober = await asyncio.create_subprocess_exec(
            *(sys.executable, __file__, "--probe", address),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
        )
        assert prober.stdin is not None and prober.stdout is not None
        for name, attack in KINDS.items():
            prober.stdin.write(b"begin\n")
            await prober.stdout.readline()
            started = time.perf_counter()
            await attack(stub)
            seconds = time.perf_counter() - started
            prober.stdin.write(b"end\n")
            waits = sorted(json.loads(await prober.stdout.readline()))
            result[name] = {
                "seconds": seconds,
                "probes": len(waits),
                "median ms": statistics.median(waits) * 1e3,
                "longest ms": waits[-1] * 1e3,
            }
        prober.stdin.close()
        await prober.wait()
    return result


def probe(address: str) -> None:
    """From one line of standard input to the next: how long each probe took, as a JSON list."""
    with grpc.insecure_channel(address) as channel:
        check = health_pb2_grpc.HealthStub(channel).Check
        check(health_pb2.HealthCheckRequest())
        while sys.stdin.readline():
            waits: list[float] = []
            done = threading.Event()

            def run(waits: list[float] = waits, done: threading.Event = done) -> None:
                while not done.is_set():
                    started = time.perf_counter()
                    check(health_pb2.HealthCheckRequest())
                    waits.append(time.perf_counter() - started)
                    time.sleep(0.002)

            thread = threading.Thread(target=run)
            thread.start()
            print("begun", flush=True)
            sys.stdin.readline()
            done.set()
            thread.join()
            print(json.dumps(waits), flush=True)


async def measure_load(data: Path, rounds: int) -> dict[str, object]:
    files = {"GGUF": "vocabularies/ggml-vocab-llama-bpe.gguf", "tiktoken ranks": "formats/llama3"}
    seconds = await alternate(
        min(rounds, 10), **{name: partial(load_tokenizer, data / file) for name, file in files.items()}
    )
    return {"seconds": seconds}


async def measure_cache(ours: Tokenizer, corpus: str, rounds: int) -> dict[str, object]:
    """A conversation of 20 turns of 500 characters; the last turn is new in every round."""
    turns = [corpus[at : at + 500] for at in range(0, 20 * 500, 500)]
    cached = ours.with_cache(EncodeCache(64 << 20))
    number = iter(range(1_000_000))

    def conversation() -> list[Segment]:
        contents = [*turns[:-1], f"{next(number)} {turns[-1]}"]
        border = Segment("<|eot_id|><|start_header_id|>user<|end_header_id|>\n\n", Policy.PARSE)
        return [segment for content in contents for segment in (border, Segment(content))]

    seconds = await alternate(
        rounds * 2,
        whole=lambda: ours.encode_segments(conversation()),
        last_turn=lambda: cached.encode_segments(conversation()),
    )
    return {"seconds": seconds, "last turn / whole": seconds["last_turn"] / seconds["whole"]}


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=Path("../shared/data"), help="folder with formats/ and corpus/")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--only", nargs="*", help="parts to measure; default: all")
    add_output_flags(parser)
    parser.add_argument("--echo", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--probe", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.echo:
        await echo()
        return
    if options.probe:
        await asyncio.to_thread(probe, options.probe)
        return
    data = options.data.resolve()
    corpus = (data / "corpus/tinyshakespeare.txt").read_text(encoding="utf-8")
    ours, theirs = load_tokenizer(data / "formats/llama3"), hugging_face_llama3(data)
    parts: dict[str, Callable[[], Awaitable[dict[str, object]]]] = {
        "encode": lambda: measure_encode(data, corpus, options.rounds),
        "threads": lambda: measure_threads(data, corpus, options.rounds),
        "decode": lambda: measure_decode(data, ours, corpus, options.rounds),
        "peers": lambda: measure_peers(data, ours, theirs, corpus, options.rounds),
        "stream": lambda: measure_streams(data, ours, theirs, corpus, options.rounds),
        "sdk": lambda: measure_sdk(data),
        "floor": measure_floor,
        "small": lambda: measure_small(data, corpus, options.rounds),
        "cache": lambda: measure_cache(ours, corpus, options.rounds),
        "load": lambda: measure_load(data, options.rounds),
        "chat": lambda: measure_chat(data, options.rounds),
        "health": lambda: measure_health(data),
    }
    results = {name: await part() for name, part in parts.items() if options.only is None or name in options.only}
    print(json.dumps(results, indent=1))
    save("tokenizer", options, results)


if __name__ == "__main__":
    asyncio.run(main())
