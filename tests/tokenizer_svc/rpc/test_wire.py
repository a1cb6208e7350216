"""Messages that are written by hand, against protobuf's own parser."""

from __future__ import annotations

from unittest import mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandem.tokenizer import wire
from tandem.tokenizer.arrays import Ids, ids_of
from tandem.tokenizer.v1 import tokenizer_pb2 as pb
from tandem.tokenizer.wire import PIECES, decoded_field, encoding_field, piece_fields, plain_encodings

NUMBERS = st.integers(0, 31).flatmap(lambda bits: st.lists(st.integers(0, 2 << bits).map(lambda n: n % 2**32)))
ARRAYS = NUMBERS.map(ids_of)


@given(st.lists(st.binary(max_size=300) | st.text().map(str.encode)))
def test_texts_are_written_as_protobuf_reads_them(texts: list[bytes]) -> None:
    found = pb.BatchDecodeResponse.FromString(b"".join(map(decoded_field, texts))).decoded
    assert [(each.text, each.raw) for each in found] == [decoded(text) for text in texts]


def decoded(text: bytes) -> tuple[str, bytes]:
    shown = text.decode("utf-8", "replace")
    return shown, b"" if shown.encode() == text else text


@pytest.mark.parametrize("few", [-1, 256])
@given(ARRAYS, st.lists(st.none() | ARRAYS, max_size=5), st.lists(st.binary(max_size=300)), st.booleans())
def test_an_encoding_is_written_as_protobuf_reads_it(
    few: int, ids: Ids, numbers: list[Ids | None], pieces: list[bytes], truncated: bool
) -> None:
    names = ("byte_offsets", "code_point_offsets", "byte_ends", "code_point_ends", "type_ids")
    fields = b"".join(piece_fields(pieces, PIECES))
    with mock.patch.object(wire, "_FEW", few):
        data = b"".join(encoding_field(ids, len(ids) + truncated, numbers, fields, truncated))
    assert pb.EncodeResponse.FromString(data).encoding == pb.Encoding(
        ids=ids.tolist(),
        pieces=pieces,
        truncated=truncated,
        total_tokens=len(ids) + truncated,
        **{name: each.tolist() for name, each in zip(names, numbers, strict=False) if each is not None},
    )


@given(st.lists(ARRAYS), ARRAYS, ARRAYS)
def test_many_encodings_are_written_as_protobuf_reads_them(lists: list[Ids], front: Ids, back: Ids) -> None:
    whole = [[*front.tolist(), *ids.tolist(), *back.tolist()] for ids in lists]
    expected = [pb.Encoding(ids=ids, total_tokens=len(ids)) for ids in whole]
    written = b"".join(plain_encodings(lists, front, back))
    assert list(pb.BatchEncodeResponse.FromString(written).encodings) == expected
