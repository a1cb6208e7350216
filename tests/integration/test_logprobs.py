"""Logprobs over the wire, against Hugging Face's logits: of the output, of the prompt, of other tokens."""

from __future__ import annotations

import asyncio
import math
from pathlib import Path

import grpc
import numpy as np
import pytest
import torch
from transformers import LlamaForCausalLM

from tandem.inference.v1 import inference_pb2 as pb
from tests.integration.worker_process import Answer, Worker

pytestmark = pytest.mark.asyncio(loop_scope="module")

PROMPT = [1, *(7 + (5 * i * i) % 250 for i in range(150))]


@pytest.fixture(scope="module")
def expected(random_llama: Path) -> np.ndarray:
    """Log-softmax `[tokens, vocabulary]` behind each token of the prompt."""
    model = LlamaForCausalLM.from_pretrained(random_llama)
    with torch.no_grad():
        return torch.log_softmax(model(torch.tensor([PROMPT])).logits[0].double(), dim=-1).numpy()


def ask(max_tokens: int = 4, *, cache: pb.CacheParams | None = None, **output: object) -> pb.GenerateRequest:
    return pb.GenerateRequest(
        prompt_ids=PROMPT,
        sampling=pb.SamplingParams(temperature=0.7, top_k=20, seed=5),
        stopping=pb.StoppingParams(max_tokens=max_tokens, ignore_eos=True),
        output=pb.OutputOptions(**output),  # type: ignore[arg-type]
        cache=cache,
    )


def check_prompt(answer: Answer, expected: np.ndarray) -> None:
    prompt = answer.prompt
    assert list(prompt.ids) == PROMPT
    assert math.isnan(prompt.logprobs[0])
    assert prompt.ranks[0] == 0
    rows, ids = np.arange(len(PROMPT) - 1), np.array(PROMPT[1:])
    assert np.allclose(prompt.logprobs[1:], expected[rows, ids], atol=2e-4)
    ranks = (expected[:-1] > expected[rows, ids][:, None]).sum(axis=1) + 1
    assert np.abs(np.array(prompt.ranks[1:]) - ranks).max() <= 1


async def test_of_the_output_with_the_most_probable_and_given_ids(worker: Worker, expected: np.ndarray):
    answer = await worker.generate(ask(logprobs=True, top_logprobs=3, logprob_ids=[9, 4]))
    assert len(answer.ids) == len(answer.logprobs) == len(answer.ranks) == len(answer.others) == 4
    last = expected[-1]
    first, order = answer.others[0], np.argsort(-last)
    assert list(first.ids) == [*order[:3].tolist(), 9, 4]
    assert np.allclose(first.logprobs, last[list(first.ids)], atol=2e-4)
    assert list(first.ranks) == [1, 2, 3, *(int((last > last[i]).sum()) + 1 for i in (9, 4))]
    assert answer.logprobs[0] == pytest.approx(last[answer.ids[0]], abs=2e-4)
    assert answer.ranks[0] == int((last > last[answer.ids[0]]).sum()) + 1
    assert answer.finished is not None
    assert answer.finished.total_logprob == pytest.approx(sum(answer.logprobs))


async def test_of_the_whole_vocabulary(worker: Worker, expected: np.ndarray):
    plain = await worker.generate(ask(60, top_logprobs=5))
    rows: list[np.ndarray] = []
    ids: list[int] = []
    request = ask(60, vocabulary_logprobs=True, top_logprobs=5)
    request.stopping.stop_sequences.add(ids=plain.ids[-3:])  # what is held back has its rows too
    async for message in worker.inference.Generate(request, timeout=120):
        ids += message.delta.ids
        if message.delta.ids:
            whole = np.frombuffer(message.delta.vocabulary_logprobs, "<f4").reshape(len(message.delta.ids), -1)
            assert whole.shape[1] == expected.shape[1]
            for row, top in zip(whole, message.delta.top_logprobs, strict=True):
                assert np.array_equal(row[list(top.ids)], top.logprobs), "the same numbers"
            rows += list(whole)
    assert ids == plain.ids[: len(ids)] and len(ids) >= 57
    assert np.allclose(rows[0], expected[-1], atol=2e-4)
    assert np.allclose(np.exp(np.array(rows, np.float64)).sum(axis=1), 1, atol=1e-4)


async def test_four_requests_at_a_time_are_told_the_whole_vocabulary(worker: Worker):
    # The cache holds one of them at a time, and none ends before it is read.
    calls = [worker.inference.Generate(ask(360, vocabulary_logprobs=True)) for _ in range(4)]
    while (load := await worker.load()).running_requests + load.waiting_requests < 4:
        pass
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await worker.generate(ask(vocabulary_logprobs=True))
    assert refused.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
    assert refused.value.details() == "4 requests with output.vocabulary_logprobs run, which is the limit"
    plain = asyncio.create_task(worker.generate(ask(logprobs=True)))  # is let in
    for call in calls:
        call.cancel()
    assert (await plain).logprobs
    await worker.settled()
    assert len((await worker.generate(ask(vocabulary_logprobs=True))).ids) == 4


async def test_processed_ones_are_of_what_was_drawn_from(worker: Worker, expected: np.ndarray):
    answer = await worker.generate(ask(top_logprobs=64, logprobs_mode=pb.LOGPROBS_MODE_PROCESSED))
    first = answer.others[0]
    assert len(first.ids) == 20, "what top_k leaves"
    assert sum(math.exp(value) for value in first.logprobs) == pytest.approx(1, abs=1e-4)
    top = np.sort(expected[-1])[::-1][:20] / 0.7
    assert np.allclose(first.logprobs, top - np.log(np.exp(top).sum()), atol=1e-3)


async def test_of_the_prompt_once_whatever_the_cache_holds(worker: Worker, expected: np.ndarray):
    plain = await worker.generate(ask())
    answers = [
        await worker.generate(ask(prompt_logprobs=True, logprobs=True, top_logprobs=2)),
        await worker.generate(ask(prompt_logprobs=True, logprobs=True, top_logprobs=2)),
        await worker.generate(
            ask(prompt_logprobs=True, logprobs=True, top_logprobs=2, cache=pb.CacheParams(bypass=True))
        ),
    ]
    for answer in answers:
        check_prompt(answer, expected)
        assert answer.ids == plain.ids
        assert len(answer.prompt.top_logprobs) == len(PROMPT)
        assert not answer.prompt.top_logprobs[0].ids
        assert list(answer.prompt.top_logprobs[1].ids) == np.argsort(-expected[0])[:2].tolist()
        assert answer.prompt.logprobs[1:] == answers[0].prompt.logprobs[1:], "not the same bits"
        assert answer.logprobs == answers[0].logprobs


async def test_a_prompt_is_scored_without_generating_and_may_fill_the_context(worker: Worker, expected: np.ndarray):
    answer = await worker.generate(ask(0, prompt_logprobs=True))
    check_prompt(answer, expected)
    assert answer.ids == []
    assert answer.finished is not None
    assert answer.finished.reason == pb.FINISH_REASON_MAX_TOKENS
    full = pb.GenerateRequest(
        prompt_ids=[1, *range(3, 258)] * 2,
        stopping=pb.StoppingParams(max_tokens=0),
        output=pb.OutputOptions(prompt_logprobs=True),
    )
    assert len((await worker.generate(full)).prompt.logprobs) == 512
    one = pb.GenerateRequest(
        prompt_ids=[5], stopping=pb.StoppingParams(max_tokens=0), output=pb.OutputOptions(prompt_logprobs=True)
    )
    assert math.isnan((await worker.generate(one)).prompt.logprobs[0])


async def test_scored_prompts_in_a_crowd_that_is_preempted_are_the_same_bits(worker: Worker):
    alone = await worker.generate(ask(40, prompt_logprobs=True, logprobs=True))
    crowd = await asyncio.gather(*(worker.generate(ask(40, prompt_logprobs=True, logprobs=True)) for _ in range(8)))
    for answer in crowd:
        assert answer.prompt.logprobs[1:] == alone.prompt.logprobs[1:]
        assert (answer.ids, answer.logprobs) == (alone.ids, alone.logprobs)
    await worker.settled()


@pytest.mark.parametrize("interval", [1, 100_000])
async def test_messages_with_many_other_tokens_are_bounded(worker: Worker, interval: int):
    """They have a MiB or less, for clients that take a few at most."""
    request = ask(360, top_logprobs=64, logprob_ids=range(128), stream_interval_tokens=interval)
    request.best_of = 2  # told at the end, all at once
    deltas = [message.delta async for message in worker.inference.Generate(request, timeout=60)]
    assert sum(len(delta.ids) for delta in deltas) == 360
    assert 1 << 18 < max(delta.ByteSize() for delta in deltas) < 1 << 20
    assert sum(bool(delta.ids) for delta in deltas) == 2


async def test_samples_of_a_scored_prompt_tell_it_once(worker: Worker, expected: np.ndarray):
    request = ask(3, prompt_logprobs=True)
    request.n = 3
    parts, finished = pb.PromptLogprobs(), 0
    async for message in worker.inference.Generate(request, timeout=60):
        if message.HasField("prompt_logprobs"):
            parts.MergeFrom(message.prompt_logprobs)
        finished += message.HasField("finished")
    assert finished == 3
    assert len(parts.logprobs) == len(PROMPT)
    check_prompt(Answer(prompt=parts), expected)


async def test_echo_sends_the_prompt_first(worker: Worker):
    answer = await worker.generate(ask(echo=True))
    assert list(answer.prompt.ids) == PROMPT
    assert not answer.prompt.logprobs


async def test_constraints_that_leave_no_token_end_the_request_alone(worker: Worker):
    request = pb.GenerateRequest(
        prompt_ids=[1, 9],
        sampling=pb.SamplingParams(allowed_ids=[7], banned_sequences=[pb.TokenSequence(ids=[7, 7])]),
        stopping=pb.StoppingParams(max_tokens=5),
    )
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await worker.generate(request)
    assert caught.value.code() == grpc.StatusCode.FAILED_PRECONDITION
    assert "leave no token" in (caught.value.details() or "")
    await worker.settled()


async def test_every_sampling_parameter_works_over_the_wire(worker: Worker):
    request = ask(24, logprobs=True)
    request.sampling.CopyFrom(
        pb.SamplingParams(
            temperature=0.9,
            dynamic_temperature=pb.DynamicTemperature(range=0.3, exponent=1.2),
            temperature_last=False,
            top_k=100,
            tail_free_z=0.99,
            typical_p=0.98,
            top_p=0.97,
            min_p=0.001,
            top_a=0.001,
            xtc=pb.Xtc(probability=0.5, threshold=0.05),
            repetition_penalty=1.2,
            repetition_decay=20,
            presence_penalty=0.3,
            frequency_penalty=0.2,
            dry=pb.Dry(multiplier=0.8, sequence_breakers=[pb.TokenSequence(ids=[13])]),
            logit_bias=[pb.LogitBias(id=20, bias=4.0)],
            banned_ids=[21, 22],
            banned_sequences=[pb.TokenSequence(ids=[20, 20])],
            seed=11,
        )
    )
    first, again = await worker.generate(request), await worker.generate(request)
    assert first.ids == again.ids
    assert not {21, 22} & set(first.ids)
    assert not any(pair == (20, 20) for pair in zip(first.ids, first.ids[1:], strict=False))
    resumed = pb.GenerateRequest()
    resumed.CopyFrom(request)
    resumed.resumed_output_ids.extend(first.ids[:9])
    assert (await worker.generate(resumed)).ids == first.ids[9:]
    assert first.accepted is not None
    assert first.accepted.sampling.xtc.probability == 0.5
    assert list(first.accepted.sampling.banned_ids) == [21, 22]


@pytest.mark.parametrize(
    "sampling",
    [
        pb.SamplingParams(mirostat=pb.Mirostat(version=1, tau=3, eta=0.2), seed=2),
        pb.SamplingParams(mirostat=pb.Mirostat(version=2, tau=3, eta=0.2), seed=2),
        pb.SamplingParams(adaptive_p=pb.AdaptiveP(target=0.3), min_p=0.01, seed=2),
    ],
    ids=["mirostat 1", "mirostat 2", "adaptive_p"],
)
async def test_a_sampler_with_a_state_survives_company_and_preemption(worker: Worker, sampling: pb.SamplingParams):
    request = ask(60, logprobs=True)
    request.sampling.CopyFrom(sampling)
    alone = await worker.generate(request)
    crowd = await asyncio.gather(*(worker.generate(request) for _ in range(6)))
    assert all(answer.ids == alone.ids for answer in crowd)
