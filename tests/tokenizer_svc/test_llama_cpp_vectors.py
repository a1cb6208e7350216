"""Answers equal llama.cpp's, on records made by running its vocabulary code.

A record is graded unless two releases of llama.cpp answer it differently, or it is marked as a peculiarity of
llama.cpp: those are in `test_quirks.py`.
"""

from __future__ import annotations

import hashlib
import json
import struct
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from tandem.tokenizer.formats import load_tokenizer
from tandem.tokenizer.tokenizer import Tokenizer

SOURCES = {
    "llama-spm": "formats/llama2",
    "llama-bpe": "formats/llama3",
    "stories260K": "models/stories260K/meta",
    "llama-spm.gguf": "vocabularies/ggml-vocab-llama-spm.gguf",
    "llama-bpe.gguf": "vocabularies/ggml-vocab-llama-bpe.gguf",
    "stories260K.gguf": "models/stories260K/gguf/stories260K-f32.gguf",
    "bert-bge.gguf": "vocabularies/ggml-vocab-bert-bge.gguf",
    "gpt-2.gguf": "vocabularies/ggml-vocab-gpt-2.gguf",
    "rwkv-world.gguf": "vocabularies/ggml-vocab-rwkv-world.gguf",
    "t5-small.gguf": "vocabularies/ggml-vocab-t5-small.gguf",
}
PAIRS = {
    "llama-spm": "formats/llama2",
    "llama-bpe": "formats/llama3",
    **{
        f"{name}.gguf": f"vocabularies/ggml-vocab-{name}.gguf"
        for name in ("bert-bge", "deepseek-coder", "falcon", "gpt-2", "llama-bpe", "llama-spm", "starcoder")
    },
}
INP_SEPARATOR = "\n__ggml_vocab_test__\n"


@cache
def load(path: Path) -> Tokenizer:
    return load_tokenizer(path)


def name_of(source: str) -> str:
    return source.removesuffix(".gguf")


@pytest.fixture(params=SOURCES)
def case(request: pytest.FixtureRequest, shared_data: Path) -> tuple[Tokenizer, dict[str, Any], list[dict[str, Any]]]:
    """A tokenizer with the description and the records of the vocabulary it stands for."""
    lines = (shared_data / f"vectors/{name_of(request.param)}.jsonl").open(encoding="utf-8")
    records = [json.loads(line) for line in lines]
    return load(shared_data / SOURCES[request.param]), records[0], records[1:]


def words(info: str) -> dict[str, int]:
    parts = info.split()
    return {key: int(value) for key, value in zip(parts[::2], parts[1::2], strict=True)}


def is_graded(record: dict[str, Any]) -> bool:
    return not ("quirk" in record or "ids_2025" in record or "bytes_hex_2025" in record)


def test_every_piece_has_the_bytes_of_llama_cpp(case: Any) -> None:
    tokenizer, meta, _ = case
    for special, key in ((True, "pieces_sha256_special1"), (False, "pieces_sha256_special0")):
        digest = hashlib.sha256()
        for piece in tokenizer.table.pieces if special else tokenizer.table.hidden_pieces:
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
    assert config.clean_spaces == facts["clean"] or config.source != "gguf"


def test_tokenize_records(case: Any) -> None:
    tokenizer, _, records = case
    graded = [record for record in records if record["op"] == "tokenize" and is_graded(record)]
    assert len(graded) > 100
    for record in graded:
        ids = tokenizer.encode(record["text"], record["add_special"], record["parse_special"])
        assert ids == record["ids"], record


def test_detokenize_records(case: Any) -> None:
    tokenizer, meta, records = case
    clean = bool(words(meta["info"])["clean"])
    graded = [record for record in records if record["op"] == "detokenize" and is_graded(record)]
    assert len(graded) > 100
    for record in graded:
        expected = bytes.fromhex(record["bytes_hex"]) if "bytes_hex" in record else record["text"].encode()
        got = tokenizer.decode_bytes(record["ids"], record["remove_special"], record["unparse_special"], clean)
        assert got == expected, record


def test_no_vector_and_no_pair_is_left_out(shared_data: Path) -> None:
    assert {file.stem for file in (shared_data / "vectors").glob("*.jsonl")} == set(map(name_of, SOURCES))
    pairs = (shared_data / "vocabularies").glob("*.inp")
    assert {file.name.removeprefix("ggml-vocab-").removesuffix(".gguf.inp") for file in pairs} == set(
        map(name_of, PAIRS)
    )


@pytest.mark.parametrize("source", PAIRS)
def test_inp_and_out_files_of_llama_cpp(source: str, shared_data: Path) -> None:
    tokenizer = load(shared_data / PAIRS[source])
    stem = shared_data / f"vocabularies/ggml-vocab-{name_of(source)}.gguf"
    texts = Path(f"{stem}.inp").read_bytes().decode().split(INP_SEPARATOR)
    lines = Path(f"{stem}.out").read_text().splitlines()
    pairs = list(zip(texts, lines, strict=False))
    assert len(pairs) == 46
    for text, line in pairs:
        assert tokenizer.encode(text, add_special=False) == [int(word) for word in line.split()], text
