"""Threads that stay together for a step (`native/team.c`). What they compute `test_native_operations.py` compares to
the bit, of all kinds of layers."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
import torch

from benchmarks.random_llama import RandomCheckpoint, llama
from tandem.worker.checkpoints.grouped import Quantization
from tandem.worker.model.cpu import native
from tandem.worker.model.cpu.operations import NativeOperations
from tandem.worker.model.kv_cache import CacheShape, KVCache
from tandem.worker.model.kv_formats import kv_format
from tandem.worker.model.loading import load_transformer
from tandem.worker.model.runner import ModelRunner, Work

STEPS = 60
KINDS = (None, Quantization(8, 0), Quantization(4, 32))


@pytest.fixture(autouse=True)
def _threads() -> Iterator[None]:
    if not native.available():
        pytest.skip("no AVX2, or no C compiler")
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def steps(kind: Quantization | None, threads: int) -> list[torch.Tensor]:
    """The logits of steps of one token, as many threads compute them that are set in this thread."""
    torch.set_num_threads(threads)
    config = replace(llama("tiny", 128), num_layers=3)
    checkpoint = RandomCheckpoint(config, "cpu", torch.bfloat16)
    model = load_transformer(checkpoint, "cpu", torch.bfloat16, quantization=kind, operations=NativeOperations())
    shape = CacheShape(config.cache_heads, 8, 16, kv_format("auto", model.dtype))
    runner, pages = ModelRunner(model, KVCache(shape, "cpu")), np.arange(8)
    return [runner.forward([Work(np.array([1 + i], dtype=np.int32), i, pages, 1)]) for i in range(STEPS)]


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_more_threads_than_cores_sleep_and_are_woken(kind: Quantization | None) -> None:
    alone = steps(kind, 1)
    many = steps(kind, 2 * (os.cpu_count() or 1) + 3)
    assert all(torch.equal(a, b) for a, b in zip(alone, many, strict=True))


def test_each_caller_has_a_team_of_its_own() -> None:
    alone = [steps(kind, 1) for kind in KINDS]
    answers: dict[int, list[torch.Tensor]] = {}
    callers = [
        threading.Thread(target=lambda n=n, kind=kind: answers.update({n: steps(kind, 3)}))
        for n, kind in enumerate(KINDS)
    ]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    for n, expected in enumerate(alone):
        assert all(torch.equal(a, b) for a, b in zip(expected, answers[n], strict=True))
