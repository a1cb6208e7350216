"""Small `tokenizer.json` files, each with a peculiarity, give the library's ids or are refused by name."""

from __future__ import annotations

import io
import json
import re
import tempfile
import tracemalloc
from base64 import b64encode
from pathlib import Path
from typing import Any

import pytest
import sentencepiece
import tokenizers
from sentencepiece.sentencepiece_model_pb2 import ModelProto  # type: ignore[attr-defined]

from tandem.tokenizer.encoding import Policy, Segment
from tandem.tokenizer.formats import FormatError, load_tokenizer
from tandem.tokenizer.formats.byte_alphabet import ALPHABET
from tandem.tokenizer.tokenizer import Tokenizer

BYTES = {letter: index for index, letter in enumerate(ALPHABET)}
BYTE_LEVEL = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
METASPACE = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": True}
NEVER = METASPACE | {"prepend_scheme": "never"}
WORDS = {"type": "Whitespace"}
BERT: dict[str, Any] = {
    "normalizer": {
        "type": "BertNormalizer",
        "clean_text": True,
        "handle_chinese_chars": True,
        "strip_accents": None,
        "lowercase": False,
    },
    "pre_tokenizer": {"type": "BertPreTokenizer"},
}


STRIP = {"type": "Strip", "strip_left": False, "strip_right": True}
MERGE = {"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": "▁"}
SPLIT = {"type": "WhitespaceSplit"}
IN_WORDS: dict[str, Any] = {"type": "Sequence", "pretokenizers": [SPLIT, METASPACE]}


def map_of(**characters: str) -> str:
    """A map of characters as SentencePiece writes it, made by its own trainer."""
    rules = "".join(f"{int(source[1:], 16):X}\t{target}\n" for source, target in characters.items())
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "rules.tsv").write_text(rules)
        model = io.BytesIO()
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(["a b a c"] * 9),
            model_writer=model,
            model_type="unigram",
            vocab_size=8,
            hard_vocab_limit=False,
            normalization_rule_tsv=f"{folder}/rules.tsv",
            minloglevel=4,
        )
    found = ModelProto()
    found.ParseFromString(model.getvalue())
    return b64encode(found.normalizer_spec.precompiled_charsmap).decode()


MAP = map_of(x0009="20", x000A="20", x00A0="20", x3000="20", x200B="20", x0001="")
MAPPED = {"type": "Precompiled", "precompiled_charsmap": MAP}


def token(index: int, text: str, **flags: bool) -> dict[str, Any]:
    defaults = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    return {"id": index, "content": text, **defaults, **flags}


def plain(index: int, text: str, **flags: bool) -> dict[str, Any]:
    return token(index, text, special=False, normalized=True, **flags)


def pairs(vocabulary: dict[str, int], *merges: tuple[str, str], **options: Any) -> dict[str, Any]:
    return {"type": "BPE", "vocab": vocabulary, "merges": [list(merge) for merge in merges], **options}


def word_pieces(vocabulary: dict[str, int], prefix: str = "##") -> dict[str, Any]:
    return {
        "type": "WordPiece",
        "unk_token": "[UNK]",
        "continuing_subword_prefix": prefix,
        "max_input_chars_per_word": 100,
        "vocab": vocabulary,
    }


def unigrams(*pieces: str) -> dict[str, Any]:
    vocabulary = [[piece, -1.0 - 0.13 * number] for number, piece in enumerate(pieces)]
    return {"type": "Unigram", "unk_id": 0, "vocab": [["<unk>", 0.0], *vocabulary]}


def written(folder: Path, model: dict[str, Any], parts: dict[str, Any]) -> Path:
    path = folder / "tokenizer.json"
    steps = dict.fromkeys(("normalizer", "pre_tokenizer", "post_processor", "decoder"))
    path.write_text(json.dumps({"version": "1.0", "added_tokens": [], **steps, **parts, "model": model}))
    return path


def check(folder: Path, model: dict[str, Any], parts: dict[str, Any], texts: list[str]) -> Tokenizer:
    path = written(folder, model, parts)
    library, ours = tokenizers.Tokenizer.from_file(str(path)), load_tokenizer(path)
    for text in texts:
        expected = library.encode(text, add_special_tokens=False).ids
        assert ours.encode(text, add_special=False, parse_special=True) == expected, text
        located = ours.encode_segments([Segment(text, Policy.PARSE)], add_special=False, with_offsets=True)
        assert located.ids == expected, text
        assert located.byte_offsets == sorted(located.byte_offsets)
    return ours


Served = tuple[dict[str, Any], dict[str, Any], list[str]]
SERVED: dict[str, Served] = {
    "a normalized token around a special one": (
        pairs(BYTES),
        {"pre_tokenizer": BYTE_LEVEL, "added_tokens": [token(256, "<|im_start|>"), plain(257, "<|im_start|>user")]},
        ["<|im_start|>user", "a<|im_start|>user<|im_start|>"],
    ),
    "a normalized token that ends as a special one begins": (
        pairs(BYTES),
        {"pre_tokenizer": BYTE_LEVEL, "added_tokens": [token(256, "<|end|>"), plain(257, "a longer text <|")]},
        ["a longer text <|end|>", "a longer text <|"],
    ),
    "an added token without text": (
        pairs(BYTES),
        {"pre_tokenizer": BYTE_LEVEL, "added_tokens": [token(256, "")]},
        ["a", ""],
    ),
    "words without a prefix": (word_pieces({"[UNK]": 0, "a": 1, "aa": 2}, ""), BERT, ["a", "aaa", "ab", "a aa"]),
    "words with a letter for a prefix": (
        word_pieces({"[UNK]": 0, "xa": 1, "x": 2, "xx": 3}, "x"),
        BERT,
        ["xa", "xaa", "xxxa", "a", "x xx"],
    ),
    "tokens that are no text of bytes": (
        pairs({"\n": 0, **{letter: index + 1 for letter, index in BYTES.items()}, "中": 257, "a\n": 258}, ("a", "\n")),
        {"pre_tokenizer": BYTE_LEVEL},
        ["\n", "a\n", "中"],
    ),
    "whole tokens that are no text of bytes": (
        pairs(BYTES | {"中": 256, "Ġt": 257, "e": BYTES["e"]}, ("Ġ", "t"), ignore_merges=True),
        {"pre_tokenizer": BYTE_LEVEL, "added_tokens": [token(257, "Ġt", special=False)]},
        ["中", " t", "Ġt", "a t"],
    ),
    "an added token that the model has": (
        pairs(BYTES | {"<x>": 256}),
        {"pre_tokenizer": BYTE_LEVEL, "added_tokens": [token(257, "<x>"), token(258, "ab", special=False)]},
        ["a<x>", "<x><x>"],
    ),
    "an added token that is listed again": (
        pairs(BYTES),
        {"pre_tokenizer": BYTE_LEVEL, "added_tokens": [token(256, "<x>"), token(256, "<x>", lstrip=True)]},
        ["a <x> a"],
    ),
    "an added token that is listed again, as it was": (
        pairs(BYTES),
        {"pre_tokenizer": BYTE_LEVEL, "added_tokens": [token(256, "<x>", lstrip=True), token(257, "<x>")]},
        ["a <x> a"],
    ),
    "Metaspace by default": (
        pairs({"<unk>": 0, "▁": 1, "a": 2}, unk_token="<unk>", fuse_unk=True),
        {"pre_tokenizer": {"type": "Metaspace", "replacement": "▁"}},
        ["a", " a", "a a"],
    ),
    **{
        f"a map that makes spaces, {scheme}": (
            unigrams("▁", "a"),
            {
                "normalizer": {"type": "Precompiled", "precompiled_charsmap": MAP},
                "pre_tokenizer": METASPACE | {"prepend_scheme": scheme},
                "added_tokens": [token(3, "<s>")],
            },
            [
                "\u00a0a",
                "\na",
                "\u200b",
                "\u200b a",
                "<s>\na",
                "<s>a\na",
                "a<s>\u3000a",
                "\x01 a",
                "\x01" * 99 + " a",
                "a",
            ],
        )
        for scheme in ("always", "first", "never")
    },
    **{
        f"merged white space, {name}": (
            unigrams("▁", "a", "a▁a"),
            {"normalizer": {"type": "Sequence", "normalizers": steps}, "pre_tokenizer": cut},
            ["a  ", " a", "  a", "a  a\n", "\ta\u3000 a", "  ", "\n", "\u200ba", "\x01a"],
        )
        for name, steps, cut in (
            ("stripped", [MAPPED, STRIP, MERGE], METASPACE),
            ("to spaces", [MAPPED, STRIP, MERGE | {"content": " "}], METASPACE),
            ("words", [MAPPED, MERGE | {"content": " "}], IN_WORDS),
            ("words alone", [MAPPED], IN_WORDS),
            ("no prefix", [MAPPED, STRIP, MERGE], NEVER),
            (
                "words, which Metaspace leaves",
                [MAPPED],
                IN_WORDS | {"pretokenizers": [SPLIT, METASPACE | {"split": False}]},
            ),
        )
    },
    "signs that are a prefix": (
        word_pieces({"[UNK]": 0, "#": 1, "##": 2, "a": 3, "##a": 4}),
        BERT,
        ["#", "##", "##a", "aa", "a#a"],
    ),
}


@pytest.mark.parametrize("name", SERVED)
def test_ids_are_the_library_s(tmp_path: Path, name: str) -> None:
    check(tmp_path, *SERVED[name])


Refused = tuple[dict[str, Any], dict[str, Any], str]
REFUSED: dict[str, Refused] = {
    "unknown token of pairs": (
        pairs({"a": 0}, unk_token="<unk>"),
        {"pre_tokenizer": WORDS, "added_tokens": [token(1, "<unk>")]},
        "'<unk>' is not in model.vocab",
    ),
    "unknown token of whole words": (
        {"type": "WordLevel", "vocab": {"a": 0}, "unk_token": "<unk>"},
        {"pre_tokenizer": WORDS, "added_tokens": [token(1, "<unk>")]},
        "'<unk>' is not in model.vocab",
    ),
    "a byte that is special": (
        pairs(BYTES),
        {
            "pre_tokenizer": BYTE_LEVEL,
            "normalizer": {"type": "Lowercase"},
            "added_tokens": [token(BYTES["a"], "a")],
        },
        "'a', which stands for a byte",
    ),
    "a normalized token of white space": (
        word_pieces({"[UNK]": 0, "a": 1, "b": 2}),
        {**BERT, "added_tokens": [plain(3, "\n")]},
        "with normalized and this normalizer",
    ),
    "a normalized single word": (
        word_pieces({"[UNK]": 0, "中": 1, "b": 2}),
        {**BERT, "added_tokens": [plain(3, "[X]", single_word=True)]},
        "with normalized and this normalizer",
    ),
    "unknown text without a token for spaces": (
        pairs({"<unk>": 0, "a": 1}, unk_token="<unk>", fuse_unk=True),
        {"pre_tokenizer": NEVER},
        "model.vocab lacks '▁'",
    ),
    "unknown text without a token for spaces, unigrams": (
        unigrams("a"),
        {"pre_tokenizer": NEVER},
        "model.vocab lacks '▁'",
    ),
    "a normal form behind a map": (
        unigrams("▁", "a"),
        {"normalizer": {"type": "Sequence", "normalizers": [MAPPED, {"type": "NFKC"}]}, "pre_tokenizer": METASPACE},
        "the normalizer NFKC",
    ),
    "white space merged before it is stripped": (
        unigrams("▁", "a"),
        {"normalizer": {"type": "Sequence", "normalizers": [MAPPED, MERGE, STRIP]}, "pre_tokenizer": METASPACE},
        "the normalizer Strip",
    ),
    "white space merged before it is mapped": (
        unigrams("▁", "a"),
        {"normalizer": {"type": "Sequence", "normalizers": [MERGE, MAPPED, STRIP]}, "pre_tokenizer": METASPACE},
        "the normalizer Precompiled",
    ),
    "white space marked in front of words": (
        unigrams("▁", "a"),
        {"normalizer": {"type": "Sequence", "normalizers": [MAPPED, MERGE]}, "pre_tokenizer": IN_WORDS},
        "white space",
    ),
    "ids of added tokens that descend": (
        pairs(BYTES),
        {"pre_tokenizer": BYTE_LEVEL, "added_tokens": [token(257, "<x>"), token(256, "<y>")]},
        "added_tokens[1] has the id 256 behind 257",
    ),
    "a map that is not base64": (
        unigrams("▁", "a"),
        {"normalizer": {"type": "Precompiled", "precompiled_charsmap": "!?AAAA"}, "pre_tokenizer": METASPACE},
        "not base64",
    ),
    "an empty map": (
        unigrams("▁", "a"),
        {"normalizer": {"type": "Precompiled", "precompiled_charsmap": ""}, "pre_tokenizer": METASPACE},
        "is empty",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_would_have_other_ids_is_refused(tmp_path: Path, name: str) -> None:
    model, parts, words = REFUSED[name]
    with pytest.raises(FormatError) as caught:
        load_tokenizer(written(tmp_path, model, parts))
    assert words in str(caught.value)


def test_long_added_tokens_take_little_memory_and_time(tmp_path: Path) -> None:
    """By the square of their length this would be 160 MB, and of their number gigabytes."""
    tracemalloc.start()
    long = [token(256, "ab" * 10_000), token(257, "ab" * 9_999 + "c")]
    check(tmp_path, pairs(BYTES), {"pre_tokenizer": BYTE_LEVEL, "added_tokens": long}, ["ab" * 10_000 + "a"])
    assert tracemalloc.get_traced_memory()[1] < 60_000_000
    tracemalloc.stop()
    nested = [token(255 + length, "a" * length) for length in range(2, 1200)]
    with pytest.raises(FormatError, match="begin with one another"):
        load_tokenizer(written(tmp_path, pairs(BYTES), {"pre_tokenizer": BYTE_LEVEL, "added_tokens": nested}))


def test_a_unigram_model_without_a_prefix_gets_none(tmp_path: Path) -> None:
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(["the cat sat on the mat a b c d"] * 50),
        model_writer=model,
        model_type="unigram",
        vocab_size=30,
        add_dummy_prefix=False,
        hard_vocab_limit=False,
        minloglevel=4,
    )
    (tmp_path / "tokenizer.model").write_bytes(model.getvalue())
    ours = load_tokenizer(tmp_path / "tokenizer.model")
    library = sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())
    for text in (" the", "the", "  the  cat", "\tthe", "a b"):
        assert ours.encode(text, add_special=False) == library.encode(text)


def test_gaps_between_the_ids_of_added_tokens_are_kept(tmp_path: Path) -> None:
    """The library numbers such tokens anew; the page says that ids are the file's here."""
    parts = {"pre_tokenizer": BYTE_LEVEL, "added_tokens": [token(256, "<x>"), token(300, "<y>")]}
    ours = load_tokenizer(written(tmp_path, pairs(BYTES), parts))
    assert ours.encode("<x><y>", add_special=False, parse_special=True) == [256, 300]


@pytest.mark.parametrize("prefix", ["##", "", "a"])
def test_a_token_that_is_the_prefix_alone_is_shown_where_it_is_the_first(tmp_path: Path, prefix: str) -> None:
    model = word_pieces({"[UNK]": 0, "##": 1, "a": 2, "##a": 3, "b": 4})
    decoder = {"type": "WordPiece", "prefix": prefix, "cleanup": True}
    path = written(tmp_path, model, {**BERT, "decoder": decoder, "added_tokens": [token(0, "[UNK]")]})
    library, ours = tokenizers.Tokenizer.from_file(str(path)), load_tokenizer(path)
    for ids in ([1], [1, 2], [2, 1], [1, 1, 3], [4, 3, 2], [3, 4], [2], [0, 1, 2], [1, 4]):
        expected = library.decode(ids)
        assert ours.decode(ids) == expected
        stream = ours.stream()
        assert "".join(stream.push([index]) for index in ids) + stream.push([], end=True) == expected
        begun = ours.decode(ids[:1])
        assert begun + ours.stream(context_ids=ids[:1]).push(ids[1:], end=True) == expected


@pytest.mark.parametrize("score", [10**400, -(10**400), 1e39, float("inf"), float("-inf"), float("nan")], ids=str)
def test_a_score_that_is_no_number_of_32_bits_is_refused_by_its_place(tmp_path: Path, score: float) -> None:
    model = unigrams("▁a", "b")
    model["vocab"][2][1] = score
    with pytest.raises(FormatError, match=re.escape("model.vocab[2] has a score that no float32 is")):
        load_tokenizer(written(tmp_path, model, {"pre_tokenizer": METASPACE}))


@pytest.mark.parametrize("score", [3.4028234663852886e38, 3e30, 0, -1e6], ids=str)
def test_a_score_of_32_bits_is_taken_however_large(tmp_path: Path, score: float) -> None:
    model = unigrams("▁", "a", "b")
    model["vocab"][2][1] = score
    check(tmp_path, model, {"pre_tokenizer": METASPACE}, ["ab", "a b", "b"])
