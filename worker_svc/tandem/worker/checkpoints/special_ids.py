"""Reads the ids where sequences begin and end from the `tokenizer.model` of a Meta folder.

The worker never sees text, but it must stop at the end of an answer, and Meta's `params.json` does not name the ids.
Two kinds of file bear that name: a SentencePiece model (Llama 1 and 2) states them, and a table of byte-pair ranks
(Llama 3) is followed by special tokens in a fixed order.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from tandem.worker.checkpoints.checkpoint import CheckpointError

MAX_TOKENIZER_BYTES = 64 << 20

# Places of Llama 3's special tokens behind the last rank.
_BEGIN_OF_TEXT, _END_OF_TEXT, _END_OF_MESSAGE, _END_OF_TURN = 0, 1, 8, 9

# sentencepiece_model.proto: ModelProto.trainer_spec, and its bos_id and eos_id with their defaults.
_TRAINER_SPEC, _BOS_ID, _EOS_ID = 2, 41, 42
_DEFAULT_BOS, _DEFAULT_EOS = 1, 2


def read_special_ids(file: Path, vocab_size: int) -> tuple[int | None, tuple[int, ...]]:
    """Returns the beginning-of-sequence id and the ids that end an answer; None and () without a file."""
    try:
        if file.stat().st_size > MAX_TOKENIZER_BYTES:
            raise CheckpointError(f"{file}: larger than {MAX_TOKENIZER_BYTES >> 20} MiB, which no tokenizer is")
        content = file.read_bytes()
    except FileNotFoundError:
        return None, ()
    except OSError as error:
        raise CheckpointError(f"{file}: cannot be read: {error.strerror}") from error
    try:
        bos, ends = _from_sentencepiece(content) if content.startswith(b"\n") else _from_ranks(content)
    except (ValueError, IndexError):
        raise CheckpointError(f"{file}: neither a SentencePiece model nor a table of byte-pair ranks") from None
    for token_id in (bos, *ends):
        if token_id >= vocab_size:
            raise CheckpointError(
                f"{file}: has the special id {token_id}, but the model's vocabulary ends at {vocab_size}"
            )
    return (bos if bos >= 0 else None), tuple(token_id for token_id in ends if token_id >= 0)


def _from_ranks(content: bytes) -> tuple[int, tuple[int, ...]]:
    ranks = -1
    for line in content.splitlines():
        if line:
            _, rank = line.split(b" ")
            ranks = max(ranks, int(rank))
    if ranks < 0:
        raise ValueError
    first = ranks + 1
    return first + _BEGIN_OF_TEXT, (first + _END_OF_TEXT, first + _END_OF_MESSAGE, first + _END_OF_TURN)


def _from_sentencepiece(content: bytes) -> tuple[int, tuple[int, ...]]:
    bos, eos = _DEFAULT_BOS, _DEFAULT_EOS
    for number, value in protobuf_fields(content):
        if number == _TRAINER_SPEC and isinstance(value, bytes):
            for inner, setting in protobuf_fields(value):
                if inner == _BOS_ID and isinstance(setting, int):
                    bos = setting
                elif inner == _EOS_ID and isinstance(setting, int):
                    eos = setting
    return bos, (eos,)


def protobuf_fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Yields field numbers and values of a serialized message; varints as signed 64-bit numbers, the rest as bytes."""
    at = 0
    while at < len(data):
        key, at = _varint(data, at)
        kind = key & 7
        if kind == 0:
            value, at = _varint(data, at)
            yield key >> 3, value - (1 << 64) if value >> 63 else value
            continue
        if kind == 2:
            length, at = _varint(data, at)
        elif kind in (1, 5):
            length = 8 if kind == 1 else 4
        else:
            raise ValueError
        if at + length > len(data):
            raise ValueError
        yield key >> 3, data[at : at + length]
        at += length


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value & ((1 << 64) - 1), at
        shift += 7
        if shift > 63:
            raise ValueError
