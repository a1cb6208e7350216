"""An engine's memory is bounded, whatever lengths its prompts have."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tandem.worker.engine.process.child import engine_environment

PROGRAM = """
import psutil, torch
import torch.nn.functional as F
torch.set_num_threads(1)
weight = torch.ones(64, 64, dtype=torch.bfloat16)
def product(rows):
    F.linear(torch.ones(rows, 64, dtype=torch.bfloat16), weight)
product(2000)
before = psutil.Process().memory_info().rss
for first in range(4, 8):  # several times over: what is bounded is full after the first
    for rows in range(first, 2000, 4):
        product(rows)
print((psutil.Process().memory_info().rss - before) >> 20)
"""


def grown(environment: dict[str, str]) -> int:
    """Megabytes after products of 2,000 shapes."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], env=environment, capture_output=True, text=True, timeout=300, check=True
    )
    return int(done.stdout)


def test_products_of_many_shapes_do_not_fill_the_memory() -> None:
    library = grown(dict(os.environ))
    if library < 80:
        pytest.skip(f"this machine's products keep {library} MB of 2,000 shapes")
    assert grown(engine_environment()) < library / 2


def test_what_the_operator_has_set_wins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "1024")
    assert engine_environment()["ONEDNN_PRIMITIVE_CACHE_CAPACITY"] == "1024"
