"""Nothing that one request asks for holds the event loop for long: what is large is done in a thread, or in turns."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import grpc
import pytest

from tandem.tokenizer.decoding.streaming import PlainStream, StreamDecoder, WatchedStream
from tandem.tokenizer.formats import load_tokenizer
from tandem.tokenizer.rpc import validation
from tandem.tokenizer.tokenizer import Tokenizer
from tandem.tokenizer.v1 import tokenizer_pb2 as pb
from tests.tokenizer_svc.rpc.test_decode_stream import Open, Request, exchange


@pytest.fixture(scope="module")
def small(shared_data: Path) -> Tokenizer:
    return load_tokenizer(shared_data / "models/stories260K/meta")


def letters(count: int, **fields: Any) -> pb.EncodeInput:
    return pb.EncodeInput(segments=[pb.TextSegment(text="a", **fields)] * count)


MANY: dict[str, Callable[[Any], Any]] = {
    "segments": lambda stub: stub.Encode(pb.EncodeRequest(input=letters(2000))),
    "inputs": lambda stub: stub.BatchEncode(pb.BatchEncodeRequest(inputs=[letters(1)] * 2000)),
    "inputs with offsets": lambda stub: stub.BatchEncode(
        pb.BatchEncodeRequest(inputs=[letters(1)] * 2000, include_offsets=True)
    ),
    "segments of inputs": lambda stub: stub.CountTokens(pb.CountTokensRequest(inputs=[letters(20)] * 100)),
}


@pytest.fixture
def looked_at(monkeypatch: pytest.MonkeyPatch) -> set[threading.Thread]:
    """The threads in which requests were looked at or encoded."""
    threads: set[threading.Thread] = set()

    def watch(owner: Any, name: str) -> None:
        function = getattr(owner, name)

        def watched(*args: Any, **kwargs: Any) -> Any:
            threads.add(threading.current_thread())
            return function(*args, **kwargs)

        monkeypatch.setattr(owner, name, watched)

    watch(validation, "_encode_job")
    watch(validation.PlainTexts, "take")
    watch(Tokenizer, "encode_segments")
    watch(Tokenizer, "encode_many")
    return threads


@pytest.mark.parametrize("kind", MANY)
async def test_what_has_many_small_parts_is_left_to_threads(
    start_service: Any, looked_at: set[threading.Thread], kind: str
) -> None:
    running = await start_service()
    await MANY[kind](running.stub)
    assert looked_at
    assert threading.current_thread() not in looked_at


async def test_many_ids_that_are_to_be_parsed_are_looked_at_by_a_thread(
    start_service: Any, looked_at: set[threading.Thread]
) -> None:
    running = await start_service()
    listed = letters(1, special_tokens=pb.SPECIAL_TOKEN_POLICY_PARSE_LISTED, parse_ids=[5] * 2000)
    with suppress(grpc.aio.AioRpcError):  # 5 is no control token: nothing is encoded
        await running.stub.Encode(pb.EncodeRequest(input=listed))
    assert looked_at
    assert threading.current_thread() not in looked_at


async def test_what_is_little_waits_for_no_thread(start_service: Any, looked_at: set[threading.Thread]) -> None:
    running = await start_service()
    await running.stub.Encode(pb.EncodeRequest(input=letters(20)))
    await running.stub.BatchEncode(pb.BatchEncodeRequest(inputs=[letters(1)] * 100))
    assert looked_at == {threading.current_thread()}


async def test_pieces_are_the_same_however_many(start_service: Any, small: Tokenizer) -> None:
    running = await start_service()
    text = "héllo wörld\n" * 100
    segments = [pb.TextSegment(text=text)]
    answer = await running.stub.Encode(pb.EncodeRequest(input=pb.EncodeInput(segments=segments), include_pieces=True))
    assert list(answer.encoding.pieces) == small.pieces(answer.encoding.ids)


class Pushed:
    """The lengths of what decoders got, and which turn of the event loop it was."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.parts: list[tuple[int, int]] = []
        self.turn = 0
        for kind in (PlainStream, WatchedStream):
            monkeypatch.setattr(kind, "push", self._watched(kind.push))

    def _watched(self, push: Any) -> Any:
        def watched(decoder: StreamDecoder, ids: list[int], end: bool = False) -> str:
            self.parts.append((self.turn, len(ids)))
            return push(decoder, ids, end)

        return watched

    async def count(self) -> None:
        while True:
            self.turn += 1
            await asyncio.sleep(0)

    def most_in_a_turn(self) -> int:
        turns = [turn for turn, _ in self.parts]
        return max(sum(count for turn, count in self.parts if turn == each) for each in set(turns))


STREAMS = {"plain": (Open(), 32_768), "stop strings": (Open(stop_strings=["zzz", "ab" * 40]), 256)}


@pytest.mark.parametrize("kind", STREAMS)
@pytest.mark.parametrize("batch", [False, True])
async def test_many_ids_for_a_stream_are_decoded_in_turns(
    start_service: Any, small: Tokenizer, monkeypatch: pytest.MonkeyPatch, kind: str, batch: bool
) -> None:
    running = await start_service()
    opened, bound = STREAMS[kind]
    ids = (small.encode("ababa hello ", add_special=False) * 65_536)[:65_536]
    pushed = Pushed(monkeypatch)
    counter = asyncio.create_task(pushed.count())
    request = Request(open=opened, ids=ids, end=True)
    [response] = await exchange(running.stub, [Request(batch=[request]) if batch else request])
    counter.cancel()
    with suppress(asyncio.CancelledError):
        await counter
    [answer] = response.batch if batch else [response]
    assert pushed.most_in_a_turn() <= bound
    monkeypatch.undo()
    whole = small.stream(stop_strings=list(opened.stop_strings))
    assert (answer.text, answer.ids_consumed) == (whole.push(ids, True), whole.ids_consumed)


async def test_many_opens_are_handled_in_turns(
    start_service: Any, small: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    running = await start_service()
    pushed = Pushed(monkeypatch)
    counter = asyncio.create_task(pushed.count())
    opens = [Request(stream_key=str(key), open=Open(stop_strings=["a" * 1000])) for key in range(250)]
    [response] = await exchange(running.stub, [Request(batch=opens)])
    counter.cancel()
    assert len(response.batch) == 250
    turns = [turn for turn, _ in pushed.parts]
    assert max(turns.count(turn) for turn in turns) <= 8
