"""What the worker tells is found under the contract's names, and every RPC of the control plane has somebody to answer
it."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from google.protobuf.message import Message
from prometheus_client import CollectorRegistry

from tandem.common.by_name import fields_of
from tandem.inference.v1 import admin_pb2, inference_pb2
from tandem.worker.engine.account import FinishReason
from tandem.worker.engine.ends import Failure
from tandem.worker.engine.load import EngineStatistics, Load, metrics_of
from tandem.worker.engine.process.commands import Commands
from tandem.worker.engine.process.messages import EngineInfo, Step
from tandem.worker.engine.request import RequestStatistics
from tandem.worker.front.admin import OPERATOR_METHODS, AdminServicer
from tandem.worker.front.metrics import WorkerMetrics
from tests.worker_svc.front.test_validation import INFO

SERVICE = admin_pb2.DESCRIPTOR.services_by_name["WorkerAdminService"]
BY_FRONT = {  # what the front adds to what the engine tells
    admin_pb2.GetModelResponse: {"name", "tokenizer_fingerprint"},
    admin_pb2.GetServerResponse: {
        *("version", "state", "start_time", "engine_restarts", "max_waiting_requests", "max_waiting_tokens"),
    },
    admin_pb2.GetLoadResponse: {"integrity_ok", "integrity_error", "held_requests"},
}


def info() -> EngineInfo:
    return EngineInfo(*[0] * len(EngineInfo.__struct_fields__))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("message", "sources"),
    [
        (inference_pb2.Usage, [RequestStatistics()]),
        (inference_pb2.Timings, [RequestStatistics()]),
        (admin_pb2.GetLoadResponse, [Load(), EngineStatistics()]),
        (admin_pb2.GetModelResponse, [info()]),
        (admin_pb2.GetServerResponse, [info()]),
    ],
)
def test_every_field_of_an_answer_has_a_source(message: type[Message], sources: list[object]):
    found = fields_of(message, *sources).keys() | BY_FRONT.get(message, set())
    assert found == set(message.DESCRIPTOR.fields_by_name)


def test_every_rpc_of_operators_is_answered_by_the_front_or_by_the_engine():
    front = {name for name in vars(AdminServicer) if name[0].isupper()}
    engine = {name for name in vars(Commands) if name[0].isupper()}
    assert front | engine == set(SERVICE.methods_by_name)
    assert front & engine == {"GetLoad"}, "the engine is asked for its check alone"


def test_what_changes_a_worker_is_for_operators():
    methods = {method.removeprefix(f"/{SERVICE.full_name}/") for method in OPERATOR_METHODS}
    assert methods >= {"ClearPrefixCache", "SetDraining"}
    assert set(SERVICE.methods_by_name) - methods == {"GetModel", "GetServer", "GetLoad"}


def test_ends_have_the_numbers_and_names_of_the_contract():
    contract = {f"FINISH_REASON_{reason.name}": reason.value for reason in FinishReason}
    assert contract | {"FINISH_REASON_UNSPECIFIED": 0} == dict(inference_pb2.FinishReason.items())
    assert not set(FinishReason) & set(Failure)


def step(load: Load) -> Step:
    nothing = np.empty(0).tobytes()
    return Step(nothing, nothing, nothing, nothing, None, [], [], [], load, 0, 0, 0.0, 0.0, 0.0)


def test_counters_go_on_when_an_engine_takes_the_place_of_another():
    registry = CollectorRegistry()
    metrics = WorkerMetrics(registry, "demo")
    names = [field.name for field in dataclasses.fields(EngineStatistics)]
    for _ in range(2):
        metrics.engine_started(INFO)
        for times in (1, 3):
            counted = EngineStatistics(*(times * (place + 1) for place in range(len(names))))
            metrics.step(step(Load(running_requests=times, pages_total=8, pages_referenced=2, statistics=counted)))
    shown = {
        name: registry.get_sample_value(f"tandem_{each.name}_total", {"model_name": "demo"})
        for name, each in metrics_of(EngineStatistics)
    }
    assert shown == {name: 6 * (place + 1) for place, name in enumerate(names)}
    assert registry.get_sample_value("tandem_num_requests_running", {"model_name": "demo"}) == 3
    assert registry.get_sample_value("tandem_kv_cache_usage_perc", {"model_name": "demo"}) == 0.25
    metrics.engine_ended()
    assert registry.get_sample_value("tandem_num_requests_running", {"model_name": "demo"}) == 0
