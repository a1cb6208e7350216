"""Segments, offsets, truncation and fingerprints of the tokenizer itself."""

from __future__ import annotations

import dataclasses
from array import array
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandem.tokenizer.arrays import ids_of
from tandem.tokenizer.config import TokenizerConfig
from tandem.tokenizer.encoding import Encoding, Policy, Segment, SpecialTokenInText, TokenIdError, TruncationError
from tandem.tokenizer.formats import load_tokenizer
from tandem.tokenizer.offsets import to_code_points
from tandem.tokenizer.tokenizer import Tokenizer
from tandem.tokenizer.v1 import tokenizer_pb2 as pb
from tandem.tokenizer.vocabularies.bpe.vocabulary import BpeVocabulary
from tandem.tokenizer.vocabulary import LoneSurrogateError, SpecialToken, TokenTable, TokenType

TEXT = st.text(
    alphabet=st.one_of(st.sampled_from(" \n\tabcé▁<s>/👩‍🚀龘"), st.characters(exclude_categories=["Cs"])), max_size=40
)


@pytest.fixture(scope="module", params=["formats/llama2", "formats/llama3", "models/stories260K/meta"])
def tokenizer(request: pytest.FixtureRequest, shared_data: Path) -> Tokenizer:
    return load_tokenizer(shared_data / request.param)


@given(lists=st.lists(st.lists(st.integers(-4, 600) | st.integers(-4, -1), max_size=5), max_size=20), data=st.data())
def test_many_lists_decode_as_each_alone(tokenizer: Tokenizer, lists: list[list[int]], data: st.DataObject) -> None:
    config = dataclasses.replace(tokenizer.config, adds_eos=tokenizer.config.eos_id is not None)
    adding = Tokenizer(tokenizer.vocabulary, tokenizer.table, config)
    spaced = next(index for index, piece in enumerate(adding.table.pieces) if piece.startswith(b" "))
    marks = [spaced, config.bos_id, config.eos_id, 0]
    lists = [[marks[index + 4] if index < 0 else index % adding.vocabulary_size for index in ids] for ids in lists]
    wanted = [data.draw(st.booleans()) for _ in range(3)]
    edges = np.cumsum([0, *map(len, lists)])
    fields = adding.decode_fields(ids_of([index for ids in lists for index in ids]), edges, *wanted)
    found = pb.BatchDecodeResponse.FromString(b"".join(fields)).decoded
    assert [each.raw or each.text.encode() for each in found] == [adding.decode_bytes(ids, *wanted) for ids in lists]


@pytest.fixture(scope="module")
def small(shared_data: Path) -> Tokenizer:
    return load_tokenizer(shared_data / "models/stories260K/meta")


@given(text=TEXT)
def test_decoding_gives_back_what_was_encoded(tokenizer: Tokenizer, text: str) -> None:
    """But for U+2581, which SentencePiece reads as a space."""
    ids = tokenizer.encode(text, add_special=False)
    expected = text.replace("▁", " ") if tokenizer.config.adds_space_prefix else text
    assert tokenizer.decode(ids) == expected


@given(texts=st.lists(TEXT, min_size=1, max_size=3))
def test_offsets_are_where_the_pieces_lie_in_the_joined_text(tokenizer: Tokenizer, texts: list[str]) -> None:
    encoding = tokenizer.encode_segments([Segment(text) for text in texts], with_offsets=True)
    assert encoding.byte_offsets is not None and encoding.code_point_offsets is not None
    joined = "".join(texts).encode()
    plain = "".join(texts).replace("▁", " ").encode() if tokenizer.config.adds_space_prefix else joined
    assert len(encoding.byte_offsets) == len(encoding.ids) == len(encoding.code_point_offsets)
    assert encoding.byte_offsets == sorted(encoding.byte_offsets)
    for number, (index, start) in enumerate(zip(encoding.ids, encoding.byte_offsets, strict=True)):
        piece = tokenizer.table.pieces[index]
        if tokenizer.is_control(index):
            continue
        if len(plain) == len(joined):
            assert joined.startswith(piece, start) or joined.startswith(piece.removeprefix(b" "), start), number
        before = joined[:start].decode("utf-8", "ignore")
        inside = start < len(joined) and joined[start] & 0xC0 == 0x80
        assert encoding.code_point_offsets[number] == len(before), inside


@given(texts=st.lists(TEXT, min_size=2, max_size=4))
def test_segments_are_encoded_apart_and_only_the_first_text_gets_a_prefix(
    tokenizer: Tokenizer, texts: list[str]
) -> None:
    together = tokenizer.encode_segments([Segment(text) for text in texts], add_special=False).ids
    assert together == [
        index for number, text in enumerate(texts) for index in apart(tokenizer, text, any(texts[:number]))
    ]


def apart(tokenizer: Tokenizer, text: str, something_before: bool) -> list[int]:
    if not text:
        return []
    if something_before or not tokenizer.config.adds_space_prefix:
        return tokenizer.vocabulary.encode(text).tolist()
    return tokenizer.vocabulary.encode(" " + text).tolist()


@given(parts=st.lists(st.one_of(TEXT, st.sampled_from(["<s>", "</s>"])), max_size=6))
def test_borders_at_special_tokens_change_nothing(tokenizer: Tokenizer, parts: list[str]) -> None:
    """Splitting a text into segments in front of and behind its special tokens gives the same ids."""
    bos = tokenizer.table.pieces[tokenizer.config.bos_id or 0].decode()
    segments: list[Segment] = []
    for number, part in enumerate(parts):
        segments += [Segment(bos, Policy.PARSE)] if number else []
        segments.append(Segment(part, Policy.PARSE))
    assert tokenizer.encode_segments(segments).ids == tokenizer.encode(bos.join(parts), parse_special=True)


@given(text=TEXT)
def test_text_policy_never_gives_a_control_token(tokenizer: Tokenizer, text: str) -> None:
    for control in ("", *(token.text for token in tokenizer.table.specials[:8])):
        ids = tokenizer.encode(text + control + text, add_special=False)
        assert not any(tokenizer.table.types[index] == TokenType.CONTROL for index in ids)


def test_listed_tokens_are_parsed_and_no_others(small: Tokenizer) -> None:
    ids = small.encode_segments([Segment("<s>x</s>", Policy.PARSE_LISTED, frozenset({2}))], add_special=False).ids
    assert ids[-1] == 2
    assert 1 not in ids


def test_reject_reports_the_first_token_and_its_place(small: Tokenizer) -> None:
    with pytest.raises(SpecialTokenInText) as caught:
        small.encode_segments([Segment("fine"), Segment("é</s><s>", Policy.REJECT)])
    assert (caught.value.segment, caught.value.token.id, caught.value.position) == (1, 2, 1)


def test_lone_surrogates_are_refused(tokenizer: Tokenizer) -> None:
    with pytest.raises(LoneSurrogateError, match="code point 1"):
        tokenizer.encode("a\ud800b")


def test_ids_out_of_the_vocabulary_are_refused(small: Tokenizer) -> None:
    for bad in (-1, 512):
        with pytest.raises(TokenIdError):
            small.decode([5, bad])
        with pytest.raises(TokenIdError):
            small.stream(context_ids=[bad])


@given(
    count=st.integers(0, 12),
    front=st.integers(0, 2),
    back=st.integers(0, 2),
    limit=st.integers(1, 20),
    left=st.booleans(),
)
def test_truncation_cuts_one_end_of_the_text_and_never_added_tokens(
    count: int, front: int, back: int, limit: int, left: bool
) -> None:
    total = front + count + back
    ids = list(range(total))
    encoding = Encoding(ids_of(ids), front, back, ids_of(ids), ids_of(ids))
    if limit < front + back:
        with pytest.raises(TruncationError):
            encoding.truncate(limit, left)
        return
    encoding.truncate(limit, left)
    kept = min(count, limit - front - back)
    middle = ids[front : front + count]
    expected = ids[:front] + (middle[count - kept :] if left else middle[:kept]) + ids[front + count :]
    assert encoding.ids == encoding.byte_offsets == encoding.code_point_offsets == expected
    assert (encoding.truncated, encoding.total_tokens) == (len(expected) < total, total)


@given(st.text(max_size=30), st.lists(st.integers(0, 200), max_size=10))
def test_code_points_of_byte_offsets(text: str, offsets: list[int]) -> None:
    data = text.encode("utf-8", "replace")
    places = sorted(min(offset, len(data)) for offset in offsets)
    starts = [index for index, byte in enumerate(data) if byte & 0xC0 != 0x80]
    for place, found in zip(places, to_code_points(data, ids_of(places)), strict=True):
        begun = sum(start <= place for start in starts) - 1
        assert found == (len(starts) if place == len(data) else begun)


def toy(**changes: object) -> Tokenizer:
    """A byte-level tokenizer of 258 ids; `changes` replace what defines it."""
    parts: dict[str, object] = {
        "ranked": [(bytes([byte]), byte) for byte in range(256)] + [(b"ab", 256)],
        "patterns": (r"\S+|\s+",),
        "specials": (SpecialToken(257, "<e>", TokenType.CONTROL),),
        "scores": None,
        "config": {},
    }
    parts |= changes
    pieces = [piece for piece, _ in parts["ranked"]] + [b"<e>"]  # type: ignore[attr-defined]
    types = bytes([TokenType.NORMAL] * 257 + [parts["specials"][0].type])  # type: ignore[index]
    config = TokenizerConfig(**{"source": "toy", "bos_id": 257, "adds_bos": True} | parts["config"])  # type: ignore[operator]
    table = TokenTable(pieces, types, parts["specials"], parts["scores"])  # type: ignore[arg-type]
    return Tokenizer(BpeVocabulary(parts["ranked"], parts["patterns"]), table, config)  # type: ignore[arg-type]


def test_everything_that_changes_behaviour_changes_the_fingerprint() -> None:
    plain = toy()
    ranked = [(bytes([byte]), byte) for byte in range(256)]
    changed = [
        toy(patterns=(r"\S|\s",)),
        toy(ranked=[*ranked, (b"ba", 256)]),
        toy(ranked=[*ranked[:65], (b"ab", 256), *ranked[65:]]),
        toy(scores=array("f", [1.0] * 258)),
        toy(specials=(SpecialToken(257, "<e>", TokenType.USER_DEFINED),)),
        toy(specials=(SpecialToken(257, "<e>", TokenType.CONTROL, rstrip=True),)),
        *(
            toy(config=config)
            for config in (
                {"bos_id": 5},
                {"eos_id": 257},
                {"adds_bos": False},
                {"eos_id": 257, "adds_eos": True},
                {"adds_space_prefix": True},
                {"end_of_generation_ids": frozenset({3})},
                {"pad_id": 1},
                {"unk_id": 1},
            )
        ),
    ]
    fingerprints = [plain.fingerprint, *(each.fingerprint for each in changed)]
    assert len(set(fingerprints)) == len(fingerprints)


def test_what_does_not_change_behaviour_does_not_change_the_fingerprint() -> None:
    assert toy().fingerprint == toy(config={"source": "elsewhere", "chat_template": "x"}).fingerprint


def test_a_fingerprint_is_the_same_in_every_process_and_for_ever(small: Tokenizer) -> None:
    """A stored fingerprint of a client must not become invalid by a new version of this code."""
    assert small.fingerprint == "166d13fa913bdd3ea155d17d99949a50060813f2c103c10421f5a91b74859e9d"


def test_a_config_that_cannot_work_is_refused() -> None:
    for config in ({"bos_id": 258}, {"bos_id": None}, {"adds_eos": True}):
        with pytest.raises(ValueError, match="token"):
            toy(config=config)
    with pytest.raises(ValueError, match="one entry"):
        dataclasses.replace(toy().table, types=b"\1")
