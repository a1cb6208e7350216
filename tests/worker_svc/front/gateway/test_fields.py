"""Every field of the gateway's contract has a verdict, and one that is refused is refused by its name."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

pytest.importorskip(
    "smg_grpc_proto", reason="the gateway's contract is not installed: pip install 'tandem-llm[gateway]'"
)

from google.protobuf.descriptor import Descriptor
from smg_grpc_proto import vllm_engine_pb2 as vllm
from smg_grpc_proto.generated import common_pb2 as common

from tandem.worker.front.gateway.fields import VERDICTS, Verdict, refusals

RPCS = ("Generate", "Abort", "GetLoads", "SubscribeKvEvents", "FlushCache")  # whose requests have fields
METHODS = vllm.DESCRIPTOR.services_by_name["VllmEngine"].methods_by_name


def fields(message: Descriptor) -> Iterator[str]:
    """The fields of a request, and of messages in fields that are not refused as a whole."""
    for field in message.fields:
        name = f"{message.name}.{field.name}"
        yield name
        entry = field.message_type is not None and field.message_type.GetOptions().map_entry
        if field.message_type is not None and not entry and VERDICTS.get(name) is not Verdict.REFUSED:
            yield from fields(field.message_type)


def test_every_field_of_every_request_has_a_verdict_and_none_is_made_up() -> None:
    known = {name for rpc in RPCS for name in fields(METHODS[rpc].input_type)}
    assert known == set(VERDICTS)


def test_other_rpcs_have_requests_without_fields_or_are_refused_as_a_whole() -> None:
    others = {name for name, method in METHODS.items() if name not in RPCS and method.input_type.fields}
    assert others == {"Embed", "StartProfile"}


@pytest.mark.parametrize(
    "request_",
    [
        vllm.GenerateRequest(text="hello"),
        vllm.GenerateRequest(kv_transfer_params=vllm.KvTransferParams(remote_port=1)),
        vllm.GenerateRequest(kv_transfer_params_json="{}"),
        vllm.GenerateRequest(mm_inputs=vllm.MultimodalInputs()),
        vllm.GenerateRequest(extra_mm_inputs=[vllm.MultimodalInputs()]),
        vllm.GenerateRequest(media_refs=vllm.MediaRefs()),
    ],
)
def test_what_is_refused_is_named(request_: vllm.GenerateRequest) -> None:
    (violation,) = refusals(request_)
    assert violation.field == request_.ListFields()[0][0].name
    assert "not served" in violation.description


def test_what_is_served_is_not_refused() -> None:
    assert not list(refusals(vllm.SamplingParams(top_p=1, stop=["x"], json_object=True, skip_special_tokens=True)))
    assert not list(refusals(common.SubscribeKvEventsRequest(start_sequence_number=3)))
