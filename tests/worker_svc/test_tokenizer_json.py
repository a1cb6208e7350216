"""A tokenizer.json that is made gives the ids of our own encoder, on texts and on noise; where none does, why."""

from __future__ import annotations

import json
import random
from functools import cache
from pathlib import Path

import pytest
from tokenizers import Tokenizer

from tandem.common.gguf import read_metadata
from tandem.tokenizer.formats import load_tokenizer
from tandem.worker.convert.byte_pairs import UnknownTokenizerError, from_ranks
from tandem.worker.convert.tokenizer_json import _vocabulary, tokenizer_files, tokenizer_json

ALPHABETS = (
    *(
        "ab ",
        "a \n\t",
        "aA1.,'s ",
        "日本語 éüñ ß",
        "😀👍🏽 x\u200d▁",
        "-=*# _",
        "\r\n  ",
        "abcdefgh the ing ",
        "0123456789 ,.",
    ),
    *("aaa ", "éé\u0301 \u00a0\u3000"),
)


@cache
def noise() -> list[str]:
    draw = random.Random(1)
    return [
        "",
        " ",
        "  x ",
        *("".join(draw.choices(draw.choice(ALPHABETS), k=draw.randrange(1, 60))) for _ in range(800)),
    ]


def assert_same_ids(content: dict[str, object], file: Path, texts: list[str]) -> None:
    theirs, ours = Tokenizer.from_str(json.dumps(content)), load_tokenizer(file)
    for text in texts:
        ids = ours.encode(text, add_special=True, parse_special=True)
        assert theirs.encode(text).ids == list(map(int, ids)), repr(text)
        if "▁" not in text and "<|" not in text:  # a space to SentencePiece; a control token, which is not shown
            assert theirs.decode(theirs.encode(text).ids) == text


def test_of_the_demo_model(repository: Path) -> None:
    demo = repository / "models" / "demo"
    files = tokenizer_files(demo)
    prose = (repository / "docs" / "design.md").read_text()
    assert_same_ids(json.loads(files["tokenizer.json"]), demo / "tokenizer.model", [*noise(), prose])
    config = json.loads(files["tokenizer_config.json"])
    assert (config["bos_token"], config["eos_token"], config["add_bos_token"]) == ("<s>", "</s>", True)


@pytest.mark.parametrize("name", ["llama-spm", "stories260K", "gpt-2", "starcoder", "llama-bpe"])
def test_of_gguf_vocabularies(shared_data: Path, name: str) -> None:
    file = shared_data / "vocabularies" / f"ggml-vocab-{name}.gguf"
    prose = (shared_data / "corpus" / "botchan.txt").read_text()[:20_000]
    assert_same_ids(tokenizer_json(_vocabulary(file)), file, [*noise(), prose])


def test_of_llama_3_s_ranks(shared_data: Path) -> None:
    file = shared_data / "formats" / "llama3" / "tokenizer.model"
    beside = json.loads((file.parent / "tokenizer_config.json").read_text())
    keys = from_ranks(file, 128_256, beside, [128_001], scaled_rope=False)
    assert_same_ids(tokenizer_json(keys), file, [*noise(), "<|begin_of_text|>a<|eot_id|> b"])


def test_what_has_no_exact_form_says_why(shared_data: Path) -> None:
    for name, reason in (
        ("t5-small", "type 't5'"),
        ("falcon", "cuts text as 'falcon'"),
        ("phi-3", "swallow the spaces"),
    ):
        keys = read_metadata(shared_data / "vocabularies" / f"ggml-vocab-{name}.gguf", lambda key: True)
        with pytest.raises(UnknownTokenizerError, match=reason):
            tokenizer_json(keys)


def vocabulary(scores: dict[str, float], kinds: dict[str, int] | None = None) -> dict[str, object]:
    """Keys of a SentencePiece vocabulary with all bytes."""
    tokens = ["<unk>", *(f"<0x{byte:02X}>" for byte in range(256)), *scores]
    return {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": [token.encode() for token in tokens],
        "tokenizer.ggml.scores": [0.0] * 257 + list(scores.values()),
        "tokenizer.ggml.token_type": [2] + [6] * 256 + [(kinds or {}).get(text, 1) for text in scores],
        "tokenizer.ggml.add_bos_token": False,
    }


@pytest.mark.parametrize(
    ("keys", "reason"),
    [
        (vocabulary({"a": -1, "b": -1, "c": -1, "ab": -2, "bc": -2}), "2 pieces of the score -2"),
        (vocabulary({"a": -1, "b": -1, "ab": -2}, {"ab": 5}), "marked as unused"),
        (vocabulary({"ab": -2, "a": -1, "abab": -3, "ababé": -3.5, "b": -1}), "joins the character"),
        ({**vocabulary({"a": 0}), "tokenizer.ggml.add_eos_token": True}, "adds an end-of-sequence token"),
        ({**vocabulary({"a": 0}), "tokenizer.ggml.token_type": [1] * 258}, "no piece for each byte"),
        ({"tokenizer.ggml.model": "gpt2", "tokenizer.ggml.tokens": [b"\xff"]}, "not UTF-8"),
        ({"tokenizer.ggml.model": "gpt2", "tokenizer.ggml.tokens": [b"a", b"a"]}, "same text"),
    ],
)
def test_vocabularies_whose_order_of_merges_is_not_that_of_ranks_are_refused(
    keys: dict[str, object], reason: str
) -> None:
    with pytest.raises(UnknownTokenizerError, match=reason):
        tokenizer_json(keys)
