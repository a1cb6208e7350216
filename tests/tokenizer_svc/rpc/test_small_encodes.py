"""A small request is answered from bytes to bytes as protobuf and the tokenizer answer it, or not at all."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest
from google.protobuf.message import DecodeError
from hypothesis import example, given
from hypothesis import strategies as st

from tandem.tokenizer.config import TokenizerConfig
from tandem.tokenizer.formats import load_tokenizer
from tandem.tokenizer.native.library import library
from tandem.tokenizer.rpc.small_encodes import LONGEST, SmallCounts, SmallEncodes, small_encodes
from tandem.tokenizer.tokenizer import Tokenizer
from tandem.tokenizer.v1 import tokenizer_pb2 as pb
from tandem.tokenizer.vocabularies.bpe.vocabulary import BpeVocabulary
from tandem.tokenizer.vocabularies.rwkv import RwkvVocabulary
from tandem.tokenizer.vocabulary import SpecialToken, TokenTable, TokenType
from tandem.tokenizer.wire import varint

BOUNDS = (1, 4, 16)
BYTES = [bytes([byte]) for byte in range(256)]
TEXTS = st.text(max_size=40) | st.text("ab <th>é龘\U0001f600", max_size=40) | st.sampled_from(["<think>", "a<e>b", "<"])
PLAIN = (pb.SPECIAL_TOKEN_POLICY_UNSPECIFIED, pb.SPECIAL_TOKEN_POLICY_TEXT)


@dataclass
class Served:
    """A tokenizer, and what answers small requests to it."""

    tokenizer: Tokenizer
    small: SmallEncodes

    def expected(self, request: pb.EncodeRequest) -> bytes | None:
        """The answer that protobuf writes to a request for the ids of one plain text; None to others."""
        message = request.input
        if request.tokenizer or request.include_offsets or request.include_pieces or len(message.segments) != 1:
            return None
        segment = message.segments[0]
        if message.pair or message.HasField("truncation") or segment.special_tokens not in PLAIN or segment.parse_ids:
            return None
        if not segment.text:
            return None
        add_special = message.add_special or not message.HasField("add_special")
        ids = self.tokenizer.encode(segment.text, add_special)
        encoding = pb.Encoding(ids=ids, total_tokens=len(ids))
        return pb.EncodeResponse(encoding=encoding, fingerprint=self.tokenizer.fingerprint).SerializeToString()


def byte_level(pattern: str = r"\S+|\s+") -> Tokenizer:
    """Of a few tokens, one of which is found in text."""
    specials = (SpecialToken(258, "<e>", TokenType.CONTROL), SpecialToken(259, "<think>", TokenType.USER_DEFINED))
    ranked = [*((byte, index) for index, byte in enumerate(BYTES)), (b"ab", 256), (b"th", 257)]
    table = TokenTable([*(piece for piece, _ in ranked), b"<e>", b"<think>"], bytes([1] * 258 + [3, 4]), specials)
    config = TokenizerConfig(source="toy", around=((258, 3), (258, 258)))
    return Tokenizer(BpeVocabulary(ranked, (pattern,)), table, config)


def longest_match() -> Tokenizer:
    """One that drops most bytes: some texts have no ids."""
    tokens = [b"a", b"ab", b"th", b"<", "é".encode()]
    table = TokenTable(tokens, bytes([1] * len(tokens)), ())
    vocabulary = RwkvVocabulary([(token, index) for index, token in enumerate(tokens)], None)
    return Tokenizer(vocabulary, table, TokenizerConfig(source="toy"))


@pytest.fixture(scope="module", params=["llama3", "byte level", "longest match"])
def served(request: pytest.FixtureRequest, shared_data: Path) -> Served:
    if library() is None:
        pytest.skip("no C compiler")
    made = {"byte level": byte_level, "longest match": longest_match}.get(request.param)
    tokenizer = load_tokenizer(shared_data / "formats/llama3") if made is None else made()
    fingerprint = pb.EncodeResponse(fingerprint=tokenizer.fingerprint).SerializeToString()
    small = small_encodes(tokenizer, fingerprint, LONGEST, SmallCounts(BOUNDS))
    assert small is not None
    return Served(tokenizer, small)


def asked(text: str, **fields: object) -> pb.EncodeRequest:
    return pb.EncodeRequest(input=pb.EncodeInput(segments=[pb.TextSegment(text=text)], **fields))  # type: ignore[arg-type]


@given(
    text=TEXTS.filter(bool),
    add_special=st.sampled_from([None, True, False]),
    policy=st.sampled_from(PLAIN),
)
def test_a_plain_text_has_the_answer_that_protobuf_writes(
    served: Served, text: str, add_special: bool | None, policy: pb.SpecialTokenPolicy.ValueType
) -> None:
    segment = pb.TextSegment(text=text, special_tokens=policy)
    request = pb.EncodeRequest(input=pb.EncodeInput(segments=[segment], add_special=add_special))
    expected = served.expected(request)  # from here on the text's characters are known
    answer = served.small.answer(request.SerializeToString(), 0)
    finds_tokens = served.tokenizer.vocabulary_size == 260 and "<" in text
    assert answer == (None if finds_tokens else expected)
    if answer is not None:
        assert served.small.tokens == pb.EncodeResponse.FromString(answer).encoding.total_tokens


def test_texts_up_to_the_limit_are_answered_and_none_beyond_it(served: Served) -> None:
    for text in ("a" * LONGEST, "é" * (LONGEST // 2), "ab " * (LONGEST // 3)):
        request = asked(text)
        assert served.small.answer(request.SerializeToString(), 0) == served.expected(request)
        assert served.small.answer(asked(text + "ab").SerializeToString(), 0) is None


def test_texts_and_tokens_are_counted(shared_data: Path) -> None:
    if library() is None:
        pytest.skip("no C compiler")
    counts = SmallCounts(BOUNDS)
    small = small_encodes(longest_match(), b"", LONGEST, counts)
    assert small is not None
    sizes = [1, 2, 4, 5, 16, 17, 1000, 4]
    for size in sizes:
        assert small.answer(asked("a" * size).SerializeToString(), 0) is not None
    assert small.answer(asked("zz").SerializeToString(), 0) is not None, "a text without ids"
    assert small.answer(asked("").SerializeToString(), 0) is None
    assert counts.read() == (sum(sizes) + 2, sum(sizes), [2, 3, 2, 2])


def test_what_the_encoder_has_not_met_is_left_to_those_who_learn_it() -> None:
    if library() is None:
        pytest.skip("no C compiler")
    tokenizer = byte_level(r"[^ z]+|[ z]+")  # what is known of characters is kept by pattern
    small = small_encodes(tokenizer, b"", LONGEST, SmallCounts(BOUNDS))
    assert small is not None
    request = asked("\U00010348").SerializeToString()
    assert small.answer(request, 0) is None
    tokenizer.encode("\U00010348")
    assert small.answer(request, 0) is not None


def test_only_text_that_reaches_a_compiled_encoder_as_it_is_is_answered(shared_data: Path) -> None:
    for name in ("llama2", "t5-small", "sentencepiece"):
        path = shared_data / "formats" / name
        tokenizer = load_tokenizer(next(path.glob("*.model"), path))
        assert small_encodes(tokenizer, b"", LONGEST, SmallCounts(BOUNDS)) is None


# --- on the wire


def field(number: int, value: bytes | int) -> bytes:
    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    return varint(number << 3 | 2) + varint(len(value)) + value


NUMBERS = st.sampled_from([0, 1, 2, 3, 5, 127, 128, 300, 2**21, 2**32, 2**64 - 1])
STRINGS = TEXTS.map(str.encode) | st.binary(max_size=20) | st.sampled_from([b"\xed\xa0\x80", b"\xc0\x80", b"a\0b"])


def message(known: st.SearchStrategy[bytes]) -> st.SearchStrategy[bytes]:
    """Fields, of which most are known ones; some are of other types, or of numbers that nobody knows."""
    other = st.builds(field, st.integers(1, 20), NUMBERS | st.binary(max_size=10))
    return st.lists(known | known | known | other, max_size=4).map(b"".join)


SEGMENT = message(st.builds(field, st.just(1), STRINGS) | st.builds(field, st.just(3), NUMBERS))
ONE_SEGMENT = st.builds(field, st.just(1), st.builds(field, st.just(1), STRINGS) | SEGMENT)
INPUT = ONE_SEGMENT | message(ONE_SEGMENT | st.builds(field, st.just(2), NUMBERS))
REQUEST = st.builds(field, st.just(2), INPUT) | message(
    st.builds(field, st.just(2), INPUT) | st.builds(field, st.sampled_from([3, 4]), NUMBERS)
)


@st.composite
def hostile(draw: st.DrawFn) -> bytes:
    """Requests as clients may write them, and some with bytes that are wrong, missing or too many."""
    data = bytearray(draw(REQUEST))
    for _ in range(draw(st.sampled_from([0, 0, 1, 2]))):
        at = draw(st.integers(0, len(data)))
        match draw(st.integers(0, 3)):
            case 0:
                del data[at:]
            case 1:
                data[at:at] = draw(st.binary(min_size=1, max_size=3))
            case 2:
                data[at : at + 1] = draw(st.binary(min_size=1, max_size=1))
            case 3:
                del data[at : at + 1]
    return bytes(data)


@given(hostile())
@example(b"")
@example(b"\x12")
@example(b"\x12\x80\x80\x80\x80\x80\x80\x80\x80\x80\x01")
@example(b"\x12\x85\x00\x0a\x03\x0a\x01a")  # lengths may be longer than they need be
@example(b"\x12\x05\x0a\x03\x0a\x01\xff")
@example(b"\x12\x05\x0a\x03\x0a\x01a\x12\x05\x0a\x03\x0a\x01b")  # one input, of two segments
@example(b"\x12\x08\x0a\x06\x0a\x01a\x0a\x01b")  # the last text counts
@example(b"\x12\x08\x0a\x06\x0a\x01a\x12\x01b")
@example(b"\x12\x07\x0a\x05\x0a\x01a\x18\x05")
def test_whatever_the_bytes_are_the_answer_is_that_of_protobuf_or_none(served: Served, data: bytes) -> None:
    answer = served.small.answer(data, 0)
    try:
        request = pb.EncodeRequest.FromString(data)
    except DecodeError:
        assert answer is None
        return
    assert answer is None or answer == served.expected(request)


@given(st.binary(max_size=8), hostile(), st.integers(0, 300))
def test_nothing_is_read_before_the_beginning_or_behind_the_end(
    served: Served, name: bytes, data: bytes, begin: int
) -> None:
    assert served.small.answer(name + data, len(name)) == served.small.answer(data, 0)
    if begin >= len(data):
        assert served.small.answer(data, begin) is None
