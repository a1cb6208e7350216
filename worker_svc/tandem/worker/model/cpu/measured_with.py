"""What the bits of a processor's forward pass depend on, besides the model: with what a start's check was made."""

from __future__ import annotations

import functools
import hashlib
import os
from pathlib import Path

import numpy as np
import torch

from tandem.common.machine import processor_fact
from tandem.worker.model.cpu.native.library import library

# Of libraries that choose their kernels by what the environment says.
_VARIABLES = ("ATEN_", "DNNL_", "KMP_", "LD_", "MKL_", "OMP_", "ONEDNN_", "TORCH_")


def measured_with() -> dict[str, object]:
    """Returns the processor, the libraries, the threads and our own code."""
    return _machine() | {"threads": torch.get_num_threads()}


@functools.cache
def _machine() -> dict[str, object]:
    compiled = library()
    digest = hashlib.sha256()
    for path in sorted(Path(__file__).parents[1].rglob("*.py")):
        digest.update(path.read_bytes())
    return {
        "processor": [processor_fact(name) for name in ("model name", "stepping", "microcode", "flags")],
        "torch": [torch.__version__, torch.version.git_version, torch.backends.cpu.get_cpu_capability()],
        "numpy": np.__version__,
        "compiled": Path(compiled._name).name if compiled is not None else "",  # tells the hash of its content
        "code": digest.hexdigest(),
        "environment": sorted(f"{name}={value}" for name, value in os.environ.items() if name.startswith(_VARIABLES)),
    }
