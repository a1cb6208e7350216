"""Rotation frequencies against transformers', and the table's own properties."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from transformers import LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

from worker_svc.model.config import ModelConfig, RopeScaling
from worker_svc.model.rope import RotaryTable, frequencies, rotate

LLAMA_3_1 = RopeScaling("llama3", 8.0, 1.0, 4.0, 8192)


def config(context_length: int, **changes: Any) -> ModelConfig:
    sizes: dict[str, Any] = {
        "architecture": "llama",
        "vocab_size": 8,
        "hidden_size": 24,
        "intermediate_size": 8,
        "num_layers": 1,
        "num_heads": 2,
        "num_kv_heads": 2,
        "head_dim": 12,
        "norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "tie_embeddings": False,
    }
    return ModelConfig(context_length=context_length, **(sizes | changes))


@pytest.mark.parametrize("head_dim", [12, 64, 128])
@pytest.mark.parametrize("theta", [10000.0, 500000.0])
@pytest.mark.parametrize(
    "scaling", [LLAMA_3_1, RopeScaling("llama3", 32.0, 1.0, 4.0, 8192), RopeScaling("linear", 4.0)]
)
def test_stretched_frequencies_equal_transformers(head_dim: int, theta: float, scaling: RopeScaling) -> None:
    parameters = {
        "rope_type": scaling.kind,
        "rope_theta": theta,
        "factor": scaling.factor,
        "low_freq_factor": scaling.low_freq_factor,
        "high_freq_factor": scaling.high_freq_factor,
        "original_max_position_embeddings": scaling.original_context_length,
    }
    if scaling.kind == "linear":
        parameters = {key: parameters[key] for key in ("rope_type", "rope_theta", "factor")}
    theirs = LlamaConfig(head_dim=head_dim, max_position_embeddings=131072, rope_parameters=parameters)
    expected, _ = ROPE_INIT_FUNCTIONS[scaling.kind](theirs)
    torch.testing.assert_close(frequencies(head_dim, theta, scaling), expected, rtol=1e-6, atol=0)


def test_llama3_scaling_keeps_fast_pairs_and_divides_slow_ones() -> None:
    plain, scaled = frequencies(128, 500000.0, None), frequencies(128, 500000.0, LLAMA_3_1)
    wavelength = 2 * math.pi / plain
    fast, slow = wavelength < 8192 / 4, wavelength > 8192
    assert fast.any() and slow.any() and not (fast | slow).all()
    assert torch.equal(scaled[fast], plain[fast])
    torch.testing.assert_close(scaled[slow], plain[slow] / 8, rtol=1e-6, atol=0)


def test_a_position_turns_alike_whatever_the_context_length() -> None:
    long = RotaryTable(config(20011), "cpu").table
    for context_length in (1, 7, 8193, 20000):
        assert torch.equal(RotaryTable(config(context_length), "cpu").table, long[:context_length])


def test_rotation_equals_transformers_at_far_positions() -> None:
    table = RotaryTable(config(131072), "cpu")
    positions = torch.tensor([0, 1, 5, 8191, 8192, 100_000, 131_071])
    x = torch.randn(len(positions), 3, 12, generator=torch.Generator().manual_seed(0))
    angles = torch.outer(positions.float(), frequencies(12, 10000.0, None)).repeat(1, 2)
    expected, _ = apply_rotary_pos_emb(x, x, angles.cos(), angles.sin(), unsqueeze_dim=1)
    torch.testing.assert_close(rotate(x, *table.at(positions)), expected, atol=1e-6, rtol=0)
    assert torch.equal(rotate(x, *table.at(positions))[0], x[0])


def test_rotation_of_half_precision_rounds_only_the_result() -> None:
    table = RotaryTable(config(64), "cpu")
    positions = torch.arange(64)
    x = torch.randn(64, 2, 12, generator=torch.Generator().manual_seed(0)).bfloat16()
    exact = rotate(x.float(), *table.at(positions))
    assert torch.equal(rotate(x, *table.at(positions)), exact.bfloat16())
