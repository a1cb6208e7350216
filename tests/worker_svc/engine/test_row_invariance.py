"""A machine on which a row's bits depend on the other rows: the check at start says so, and requests are served."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from benchmarks.random_llama import RandomCheckpoint, llama
from tandem.worker.checkpoints.model_config import KVHeads
from tandem.worker.engine.account import FinishReason
from tandem.worker.engine.engine import Engine
from tandem.worker.engine.pages import PageTable
from tandem.worker.engine.request import Request, Stopping
from tandem.worker.engine.sampling import Sampling
from tandem.worker.engine.scheduler import SchedulerLimits
from tandem.worker.model.kv_cache import CacheShape, KVCache
from tandem.worker.model.kv_formats import Plain
from tandem.worker.model.loading import load_transformer
from tandem.worker.model.operations import TorchOperations
from tandem.worker.model.row_invariance import choose_padding
from tandem.worker.model.runner import ModelRunner


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
