"""A machine on which a row's bits depend on the other rows: the check at start says so, and requests are served."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from benchmarks.random_llama import RandomCheckpoint, llama
from tandem.worker.checkpoints.model_parts.heads import KVHeads
from tandem.worker.engine.account import FinishReason
from tandem.worker.engine.engine import Engine
from tandem.worker.engine.pages import PageTable
from tandem.worker.engine.request import Request, Stopping
from tandem.worker.engine.sampling import Sampling
from tandem.worker.engine.scheduler import SchedulerLimits
from tandem.worker.model.kv_cache import CacheShape, KVCache
from tandem.worker.model.kv_formats import Plain
from tandem.worker.model.loading import load_transformer
from tandem.worker.model.operations import Operations, TorchOperations
from tandem.worker.model.row_invariance import choose_padding, known_padding
from tandem.worker.model.runner import ModelRunner
from tandem.worker.model.work import Work


class Dependent(TorchOperations):
    """As a library that sums in another order when there are more rows."""

    def swiglu(self, gate_up: torch.Tensor, size: int) -> torch.Tensor:
        return super().swiglu(gate_up, size) * (1 + 1e-3 * len(gate_up))


@pytest.mark.parametrize("head_dim", [4, 8, 16])
def test_rows_that_depend_on_each_other_are_noticed_and_served(head_dim: int):
    config = replace(llama("tiny", 128), head_dim=head_dim)
    checkpoint = RandomCheckpoint(config, "cpu", torch.float32)
    model = load_transformer(checkpoint, "cpu", torch.float32, operations=Dependent())
    shape = CacheShape((KVHeads(config.num_kv_heads, head_dim),) * config.num_layers, 16, 16, Plain(torch.float32))
    runner = ModelRunner(model, KVCache(shape, "cpu"))
    assert not choose_padding(runner)
    engine = Engine(runner, PageTable(16, 16), SchedulerLimits(max_batch_tokens=64, max_running=4))
    for number in range(4):
        engine.submit(Request.make(number, [1 + number, 2, 3], Sampling(seed=1), Stopping(max_tokens=5)))
    finished = []
    while engine.has_work:
        finished += engine.step().finished
    assert [finish.reason for finish in finished] == 4 * [FinishReason.MAX_TOKENS]
    assert engine.table.referenced == 0


class Counting(ModelRunner):
    """Counts its forward passes."""

    passes = 0

    def forward(self, work: Sequence[Work], sampled: torch.Tensor | None = None) -> torch.Tensor:
        self.passes += 1
        return super().forward(work, sampled)


def counting(pages: int = 16, layers: int = 2, operations: Operations | None = None) -> Counting:
    config = replace(llama("tiny", 128), num_layers=layers)
    model = load_transformer(
        RandomCheckpoint(config, "cpu", torch.float32), "cpu", torch.float32, operations=operations
    )
    shape = CacheShape((KVHeads(config.num_kv_heads, config.head_dim),) * layers, pages, 16, Plain(torch.float32))
    return Counting(model, KVCache(shape, "cpu"))


def test_what_was_found_out_is_not_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    first, second, smaller = counting(), counting(), counting(pages=4)
    assert known_padding(first)
    assert first.passes
    assert known_padding(second)
    assert not second.passes
    assert second.row_multiple == first.row_multiple
    assert known_padding(smaller)  # whose trial has fewer tokens
    assert smaller.passes
    for other in (counting(layers=1), counting(operations=TorchOperations())):
        assert known_padding(other)
        assert other.passes
    work = [Work(np.arange(5, dtype=np.int32), 0, np.arange(1), 1)]
    assert torch.equal(first.forward(work), second.forward(work))


def test_that_rows_depend_on_each_other_is_found_out_at_every_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    for runner in (counting(operations=Dependent()), counting(operations=Dependent())):
        assert not known_padding(runner)
        assert runner.passes
