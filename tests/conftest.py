"""Fixtures that every test folder may use."""

from __future__ import annotations

import gc
import os
import signal
import sys
from collections import Counter
from pathlib import Path

# Two spinning OpenMP threads on two busy cores cost a factor of ten: one thread a process, before torch is imported.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# Hundreds of processes are started: each of them would compile every module of ours anew, and this one every test.
if os.environ.pop("PYTHONDONTWRITEBYTECODE", None):
    sys.dont_write_bytecode = False

# Without a card, kernels are interpreted. Triton reads this once, when whatever comes first imports it.
if not Path("/dev/nvidiactl").exists():
    os.environ.setdefault("TRITON_INTERPRET", "1")

# A shell starts what runs in its background with SIGINT ignored, and children inherit that: the tests of Ctrl-C would
# wait for ever.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

import pytest
from hypothesis import HealthCheck, settings

from tests.exhaustive import exhaustive_tests

gc.disable()  # until all tests are imported: see `pytest_collection_finish`

# No property fails because the machine is busy: no deadline for an example, none for making inputs.
# `TANDEM_EXAMPLES` makes it longer; 1000 is what a release is tried with. In continuous integration the examples are
# the same each time: a change is judged by what it does, and chance searches in `make test` and `make fuzz`.
settings.register_profile(
    "tandem",
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
    max_examples=int(os.environ.get("TANDEM_EXAMPLES", "50")),
    derandomize=bool(os.environ.get("CI")),
    print_blob=True,  # what a failure on another machine is repeated with
)
settings.load_profile("tandem")

REPOSITORY = Path(__file__).resolve().parent.parent


@pytest.hookimpl(tryfirst=True)  # before tests are chosen by their marks
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    left_out = exhaustive_tests()
    beginnings = tuple(left.beginning for left in left_out)
    for item in items:
        if " object at 0x" in item.nodeid:  # which processes that share the suite would not agree on
            raise pytest.UsageError(f"{item.nodeid} is no name to find a test by: give its values ids")
        if item.nodeid.startswith(beginnings) and any(left.leaves_out(item.nodeid) for left in left_out):
            item.add_marker(pytest.mark.exhaustive)
    if hasattr(config, "workerinput"):  # of several processes, none shall be left with a long module at the end
        tests = Counter(item.path for item in items)
        slow = {item.path for item in items if item.get_closest_marker("slow")}
        items.sort(key=lambda item: (item.path not in slow, -tests[item.path], item.path))


def pytest_collection_finish() -> None:
    """What is imported by now stays: a million objects, that are not looked through again for what could go."""
    gc.collect()
    gc.freeze()
    gc.enable()


def pytest_unconfigure() -> None:
    """Extensions report as leaked what the interpreter cannot free at its end."""
    gc.unfreeze()


@pytest.fixture(scope="session")
def repository() -> Path:
    """The root of the source tree."""
    return REPOSITORY


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """Real vocabularies, vectors and a small real model, which stand beside the repository."""
    path = REPOSITORY.parent / "shared" / "data"
    if not path.is_dir():
        pytest.skip(f"real test data is absent: no folder {path}")
    return path
