"""Numbers of a request read as they were written, there and back."""

from __future__ import annotations

import math
from collections.abc import Iterator

import pytest
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from hypothesis import given
from hypothesis import strategies as st

from tandem.client import SamplingParams
from tandem.client.errors import InvalidArgumentError
from tandem.client.plan import make_plan
from tandem.client.sampling import from_message, to_message
from tandem.common.contract import limit_violations
from tandem.inference.v1 import inference_pb2 as pb
from tandem.limits.fields import FLOAT32_MAX, FLOAT32_SMALLEST, Kind, limits_of
from tandem.worker.front.sampling_rules import effective_sampling, to_sampling

REQUEST_LIMITS = limits_of(pb.GenerateRequest.DESCRIPTOR)

NUMBERS = {limit.path: limit for limit in limits_of(pb.SamplingParams.DESCRIPTOR).values() if limit.kind is Kind.NUMBER}


def fields(message: Descriptor) -> Iterator[FieldDescriptor]:
    for field in message.fields:
        yield field
        if field.message_type is not None:
            yield from fields(field.message_type)


def test_no_number_that_a_caller_writes_or_is_told_of_it_has_single_precision():
    for message in (pb.GenerateRequest, pb.Accepted, pb.Finished):
        single = [field.full_name for field in fields(message.DESCRIPTOR) if field.type == FieldDescriptor.TYPE_FLOAT]
        assert single == []
    assert len(NUMBERS) > 15


@given(data=st.data())
def test_every_number_comes_back_as_it_was_written(data: st.DataObject):
    written = {}
    for limit in NUMBERS.values():
        low, high = max(limit.low, -FLOAT32_MAX), min(limit.high, FLOAT32_MAX)
        numbers = st.floats(low, high, allow_subnormal=False).filter(limit.allows)
        written[limit.name] = data.draw(st.sampled_from([0.1, 0.8, 0.3, 0.7]).filter(limit.allows) | numbers)
    bias = data.draw(st.floats(-100, 100))
    params = SamplingParams(**written, logit_bias={5: bias})
    asked = to_message(params)
    accepted = effective_sampling(to_sampling(asked, {}, 100, seed=1), asked)
    told = from_message(pb.SamplingParams.FromString(accepted.SerializeToString()))
    for name, value in written.items():
        assert getattr(told, name) == (value if abs(value) >= FLOAT32_SMALLEST else 0.0)
    assert told.logit_bias == {5: bias}


def test_a_models_own_defaults_are_told_as_its_file_has_them():
    asked = pb.SamplingParams()
    accepted = effective_sampling(to_sampling(asked, {"temperature": 0.6, "top_p": 0.9}, 100, seed=1), asked)
    assert (accepted.temperature, accepted.top_p, accepted.xtc.threshold) == (0.6, 0.9, 0.1)


@pytest.mark.parametrize("path", NUMBERS)
@pytest.mark.parametrize("value", [-7.123456789, 1e39, -1e39, math.inf, math.nan])
def test_a_violation_says_what_was_written(path: str, value: float):
    limit, request = NUMBERS[path], pb.GenerateRequest()
    setattr(limit.owner(request.sampling), limit.field, value)
    told = {each.field: each.description for each in limit_violations(request, REQUEST_LIMITS)}
    assert told[f"sampling.{path}"].endswith(f"not {value!r}")
    with pytest.raises(InvalidArgumentError) as caught:
        make_plan("x", {limit.name: value}, None)  # type: ignore[misc]
    assert [each.field for each in caught.value.violations] == [f"sampling.{limit.name}"]
    assert repr(value) in caught.value.violations[0].description


def test_a_number_that_is_nothing_to_the_sampler_is_zero_and_no_divisor():
    message = pb.SamplingParams(temperature=1e-60)
    assert to_sampling(message, {}, 100, seed=1).temperature == 0
    request = pb.GenerateRequest(prompt_ids=[1], sampling=pb.SamplingParams(repetition_penalty=1e-60))
    refused = limit_violations(request, REQUEST_LIMITS)
    assert [each.field for each in refused] == ["sampling.repetition_penalty"]
    with pytest.raises(InvalidArgumentError):
        make_plan("x", {"repetition_penalty": 1e-60}, None)


def test_a_length_penalty_out_of_range_is_told_as_written():
    (violation,) = limit_violations(pb.GenerateRequest(prompt_ids=[1], length_penalty=10.1), REQUEST_LIMITS)
    assert violation.description.endswith("not 10.1")
