"""The SDK and the command line against the real tokenizer service and real workers, as separate processes."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import pickle
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import psutil
import pytest

from tandem.client import (
    AsyncClient,
    ChatMessage,
    Client,
    Conversation,
    FailoverSettings,
    FinishReason,
    GenerateOptions,
    InvalidArgumentError,
    Segment,
)
from tandem.client.affinity import score
from tandem.inference.v1 import admin_pb2, admin_pb2_grpc

pytest.importorskip("torch", reason="the worker needs torch")
pytest.importorskip("sentencepiece", reason="the tokenizer service needs sentencepiece")

pytestmark = pytest.mark.slow

START_SECONDS = 120


class Process:
    """A service in a process of its own."""

    def __init__(self, folder: Path, module: str, *arguments: str) -> None:
        self._file = folder / f"{len(list(folder.iterdir()))}.json"
        self._log = self._file.with_suffix(".log").open("w")
        self.process = subprocess.Popen(
            [
                sys.executable,
                "-m",
                module,
                *arguments,
                f"--address-file={self._file}",
                "--exit-when-stdin-closes",
                "--no-metrics-enabled",
                "--drain-grace-seconds=1",
            ],
            stdin=subprocess.PIPE,
            stdout=self._log,
            stderr=subprocess.STDOUT,
        )

    def address(self) -> str:
        until = time.monotonic() + START_SECONDS
        while not self._file.exists():
            assert self.process.poll() is None, Path(self._log.name).read_text()
            assert time.monotonic() < until, Path(self._log.name).read_text()
            time.sleep(0.05)
        return json.loads(self._file.read_text())["address"]

    def kill_group(self) -> None:
        """As the kernel does when memory is short: front and engine at once, without a word."""
        victims = [*psutil.Process(self.process.pid).children(recursive=True), psutil.Process(self.process.pid)]
        for victim in victims:
            victim.kill()
        self.process.wait(30)

    def stop(self) -> None:
        if self.process.poll() is None:
            self.process.terminate()
        self.process.wait(60)
        assert self.process.stdin is not None
        self.process.stdin.close()
        self._log.close()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("services")


@pytest.fixture(scope="module")
def demo(repository_root: Path) -> Path:
    return repository_root / "models" / "demo"


@pytest.fixture(scope="module")
def repository_root() -> Path:
    return Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def tokenizer(folder: Path, demo: Path) -> Iterator[str]:
    process = Process(folder, "tandem.tokenizer", f"--tokenizer=demo={demo}")
    yield process.address()
    process.stop()


@pytest.fixture(scope="module")
def worker(folder: Path, demo: Path, tokenizer: str) -> Iterator[str]:
    process = Process(folder, "tandem.worker", f"--model={demo}", f"--tokenizer-address={tokenizer}", "--threads=1")
    yield process.address()
    process.stop()


@pytest.fixture
async def client(tokenizer: str, worker: str):
    async with AsyncClient(tokenizer, worker, timeout=60) as client:
        yield client


SAMPLERS = {
    "preset": "creative",
    "dynamic_temperature_range": 0.2,
    "tail_free_z": 0.99,
    "typical_p": 0.98,
    "min_p": 0.001,
    "top_a": 0.001,
    "xtc_probability": 0.3,
    "presence_penalty": 0.1,
    "dry_multiplier": 0.5,
    "dry_sequence_breakers": [[13], [5, 6]],
    "dry_breakers": "\n",
    "logit_bias": {100: 2.0},
    "banned_ids": [5, 6],
    "banned_sequences": [[7, 8]],
    "seed": 3,
    "max_tokens": 24,
}
FLAGS = [
    "--preset",
    "creative",
    "--dynamic-temperature-range",
    "0.2",
    "--tail-free-z",
    "0.99",
    "--typical-p",
    "0.98",
    "--min-p",
    "0.001",
    "--top-a",
    "0.001",
    "--xtc-probability",
    "0.3",
    "--presence-penalty",
    "0.1",
    "--dry-multiplier",
    "0.5",
    "--dry-breaker-ids",
    "13",
    "--dry-breaker-ids",
    "5,6",
    "--dry-breaker",
    "\\n",
    "--logit-bias",
    "100=2",
    "--ban-id",
    "5,6",
    "--ban-sequence",
    "7,8",
    "--seed",
    "3",
    "--max-tokens",
    "24",
    "--json",
    "--top-logprobs",
    "2",
    "--prompt-logprobs",
    "--echo",
]


async def test_samplers_and_logprobs_by_sdk_and_command_line(client: AsyncClient, tokenizer: str, worker: str) -> None:
    asked: dict[str, Any] = {**SAMPLERS, "top_logprobs": 2, "prompt_logprobs": True, "echo": True}
    result = await client.generate("ROMEO:", **asked, pieces=True)
    assert result.text.startswith("ROMEO:")
    assert (result.sampling.top_k, result.sampling.typical_p) == (50, pytest.approx(0.98))
    assert result.logprobs is not None
    assert result.ranks is not None
    assert result.top_logprobs is not None
    assert len(result.output_ids) == len(result.logprobs) == len(result.ranks) == len(result.top_logprobs)
    pieces = (await client.get_vocabulary()).pieces
    assert result.prompt_logprobs is not None and result.prompt_logprobs.top_logprobs is not None
    for top in [*result.top_logprobs, *result.prompt_logprobs.top_logprobs]:
        assert top.pieces == [pieces[id_] for id_ in top.ids]
    assert result.pieces == [pieces[id_] for id_ in result.output_ids]
    assert result.total_logprob == pytest.approx(sum(result.logprobs))
    for id_, logprob, rank, top in zip(
        result.output_ids, result.logprobs, result.ranks, result.top_logprobs, strict=True
    ):
        assert top.ranks[0] == 1
        assert (top.ids[0] == id_) == (rank == 1) or top.logprobs[0] == logprob
    assert result.prompt_logprobs is not None
    assert len(result.prompt_logprobs.logprobs) == len(result.prompt_ids)
    assert result.prompt_logprobs.logprobs[0] is None
    whole = await client.generate("ROMEO:", **{**asked, "top_logprobs": "all", "prompt_logprobs": False}, n=2)
    assert whole.output_ids == result.output_ids and whole.top_logprobs is None
    for output in pickle.loads(pickle.dumps(whole)).outputs:
        assert [
            row[id_] for row, id_ in zip(output.vocabulary_logprobs, output.output_ids, strict=True)
        ] == output.logprobs
        assert {len(row) for row in output.vocabulary_logprobs} == {len(pieces)}
    scored = await client.generate("ROMEO:", max_tokens=0, prompt_logprobs=True)
    assert scored.output_ids == []
    assert scored.prompt_logprobs is not None
    assert scored.prompt_logprobs.total == pytest.approx(result.prompt_logprobs.total)
    arguments = ["generate", "ROMEO:", "--tokenizer-address", tokenizer, "--worker-address", worker, *FLAGS]
    done = await asyncio.to_thread(
        subprocess.run, [sys.executable, "-m", "tandem.client", *arguments], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    assert said["text"] == result.text
    assert said["logprobs"] == result.logprobs
    assert said["prompt_logprobs"]["logprobs"] == result.prompt_logprobs.logprobs


async def test_breakers_as_text_are_those_of_the_vocabulary(client: AsyncClient) -> None:
    pieces = (await client.get_vocabulary()).pieces
    options: GenerateOptions = {"max_tokens": 30, "dry_multiplier": 3.0, "dry_allowed_length": 1, "temperature": 0.0}
    by_text = await client.generate("First Citizen:", dry_breakers=["\n", "e "], **options)
    breakers = by_text.sampling.dry_sequence_breakers
    assert breakers is not None
    lines = [id_ for id_, piece in enumerate(pieces) if b"\n" in piece]
    assert lines
    assert [[id_] for id_ in lines] == breakers[: len(lines)]
    for head, *rest in breakers[len(lines) :]:
        assert b"e " in b"".join(pieces[id_] for id_ in (head, *rest))
    by_ids = await client.generate("First Citizen:", dry_sequence_breakers=breakers, **options)
    assert by_ids.output_ids == by_text.output_ids


async def test_streaming_equals_the_whole_answer(client: AsyncClient) -> None:
    whole = await client.generate("ROMEO:", seed=3, max_tokens=60, logprobs=True)
    async with client.stream("ROMEO:", seed=3, max_tokens=60, logprobs=True) as stream:
        chunks = [chunk async for chunk in stream]
    assert "".join(chunk.text for chunk in chunks) == stream.result.text == whole.text
    assert [i for chunk in chunks for i in chunk.ids] == stream.result.output_ids == whole.output_ids
    assert stream.result.logprobs == whole.logprobs
    assert whole.finish_reason in (FinishReason.MAX_TOKENS, FinishReason.EOS)
    assert whole.seed == 3
    assert whole.text.strip()


async def test_the_seed_that_was_drawn_gives_the_same_answer_again(client: AsyncClient) -> None:
    first = await client.generate("KING:", max_tokens=20)
    again = await client.generate("KING:", max_tokens=20, seed=first.seed)
    assert again.output_ids == first.output_ids
    assert again.usage.cached_prompt_tokens is not None


async def test_a_stop_string_cuts_text_and_ids(client: AsyncClient) -> None:
    whole = await client.generate("ROMEO:", temperature=0, max_tokens=60)
    words = whole.text.split(" ")
    stop = f"{words[4]} {words[5]}"
    cut = await client.generate("ROMEO:", temperature=0, max_tokens=60, stop=[stop])
    assert cut.text == whole.text[: whole.text.index(stop)]
    assert (cut.finish_reason, cut.matched_stop) == (FinishReason.STOP_STRING, stop)
    assert cut.output_ids == whole.output_ids[: len(cut.output_ids)]
    assert cut.usage.cached_prompt_tokens is not None, "the worker accounts for what it did"
    kept = await client.generate("ROMEO:", temperature=0, max_tokens=60, stop=[stop], include_stop=True)
    assert kept.text == cut.text + stop
    assert (await client.get_models()).popitem()[1] is not None


async def test_64_streams_give_what_each_gives_alone(client: AsyncClient) -> None:
    async def one(number: int) -> list[int]:
        async with client.stream(f"Scene {number % 7}:", seed=number, max_tokens=4 + number % 9) as stream:
            return [i async for chunk in stream for i in chunk.ids]

    together = await asyncio.gather(*(one(number) for number in range(64)))
    for number in range(0, 64, 9):
        assert await one(number) == together[number]


async def test_text_calls_go_both_ways(client: AsyncClient) -> None:
    text = "Wherefore art thou, Römeo? 🚀"
    encoding = await client.encode(text, pieces=True, offsets=True)
    assert await client.decode(await client.encode(text, add_special=False)) == text
    assert await client.count_tokens(text) == len(encoding)
    assert len(encoding.byte_offsets) == len(encoding.pieces) == len(encoding)
    assert (await client.get_tokenizer()).bos_id == encoding.ids[0]
    assert [
        text.encode()[start:end] for start, end in zip(encoding.byte_offsets[2:], encoding.byte_ends[2:], strict=True)
    ] == (encoding.pieces[2:])
    pair = await client.encode(text, pair="Here I am", offsets=True)
    assert pair.ids == encoding.ids + (await client.encode("Here I am")).ids
    assert pair.type_ids == [0] * len(encoding) + [1] * (len(pair) - len(encoding))
    assert pair.byte_ends[-1] == len((text + "Here I am").encode())
    parsed = await client.encode([Segment("</s>", "parse"), Segment("</s>")], add_special=False)
    assert parsed.ids[0] == (await client.get_tokenizer()).eos_id
    assert len(parsed.ids) > 2
    vocabulary = await client.get_vocabulary()
    assert [vocabulary.pieces[token] for token in encoding.ids[1:]] == encoding.pieces[1:]
    assert (vocabulary.types[encoding.ids[0]], len(vocabulary.scores)) == ("control", len(vocabulary.pieces))
    with pytest.raises(InvalidArgumentError):
        await client.encode("</s>", special_tokens="reject")


async def test_what_the_worker_refuses_is_named(client: AsyncClient) -> None:
    with pytest.raises(InvalidArgumentError) as caught:
        await client.generate([1, 5_000_000], max_tokens=1)
    assert caught.value.service == "worker"
    assert "prompt_ids" in caught.value.violations[0].field


def test_leaving_early_frees_the_workers_pages(tokenizer: str, worker: str) -> None:
    with Client(tokenizer, worker, timeout=60) as client:
        for _ in range(5):
            with client.stream("ROMEO:", ignore_eos=True) as stream:
                next(stream)
    with grpc.insecure_channel(worker) as channel:
        admin = admin_pb2_grpc.WorkerAdminServiceStub(channel)
        until = time.monotonic() + 30
        while True:
            load = admin.GetLoad(admin_pb2.GetLoadRequest(check_integrity=True))
            if load.pages_referenced == load.running_requests == 0:
                break
            assert time.monotonic() < until, load
    assert load.integrity_ok


async def test_an_answer_outlives_its_worker_to_the_last_token(
    folder: Path, demo: Path, tokenizer: str, worker: str
) -> None:
    victim = Process(folder, "tandem.worker", f"--model={demo}", f"--tokenizer-address={tokenizer}", "--threads=1")
    patient = FailoverSettings(attempts=3, initial_backoff_seconds=0.5)
    options = {"seed": 11, "max_tokens": 150, "ignore_eos": True, "logprobs": True}
    try:
        async with AsyncClient(tokenizer, [worker], timeout=120) as client:
            undisturbed = await client.generate("ROMEO:", **options)
        addresses = [worker, victim.address()]
        async with AsyncClient(tokenizer, addresses, failover=patient, timeout=120) as client:
            key = next(key for key in map(str, range(999)) if score(key, addresses[1]) > score(key, addresses[0]))
            async with client.stream("ROMEO:", routing_key=key, **options) as stream:
                chunks = [await anext(stream)]
                victim.kill_group()
                chunks += [chunk async for chunk in stream]
        result = stream.result
        assert result.failovers == 1
        assert result.worker == worker
        assert result.output_ids == undisturbed.output_ids
        assert result.text == "".join(chunk.text for chunk in chunks) == undisturbed.text
        assert result.logprobs == pytest.approx(undisturbed.logprobs, abs=1e-4)
    finally:
        victim.stop()


@pytest.mark.parametrize("form", ["meta", "hf"])
async def test_greedy_ids_of_a_real_model_equal_the_reference(folder: Path, shared_data: Path, form: str) -> None:
    model = shared_data / "models" / "stories260K"
    expected = json.loads((model / "expected_greedy.json").read_text())
    tokenizer = Process(folder, "tandem.tokenizer", f"--tokenizer={model / form}")
    flags = (f"--tokenizer-address={tokenizer.address()}", "--threads=1")
    worker = Process(folder, "tandem.worker", f"--model={model / form}", *flags)
    greedy = {"temperature": 0, "ignore_eos": True, "logprobs": True}
    try:
        async with AsyncClient(tokenizer.address(), worker.address(), timeout=60) as client:
            results = await asyncio.gather(
                *(client.generate(case["prompt"], max_tokens=len(case["output_ids"]), **greedy) for case in expected)
            )
        for case, result in zip(expected, results, strict=True):
            assert result.prompt_ids == case["prompt_ids"]
            assert result.output_ids == case["output_ids"]
            if "logprobs" in case:
                assert result.logprobs == pytest.approx(case["logprobs"], abs=1e-3)
    finally:
        worker.stop()
        tokenizer.stop()


def test_tandem_run_with_the_demo_model(repository_root: Path) -> None:
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "tandem.client",
            "run",
            "ROMEO:",
            "-n",
            "12",
            "--seed",
            "1",
            "--worker-flag=--threads=1",
        ],
        cwd=repository_root,
        capture_output=True,
        encoding="utf-8",
        timeout=180,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()
    assert "output  12 tokens" in done.stderr


async def test_a_conversation_is_answered_and_its_content_is_text(client: AsyncClient) -> None:
    template = "{{ bos_token }}{% for m in messages %}{{ m.role | upper }}:\n{{ m.content }}\n\n{% endfor %}ROMEO:\n"
    conversation = Conversation([ChatMessage("juliet", "O </s> Romeo")], chat_template=template)
    encoding = await client.encode_chat(conversation, rendered_text=True, content_ranges=True, pieces=True)
    assert encoding.rendered_text == "<s>JULIET:\nO </s> Romeo\n\nROMEO:"
    [(start, end)] = encoding.content_ranges
    assert b"".join(encoding.pieces[start:end]) == b"O </s> Romeo"
    information = await client.get_tokenizer()
    assert information.eos_id not in encoding.ids
    result = await client.chat(conversation, max_tokens=8, seed=1)
    assert result.prompt_ids == encoding.ids
    assert result.output_ids == (await client.generate(encoding.ids, max_tokens=8, seed=1)).output_ids


@pytest.mark.parametrize("words", ["the tokenizer is ready", "streams"])
def test_interrupting_tandem_run_leaves_none_of_the_real_processes(repository_root: Path, words: str) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "tandem.client", "run", "ROMEO:", "--ignore-eos", "--worker-flag=--threads=1"],
        cwd=repository_root,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        stdin=subprocess.DEVNULL,
    )
    assert process.stdout is not None
    assert process.stderr is not None
    if words == "streams":
        os.read(process.stdout.fileno(), 10)
    else:
        text = b""
        while words.encode() not in text:
            text += os.read(process.stderr.fileno(), 1000)
    children = psutil.Process(process.pid).children(recursive=True)
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=60)
    assert process.returncode == 130
    assert children
    _, alive = psutil.wait_procs(children, timeout=0)
    assert not alive


def test_no_stop_string_ends_an_answer_before_min_tokens(tokenizer: str, worker: str) -> None:
    options: dict[str, Any] = {"seed": 5, "temperature": 0.8, "max_tokens": 60, "min_tokens": 20, "stop": ["e", "\n"]}
    with Client(tokenizer, worker, timeout=120) as client:
        early = client.generate("ROMEO:", **{**options, "min_tokens": 0})
        assert early.finish_reason is FinishReason.STOP_STRING and len(early.output_ids) < 20
        result = client.generate("ROMEO:", **options)
        whole = client.generate("ROMEO:", **{**options, "stop": ()})
        with client.stream("ROMEO:", **options) as stream:
            assert "".join(chunk.text for chunk in stream) == result.text
        several = client.generate("ROMEO:", n=3, **options)
        with pytest.raises(InvalidArgumentError, match="min_tokens"):
            client.generate("ROMEO:", **{**options, "max_tokens": 19})
    for output in (result, *several.outputs):
        assert output.finish_reason is FinishReason.STOP_STRING
        # The string may have begun before.
        assert len(output.output_ids) >= 20
        assert "e" in output.text
    assert whole.text.startswith(result.text)

    async def same() -> None:
        async with AsyncClient(tokenizer, worker, timeout=120) as client:
            assert (await client.generate("ROMEO:", **options)).output_ids == result.output_ids

    asyncio.run(same())


async def test_sixteen_clients_with_one_system_prompt_use_both_workers_alike(
    folder: Path, demo: Path, tokenizer: str, worker: str
) -> None:
    second = Process(folder, "tandem.worker", f"--model={demo}", f"--tokenizer-address={tokenizer}", "--threads=1")
    system = "You are a citizen of Rome, and you speak as they do on a stage. " * 6
    answered: Counter[str] = Counter()

    async def talk(number: int, client: AsyncClient) -> None:
        for turn in range(10):
            prompt = f"{system}\n{number}, {turn}: what news?\n"
            result = await client.generate(prompt, max_tokens=12, ignore_eos=True, seed=turn)
            assert result.worker is not None
            answered[result.worker] += 1

    try:
        addresses = [worker, second.address()]
        async with contextlib.AsyncExitStack() as stack:
            clients = [
                await stack.enter_async_context(AsyncClient(tokenizer, addresses, timeout=120)) for _ in range(16)
            ]
            await asyncio.gather(*(talk(number, client) for number, client in enumerate(clients)))
    finally:
        second.stop()
    assert answered.total() == 160
    assert max(answered.values()) <= 0.6 * 160, answered
