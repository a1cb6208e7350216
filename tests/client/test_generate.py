"""generate and stream over loopback: text in, text out, ids and facts right."""

from __future__ import annotations

import asyncio
import pickle
import struct
from typing import Any

import grpc.aio
import pytest

from tandem.client import (
    AsyncClient,
    BatchEvent,
    ClientClosedError,
    ConnectionSettings,
    Encoding,
    FailoverSettings,
    FinishReason,
    GenerateOptions,
    GenerationResult,
    InvalidArgumentError,
    Prompt,
    ResourceExhaustedError,
    SamplingParams,
    Segment,
    StoppingParams,
)
from tandem.client.generation import without
from tandem.client.texts import MOST_BREAKERS_KEPT
from tandem.inference.v1 import inference_pb2 as pb
from tests.client.byte_tokenizer import ByteTokenizer
from tests.client.byte_vocabulary import BOS, CONTROL, CONTROL_TEXT, EOS, FIRST_BYTE, TEXT, VOCABULARY, ids_of_text
from tests.client.counting_worker import CountingWorker
from tests.client.fakes import serving_workers


async def test_an_answer_carries_text_ids_and_facts(client: AsyncClient, worker: CountingWorker) -> None:
    result = await client.generate("Hi", seed=0, logprobs=True, request_id="the-request")
    assert result.text == TEXT
    assert result.output_ids == ids_of_text(TEXT)
    assert result.logprobs == [-0.5 * p for p in range(len(result.output_ids))]
    assert result.finish_reason is FinishReason.EOS
    assert (result.matched_stop_token, result.matched_stop) == (EOS, None)
    assert result.prompt_ids == [BOS, *ids_of_text("Hi")]
    assert (result.usage.prompt_tokens, result.usage.cached_prompt_tokens) == (3, 1)
    assert result.usage.completion_tokens == len(result.output_ids)
    assert result.seed == 0
    assert result.model == "counting"
    assert result.request_id == "the-request"
    assert result.timings.worker_total_seconds == pytest.approx(0.006)
    assert result.timings.encode_seconds is not None
    assert result.time_to_first_token is not None
    assert 0 < result.time_to_first_token <= result.timings.total_seconds
    assert worker.seen[0].metadata["x-request-id"] == "the-request"


async def test_chunks_joined_are_the_result(client: AsyncClient) -> None:
    texts, ids, logprobs = [], [], []
    async with client.stream("Hi", seed=0, logprobs=True) as stream:
        async for chunk in stream:
            texts.append(chunk.text)
            ids += chunk.ids
            assert chunk.logprobs is not None
            logprobs += chunk.logprobs
    assert "".join(texts) == stream.result.text == stream.text == TEXT
    assert ids == stream.result.output_ids == stream.output_ids
    assert logprobs == stream.result.logprobs
    assert all("\ufffd" not in text for text in texts), "characters arrive whole"


async def test_text_arrives_while_the_worker_still_generates(client: AsyncClient, worker: CountingWorker) -> None:
    worker.pause_at = 5
    async with client.stream("Hi", seed=0) as stream:
        text = ""
        while len(text) < 5:
            text += (await anext(stream)).text
        assert text == TEXT[:5]
        assert not worker.seen[0].finished.is_set()
        worker.go.set()
        async for chunk in stream:
            text += chunk.text
    assert text == TEXT


async def test_every_parameter_reaches_the_worker(client: AsyncClient, worker: CountingWorker) -> None:
    await client.generate(
        "Hi",
        sampling=SamplingParams(temperature=0.5, top_k=3, top_p=0.25, min_p=0.125, seed=1),
        repetition_penalty=1.5,
        repetition_window=7,
        seed=9,
        stopping=StoppingParams(max_tokens=4, min_tokens=2, stop_token_ids=[7, 8]),
        ignore_eos=True,
        include_stop=True,
        logprobs=True,
        priority=-3,
        cache_salt="tenant",
        bypass_cache=True,
        stream_interval_tokens=2,
        stream_max_delay_ms=50,
        model="counting",
        routing_key="conversation",
        metadata={"traceparent": "00-1-2-01"},
    )
    request = worker.seen[0].request
    sampling, stopping = request.sampling, request.stopping
    assert (sampling.temperature, sampling.top_k, sampling.top_p, sampling.min_p) == (0.5, 3, 0.25, 0.125)
    assert (sampling.repetition_penalty, sampling.repetition_window, sampling.seed) == (1.5, 7, 9)
    assert (stopping.max_tokens, stopping.min_tokens, list(stopping.stop_token_ids)) == (4, 2, [7, 8])
    assert stopping.ignore_eos and stopping.include_stop
    assert request.output.logprobs
    assert (request.output.stream_interval_tokens, request.output.stream_max_delay_ms) == (2, 50)
    assert (request.cache.salt, request.cache.bypass, request.priority) == ("tenant", True, -3)
    assert request.model == "counting"
    assert worker.seen[0].metadata["x-routing-key"] == "conversation"
    assert worker.seen[0].metadata["traceparent"] == "00-1-2-01"


async def test_any_routing_key_reaches_balancers(client: AsyncClient, worker: CountingWorker) -> None:
    for key, carried in [
        ("plain: 100 %, {a}/b~", "plain: 100 %, {a}/b~"),
        ("wörk", "w%C3%B6rk"),
        ("a\nb", "a%0Ab"),
        ("🚀" * 256, "%F0%9F%9A%80" * 256),
    ]:
        await client.generate("Hi", max_tokens=1, routing_key=key)
        assert worker.seen[-1].metadata["x-routing-key"] == carried


async def test_what_is_not_given_is_not_sent(client: AsyncClient, worker: CountingWorker) -> None:
    await client.generate("Hi", max_tokens=1)
    request = worker.seen[0].request
    assert not request.sampling.ListFields()
    assert [field.name for field, _ in request.stopping.ListFields()] == ["max_tokens"]
    assert not request.HasField("priority")
    assert not request.output.ListFields()


async def test_prompts_may_be_text_segments_ids_or_an_encoding(client: AsyncClient, worker: CountingWorker) -> None:
    plain = [BOS, *ids_of_text("a<|control|>b")]
    parsed = [BOS, *ids_of_text("a"), CONTROL, *ids_of_text("b")]
    for prompt, options, expected in [
        ("a<|control|>b", {}, plain),
        ("a<|control|>b", {"special_tokens": "parse"}, parsed),
        ("ab", {"add_special": False}, ids_of_text("ab")),
        ([Segment("a"), Segment("<|control|>", "parse"), Segment(b"b")], {}, parsed),
        ([5, 6, 7], {}, [5, 6, 7]),
        (Encoding([5, 6], ""), {}, [5, 6]),
    ]:
        await client.generate(prompt, max_tokens=1, **options)
        assert list(worker.seen[-1].request.prompt_ids) == expected


async def test_a_generation_without_text_needs_no_tokenizer(worker: CountingWorker) -> None:
    async with serving_workers(worker) as addresses, AsyncClient(worker=addresses) as client:
        async with client.stream([5, 6], detokenize=False, seed=0, max_tokens=5) as stream:
            ids = [i async for chunk in stream for i in chunk.ids]
        assert ids == stream.result.output_ids == ids_of_text(TEXT)[:5]
        assert stream.result.text == ""


async def test_64_streams_at_once_each_get_their_own_answer(client: AsyncClient, worker: CountingWorker) -> None:
    async def one(number: int) -> str:
        text = ""
        async with client.stream(f"prompt {number}", seed=number, max_tokens=10 + number, ignore_eos=True) as stream:
            async for chunk in stream:
                text += chunk.text
        assert stream.result.output_ids == [worker.token(p, number) for p in range(10 + number)]
        return text

    alone = [await one(number) for number in range(64)]
    assert await asyncio.gather(*(one(number) for number in range(64))) == alone
    assert not worker.running


async def test_a_batch_answers_in_order_and_encodes_together(
    client: AsyncClient, worker: CountingWorker, tokenizer: ByteTokenizer
) -> None:
    prompts = ["a", [9, 9], "ccc", Encoding([4], "")]
    results = await client.generate_batch(prompts, seed=0, max_tokens=3, concurrency=2, request_id="batch")
    assert [result.prompt_ids for result in results] == [
        [BOS, *ids_of_text("a")],
        [9, 9],
        [BOS, *ids_of_text("ccc")],
        [4],
    ]
    assert [result.request_id for result in results] == ["batch-0", "batch-1", "batch-2", "batch-3"]
    assert {result.text for result in results} == {TEXT[:3]}
    assert await client.generate_batch([]) == []


async def test_a_slow_reader_gets_everything_in_fewer_chunks(client: AsyncClient, worker: CountingWorker) -> None:
    async with client.stream("Hi", seed=0) as stream:
        first = await anext(stream)
        await worker.seen[0].finished.wait()
        await stream.collect()
        rest = [chunk async for chunk in stream]
    assert first.text + "".join(chunk.text for chunk in rest) == TEXT
    assert len(rest) <= 1, "what piled up comes as one chunk"


async def test_generate_decodes_once_where_no_stop_string_is_watched_for(
    client: AsyncClient, tokenizer: ByteTokenizer
) -> None:
    await client.generate("Hi", seed=0)
    assert tokenizer.decode_messages == 1


async def test_the_tokenizer_sees_the_end_of_the_prompt(client: AsyncClient, tokenizer: ByteTokenizer) -> None:
    await client.generate("0123456789abcdefghij", max_tokens=1)
    assert list(tokenizer.opened[0].context_ids) == ids_of_text("0123456789abcdefghij")[-16:]


async def test_a_fingerprint_is_sent_only_to_a_worker_that_knows_its_own(tokenizer_address: str) -> None:
    knows, does_not = CountingWorker([EOS], fingerprint="f" * 64), CountingWorker([EOS])
    async with serving_workers(knows, does_not) as (first, second):
        for address, worker, expected in [(first, knows, "f" * 64), (second, does_not, "")]:
            async with AsyncClient(tokenizer_address, address) as client:
                for prompt in ("text", [5, 6], "again"):
                    await client.generate(prompt)
            assert [seen.request.expected_tokenizer_fingerprint for seen in worker.seen] == [expected] * 3
            assert worker.get_model_calls == 1, "asked once"


async def test_a_very_long_answer_is_decoded_in_several_messages(
    client: AsyncClient, worker: CountingWorker, tokenizer: ByteTokenizer
) -> None:
    worker.context, worker.delta_tokens, worker.script = 50_000, 5000, ids_of_text(TEXT)
    result = await client.generate("Hi", seed=0, max_tokens=40_000)
    assert result.output_ids == [worker.token(p, 0) for p in range(40_000)]
    assert result.text.encode() == (TEXT.encode() * 1000)[:40_000]
    assert tokenizer.decode_messages == 3


async def test_prompts_of_a_batch_have_options_of_their_own_and_errors_name_their_prompt(
    client: AsyncClient, worker: CountingWorker
) -> None:
    told: list[tuple[int, int]] = []
    each: list[GenerateOptions] = [{"max_tokens": 2, "request_id": "mine"}, {}, {"add_special": False}]
    results = await client.generate_batch(
        ["a", "b", "c"], seed=0, max_tokens=3, request_id="batch", each=each,
        on_progress=lambda *done: told.append(done),
    )  # fmt: skip
    assert [result.text for result in results] == [TEXT[:2], TEXT[:3], TEXT[:3]]
    assert [result.request_id for result in results] == ["mine", "batch-1", "batch-2"]
    assert results[2].prompt_ids == ids_of_text("c")
    assert told == [(1, 3), (2, 3), (3, 3)]
    with pytest.raises(InvalidArgumentError, match="each"):
        await client.generate_batch(["a"], each=[{}, {}])
    with pytest.raises(InvalidArgumentError, match=r"each\[0\]"):
        await client.generate_batch(["a"], each=[{"timeout": 1}])


async def test_a_stream_of_many_prompts_tells_chunks_results_and_errors(client: AsyncClient) -> None:
    prompts: list[Prompt] = ["a", CONTROL_TEXT, [7]]
    texts = ["", "", ""]
    ends: dict[int, BatchEvent] = {}
    async for event in client.stream_batch(prompts, seed=0, max_tokens=4, concurrency=2, special_tokens="reject"):
        assert event.index not in ends
        if event.chunk is not None:
            texts[event.index] += event.chunk.text
        else:
            ends[event.index] = event
    assert sorted(ends) == [0, 1, 2]
    for index, event in ends.items():
        if index != 1:
            assert event.result is not None and event.result.text == texts[index] == TEXT[:4]
        else:
            assert event.error is not None and event.error.prompt_index == 1
            again = pickle.loads(pickle.dumps(event.error))
            assert again.prompt_index == 1


async def test_a_client_with_options_shares_connections_and_end(client: AsyncClient, worker: CountingWorker) -> None:
    brief = client.with_options(max_tokens=3, seed=0, metadata={"x-team": "a"})
    briefer = brief.with_options(max_tokens=2, timeout=20)
    assert (await brief.generate("Hi")).text == TEXT[:3]
    assert (await briefer.generate("Hi")).text == TEXT[:2]
    assert (await briefer.generate("Hi", max_tokens=4)).text == TEXT[:4]
    assert brief._connect() == client._connect()
    assert {seen.metadata["x-team"] for seen in worker.seen[:3]} == {"a"}
    with pytest.raises(InvalidArgumentError, match="max_tokens"):
        client.with_options(max_tokens=-1)
    await briefer.close()
    with pytest.raises(ClientClosedError):
        await client.generate("Hi")


async def test_interceptors_see_every_call(worker: CountingWorker, tokenizer_address: str) -> None:
    seen: set[str] = set()

    class Watching(grpc.aio.UnaryUnaryClientInterceptor):
        async def intercept_unary_unary(self, continuation: Any, details: Any, request: Any) -> Any:
            seen.add(str(details.method).rpartition("/")[2].strip("'"))
            return await continuation(details, request)

    class WatchingStreams(grpc.aio.UnaryStreamClientInterceptor):
        async def intercept_unary_stream(self, continuation: Any, details: Any, request: Any) -> Any:
            seen.add(str(details.method).rpartition("/")[2].strip("'"))
            return await continuation(details, request)

    settings = ConnectionSettings(interceptors=[Watching(), WatchingStreams()])
    async with (
        serving_workers(worker) as addresses,
        AsyncClient(tokenizer_address, addresses, timeout=30, connection=settings) as client,
    ):
        assert (await client.generate("Hi", seed=0)).text == TEXT
    assert {"Encode", "Generate"} <= seen


async def test_a_failed_prompt_can_stand_in_the_place_of_its_result(client: AsyncClient) -> None:
    told: list[tuple[int, int]] = []
    ends = await client.generate_batch(
        ["a", CONTROL_TEXT, "c"], seed=0, max_tokens=4, special_tokens="reject", return_exceptions=True,
        on_progress=lambda *done: told.append(done),
    )  # fmt: skip
    first, failed, last = ends
    assert isinstance(failed, InvalidArgumentError) and failed.prompt_index == 1
    for end in (first, last):
        assert isinstance(end, GenerationResult) and end.text == TEXT[:4]
    assert told == [(1, 3), (2, 3), (3, 3)]


async def test_a_prompt_that_no_message_can_carry_ends_no_other(client: AsyncClient) -> None:
    large = "x" * (5 << 20)  # of which this server's gRPC takes 4 MiB
    first, failed = await client.generate_batch(["Hi", large], seed=0, max_tokens=4, return_exceptions=True)
    assert isinstance(first, GenerationResult) and first.text == TEXT[:4]
    assert isinstance(failed, ResourceExhaustedError) and failed.prompt_index == 1


async def test_tokens_have_their_bytes_where_they_are_asked_for(client: AsyncClient) -> None:
    async with client.stream("Hi", seed=0, max_tokens=12, pieces=True) as stream:
        chunks = [chunk async for chunk in stream]
    assert stream.result.pieces == [bytes([id_ - FIRST_BYTE]) for id_ in stream.result.output_ids]
    assert [piece for chunk in chunks for piece in chunk.pieces or ()] == stream.result.pieces
    assert (await client.generate("Hi", max_tokens=2)).pieces is None
    alone = await client.generate([5], max_tokens=2, detokenize=False, pieces=True)
    assert alone.pieces and len(alone.pieces) == len(alone.output_ids)


async def test_the_bytes_of_tokens_are_those_of_the_tokenizer_that_is_served_now(
    client: AsyncClient, tokenizer: ByteTokenizer
) -> None:
    first = await client.generate("Hi", seed=0, max_tokens=4, pieces=True)
    tokenizer.fingerprint, tokenizer.pieces = "another", [piece + b"!" for piece in tokenizer.pieces]
    second = await client.generate("Hi", seed=0, max_tokens=4, pieces=True)
    assert first.pieces is not None
    assert second.pieces == [piece + b"!" for piece in first.pieces]


async def test_an_id_that_only_the_model_has_is_no_bytes(client: AsyncClient, worker: CountingWorker) -> None:
    worker.script = [VOCABULARY, *ids_of_text("a")]
    result = await client.generate([5], seed=0, max_tokens=2, detokenize=False, pieces=True)
    assert (result.output_ids, result.pieces) == (worker.script, [b"", b"a"])


async def test_a_vocabulary_is_waited_for_while_its_service_starts(
    tokenizer: ByteTokenizer, tokenizer_address: str
) -> None:
    quick = FailoverSettings(initial_backoff_seconds=0.01, max_backoff_seconds=0.02)
    async with AsyncClient(tokenizer_address, failover=quick, timeout=30) as client:
        tokenizer.unavailable_calls = 2
        assert len((await client.get_vocabulary()).pieces) == VOCABULARY


async def test_a_breaker_of_dry_that_is_known_stays_so_beside_any_number_of_others(
    client: AsyncClient, worker: CountingWorker
) -> None:
    for first in range(0, MOST_BREAKERS_KEPT, 64):
        await client.generate("Hi", max_tokens=1, dry_breakers=[f"{number:03}" for number in range(first, first + 64)])
    await client.generate("Hi", max_tokens=1, dry_breakers=["000", "new"])
    ends = [list(each.ids) for each in worker.seen[-1].request.sampling.dry.sequence_breakers]
    assert ids_of_text("000") in ends and ids_of_text("new") in ends


async def test_a_chunk_says_how_many_bytes_wait(client: AsyncClient, worker: CountingWorker) -> None:
    worker.delta_tokens, worker.script = 2, ids_of_text("aé" * 9)
    text, waited = "", 0
    async with client.stream("Hi", seed=0, max_tokens=27) as stream:
        async for chunk in stream:
            text += chunk.text
            waited = max(waited, chunk.held_bytes)
            assert (len(text.encode()) + chunk.held_bytes) % 2 == 0 or len(text.encode()) == 27
    assert (text, waited) == ("aé" * 9, 1)


async def test_speed_is_told_in_both_ways(client: AsyncClient) -> None:
    result = await client.generate("Hi", seed=0, max_tokens=9)
    assert result.tokens_per_second is not None and result.milliseconds_per_token is not None
    assert result.tokens_per_second * result.milliseconds_per_token == pytest.approx(1000)
    assert (await client.generate("Hi", max_tokens=1)).milliseconds_per_token is None


def test_what_another_worker_says_again_is_left_out_with_all_that_belongs_to_it() -> None:
    rows = [struct.pack("<3f", *range(start, start + 3)) for start in (0, 3, 6)]
    delta = pb.Delta(ids=[5, 6, 7], logprobs=[0, 1, 2], ranks=[1, 2, 3], vocabulary_logprobs=b"".join(rows))
    known = [2]
    left = without(delta, known)
    assert (list(left.ids), list(left.ranks), left.vocabulary_logprobs, known) == ([7], [3], rows[2], [0])
