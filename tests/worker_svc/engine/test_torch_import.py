"""An engine's process imports less of torch, and has all of it where that is asked for."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

from tandem.worker.engine.process import torch_import
from tandem.worker.engine.process.torch_import import TRIED_WITH

pytestmark = pytest.mark.skipif(
    not version("torch").startswith(TRIED_WITH), reason=f"only of torch {TRIED_WITH}* less is imported"
)

START = """
import inspect, sys
from tandem.worker.engine.process.torch_import import import_torch
torch = import_torch("cpu")

def made(name):
    return sys.modules[name].__spec__ is not None
"""
LESS = """
import tandem.worker.engine.process.loop
inspect.getmodule(inspect.currentframe())  # looks through all modules
assert not made("torch.export") and not made("torch._meta_registrations") and not made("torch.distributions")
assert "torch._decomp" not in sys.modules
assert "prometheus_client" not in sys.modules
"""
ALL = """
class Twice(torch.nn.Module):
    def forward(self, x):
        return 2 * x

program = torch.export.export(Twice(), (torch.ones(3),))  # traces, with fake tensors
assert program.module()(torch.ones(3)).tolist() == [2, 2, 2]
assert made("torch.export") and torch.export is sys.modules["torch.export"]
from torch.export.dynamic_shapes import Dim
assert Dim is torch.export.Dim
assert torch.distributions.Normal(0.0, 1.0).cdf(torch.zeros(())) == 0.5
"""


def run(program: str) -> None:
    done = subprocess.run([sys.executable, "-c", START + program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_what_only_tracing_needs_is_not_imported() -> None:
    run(LESS)


def test_all_of_torch_is_there_when_it_is_asked_for() -> None:
    run(LESS + ALL)


def test_no_part_of_an_engine_asks_for_what_is_missing_then() -> None:
    worker = Path(torch_import.__file__).parents[2]
    sources = [path for part in ("engine", "model") for path in (worker / part).rglob("*.py")]
    assert len(sources) > 50
    assert not [path.name for path in sources if "torch.Generator(" in path.read_text()]
