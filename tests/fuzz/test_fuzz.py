"""A short run of `make fuzz`, and what it relies on."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.fuzz import files, services, settings, shapes
from tests.fuzz.requests import METHODS, call

SEED = 1


def drawn_elsewhere(numbers: Sequence[int]) -> str:
    """A digest of these calls, drawn by another process."""
    script = (
        "import hashlib; from tests.fuzz.requests import calls; "
        f"print(hashlib.sha256(repr(calls({SEED}, {list(numbers)})).encode()).hexdigest())"
    )
    root = Path(__file__).resolve().parents[2]
    return subprocess.run([sys.executable, "-c", script], cwd=root, capture_output=True, text=True, check=True).stdout


def test_a_seed_gives_the_same_calls_in_any_process() -> None:
    assert drawn_elsewhere(range(40)) == drawn_elsewhere(range(40))


def test_every_method_is_called() -> None:
    called = {call(SEED, number).path for number in range(300)}
    assert called == {f"/{method.containing_service.full_name}/{method.name}" for _, method in METHODS}


def test_growth_is_that_after_the_first_quarter_and_no_single_peak() -> None:
    warming = [(float(at), min(100.0 + 10 * at, 300.0)) for at in range(100)]
    assert services.growth(warming) == 0
    assert services.growth([*warming[:60], (60.0, 900.0), *warming[61:]]) == 0
    assert services.growth([(float(at), 4.0 * at) for at in range(100)]) == pytest.approx(200, abs=10)


@pytest.mark.slow
async def test_no_drawn_call_breaks_a_service_or_holds_it_up() -> None:
    findings = await services.fuzz(minutes=5, seed=SEED, most=700)
    assert sum(findings.codes.values()) == 700
    assert {"Generate OK", "Encode OK", "EncodeChat OK", "DecodeStream OK"} <= findings.codes.keys()
    assert not findings.counts


@pytest.mark.slow
def test_mutated_files_are_loaded_or_refused_with_a_word() -> None:
    assert not files.fuzz(minutes=5, seed=SEED, most=50)


@pytest.mark.slow
def test_models_of_any_size_compute_what_transformers_does_and_the_same_bits_in_any_chunks() -> None:
    assert not shapes.fuzz(minutes=5, seed=SEED, most=20)


@pytest.mark.slow
def test_models_with_any_settings_compute_what_transformers_does() -> None:
    assert not settings.fuzz(minutes=5, seed=SEED, most=15)
