"""llama.cpp computes of a GGUF file what we do; only where llama-cpp-python is installed (`beside_llama_cpp.py`)."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.worker_svc.checkpoints.beside_llama_cpp import absent, apart, three_logits
from tests.worker_svc.model.test_architectures import GGUF

NAMES = ["llama with biases", "mistral without a window", "qwen2", "qwen3", "mixtral", "qwen3 moe, normalized", *GGUF]


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", NAMES)
def test_llama_cpp_computes_the_same_logits(name: str, tmp_path: Path) -> None:
    if problem := absent():
        pytest.skip(problem)
    _, ours, theirs = three_logits(name, tmp_path)
    assert apart(ours, theirs) < 1e-3
