"""Merge lists of any kind: pairs that make the same at different ranks, parts that are made after their whole, pairs
that are listed twice."""

from __future__ import annotations

import json
from contextlib import nullcontext
from itertools import pairwise, product
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import tokenizers
from hypothesis import example, given
from hypothesis import strategies as st
from tokenizers import decoders, models, normalizers, pre_tokenizers

from tandem.tokenizer.encoding import Segment
from tandem.tokenizer.formats import FormatError, load_tokenizer
from tandem.tokenizer.formats.byte_alphabet import ALPHABET
from tandem.tokenizer.tokenizer import Tokenizer
from tandem.tokenizer.vocabularies.bpe import compiled_bpe
from tests.tokenizer_svc.gguf_writer import write_gguf
from tests.tokenizer_svc.test_gguf import BYTE, CONTROL, NORMAL, UNKNOWN

Pair = tuple[str, str]
WORDS = ["".join(word) for size in (2, 3, 4) for word in product("ab", repeat=size)]
WORDS += ["abc", "bc", "ca", "bca", "cc", "ccc", "aaaaa"]
PAIRS = [(word[:cut], word[cut:]) for word in WORDS for cut in range(1, len(word))]
MERGES = st.lists(st.sampled_from(PAIRS), min_size=1, max_size=30)
TEXTS = st.lists(st.text("abc ", max_size=20) | st.text("ab", min_size=90, max_size=220), min_size=1, max_size=4)
CLASHES: dict[str, tuple[list[Pair], str, bool]] = {
    "a whole before its part": ([("ab", "c"), ("a", "b")], "abc", True),
    "another pair comes first": ([("b", "c"), ("ab", "c"), ("a", "b")], "abc", False),
    "the same at two ranks": ([("a", "a"), ("a", "aa"), ("b", "a"), ("aa", "a")], "baaa aaa", False),
    "what nothing makes": ([("bc", "a"), ("a", "b")], "bca", False),
    "as trained": ([("a", "b"), ("ab", "a"), ("aba", "a")], "abaabaa", True),
    "all ways to make it": ([("a", "a"), ("a", "aa"), ("aa", "a"), ("aa", "aa")], "aaaaa", True),
}


def without_library(compiled: bool) -> Any:
    return nullcontext() if compiled else mock.patch.object(compiled_bpe, "library", return_value=None)


def hugging_face(folder: Path, merges: list[Pair], ignore_merges: bool) -> tokenizers.Tokenizer:
    vocabulary = {text: index for index, text in enumerate([*ALPHABET, *WORDS])}
    library = tokenizers.Tokenizer(models.BPE(vocabulary, merges, ignore_merges=ignore_merges))
    library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    library.decoder = decoders.ByteLevel()
    content = json.loads(library.to_str())
    content["model"]["merges"] = merges  # where the library has dropped what is listed twice
    (folder / "tokenizer.json").write_text(json.dumps(content))
    return tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))


def gguf(folder: Path, merges: list[Pair], pre: str) -> Path:
    tokens = [*ALPHABET, *WORDS, "<e>"]
    metadata = {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": pre,
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [NORMAL] * (len(tokens) - 1) + [CONTROL],
        "tokenizer.ggml.merges": [" ".join(pair) for pair in merges],
        "tokenizer.ggml.eos_token_id": len(tokens) - 1,
    }
    return write_gguf(folder / "x.gguf", metadata)


def by_llama_cpp(merges: list[Pair], ignore_merges: bool, word: str) -> list[int]:
    """Its rule, as plainly as it can be said: the lowest rank first, of equal ones the leftmost."""
    ids = {text: index for index, text in enumerate([*ALPHABET, *WORDS])}
    word = "".join(ALPHABET[byte] for byte in word.encode())
    if ignore_merges and word in ids:
        return [ids[word]]
    ranks: dict[Pair, int] = {}
    for rank, pair in enumerate(merges):
        ranks.setdefault(pair, rank)
    parts = list(word)
    while found := [(ranks[pair], at) for at, pair in enumerate(pairwise(parts)) if pair in ranks]:
        _, at = min(found)
        parts[at : at + 2] = [parts[at] + parts[at + 1]]
    return [ids[part] for part in parts]


def encoded(tokenizer: Tokenizer, texts: list[str]) -> list[list[int]]:
    """By all that encodes."""
    alone = [tokenizer.encode(text, add_special=False) for text in texts]
    assert [ids.tolist() for ids in tokenizer.encode_many(texts, add_special=False)] == alone
    located = [tokenizer.encode_segments([Segment(text)], False, with_offsets=True) for text in texts]
    assert [each.ids for each in located] == alone
    for each, text in zip(located, texts, strict=True):
        assert each.byte_offsets is not None
        edges = [*each.byte_offsets, len(text)]
        assert [tokenizer.table.pieces[index] for index in each.ids] == [
            text[start:end].encode() for start, end in pairwise(edges)
        ]
    return alone


@given(merges=MERGES, ignore_merges=st.booleans(), texts=TEXTS, compiled=st.booleans())
@example(merges=[("a", "b"), ("b", "a"), ("a", "b")], ignore_merges=False, texts=["aba"], compiled=True)
def test_a_tokenizer_json_ranks_pairs_as_the_library_does(
    tmp_path: Path, merges: list[Pair], ignore_merges: bool, texts: list[str], compiled: bool
) -> None:
    library = hugging_face(tmp_path, merges, ignore_merges)
    with without_library(compiled):
        ours = load_tokenizer(tmp_path)
    expected = [library.encode(text, add_special_tokens=False).ids for text in texts]
    assert encoded(ours, texts) == expected


@given(merges=MERGES, ignore_merges=st.booleans(), texts=TEXTS, compiled=st.booleans())
@example(merges=[("a", "b"), ("b", "a"), ("a", "b")], ignore_merges=False, texts=["aba"], compiled=True)
def test_a_gguf_file_ranks_pairs_as_llama_cpp_does(
    tmp_path: Path, merges: list[Pair], ignore_merges: bool, texts: list[str], compiled: bool
) -> None:
    with without_library(compiled):
        ours = load_tokenizer(gguf(tmp_path, merges, "llama-bpe" if ignore_merges else "gpt-2"))
    texts = [text.replace(" ", "") for text in texts]
    assert encoded(ours, texts) == [by_llama_cpp(merges, ignore_merges, text) for text in texts]


@pytest.mark.parametrize("compiled", [True, False])
@pytest.mark.parametrize("name", CLASHES)
def test_pairs_are_looked_at_only_where_products_do_not_tell_as_much(tmp_path: Path, name: str, compiled: bool) -> None:
    merges, text, is_by_product = CLASHES[name]
    library = hugging_face(tmp_path, merges, False)
    with without_library(compiled):
        ours = load_tokenizer(tmp_path)
        same = load_tokenizer(gguf(tmp_path, merges, "gpt-2"))
    assert ours.encode(text, add_special=False) == library.encode(text, add_special_tokens=False).ids
    for each in (ours, same):
        assert (each.vocabulary._pairs is None) == is_by_product  # type: ignore[attr-defined]
    other = load_tokenizer(gguf(tmp_path, merges[::-1], "gpt-2"))
    assert same.fingerprint != other.fingerprint


def metaspace(folder: Path, merges: list[Pair]) -> tokenizers.Tokenizer:
    texts = ["<unk>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁", "a", "b", "c", *WORDS]
    vocabulary = {text: index for index, text in enumerate(texts)}
    library = tokenizers.Tokenizer(models.BPE(vocabulary, merges, unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    library.normalizer = normalizers.Replace(" ", "▁")
    library.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    library.save(str(folder / "tokenizer.json"))
    return library


@given(merges=MERGES, texts=TEXTS, compiled=st.booleans())
@example(merges=[("a", "b"), ("ab", "a")], texts=["abaab"], compiled=True)
@example(merges=[("b", "a"), ("ab", "a"), ("a", "b")], texts=["aba"], compiled=True)
def test_without_bytes_clashing_merges_are_refused_and_others_served(
    tmp_path: Path, merges: list[Pair], texts: list[str], compiled: bool
) -> None:
    merges = list(dict.fromkeys(merges))
    library = metaspace(tmp_path, merges)
    refusal = ""
    with without_library(compiled):
        try:
            ours = load_tokenizer(tmp_path)
        except FormatError as error:
            refusal = str(error)
    if refusal:
        assert "clashing" in refusal
        assert merges != [("a", "b"), ("ab", "a")]
        return
    assert merges != [("b", "a"), ("ab", "a"), ("a", "b")]
    assert [ours.encode(text, False) for text in texts] == [library.encode(text).ids for text in texts]


def test_a_gguf_file_of_raw_text_with_clashing_merges_is_refused(tmp_path: Path) -> None:
    tokens = ["<unk>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁", "a", "b", "ba", "ab", "aba"]
    metadata = {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gemma4",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [UNKNOWN] + [BYTE] * 256 + [NORMAL] * 6,
        "tokenizer.ggml.unknown_token_id": 0,
    }
    for merges, is_served in ((["a b", "ab a"], True), (["b a", "ab a", "a b"], False)):
        path = write_gguf(tmp_path / "x.gguf", metadata | {"tokenizer.ggml.merges": merges})
        with nullcontext() if is_served else pytest.raises(FormatError, match="clashing"):
            assert load_tokenizer(path).encode("aba", False) == [262]
