"""Whatever is wrong with a request is told in one answer."""

from __future__ import annotations

from collections.abc import Callable
from itertools import combinations

import grpc
import msgspec
import pytest

from tandem.common.errors import ServiceError
from tandem.inference.v1 import inference_pb2 as pb
from tandem.worker.engine.process.messages import EngineInfo
from tandem.worker.front.validation import validate

INFO = EngineInfo(
    architecture="llama",
    checkpoint_format="none",
    vocabulary_size=100,
    context_length=64,
    eos_ids=[2],
    bos_id=1,
    sampling_defaults={},
    parameters=0,
    dtype="float32",
    quantization="",
    layers=1,
    hidden_size=8,
    attention_heads=1,
    kv_heads=1,
    head_dim=8,
    device="cpu",
    device_name="",
    torch_version="",
    threads=1,
    weight_bytes=0,
    kv_cache_bytes=0,
    state_cache_bytes=0,
    kv_cache_tokens=64,
    kv_bytes_per_token=1,
    kv_cache_dtype="float32",
    page_size=16,
    row_invariant=True,
)


def too_small_a_maximum(request: pb.GenerateRequest) -> None:
    request.stopping.max_tokens = 4
    request.stopping.min_tokens = 5


def more_resumed_than_asked_for(request: pb.GenerateRequest) -> None:
    request.stopping.max_tokens = 4
    request.resumed_output_ids.extend([3] * 6)


def filters_with_mirostat(request: pb.GenerateRequest) -> None:
    request.sampling.mirostat.version = 2
    request.sampling.top_k = 5


def nothing_allowed(request: pb.GenerateRequest) -> None:
    request.sampling.allowed_ids.append(7)
    request.sampling.banned_ids.append(7)


def an_unknown_id_in_a_sequence(request: pb.GenerateRequest) -> None:
    request.sampling.banned_sequences.extend([pb.TokenSequence(ids=[1]), pb.TokenSequence(ids=[2, 100])])


def fewer_made_than_returned(request: pb.GenerateRequest) -> None:
    request.n, request.best_of = 3, 2


def a_cold_temperature(request: pb.GenerateRequest) -> None:
    request.sampling.temperature = -1.5


def an_unknown_id(request: pb.GenerateRequest) -> None:
    request.prompt_ids.append(100)


def a_priority_beyond_all(request: pb.GenerateRequest) -> None:
    request.priority = 101


FAULTS: dict[Callable[[pb.GenerateRequest], None], str] = {
    too_small_a_maximum: "stopping.min_tokens",
    more_resumed_than_asked_for: "resumed_output_ids",
    filters_with_mirostat: "sampling.top_k",
    nothing_allowed: "sampling.allowed_ids",
    an_unknown_id_in_a_sequence: "sampling.banned_sequences[1].ids[1]",
    fewer_made_than_returned: "best_of",
    a_cold_temperature: "sampling.temperature",
    an_unknown_id: "prompt_ids[3]",
    a_priority_beyond_all: "priority",
}


def told(*faults: Callable[[pb.GenerateRequest], None]) -> set[str]:
    request = pb.GenerateRequest(prompt_ids=[1, 2, 3])
    for fault in faults:
        fault(request)
    with pytest.raises(ServiceError) as caught:
        validate(request, INFO, number=0, seed=1, fingerprint="")
    assert caught.value.code is grpc.StatusCode.INVALID_ARGUMENT
    return {violation.field for violation in caught.value.violations}


@pytest.mark.parametrize(("first", "second"), list(combinations(FAULTS, 2)))
def test_any_two_faults_are_told_together(
    first: Callable[[pb.GenerateRequest], None], second: Callable[[pb.GenerateRequest], None]
) -> None:
    assert told(first, second) >= {FAULTS[first], FAULTS[second]}


def test_all_faults_are_told_together() -> None:
    assert told(*FAULTS) >= set(FAULTS.values())


def test_a_cache_of_each_callers_own_keeps_every_caller_and_salt_apart() -> None:
    def salt(caller: str, given: str, *, own: bool = True) -> str:
        request = pb.GenerateRequest(prompt_ids=[1], cache=pb.CacheParams(salt=given))
        submit, _ = validate(request, INFO, number=0, seed=1, fingerprint="", caller=caller, cache_per_caller=own)
        assert submit.caller == caller
        return submit.salt

    assert salt("a", "x", own=False) == salt("b", "x", own=False) == "x"
    pairs = [(caller, given) for caller in ("", "a", "ab", "1:a") for given in ("", "a", "b", "1:", "2:ab")]
    assert len({salt(*pair) for pair in pairs}) == len(pairs)


def test_logprobs_of_the_whole_vocabulary_are_bounded() -> None:
    info = msgspec.structs.replace(INFO, vocabulary_size=1 << 17, context_length=1000)
    request = pb.GenerateRequest(prompt_ids=[1], output=pb.OutputOptions(vocabulary_logprobs=True))
    for outputs, most in ((1, 128), (4, 32)):
        request.n = outputs
        for asked in (None, most + 1):
            request.stopping.Clear()
            if asked is not None:
                request.stopping.max_tokens = asked
            with pytest.raises(ServiceError, match=rf"output.vocabulary_logprobs.*at most {most} tokens"):
                validate(request, info, number=1, seed=0, fingerprint="")
        request.stopping.max_tokens = most
        submit, delivery = validate(request, info, number=1, seed=0, fingerprint="")
        assert submit.logprobs.whole and submit.logprobs.sampled
        assert delivery.most_tokens == 2, "a message has a MiB of them"
