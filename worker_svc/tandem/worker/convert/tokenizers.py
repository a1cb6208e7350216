"""Carries tokenizers along: files are copied, and SentencePiece models and GGUF vocabularies made from each other."""

from __future__ import annotations

import json
import shutil
import struct
from array import array
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from tandem.common.gguf import read_metadata
from tandem.worker.checkpoints.model_config import ModelConfig
from tandem.worker.checkpoints.special_ids import protobuf_fields
from tandem.worker.convert.byte_pairs import UnknownTokenizerError, from_json, from_ranks

TOKENIZER_FILES = (
    "tokenizer.model",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "chat_template.jinja",
    "additional_chat_templates/tool_use.jinja",
    "chat_template.json",
)
# sentencepiece_model.proto: ModelProto, SentencePiece, TrainerSpec and NormalizerSpec.
_PIECES, _TRAINER, _NORMALIZER = 1, 2, 3
_PIECE, _SCORE, _TYPE = 1, 2, 3
_MODEL_TYPE, _VOCAB_SIZE, _BYTE_FALLBACK, _UNK, _BOS, _EOS, _PAD = 3, 4, 35, 40, 41, 42, 43
_NAME, _DUMMY_PREFIX, _EXTRA_SPACES = 1, 3, 4
_BPE = 2
_NORMAL, _UNUSED, _BYTE = 1, 5, 6


def copy_tokenizer(source: Path, target: Path) -> list[str]:
    """Copies a folder's tokenizer files; returns their names."""
    copied = []
    for name in TOKENIZER_FILES:
        if (source / name).is_file():
            (target / name).parent.mkdir(exist_ok=True)
            shutil.copyfile(source / name, target / name)
            copied.append(name)
    return copied


def gguf_vocabulary(folder: Path, config: ModelConfig, eos_ids: Sequence[int]) -> dict[str, Any]:
    """Returns the GGUF keys for a folder's tokenizer. Raises UnknownTokenizerError where none can express it."""
    model, pipeline = folder / "tokenizer.model", folder / "tokenizer.json"
    vocabulary = _sentencepiece_keys(model, config.vocab_size, eos_ids) if model.is_file() else None
    if vocabulary is not None:
        return vocabulary
    beside = _sidecar(folder / "tokenizer_config.json")
    if pipeline.is_file():
        return from_json(pipeline, config.vocab_size, beside, eos_ids)
    if model.is_file():
        scaled = config.rope_scaling is not None and config.rope_scaling.kind == "llama3"
        return from_ranks(model, config.vocab_size, beside, eos_ids, scaled_rope=scaled)
    raise UnknownTokenizerError("there is neither tokenizer.json nor tokenizer.model")


def _sidecar(file: Path) -> dict[str, Any]:
    try:
        content = json.loads(file.read_bytes())
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


def _sentencepiece_keys(file: Path, size: int, eos_ids: Sequence[int]) -> dict[str, Any] | None:
    """Returns the keys that say what a SentencePiece model says; None if the file is no such model or has more pieces
    than `size`. Missing pieces are filled up, because llama.cpp wants one for each row of weights."""
    try:
        content = file.read_bytes()
        tokens, scores, types = [], [], []
        ids = {_UNK: 0, _BOS: 1, _EOS: 2}
        prefix = True
        for number, value in protobuf_fields(content):
            if number == _PIECES and isinstance(value, bytes):
                piece = dict(protobuf_fields(value))
                tokens.append(piece.get(_PIECE, b""))
                (score,) = struct.unpack("<f", _bytes(piece.get(_SCORE, bytes(4))))
                scores.append(score)
                types.append(piece.get(_TYPE, _NORMAL))
            elif number == _TRAINER and isinstance(value, bytes):
                ids |= {key: number for key, number in protobuf_fields(value) if key in ids}  # type: ignore[misc]
            elif number == _NORMALIZER and isinstance(value, bytes):
                prefix = bool(dict(protobuf_fields(value)).get(_DUMMY_PREFIX, 1))
    except (OSError, ValueError, IndexError, struct.error):
        return None
    if not 0 < len(tokens) <= size:
        return None
    for index in range(len(tokens), size):
        tokens.append(b"[PAD%d]" % index)
        scores.append(-1000.0)
        types.append(_UNUSED)
    named = {"bos": ids[_BOS], "eos": eos_ids[0] if eos_ids else ids[_EOS], "unknown": ids[_UNK]}
    return {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.scores": scores,
        "tokenizer.ggml.token_type": types,
        **{f"tokenizer.ggml.{name}_token_id": number for name, number in named.items() if number >= 0},
        "tokenizer.ggml.add_bos_token": True,
        "tokenizer.ggml.add_eos_token": False,
        "tokenizer.ggml.add_space_prefix": prefix,
    }


def sentencepiece_model(file: Path) -> bytes | None:
    """Returns the SentencePiece model that says what a GGUF file's vocabulary says; None if it is of another type."""
    keys = read_metadata(file, lambda key: key.startswith("tokenizer.ggml."))
    tokens, scores, types = (keys.get(f"tokenizer.ggml.{name}") for name in ("tokens", "scores", "token_type"))
    if keys.get("tokenizer.ggml.model") != "llama" or not isinstance(tokens, list):
        return None
    if not isinstance(scores, array) or not isinstance(types, array) or not len(tokens) == len(scores) == len(types):
        return None
    pieces = b"".join(
        _field(_PIECES, _field(_PIECE, text) + _number(_SCORE, float(score)) + _number(_TYPE, int(kind)))
        for text, score, kind in zip(tokens, scores, types, strict=True)
    )
    ids = {_UNK: ("unknown", 0), _BOS: ("bos", 1), _EOS: ("eos", 2), _PAD: ("padding", -1)}
    trainer = _number(_MODEL_TYPE, _BPE) + _number(_VOCAB_SIZE, len(tokens))
    trainer += _number(_BYTE_FALLBACK, int(list(types).count(_BYTE) == 256))
    for number, (name, default) in ids.items():
        given = keys.get(f"tokenizer.ggml.{name}_token_id", default)
        trainer += _number(number, given if given < len(tokens) else -1)
    normalizer = _field(_NAME, b"identity") + _number(_EXTRA_SPACES, 0)
    normalizer += _number(_DUMMY_PREFIX, int(bool(keys.get("tokenizer.ggml.add_space_prefix", True))))
    return pieces + _field(_TRAINER, trainer) + _field(_NORMALIZER, normalizer)


def _bytes(value: int | bytes) -> bytes:
    if not isinstance(value, bytes):
        raise ValueError
    return value


def _field(number: int, content: bytes) -> bytes:
    return bytes(_varint(number << 3 | 2)) + bytes(_varint(len(content))) + content


def _number(number: int, value: float) -> bytes:
    if isinstance(value, float):
        return bytes(_varint(number << 3 | 5)) + struct.pack("<f", value)
    return bytes(_varint(number << 3)) + bytes(_varint(value & (1 << 64) - 1))


def _varint(value: int) -> Iterator[int]:
    while value > 0x7F:
        yield value & 0x7F | 0x80
        value >>= 7
    yield value
