"""encode, decode, count and their batches."""

from __future__ import annotations

import pytest

from tandem.client import AsyncClient, Encoding, InternalError, InvalidArgumentError, Segment
from tandem.client.text_calls import encode_messages
from tandem.client.texts import BATCH_BYTES
from tests.client.byte_tokenizer import ByteTokenizer
from tests.client.byte_vocabulary import BOS, CONTROL, CONTROL_TEXT, FINGERPRINT, ids_of_text


async def test_text_becomes_ids_and_text_again(client: AsyncClient) -> None:
    text = "ä🚀 plain"
    encoding = await client.encode(text, pieces=True)
    assert encoding.ids == [BOS, *ids_of_text(text)]
    assert encoding.fingerprint == FINGERPRINT
    assert (len(encoding), encoding.total_tokens, encoding.truncated) == (len(encoding.ids), len(encoding.ids), False)
    assert b"".join(encoding.pieces).decode() == text
    assert await client.decode(encoding) == text
    assert await client.decode([]) == ""
    assert await client.count_tokens(text) == len(encoding)


async def test_special_tokens_in_text_are_plain_unless_asked_for(client: AsyncClient) -> None:
    assert (await client.encode(CONTROL_TEXT, add_special=False)).ids == ids_of_text(CONTROL_TEXT)
    assert (await client.encode(CONTROL_TEXT, add_special=False, special_tokens="parse")).ids == [CONTROL]
    mixed = [Segment(CONTROL_TEXT, "parse"), Segment(CONTROL_TEXT)]
    assert (await client.encode(mixed, add_special=False)).ids == [CONTROL, *ids_of_text(CONTROL_TEXT)]


async def test_truncation_says_what_was_cut(client: AsyncClient) -> None:
    encoding = await client.encode("0123456789", truncate_to=4)
    assert (len(encoding.ids), encoding.truncated, encoding.total_tokens) == (4, True, 11)


async def test_batches_keep_their_order_over_any_number_of_messages(
    client: AsyncClient, tokenizer: ByteTokenizer
) -> None:
    texts = [str(number) for number in range(9000)]
    encodings = await client.encode_batch(texts, add_special=False)
    assert [encoding.ids for encoding in encodings] == [ids_of_text(text) for text in texts]
    assert len(tokenizer.metadata) == 3, "4,096 inputs fit one message"
    assert await client.count_tokens_batch(texts) == [len(text) + 1 for text in texts]
    assert await client.decode_batch([encoding.ids for encoding in encodings]) == texts
    assert await client.encode_batch([]) == await client.decode_batch([]) == await client.count_tokens_batch([]) == []


async def test_a_batch_of_pairs_has_a_second_text_for_each(client: AsyncClient) -> None:
    messages = encode_messages(["a", "b"], {"pairs": ["c", "dd"]})
    assert [[each.text for each in (*one.segments, *one.pair)] for one in messages] == [["a", "c"], ["b", "dd"]]
    with pytest.raises(InvalidArgumentError, match=r"pairs.*must have a second text for each of 2 texts, but has 1"):
        await client.encode_batch(["a", "b"], pairs=["c"])


async def test_large_batches_are_split_by_size(client: AsyncClient, tokenizer: ByteTokenizer) -> None:
    counts = await client.count_tokens_batch(["x" * (BATCH_BYTES // 2 - 100)] * 3, add_special=False)
    assert counts == [BATCH_BYTES // 2 - 100] * 3
    assert len(tokenizer.metadata) == 2


async def test_decoding_can_give_the_exact_bytes(client: AsyncClient) -> None:
    ids = [3 + 0xE2, 3 + 0x82]  # the first two bytes of the euro sign
    assert await client.decode(ids) == "\ufffd"
    assert await client.decode_bytes(ids) == b"\xe2\x82"
    assert await client.decode_bytes(Encoding(ids_of_text("ok"), "")) == b"ok"


async def test_tokenizers_are_described(client: AsyncClient) -> None:
    (listed,) = await client.list_tokenizers()
    described = await client.get_tokenizer()
    assert (listed.name, described.vocabulary_type, described.bos_id) == ("bytes", "spm", BOS)
    assert described.special_tokens[0].text == CONTROL_TEXT
    assert described.special_tokens[0].control


async def test_a_vocabulary_comes_whole_or_not_at_all(client: AsyncClient, tokenizer: ByteTokenizer) -> None:
    vocabulary = await client.get_vocabulary()
    assert vocabulary.tokenizer.name == "bytes"
    assert vocabulary.pieces[CONTROL:] == [CONTROL_TEXT.encode(), *(bytes([byte]) for byte in range(256))]
    assert (vocabulary.types[CONTROL], set(vocabulary.types[CONTROL + 1 :])) == ("control", {"byte"})
    assert vocabulary.scores == []
    for sent in (0, 100, 258):
        tokenizer.vocabulary_sent = sent
        with pytest.raises(InternalError) as caught:
            await client.get_vocabulary()
        assert caught.value.reason == "STREAM_INCOMPLETE"


async def test_calls_carry_request_id_and_metadata(client: AsyncClient, tokenizer: ByteTokenizer) -> None:
    await client.encode("x", request_id="r", metadata={"traceparent": "00-a-b-01"})
    await client.encode("x")
    assert tokenizer.metadata[0]["x-request-id"] == "r"
    assert tokenizer.metadata[0]["traceparent"] == "00-a-b-01"
    assert len(tokenizer.metadata[1]["x-request-id"]) == 32


async def test_models_are_described(client: AsyncClient) -> None:
    ((address, model),) = (await client.get_models()).items()
    assert address.startswith("127.0.0.1:")
    assert model is not None
    assert (model.name, model.eos_ids, model.context_length) == ("counting", [1], 4096)
