"""Chunks that are passed on where they arrive are those of an iteration, and a reader who fails harms nobody."""

from __future__ import annotations

import asyncio

import pytest

from tandem.client import AsyncClient, CancelledError, Chunk
from tests.client.byte_vocabulary import TEXT
from tests.client.counting_worker import CountingWorker


def joined(chunks: list[Chunk], index: int = 0) -> str:
    return "".join(chunk.text for chunk in chunks if chunk.index == index)


@pytest.mark.parametrize("n", [1, 3])
@pytest.mark.parametrize("delta_tokens", [1, 5])
@pytest.mark.parametrize("stop", [None, "er "])
async def test_what_is_passed_on_is_what_the_result_has(
    client: AsyncClient, worker: CountingWorker, n: int, delta_tokens: int, stop: str | None
) -> None:
    worker.delta_tokens = delta_tokens
    chunks: list[Chunk] = []
    async with client.stream("Hi", seed=0, n=n, stop=stop, logprobs=True) as stream:
        assert await stream.pass_on(lambda chunk: chunks.append(chunk) or True)
    for output in stream.result.outputs:
        mine = [chunk for chunk in chunks if chunk.index == output.index]
        assert joined(mine, output.index) == output.text
        assert [id_ for chunk in mine for id_ in chunk.ids] == output.output_ids
        assert [each for chunk in mine for each in chunk.logprobs or ()] == output.logprobs


async def test_who_takes_no_more_gets_the_rest_as_one_chunk(client: AsyncClient) -> None:
    chunks: list[Chunk] = []
    async with client.stream("Hi", seed=0) as stream:
        assert not await stream.pass_on(lambda chunk: bool(chunks.append(chunk)))
        await stream.collect()
        assert len(chunks) == 1
        assert await stream.pass_on(lambda chunk: chunks.append(chunk) or True)
    assert len(chunks) == 2
    assert joined(chunks) == TEXT


async def test_an_answer_survives_a_reader_who_fails_and_so_do_all_others(client: AsyncClient) -> None:
    chunks: list[list[Chunk]] = [[] for _ in range(8)]

    def failing(chunk: Chunk) -> bool:
        chunks[0].append(chunk)
        raise ValueError("cannot read")

    streams = [client.stream("Hi", seed=0) for _ in chunks]
    readers = [failing, *(lambda chunk, place=place: chunks[place].append(chunk) or True for place in range(1, 8))]
    ends = await asyncio.gather(
        *(stream.pass_on(reader) for stream, reader in zip(streams, readers, strict=True)), return_exceptions=True
    )
    assert [str(end) for end in ends] == ["cannot read", *["True"] * 7]
    assert await streams[0].pass_on(lambda chunk: chunks[0].append(chunk) or True)
    assert [joined(each) for each in chunks] == [TEXT] * 8


async def test_an_error_comes_behind_all_chunks(client: AsyncClient, worker: CountingWorker) -> None:
    worker.pause_at = 6
    chunks: list[Chunk] = []
    stream = client.stream("Hi", seed=0)

    def receive(chunk: Chunk) -> bool:
        chunks.append(chunk)
        if len(joined(chunks)) == 6:
            stream.cancel()
        return True

    with pytest.raises(CancelledError, match="the caller cancelled"):
        await stream.pass_on(receive)
    assert joined(chunks) == TEXT[:6]


async def test_who_is_cancelled_while_waiting_has_lost_nothing(client: AsyncClient, worker: CountingWorker) -> None:
    worker.pause_at = 6
    chunks: list[Chunk] = []
    came = asyncio.Event()

    def receive(chunk: Chunk) -> bool:
        chunks.append(chunk)
        if len(joined(chunks)) == 6:
            came.set()
        return True

    async with client.stream("Hi", seed=0) as stream:
        waiting = asyncio.create_task(stream.pass_on(receive))
        await came.wait()
        waiting.cancel()
        await asyncio.wait([waiting])
        assert waiting.cancelled()
        worker.go.set()
        assert await stream.pass_on(receive)
    assert joined(chunks) == TEXT
