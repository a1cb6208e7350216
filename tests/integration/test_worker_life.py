"""Start, death and end of a worker."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import grpc
import psutil
import pytest
import tokenizers
import torch
from grpc_health.v1 import health_pb2, health_pb2_grpc

from tandem.inference.v1 import admin_pb2
from tandem.inference.v1 import inference_pb2 as pb
from tandem.worker.engine.process.child import socket_folder
from tests.integration.worker_process import (
    failed_start,
    greedy,
    rest,
    running_worker,
    service_process,
    threaded_worker,
)

SERVICE = "tandem.inference.v1.InferenceService"


def engine_of(pid: int) -> psutil.Process:
    """The engine process of a worker."""
    (engine,) = [p for p in psutil.Process(pid).children() if "tandem.worker.engine.process.main" in p.cmdline()]
    return engine


async def test_a_killed_engine_fails_its_streams_at_once_and_comes_back(random_llama: Path, tmp_path: Path):
    async with running_worker(tmp_path, "--model", str(random_llama)) as worker:
        health = health_pb2_grpc.HealthStub(worker.channel)
        watch = health.Watch(health_pb2.HealthCheckRequest(service=SERVICE))
        assert (await watch.read()).status == health_pb2.HealthCheckResponse.SERVING
        before = await worker.generate(greedy([1, 5, 9], 30))
        streams = [worker.inference.Generate(greedy([1, 5, 9 + i], 500)) for i in range(4)]
        for stream in streams:
            await stream.read()

        engine_of(worker.process.pid).send_signal(signal.SIGKILL)

        async def drained(stream: object) -> grpc.StatusCode:
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await rest(stream)
            return caught.value.code()

        codes = await asyncio.gather(*(drained(stream) for stream in streams))
        assert set(codes) == {grpc.StatusCode.UNAVAILABLE}
        assert (await watch.read()).status == health_pb2.HealthCheckResponse.NOT_SERVING
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await worker.generate(greedy([1, 5, 9], 1))
        assert caught.value.code() == grpc.StatusCode.UNAVAILABLE

        assert (await asyncio.wait_for(watch.read(), 120)).status == health_pb2.HealthCheckResponse.SERVING
        assert (await worker.generate(greedy([1, 5, 9], 30))).ids == before.ids
        assert (await worker.admin.GetServer(admin_pb2.GetServerRequest())).engine_restarts == 1
        watch.cancel()


async def test_a_killed_front_takes_its_engine_with_it(
    random_llama: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    # Not in `tmp_path`, which may be too long for sockets: the engine's would be elsewhere.
    with tempfile.TemporaryDirectory(dir="/tmp") as temporary:
        monkeypatch.setenv("TMPDIR", temporary)
        await _kill_front(random_llama, tmp_path)
        with os.scandir(temporary) as entries:
            left = [entry.name for entry in entries]
        assert not left


async def _kill_front(random_llama: Path, tmp_path: Path) -> None:
    async with running_worker(tmp_path, "--model", str(random_llama)) as worker:
        engine = engine_of(worker.process.pid)
        worker.process.kill()
        await worker.process.wait()
        # The engine sees the end of its standard input.
        assert not psutil.wait_procs([engine], timeout=30)[1]


def test_the_folder_of_the_engines_socket_is_never_too_long(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    with tempfile.TemporaryDirectory(dir="/tmp") as short:
        long = tmp_path / ("x" * 100)
        long.mkdir()
        for place, inside in ((Path(short), True), (long, False)):
            monkeypatch.setattr(tempfile, "tempdir", str(place))
            with socket_folder() as folder:
                assert (Path(folder).parent == place) is inside
                assert len(os.fsencode(folder)) <= 100
        assert not list(long.iterdir())


async def test_sigterm_lets_running_answers_finish(random_llama: Path, tmp_path: Path):
    async with running_worker(tmp_path, "--model", str(random_llama)) as worker:
        call = worker.inference.Generate(greedy([1, 5, 9], 150))
        while not (await call.read()).delta.ids:
            pass
        worker.process.terminate()
        messages = await rest(call)
        assert messages[-1].finished.usage.completion_tokens == 150
        assert await asyncio.wait_for(worker.process.wait(), 60) == 0


async def test_a_drain_ends_at_once_what_has_no_token_and_finishes_the_rest(random_llama: Path, tmp_path: Path):
    flags = ("--model", str(random_llama), "--max-running-requests=2", "--drain-grace-seconds=300")
    async with running_worker(tmp_path, *flags) as worker:
        running = [worker.inference.Generate(greedy([1, 5, 9 + i], 250)) for i in range(2)]
        for call in running:
            while not (await call.read()).delta.ids:
                pass
        queued = [worker.inference.Generate(greedy([1, 5, 20 + i], 500)) for i in range(6)]
        for call in queued:
            assert (await call.read()).HasField("accepted")
        worker.process.terminate()
        for call in queued:
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await rest(call)
            assert caught.value.code() == grpc.StatusCode.UNAVAILABLE
            assert b"DRAINING" in dict(caught.value.trailing_metadata())["grpc-status-details-bin"]
        assert not any(call.done() for call in running), "others had to wait for them, had they stayed"
        for call in running:
            assert (await rest(call))[-1].finished.usage.completion_tokens == 250
        assert await asyncio.wait_for(worker.process.wait(), 60) == 0


async def test_draining_refuses_new_requests_and_can_be_ended(random_llama: Path, tmp_path: Path):
    async with threaded_worker(tmp_path, "--model", str(random_llama)) as worker:
        response = await worker.admin.SetDraining(admin_pb2.SetDrainingRequest(draining=True))
        assert response.state == admin_pb2.SERVER_STATE_DRAINING
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await worker.generate(greedy([1], 1))
        assert caught.value.code() == grpc.StatusCode.UNAVAILABLE
        await worker.admin.SetDraining(admin_pb2.SetDrainingRequest(draining=False))
        assert (await worker.generate(greedy([1], 1))).ids


async def test_a_full_queue_says_when_to_come_back(random_llama: Path, tmp_path: Path):
    flags = ("--max-running-requests=1", "--max-waiting-requests=1")
    async with threaded_worker(tmp_path, "--model", str(random_llama), *flags) as worker:
        held = [worker.inference.Generate(greedy([1, 5, 9], 500)) for _ in range(2)]
        for call in held:
            await call.read()
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await worker.generate(greedy([1], 1))
        assert caught.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
        trailing = dict(caught.value.trailing_metadata() or ())
        assert int(trailing["grpc-retry-pushback-ms"]) > 0
        for call in held:
            call.cancel()
        await worker.settled()
        assert (await worker.generate(greedy([1], 1))).ids


async def test_a_wrong_fingerprint_is_refused_and_the_right_one_served(random_llama: Path, tmp_path: Path):
    fingerprint = "--tokenizer-fingerprint=" + "ab" * 32
    async with threaded_worker(tmp_path, "--model", str(random_llama), fingerprint) as worker:
        right = greedy([1], 1, expected_tokenizer_fingerprint="ab" * 32)
        assert (await worker.generate(right)).ids
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await worker.generate(greedy([1], 1, expected_tokenizer_fingerprint="cd" * 32))
        assert caught.value.code() == grpc.StatusCode.FAILED_PRECONDITION
        assert "cdcd" in caught.value.details()


async def test_a_model_that_makes_nan_fails_its_request_and_serves_on(random_llama: Path, tmp_path: Path):
    from safetensors.torch import load_file, save_file

    broken = tmp_path / "broken"
    shutil.copytree(random_llama, broken)
    weights = load_file(broken / "model.safetensors")
    weights["model.embed_tokens.weight"] = weights["model.embed_tokens.weight"].clone()
    weights["model.embed_tokens.weight"][77] = float("nan")
    save_file(weights, broken / "model.safetensors", {"format": "pt"})
    async with threaded_worker(tmp_path, "--model", str(broken)) as worker:
        expected = await worker.generate(greedy([1, 5, 9], 20))
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await worker.generate(greedy([1, 77, 9], 20))
        assert caught.value.code() == grpc.StatusCode.INTERNAL
        assert (await worker.generate(greedy([1, 5, 9], 20))).ids == expected.ids
        load = await worker.settled()
        assert load.pages_referenced == 0


def _truncate(folder: Path) -> None:
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1000])


def _change_config(**fields: object):
    def change(folder: Path) -> None:
        path = folder / "config.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), **fields}))

    return change


BROKEN = {
    "missing weights": (lambda folder: (folder / "model.safetensors").unlink(), "model.safetensors"),
    "truncated weights": (_truncate, "model.safetensors"),
    "no config": (lambda folder: (folder / "config.json").unlink(), "config.json"),
    "wrong shapes": (_change_config(intermediate_size=100), "shape"),
    "vocabulary mismatch": (_change_config(vocab_size=301), "301"),
    "too many layers": (_change_config(num_hidden_layers=3), "layers.2"),
    "unknown architecture": (_change_config(architectures=["MambaForCausalLM"], model_type="mamba"), "mamba"),
}


@pytest.mark.parametrize("case", BROKEN)
def test_a_broken_checkpoint_ends_the_start_with_one_clear_line(random_llama: Path, tmp_path: Path, case: str):
    damage, words = BROKEN[case]
    folder = tmp_path / "model"
    shutil.copytree(random_llama, folder)
    damage(folder)
    code, stderr = failed_start("--model", str(folder), "--engine=thread", "--log-level=error")
    assert code == 1
    assert words.lower() in stderr.lower()
    assert "Traceback" not in stderr
    assert len(stderr.strip().splitlines()) == 1, stderr


def test_a_pickle_that_is_not_weights_is_never_run(tmp_path: Path):
    class Evil:
        def __reduce__(self):
            return (os.system, (f"touch {tmp_path / 'executed'}",))

    folder = tmp_path / "meta"
    folder.mkdir()
    (folder / "params.json").write_text('{"dim": 64, "n_layers": 1, "n_heads": 2, "vocab_size": 8, "norm_eps": 1e-5}')
    torch.save({"tok_embeddings.weight": Evil()}, folder / "consolidated.00.pth")
    code, stderr = failed_start("--model", str(folder), "--engine=thread", "--log-level=error")
    assert code == 1
    assert not (tmp_path / "executed").exists()
    assert "consolidated.00.pth" in stderr


def test_settings_that_do_not_go_together_are_refused(random_llama: Path, tmp_path: Path):
    for flags, words in [
        (("--context-length=4096",), "context_length 4096"),
        (("--kv-cache-tokens=64",), "kv_cache_tokens"),
        (("--device=tpu",), "tpu"),
        (("--kv-cache-tokens=20000000000000",), "too small for the KV cache: lower kv_cache_tokens"),
    ]:
        code, stderr = failed_start("--model", str(random_llama), "--engine=thread", *flags)
        assert code == 1
        assert words in stderr
    code, stderr = failed_start("--model", str(random_llama), "--max-batch-tokens=-3")
    assert code == 2
    assert "max-batch-tokens" in stderr
    code, stderr = failed_start()
    assert code == 2
    assert "model" in stderr


async def test_a_tokenizer_with_more_ids_than_the_model_ends_the_start(
    random_llama: Path, shared_data: Path, tmp_path: Path
):
    tokenizer = shared_data / "formats/llama2/tokenizer.model"
    async with service_process("tandem.tokenizer", tmp_path, "--tokenizer", str(tokenizer)) as (address, _):
        code, stderr = await asyncio.to_thread(
            failed_start,
            "--model",
            str(random_llama),
            "--tokenizer-address",
            address,
            "--engine=thread",
            "--log-level=error",
        )
    assert code == 1
    assert "vocabulary mismatch" in stderr
    assert "32000" in stderr
    assert "300" in stderr
    assert len(stderr.strip().splitlines()) == 1


async def test_a_tokenizer_may_have_ids_of_no_text_behind_those_of_the_model(random_llama: Path, tmp_path: Path):
    library = tokenizers.Tokenizer(tokenizers.models.BPE())
    library.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    library.decoder = tokenizers.decoders.ByteLevel()
    alphabet = tokenizers.pre_tokenizers.ByteLevel.alphabet()
    trainer = tokenizers.trainers.BpeTrainer(vocab_size=300, initial_alphabet=alphabet, show_progress=False)
    library.train_from_iterator(
        ["the worker learns the bytes of its tokenizer, and a model has fewer ids"] * 9, trainer
    )
    assert library.get_vocab_size() == 300
    library.add_special_tokens(["<image_soft_token>"])  # as Gemma 3 1B has it
    folder = tmp_path / "tokenizer"
    folder.mkdir()
    library.save(str(folder / "tokenizer.json"))
    (folder / "config.json").write_text(json.dumps({"vocab_size": 400}))  # of a larger model with the same tokenizer
    async with (
        service_process("tandem.tokenizer", tmp_path, "--tokenizer", str(folder)) as (address, _),
        threaded_worker(tmp_path, "--model", str(random_llama), "--tokenizer-address", address) as worker,
    ):
        assert (await worker.admin.GetModel(admin_pb2.GetModelRequest())).tokenizer_fingerprint
        asked = greedy([1], 6, guided=pb.GuidedDecoding(regex="[a-z]{9}"))
        assert library.decode((await worker.generate(asked)).ids).isalpha()
        with pytest.raises(grpc.aio.AioRpcError, match=r"prompt_ids\[0\].*below the vocabulary size 300"):
            await worker.generate(greedy([300], 1))


async def test_a_worker_learns_its_tokenizers_fingerprint(shared_data: Path, tmp_path: Path):
    model = shared_data / "models/stories260K/meta"
    async with (
        service_process("tandem.tokenizer", tmp_path, "--tokenizer", str(model)) as (address, _),
        threaded_worker(tmp_path, "--model", str(model), "--tokenizer-address", address) as worker,
    ):
        fingerprint = (await worker.admin.GetModel(admin_pb2.GetModelRequest())).tokenizer_fingerprint
        assert len(fingerprint) == 64
        assert (await worker.generate(greedy([1], 1, expected_tokenizer_fingerprint=fingerprint))).ids


def test_a_tokenizer_service_that_does_not_come_ends_the_start(random_llama: Path, tmp_path: Path):
    flags = ("--tokenizer-address=127.0.0.1:1", "--tokenizer-wait-seconds=0.5", "--engine=thread")
    code, stderr = failed_start("--model", str(random_llama), *flags)
    assert code == 1
    assert "127.0.0.1:1" in stderr


def test_a_worker_that_is_told_no_arguments_leaves_with_its_engine(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tandem.worker", "--arguments-from-stdin"]
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    with subprocess.Popen(command, stdin=subprocess.PIPE, env=environment) as worker:
        while not (children := psutil.Process(worker.pid).children()):
            assert worker.poll() is None
        assert worker.stdin is not None
        worker.stdin.close()
        assert worker.wait(60) == 0
    assert not any(child.is_running() for child in children)
    assert not list(tmp_path.iterdir())
