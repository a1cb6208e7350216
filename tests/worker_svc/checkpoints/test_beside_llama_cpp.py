"""llama.cpp computes of a GGUF file what we do; only where llama-cpp-python is installed (`beside_llama_cpp.py`)."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.worker_svc.checkpoints.beside_llama_cpp import BY_TABLE, CASES, THINNED, absent, apart, three_logits


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", CASES)
def test_llama_cpp_computes_the_same_logits(name: str, tmp_path: Path) -> None:
    if problem := absent():
        pytest.skip(problem)
    expected, ours, theirs = three_logits(name, tmp_path)
    assert apart(ours, expected) < 2e-4
    assert apart(ours, theirs) < (5e-2 if name in THINNED else 2e-2 if name.startswith(BY_TABLE) else 2e-4)
