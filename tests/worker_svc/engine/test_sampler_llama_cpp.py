"""The stages against what llama.cpp's own samplers made of the same logits."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from tandem.worker.engine.sampling import Sampling
from tests.worker_svc.engine.test_sampler_stages import TOKENS, distributions

VECTORS = json.loads(Path(__file__).with_name("llama_cpp_samplers.json").read_text())
CASES = VECTORS["cases"]


@pytest.mark.parametrize("case", CASES, ids=[f"{i}-{case['name']}" for i, case in enumerate(CASES)])
def test_a_stage_leaves_what_llama_cpp_leaves(case: dict[str, object]):
    assert VECTORS["tokens"] == TOKENS
    left = np.array([-np.inf if value is None else value for value in case["kept"]])  # type: ignore[union-attr]
    expected = np.exp(left - left.max())
    expected /= expected.sum()
    found, _ = distributions(torch.tensor(VECTORS["logits"]).unsqueeze(0), [Sampling(**case["fields"])])  # type: ignore[arg-type]
    assert ((found[0] > 0) == (expected > 0)).all()
    assert np.allclose(found[0], expected, atol=1e-5)
