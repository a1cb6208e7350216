"""DecodeStream over the wire: the invariants that the proto file states, and what breaks them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import grpc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandem.tokenizer.decoding.streaming import PlainStream
from tandem.tokenizer.formats import load_tokenizer
from tandem.tokenizer.rpc import stream_calls
from tandem.tokenizer.tokenizer import Tokenizer
from tandem.tokenizer.v1 import tokenizer_pb2 as pb

Request, Open = pb.DecodeStreamRequest, pb.DecodeStreamOpen


@pytest.fixture(scope="module")
def small(shared_data: Path) -> Tokenizer:
    return load_tokenizer(shared_data / "models/stories260K/meta")


async def exchange(stub: Any, requests: Sequence[Request]) -> list[pb.DecodeStreamResponse]:
    """Sends all requests, closes, and collects the responses."""

    async def send() -> AsyncIterator[Request]:
        for request in requests:
            yield request

    return [response async for response in stub.DecodeStream(send())]


async def test_one_response_a_request_in_order_and_text_equals_decode(start_service: Any, small: Tokenizer) -> None:
    running = await start_service()
    text = "Once upon a time, there was an emoji 👩‍🚀."
    ids = small.encode(text, add_special=False)
    requests = [Request(open=Open()), *(Request(ids=[each]) for each in ids), Request(end=True)]
    responses = await exchange(running.stub, requests)
    assert len(responses) == len(requests)
    assert "".join(each.text for each in responses) == text
    assert [each.ids_consumed for each in responses] == [0, *range(1, len(ids) + 1), len(ids)]
    assert [each.done for each in responses] == [False] * (len(ids) + 1) + [True]
    assert any(each.held_bytes for each in responses)
    assert all("\ufffd" not in each.text for each in responses)


async def test_pieces_are_the_bytes_of_each_id_whatever_is_held_back(start_service: Any, small: Tokenizer) -> None:
    running = await start_service()
    text = "a whole emoji 👩‍🚀 stop"
    ids = small.encode(text)
    opening = Open(include_pieces=True, stop_strings=["p"], graphemes=True)
    requests = [Request(open=opening, ids=ids[:3]), *(Request(ids=[each]) for each in ids[3:])]
    responses = await exchange(running.stub, requests)
    assert [len(each.pieces) for each in responses] == [len(each.ids) for each in requests]
    pieces = [piece for response in responses for piece in response.pieces]
    assert b"".join(pieces) == b"<s> " + text.encode()
    assert not any(each.pieces for each in await exchange(running.stub, [Request(open=Open(), ids=ids)]))


async def test_a_stream_is_plain_between_whole_characters_unless_more_than_text_is_asked_for(
    start_service: Any, small: Tokenizer
) -> None:
    running = await start_service()
    ids = small.encode("ab 👩‍🚀 c", add_special=False)

    async def answers(opening: Open) -> list[pb.DecodeStreamResponse]:
        return await exchange(running.stub, [Request(open=opening), *(Request(ids=[each]) for each in ids)])

    responses = await answers(Open())
    assert [each.plain for each in responses] == [False, *(not each.held_bytes for each in responses[1:])]
    assert {each.plain for each in responses[1:]} == {False, True}
    assert [each.fingerprint for each in responses] == [small.fingerprint, *[""] * len(ids)]
    more = [Open(stop_strings=["q"]), Open(graphemes=True), Open(include_pieces=True), Open(answer=pb.AnswerParsing())]
    for opening in more:
        assert not any(each.plain for each in await answers(opening))


async def test_the_texts_of_ids_are_told_in_parts_to_who_opens_streams_that_can_be_plain(
    start_service: Any, small: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream_calls, "_TEXTS_AT_ONCE", 100)
    running = await start_service()
    size = small.vocabulary_size
    assert size > 200

    async def told(start: int, **more: Any) -> pb.DecodeStreamResponse:
        [response] = await exchange(running.stub, [Request(open=Open(texts_from=start, **more))])
        return response

    for shown in (False, True):
        options = pb.DecodeOptions(unparse_special=shown)
        texts: dict[int, str] = {}
        start = 0
        while True:
            response = await told(start, options=options)
            texts.update(zip(response.text_ids, response.texts, strict=True))
            assert all(start <= index < (response.next_texts or size) for index in response.text_ids)
            if not (start := response.next_texts):
                break
        plain = small.stream(unparse_special=shown, context_ids=small.encode("ab"))
        plain.push(small.encode("ab", add_special=False))
        for index in range(size):
            text = plain.push([index])
            assert texts.get(index) == (text if plain.is_plain and "\ufffd" not in text else None)
            if not plain.is_plain:
                plain = small.stream(unparse_special=shown, context_ids=small.encode("ab"))
                plain.push(small.encode("ab", add_special=False))
    for past in (size - 1, size, 2**32 - 1):
        response = await told(past)
        assert response.HasField("next_texts") and not response.next_texts
    for more in (
        {"stop_strings": ["q"]},
        {"graphemes": True},
        {"include_pieces": True},
        {"answer": pb.AnswerParsing()},
    ):
        response = await told(0, **more)
        assert not response.text_ids and not response.HasField("next_texts")
    batch = [Request(stream_key=key, open=Open(texts_from=0)) for key in "abc"]
    [together] = await exchange(running.stub, [Request(batch=batch)])
    assert [len(each.text_ids) > 0 for each in together.batch] == [True, False, False]
    assert [each.HasField("next_texts") for each in together.batch] == [True, False, False]


async def test_many_streams_share_a_call_and_do_not_mix(start_service: Any, small: Tokenizer) -> None:
    running = await start_service()
    texts = {f"key-{number}": f"stream number {number} é" for number in range(50)}
    ids = {key: small.encode(text, add_special=False) for key, text in texts.items()}
    requests = [Request(stream_key=key, open=Open()) for key in texts]
    for place in range(max(map(len, ids.values()))):
        requests += [Request(stream_key=key, ids=each[place : place + 1]) for key, each in ids.items()]
    requests += [Request(stream_key=key, end=True) for key in texts]
    responses = await exchange(running.stub, requests)
    assert [each.stream_key for each in responses] == [each.stream_key for each in requests]
    for key, text in texts.items():
        assert "".join(each.text for each in responses if each.stream_key == key) == text
    assert running.service.metrics.registry.get_sample_value("tandem_tokenizer_open_streams") == 0


async def test_a_stop_string_within_the_first_ids_is_text_in_any_split(start_service: Any, small: Tokenizer) -> None:
    running = await start_service()
    ids = small.encode("one two one two one two", add_special=False)
    least = len(small.encode("one two one", add_special=False))
    for size in (1, len(ids)):
        parts = [Request(ids=ids[at : at + size]) for at in range(0, len(ids), size)]
        opened = Request(open=Open(stop_strings=["two"], min_ids=least))
        responses = await exchange(running.stub, [opened, *parts])
        assert "".join(each.text for each in responses) == "one two one "
        assert [each.matched_stop for each in responses if each.HasField("matched_stop")] == ["two"]


@pytest.mark.parametrize("include", [False, True])
async def test_a_stop_string_ends_the_stream_and_says_how_much_to_trim(
    start_service: Any, small: Tokenizer, include: bool
) -> None:
    running = await start_service()
    ids = small.encode("one two three four", add_special=False)
    opened = Open(stop_strings=["never", "three"], include_stop=include)
    responses = await exchange(running.stub, [Request(open=opened, ids=ids)])
    [last] = responses
    assert last.done
    assert last.matched_stop == "three"
    assert last.text == ("one two three" if include else "one two ")
    assert last.ids_consumed <= len(ids)
    kept = small.decode(ids[: last.ids_consumed - last.trim_ids])
    assert "one two".startswith(kept) or kept.startswith("one two ")  # a token may reach into the stop string
    assert last.trim_ids > 0
    assert "three".endswith(small.decode(ids[: last.ids_consumed]).removeprefix(kept))
    assert last.held_bytes == 0


async def test_no_matched_stop_is_absent_and_not_empty(start_service: Any) -> None:
    running = await start_service()
    [response] = await exchange(running.stub, [Request(open=Open(stop_strings=["x"]), end=True)])
    assert response.done
    assert not response.HasField("matched_stop")


async def test_after_done_a_key_answers_done_until_it_is_opened_again(start_service: Any, small: Tokenizer) -> None:
    running = await start_service()
    ids = small.encode("again", add_special=False)
    requests = [
        Request(stream_key="k", open=Open(), ids=ids, end=True),
        Request(stream_key="k", ids=ids),
        Request(stream_key="k", end=True),
        Request(stream_key="k", open=Open(), ids=ids),
    ]
    responses = await exchange(running.stub, requests)
    assert [each.text for each in responses] == ["again", "", "", "again"]
    assert [each.done for each in responses] == [True, True, True, False]
    assert responses[1] == pb.DecodeStreamResponse(stream_key="k", done=True)
    assert responses[3].ids_consumed == len(ids)


async def test_context_decides_whether_a_leading_space_is_text(start_service: Any, small: Tokenizer) -> None:
    running = await start_service()
    ids = small.encode("hello", add_special=False)
    cases = {"hello": [(), (1,), (5, 1)], " hello": [(ids[0],), (1, ids[0])]}
    for expected, contexts in cases.items():
        for context in contexts:
            [response] = await exchange(running.stub, [Request(open=Open(context_ids=context), ids=ids, end=True)])
            assert response.text == expected, context


async def test_special_tokens_follow_the_options(start_service: Any, small: Tokenizer) -> None:
    running = await start_service()
    ids = [1, *small.encode("a", add_special=False), 2]
    for options, expected in (
        (pb.DecodeOptions(), " a"),
        (pb.DecodeOptions(unparse_special=True), "<s> a</s>"),
        (pb.DecodeOptions(unparse_special=True, remove_special=True), " a</s>"),
    ):
        [response] = await exchange(running.stub, [Request(open=Open(options=options), ids=ids, end=True)])
        assert response.text == expected
        whole = small.decode(ids, options.remove_special, options.unparse_special)
        assert response.text == whole


@given(
    ids=st.lists(st.integers(0, 511), max_size=60),
    cuts=st.lists(st.integers(0, 60), max_size=5),
    stops=st.lists(st.sampled_from(["a", "the", " o", "\ufffd", "ere"]), max_size=2, unique=True),
)
def test_a_stream_equals_whole_decoding_for_any_ids_and_split(
    small: Tokenizer, ids: list[int], cuts: list[int], stops: list[str]
) -> None:
    whole = small.decode(ids)
    ends = [whole.index(stop) + len(stop) for stop in stops if stop in whole]
    stream = small.stream(stop_strings=stops)
    places = [0, *sorted(min(cut, len(ids)) for cut in cuts), len(ids)]
    text = ""
    for start, end in zip(places, [*places[1:], len(ids)], strict=True):
        if not stream.done:
            text += stream.push(ids[start:end])
    if not stream.done:
        text += stream.push([], end=True)
    matched = stream.matched_stop
    if not ends:
        assert (text, matched) == (whole, None)
    else:
        assert matched is not None
        assert text + matched == whole[: min(ends)]


async def test_a_batch_is_answered_as_its_requests_would_be_alone(start_service: Any, small: Tokenizer) -> None:
    running = await start_service()
    ids = {key: small.encode(f"stream {key} é, stop it", add_special=False) for key in "abc"}
    requests = [Request(stream_key=key, open=Open(stop_strings=["stop"])) for key in ids]
    for place in range(max(map(len, ids.values()))):
        requests += [Request(stream_key=key, ids=each[place : place + 1]) for key, each in ids.items()]
    requests += [Request(stream_key=key, end=True) for key in ids]
    alone = await exchange(running.stub, requests)
    batches = [Request(batch=requests[at : at + 7]) for at in range(0, len(requests), 7)]
    together = await exchange(running.stub, batches)
    assert [each for response in together for each in response.batch] == alone
    assert len(together) == len(batches)
    assert {each.matched_stop for each in alone if each.trim_ids} == {"stop"}


BAD_REQUESTS = [
    ([Request(batch=[Request(batch=[Request(open=Open())])])], "batch[0].batch"),
    ([Request(end=True, batch=[Request(open=Open())])], "end"),
    ([Request(batch=[Request(stream_key="k")] * 4097)], "batch"),
    ([Request(ids=[5])], "open"),
    ([Request(end=True)], "open"),
    ([Request(stream_key="a", open=Open()), Request(stream_key="b", ids=[5])], "open"),
    ([Request(open=Open()), Request(open=Open())], "open"),
    ([Request(stream_key="k" * 257, open=Open())], "stream_key"),
    ([Request(open=Open(options=pb.DecodeOptions(clean_spaces=True)))], "open.options.clean_spaces"),
    ([Request(open=Open(stop_strings=["ok", ""]))], "open.stop_strings[1]"),
    ([Request(open=Open(stop_strings=["é" * 513]))], "open.stop_strings[0]"),
    ([Request(open=Open(stop_strings=["x"] * 65))], "open.stop_strings"),
    ([Request(open=Open(context_ids=[5, 512]))], "open.context_ids[1]"),
    ([Request(open=Open(), ids=[5, 6, 4_000_000_000])], "ids[2]"),
]


@pytest.mark.parametrize(("requests", "field"), BAD_REQUESTS)
async def test_a_wrong_request_ends_the_call_and_names_the_field(
    start_service: Any, refusal: Any, requests: Any, field: str
) -> None:
    running = await start_service()
    refused = await refusal(exchange(running.stub, requests))
    assert refused.code is grpc.StatusCode.INVALID_ARGUMENT
    assert list(refused.violations) == [field]
    assert running.service.metrics.registry.get_sample_value("tandem_tokenizer_open_streams") == 0


# Requests of one stream, of which the last is wrong; and what must be set for it.
WRONG_IN_A_BATCH: dict[str, tuple[list[Request], dict[str, int]]] = {
    "ids": ([Request(open=Open()), Request(ids=[5, 512])], {}),
    "too many ids": ([Request(open=Open()), Request(ids=[5] * 101)], {"max_stream_ids": 100}),
    "not open": ([Request(ids=[5])], {}),
    "open twice": ([Request(open=Open()), Request(open=Open())], {}),
    "stop strings": ([Request(open=Open(stop_strings=["ok", "", "x" * 1025]))], {}),
    "key": ([Request(stream_key="k" * 257, open=Open())], {}),
    "tokenizer": ([Request(open=Open(tokenizer="nobody"))], {}),
    "one stream too many": ([Request(open=Open())], {"max_streams_per_call": 63}),
}


@pytest.mark.parametrize("name", WRONG_IN_A_BATCH)
async def test_what_is_wrong_in_a_batch_ends_one_stream_and_63_others_go_on(
    start_service: Any, refusal: Any, small: Tokenizer, name: str
) -> None:
    wrong, settings = WRONG_IN_A_BATCH[name]
    running = await start_service(**settings)
    ids = small.encode("and on it goes", add_special=False)
    keys = [f"good {number}" for number in range(63)]
    requests = [Request(batch=[Request(stream_key=key, open=Open()) for key in keys])]
    for place, each in enumerate(wrong):
        goods = [Request(stream_key=key, ids=ids[place : place + 1]) for key in keys]
        requests.append(Request(batch=[*goods[:31], each, *goods[31:]]))
    again = Request(stream_key=wrong[-1].stream_key, ids=[5])
    rest = [Request(stream_key=key, ids=ids[len(wrong) :], end=True) for key in keys]
    requests.append(Request(batch=[again, *rest]))
    responses = await exchange(running.stub, requests)
    texts = dict.fromkeys(keys, "")
    for response in responses:
        for each in response.batch:
            if each.stream_key in texts:
                assert not each.HasField("error")
                texts[each.stream_key] += each.text
    assert set(texts.values()) == {"and on it goes"}

    told = responses[-2].batch[31]
    assert told.done and told.stream_key == wrong[-1].stream_key
    fillers = [Request(stream_key=key, open=Open()) for key in keys]
    alone = await refusal(exchange(running.stub, [*fillers, *wrong]))  # the same, each request by itself
    assert told.error.code == alone.code.value[0]
    assert told.error.message == alone.message
    assert told.error.SerializeToString() == alone.status.SerializeToString()
    later = responses[-1].batch[0]
    assert later.done and (later.HasField("error") == (name == "key"))
    value = running.service.metrics.registry.get_sample_value
    labels = {"grpc_code": alone.code.name}
    assert value("tandem_tokenizer_stream_errors_total", labels) >= 1
    assert value("tandem_tokenizer_open_streams") == 0


async def test_a_fault_of_ours_ends_one_stream_of_a_batch(
    start_service: Any, small: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    running = await start_service()
    push = PlainStream.push

    def failing(self: PlainStream, ids: Sequence[int], end: bool = False) -> str:
        if ids[:1] == [7]:
            raise ZeroDivisionError("a secret")
        return push(self, ids, end)

    monkeypatch.setattr(PlainStream, "push", failing)
    opens = [Request(stream_key=key, open=Open()) for key in "ab"]
    more = [Request(stream_key=key, ids=[number]) for key, number in (("a", 7), ("b", 8))]
    _, second, third = await exchange(running.stub, [Request(batch=each) for each in (opens, more, more)])
    assert second.batch[0].error.code == grpc.StatusCode.INTERNAL.value[0]
    assert "secret" not in second.batch[0].error.message
    assert second.batch[1].ids_consumed == 1
    assert third.batch[0] == pb.DecodeStreamResponse(stream_key="a", done=True)
    assert third.batch[1].ids_consumed == 2


async def test_a_draining_server_opens_no_stream_in_an_old_batch_call(start_service: Any, small: Tokenizer) -> None:
    running = await start_service()
    call = running.stub.DecodeStream()
    await call.write(Request(batch=[Request(stream_key="old", open=Open())]))
    await call.read()
    running.service._lifecycle.set_draining(True)
    await call.write(Request(batch=[Request(stream_key="new", open=Open()), Request(stream_key="old", ids=[5])]))
    new, old = (await call.read()).batch
    assert new.error.code == grpc.StatusCode.UNAVAILABLE.value[0]
    assert old.ids_consumed == 1
    running.service._lifecycle.set_draining(False)
    await call.write(Request(batch=[Request(stream_key="new", open=Open(), end=True)]))
    assert not (await call.read()).batch[0].HasField("error")
    await call.done_writing()


async def test_a_batch_of_many_ids_is_handled_in_turns_and_in_order(start_service: Any, small: Tokenizer) -> None:
    running = await start_service(max_stream_ids=3)
    requests = [Request(stream_key="k", open=Open()), *(Request(stream_key="k", ids=[5, 6]) for _ in range(50))]
    [response] = await exchange(running.stub, [Request(batch=requests)])
    assert [each.ids_consumed for each in response.batch] == list(range(0, 101, 2))


async def test_unknown_tokenizer_and_too_many_streams(start_service: Any, refusal: Any) -> None:
    running = await start_service(max_streams_per_call=2, max_stream_ids=3)
    unknown = await refusal(exchange(running.stub, [Request(open=Open(tokenizer="nobody"))]))
    assert unknown.code is grpc.StatusCode.NOT_FOUND
    many = [Request(stream_key=str(number), open=Open()) for number in range(3)]
    crowded = await refusal(exchange(running.stub, many))
    assert (crowded.code, crowded.reason) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "TOO_MANY_STREAMS")
    long = await refusal(exchange(running.stub, [Request(open=Open(), ids=[5] * 4)]))
    assert (long.code, long.reason) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "INPUT_TOO_LARGE")
    batch = [Request(stream_key=key, open=Open(), ids=[5, 5]) for key in "ab"]
    [together] = await exchange(running.stub, [Request(batch=batch)])
    assert [each.ids_consumed for each in together.batch] == [2, 2], "the limit is for each of them"


async def test_graphemes_arrive_whole(start_service: Any, small: Tokenizer) -> None:
    running = await start_service()
    text = "a👩‍🚀e\u0301👍🏽b"
    ids = small.encode(text, add_special=False)
    requests = [Request(open=Open(graphemes=True)), *(Request(ids=[each]) for each in ids), Request(end=True)]
    responses = await exchange(running.stub, requests)
    assert [each.text for each in responses if each.text] == ["a", "👩‍🚀", "e\u0301", "👍🏽", "b"]
    assert responses[-1].held_bytes == 0


async def test_thousands_of_streams_in_one_call(start_service: Any, small: Tokenizer) -> None:
    running = await start_service()
    ids = small.encode("hi", add_special=False)
    keys = [str(number) for number in range(4_000)]
    requests = [Request(stream_key=key, open=Open(), ids=ids) for key in keys]
    responses = await exchange(running.stub, requests)
    assert {each.text for each in responses} == {"hi"}
    assert len(responses) == 4_000


async def test_a_client_that_leaves_gives_its_streams_back(start_service: Any) -> None:
    running = await start_service()
    call = running.stub.DecodeStream()
    for number in range(5):
        await call.write(Request(stream_key=str(number), open=Open()))
        await call.read()
    registry = running.service.metrics.registry
    assert registry.get_sample_value("tandem_tokenizer_open_streams") == 5
    call.cancel()
    again = running.stub.DecodeStream()
    await again.write(Request(open=Open(), end=True))
    assert (await again.read()).done
    await again.done_writing()
    while registry.get_sample_value("tandem_tokenizer_open_streams"):
        await running.stub.ListTokenizers(pb.ListTokenizersRequest())
