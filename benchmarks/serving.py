"""What do the two services cost? Tokens/s of one model in three ways, side by side in one run:

    engine   the engine in this process: scheduler, model and sampler, no wire (= 1.0)
    worker   a worker process over raw gRPC: ids in, ids out
    sdk      text to text through the SDK, the tokenizer service and the worker

    python benchmarks/serving.py [--model models/demo] [--size HIDDEN LAYERS] [--streams 1 16 64] [--rounds 5]

what a token costs in each process, in microseconds of the processor, which a busy machine disturbs far less than
tokens/s; and how long the engine's steps take when the front and the engine share the cores: the period of a decode
step at 16 streams with the whole worker, against the same engine process whose results nobody streams. There the client
has the lowest priority: it belongs to another machine, and must not take the cores from either.

With `--size` the model is a larger one of random weights with the same tokenizer, whose steps take longer.

Prompts differ, so that nothing is cached; answers are greedy and of fixed length. Rounds alternate between the three
ways, and medians are reported: on a shared machine only ratios within one run mean something. Rounds in which other
processes took more than `--others` of a core are left out, unless all are such. The client runs on the same cores as
the services.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import itertools
import json
import os
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from concurrent.futures import ProcessPoolExecutor
from contextlib import AsyncExitStack, asynccontextmanager
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple

os.environ.setdefault("OMP_NUM_THREADS", "1")
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import grpc
import numpy as np
import torch
from safetensors.torch import save_file

from benchmarks.machine import add_output_flags, busy_seconds, save
from tandem.client import AsyncClient
from tandem.inference.v1 import admin_pb2, admin_pb2_grpc, inference_pb2, inference_pb2_grpc
from tandem.worker.engine.process.build import build_engine
from tandem.worker.engine.process.config import EngineConfig
from tandem.worker.engine.process.handle import ProcessEngine
from tandem.worker.engine.process.messages import Step
from tandem.worker.engine.request import Request, Stopping
from tandem.worker.engine.sampling import Sampling
from tandem.worker.front.validation import validate

PROMPT_TOKENS = 64


def prompts(count: int, vocabulary: int, seed: int) -> list[list[int]]:
    """Random prompts of ordinary ids."""
    return np.random.default_rng(seed).integers(300, vocabulary, (count, PROMPT_TOKENS)).tolist()


def greedy(prompt: list[int], tokens: int) -> inference_pb2.GenerateRequest:
    """A request for so many tokens, the likeliest each."""
    return inference_pb2.GenerateRequest(
        prompt_ids=prompt,
        sampling=inference_pb2.SamplingParams(temperature=0.0, repetition_penalty=1.0),
        stopping=inference_pb2.StoppingParams(max_tokens=tokens, ignore_eos=True),
    )


class Service(NamedTuple):
    """A service that runs in a process of its own."""

    address: str
    pid: int

    def processes(self, name: str, child: str) -> dict[str, int]:
        """Its process by `name`, and by `child` its first one, if it has any."""
        children = Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text().split()
        return {name: self.pid} | ({child: int(children[0])} if children else {})


def write_larger(folder: Path, model: Path, hidden: int, layers: int) -> None:
    """Writes a model like the Llama in the folder `model`, with its tokenizer, but of this size and random."""
    for name in ("chat_template.jinja", "generation_config.json", "tokenizer.model"):
        shutil.copy(model / name, folder)
    config = json.loads((model / "config.json").read_text())
    size, heads = config["head_dim"], hidden // config["head_dim"]
    config |= {"hidden_size": hidden, "intermediate_size": 5 * hidden // 2, "num_hidden_layers": layers}
    config |= {"num_attention_heads": heads, "num_key_value_heads": heads // 2}
    (folder / "config.json").write_text(json.dumps(config))
    inner, kv = config["intermediate_size"], heads // 2 * size
    shapes = {"embed_tokens": (config["vocab_size"], hidden), "norm": (hidden,)}
    for layer in range(layers):
        shapes |= {f"layers.{layer}.{name}": (hidden,) for name in ("input_layernorm", "post_attention_layernorm")}
        matrices = {
            "q_proj": (hidden, hidden),
            "k_proj": (kv, hidden),
            "v_proj": (kv, hidden),
            "o_proj": (hidden, hidden),
        }
        shapes |= {f"layers.{layer}.self_attn.{name}": shape for name, shape in matrices.items()}
        matrices = {"gate_proj": (inner, hidden), "up_proj": (inner, hidden), "down_proj": (hidden, inner)}
        shapes |= {f"layers.{layer}.mlp.{name}": shape for name, shape in matrices.items()}
    generator = torch.Generator().manual_seed(0)
    tensors = {
        f"model.{name}.weight": torch.ones(shape) if len(shape) == 1 else torch.randn(shape, generator=generator) * 0.02
        for name, shape in shapes.items()
    }
    save_file({name: tensor.bfloat16() for name, tensor in tensors.items()}, folder / "model.safetensors")


def processor_seconds(processes: Mapping[str, int]) -> dict[str, float]:
    """The seconds of the processor that each of these processes has used, by the kernel's nanoseconds."""
    return {name: time.clock_gettime(~pid << 3 | 2) for name, pid in processes.items()}


@asynccontextmanager
async def service(module: str, *flags: str) -> AsyncIterator[str]:
    """A service in a process of its own; its address."""
    async with running(module, *flags) as found:
        yield found.address


@asynccontextmanager
async def running(module: str, *flags: str, environment: Mapping[str, str] | None = None) -> AsyncIterator[Service]:
    """A service in a process of its own; `environment` is added to this one's."""
    with tempfile.TemporaryDirectory() as folder:
        address_file = Path(folder, "address.json")
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", module, "--address-file", str(address_file), "--log-level=warning", *flags),
            start_new_session=True,  # as a service has one; the kernel shares the cores among sessions
            env={**os.environ, **(environment or {})},
        )
        try:
            while not address_file.exists():
                assert process.returncode is None, f"{module} ended with {process.returncode}"
                await asyncio.sleep(0.05)
            yield Service(json.loads(address_file.read_text())["address"], process.pid)
        finally:
            process.terminate()
            await process.wait()


async def measure(options: argparse.Namespace) -> list[dict[str, object]]:
    config = EngineConfig(model=options.model, threads=options.threads, dtype=options.dtype)
    engine = build_engine(config)
    vocabulary = engine.config.vocab_size
    decodes: list[float] = []  # seconds of steps that only decode, all streams of a batch

    async def in_engine(batch: list[list[int]]) -> None:
        for number, prompt in enumerate(batch):
            stopping = Stopping(max_tokens=options.tokens)
            engine.engine.submit(Request.make(number, prompt, Sampling(temperature=0.0), stopping))
        while engine.engine.has_work:
            began = time.perf_counter()
            step = engine.engine.step()
            if not step.prefill_tokens and step.decode_tokens == len(batch):
                decodes.append(time.perf_counter() - began)

    async with AsyncExitStack() as stack:
        tokenizer = await stack.enter_async_context(running("tandem.tokenizer", f"--tokenizer={options.model}"))
        flags = (f"--model={options.model}", f"--threads={options.threads}", f"--dtype={options.dtype}")
        worker = await stack.enter_async_context(running("tandem.worker", *flags))
        addresses: dict[str, Any] = {"tokenizer": tokenizer.address, "worker": worker.address}
        client = await stack.enter_async_context(AsyncClient(**addresses))
        channel = await stack.enter_async_context(grpc.aio.insecure_channel(worker.address))
        processes = {
            **worker.processes("front", "engine"),
            **tokenizer.processes("tokenizer", "renderers"),
            "client": os.getpid(),
        }
        stub = inference_pb2_grpc.InferenceServiceStub(channel)

        async def over_grpc(batch: list[list[int]]) -> None:
            async def one(prompt: list[int]) -> None:
                count = 0
                async for message in stub.Generate(greedy(prompt, options.tokens)):
                    count += len(message.delta.ids)
                assert count == options.tokens

            await asyncio.gather(*(one(prompt) for prompt in batch))

        texts: dict[tuple[int, ...], str] = {}

        async def over_sdk(batch: list[list[int]]) -> None:
            async def one(ids: list[int]) -> None:
                # The text of random ids encodes to about as many ids again.
                stream = client.stream(
                    texts[tuple(ids)],
                    max_tokens=options.tokens,
                    ignore_eos=True,
                    temperature=0.0,
                    repetition_penalty=1.0,
                )
                async with stream:
                    async for _ in stream:
                        pass
                assert len(stream.result.output_ids) == options.tokens

            await asyncio.gather(*(one(prompt) for prompt in batch))

        ways: dict[str, Callable[[list[list[int]]], Awaitable[None]]] = {
            "engine": in_engine,
            "worker": over_grpc,
            "sdk": over_sdk,
        }
        rows = []
        for streams in options.streams:
            decodes.clear()
            rates: dict[str, list[float]] = {name: [] for name in ways}
            costs: dict[str, list[dict[str, float]]] = {name: [] for name in ways}
            others: dict[str, list[float]] = {name: [] for name in ways}
            for round_number in range(options.rounds + 1):
                for place, (name, way) in enumerate(ways.items()):
                    batch = prompts(streams, vocabulary, seed=1000 * round_number + 10 * streams + place)
                    if name == "sdk":
                        decoded = await client.decode_batch(batch)
                        texts.update({tuple(prompt): text for prompt, text in zip(batch, decoded, strict=True)})
                    count = streams * options.tokens
                    busy, before, began = busy_seconds(), processor_seconds(processes), time.perf_counter()
                    await way(batch)
                    seconds, after = time.perf_counter() - began, processor_seconds(processes)
                    busy = busy_seconds() - busy - sum(after.values()) + sum(before.values())
                    if round_number:  # the first round warms up
                        rates[name].append(count / seconds)
                        others[name].append(busy / seconds)
                        costs[name].append({part: 1e6 * (after[part] - before[part]) / count for part in processes})
            quiet = [max(taken) <= options.others for taken in zip(*others.values(), strict=True)]
            counted = {name: list(itertools.compress(found, quiet)) or found for name, found in rates.items()}
            medians = {name: statistics.median(values) for name, values in counted.items()}
            row = {"streams": streams, "tokens_per_second": medians, "all_rounds": rates, "cores_of_others": others}
            row["microseconds_a_token"] = {
                name: {part: statistics.median(each[part] for each in measured) for part in processes}
                for name, measured in costs.items()
            }
            row["decode_step_seconds"] = statistics.median(decodes)
            row["share"] = {name: medians[name] / medians["engine"] for name in ways}
            rows.append(row)
            print(
                f"{streams:4d} streams"
                + "".join(f"   {name} {medians[name]:8.0f} tok/s ({row['share'][name]:.2f})" for name in ways)
                + f"   a decode step {row['decode_step_seconds'] * 1e3:.1f} ms"
            )
            for name, parts in row["microseconds_a_token"].items():
                told = ", ".join(f"{part} {cost:.0f}" for part, cost in parts.items() if cost >= 0.5)
                print(f"     us of the processor a token, {name}: {told}", flush=True)
    return rows


def _yield_the_cores() -> None:
    """This process gets what others leave; what it has started keeps its priority."""
    os.nice(19)
    with contextlib.suppress(OSError):  # the kernel may share the cores among sessions before it looks at processes
        Path("/proc/self/autogroup").write_text("19")


async def step_periods(options: argparse.Namespace, threads: int) -> dict[str, object]:
    """Seconds a step at 16 streams, with a front and without one."""
    streams, tokens = 16, 150
    config = EngineConfig(model=options.model, threads=threads, dtype=options.dtype)
    steps: list[Step] = []
    finished = asyncio.Event()

    def receive(message: object) -> None:
        assert isinstance(message, Step)
        steps.append(message)
        if sum(len(step.ended) for step in steps) == streams:
            finished.set()

    engine = ProcessEngine(config, log_level="warning")
    info = await engine.start(receive, lambda done, total: None)

    async def alone(batch: list[list[int]]) -> float:
        steps.clear()
        finished.clear()
        began = time.perf_counter()
        for number, prompt in enumerate(batch):
            submit, _ = validate(greedy(prompt[:16], tokens), info, number=number, seed=0, fingerprint="")
            engine.send(submit)
        await finished.wait()
        return (time.perf_counter() - began) / len(steps)

    flags = (f"--model={options.model}", f"--threads={threads}", f"--dtype={options.dtype}")
    async with service("tandem.worker", *flags) as address, grpc.aio.insecure_channel(address) as channel:
        _yield_the_cores()
        stub = inference_pb2_grpc.InferenceServiceStub(channel)
        admin = admin_pb2_grpc.WorkerAdminServiceStub(channel)

        async def with_front(batch: list[list[int]]) -> float:
            async def one(prompt: list[int]) -> None:
                async for _ in stub.Generate(greedy(prompt[:16], tokens)):
                    pass

            before = (await admin.GetLoad(admin_pb2.GetLoadRequest())).steps
            began = time.perf_counter()
            await asyncio.gather(*(one(prompt) for prompt in batch))
            seconds = time.perf_counter() - began
            return seconds / ((await admin.GetLoad(admin_pb2.GetLoadRequest())).steps - before)

        periods: dict[str, list[float]] = {"alone": [], "with_front": []}
        for round_number in range(2 * options.rounds + 1):
            for name, way in (("alone", alone), ("with_front", with_front)):
                period = await way(prompts(streams, info.vocabulary_size, seed=round_number))
                if round_number:
                    periods[name].append(period)
    await engine.stop()
    medians = {name: statistics.median(values) for name, values in periods.items()}
    ratio = medians["with_front"] / medians["alone"]
    best = min(periods["with_front"]) / min(periods["alone"])
    print(
        f"{threads} threads, {streams} streams: a step takes {medians['alone'] * 1e3:.2f} ms alone, "
        f"{medians['with_front'] * 1e3:.2f} ms with the front ({ratio:.2f}; the quickest rounds {best:.2f})",
        flush=True,
    )
    return {
        "threads": threads,
        "streams": streams,
        "seconds_a_step": medians,
        "ratio": ratio,
        "ratio_of_quickest": best,
        "all_rounds": periods,
    }


def _run_step_periods(options: argparse.Namespace, threads: int) -> dict[str, object]:
    os.setsid()
    return asyncio.run(step_periods(options, threads))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="models/demo")
    parser.add_argument("--size", type=int, nargs=2, metavar=("HIDDEN", "LAYERS"), help="a random model like it")
    parser.add_argument("--streams", type=int, nargs="*", default=[1, 16, 64])
    parser.add_argument(
        "--step-threads", type=int, nargs="*", default=[1, 2], help="engine threads of the step periods"
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--tokens", type=int, default=64, help="output tokens a stream")
    parser.add_argument("--threads", type=int, default=1, help="of the engine")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument(
        "--others", type=float, default=0.2, help="cores that other processes may take in a round that counts"
    )
    add_output_flags(parser)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="tandem-serving-") as folder:
        if options.size:
            write_larger(Path(folder), Path(options.model), *options.size)
            run(argparse.Namespace(**vars(options) | {"model": folder}), options)
        else:
            run(options, options)


def run(options: argparse.Namespace, told: argparse.Namespace) -> None:
    """Measures with `options`; the results say that it was with `told`."""
    suffix = "-{}x{}".format(*options.size) if options.size else ""
    if options.step_threads:
        periods = []
        for threads in options.step_threads:  # each in a process of its own, which yields the cores for good
            with ProcessPoolExecutor(1, get_context("spawn")) as pool:
                periods.append(pool.submit(_run_step_periods, options, threads).result())
        save(f"step-periods{suffix}", told, periods)
    if options.streams:
        save(f"serving{suffix}", told, asyncio.run(measure(options)))


if __name__ == "__main__":
    main()
