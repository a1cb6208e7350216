"""Rotation frequencies against transformers', and the table's own properties."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from transformers import LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

from tandem.worker.checkpoints.model_config import ModelConfig
from tandem.worker.checkpoints.model_parts.rope import RopeScaling, yarn_attention_factor
from tandem.worker.model.rope import RotaryTable, frequencies, rotate

YARN = RopeScaling("yarn", 4.0, original_context_length=32768, attention_factor=yarn_attention_factor(4.0))
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


SCALINGS = {
    "llama3": LLAMA_3_1,
    "llama3, factor 32": RopeScaling("llama3", 32.0, 1.0, 4.0, 8192),
    "linear": RopeScaling("linear", 4.0),
    "dynamic": RopeScaling("dynamic", 3.0, original_context_length=2048),
    "yarn": YARN,
    "yarn without truncation": replace(YARN, truncate=False, beta_fast=20.0, beta_slow=2.0, attention_factor=1.25),
}


@pytest.mark.parametrize("head_dim", [12, 64, 128])
@pytest.mark.parametrize("theta", [10000.0, 500000.0])
@pytest.mark.parametrize("scaling", SCALINGS.values(), ids=SCALINGS)
def test_stretched_frequencies_equal_transformers(head_dim: int, theta: float, scaling: RopeScaling) -> None:
    parameters: dict[str, Any] = {"rope_type": scaling.kind, "rope_theta": theta, "factor": scaling.factor}
    length, trained = 131072, 131072
    if scaling.kind == "llama3":
        parameters |= {"low_freq_factor": scaling.low_freq_factor, "high_freq_factor": scaling.high_freq_factor}
        parameters |= {"original_max_position_embeddings": scaling.original_context_length}
    elif scaling.kind == "yarn":
        parameters |= {"beta_fast": scaling.beta_fast, "beta_slow": scaling.beta_slow, "truncate": scaling.truncate}
        parameters |= {"original_max_position_embeddings": scaling.original_context_length}
        if scaling.attention_factor != yarn_attention_factor(scaling.factor):
            parameters["attention_factor"] = scaling.attention_factor
    elif scaling.kind == "dynamic":
        trained, length = scaling.original_context_length, 5000
    theirs = LlamaConfig(head_dim=head_dim, max_position_embeddings=trained, rope_parameters=parameters)
    expected, attention_factor = ROPE_INIT_FUNCTIONS[scaling.kind](theirs, seq_len=length)
    ours = config(length, head_dim=head_dim, rope_theta=theta, rope_scaling=scaling)
    torch.testing.assert_close(frequencies(ours), expected, rtol=1e-6, atol=0)
    assert attention_factor == pytest.approx(scaling.attention_factor)
    table = RotaryTable(replace(ours, context_length=2), "cpu").table
    assert float(table[0, 0]) == pytest.approx(attention_factor)


def test_llama3_scaling_keeps_fast_pairs_and_divides_slow_ones() -> None:
    plain = frequencies(config(8, head_dim=128, rope_theta=500000.0))
    scaled = frequencies(config(8, head_dim=128, rope_theta=500000.0, rope_scaling=LLAMA_3_1))
    wavelength = 2 * math.pi / plain
    fast, slow = wavelength < 8192 / 4, wavelength > 8192
    assert fast.any() and slow.any() and not (fast | slow).all()
    assert torch.equal(scaled[fast], plain[fast])
    torch.testing.assert_close(scaled[slow], plain[slow] / 8, rtol=1e-6, atol=0)


def test_dynamic_scaling_changes_nothing_within_the_original_context() -> None:
    scaling = RopeScaling("dynamic", 4.0, original_context_length=2048)
    assert torch.equal(frequencies(config(2048, rope_scaling=scaling)), frequencies(config(2048)))
    assert not torch.equal(frequencies(config(2049, rope_scaling=scaling)), frequencies(config(2049)))


def test_factors_of_a_pair_divide_its_frequency() -> None:
    factors = (1.0, 2.0, 4.0, 4.0, 8.0, 8.0)
    scaled = frequencies(config(8, rope_scaling=RopeScaling("linear", factors=factors)))
    torch.testing.assert_close(scaled * torch.tensor(factors), frequencies(config(8)), rtol=1e-6, atol=0)


def test_an_operators_scale_divides_positions_and_alpha_raises_theta_as_dynamic_scaling_would() -> None:
    plain = config(64)
    torch.testing.assert_close(frequencies(plain.with_rope(4.0, 1.0)) * 4, frequencies(plain), rtol=1e-6, atol=0)
    dynamic = RopeScaling("dynamic", 2.0, original_context_length=64)
    alpha = 2 * 2 - 1  # at twice the original context
    expected = frequencies(config(128, rope_scaling=dynamic))
    torch.testing.assert_close(frequencies(plain.with_rope(1.0, alpha)), expected, rtol=1e-6, atol=0)


def test_a_position_turns_alike_whatever_the_context_length() -> None:
    long = RotaryTable(config(20011), "cpu")
    long.reach(20011)
    for context_length in (1, 7, 8193, 20000):
        table = RotaryTable(config(context_length), "cpu")
        for positions in (8195, 8200, 1 << 40, 3):
            table.reach(positions)
        assert torch.equal(table.table, long.table[:context_length])


def test_a_table_has_no_more_positions_than_a_cache() -> None:
    table = RotaryTable(config(10 << 20), "cpu")
    table.reach(8200)
    assert len(table.table) == 8200


def test_rotation_equals_transformers_at_far_positions() -> None:
    table = RotaryTable(config(131072), "cpu")
    table.reach(131072)
    positions = torch.tensor([0, 1, 5, 8191, 8192, 100_000, 131_071])
    x = torch.randn(len(positions), 3, 12, generator=torch.Generator().manual_seed(0))
    angles = torch.outer(positions.float(), frequencies(config(8))).repeat(1, 2)
    expected, _ = apply_rotary_pos_emb(x, x, angles.cos(), angles.sin(), unsqueeze_dim=1)
    torch.testing.assert_close(rotate(x, *table.at(positions)), expected, atol=1e-6, rtol=0)
    assert torch.equal(rotate(x, *table.at(positions))[0], x[0])


def test_rotation_of_half_precision_rounds_only_the_result() -> None:
    table = RotaryTable(config(64), "cpu")
    positions = torch.arange(64)
    x = torch.randn(64, 2, 12, generator=torch.Generator().manual_seed(0)).bfloat16()
    exact = rotate(x.float(), *table.at(positions))
    assert torch.equal(rotate(x, *table.at(positions)), exact.bfloat16())


def test_a_position_behind_the_table_is_an_error() -> None:
    table = RotaryTable(config(128), "cpu")
    for position in (128, -1):
        with pytest.raises(IndexError):
            table.at(torch.tensor([0, position]))
