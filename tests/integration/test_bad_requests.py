"""Bad input over the wire: the right status, the field, the words, and a worker that goes on serving."""

from __future__ import annotations

import grpc
import pytest
from google.rpc import error_details_pb2
from grpc_status import rpc_status

from tandem.inference.v1 import admin_pb2
from tandem.inference.v1 import inference_pb2 as pb
from tests.integration.worker_process import Worker, greedy

pytestmark = pytest.mark.asyncio(loop_scope="module")

INVALID = grpc.StatusCode.INVALID_ARGUMENT


def request(**fields: object) -> pb.GenerateRequest:
    return pb.GenerateRequest(**{"prompt_ids": [1, 5, 9], **fields})  # type: ignore[arg-type]


def sampling(**values: object) -> pb.GenerateRequest:
    return request(sampling=pb.SamplingParams(**values))  # type: ignore[arg-type]


def stopping(**values: object) -> pb.GenerateRequest:
    return request(stopping=pb.StoppingParams(**values))  # type: ignore[arg-type]


NAN, INFINITE = float("nan"), float("inf")

# What is sent, and the field and words that come back.
VIOLATIONS = {
    "empty prompt": (request(prompt_ids=[]), "prompt_ids", "at least one"),
    "id out of vocabulary": (request(prompt_ids=[1, 300]), "prompt_ids[1]", "below the vocabulary size 300"),
    "huge id": (request(prompt_ids=[2**32 - 1]), "prompt_ids[0]", "4294967295"),
    "prompt as long as the context": (request(prompt_ids=[1] * 512), "prompt_ids", "at most 511"),
    "prompt and resumed output": (
        request(prompt_ids=[1] * 500, resumed_output_ids=[1] * 13),
        "resumed_output_ids",
        "at most 12",
    ),
    "resumed id": (request(resumed_output_ids=[300]), "resumed_output_ids[0]", "vocabulary"),
    "max_tokens 0": (stopping(max_tokens=0), "stopping.max_tokens", "1 to the context length 512"),
    "max_tokens 2^31": (stopping(max_tokens=2**31), "stopping.max_tokens", "2147483648"),
    "min above max": (stopping(max_tokens=3, min_tokens=4), "stopping.min_tokens", "at most max_tokens 3"),
    "min above context": (stopping(min_tokens=4000), "stopping.min_tokens", "512"),
    "too many stop ids": (stopping(stop_token_ids=[1] * 257), "stopping.stop_token_ids", "at most 256"),
    "stop id out of vocabulary": (stopping(stop_token_ids=[300]), "stopping.stop_token_ids[0]", "300"),
    "top logprobs": (request(output=pb.OutputOptions(top_logprobs=65)), "output.top_logprobs", "0 to 64"),
    "logprob ids": (request(output=pb.OutputOptions(logprob_ids=[300])), "output.logprob_ids[0]", "vocabulary"),
    "NaN temperature": (sampling(temperature=NAN), "sampling.temperature", "finite"),
    "infinite temperature": (sampling(temperature=INFINITE), "sampling.temperature", "finite"),
    "negative temperature": (sampling(temperature=-0.1), "sampling.temperature", "at least 0"),
    "top_p 1.5": (sampling(top_p=1.5), "sampling.top_p", "0 to 1"),
    "top_p negative": (sampling(top_p=-0.5), "sampling.top_p", "0 to 1"),
    "min_p NaN": (sampling(min_p=NAN), "sampling.min_p", "finite"),
    "repetition_penalty 0": (sampling(repetition_penalty=0.0), "sampling.repetition_penalty", "more than 0"),
    "typical_p": (sampling(typical_p=1.01), "sampling.typical_p", "0 to 1"),
    "tail_free_z NaN": (sampling(tail_free_z=NAN), "sampling.tail_free_z", "finite"),
    "top_a": (sampling(top_a=-0.1), "sampling.top_a", "0 to 1"),
    "dynamic range": (
        sampling(dynamic_temperature=pb.DynamicTemperature(range=-1)),
        "sampling.dynamic_temperature.range",
        "at least 0",
    ),
    "xtc": (sampling(xtc=pb.Xtc(probability=2)), "sampling.xtc.probability", "0 to 1"),
    "mirostat version": (sampling(mirostat=pb.Mirostat(version=3)), "sampling.mirostat.version", "an integer"),
    "mirostat and top_k": (sampling(mirostat=pb.Mirostat(version=2), top_k=4), "sampling.top_k", "mirostat"),
    "adaptive_p and mirostat": (
        sampling(mirostat=pb.Mirostat(version=2), adaptive_p=pb.AdaptiveP(target=0.5)),
        "sampling.adaptive_p.target",
        "mirostat",
    ),
    "adaptive_p resumed": (
        request(resumed_output_ids=[1], sampling=pb.SamplingParams(adaptive_p=pb.AdaptiveP(target=0.5))),
        "resumed_output_ids",
        "adaptive_p",
    ),
    "mirostat resumed": (
        request(resumed_output_ids=[1], sampling=pb.SamplingParams(mirostat=pb.Mirostat(version=1))),
        "resumed_output_ids",
        "mirostat",
    ),
    "dry base": (sampling(dry=pb.Dry(base=0.5)), "sampling.dry.base", "at least 1"),
    "dry length": (sampling(dry=pb.Dry(allowed_length=0)), "sampling.dry.allowed_length", "1 to 4294967295"),
    "empty breaker": (
        sampling(dry=pb.Dry(sequence_breakers=[pb.TokenSequence()])),
        "sampling.dry.sequence_breakers[0].ids",
        "1 to 16",
    ),
    "presence": (sampling(presence_penalty=2.5), "sampling.presence_penalty", "-2 to 2"),
    "frequency": (sampling(frequency_penalty=-INFINITE), "sampling.frequency_penalty", "finite"),
    "bias id": (sampling(logit_bias=[pb.LogitBias(id=300)]), "sampling.logit_bias.id[0]", "vocabulary"),
    "bias": (sampling(logit_bias=[pb.LogitBias(id=3, bias=NAN)]), "sampling.logit_bias[0].bias", "finite"),
    "bias beyond float32": (
        sampling(logit_bias=[pb.LogitBias(id=3, bias=-1e39)]),
        "sampling.logit_bias[0].bias",
        "finite",
    ),
    "bias twice": (sampling(logit_bias=[pb.LogitBias(id=3)] * 2), "sampling.logit_bias", "once"),
    "allowed id": (sampling(allowed_ids=[1, 300]), "sampling.allowed_ids[1]", "vocabulary"),
    "allowed is banned": (sampling(allowed_ids=[4], banned_ids=[4]), "sampling.allowed_ids", "at least one"),
    "too many banned": (sampling(banned_ids=[1] * 65_537), "sampling.banned_ids", "at most 65536"),
    "banned sequence": (
        sampling(banned_sequences=[pb.TokenSequence(ids=[1, 300])]),
        "sampling.banned_sequences[0].ids[1]",
        "vocabulary",
    ),
    "priority": (request(priority=101), "priority", "-100 to 100"),
    "salt": (request(cache=pb.CacheParams(salt="x" * 257)), "cache.salt", "256 bytes"),
    "request_id": (request(request_id="x" * 129), "request_id", "128 bytes"),
    "request_id of two lines": (request(request_id="x\n12:00:00.000 critical"), "request_id", "printable ASCII"),
    "request_id beyond ASCII": (request(request_id="ü"), "request_id", "printable ASCII"),
    "n 0": (request(n=0), "n", "1 to 64"),
    "best_of 65": (request(best_of=65), "best_of", "1 to 64, not 65"),
    "best_of below n": (request(n=4, best_of=3), "best_of", "at least n 4"),
    "length_penalty": (request(best_of=2, length_penalty=NAN), "length_penalty", "-10 to 10"),
    "resumed samples": (request(n=2, resumed_output_ids=[7]), "resumed_output_ids", "same seed"),
    "too many sequences": (stopping(stop_sequences=[pb.TokenSequence(ids=[1])] * 65), "stopping.stop_sequences", "64"),
    "empty sequence": (stopping(stop_sequences=[pb.TokenSequence()]), "stopping.stop_sequences[0].ids", "1 to 64"),
    "sequence id": (
        stopping(stop_sequences=[pb.TokenSequence(ids=[5, 300])]),
        "stopping.stop_sequences[0].ids[1]",
        "vocabulary",
    ),
    "drafts": (request(speculation=pb.SpeculationParams(max_draft_tokens=33)), "speculation.max_draft_tokens", "0 to"),
    "n-gram 0": (
        request(speculation=pb.SpeculationParams(prompt_lookup_ngram=0)),
        "speculation.prompt_lookup_ngram",
        "1 to 8",
    ),
    "reasoning without an end": (
        request(reasoning=pb.ReasoningParams(max_tokens=5)),
        "reasoning.end_ids",
        "at least one element",
    ),
    "reasoning in another vocabulary": (
        request(reasoning=pb.ReasoningParams(end_ids=[5, 1 << 20])),
        "reasoning.end_ids[1]",
        "below the vocabulary size",
    ),
    "reasoning that may not end": (
        request(
            reasoning=pb.ReasoningParams(end_ids=[5]),
            sampling=pb.SamplingParams(banned_ids=[5]),
        ),
        "reasoning.end_ids",
        "5 may not",
    ),
    "reasoning that may not begin": (
        request(
            reasoning=pb.ReasoningParams(end_ids=[5], begin_ids=[6, 7]),
            guided=pb.GuidedDecoding(regex="a"),
            sampling=pb.SamplingParams(allowed_ids=[5]),
        ),
        "reasoning.begin_ids",
        "7 may not",
    ),
    "guided without a guide": (request(guided=pb.GuidedDecoding()), "guided", "one of json_schema"),
    "no choices": (
        request(guided=pb.GuidedDecoding(choices=pb.ChoiceList())),
        "guided.choices.choices",
        "at least one",
    ),
    "empty choice": (
        request(guided=pb.GuidedDecoding(choices=pb.ChoiceList(choices=["a", ""]))),
        "guided.choices.choices[1]",
        "empty",
    ),
    "huge schema": (request(guided=pb.GuidedDecoding(json_schema=" " * 70_000)), "guided.json_schema", "65536"),
    "interval 0": (request(output=pb.OutputOptions(stream_interval_tokens=0)), "output.stream_interval_tokens", "1"),
    "delay": (request(output=pb.OutputOptions(stream_max_delay_ms=10**6)), "output.stream_max_delay_ms", "60000"),
    "logprobs mode": (request(output=pb.OutputOptions(logprobs_mode=77)), "output.logprobs_mode", "77"),  # type: ignore[arg-type]
}


async def refusal(worker: Worker, message: pb.GenerateRequest) -> tuple[grpc.aio.AioRpcError, dict[str, object]]:
    """The error of a request, and its details by type; the worker serves afterwards."""
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await worker.generate(message)
    error = caught.value
    assert (await worker.generate(greedy([1, 5], 2))).ids, "it must go on serving"
    status = rpc_status.from_call(error)
    details: dict[str, object] = {}
    for any_detail in status.details if status else ():
        for kind in (error_details_pb2.BadRequest, error_details_pb2.ErrorInfo, error_details_pb2.RetryInfo):
            if any_detail.Is(kind.DESCRIPTOR):
                details[kind.DESCRIPTOR.name] = unpacked = kind()
                any_detail.Unpack(unpacked)
    return error, details


@pytest.mark.parametrize("case", VIOLATIONS)
async def test_a_violation_is_answered_with_its_field_and_what_is_allowed(worker: Worker, case: str):
    message, field, words = VIOLATIONS[case]
    error, details = await refusal(worker, message)
    assert error.code() == INVALID
    bad = details["BadRequest"]
    assert isinstance(bad, error_details_pb2.BadRequest)
    assert [violation.field for violation in bad.field_violations] == [field]
    assert words in bad.field_violations[0].description
    assert field in (error.details() or "")


async def test_all_violations_come_in_one_answer(worker: Worker):
    message = pb.GenerateRequest(
        sampling=pb.SamplingParams(temperature=-1, top_p=2, min_p=NAN),
        stopping=pb.StoppingParams(max_tokens=0),
        priority=1000,
    )
    error, details = await refusal(worker, message)
    bad = details["BadRequest"]
    assert isinstance(bad, error_details_pb2.BadRequest)
    assert {violation.field for violation in bad.field_violations} == {
        "prompt_ids",
        "sampling.temperature",
        "sampling.top_p",
        "sampling.min_p",
        "stopping.max_tokens",
        "priority",
    }
    assert error.code() == INVALID


async def test_an_unknown_model_is_not_found(worker: Worker):
    error, _ = await refusal(worker, request(model="gpt-17"))
    assert error.code() == grpc.StatusCode.NOT_FOUND
    assert "gpt-17" in (error.details() or "")
    assert "random" in (error.details() or "")
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await worker.admin.GetModel(admin_pb2.GetModelRequest(model="gpt-17"))
    assert caught.value.code() == grpc.StatusCode.NOT_FOUND


async def test_a_fingerprint_that_cannot_be_checked_is_a_failed_precondition(worker: Worker):
    error, _ = await refusal(worker, request(expected_tokenizer_fingerprint="ab" * 32))
    assert error.code() == grpc.StatusCode.FAILED_PRECONDITION
    assert "fingerprint" in (error.details() or "")


async def test_a_message_of_100_mb_is_refused(worker: Worker):
    async with grpc.aio.insecure_channel(worker.address, options=[("grpc.max_send_message_length", -1)]) as channel:
        big = Worker(worker.address, channel)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await big.generate(request(prompt_ids=[1] * 10, request_id="x" * 100_000_000))
    assert caught.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
    assert (await worker.generate(greedy([1, 5], 2))).ids


async def test_garbage_bytes_are_refused(worker: Worker):
    call = worker.channel.unary_stream("/tandem.inference.v1.InferenceService/Generate")
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        async for _ in call(b"\xff\xff\xff\xff garbage"):
            pass
    assert caught.value.code() in (grpc.StatusCode.INTERNAL, INVALID)
    assert (await worker.generate(greedy([1, 5], 2))).ids


@pytest.mark.parametrize("count", [0, 4097])
async def test_abort_names_its_bounds(worker: Worker, count: int):
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await worker.inference.Abort(pb.AbortRequest(request_ids=["x"] * count))
    assert caught.value.code() == INVALID
    assert ("4096" if count else "at least one") in (caught.value.details() or "")


async def test_a_worker_without_a_vocabulary_says_so_to_who_wants_guided_decoding(worker: Worker):
    error, details = await refusal(worker, request(guided=pb.GuidedDecoding(regex="a*")))
    assert error.code() == grpc.StatusCode.FAILED_PRECONDITION
    assert "tokenizer_address" in (error.details() or "")
    assert isinstance(details["ErrorInfo"], error_details_pb2.ErrorInfo)
    assert details["ErrorInfo"].reason == "VOCABULARY_UNKNOWN"


async def test_a_field_of_a_later_contract_is_refused_by_its_number(worker: Worker):
    known = request().SerializeToString()
    later = pb.GenerateRequest.FromString(known + bytes([0xFA, 0x3E, 0x01, 0x61]))  # field 1007, a string
    error, _ = await refusal(worker, later)
    assert error.code() == grpc.StatusCode.UNIMPLEMENTED
    assert "1007" in (error.details() or "")
