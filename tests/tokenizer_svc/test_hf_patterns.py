"""Regular expressions of a `tokenizer.json` cut text as the library's engine has them do, or are refused."""

from __future__ import annotations

import json
import random
import string
import time
import unicodedata
from pathlib import Path
from typing import Any

import pytest
import regex  # type: ignore[import-untyped]
import tokenizers
from tokenizers import pre_tokenizers

from tandem.tokenizer.formats import FormatError, load_tokenizer
from tandem.tokenizer.formats.byte_alphabet import ALPHABET
from tandem.tokenizer.formats.hf_patterns import takes_all, translated
from tandem.tokenizer.vocabularies.bpe.pre_tokenizers import PRE_TOKENIZERS
from tandem.tokenizer.vocabularies.bpe.tiktoken_bpe import by_engine

ALL = [chr(point) for point in range(0x3000) if unicodedata.ucd_3_2_0.category(chr(point)) not in ("Cn", "Co")]
ATOMS = [
    *("a", "b", "1", " ", "\u00e9", "^", "$", ".", "k", "s", "f", "i", "'", "]", "}", "A"),
    *(r"\s", r"\S", r"\d", r"\w", r"\p{L}", r"\p{Lu}", r"\n", r"\x41", r"\u00e9", r"\x{e9}", r"\-"),
    *(
        "[ab]",
        "[^a]",
        r"[\w ]",
        r"[^\s]",
        "[a-c-]",
        "[a-c-e]",
        "[a-b-s]",
        "[--1]",
        "[]a]",
        "[^]a]",
        "[a[bc]]",
        "[ks]",
        "[a-z]",
        "[a-f&&[^be]]",
        r"[\w&&[^\d_]]",
        "[a-k&&b-z]",
        "[a1&&[a[1]]]",
    ),
]
QUANTIFIERS = [
    "",
    "",
    "",
    "",
    "?",
    "*",
    "+",
    "{2}",
    "{1,2}",
    "{2,}",
    "??",
    "*?",
    "+?",
    "?+",
    "*+",
    "++",
    "{1,2}?",
    "{0}",
]
GROUPS = ["", "?:", "?:", "?i:", "?m:", "?=", "?!", "?<=", "?<!", "?>"]
CHARACTERS = "aab1 \nbé²ſ\u212aAkKsSfi\ufb01ß'-]}\u2177_\u200d\u24b6"


def isolated(pattern: str) -> Any:
    return pre_tokenizers.Split(tokenizers.Regex(pattern), "isolated")


def drawn(draw: random.Random, depth: int = 0) -> str:
    branches: list[str] = []
    for _ in range(draw.choice([1, 1, 2, 3])):
        branch = ""
        for _ in range(draw.choice([0, 1, 1, 2, 2, 3])):
            group = depth < 3 and draw.random() < 0.25
            branch += f"({draw.choice(GROUPS)}{drawn(draw, depth + 1)})" if group else draw.choice(ATOMS)
            branch += draw.choice(QUANTIFIERS)
        branches.append(branch)
    return "|".join(branches)


def test_a_pattern_cuts_as_in_the_library_or_is_refused() -> None:
    draw = random.Random(7)
    served = 0
    for _ in range(8000):
        pattern = drawn(draw)
        try:
            cut = by_engine(translated(pattern))
        except ValueError:
            continue
        served += 1
        library = isolated(pattern)
        for _ in range(6):
            text = "".join(draw.choices(CHARACTERS, k=draw.randint(1, 9)))
            assert cut(text) == [piece for piece, _ in library.pre_tokenize_str(text)], (pattern, text)
    assert served > 1500


@pytest.mark.parametrize(
    "pattern",
    [r"\w", r"[\w]", r"[^\w]", r"\s", r"\d", r"\S", ".", r"\p{L}", r"\p{P}", r"\p{Han}", r"[^\s\p{L}\p{N}]", "(?m:.)"]
    + [r"[\p{L}\p{M}&&[^\p{Han}]]", r"[\p{L}&&\p{Greek}]", r"[\S&&[\p{P}\p{N}]]"]
    + [f"(?i:{letter})" for letter in string.ascii_lowercase]
    + ["(?i:[a-z])", "(?i:[ks!-])"],
)
def test_a_class_has_the_characters_that_it_has_in_the_library(pattern: str) -> None:
    """Of those that Unicode has had for long."""
    text = "".join(ALL)
    removing = pre_tokenizers.Split(tokenizers.Regex(pattern), "removed")
    kept = {character for piece, _ in removing.pre_tokenize_str(text) for character in piece}
    assert set(ALL) - kept == set(regex.findall(translated(pattern), text))


MEANT_OTHERWISE = [
    *(r"\pL", r"\N", r"\m", r"\U00000061", r"\h", r"\R", r"\X", r"\b", r"\1", r"\xe9", r"\p{^L}", r"\W"),
    *("a{,}", "a{,2}", "a{i}", "(?:abc){e<=1}", "a{2}?", "a{2}+", "a{1,2}+", "a{2,1}", "a**", "+", "(?=a)*", "a{"),
    *("(?i)a", "a(?i)b|c", "(?x:a b)", "(?i-m:a)", "(?<n>a)", "(?#a)", "(?~a)", "(?>a", "a)", "[a"),
    *(r"(?i:\p{Lu})", "(?i:ss)", "(?i:st)", "(?i:f[i])", "(?i:é)", "(?i:[^s])", "(?i:s+)", "(?i:(?=s)t)"),
    *(r"\p{Word}", r"\p{XDigit}", r"\p{Script=Han}", r"\p{letter}", "|ab", "a*", "(?:a|)", "(?<=a+)b"),
    *(
        r"[a-\d]",
        r"[\d-a]",
        "[a&&]",
        "[^a&&b]",
        "[a&&b&&c]",
        "[a[b&&c]]",
        "[a&&[^b]c]",
        "(?i:[a&&b])",
        "[!-&&b]",
        "[-&&b]",
        "[[:alpha:]]",
        "[a[^b]]",
        "[a-c--e]",
        "[b-a]",
        "[a--b]",
    ),
    *("(?s:.)", "(?P<n>a)", "(?R)", "(a)(?1)", "(?|a)", r"\M"),
]


@pytest.mark.parametrize("pattern", MEANT_OTHERWISE)
def test_what_engines_read_otherwise_is_refused(pattern: str) -> None:
    with pytest.raises(ValueError, match="not supported"):
        translated(pattern)


def test_patterns_of_models_stay_what_they_are() -> None:
    for cut in PRE_TOKENIZERS.values():
        for pattern in cut.patterns:
            if "\\U" not in pattern and "$" not in pattern.replace(r"\$", ""):
                assert translated(pattern) == pattern
    contractions = translated("'(?i:[sdmt]|ll|ve|re)")
    assert [match[0] for match in regex.finditer(contractions, "'S 'ſ 'LL 'vE 'd 'K")] == [
        "'S",
        "'ſ",
        "'LL",
        "'vE",
        "'d",
    ]


def test_what_is_left_between_matches_is_known() -> None:
    for name in ("gpt-2", "llama-bpe", "gpt-4o", "qwen35"):
        [pattern] = PRE_TOKENIZERS[name].patterns
        assert takes_all(translated(pattern))
    possessive = r"[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s+"
    assert takes_all(possessive)
    for pattern in (r"\p{L}+|[^\s\p{L}\p{N}]+|\s+", r"\s+(?!\S)|\S+", r"a?+[\s\S]", r"\S+|\s{2,}", r"\S|\s\S*b"):
        assert not takes_all(pattern)


def content_of(pattern: str, **step: Any) -> str:
    split = {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False, **step}
    bytes_ = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    return json.dumps(
        {
            "model": {"type": "BPE", "vocab": {letter: index for index, letter in enumerate(ALPHABET)}, "merges": []},
            "pre_tokenizer": {"type": "Sequence", "pretokenizers": [split, bytes_]},
        }
    )


def test_a_split_that_drops_text_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    path.write_text(content_of(r"\p{L}+|[^\s\p{L}\p{N}]+|\s+", behavior="Removed", invert=True))
    with pytest.raises(FormatError, match="Removed"):
        load_tokenizer(path)
    path.write_text(content_of(r"\p{L}+|[^\s\p{L}]+|\s+", behavior="Removed", invert=True))
    assert load_tokenizer(path).encode("a 1") == [97, 32, 49]


def test_the_end_of_a_line_takes_time_that_grows_with_the_text(tmp_path: Path) -> None:
    """By the square of it this would take minutes."""
    path = tmp_path / "tokenizer.json"
    path.write_text(content_of(r"\s+$"))
    tokenizer = load_tokenizer(path)
    begin = time.monotonic()
    assert len(tokenizer.encode(" " * 200_000 + "1")) == 200_001
    assert time.monotonic() - begin < 20


def test_contractions_of_published_patterns_are_what_they_are_in_the_library(tmp_path: Path) -> None:
    """A long s is an s whatever the case, which llama.cpp and files of its format leave out."""
    letters = "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|[\\s\\S]"
    file = json.loads(content_of(letters))
    for merge in ("Å ¿", "Å¿ b", "' Å¿"):
        file["model"]["merges"].append(merge)
        file["model"]["vocab"][merge.replace(" ", "")] = len(file["model"]["vocab"])
    path = tmp_path / "tokenizer.json"
    path.write_text(json.dumps(file))
    ours, library = load_tokenizer(path), tokenizers.Tokenizer.from_file(str(path))
    for text in ("a'ſb", "a'ſ", "ſb", "A'S", "'LLb", "'ſſb"):
        assert ours.encode(text) == library.encode(text).ids, text
