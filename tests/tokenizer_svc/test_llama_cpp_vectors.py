"""Answers equal llama.cpp's, on records made by running its vocabulary code."""

from __future__ import annotations

import hashlib
import json
import struct
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from tokenizer_svc.formats import load_tokenizer
from tokenizer_svc.tokenizer import Tokenizer

SOURCES = {
    "llama-spm": ("formats/llama2", "ggml-vocab-llama-spm"),
    "llama-bpe": ("formats/llama3", "ggml-vocab-llama-bpe"),
    "stories260K": ("models/stories260K/meta", None),
}
INP_SEPARATOR = "\n__ggml_vocab_test__\n"


@cache
def load(path: Path) -> Tokenizer:
    return load_tokenizer(path)


@pytest.fixture(params=SOURCES)
def case(request: pytest.FixtureRequest, shared_data: Path) -> tuple[Tokenizer, dict[str, Any], list[dict[str, Any]]]:
    """A tokenizer with the description and the records of the vocabulary it stands for."""
    folder, _ = SOURCES[request.param]
    records = [json.loads(line) for line in (shared_data / f"vectors/{request.param}.jsonl").open(encoding="utf-8")]
    return load(shared_data / folder), records[0], records[1:]


def words(info: str) -> dict[str, int]:
    parts = info.split()
    return {key: int(value) for key, value in zip(parts[::2], parts[1::2], strict=True)}


def test_every_piece_has_the_bytes_of_llama_cpp(case: Any) -> None:
    tokenizer, meta, _ = case
    for special, key in ((True, "pieces_sha256_special1"), (False, "pieces_sha256_special0")):
        digest = hashlib.sha256()
        for piece in tokenizer.pieces(range(tokenizer.vocabulary_size), unparse_special=special):
            digest.update(struct.pack("<I", len(piece)) + piece)
        assert digest.hexdigest() == meta[key]


def test_facts_equal_llama_cpp(case: Any) -> None:
    tokenizer, meta, _ = case
    facts = words(meta["info"])
    config = tokenizer.config
    assert tokenizer.type == facts["type"]
    assert tokenizer.vocabulary_size == facts["n"]
    named = {"bos": config.bos_id, "eos": config.eos_id, "unk": config.unk_id}
    assert {name: -1 if index is None else index for name, index in named.items()} == {k: facts[k] for k in named}
    assert (config.adds_bos, config.adds_eos, config.adds_space_prefix) == (
        facts["add_bos"],
        facts["add_eos"],
        facts["asp"],
    )


def test_tokenize_records(case: Any) -> None:
    tokenizer, _, records = case
    graded = [record for record in records if record["op"] == "tokenize" and "ids_2025" not in record]
    assert len(graded) > 100
    for record in graded:
        ids = tokenizer.encode(record["text"], record["add_special"], record["parse_special"])
        assert ids == record["ids"], record


def test_detokenize_records(case: Any) -> None:
    tokenizer, meta, records = case
    clean = bool(words(meta["info"])["clean"])
    graded = [record for record in records if record["op"] == "detokenize" and "bytes_hex_2025" not in record]
    assert len(graded) > 100
    for record in graded:
        expected = bytes.fromhex(record["bytes_hex"]) if "bytes_hex" in record else record["text"].encode()
        got = tokenizer.decode_bytes(record["ids"], record["remove_special"], record["unparse_special"], clean)
        assert got == expected, record


@pytest.mark.parametrize("name", [name for name, (_, stem) in SOURCES.items() if stem is not None])
def test_inp_and_out_files_of_llama_cpp(name: str, shared_data: Path) -> None:
    folder, stem = SOURCES[name]
    tokenizer = load(shared_data / folder)
    texts = (shared_data / f"vocabularies/{stem}.gguf.inp").read_bytes().decode().split(INP_SEPARATOR)
    lines = (shared_data / f"vocabularies/{stem}.gguf.out").read_text().splitlines()
    pairs = list(zip(texts, lines, strict=False))
    assert len(pairs) >= 40
    for text, line in pairs:
        assert tokenizer.encode(text, add_special=False) == [int(word) for word in line.split()], text
