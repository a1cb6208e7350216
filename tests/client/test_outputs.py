"""Several outputs of one answer: each as if it were alone, whole and in streams, over the loss of a worker."""

from __future__ import annotations

import pytest

from tandem.client import AsyncClient, FailoverSettings, FinishReason
from tests.client.byte_vocabulary import EOS, TEXT, ids_of_text
from tests.client.counting_worker import CountingWorker
from tests.client.fakes import serving_workers

QUICK = FailoverSettings(attempts=3, initial_backoff_seconds=0.01, max_backoff_seconds=0.02)
SCRIPT = [*ids_of_text(TEXT), EOS]


async def alone(client: AsyncClient, seed: int, **options: object) -> tuple[str, list[int], FinishReason]:
    result = await client.generate("Hi", seed=seed, **options)  # type: ignore[arg-type]
    return result.text, result.output_ids, result.finish_reason


async def test_each_output_is_what_it_would_be_alone(tokenizer_address: str) -> None:
    async with (
        serving_workers(CountingWorker(SCRIPT)) as addresses,
        AsyncClient(tokenizer_address, addresses) as client,
    ):
        result = await client.generate("Hi", seed=5, n=4, max_tokens=20, logprobs=True)
        for index, output in enumerate(result.outputs):
            assert (output.text, output.output_ids, output.finish_reason) == await alone(
                client, 5 + index, max_tokens=20
            )
            assert output.index == index
            assert output.logprobs == [-0.5 * p for p in range(len(output.output_ids))]
        assert len({output.text for output in result.outputs}) == 4
        assert (result.text, result.output_ids) == (result.outputs[0].text, result.outputs[0].output_ids)
        assert result.usage.completion_tokens == sum(len(output.output_ids) for output in result.outputs)
        assert result.usage.peak_pages == 3


async def test_a_stream_says_which_output_each_chunk_belongs_to(tokenizer_address: str) -> None:
    async with (
        serving_workers(CountingWorker(SCRIPT)) as addresses,
        AsyncClient(tokenizer_address, addresses) as client,
    ):
        texts, ids = ["", "", ""], [[], [], []]  # type: ignore[var-annotated]
        async with client.stream("Hi", seed=2, n=3, max_tokens=200) as stream:
            async for chunk in stream:
                texts[chunk.index] += chunk.text
                ids[chunk.index] += chunk.ids
        assert texts == [output.text for output in stream.result.outputs]
        assert ids == [output.output_ids for output in stream.result.outputs]
        assert {output.finish_reason for output in stream.result.outputs} == {FinishReason.EOS}


async def test_a_stop_string_ends_its_output_only(tokenizer_address: str) -> None:
    async with (
        serving_workers(CountingWorker(SCRIPT)) as addresses,
        AsyncClient(tokenizer_address, addresses) as client,
    ):
        options = {"stop": [TEXT[10:14]], "max_tokens": 8}
        result = await client.generate("Hi", seed=0, n=8, **options)  # type: ignore[arg-type]
        for index, output in enumerate(result.outputs):
            assert (output.text, output.output_ids, output.finish_reason) == await alone(client, index, **options)
        assert {output.finish_reason for output in result.outputs} > {FinishReason.STOP_STRING}


@pytest.mark.parametrize("position", [0, 1, 7, 19])
async def test_outputs_go_on_when_their_worker_is_lost(tokenizer_address: str, position: int) -> None:
    first, second = CountingWorker(SCRIPT), CountingWorker(SCRIPT)
    async with (
        serving_workers(first, second) as addresses,
        AsyncClient(tokenizer_address, addresses, failover=QUICK, timeout=30) as client,
    ):
        whole = await client.generate("Hi", seed=5, n=3, max_tokens=20, logprobs=True)
        lost, other = (first, second) if first.seen else (second, first)
        lost.lose_at = position
        result = await client.generate("Hi", seed=5, n=3, max_tokens=20, logprobs=True)
        assert result.outputs == whole.outputs
        assert result.failovers == 1
        again = other.seen[0].request
        assert not again.resumed_output_ids
        assert (again.n, again.sampling.seed) == (3, 5)
