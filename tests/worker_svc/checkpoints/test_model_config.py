"""A config refuses sizes that do not go together."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tandem.worker.checkpoints.model_config import ModelConfig
from tandem.worker.checkpoints.model_parts.limits import ConfigError
from tandem.worker.checkpoints.model_parts.rope import RopeScaling

GOOD = ModelConfig(
    architecture="llama",
    vocab_size=97,
    hidden_size=60,
    intermediate_size=100,
    num_layers=2,
    num_heads=6,
    num_kv_heads=2,
    head_dim=10,
    context_length=64,
    norm_eps=1e-5,
    rope_theta=10000.0,
    tie_embeddings=False,
)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *(
            (name, value)
            for name in ("vocab_size", "hidden_size", "num_layers", "num_heads")
            for value in (0, -1, 1 << 40)
        ),
        ("context_length", 0),
        ("context_length", 1 << 30),
        ("num_kv_heads", 0),
        ("num_kv_heads", 4),
        ("num_kv_heads", 12),
        ("head_dim", 11),
        ("norm_eps", 0.0),
        ("norm_eps", -1e-5),
        ("norm_eps", float("nan")),
        ("rope_theta", float("nan")),
        ("rope_theta", float("inf")),
        ("rope_theta", 0.0),
        ("rope_theta", -10000.0),
    ],
)
def test_an_impossible_value_is_named(field: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=field) as caught:
        replace(GOOD, **{field: value})
    assert caught.value.field == field


@pytest.mark.parametrize(
    ("field", "values"),
    [
        ("factor", {"factor": 0.5}),
        ("factor", {"factor": float("nan")}),
        ("low_freq_factor", {"factor": 8.0, "low_freq_factor": 0.0}),
        ("high_freq_factor", {"factor": 8.0, "low_freq_factor": 4.0, "high_freq_factor": 3.0}),
        ("original_context_length", {"factor": 8.0, "original_context_length": 0}),
    ],
)
def test_an_impossible_rope_scaling_is_named(field: str, values: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=rf"rope_scaling\.{field}"):
        RopeScaling("llama3", **values)


def test_what_is_said_of_other_layers_than_there_are_is_named_whatever_else_is_said_by_layer() -> None:
    by_layer = replace(GOOD, query_heads=(6, 4), windows=(0, 8))
    for field, value in (("windows", (0, 8, 0)), ("query_heads", (6, 4, 6)), ("inner_sizes", (7,))):
        with pytest.raises(ConfigError) as caught:
            replace(by_layer, **{field: value})
        assert caught.value.field == field


def test_another_context_length_changes_nothing_else() -> None:
    assert GOOD.with_context_length(7) == replace(GOOD, context_length=7)


def test_the_tensors_of_a_tied_model_have_no_output() -> None:
    untied, tied = GOOD.tensor_shapes(), replace(GOOD, tie_embeddings=True).tensor_shapes()
    assert untied.keys() - tied.keys() == {"output"}
    assert untied["layers.1.attention.k"] == (20, 60)
