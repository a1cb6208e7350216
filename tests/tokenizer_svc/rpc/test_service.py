"""The unary methods over the wire: answers, fields, and what each wrong field gets."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import grpc
import pytest
import tokenizers

from tandem.tokenizer.encode_cache import EncodeCache
from tandem.tokenizer.encoding import Segment
from tandem.tokenizer.formats import load_tokenizer
from tandem.tokenizer.rpc.metrics import TokenizerMetrics
from tandem.tokenizer.tokenizer import Tokenizer
from tandem.tokenizer.v1 import tokenizer_pb2 as pb

TEXT = pb.SPECIAL_TOKEN_POLICY_TEXT
PARSE = pb.SPECIAL_TOKEN_POLICY_PARSE
LISTED = pb.SPECIAL_TOKEN_POLICY_PARSE_LISTED
REJECT = pb.SPECIAL_TOKEN_POLICY_REJECT
INVALID = grpc.StatusCode.INVALID_ARGUMENT
EXHAUSTED = grpc.StatusCode.RESOURCE_EXHAUSTED


def text_input(*texts: str, policy: Any = TEXT, **fields: Any) -> pb.EncodeInput:
    return pb.EncodeInput(segments=[pb.TextSegment(text=text, special_tokens=policy) for text in texts], **fields)


@pytest.fixture(scope="module")
def small(shared_data: Path) -> Tokenizer:
    return load_tokenizer(shared_data / "models/stories260K/meta")


async def test_list_names_the_default_first_and_get_describes_it(start_service: Any, shared_data: Path) -> None:
    running = await start_service(
        tokenizer=(
            f"zulu={shared_data}/models/stories260K/meta",
            f"llama2={shared_data}/formats/llama2",
            f"llama3={shared_data}/formats/llama3/tokenizer.model",
        )
    )
    listed = (await running.stub.ListTokenizers(pb.ListTokenizersRequest())).tokenizers
    assert [each.name for each in listed] == ["zulu", "llama2", "llama3"]
    assert not any(each.special_tokens for each in listed)
    default = (await running.stub.GetTokenizer(pb.GetTokenizerRequest())).tokenizer
    assert default.name == "zulu"
    llama3 = (await running.stub.GetTokenizer(pb.GetTokenizerRequest(tokenizer="llama3"))).tokenizer
    assert llama3.vocabulary_type == pb.VOCABULARY_TYPE_BPE
    assert llama3.vocabulary_size == 128_256
    assert (llama3.bos_id, llama3.eos_id, llama3.HasField("unk_id")) == (128_000, 128_009, False)
    assert list(llama3.end_of_generation_ids) == [128_001, 128_009]
    assert (llama3.adds_bos, llama3.adds_eos, llama3.adds_space_prefix) == (True, False, False)
    assert (llama3.source, llama3.has_chat_template) == ("tiktoken", True)
    specials = {token.id: (token.text, token.type) for token in llama3.special_tokens}
    assert specials[128_009] == ("<|eot_id|>", pb.TOKEN_TYPE_CONTROL)
    assert list(specials) == sorted(specials)
    assert len(llama3.fingerprint) == 64
    llama2 = (await running.stub.GetTokenizer(pb.GetTokenizerRequest(tokenizer="llama2"))).tokenizer
    assert (llama2.bos_id, llama2.eos_id, llama2.unk_id, llama2.adds_space_prefix) == (1, 2, 0, True)
    assert (llama2.vocabulary_type, llama2.source) == (pb.VOCABULARY_TYPE_SPM, "sentencepiece")


async def test_the_rules_of_special_tokens_are_those_of_the_file(start_service: Any, tmp_path: Path) -> None:
    library = tokenizers.Tokenizer(tokenizers.models.BPE())
    library.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    library.decoder = tokenizers.decoders.ByteLevel()
    alphabet = tokenizers.pre_tokenizers.ByteLevel.alphabet()
    library.train_from_iterator([], tokenizers.trainers.BpeTrainer(initial_alphabet=alphabet, show_progress=False))
    names = ("lstrip", "rstrip", "single_word", "normalized")
    rules = [{}, *({name: True} for name in names), {"lstrip": True, "rstrip": True}]
    library.add_tokens([tokenizers.AddedToken(f"<{n}>", **{"normalized": False, **r}) for n, r in enumerate(rules)])
    library.save(str(tmp_path / "tokenizer.json"))
    running = await start_service(tokenizer=(str(tmp_path),))
    found = (await running.stub.GetTokenizer(pb.GetTokenizerRequest())).tokenizer.special_tokens
    expected = library.get_added_tokens_decoder()
    assert [token.id for token in found] == sorted(expected)
    for token in found:
        assert [getattr(token, name) for name in names] == [getattr(expected[token.id], name) for name in names]


async def test_encode_answers_what_the_tokenizer_answers(start_service: Any, small: Tokenizer) -> None:
    running = await start_service()
    response = await running.stub.Encode(
        pb.EncodeRequest(input=text_input("Once upon a time é"), include_offsets=True, include_pieces=True)
    )
    encoding = response.encoding
    assert list(encoding.ids) == small.encode("Once upon a time é")
    assert response.fingerprint == small.fingerprint
    assert (encoding.total_tokens, encoding.truncated) == (len(encoding.ids), False)
    assert len(encoding.ids) == len(encoding.byte_offsets) == len(encoding.code_point_offsets) == len(encoding.pieces)
    assert b"".join(encoding.pieces) == "<s> Once upon a time é".encode()


async def test_a_pair_is_encoded_as_the_tokenizer_encodes_it(start_service: Any, small: Tokenizer) -> None:
    running = await start_service()
    pair = [pb.TextSegment(text="a friend"), pb.TextSegment(text=" é")]
    wanted = pb.EncodeInput(segments=text_input("Once upon").segments, pair=pair)
    answer = await running.stub.Encode(pb.EncodeRequest(input=wanted, include_offsets=True, include_pieces=True))
    expected = small.encode_pair([Segment("Once upon")], [Segment("a friend"), Segment(" é")], with_offsets=True)
    found = answer.encoding
    assert (list(found.ids), list(found.type_ids)) == (expected.ids, expected.type_ids)
    assert (list(found.byte_offsets), list(found.byte_ends)) == (expected.byte_offsets, expected.byte_ends)
    assert list(found.code_point_ends) == expected.code_point_ends
    told = (await running.stub.GetTokenizer(pb.GetTokenizerRequest())).tokenizer
    assert (list(told.front_ids), list(told.back_ids)) == ([small.config.bos_id], [])
    wanted.truncation.max_tokens = 4
    batch = await running.stub.BatchEncode(pb.BatchEncodeRequest(inputs=[wanted, text_input("x")]))
    cut = small.encode_pair([Segment("Once upon")], [Segment("a friend"), Segment(" é")], max_tokens=4)
    assert (list(batch.encodings[0].ids), batch.encodings[0].truncated) == (cut.ids, True)
    wanted.truncation.max_tokens = 1
    wanted.pair[0].special_tokens = 99
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await running.stub.CountTokens(pb.CountTokensRequest(inputs=[wanted]))
    assert "inputs[0].truncation.max_tokens" in str(caught.value) and "inputs[0].pair[0]" in str(caught.value)
    wanted.ClearField("truncation")
    wanted.pair[0].MergeFrom(pb.TextSegment(text="</s>", special_tokens=pb.SPECIAL_TOKEN_POLICY_REJECT))
    with pytest.raises(grpc.aio.AioRpcError, match=r"input\.pair\[0\]\.text"):
        await running.stub.Encode(pb.EncodeRequest(input=wanted))


async def test_offsets_and_pieces_are_absent_unless_asked_for(start_service: Any) -> None:
    running = await start_service()
    encoding = (await running.stub.Encode(pb.EncodeRequest(input=text_input("a b")))).encoding
    assert not encoding.byte_offsets
    assert not encoding.code_point_offsets
    assert not encoding.pieces


async def test_add_special_defaults_to_true_and_can_be_switched_off(start_service: Any, small: Tokenizer) -> None:
    running = await start_service()
    with_bos = await running.stub.Encode(pb.EncodeRequest(input=text_input("a")))
    without = await running.stub.Encode(pb.EncodeRequest(input=text_input("a", add_special=False)))
    assert list(with_bos.encoding.ids) == [small.config.bos_id, *without.encoding.ids]


async def test_text_bytes_are_the_same_as_text(start_service: Any) -> None:
    running = await start_service()
    as_bytes = pb.EncodeInput(segments=[pb.TextSegment(text_bytes="é😀".encode())])
    left = await running.stub.Encode(pb.EncodeRequest(input=text_input("é😀")))
    right = await running.stub.Encode(pb.EncodeRequest(input=as_bytes))
    assert left == right


async def test_an_empty_segment_gives_only_what_add_special_adds(start_service: Any) -> None:
    running = await start_service()
    encoding = (await running.stub.Encode(pb.EncodeRequest(input=text_input("")))).encoding
    assert list(encoding.ids) == [1]


async def test_each_segment_has_its_own_policy(start_service: Any, small: Tokenizer) -> None:
    running = await start_service()
    message = pb.EncodeInput(
        segments=[
            pb.TextSegment(text="</s>", special_tokens=PARSE),
            pb.TextSegment(text="</s>", special_tokens=TEXT),
            pb.TextSegment(text="</s>"),
            pb.TextSegment(text="<s></s>", special_tokens=LISTED, parse_ids=[2, 2]),
        ],
        add_special=False,
    )
    ids = list((await running.stub.Encode(pb.EncodeRequest(input=message))).encoding.ids)
    assert ids[0] == 2
    assert ids[-1] == 2
    assert ids.count(2) == 2
    assert 1 not in ids
    assert small.decode(ids, unparse_special=True) == "</s> </s></s><s></s>"


async def test_reject_names_the_segment_the_token_and_its_place(start_service: Any, refusal: Any) -> None:
    running = await start_service()
    message = pb.EncodeInput(segments=[pb.TextSegment(text="ok"), pb.TextSegment(text="é</s>", special_tokens=REJECT)])
    refused = await refusal(running.stub.Encode(pb.EncodeRequest(input=message)))
    assert refused.code is INVALID
    assert list(refused.violations) == ["input.segments[1].text"]
    assert "'</s>'" in refused.message
    assert "code point 1" in refused.message
    allowed = pb.EncodeInput(segments=[pb.TextSegment(text="é</ s>", special_tokens=REJECT)])
    await running.stub.Encode(pb.EncodeRequest(input=allowed))


@pytest.mark.parametrize(("side", "expected"), [(pb.TRUNCATION_SIDE_RIGHT, 1), (pb.TRUNCATION_SIDE_LEFT, -2)])
async def test_truncation_keeps_added_tokens(start_service: Any, side: Any, expected: int) -> None:
    running = await start_service()
    whole = (
        await running.stub.Encode(pb.EncodeRequest(input=text_input("one two three"), include_offsets=True))
    ).encoding
    cut = pb.EncodeInput(
        segments=[pb.TextSegment(text="one two three")], truncation=pb.Truncation(max_tokens=3, side=side)
    )
    encoding = (await running.stub.Encode(pb.EncodeRequest(input=cut, include_offsets=True))).encoding
    kept = [0, 1, 2] if expected == 1 else [0, len(whole.ids) - 2, len(whole.ids) - 1]
    assert list(encoding.ids) == [whole.ids[index] for index in kept]
    assert list(encoding.byte_offsets) == [whole.byte_offsets[index] for index in kept]
    assert (encoding.truncated, encoding.total_tokens) == (True, len(whole.ids))
    counted = await running.stub.CountTokens(pb.CountTokensRequest(inputs=[cut, text_input("one two three")]))
    assert list(counted.counts) == [3, len(whole.ids)]


async def test_batch_equals_single_requests_in_order(start_service: Any) -> None:
    running = await start_service(inline_bytes=64, threads=2)
    texts = ["", "a", "Once upon a time " * 40, "é" * 100, "x " * 500, "</s>"]
    inputs = [text_input(text, policy=PARSE) for text in texts]
    batch = await running.stub.BatchEncode(
        pb.BatchEncodeRequest(inputs=inputs, include_offsets=True, include_pieces=True)
    )
    singles = [
        await running.stub.Encode(pb.EncodeRequest(input=each, include_offsets=True, include_pieces=True))
        for each in inputs
    ]
    assert list(batch.encodings) == [each.encoding for each in singles]
    counts = await running.stub.CountTokens(pb.CountTokensRequest(inputs=inputs))
    assert list(counts.counts) == [len(each.ids) for each in batch.encodings]
    decoded = await running.stub.BatchDecode(
        pb.BatchDecodeRequest(inputs=[pb.DecodeInput(ids=each.ids) for each in batch.encodings])
    )
    assert [each.text.removeprefix(" ") for each in decoded.decoded[:-1]] == texts[:-1]


async def test_a_batch_is_answered_wholly_or_not_at_all(start_service: Any, refusal: Any) -> None:
    running = await start_service()
    inputs = [text_input("fine"), text_input("<s>", policy=REJECT)]
    refused = await refusal(running.stub.BatchEncode(pb.BatchEncodeRequest(inputs=inputs)))
    assert list(refused.violations) == ["inputs[1].segments[0].text"]


async def test_decode_options(start_service: Any) -> None:
    running = await start_service()
    ids = list((await running.stub.Encode(pb.EncodeRequest(input=text_input("a , b")))).encoding.ids)
    cases = {
        " a , b": pb.DecodeOptions(),
        "<s> a , b": pb.DecodeOptions(unparse_special=True),
        " a, b": pb.DecodeOptions(clean_spaces=True, remove_special=True),
    }
    for expected, options in cases.items():
        response = await running.stub.Decode(pb.DecodeRequest(input=pb.DecodeInput(ids=ids), options=options))
        assert response.decoded.text == expected
        assert response.decoded.raw == b""
    without_bos = await running.stub.Decode(pb.DecodeRequest(input=pb.DecodeInput(ids=ids[1:])))
    assert without_bos.decoded.text == "a , b"
    empty = await running.stub.Decode(pb.DecodeRequest(input=pb.DecodeInput()))
    assert empty.decoded.text == ""


async def test_broken_bytes_travel_raw_beside_their_replacement(start_service: Any, small: Tokenizer) -> None:
    running = await start_service()
    ids = [small.table.pieces.index(b"\xe2"), small.table.pieces.index(b"A")]
    response = await running.stub.Decode(pb.DecodeRequest(input=pb.DecodeInput(ids=ids)))
    assert response.decoded.text == "\ufffdA"
    assert response.decoded.raw == b"\xe2A"


async def test_unknown_tokenizer_is_not_found_and_the_known_ones_are_named(start_service: Any, refusal: Any) -> None:
    running = await start_service()
    stub, unknown = running.stub, "nobody"
    for call in (
        stub.GetTokenizer(pb.GetTokenizerRequest(tokenizer=unknown)),
        stub.Encode(pb.EncodeRequest(tokenizer=unknown)),
        stub.BatchEncode(pb.BatchEncodeRequest(tokenizer=unknown)),
        stub.CountTokens(pb.CountTokensRequest(tokenizer=unknown)),
        stub.Decode(pb.DecodeRequest(tokenizer=unknown)),
        stub.BatchDecode(pb.BatchDecodeRequest(tokenizer=unknown)),
    ):
        refused = await refusal(call)
        assert refused.code is grpc.StatusCode.NOT_FOUND
        assert "'nobody'" in refused.message
        assert "'small'" in refused.message


def listed_input(*ids: int) -> pb.EncodeInput:
    return pb.EncodeInput(segments=[pb.TextSegment(text="a", special_tokens=LISTED, parse_ids=ids)])


BAD_INPUTS = [
    (pb.EncodeInput(), "input.segments"),
    (pb.EncodeInput(segments=[pb.TextSegment()]), "input.segments[0]"),
    (pb.EncodeInput(segments=[pb.TextSegment(text_bytes=b"a\xff")]), "input.segments[0].text_bytes"),
    (pb.EncodeInput(segments=[pb.TextSegment(text_bytes=b"\xed\xa0\x80")]), "input.segments[0].text_bytes"),
    (text_input("a", policy=77), "input.segments[0].special_tokens"),
    (text_input("a", policy=-5), "input.segments[0].special_tokens"),
    (text_input("a", policy=LISTED), "input.segments[0].parse_ids"),
    (pb.EncodeInput(segments=[pb.TextSegment(text="a", parse_ids=[1])]), "input.segments[0].parse_ids"),
    (listed_input(1, 300), "input.segments[0].parse_ids[1]"),
    (listed_input(2**32 - 1), "input.segments[0].parse_ids[0]"),
    (text_input("a", truncation=pb.Truncation()), "input.truncation.max_tokens"),
    (text_input("a", truncation=pb.Truncation(max_tokens=5, side=9)), "input.truncation.side"),
]  # fmt: skip


@pytest.mark.parametrize(("message", "field"), BAD_INPUTS)
async def test_a_wrong_field_is_named(start_service: Any, refusal: Any, message: Any, field: str) -> None:
    running = await start_service()
    refused = await refusal(running.stub.Encode(pb.EncodeRequest(input=message)))
    assert refused.code is INVALID
    assert list(refused.violations) == [field]
    batch = await refusal(running.stub.BatchEncode(pb.BatchEncodeRequest(inputs=[text_input("a"), message])))
    assert list(batch.violations) == [field.replace("input", "inputs[1]", 1)]
    counted = await refusal(running.stub.CountTokens(pb.CountTokensRequest(inputs=[message])))
    assert list(counted.violations) == [field.replace("input", "inputs[0]", 1)]


async def test_missing_inputs_and_ids_out_of_the_vocabulary_are_named(start_service: Any, refusal: Any) -> None:
    running = await start_service()
    stub = running.stub
    cases = {
        "input": [stub.Encode(pb.EncodeRequest()), stub.Decode(pb.DecodeRequest())],
        "inputs": [
            stub.BatchEncode(pb.BatchEncodeRequest()),
            stub.CountTokens(pb.CountTokensRequest()),
            stub.BatchDecode(pb.BatchDecodeRequest()),
            stub.BatchDecode(pb.BatchDecodeRequest(inputs=[pb.DecodeInput()] * 4097)),
        ],
        "input.ids[1]": [stub.Decode(pb.DecodeRequest(input=pb.DecodeInput(ids=[5, 512])))],
        "inputs[1].ids[0]": [
            stub.BatchDecode(pb.BatchDecodeRequest(inputs=[pb.DecodeInput(), pb.DecodeInput(ids=[2**32 - 1])]))
        ],
    }
    for field, calls in cases.items():
        for call in calls:
            refused = await refusal(call)
            assert (refused.code, list(refused.violations)) == (INVALID, [field])


async def test_every_violation_of_a_request_is_reported_at_once(start_service: Any, refusal: Any) -> None:
    running = await start_service()
    message = pb.EncodeInput(
        segments=[pb.TextSegment(), pb.TextSegment(text="a", special_tokens=77)], truncation=pb.Truncation()
    )
    refused = await refusal(running.stub.Encode(pb.EncodeRequest(input=message)))
    assert list(refused.violations) == [
        "input.segments[0]",
        "input.segments[1].special_tokens",
        "input.truncation.max_tokens",
    ]


async def test_sizes_over_their_limit_are_refused_and_say_the_limit(start_service: Any, refusal: Any) -> None:
    running = await start_service(max_input_bytes=100, max_batch_inputs=3, max_decode_ids=10, max_output_bytes=12)
    stub = running.stub
    exhausted = {
        "at most 100": stub.Encode(pb.EncodeRequest(input=text_input("é" * 30, "é" * 30))),
        "at most 10 ": stub.BatchDecode(pb.BatchDecodeRequest(inputs=[pb.DecodeInput(ids=[3] * 6)] * 2)),
        "at most 12 ": stub.Decode(pb.DecodeRequest(input=pb.DecodeInput(ids=[300] * 10))),
        "pieces of": stub.Encode(pb.EncodeRequest(input=text_input("once upon a time"), include_pieces=True)),
    }
    for words, call in exhausted.items():
        refused = await refusal(call)
        assert refused.code is EXHAUSTED, words
        assert words in refused.message
    refused = await refusal(stub.BatchEncode(pb.BatchEncodeRequest(inputs=[text_input("a")] * 4)))
    assert (refused.code, list(refused.violations)) == (INVALID, ["inputs"])
    assert list((await stub.Encode(pb.EncodeRequest(input=text_input("a" * 100)))).encoding.ids)


async def test_a_message_of_100_mb_is_refused_and_the_server_goes_on(start_service: Any, refusal: Any) -> None:
    running = await start_service()
    refused = await refusal(running.stub.Encode(pb.EncodeRequest(input=text_input("x" * 100_000_000))))
    assert refused.code is EXHAUSTED
    assert (await running.stub.Encode(pb.EncodeRequest(input=text_input("a")))).encoding.ids


async def test_a_string_that_is_not_utf8_is_an_invalid_argument(start_service: Any, refusal: Any) -> None:
    running = await start_service()
    good = pb.EncodeRequest(input=text_input("zzzz")).SerializeToString()
    call = running.channel.unary_unary("/tandem.tokenizer.v1.TokenizerService/Encode")
    refused = await refusal(call(good.replace(b"zzzz", b"z\xff\xfez")))
    assert refused.code is INVALID


async def test_a_vocabulary_is_downloaded_whole_and_in_order(start_service: Any, shared_data: Path) -> None:
    running = await start_service(
        tokenizer=(f"{shared_data}/formats/llama2", f"llama3={shared_data}/formats/llama3"),
    )
    for name in ("llama2", "llama3"):
        tokenizer = (await running.service._loaded.get(name)).tokenizer
        messages = [m async for m in running.stub.DownloadVocabulary(pb.DownloadVocabularyRequest(tokenizer=name))]
        assert [message.HasField("tokenizer") for message in messages] == [True] + [False] * (len(messages) - 1)
        assert messages[0].tokenizer.fingerprint == tokenizer.fingerprint
        assert len(messages[0].tokenizer.special_tokens) == len(tokenizer.table.specials)
        pieces: list[bytes] = []
        for message in messages:
            assert message.first_id == len(pieces)
            assert len(message.pieces) == len(message.types)
            assert len(message.scores) == (len(message.pieces) if tokenizer.table.scores is not None else 0)
            pieces += message.pieces
        assert pieces == list(tokenizer.table.pieces)
        assert bytes(kind for message in messages for kind in message.types) == tokenizer.table.types


async def test_a_full_queue_refuses_with_a_time_to_come_back_and_serves_again(start_service: Any, refusal: Any) -> None:
    running = await start_service(threads=1, max_queued_jobs=2, inline_bytes=0)
    slow = pb.EncodeRequest(input=text_input("ab" * 500_000))
    outcomes = await asyncio.gather(*(running.stub.Encode(slow) for _ in range(8)), return_exceptions=True)
    refused = [each for each in outcomes if isinstance(each, grpc.aio.AioRpcError)]
    assert refused
    assert len(refused) < 8
    assert all(each.code() is EXHAUSTED for each in refused)

    async def fail() -> None:
        raise refused[0]

    opened = await refusal(fail())
    assert opened.reason == "QUEUE_FULL"
    assert opened.retry_after is not None and opened.retry_after > 0
    assert (await running.stub.Encode(slow)).encoding.total_tokens > 0


async def test_cancelled_work_leaves_the_queue(start_service: Any) -> None:
    running = await start_service(threads=1, max_queued_jobs=4, inline_bytes=0)
    slow = pb.EncodeRequest(input=text_input("ab" * 500_000))
    for _ in range(5):
        calls = [running.stub.Encode(slow) for _ in range(4)]
        await asyncio.sleep(0)
        for call in calls:
            call.cancel()
        await asyncio.gather(*calls, return_exceptions=True)
    assert (await running.stub.Encode(pb.EncodeRequest(input=text_input("a")))).encoding.ids


async def test_metrics_count_tokens_and_bytes(start_service: Any) -> None:
    running = await start_service()
    encoding = (await running.stub.Encode(pb.EncodeRequest(input=text_input("é a")))).encoding
    await running.stub.Decode(pb.DecodeRequest(input=pb.DecodeInput(ids=encoding.ids)))
    registry = running.service.metrics.registry
    labels = {"tokenizer": "small"}
    assert registry.get_sample_value("tandem_tokenizer_encoded_tokens_total", labels) == len(encoding.ids)
    assert registry.get_sample_value("tandem_tokenizer_encoded_bytes_total", labels) == 4
    assert registry.get_sample_value("tandem_tokenizer_decoded_tokens_total", labels) == len(encoding.ids)
    assert registry.get_sample_value("tandem_tokenizer_pool_queued") == 0


def test_inputs_are_counted_alike_one_by_one_and_together() -> None:
    sizes = [0, 1, 2, 4, 5, 16, 17, 1024, 1025, 1_048_576, 1_048_577]
    metrics = TokenizerMetrics()
    alone, together, whole = (metrics.named(name, EncodeCache(0)).encoded for name in ("alone", "together", "whole"))
    for size in sizes:
        alone.add_inputs(size)
        whole.add_input(3, size)
    together.add_inputs(*sizes)

    def value(name: str, tokenizer: str, **labels: str) -> float | None:
        return metrics.registry.get_sample_value(f"tandem_tokenizer_{name}", {"tokenizer": tokenizer, **labels})

    for tokenizer in ("alone", "together", "whole"):
        found = [value("input_tokens_bucket", tokenizer, le=bound) for bound in ("1.0", "4.0", "16.0", "64.0", "+Inf")]
        assert found == [2, 4, 6, 7, len(sizes)]
        assert value("input_tokens_sum", tokenizer) == sum(sizes)
    assert value("encoded_bytes_total", "whole") == 3 * len(sizes)
    assert value("encoded_tokens_total", "whole") == sum(sizes)
    assert value("encoded_tokens_total", "together") == 0


async def test_a_large_text_that_threads_share_has_the_ids_of_the_whole(start_service: Any, shared_data: Path) -> None:
    running = await start_service(tokenizer=(f"{shared_data}/formats/llama3",), threads=3)
    text = (shared_data / "corpus/botchan.txt").read_text(encoding="utf-8") + "<|eot_id|>"
    tokenizer = load_tokenizer(shared_data / "formats/llama3")
    for policy in (TEXT, PARSE):
        response = await running.stub.Encode(pb.EncodeRequest(input=text_input(text, policy=policy)))
        encoding = response.encoding
        assert list(encoding.ids) == tokenizer.encode(text, parse_special=policy == PARSE)
        assert encoding.total_tokens == len(encoding.ids)
        assert response.fingerprint == tokenizer.fingerprint
        request = pb.EncodeRequest(input=text_input(text, policy=policy), include_pieces=True)
        assert len((await running.stub.Encode(request)).encoding.pieces) == len(encoding.ids)
    cut = text_input(text, truncation=pb.Truncation(max_tokens=10))
    encoding = (await running.stub.Encode(pb.EncodeRequest(input=cut))).encoding
    assert list(encoding.ids) == tokenizer.encode(text)[:10]
    assert encoding.truncated


async def test_a_batch_that_is_checked_in_parts_names_the_right_inputs(start_service: Any, refusal: Any) -> None:
    running = await start_service()
    inputs = [pb.EncodeInput(segments=[pb.TextSegment(text=f"number {number}")]) for number in range(1200)]
    answer = await running.stub.BatchEncode(pb.BatchEncodeRequest(inputs=inputs))
    one = await running.stub.Encode(pb.EncodeRequest(input=inputs[1100]))
    assert answer.encodings[1100] == one.encoding
    for number in (3, 600, 1199):
        inputs[number] = pb.EncodeInput()
    refused = await refusal(running.stub.BatchEncode(pb.BatchEncodeRequest(inputs=inputs)))
    assert list(refused.violations) == [f"inputs[{number}].segments" for number in (3, 600, 1199)]
