"""Mistral's tekken.json against mistral-common, which brings files of it; its demands on numpy keep it out of the
development environment."""

from __future__ import annotations

import base64
import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tandem.tokenizer.formats import FormatError, load_tokenizer
from tandem.tokenizer.vocabulary import TokenType

PATTERN = r"\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+|\s+"
ALPHABET = [
    "word",
    "Wörter",
    "ΑΒΓ",
    "don't",
    "I'LL",
    "12345",
    "漢字かな",
    "🙂‍↔️",
    "e\u0301",
    "/n",
    "...",
    "\t",
    "[INST]",
]


@pytest.mark.parametrize("name", ["tekken_240718.json", "tekken_240911.json"])
def test_texts_have_the_ids_of_mistral_common(name: str) -> None:
    common = pytest.importorskip("mistral_common", reason="mistral-common is not installed")
    tekken = pytest.importorskip("mistral_common.tokens.tokenizers.tekken")
    path = Path(common.__file__).parent / "data" / name
    theirs, ours = tekken.Tekkenizer.from_file(path), load_tokenizer(path)
    assert (ours.vocabulary_size, ours.config.bos_id, ours.config.eos_id) == (theirs.n_words, 1, 2)
    assert (ours.config.pad_id, ours.config.unk_id) == (theirs.pad_id, theirs.unk_id)
    generator = random.Random(0)
    for _ in range(500):
        parts = generator.choices(ALPHABET, k=generator.randrange(12))
        text = "".join(part + generator.choice(["", " ", "  ", "\n", "\r\n\n", " \n "]) for part in parts)
        assert list(ours.encode(text, False, False)) == theirs.encode(text, bos=False, eos=False), text
    assert list(ours.encode("a", True, False)) == theirs.encode("a", bos=True, eos=False)
    assert list(ours.encode("[INST]x[/INST]", False, True)) == [3, *theirs.encode("x", bos=False, eos=False), 4]


def content(**changes: Any) -> dict[str, Any]:
    """A small file: all bytes and one merge, two special tokens of which the second has no name, a rank too many."""
    pieces = [*(bytes([byte]) for byte in range(256)), b"ab", b"abc"]
    vocab = [{"rank": rank, "token_bytes": base64.b64encode(piece).decode()} for rank, piece in enumerate(pieces)]
    config = {"pattern": PATTERN, "default_vocab_size": 259, "default_num_special_tokens": 2, "version": "v3"}
    special = [{"rank": 0, "token_str": "<s>", "is_control": True}]
    return {"config": config | {"num_vocab_tokens": 258}, "vocab": vocab, "special_tokens": special} | changes


def test_special_tokens_come_first_and_ranks_beyond_the_vocabulary_are_left_out(tmp_path: Path) -> None:
    (tmp_path / "tekken.json").write_text(json.dumps(content()))
    tokenizer = load_tokenizer(tmp_path)
    assert tokenizer.vocabulary_size == 259
    assert list(tokenizer.encode("abc", False, False)) == [258, 2 + ord("c")]
    assert list(tokenizer.encode("a<SPECIAL_1>", True, True)) == [0, 2 + ord("a"), 1]
    assert tokenizer.table.specials[1].type == TokenType.CONTROL


def _config(**changes: Any) -> dict[str, Any]:
    return {"config": content()["config"] | changes}


BROKEN: dict[str, tuple[Callable[[], dict[str, Any]], str]] = {
    "a field of tomorrow": (lambda: _config(lowercase=True), "config.lowercase is not known"),
    "no pattern": (lambda: _config(pattern=None), "config.pattern is None"),
    "a broken pattern": (lambda: _config(pattern="("), "tekken.json"),
    "no size": (lambda: _config(default_vocab_size=-1), "config.default_vocab_size is -1"),
    "too many special tokens": (lambda: _config(default_num_special_tokens=259), "default_num_special_tokens is 259"),
    "too few ranks": (lambda: _config(default_vocab_size=300), "vocab has 258 tokens"),
    "ranks out of order": (lambda: {"vocab": content()["vocab"][::-1]}, "vocab[0] has the rank 257"),
    "not base64": (lambda: {"vocab": [{"rank": 0, "token_bytes": "!"}] * 258}, "vocab[0] is"),
    "a token twice": (
        lambda: {"vocab": [{"rank": rank, "token_bytes": "YQ=="} for rank in range(258)]},
        "vocab has the same bytes twice",
    ),
    "a special token beyond": (lambda: {"special_tokens": [{"rank": 2, "token_str": "x"}]}, "special_tokens[0] is"),
    "no list": (lambda: {"special_tokens": {"x": 1}}, "special_tokens is"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_what_is_broken_is_said_by_name(name: str, tmp_path: Path) -> None:
    change, problem = BROKEN[name]
    (tmp_path / "tekken.json").write_text(json.dumps(content(**change())))
    with pytest.raises(FormatError) as error:
        load_tokenizer(tmp_path)
    assert problem in str(error.value) and "\n" not in str(error.value)
