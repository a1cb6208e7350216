"""Answers share a DecodeStream call: they must not hurt each other, and none may be left behind in it."""

from __future__ import annotations

import asyncio
from pathlib import Path

import grpc
import pytest
from google.protobuf import any_pb2
from google.rpc import error_details_pb2
from prometheus_client import CollectorRegistry

from tandem.client import (
    AsyncClient,
    FailoverSettings,
    GenerationResult,
    InvalidArgumentError,
    ResourceExhaustedError,
    decode_calls,
)
from tandem.client.deadline import Deadline
from tandem.client.decoding import FULL_CALLS, TextDecoder
from tandem.client.metrics import ClientMetrics
from tandem.client.rpc import CallContext
from tandem.common.run_service import run_in_loop
from tandem.tokenizer.rpc.server import TokenizerService
from tandem.tokenizer.settings import TokenizerSettings
from tandem.tokenizer.v1 import tokenizer_pb2 as pb
from tests.client.byte_tokenizer import ByteTokenizer
from tests.client.byte_vocabulary import FIRST_BYTE, TEXT, VOCABULARY, ids_of_text
from tests.client.counting_worker import CountingWorker
from tests.client.fakes import serving_workers, start_tokenizer

STREAMS = 64
QUICK = FailoverSettings(attempts=3, initial_backoff_seconds=0.01, max_backoff_seconds=0.02)
DEMO = Path(__file__).parents[2] / "models/demo"


def refusal(code: grpc.StatusCode, reason: str, field: str = "") -> pb.DecodeStreamError:
    error = pb.DecodeStreamError(code=code.value[0], message="refused")
    details = [error_details_pb2.ErrorInfo(reason=reason, domain="tandem")]
    if field:
        details.append(error_details_pb2.BadRequest(field_violations=[{"field": field, "description": "is wrong"}]))
    for detail in details:
        packed = any_pb2.Any()
        packed.Pack(detail)
        error.details.append(packed)
    return error


async def begin(client: AsyncClient, worker: CountingWorker, count: int = STREAMS, **options) -> list:
    """So many streams, each with some text, none with all."""
    worker.pause_at = 6
    streams = [client.stream("Hi", seed=0, **options) for _ in range(count)]
    await asyncio.gather(*(anext(stream) for stream in streams))
    return streams


async def finish(worker: CountingWorker, streams: list) -> list[GenerationResult | BaseException]:
    worker.go.set()
    return await asyncio.gather(*(stream.collect() for stream in streams), return_exceptions=True)


def texts(results: list[GenerationResult | BaseException]) -> set[str]:
    return {result.text if isinstance(result, GenerationResult) else repr(result) for result in results}


async def test_answers_at_one_time_share_one_call(
    client: AsyncClient, worker: CountingWorker, tokenizer: ByteTokenizer
) -> None:
    streams = await begin(client, worker)
    assert tokenizer.open_streams == STREAMS
    assert texts(await finish(worker, streams)) == {TEXT}
    assert tokenizer.decode_calls == 1
    await tokenizer.all_streams_closed.wait()
    await client.generate("Hi", seed=0, stop=["counted"])
    assert tokenizer.decode_calls == 2, "a call ends with its last stream"


async def test_an_error_in_one_stream_reaches_no_other(
    client: AsyncClient, worker: CountingWorker, tokenizer: ByteTokenizer
) -> None:
    streams = await begin(client, worker, STREAMS - 1)
    worker.pause_at = None
    wrong = refusal(grpc.StatusCode.INVALID_ARGUMENT, "INVALID_ARGUMENT", "open.stop_strings[0]")
    tokenizer.refuse_streams = [wrong]
    with pytest.raises(InvalidArgumentError) as caught:
        await client.generate("Hi", seed=0, stop=["never"], request_id="mine")
    assert [violation.field for violation in caught.value.violations] == ["open.stop_strings[0]"]
    assert (caught.value.service, caught.value.reason) == ("tokenizer", "INVALID_ARGUMENT")
    assert caught.value.request_id == "mine"
    assert texts(await finish(worker, streams)) == {TEXT}
    assert tokenizer.decode_calls == 1


async def test_a_server_that_goes_takes_none_of_its_streams_with_it(worker: CountingWorker) -> None:
    server, address = await start_tokenizer(ByteTokenizer())
    again = ByteTokenizer()
    registry = CollectorRegistry()
    patient = FailoverSettings(attempts=20, initial_backoff_seconds=0.05)
    async with (
        serving_workers(worker) as addresses,
        AsyncClient(address, addresses, failover=patient, timeout=60, registry=registry) as client,
    ):
        streams = await begin(client, worker)
        await server.stop(0)
        server, _ = await start_tokenizer(again, address)
        results = await finish(worker, streams)
        assert texts(results) == {TEXT}
        assert len(again.opened) >= STREAMS
        assert (registry.get_sample_value("tandem_client_failovers_total", {"service": "tokenizer"}) or 0) >= STREAMS
    await server.stop(0)


@pytest.mark.parametrize("code", [grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.RESOURCE_EXHAUSTED])
async def test_what_a_draining_or_full_call_refuses_goes_on_in_another(
    worker: CountingWorker, tokenizer: ByteTokenizer, tokenizer_address: str, code: grpc.StatusCode
) -> None:
    async with (
        serving_workers(worker) as addresses,
        AsyncClient(tokenizer_address, addresses, failover=QUICK, timeout=30) as client,
    ):
        streams = await begin(client, worker, 2)
        full = code is grpc.StatusCode.RESOURCE_EXHAUSTED
        tokenizer.refuse_streams = [refusal(code, "TOO_MANY_STREAMS" if full else "DRAINING")] * (10 if full else 1)
        streams += await begin(client, worker, 1)
        assert tokenizer.decode_calls == (11 if full else 2)
        assert texts(await finish(worker, streams)) == {TEXT}


async def test_a_tokenizer_that_has_room_in_no_call_is_not_asked_for_ever(
    worker: CountingWorker, tokenizer: ByteTokenizer, tokenizer_address: str
) -> None:
    tokenizer.refuse_streams = [refusal(grpc.StatusCode.RESOURCE_EXHAUSTED, "TOO_MANY_STREAMS")] * 1000
    async with (
        serving_workers(worker) as addresses,
        AsyncClient(tokenizer_address, addresses, failover=QUICK, timeout=None) as client,
    ):
        with pytest.raises(ResourceExhaustedError) as refused:
            await begin(client, worker, 1)
    assert refused.value.reason == "TOO_MANY_STREAMS"
    assert tokenizer.decode_calls == 1 + FULL_CALLS + QUICK.attempts


@pytest.mark.parametrize("more", [{}, {"stop_strings": ["never"]}, {"graphemes": True}])
async def test_what_ids_show_is_asked_for_once_where_nothing_can_be_held_back(
    client: AsyncClient, tokenizer: ByteTokenizer, more: dict[str, object]
) -> None:
    context = CallContext(deadline=Deadline.after(120.0), closed=lambda: False, request_id="r")
    calls = client._texts().decode_calls
    ids = ids_of_text(TEXT)

    async def requests() -> int:
        """How many of one stream the tokenizer gets."""
        before = tokenizer.decode_messages
        decoder = TextDecoder(calls, pb.DecodeStreamOpen(**more), context, QUICK, ClientMetrics(None))
        text = (await decoder.feed([])).text
        for index in ids:
            known = decoder.known_text([index])
            text += (await decoder.feed([index])).text if known is None else known
        assert text + (await decoder.feed([], end=True)).text == TEXT
        decoder.close()
        return tokenizer.decode_messages - before

    parts = [index for index in ids if index >= FIRST_BYTE + 0x80]  # of characters; they show nothing alone
    assert 0 < len(parts) < len(ids)
    assert await requests() == 2 + (len(ids) if more else len(parts) + len(set(ids) - set(parts)))
    assert await requests() == 2 + (len(ids) if more else len(parts))


async def test_a_client_with_many_streams_is_told_what_all_ids_show(
    client: AsyncClient, tokenizer: ByteTokenizer
) -> None:
    context = CallContext(deadline=Deadline.after(120.0), closed=lambda: False, request_id="r")
    calls = client._texts().decode_calls

    async def opened(**more: object) -> TextDecoder:
        decoder = TextDecoder(calls, pb.DecodeStreamOpen(**more), context, QUICK, ClientMetrics(None))
        await decoder.feed([FIRST_BYTE])
        return decoder

    decoders = [await opened() for _ in range(decode_calls.ASKS_FROM_STREAMS - 1)]
    decoders.append(await opened(stop_strings=["never"]))
    assert not any(opening.HasField("texts_from") for opening in tokenizer.opened), "it could not use them"
    lost = asyncio.create_task(opened())  # asks, and leaves before it is answered
    tokenizer.hold.clear()
    await asyncio.sleep(0)
    assert any(texts.asked for texts in calls.known.latest.values())
    lost.cancel()
    await asyncio.wait([lost])
    tokenizer.hold.set()
    decoders += [await opened() for _ in range(2 + VOCABULARY // 50)]
    froms = [opening.texts_from for opening in tokenizer.opened if opening.HasField("texts_from")]
    assert sorted(set(froms)) == list(range(0, VOCABULARY, 50))
    assert not tokenizer.opened[-1].HasField("texts_from"), "all is known"
    before = tokenizer.decode_messages
    ascii_ids = range(FIRST_BYTE, FIRST_BYTE + 0x80)
    for index in ascii_ids:
        assert decoders[-1].known_text([index]) == chr(index - FIRST_BYTE)
    assert decoders[-1].known_text([FIRST_BYTE + 0x80]) is None
    assert tokenizer.decode_messages == before
    for decoder in decoders:
        decoder.close()


async def test_ids_whose_text_is_known_are_said_to_the_server_that_takes_over(
    worker: CountingWorker, tokenizer: ByteTokenizer, tokenizer_address: str
) -> None:
    async with (
        serving_workers(worker) as addresses,
        AsyncClient(tokenizer_address, addresses, failover=QUICK, timeout=30) as client,
    ):
        assert texts([await client.stream("Hi", seed=0).collect()]) == {TEXT}
        for after in range(1, 8):
            tokenizer.break_streams_after = tokenizer.decode_messages + after
            stream = client.stream("Hi", seed=0)
            assert "".join([chunk.text async for chunk in stream]) == TEXT


async def test_a_stream_that_is_cancelled_ends_at_the_server_while_others_go_on(
    client: AsyncClient, worker: CountingWorker, tokenizer: ByteTokenizer
) -> None:
    first, *others = await begin(client, worker, 4)
    await first.close()
    while tokenizer.open_streams == 4:
        await client.get_tokenizer()
    assert texts(await finish(worker, others)) == {TEXT}
    assert tokenizer.decode_calls == 1


async def test_a_reader_that_sleeps_holds_up_no_other(client: AsyncClient, worker: CountingWorker) -> None:
    sleeper, *others = await begin(client, worker, 8)
    assert texts(await finish(worker, others)) == {TEXT}
    assert texts([await sleeper.collect()]) == {TEXT}


async def test_only_who_agrees_in_metadata_shares_a_call(
    client: AsyncClient, worker: CountingWorker, tokenizer: ByteTokenizer
) -> None:
    streams = []
    for tenant, trace in (("a", "1"), ("a", "2"), ("b", "3")):
        streams += await begin(client, worker, 1, metadata={"x-tenant": tenant, "traceparent": trace})
    assert [metadata.get("x-tenant") for metadata in tokenizer.decode_metadata] == ["a", "b"]
    assert not any("traceparent" in metadata for metadata in tokenizer.decode_metadata)
    assert texts(await finish(worker, streams)) == {TEXT}


async def test_closing_the_client_leaves_no_call_and_no_task(worker: CountingWorker, tokenizer_address: str) -> None:
    before = asyncio.all_tasks()
    async with serving_workers(worker) as addresses:
        client = AsyncClient(tokenizer_address, addresses)
        await begin(client, worker, 3)
        calls = client._texts().decode_calls
        await client.close()
        assert not calls._open and not calls._newest
    mine = {task for task in asyncio.all_tasks() - before if "decode_calls" in repr(task)}
    assert not mine


async def test_ten_thousand_streams_leave_nothing_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decode_calls, "TAKES_STREAMS_SECONDS", 1e9)  # one call all the time
    settings = TokenizerSettings(tokenizer=(str(DEMO),), metrics_enabled=False)
    service = TokenizerService(settings)
    context = CallContext(deadline=Deadline.after(120.0), closed=lambda: False, request_id="r")
    metrics = ClientMetrics(None)
    async with run_in_loop(service, settings) as address, AsyncClient(address) as client:
        ids = (await client.encode("Once upon a time", add_special=False)).ids
        calls = client._texts().decode_calls

        async def one(number: int) -> None:
            decoder = TextDecoder(calls, pb.DecodeStreamOpen(), context, QUICK, metrics)
            try:
                match number % 4:
                    case 0:
                        assert (await decoder.feed(ids, end=True)).text == "Once upon a time"
                    case 1:
                        await decoder.feed(ids[:1])
                    case 2:
                        feeding = asyncio.create_task(decoder.feed(ids))
                        await asyncio.sleep(0)
                        feeding.cancel()
                        await asyncio.wait([feeding])
                    case 3:
                        with pytest.raises(InvalidArgumentError):
                            await decoder.feed([10_000_000])
            finally:
                decoder.close()

        keeper = TextDecoder(
            calls, pb.DecodeStreamOpen(), context, QUICK, metrics
        )  # so that it is one call all the time
        await keeper.feed(ids[:2])
        for start in range(0, 10_000, 500):
            await asyncio.gather(*(one(number) for number in range(start, start + 500)))
        rest = await keeper.feed(ids[2:], end=True)
        assert "Once upon a time".endswith(rest.text)
        [call] = calls._open
        assert not call._awaited and not call._outbox and len(call._places) == 1
        assert call._keys <= 1001 and len(call._free_keys) == call._keys - 1
        value = service.metrics.registry.get_sample_value
        assert value("tandem_tokenizer_open_streams") == 0
        assert value("tandem_tokenizer_streams_total", {"tokenizer": "demo"}) == 10_001
        assert value("tandem_tokenizer_stream_messages_total") < value("tandem_tokenizer_stream_requests_total") / 10
        keeper.close()
        while calls._open:
            await client.get_tokenizer()
