"""How an engine's process begins and leaves."""

from __future__ import annotations

import pytest
import torch

from tandem.common.cores import memory_nodes
from tandem.worker.engine.process.config import EngineConfig
from tandem.worker.engine.process.handle import EngineStartError, ProcessEngine
from tandem.worker.engine.process.loop import leaving_without_memory
from tandem.worker.engine.process.processes import NO_MEMORY


def too_large_for_torch() -> None:
    torch.empty(1 << 58, dtype=torch.uint8)


def too_large_for_python() -> None:
    bytearray(1 << 62)


@pytest.mark.parametrize("ask", [too_large_for_torch, too_large_for_python])
def test_a_process_without_memory_says_so_by_its_exit_code(ask: object):
    with pytest.raises(SystemExit) as caught, leaving_without_memory():
        ask()  # type: ignore[operator]
    assert caught.value.code == NO_MEMORY


def test_other_errors_stay_what_they_are():
    with pytest.raises(RuntimeError, match="shapes"), leaving_without_memory():
        torch.ones(2, 3) @ torch.ones(2, 3)


async def test_a_memory_node_that_is_not_there_is_named_with_those_that_are():
    engine = ProcessEngine(EngineConfig(model="models/demo", device="cpu", numa_node=1000))
    there = ", ".join(map(str, memory_nodes())) or "none"
    with pytest.raises(EngineStartError, match=f"^numa_node: 1000 is not a memory node .*there are {there}"):
        await engine.start(lambda message: None, lambda done, total: None)
