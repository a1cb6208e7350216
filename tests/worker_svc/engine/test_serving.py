"""How an engine's process leaves."""

from __future__ import annotations

import pytest
import torch

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
