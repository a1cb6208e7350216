"""Loads a model in a process of its own and prints how much memory that took at most, and how much its weights do.

usage: python peak_memory.py MODEL DTYPE
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch

from tandem.worker.checkpoints import open_checkpoint
from tandem.worker.model.loading import load_transformer


def resident(field: str) -> int:
    """Bytes that are (VmRSS) or at most were (VmHWM) resident, mapped files included."""
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(field))
    return int(line.split()[1]) * 1024


def main(path: str, dtype: str) -> None:
    """Prints the bytes at the peak, less what was there before, and those of the weights."""
    Path("/proc/self/clear_refs").write_text("5")  # the peak starts anew
    before = resident("VmRSS")
    model = load_transformer(open_checkpoint(Path(path)), "cpu", getattr(torch, dtype))
    assert not any(parameter.is_meta for parameter in model.parameters())
    weights = (*model.parameters(), *model.buffers())
    print(resident("VmHWM") - before, sum(weight.nbytes for weight in weights))


if __name__ == "__main__":
    main(*sys.argv[1:])
