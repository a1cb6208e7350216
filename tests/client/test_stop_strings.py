"""Stop strings: the text, the ids and the logprobs end where they should, and the worker stops working."""

from __future__ import annotations

from random import Random

import pytest

from tandem.client import AsyncClient, FinishReason, InvalidArgumentError
from tests.client.byte_tokenizer import ByteTokenizer
from tests.client.byte_vocabulary import ids_of_text
from tests.client.counting_worker import CountingWorker


@pytest.mark.parametrize("delta_tokens", [1, 2, 3, 7, 100])
@pytest.mark.parametrize("include_stop", [False, True])
async def test_a_stop_string_across_tokens_ends_text_and_ids_together(
    client: AsyncClient, worker: CountingWorker, delta_tokens: int, include_stop: bool
) -> None:
    worker.delta_tokens = delta_tokens
    expected = "Once there was a wörk" + ("er" if include_stop else "")
    options = {"seed": 0, "stop": ["never", "er "], "include_stop": include_stop, "logprobs": True}
    ids, logprobs, text = [], [], ""
    async with client.stream("Hi", **options) as stream:
        async for chunk in stream:
            assert chunk.logprobs is not None
            ids, logprobs, text = ids + chunk.ids, logprobs + chunk.logprobs, text + chunk.text
    result = stream.result
    expected += " " if include_stop else ""
    assert text == result.text == expected
    assert ids == result.output_ids == ids_of_text(expected)
    assert logprobs == result.logprobs == [-0.5 * p for p in range(len(ids))]
    assert (result.finish_reason, result.matched_stop) == (FinishReason.STOP_STRING, "er ")
    assert (await client.generate("Hi", **options)).text == expected


def _reference(text: bytes, stops: list[str], include_stop: bool) -> tuple[bytes, str | None]:
    """What is left of the text, and the stop string that cut it: the one that is complete first."""
    for end in range(1, len(text) + 1):
        for stop in stops:
            if text[:end].endswith(stop.encode()):
                return text[: end if include_stop else end - len(stop.encode())], stop
    return text, None


async def test_any_text_cut_anywhere_equals_the_reference(client: AsyncClient, worker: CountingWorker) -> None:
    random = Random(5)
    for _ in range(120):
        text = "".join(random.choice("aabbé🚀 ") for _ in range(random.randrange(1, 30)))
        stops = [
            "".join(random.choice("abé ") for _ in range(random.randrange(1, 4))) for _ in range(random.randrange(4))
        ]
        worker.script = ids_of_text(text)
        worker.delta_tokens = random.choice([1, 1, 2, 5, 50])
        include_stop = random.random() < 0.3
        expected, matched = _reference(text.encode(), stops, include_stop)
        async with client.stream(
            "Hi", seed=0, max_tokens=len(worker.script), stop=stops, include_stop=include_stop
        ) as stream:
            chunks = [chunk async for chunk in stream]
        result = stream.result
        assert result.text == "".join(chunk.text for chunk in chunks) == expected.decode()
        assert result.output_ids == [i for chunk in chunks for i in chunk.ids] == ids_of_text(expected.decode())
        assert result.matched_stop == matched


async def test_on_a_match_the_worker_is_stopped_and_still_reports_what_it_did(
    client: AsyncClient, worker: CountingWorker
) -> None:
    worker.pause_at = 20
    result = await client.generate("Hi", seed=0, stop="re ")
    assert result.text == "Once the"
    assert worker.abort_calls == 1
    await worker.seen[0].finished.wait()
    assert result.usage.cached_prompt_tokens == 1
    assert result.usage.completion_tokens == len("Once there "), "what came behind the match is not told"
    assert result.timings.worker_total_seconds is not None
    assert not worker.running


@pytest.mark.parametrize("include_stop", [False, True])
@pytest.mark.parametrize("n", [1, 3])
async def test_usage_counts_to_the_match_however_much_has_come(
    client: AsyncClient, worker: CountingWorker, include_stop: bool, n: int
) -> None:
    """Output i of several begins at character i of the text."""
    expected = sum(len("Once there "[index:]) for index in range(n))
    for worker.delta_tokens in (1, 4, 100):
        options = {"seed": 0, "n": n, "stop": "re ", "include_stop": include_stop}
        whole = await client.generate("Hi", **options)
        async with client.stream("Hi", **options) as stream:
            async for _ in stream:
                pass
        assert whole.usage.completion_tokens == stream.result.usage.completion_tokens == expected


async def test_a_worker_that_does_not_heed_the_abort_is_cancelled(
    client: AsyncClient, worker: CountingWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker.pause_at, worker.heeds_abort = 20, False
    monkeypatch.setattr("tandem.client.pipeline.ACCOUNT_SECONDS", 0.05)
    result = await client.generate("Hi", seed=0, stop="re ")
    assert (result.text, result.finish_reason) == ("Once the", FinishReason.STOP_STRING)
    assert result.usage.cached_prompt_tokens is None
    await worker.seen[0].cancelled.wait()


async def test_what_looks_like_a_stop_string_is_given_when_it_is_none(client: AsyncClient) -> None:
    result = await client.generate("Hi", seed=0, max_tokens=13, stop=["ere wax", "there wash"])
    assert result.text == "Once there wa"
    assert result.output_ids == ids_of_text("Once there wa")
    assert result.finish_reason is FinishReason.MAX_TOKENS


async def test_ids_wait_for_their_text(client: AsyncClient, worker: CountingWorker) -> None:
    worker.pause_at = 8  # "Once the": "the" may become the stop string
    async with client.stream("Hi", seed=0, stop=["them"]) as stream:
        ids: list[int] = []
        while len(ids) < 5:
            ids += (await anext(stream)).ids
        await worker.paused.wait()
        assert ids == stream.output_ids == ids_of_text("Once ")
        worker.go.set()
        async for chunk in stream:
            ids += chunk.ids
    assert ids == stream.result.output_ids


async def test_stop_strings_need_text(client: AsyncClient, tokenizer: ByteTokenizer) -> None:
    with pytest.raises(InvalidArgumentError, match=r"stopping\.stop"):
        await client.generate([5], detokenize=False, stop="x")
    assert not tokenizer.opened
