"""An engine's process imports less of torch, and has all of it where that is asked for."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import version

import pytest

from tandem.worker.engine.process.torch_import import TRIED_WITH

PROGRAM = """
import inspect, sys
from tandem.worker.engine.process.torch_import import import_torch
torch = import_torch("cpu")
import tandem.worker.engine.process.loop
inspect.getmodule(inspect.currentframe())  # looks through all modules

def made(name):
    return sys.modules[name].__spec__ is not None

assert not made("torch.export") and not made("torch._meta_registrations")
assert "torch._decomp" not in sys.modules
assert "prometheus_client" not in sys.modules

class Twice(torch.nn.Module):
    def forward(self, x):
        return 2 * x

program = torch.export.export(Twice(), (torch.ones(3),))  # traces, with fake tensors
assert program.module()(torch.ones(3)).tolist() == [2, 2, 2]
assert made("torch.export") and torch.export is sys.modules["torch.export"]
from torch.export.dynamic_shapes import Dim
assert Dim is torch.export.Dim
"""


@pytest.mark.skipif(not version("torch").startswith(TRIED_WITH), reason=f"only of torch {TRIED_WITH}* less is imported")
def test_what_only_tracing_needs_is_imported_when_it_is_asked_for() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
