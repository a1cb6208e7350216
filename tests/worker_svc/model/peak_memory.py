"""Loads a model folder in a process of its own and prints how much memory that took at most, as a share of its weights.

usage: python peak_memory.py FOLDER DTYPE
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


def main(folder: str, dtype: str) -> None:
    """Prints the peak over the stored size."""
    Path("/proc/self/clear_refs").write_text("5")  # the peak starts anew
    before = resident("VmRSS")
    checkpoint = open_checkpoint(Path(folder))
    model = load_transformer(checkpoint, "cpu", getattr(torch, dtype))
    assert not any(parameter.is_meta for parameter in model.parameters())
    print((resident("VmHWM") - before) / checkpoint.total_bytes)


if __name__ == "__main__":
    main(*sys.argv[1:])
