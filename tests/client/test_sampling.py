"""Presets, strategies, and that the SDK and the worker have the same rules."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import pytest

from tandem.client import InvalidArgumentError, SamplingParams
from tandem.client.plan import make_plan
from tandem.client.sampling import LIMITS, PRESETS, from_message, to_message, with_preset
from tandem.client.validation import RULES
from tandem.common.contract import limit_violations
from tandem.inference.v1 import inference_pb2 as pb
from tandem.limits.fields import Kind, limits_of
from tandem.worker.front.sampling_rules import effective_sampling, to_sampling

NUMBERS = {limit.path: name for name, limit in LIMITS.items() if limit.kind in (Kind.NUMBER, Kind.INTEGER)}


def test_every_parameter_of_the_contract_is_a_field_and_no_other() -> None:
    assert [field.name for field in dataclasses.fields(SamplingParams)] == list(LIMITS)


NEAR = [-1e-6, 0, 1e-6, 0.5, 1 - 1e-6, 1, 1 + 1e-6, 2, 2.001, 3, -2, -2.001, 1e38, math.inf, -math.inf, math.nan]


@pytest.mark.parametrize("path", NUMBERS)
def test_both_sides_judge_every_value_alike(path: str) -> None:
    name = NUMBERS[path]
    for value in [int(v) for v in NEAR if v in (0, 1, 2, 3)] if LIMITS[name].kind is Kind.INTEGER else NEAR:
        message = to_message(SamplingParams(**{name: value}))  # type: ignore[arg-type]
        there = list(limit_violations(pb.GenerateRequest(sampling=message), limits_of(pb.GenerateRequest.DESCRIPTOR)))
        here = list(RULES[f"sampling.{name}"].problems(name, value))
        assert bool(here) is any(violation.field == f"sampling.{path}" for violation in there), value


FULL: dict[str, Any] = {
    **{field.name: 1 for field in dataclasses.fields(SamplingParams)},
    "temperature_last": False,
    "mirostat": 0,
    "dry_sequence_breakers": [[1], [2, 3]],
    "logit_bias": {4: 1.5, 5: -2.0},
    "allowed_ids": [6, 7],
    "banned_ids": [8],
    "banned_sequences": [[9, 10]],
    "seed": 2**64 - 1,
}


def test_every_field_survives_the_way_to_the_engine_and_back() -> None:
    params = SamplingParams(**FULL)
    message = pb.SamplingParams.FromString(to_message(params).SerializeToString())
    assert from_message(message) == params
    engine = to_sampling(message, {}, 4096, 0)
    assert from_message(effective_sampling(engine, message)) == params
    assert dict(engine.logit_bias) == FULL["logit_bias"]
    for name in ("allowed_ids", "banned_ids"):
        assert getattr(engine, name) == tuple(FULL[name])
    for name in ("dry_sequence_breakers", "banned_sequences"):
        assert getattr(engine, name) == tuple(map(tuple, FULL[name]))


def test_an_empty_request_reports_every_default() -> None:
    asked = pb.SamplingParams()
    effective = from_message(effective_sampling(to_sampling(asked, {"top_k": 7}, 512, seed=3), asked))
    lists = {"dry_sequence_breakers", "logit_bias", "allowed_ids", "banned_ids", "banned_sequences"}
    for name in set(LIMITS) - lists:
        assert getattr(effective, name) is not None, name
    assert (effective.top_k, effective.seed, effective.dry_window, effective.temperature) == (7, 3, 512, 1.0)


def test_with_mirostat_the_models_filters_are_off() -> None:
    message = pb.SamplingParams(mirostat=pb.Mirostat(version=2))
    sampling = to_sampling(message, {"top_k": 50, "top_p": 0.9, "temperature": 0.6}, 512, 0)
    assert (sampling.top_k, sampling.top_p, sampling.temperature) == (0, 1.0, 0.6)


def sampling_of(**options: Any) -> SamplingParams:
    return make_plan([1], options, None).sampling  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("preset", "values"),
    [("creative", (0.9, 50, 0.95, 1.05)), ("balanced", (0.7, 40, 0.9, 1.1)), ("focused", (0.3, 20, 0.8, 1.15))],
)
def test_a_preset_stands_for_its_values(preset: str, values: tuple[float, ...]) -> None:
    found = sampling_of(preset=preset)
    assert (found.temperature, found.top_k, found.top_p, found.repetition_penalty) == values
    assert found == SamplingParams(**PRESETS[preset])  # type: ignore[arg-type]


def test_deterministic_is_greedy() -> None:
    assert sampling_of(preset="deterministic") == SamplingParams(temperature=0.0)


def test_what_is_said_wins_over_the_preset() -> None:
    found = sampling_of(preset="creative", top_k=3, sampling=SamplingParams(temperature=0.2, top_k=9))
    assert (found.temperature, found.top_k, found.top_p) == (0.2, 3, 0.95)


def test_a_strategy_leaves_its_own_filter_on() -> None:
    top_k = sampling_of(strategy="top_k")
    assert (top_k.top_k, top_k.top_p, top_k.min_p, top_k.typical_p) == (40, 1.0, 0.0, 1.0)
    assert sampling_of(strategy="top_k", preset="creative").top_k == 50
    assert sampling_of(strategy="top_k", preset="creative").temperature == 0.9
    assert sampling_of(strategy="top_p", preset="focused").top_k == 0
    assert sampling_of(strategy="temperature", temperature=0.5).top_p == 1.0
    assert sampling_of(strategy="greedy", preset="creative").temperature == 0
    assert sampling_of(strategy="combined", preset="creative") == with_preset(SamplingParams(), "creative", None)
    assert sampling_of(strategy="top_p", min_p=0.1).min_p == 0.1


def test_what_does_not_go_together_is_named_with_everything_else() -> None:
    with pytest.raises(InvalidArgumentError) as caught:
        make_plan([1], {"mirostat": 2, "top_k": 5, "temperature": -1, "allowed_ids": [4], "banned_ids": [4, 5]}, None)
    assert {violation.field for violation in caught.value.violations} == {
        "sampling.temperature",
        "sampling.top_k",
        "sampling.allowed_ids",
    }
