"""Writes messages with many numbers or texts in protobuf's wire format, without a Python object for each."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from google.protobuf.message import Message
from numpy.typing import NDArray

from tandem.tokenizer.arrays import NONE, Ids
from tandem.tokenizer.v1 import tokenizer_pb2 as pb

_FEW = 256  # ids for which protobuf is quicker


def varint(value: int) -> bytes:
    """Returns one number as a varint."""
    parts = bytearray()
    while value > 0x7F:
        parts.append(value & 0x7F | 0x80)
        value >>= 7
    parts.append(value)
    return bytes(parts)


_SMALL = [varint(value) for value in range(4096)]


def _tag(message: type[Message], name: str) -> bytes:
    """Returns the tag of a field: its number, and whether its value is a number or has a length."""
    field = message.DESCRIPTOR.fields_by_name[name]
    is_number = field.cpp_type in (field.CPPTYPE_UINT32, field.CPPTYPE_BOOL) and not field.is_repeated
    return varint(field.number << 3 | (0 if is_number else 2))


_NUMBERS = ("byte_offsets", "code_point_offsets", "byte_ends", "code_point_ends", "type_ids")
_IDS, *_TAGS = (_tag(pb.Encoding, name) for name in ("ids", *_NUMBERS))
PIECES, _TRUNCATED, _TOTAL_TOKENS = (_tag(pb.Encoding, name) for name in ("pieces", "truncated", "total_tokens"))
_ENCODING = _tag(pb.BatchEncodeResponse, "encodings")
DECODED, TEXT, _RAW = _tag(pb.BatchDecodeResponse, "decoded"), _tag(pb.DecodedText, "text"), _tag(pb.DecodedText, "raw")
CHAT_PIECES = _tag(pb.EncodeChatResponse, "pieces")
_CHAT = [_tag(pb.EncodeChatResponse, name) for name in ("ids", "rendered_text", "content_ranges", "fingerprint")]
assert _tag(pb.EncodeResponse, "encoding") == _ENCODING and _tag(pb.DecodeResponse, "decoded") == DECODED


def _varint(value: int) -> bytes:
    return _SMALL[value] if value < 4096 else varint(value)


def packed(values: Ids) -> bytes:
    """Returns the varints of all values joined."""
    return _varints(values)[0].tobytes()


def _varints(values: Ids) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """Returns the bytes of all varints, and how many each value has."""
    counts = np.ones(len(values), np.uint8)
    largest = int(values.max()) if len(values) else 0
    if largest < 0x80:
        return values.astype(np.uint8), counts
    width = (largest.bit_length() + 6) // 7
    more = [(values >= 1 << 7 * place).view(np.uint8) for place in range(1, width)]  # whether byte `place` is there
    for there in more:
        counts += there
    ends = np.cumsum(counts, dtype=np.int64)
    starts = ends - counts
    data = np.empty(ends[-1] + width - 1, np.uint8)
    # The last bytes first: what a shorter value writes behind its end, those to whom the place belongs write over.
    for place in range(width - 1, -1, -1):
        byte = (values >> np.uint32(7 * place)).astype(np.uint8) & np.uint8(0x7F)
        data[starts + place] = byte | more[place] << np.uint8(7) if place < width - 1 else byte
    return data[: ends[-1]], counts


def piece_fields(pieces: Sequence[bytes], tag: bytes) -> list[bytes]:
    """Returns each piece as an element of the field that has this tag."""
    return [b"".join((tag, _varint(len(piece)), piece)) for piece in pieces]


def decoded_field(text: bytes) -> bytes:
    """Returns the field `decoded` of a DecodeResponse, or one of a BatchDecodeResponse."""
    try:
        body, rest = text, b""
        text.decode()
    except UnicodeDecodeError:
        body, rest = text.decode("utf-8", "replace").encode(), _RAW + varint(len(text)) + text
    message = TEXT + varint(len(body)) + body + rest if body else rest
    return DECODED + varint(len(message)) + message


def encoding_field(
    ids: Ids,
    total_tokens: int,
    numbers: Sequence[Ids | None] = (),
    pieces: bytes = b"",
    truncated: bool = False,
) -> list[bytes]:
    """Returns the field `encoding` of an EncodeResponse, or one of the `encodings` of a BatchEncodeResponse, in parts.
    `numbers` are, in this order, byte_offsets, code_point_offsets, byte_ends, code_point_ends and type_ids, as far as
    there are any; `pieces` are fields already."""
    if len(ids) <= _FEW and not pieces:
        message = pb.Encoding(
            ids=ids.tolist(),
            truncated=truncated,
            total_tokens=total_tokens,
            **{name: each.tolist() for name, each in zip(_NUMBERS, numbers, strict=False) if each is not None},
        ).SerializeToString()
        return [_ENCODING, _varint(len(message)), message]
    body: list[bytes] = []
    for tag, values in ((_IDS, ids), *zip(_TAGS, numbers, strict=False)):
        if values is not None and len(values):
            data = packed(values)
            body += (tag, _varint(len(data)), data)
    if pieces:
        body.append(pieces)
    if truncated:
        body.append(_TRUNCATED + b"\x01")
    if total_tokens:
        body += (_TOTAL_TOKENS, _varint(total_tokens))
    return [_ENCODING, _varint(sum(map(len, body))), *body]


def chat_response(ids: Ids, rendered_text: str, content_ranges: Ids, fingerprint: str, pieces: bytes) -> bytes:
    """Returns an EncodeChatResponse. `pieces` are fields already."""
    parts: list[bytes] = []
    values = packed(ids), rendered_text.encode(), packed(content_ranges), fingerprint.encode()
    for tag, value in zip(_CHAT, values, strict=True):
        if value:
            parts += (tag, _varint(len(value)), value)
    return b"".join([*parts, pieces])


def plain_encodings(lists: Sequence[Ids], front: Ids = NONE, back: Ids = NONE) -> list[bytes]:
    """Returns the `encodings` of a BatchEncodeResponse that have nothing but ids and their number, in parts, by one
    pass over the ids. `front` and `back` are put around each list."""
    before, behind = packed(front), packed(back)
    around, added = len(before) + len(behind), len(front) + len(back)
    data, counts = _varints(np.concatenate(lists) if lists else NONE)
    whole = data.tobytes()
    edges = np.zeros(len(counts) + 1, np.int64)
    np.cumsum(counts, out=edges[1:])
    lengths = list(map(len, lists))
    ends: list[int] = edges[np.cumsum(lengths, dtype=np.int64)].tolist()
    parts: list[bytes] = []
    at = 0
    for length, end in zip(lengths, ends, strict=True):
        width = end - at + around
        if not width:
            parts.append(_ENCODING + b"\x00")
            continue
        size, total = _varint(width), _varint(length + added)
        rest = _varint(width + len(size) + len(total) + 2)
        parts += (_ENCODING, rest, _IDS, size, before, whole[at:end], behind, _TOTAL_TOKENS, total)
        at = end
    return parts
