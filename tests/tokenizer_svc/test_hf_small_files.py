"""Small `tokenizer.json` files, each with a peculiarity, give the library's ids or are refused by name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import tokenizers

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
        {
            "pre_tokenizer": BYTE_LEVEL,
            "added_tokens": [token(256, "<|im_start|>"), plain(257, "<|im_start|>user"), plain(258, "b<|im_")],
        },
        ["<|im_start|>user", "b<|im_start|>", "b<|im_", "<|im_start|>user<|im_start|>"],
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
