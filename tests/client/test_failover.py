"""A stream outlives its worker, and its tokenizer; what cannot be saved fails clearly and in bounded time."""

from __future__ import annotations

import asyncio

import grpc
import pytest
from prometheus_client import CollectorRegistry

from tandem.client import (
    AsyncClient,
    DeadlineExceededError,
    FailedPreconditionError,
    FailoverSettings,
    FinishReason,
    GenerateOptions,
    InternalError,
    Regex,
    ResourceExhaustedError,
    UnavailableError,
)
from tandem.client.affinity import prefix_key, score
from tests.client.byte_tokenizer import ByteTokenizer
from tests.client.byte_vocabulary import EOS, TEXT, ids_of_text
from tests.client.counting_worker import CountingWorker
from tests.client.fakes import serving_tokenizer, serving_workers, start_tokenizer, start_worker
from tests.client.resetting_proxy import proxy_of

QUICK = FailoverSettings(attempts=3, initial_backoff_seconds=0.01, max_backoff_seconds=0.02)
IMPATIENT = FailoverSettings(attempts=3, restart_seconds=0, initial_backoff_seconds=0.01, max_backoff_seconds=0.02)
SCRIPT = [*ids_of_text(TEXT), EOS]


def pair() -> tuple[CountingWorker, CountingWorker]:
    return CountingWorker(SCRIPT), CountingWorker(SCRIPT)


async def test_a_lost_worker_is_followed_by_another_and_the_text_goes_on(tokenizer_address: str) -> None:
    first, second = pair()
    registry = CollectorRegistry()
    for worker in (first, second):
        worker.pause_at, worker.lose_at = 5, 9
    async with (
        serving_workers(first, second) as addresses,
        AsyncClient(tokenizer_address, addresses, failover=QUICK, registry=registry, timeout=30) as client,
    ):
        async with client.stream("Hi", logprobs=True, request_id="r", max_tokens=100) as stream:
            text = (await anext(stream)).text
            lost, other = (first, second) if first.seen else (second, first)
            other.lose_at = None
            lost.go.set()  # no sooner: it would be lost, and the other too, before it is known which is which
            async for chunk in stream:
                text += chunk.text
        result = stream.result
        seed = lost.drawn_seed
        expected = [lost.token(p, seed) for p in range(100)]
        expected = expected[: expected.index(EOS)] if EOS in expected else expected
        assert result.output_ids == expected
        assert result.logprobs == [-0.5 * p for p in range(len(expected))]
        assert result.failovers == 1
        assert result.usage.completion_tokens == len(expected)
        again = other.seen[0].request
        assert list(again.resumed_output_ids) == expected[:9]
        assert again.sampling.seed == seed, "the seed that the first worker drew"
        assert again.request_id != lost.seen[0].request.request_id
        assert again.stopping.max_tokens == 100
    assert registry.get_sample_value("tandem_client_failovers_total", {"service": "worker"}) == 1
    assert registry.get_sample_value("tandem_client_requests_total", {"method": "stream", "outcome": "ok"}) == 1


async def test_the_answer_is_the_same_wherever_the_worker_is_lost(tokenizer_address: str) -> None:
    whole = CountingWorker(SCRIPT)
    async with serving_workers(whole) as addresses, AsyncClient(tokenizer_address, addresses) as client:
        expected = await client.generate("Hi", seed=3, stop=["counted"], include_stop=True)
    for position in range(0, len(expected.output_ids) + 1, 4):
        first, second = pair()
        first.lose_at = position
        async with (
            serving_workers(first, second) as (one, two),
            AsyncClient(tokenizer_address, [one, two], failover=QUICK, timeout=30) as client,
        ):
            key = _key_preferring(one, two)
            result = await client.generate("Hi", seed=3, stop=["counted"], include_stop=True, routing_key=key)
        assert (result.text, result.output_ids) == (expected.text, expected.output_ids)
        assert len(first.seen) == 1


def _key_preferring(wanted: str, other: str) -> str:
    return next(key for key in map(str, range(1000)) if score(key, wanted) > score(key, other))


async def test_a_killed_server_is_followed_by_another(tokenizer_address: str) -> None:
    first, second = pair()
    started = {name: await start_worker(worker) for name, worker in (("first", first), ("second", second))}
    addresses = [address for _, address in started.values()]
    for worker in (first, second):
        worker.pause_at = 6
    async with AsyncClient(tokenizer_address, addresses, failover=QUICK, timeout=30) as client:
        stream = client.stream("Hi", seed=0)
        text = (await anext(stream)).text
        name, other = ("first", second) if first.seen else ("second", first)
        other.pause_at = None
        await started[name][0].stop(0)
        async for chunk in stream:
            text += chunk.text
    assert text == stream.result.text == TEXT
    for server, _ in started.values():
        await server.stop(0)


async def test_one_worker_that_comes_back_is_asked_again(tokenizer_address: str) -> None:
    worker = CountingWorker(SCRIPT)
    server, address = await start_worker(worker)
    worker.pause_at = 6
    patient = FailoverSettings(attempts=20, initial_backoff_seconds=0.05)
    async with AsyncClient(tokenizer_address, address, failover=patient, timeout=30) as client:
        stream = client.stream("Hi", seed=0)
        text = (await anext(stream)).text
        await server.stop(0)
        worker.pause_at = None
        server, _ = await start_worker(worker, address)
        async for chunk in stream:
            text += chunk.text
    assert text == TEXT
    await server.stop(0)


async def test_attempts_are_bounded_so_that_a_deadly_request_cannot_kill_every_worker(tokenizer_address: str) -> None:
    workers = [CountingWorker(SCRIPT) for _ in range(6)]
    for worker in workers:
        worker.lose_at, worker.lose_reason = 5, ""
    async with (
        serving_workers(*workers) as addresses,
        AsyncClient(tokenizer_address, addresses, failover=QUICK, timeout=30) as client,
    ):
        stream = client.stream("Hi", seed=0)
        with pytest.raises(UnavailableError) as caught:
            async for _ in stream:
                pass
        assert stream.text == TEXT[:5], "what came stays"
        assert caught.value.retryable
    assert sum(bool(worker.seen) for worker in workers) == 4, "the first and three more"


async def test_each_new_token_gives_the_attempts_back(client: AsyncClient, worker: CountingWorker) -> None:
    client._failover = FailoverSettings(attempts=1, initial_backoff_seconds=0.01, max_backoff_seconds=0.01)
    worker.lose_after, worker.lose_reason = 5, ""
    result = await client.generate("Hi", seed=0)
    assert (result.text, result.failovers) == (TEXT, len(ids_of_text(TEXT)) // 5)


@pytest.mark.parametrize("reason", ["ENGINE_RESTARTING", "ENGINE_DIED", "DRAINING"])
async def test_a_restart_is_waited_for_however_often_it_is_told(
    client: AsyncClient, worker: CountingWorker, reason: str
) -> None:
    client._failover = FailoverSettings(attempts=1, initial_backoff_seconds=0.001, max_backoff_seconds=0.001)
    worker.refusals = [reason] * 50
    result = await client.generate("Hi", seed=0)
    assert (result.text, result.failovers) == (TEXT, 0), "nobody took over: nothing had begun"
    assert len(worker.seen) == 51


async def test_waiting_for_a_restart_ends_with_the_deadline_and_tells_what_it_waited_for(
    client: AsyncClient, worker: CountingWorker
) -> None:
    worker.refusals = ["ENGINE_RESTARTING"] * 1000
    with pytest.raises(DeadlineExceededError, match="not now"):
        await client.generate("Hi", seed=0, timeout=1.0)


async def test_a_deadline_in_a_call_after_a_refusal_tells_what_was_waited_for(
    client: AsyncClient, worker: CountingWorker
) -> None:
    worker.refusals = ["ENGINE_RESTARTING"]
    worker.pause_at = 0
    with pytest.raises(DeadlineExceededError, match="not now"):
        await client.generate("Hi", seed=0, timeout=1.0)


async def test_without_a_deadline_waiting_for_a_restart_is_bounded(client: AsyncClient, worker: CountingWorker) -> None:
    client._failover = FailoverSettings(
        attempts=1, restart_seconds=0.2, initial_backoff_seconds=0.01, max_backoff_seconds=0.01
    )
    worker.refusals = ["ENGINE_RESTARTING"] * 1000
    with pytest.raises(UnavailableError) as caught:
        await client.generate("Hi", seed=0, timeout=None)
    assert caught.value.reason == "ENGINE_RESTARTING"


async def test_a_worker_that_drains_passes_the_request_on_at_once(tokenizer_address: str) -> None:
    first, second = pair()
    endless = FailoverSettings(initial_backoff_seconds=3600, max_backoff_seconds=3600)
    async with (
        serving_workers(first, second) as (one, two),
        AsyncClient(tokenizer_address, [one, two], failover=endless, timeout=30) as client,
    ):
        first.refusals = ["DRAINING"]
        first.retry_after = 3600
        assert (await client.generate("Hi", seed=0, routing_key=_key_preferring(one, two))).text == TEXT
        assert (len(first.seen), len(second.seen)) == (1, 1)


async def test_without_failover_the_error_comes_at_once(client: AsyncClient, worker: CountingWorker) -> None:
    client._failover = FailoverSettings(attempts=0)
    worker.lose_at = 5
    with pytest.raises(UnavailableError):
        await client.generate("Hi", seed=0)
    assert len(worker.seen) == 1


async def test_nobody_listening_is_unavailable(tokenizer_address: str) -> None:
    async with AsyncClient(tokenizer_address, "127.0.0.1:1", failover=QUICK) as client:
        with pytest.raises(UnavailableError) as caught:
            await client.generate("Hi")
    assert caught.value.service == "worker"
    async with AsyncClient("127.0.0.1:1", failover=QUICK) as client:
        with pytest.raises(UnavailableError) as caught:
            await client.encode("Hi", timeout=60)
    assert caught.value.service == "tokenizer"


async def test_workers_that_do_not_serve_get_nothing(tokenizer_address: str) -> None:
    first, second = pair()
    async with (
        serving_workers(first, second) as addresses,
        AsyncClient(tokenizer_address, addresses, failover=IMPATIENT, timeout=30) as client,
    ):
        await first.set_serving(False)
        for number in range(8):
            await client.generate("Hi", seed=0, max_tokens=1, routing_key=str(number))
        assert (len(first.seen), len(second.seen)) == (0, 8)
        await second.set_serving(False)
        await _until_health(client, addresses[1], "not serving")
        with pytest.raises(UnavailableError, match="no worker is serving") as caught:
            await client.generate("Hi")
        assert addresses[0] in caught.value.message
        await first.set_serving(True)
        await _until_health(client, addresses[0], "serving")
        assert (await client.generate("Hi", seed=0)).text == TEXT
        assert len(first.seen) == 1


async def _until_health(client: AsyncClient, address: str, health: str) -> None:
    assert client._pool is not None
    worker = next(worker for worker in client._pool.workers if worker.address == address)
    while worker.health.value != health:
        await client._pool.wait_for_change(10)


async def test_a_request_waits_for_a_worker_that_is_about_to_serve(tokenizer_address: str) -> None:
    first, second = pair()
    patient = FailoverSettings(attempts=3, initial_backoff_seconds=10)
    async with (
        serving_workers(first, second) as addresses,
        AsyncClient(tokenizer_address, addresses, failover=patient, timeout=30) as client,
    ):
        await first.set_serving(False)
        await second.set_serving(False)
        task = asyncio.create_task(client.generate("Hi", seed=0))
        for address in addresses:
            await _until_health(client, address, "not serving")
        await second.set_serving(True)
        assert (await task).text == TEXT


async def test_workers_without_a_health_service_are_used(tokenizer_address: str) -> None:
    first, second = pair()
    async with (
        serving_workers(first, second, health=False) as addresses,
        AsyncClient(tokenizer_address, addresses, failover=QUICK, timeout=30) as client,
    ):
        assert (await client.generate("Hi", seed=0)).text == TEXT


async def test_equal_beginnings_go_to_one_worker_and_others_spread(tokenizer_address: str) -> None:
    workers = [CountingWorker(SCRIPT) for _ in range(3)]
    async with serving_workers(*workers) as addresses, AsyncClient(tokenizer_address, addresses) as client:
        for number in range(6):
            await client.generate("the same long beginning " * 4 + str(number), max_tokens=1)
        assert sorted(len(worker.seen) for worker in workers) == [0, 0, 6]
        for number in range(40):
            await client.generate(f"{number} is different", max_tokens=1)
        assert all(worker.seen for worker in workers)
        key = workers[0].seen[0].metadata["x-routing-key"]
        assert key == prefix_key("", workers[0].seen[0].request.prompt_ids)


async def test_a_full_worker_passes_the_request_to_another(tokenizer_address: str) -> None:
    first, second = pair()
    async with (
        serving_workers(first, second) as (one, two),
        AsyncClient(tokenizer_address, [one, two], failover=QUICK) as client,
    ):
        key = _key_preferring(one, two)
        first.full_calls = 1
        assert (await client.generate("Hi", seed=0, routing_key=key)).text == TEXT
        assert (len(first.seen), len(second.seen)) == (1, 1)
        first.full_calls = second.full_calls = 1
        first.retry_after = second.retry_after = 7.5
        with pytest.raises(ResourceExhaustedError) as caught:
            await client.generate("Hi", routing_key=key)
        assert (caught.value.retry_after, caught.value.retryable) == (7.5, True)
        first.full_calls, first.retry_after = 1, None
        with pytest.raises(ResourceExhaustedError) as caught:
            await client.generate("Hi", routing_key=key)
        assert not caught.value.retryable, "what is too large here is too large there"


async def test_an_answer_that_has_begun_waits_for_room_at_a_full_worker(tokenizer_address: str) -> None:
    first, second = pair()
    async with (
        serving_workers(first, second) as (one, two),
        AsyncClient(tokenizer_address, [one, two], failover=QUICK, timeout=30) as client,
    ):
        first.lose_at, second.full_calls = 5, 1
        result = await client.generate("Hi", seed=0, routing_key=_key_preferring(one, two))
        assert result.text == TEXT
        assert len(second.seen) + len(first.seen) > 2


async def test_an_answer_does_not_move_to_another_model(tokenizer_address: str) -> None:
    first, second = CountingWorker(SCRIPT, name="a"), CountingWorker(SCRIPT, name="b")
    for worker in (first, second):
        worker.lose_at = 5
    async with (
        serving_workers(first, second) as addresses,
        AsyncClient(tokenizer_address, addresses, failover=IMPATIENT, timeout=30) as client,
    ):
        with pytest.raises(UnavailableError):
            await client.generate("Hi", seed=0)
    assert not first.seen or not second.seen


async def test_an_answer_whose_model_is_gone_says_so(tokenizer_address: str, worker: CountingWorker) -> None:
    worker.lose_at = 5
    async with (
        serving_workers(worker) as (address,),
        AsyncClient(tokenizer_address, address, failover=IMPATIENT, timeout=30) as client,
    ):
        stream = client.stream("Hi", seed=0)
        assert (await anext(stream)).text
        worker.name = "another"
        with pytest.raises(UnavailableError) as caught:
            await stream.collect()
    assert caught.value.message == f"no worker serves the model of this answer any more: {address}"


async def test_an_answer_whose_end_was_lost_is_complete(client: AsyncClient, worker: CountingWorker) -> None:
    worker.lose_before_finished = True
    result = await client.generate("Hi", seed=0, max_tokens=5)
    assert (result.text, result.finish_reason) == (TEXT[:5], FinishReason.MAX_TOKENS)
    assert len(worker.seen) == 1
    result = await client.generate("Hi", seed=0, include_stop=True)
    assert (result.output_ids, result.finish_reason) == (SCRIPT, FinishReason.EOS)
    assert result.matched_stop_token == EOS
    assert len(worker.seen) == 2


async def test_the_last_of_max_tokens_may_be_a_stop_where_the_end_was_lost(
    client: AsyncClient, worker: CountingWorker
) -> None:
    worker.lose_before_finished = True
    result = await client.generate("Hi", seed=0, include_stop=True, max_tokens=len(SCRIPT))
    assert (result.output_ids, result.finish_reason, result.matched_stop_token) == (SCRIPT, FinishReason.EOS, EOS)


@pytest.mark.parametrize(
    "options", [{"guided": Regex(".*")}, {"stop_sequences": [SCRIPT[3:5]], "include_stop": True}], ids=str
)
async def test_a_worker_is_asked_for_an_end_that_was_lost_where_only_it_knows_the_reason(
    tokenizer_address: str, options: GenerateOptions
) -> None:
    first, second = pair()
    first.lose_before_finished = True
    async with (
        serving_workers(first, second) as (one, two),
        AsyncClient(tokenizer_address, [one, two], failover=QUICK, timeout=30) as client,
    ):
        key = _key_preferring(one, two)
        result = await client.generate("Hi", seed=0, max_tokens=5, routing_key=key, **options)
    assert (result.output_ids, result.failovers) == (SCRIPT[:5], 1)
    assert list(second.seen[0].request.resumed_output_ids) == SCRIPT[:5]


async def test_a_minimum_that_does_not_fit_into_the_context_goes_on_elsewhere(tokenizer_address: str) -> None:
    first, second = pair()
    first.context = second.context = 3 + 20  # BOS and "Hi"
    first.lose_at = 9
    async with (
        serving_workers(first, second) as (one, two),
        AsyncClient(tokenizer_address, [one, two], failover=QUICK, timeout=30) as client,
    ):
        key = _key_preferring(one, two)
        result = await client.generate("Hi", seed=0, min_tokens=40, max_tokens=40, routing_key=key)
    assert (len(result.output_ids), result.failovers) == (20, 1)
    again = second.seen[0].request.stopping
    assert (again.min_tokens, again.max_tokens) == (20, 20), "a worker refuses a minimum above the maximum"


@pytest.mark.parametrize("code", [0, 2, None], ids=["NO_ERROR", "INTERNAL_ERROR", "no trailers"])
async def test_an_answer_goes_on_where_a_proxy_ends_its_stream_without_a_status(
    worker: CountingWorker, tokenizer_address: str, code: int | None
) -> None:
    async with (
        serving_workers(worker) as (address,),
        proxy_of(address) as near_worker,
        proxy_of(tokenizer_address) as near_tokenizer,
        AsyncClient(near_tokenizer.address, near_worker.address, failover=QUICK, timeout=30) as client,
    ):
        worker.pause_at = 6
        stream = client.stream("Hi", seed=0)
        text = (await anext(stream)).text
        await worker.paused.wait()
        worker.pause_at = None
        near_worker.end_streams(code)
        near_tokenizer.end_streams(code)
        async for chunk in stream:
            text += chunk.text
        assert text == TEXT
        assert stream.result.failovers == 1


async def test_a_stream_that_ends_without_a_reason_is_an_error(client: AsyncClient, worker: CountingWorker) -> None:
    worker.incomplete = True
    with pytest.raises(InternalError) as caught:
        await client.generate("Hi", seed=0)
    assert caught.value.reason == "STREAM_INCOMPLETE"


async def test_a_server_that_cancels_is_followed_by_another(tokenizer_address: str) -> None:
    first, second = pair()
    first.fail = second.fail = (grpc.StatusCode.CANCELLED, "shutting down")
    async with (
        serving_workers(first, second) as (one, two),
        AsyncClient(tokenizer_address, [one, two], failover=QUICK, timeout=30) as client,
    ):
        second.fail = None
        assert (await client.generate("Hi", seed=0, routing_key=_key_preferring(one, two))).text == TEXT
        assert len(first.seen) == 1


async def test_a_lost_tokenizer_stream_is_opened_again_and_no_text_comes_twice(worker: CountingWorker) -> None:
    for message in range(1, 30, 4):
        tokenizer = ByteTokenizer()
        tokenizer.break_streams_after = message
        async with (
            serving_tokenizer(tokenizer) as (_, address),
            serving_workers(worker) as addresses,
            AsyncClient(address, addresses, failover=QUICK, timeout=30) as client,
            client.stream("Hi", seed=0, stop=["counted"]) as stream,
        ):
            text = "".join([chunk.text async for chunk in stream])
        assert text == stream.result.text == TEXT[: TEXT.index("counted")]
        assert stream.result.output_ids == ids_of_text(text)


async def test_a_restarted_tokenizer_goes_on_with_the_text(worker: CountingWorker) -> None:
    server, address = await start_tokenizer(ByteTokenizer())
    worker.pause_at = 6
    patient = FailoverSettings(attempts=20, initial_backoff_seconds=0.05)
    async with (
        serving_workers(worker) as addresses,
        AsyncClient(address, addresses, failover=patient, timeout=30) as client,
    ):
        stream = client.stream("Hi", seed=0)
        text = (await anext(stream)).text
        await server.stop(0)
        server, _ = await start_tokenizer(ByteTokenizer(), address)
        worker.go.set()
        async for chunk in stream:
            text += chunk.text
    assert text == TEXT
    await server.stop(0)


async def test_a_tokenizer_that_is_lost_again_and_again_loses_no_text(worker: CountingWorker) -> None:
    """Three times within one answer, with one attempt for what fails for other reasons."""
    server, address = await start_tokenizer(ByteTokenizer())
    once = FailoverSettings(attempts=1, initial_backoff_seconds=0.01, max_backoff_seconds=0.05)
    text = ""
    async with (
        serving_workers(worker) as addresses,
        AsyncClient(address, addresses, failover=once, timeout=60) as client,
    ):
        worker.pause_at = 6
        stream = client.stream("Hi", seed=0)
        text = (await anext(stream)).text
        for _ in range(3):
            await server.stop(0)
            encoding = asyncio.create_task(client.encode("Hi", add_special=False))
            await asyncio.sleep(0.3)  # many refused connections
            server, _ = await start_tokenizer(ByteTokenizer(), address)
            assert (await encoding).ids == ids_of_text("Hi")
        worker.go.set()
        async for chunk in stream:
            text += chunk.text
    assert text == TEXT
    await server.stop(0)


async def test_a_tokenizer_that_cancels_is_asked_again(worker: CountingWorker) -> None:
    tokenizer = ByteTokenizer()
    tokenizer.break_streams_after, tokenizer.break_code = 3, grpc.StatusCode.CANCELLED
    async with (
        serving_tokenizer(tokenizer) as (_, address),
        serving_workers(worker) as addresses,
        AsyncClient(address, addresses, failover=QUICK, timeout=30) as client,
        client.stream("Hi", seed=0) as stream,
    ):
        assert "".join([chunk.text async for chunk in stream]) == TEXT


async def test_a_tokenizer_that_stays_away_fails_after_bounded_attempts(worker: CountingWorker) -> None:
    server, address = await start_tokenizer(ByteTokenizer())
    worker.pause_at = 6
    async with (
        serving_workers(worker) as addresses,
        AsyncClient(address, addresses, failover=IMPATIENT, timeout=30) as client,
    ):
        stream = client.stream("Hi", seed=0)
        text = (await anext(stream)).text
        await server.stop(0)
        worker.go.set()
        with pytest.raises(UnavailableError) as caught:  # noqa: PT012
            async for chunk in stream:
                text += chunk.text
        assert caught.value.service == "tokenizer"
        assert TEXT.startswith(text)
        await worker.seen[0].ended.wait()


async def test_unary_tokenizer_calls_are_sent_again(tokenizer: ByteTokenizer, client: AsyncClient) -> None:
    tokenizer.unavailable_calls = 2
    assert (await client.encode("Hi", add_special=False)).ids == ids_of_text("Hi")


async def test_a_changed_fingerprint_is_learnt_after_one_refusal(tokenizer_address: str) -> None:
    worker = CountingWorker(SCRIPT, fingerprint="f" * 64)
    async with serving_workers(worker) as addresses, AsyncClient(tokenizer_address, addresses) as client:
        await client.generate("Hi")
        worker.fingerprint = "e" * 64
        with pytest.raises(FailedPreconditionError) as caught:
            await client.generate("Hi")
        assert caught.value.reason == "TOKENIZER_MISMATCH"
        worker.fingerprint = ""
        await client.generate("Hi")
        assert worker.get_model_calls == 2
