"""Over the wire: several answers to one prompt, stop sequences, speculation."""

from __future__ import annotations

import math
from pathlib import Path

import grpc
import pytest

from tandem.inference.v1 import admin_pb2
from tandem.inference.v1 import inference_pb2 as pb
from tests.integration.worker_process import Answer, Worker, greedy, threaded_worker

pytestmark = pytest.mark.asyncio(loop_scope="module")

PROMPT = [1] + [11, 23, 35] * 20


def sampled(seed: int = 5, max_tokens: int = 12, **fields: object) -> pb.GenerateRequest:
    return pb.GenerateRequest(
        prompt_ids=PROMPT,
        sampling=pb.SamplingParams(seed=seed),
        stopping=pb.StoppingParams(max_tokens=max_tokens, ignore_eos=True),
        output=pb.OutputOptions(logprobs=True),
        **fields,  # type: ignore[arg-type]
    )


async def outputs(worker: Worker, request: pb.GenerateRequest) -> list[Answer]:
    """The outputs of a request by index, each held to the invariants of a single one."""
    answers: dict[int, Answer] = {}
    accepted = None
    async for message in worker.inference.Generate(request, timeout=120):
        event = message.WhichOneof("event")
        if event == "accepted":
            accepted = message
            continue
        index = message.delta.index if event == "delta" else message.finished.index
        if index not in answers:
            answers[index] = Answer()
            assert accepted is not None
            answers[index].take(accepted)
        answers[index].take(message)
    assert sorted(answers) == list(range(max(1, request.n)))
    assert all(answer.finished for answer in answers.values())
    return [answers[index] for index in sorted(answers)]


async def test_samples_differ_repeat_and_the_first_is_the_answer_to_the_request_alone(worker: Worker):
    alone = await worker.generate(sampled())
    several = await outputs(worker, sampled(n=6))
    assert several[0].ids == alone.ids
    assert several[0].logprobs == alone.logprobs
    assert len({tuple(answer.ids) for answer in several}) == 6
    again = await outputs(worker, sampled(n=6))
    assert [answer.ids for answer in again] == [answer.ids for answer in several]
    assert [answer.logprobs for answer in again] == [answer.logprobs for answer in several]
    fewer = await outputs(worker, sampled(n=3))
    assert [answer.ids for answer in fewer] == [answer.ids for answer in several[:3]]


async def test_16_samples_hold_their_prompt_once_and_the_best_8_come_in_order(worker: Worker):
    every = await outputs(worker, sampled(n=16))
    for penalty in (None, 0.0, 2.0):
        best = await outputs(worker, sampled(n=8, best_of=16, length_penalty=penalty))
        power = 1.0 if penalty is None else penalty
        scores = sorted((math.fsum(answer.logprobs) / len(answer.ids) ** power for answer in every), reverse=True)
        got = [math.fsum(answer.logprobs) / len(answer.ids) ** power for answer in best]
        assert got == scores[:8]
        assert {tuple(answer.ids) for answer in best} <= {tuple(answer.ids) for answer in every}
        left_out = sum(len(answer.ids) for answer in every) - sum(len(answer.ids) for answer in best)
        assert [a.finished.usage.left_out_tokens for a in best if a.finished] == [left_out, *[0] * 7]


async def test_samples_compute_their_prompt_once(worker: Worker):
    await worker.admin.ClearPrefixCache(admin_pb2.ClearPrefixCacheRequest())
    before = await worker.load()
    answers = await outputs(worker, sampled(n=16, max_tokens=4))
    after = await worker.settled()
    first, *others = (answer.finished.usage for answer in answers if answer.finished)
    assert first.cached_prompt_tokens == 0
    assert {usage.cached_prompt_tokens for usage in others} == {len(PROMPT) - 1}
    assert after.prompt_tokens - before.prompt_tokens == 16 * len(PROMPT)
    assert after.pages_referenced == 0


async def test_samples_that_bypass_the_cache_share_among_themselves_and_leave_nothing(worker: Worker):
    await worker.admin.ClearPrefixCache(admin_pb2.ClearPrefixCacheRequest())
    answers = await outputs(worker, sampled(n=4, cache=pb.CacheParams(bypass=True)))
    assert [answer.ids for answer in answers] == [answer.ids for answer in await outputs(worker, sampled(n=4))]
    assert [a.finished.usage.cached_prompt_tokens for a in answers if a.finished][1:] == [len(PROMPT) - 1] * 3
    await worker.admin.ClearPrefixCache(admin_pb2.ClearPrefixCacheRequest())
    await outputs(worker, sampled(n=4, cache=pb.CacheParams(bypass=True)))
    assert (await worker.settled()).pages_cached == 0


async def test_logprobs_that_only_the_ranking_needs_are_not_sent(worker: Worker):
    request = sampled(n=1, best_of=4)
    ranked = await outputs(worker, request)
    request.output.logprobs = False
    (quiet,) = await outputs(worker, request)
    assert quiet.ids == ranked[0].ids
    assert quiet.logprobs == []


async def test_all_samples_of_a_request_end_together_by_abort_and_by_their_caller(worker: Worker):
    request = sampled(n=8, max_tokens=400, request_id="group")
    call = worker.inference.Generate(request, timeout=120)
    reasons = []
    async for message in call:
        if message.WhichOneof("event") == "delta" and not reasons:
            await worker.inference.Abort(pb.AbortRequest(request_ids=["group"]))
        elif message.WhichOneof("event") == "finished":
            reasons.append(message.finished.reason)
    assert reasons == [pb.FINISH_REASON_CANCELLED] * 8
    for best_of in (8, 16):
        call = worker.inference.Generate(sampled(n=8, best_of=best_of, max_tokens=400), timeout=120)
        await call.read()
        call.cancel()
    with pytest.raises(grpc.aio.AioRpcError):
        await outputs_until(worker, sampled(n=8, max_tokens=400), timeout=0.3)
    assert (await worker.settled()).pages_referenced == 0


async def test_the_load_counts_each_sample_that_the_worker_holds_as_accepted_does(worker: Worker):
    async def until_idle() -> None:
        while (await worker.load()).held_requests:
            pass

    await until_idle()
    call = worker.inference.Generate(sampled(n=8, max_tokens=400), timeout=120)
    accepted = (await call.read()).accepted
    assert accepted.running_requests + accepted.waiting_requests == 8
    assert (await worker.load(check=False)).held_requests == 8
    call.cancel()
    await until_idle()


async def outputs_until(worker: Worker, request: pb.GenerateRequest, timeout: float) -> None:
    async for _ in worker.inference.Generate(request, timeout=timeout):
        pass


@pytest.mark.parametrize("interval", [1, 5])
async def test_a_stop_sequence_ends_the_answer_and_nothing_of_it_was_sent(worker: Worker, interval: int):
    free = await worker.generate(greedy(PROMPT, 40))
    place = next(i for i in range(8, 38) if free.ids[i : i + 2] not in (free.ids[j : j + 2] for j in range(i)))
    stop = free.ids[place : place + 2]
    request = greedy(PROMPT, 40, output=pb.OutputOptions(logprobs=True, stream_interval_tokens=interval))
    never = [free.ids[0], free.ids[1], 299]  # begins like the answer, so that tokens are held back in vain
    for sequence in (never, [298], stop):
        request.stopping.stop_sequences.add(ids=sequence)
    answer = await worker.generate(request)
    assert answer.finished is not None
    assert answer.finished.reason == pb.FINISH_REASON_STOP_SEQUENCE
    assert answer.finished.matched_stop_sequence == 2
    assert not answer.finished.HasField("matched_stop_token")
    assert answer.ids == free.ids[:place]
    assert len(answer.logprobs) == place
    request.stopping.include_stop = True
    assert (await worker.generate(request)).ids == free.ids[: place + 2]
    for cut in (1, place - 1):
        resumed = pb.GenerateRequest()
        resumed.CopyFrom(request)
        resumed.resumed_output_ids.extend(free.ids[:cut])
        assert (await worker.generate(resumed)).ids == free.ids[cut : place + 2]


async def test_a_stop_sequence_is_not_completed_before_min_tokens(worker: Worker):
    free = await worker.generate(greedy(PROMPT, 20))
    request = greedy(PROMPT, 20)
    request.stopping.min_tokens = 10
    request.stopping.stop_sequences.add(ids=free.ids[:1])
    request.stopping.stop_sequences.add(ids=free.ids[2:4])
    answer = await worker.generate(request)
    early = answer.ids[:10]
    assert free.ids[0] not in early
    assert all(early[i : i + 2] != free.ids[2:4] for i in range(9))
    assert len(answer.ids) >= 9  # the tenth may begin a sequence


async def test_speculation_changes_the_passes_and_not_a_bit_of_the_answer(worker: Worker):
    before = await worker.load()
    saved = 0
    for seed, temperature in ((1, 0.0), (2, 0.6), (3, 1.0)):
        request = sampled(seed, max_tokens=100)
        request.sampling.temperature = temperature
        plain = await worker.generate(request)
        request.speculation.max_draft_tokens = 8
        request.speculation.prompt_lookup_ngram = 2
        drafted = await worker.generate(request)
        assert drafted.ids == plain.ids
        assert drafted.logprobs == plain.logprobs, "not the same bits"
        assert plain.finished is not None and drafted.finished is not None
        usage = drafted.finished.usage
        assert plain.finished.usage.draft_tokens_proposed == 0
        assert usage.draft_tokens_accepted <= usage.draft_tokens_proposed
        saved += usage.draft_tokens_accepted
    after = await worker.settled()
    assert after.draft_tokens_accepted - before.draft_tokens_accepted == saved > 0


async def test_a_draft_model_saves_passes_and_changes_no_bit(worker: Worker, random_llama: Path, tmp_path: Path):
    request = sampled(7, max_tokens=60)
    plain = await worker.generate(request)
    flags = (f"--model={random_llama}", f"--draft-model={random_llama}", "--page-size=16", "--speculate=always")
    async with threaded_worker(tmp_path, *flags) as drafting:
        drafted = await drafting.generate(request)  # four drafts at once are the default beside a draft model
    assert drafted.ids == plain.ids
    assert drafted.logprobs == plain.logprobs, "not the same bits"
    assert plain.finished is not None and drafted.finished is not None
    assert drafted.finished.usage.draft_tokens_accepted > 30, "a model guesses what it would say itself"
    assert drafted.finished.usage.forward_passes < plain.finished.usage.forward_passes / 2
