"""Random `tokenizer.json` files give the library's ids for random texts, or are refused."""

from __future__ import annotations

import json
import random
import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tokenizers

from tandem.tokenizer.formats import FormatError, load_tokenizer
from tests.tokenizer_svc.test_hf_small_files import (
    BERT,
    BYTE_LEVEL,
    BYTES,
    MAPPED,
    MERGE,
    METASPACE,
    STRIP,
    pairs,
    token,
    unigrams,
    word_pieces,
)

FILES = 150  # of each kind
LETTERS = [
    *("a", "b", "x", "1", " ", " ", "  ", "\n", "\t", "\u00e9", "A", "\u00c9", "\u00b2", "\u017f", "\u212a", "\u0130"),
    *("-", "'s", ".", "<s>", "ab", "\u4e2d", "#", "\u2581", "\u00a0", "\u200b", "\u0301", "<"),
]
ADDED = ["<s>", "<s>a", "a<", "ab", "b", "#", "<x>", " a", "中", ""]
FORMS = ["NFC", "NFD", "NFKC", "Lowercase", "StripAccents"]
MERGES = re.compile('"type": "(Strip|WhitespaceSplit)"')
REPLACED = {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}
PATTERNS = [
    *(r"\w+", r"[\w]+", "(?i:'s|b)", r"\s+$", r"\s+(?!\S)", "a|ab", "(?m:a.)", "^ ?a", r"\p{L}+|\s+", r"\d{1,2}"),
    r"'s| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",
]
Parts = dict[str, Any]


def some(draw: random.Random, values: list[Any], most: int) -> list[Any]:
    return [draw.choice(values) for _ in range(draw.randint(0, most))]


def merged(draw: random.Random, characters: list[str], words: int) -> tuple[dict[str, int], list[tuple[str, str]]]:
    """A vocabulary of characters and of what random merges make of them."""
    known = list(characters)
    merges: list[tuple[str, str]] = []
    for _ in range(words):
        left, right = draw.choice(known), draw.choice(known)
        if len(left + right) < 5 and left + right not in known and "<" not in left + right:
            known.append(left + right)
            merges.append((left, right))
    return {text: index for index, text in enumerate(known)}, merges


def sequence(kind: str, inner: str, steps: list[Any]) -> Parts:
    return {kind: {"type": "Sequence", inner: steps}} if steps else {}


def added(draw: random.Random, known: dict[str, int]) -> Parts:
    tokens: list[Any] = []
    at = len(known)
    for text in dict.fromkeys(some(draw, ADDED, 3)):
        flags = {name: draw.random() < 0.25 for name in ("single_word", "lstrip", "rstrip", "normalized")}
        special = text not in known and draw.random() < 0.5  # special ones that text may become differ, and are few
        tokens.append(token(known.get(text, at), text, special=special, **flags))
        at += text not in known and text != ""
    return {"added_tokens": tokens}


def byte_level(draw: random.Random) -> tuple[Any, Parts]:
    letters = [letter for letter in BYTES if draw.random() < 0.05 or letter in "abAĠ²Ã©1"]
    vocabulary, merges = merged(draw, letters, 12)
    vocabulary = BYTES | {text: index for index, text in enumerate(list(vocabulary)[len(letters) :], len(BYTES))}
    cuts: list[Any] = [
        {
            "type": "Split",
            "pattern": {"Regex": pattern},
            "behavior": draw.choice(
                ["Isolated", "Isolated", "MergedWithPrevious", "MergedWithNext", "Contiguous", "Removed"]
            ),
            "invert": draw.random() < 0.2,
        }
        for pattern in some(draw, PATTERNS, 2)
    ]
    cuts += some(
        draw, [{"type": "Digits", "individual_digits": True}, {"type": "Punctuation", "behavior": "Isolated"}], 1
    )
    parts = sequence("normalizer", "normalizers", [{"type": form} for form in some(draw, FORMS, 1)])
    parts |= sequence("pre_tokenizer", "pretokenizers", [*cuts, BYTE_LEVEL | {"use_regex": draw.random() < 0.5}])
    model = pairs(vocabulary, *merges, ignore_merges=draw.random() < 0.3)
    return model, parts | added(draw, vocabulary)


def spaced(draw: random.Random) -> Parts:
    """The steps in front of a model whose spaces are U+2581."""
    normalizers = some(draw, [MAPPED, STRIP, MERGE, MERGE | {"content": " "}, {"type": "NFKC"}], 3)
    cuts = some(draw, [{"type": "WhitespaceSplit"}], 1)
    scheme = {"prepend_scheme": draw.choice(["always", "first", "never"])}
    metaspace = METASPACE | scheme | {"split": draw.random() < 0.7}
    if draw.random() < 0.2:
        del metaspace["prepend_scheme"]
    parts = sequence("normalizer", "normalizers", normalizers if draw.random() < 0.6 else [])
    return parts | sequence("pre_tokenizer", "pretokenizers", [*(cuts if draw.random() < 0.5 else []), metaspace])


def metaspace_pairs(draw: random.Random) -> tuple[Any, Parts]:
    letters = ["<unk>", *(letter for letter in "▁ab1Aé.-" if draw.random() < 0.9)]
    vocabulary, merges = merged(draw, letters, 10)
    spells = draw.random() < 0.4
    if spells:
        vocabulary |= {f"<0x{byte:02X}>": index for index, byte in enumerate(range(256), len(vocabulary))}
    model = pairs(
        vocabulary, *merges, unk_token="<unk>", fuse_unk=not spells or draw.random() < 0.5, byte_fallback=spells
    )
    steps = spaced(draw) if draw.random() < 0.7 else sequence("normalizer", "normalizers", [REPLACED])
    return model, steps | added(draw, vocabulary)


def metaspace_unigrams(draw: random.Random) -> tuple[Any, Parts]:
    letters = [letter for letter in "▁ab1Aé.-" if draw.random() < 0.9]
    vocabulary, _ = merged(draw, letters, 10)
    model = unigrams(*vocabulary)
    return model, spaced(draw) | added(draw, {"<unk>": 0, **{text: index + 1 for text, index in vocabulary.items()}})


def pieces_of_words(draw: random.Random) -> tuple[Any, Parts]:
    prefix = draw.choice(["##", "##", "", "a", "#"])
    texts = ["a", "b", "ab", "##b", "##a", "1", "é", "e", "##", "#", "aa", "中", ".", "A"]
    vocabulary = {"[UNK]": 0, **{text: index + 1 for index, text in enumerate(draw.sample(texts, 9))}}
    normalizer = BERT["normalizer"] | {"lowercase": draw.random() < 0.5}
    return word_pieces(vocabulary, prefix), {**BERT, "normalizer": normalizer} | added(draw, vocabulary)


def characters_of_words(draw: random.Random) -> tuple[Any, Parts]:
    vocabulary, merges = merged(draw, ["<unk>", "a", "b", "1", "A", "."], 8)
    whole = {"type": "WordLevel", "vocab": vocabulary, "unk_token": "<unk>"}
    several = pairs(vocabulary, *merges, unk_token="<unk>", fuse_unk=draw.random() < 0.5)
    splits = [
        {"type": "Split", "pattern": {"Regex": text}, "behavior": "Isolated", "invert": False} for text in PATTERNS
    ]
    cuts = [{"type": draw.choice(["Whitespace", "WhitespaceSplit", "BertPreTokenizer"])}, *some(draw, splits, 1)]
    parts = sequence("normalizer", "normalizers", [{"type": form} for form in some(draw, ["NFC", "NFKC"], 1)])
    parts |= sequence("pre_tokenizer", "pretokenizers", cuts)
    return draw.choice([whole, several]), parts | added(draw, vocabulary)


KINDS: list[Callable[[random.Random], tuple[Any, Parts]]] = [
    byte_level,
    metaspace_pairs,
    metaspace_unigrams,
    pieces_of_words,
    characters_of_words,
]


@pytest.mark.parametrize("kind", KINDS)
def test_a_random_file_gives_what_the_library_gives_or_is_refused(tmp_path: Path, kind: Any) -> None:
    draw = random.Random(3)
    path = tmp_path / "tokenizer.json"
    counts: Counter[str] = Counter()
    for _ in range(FILES):
        model, parts = kind(draw)
        steps = dict.fromkeys(("normalizer", "pre_tokenizer", "post_processor", "decoder"))
        content = json.dumps({"version": "1.0", "added_tokens": [], **steps, **parts, "model": model})
        path.write_text(content)
        try:
            ours = load_tokenizer(path)
        except FormatError:
            counts["refused"] += 1
            continue
        counts["served"] += 1
        library = tokenizers.Tokenizer.from_file(str(path))
        for _ in range(12):
            text = "".join(some(draw, LETTERS, 8))
            if MERGES.search(content):  # where U+2581 in a text is what it is to SentencePiece
                text = text.replace("\u2581", "")
            if MAPPED["precompiled_charsmap"] in content:  # where the library maps a space with the mark on it
                text = text.replace("\u0301", "")
            expected = library.encode(text, add_special_tokens=False).ids
            assert ours.encode(text, add_special=False, parse_special=True) == expected, (text, content)
    assert counts["served"] > FILES // 8, counts
