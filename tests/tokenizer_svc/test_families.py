"""2,000 random texts for each family of tokenizers: ids and text are those of the library that made the file."""

from __future__ import annotations

import base64
import io
import json
import random
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import sentencepiece
import tiktoken
import tokenizers
from tiktoken.load import load_tiktoken_bpe
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors, trainers

from tandem.tokenizer.formats import RankSettings, load_tokenizer
from tandem.tokenizer.tokenizer import Tokenizer
from tests.tokenizer_svc.test_hf_json import KINDS, gpt2_like
from tests.tokenizer_svc.test_hf_pipeline import is_old
from tests.tokenizer_svc.test_ranks import CL100K, O200K
from tests.tokenizer_svc.test_vocabularies import META_PATTERN

TEXTS = 2000
WORDS = [
    "don't",
    "I'LL",
    "'S",
    "x=1;",
    "def f():",
    "http://a.b/c?d=e#f",
    "ﬁ",
    "½",
    "Ａ",
    "ｶﾞ",
    "①",
    "<s>",
    "</s>",
    "[CLS]",
]
WORDS += [
    "<0x0A>",
    "▁",
    "##a",
    "Ġ",
    "a\u0301\u0323",
    "e\u0301",
    "한국어",
    "\u1112\u1161\u11ab",
    "漢字",
    "кошка",
    "שלום",
    "ไทย",
]
WORDS += [
    "हिन्दी",
    "👩‍🚀",
    "🇫🇷🇯🇵",
    "👍🏽",
    "❤️",
    "\u200d",
    "\ufeff",
    "\u00ad",
    "\0",
    "\x7f",
    "\u2028",
    "İ",
    "Σς",
    "ǅ",
    "ß",
]
SPACES = [" ", "  ", "\n", "\r\n", "\t", "\u00a0", "\u3000", "\u2009", " \n ", "\n\n\n", "\v", "\f", "\x85"]
OLD = [chr(code) for code in range(sys.maxunicode) if not 0xD800 <= code <= 0xF8FF and is_old(chr(code))]


class Family(NamedTuple):
    """Our tokenizer, and what a library makes of a text and of ids."""

    ours: Tokenizer
    encode: Callable[[str], list[int]]
    decode: Callable[[list[int]], str] | None = None
    left_out: tuple[str, ...] = ()  # what texts do not have
    same_score: bool = False  # the library may take another one of equally good ways


def random_texts(corpus: str) -> list[str]:
    chance = random.Random(0)

    def part() -> str:
        match chance.randrange(8):
            case 0 | 1:
                start = chance.randrange(len(corpus))
                return corpus[start : start + chance.randrange(1, 50)]
            case 2:
                return "".join(chance.choices(OLD, k=chance.randrange(1, 6)))
            case 3:
                return chance.choice(SPACES) * chance.randrange(1, 4)
            case 4:
                return str(chance.randrange(10 ** chance.randrange(1, 12)))
            case 5:
                return chance.choice("a .-!é龘0=_\n") * chance.randrange(1, 40)
            case _:
                return chance.choice(WORDS)

    return ["".join(part() for _ in range(chance.randrange(12))) for _ in range(TEXTS)]


def lines_of(shared: Path) -> list[str]:
    return (shared / "corpus/botchan.txt").read_text(encoding="utf-8").splitlines()[:1500]


def of_library(library: tokenizers.Tokenizer, folder: Path, **more: Any) -> Family:
    """A file of `tokenizers`, which puts spaces into what it decodes as its decoder says."""
    (folder / "tokenizer.json").write_text(library.to_str())
    return of_file(folder / "tokenizer.json", **more)


def of_file(path: Path, **more: Any) -> Family:
    library = tokenizers.Tokenizer.from_file(str(path))
    return Family(
        load_tokenizer(path),
        lambda text: library.encode(text, add_special_tokens=False).ids,
        lambda ids: library.decode(ids, skip_special_tokens=False),
        **more,
    )


def trained(kind: str) -> Callable[[Path, Path], Family]:
    def make(shared: Path, folder: Path) -> Family:
        library, trainer = KINDS[kind]()
        library.train_from_iterator(lines_of(shared), trainer)
        content = json.loads(library.to_str())
        if kind == "llama2":  # the trainer can only make control tokens of them
            content["added_tokens"] = content["added_tokens"][:3]
        (folder / "tokenizer.json").write_text(json.dumps(content))
        # The library puts its prefix in front of special tokens, llama.cpp behind.
        family = of_file(folder / "tokenizer.json", left_out=("<s>", "</s>") if kind == "llama2" else ())
        return family._replace(decode=None) if kind in ("llama2", "bert") else family

    return make


def words(shared: Path, folder: Path) -> Family:
    library = tokenizers.Tokenizer(models.WordLevel(unk_token="<unk>"))
    library.pre_tokenizer = pre_tokenizers.Whitespace()
    special = ["<unk>", "<s>"]
    library.train_from_iterator(
        lines_of(shared), trainers.WordLevelTrainer(vocab_size=900, special_tokens=special, show_progress=False)
    )
    return of_library(library, folder)


def pairs_of_characters(shared: Path, folder: Path) -> Family:
    library = tokenizers.Tokenizer(models.BPE(unk_token="<unk>"))
    library.normalizer = normalizers.NFC()
    library.pre_tokenizer = pre_tokenizers.Whitespace()
    trainer = trainers.BpeTrainer(vocab_size=900, special_tokens=["<unk>", "<s>"], show_progress=False)
    library.train_from_iterator(lines_of(shared), trainer)
    return of_library(library, folder)


def unigrams(shared: Path, folder: Path) -> Family:
    library = tokenizers.Tokenizer(models.Unigram())
    library.normalizer = normalizers.NFKC()
    library.pre_tokenizer = pre_tokenizers.Metaspace()
    library.decoder = decoders.Metaspace()
    trainer = trainers.UnigramTrainer(
        vocab_size=700, special_tokens=["<unk>", "<s>"], unk_token="<unk>", show_progress=False
    )
    library.train_from_iterator(lines_of(shared), trainer)
    return of_library(library, folder, same_score=True)


def glm(shared: Path, folder: Path) -> Family:
    """Several tokens in front of a text."""
    library, trainer = gpt2_like()
    library.train_from_iterator(lines_of(shared), trainer)
    library.add_special_tokens(["[gMASK]", "<sop>"])
    ids = [(text, library.token_to_id(text)) for text in ("[gMASK]", "<sop>")]
    library.post_processor = processors.TemplateProcessing(
        single="[gMASK] <sop> $A", pair="[gMASK] <sop> $A $B", special_tokens=ids
    )
    family = of_library(library, folder)
    added = [number for _, number in ids]
    assert family.ours.encode("a") == added + family.encode("a") == library.encode("a").ids
    return family


def of_sentencepiece(**options: Any) -> Callable[[Path, Path], Family]:
    def make(shared: Path, folder: Path) -> Family:
        made = io.BytesIO()
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(lines_of(shared)),
            model_writer=made,
            vocab_size=800,
            minloglevel=2,
            **options,
        )
        (folder / "tokenizer.model").write_bytes(made.getvalue())
        return of_model(folder / "tokenizer.model", same_score=options["model_type"] == "unigram")

    return make


def of_model(path: Path, **more: Any) -> Family:
    library = sentencepiece.SentencePieceProcessor(model_file=str(path))
    return Family(load_tokenizer(path), library.encode, left_out=("<s>", "</s>"), **more)


def of_ranks(name: str, pattern: str) -> Callable[[Path, Path], Family]:
    def make(shared: Path, folder: Path) -> Family:
        [path] = (shared / "formats/tiktoken").glob(f"*{name}*")
        ours = load_tokenizer(path, ranks=RankSettings(pattern, {}))
        return of_tiktoken(ours, load_tiktoken_bpe(str(path)), pattern)

    return make


def of_tiktoken(ours: Tokenizer, ranks: dict[bytes, int], pattern: str, first: int = 0) -> Family:
    """`ſ` is no s for our patterns, as docs/tokenizer.md says."""
    library = tiktoken.Encoding("theirs", pat_str=pattern, mergeable_ranks=ranks, special_tokens={})
    return Family(
        ours,
        lambda text: [first + number for number in library.encode_ordinary(text)],
        lambda ids: library.decode([number - first for number in ids]),
        left_out=("ſ", "<s>", "</s>"),
    )


def llama3(shared: Path, folder: Path) -> Family:
    path = shared / "formats/llama3"
    return of_tiktoken(load_tokenizer(path), load_tiktoken_bpe(str(path / "tokenizer.model")), META_PATTERN)


def tekken(shared: Path, folder: Path) -> Family:
    """Whose library asks tiktoken; ids are behind those of special tokens."""
    [path] = (shared / "formats/tiktoken").glob("*cl100k*")
    ranks = load_tiktoken_bpe(str(path))
    vocab = [{"rank": rank, "token_bytes": base64.b64encode(piece).decode()} for piece, rank in ranks.items()]
    config = {"pattern": O200K, "default_vocab_size": len(ranks) + 10, "default_num_special_tokens": 10}
    config |= {"num_vocab_tokens": len(ranks), "version": "v3"}
    special = [{"rank": 0, "token_str": "<unk>", "is_control": True}]
    content = {"config": config, "vocab": sorted(vocab, key=lambda one: one["rank"]), "special_tokens": special}
    (folder / "tekken.json").write_text(json.dumps(content))
    return of_tiktoken(load_tokenizer(folder), ranks, O200K, 10)


GPT2 = r"'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
FAMILIES: dict[str, Callable[[Path, Path], Family]] = {
    **{f"tokenizers: {kind}": trained(kind) for kind in KINDS},
    "tokenizers: words": words,
    "tokenizers: pairs of characters": pairs_of_characters,
    "tokenizers: unigrams": unigrams,
    "tokenizers: glm": glm,
    "tokenizers: phi-2": lambda shared, _: of_file(shared / "formats/phi-2/tokenizer.json"),
    # We do as sentencepiece does, which made its vocabulary: U+0085 is no white space, and U+200D stays.
    "tokenizers: t5": lambda shared, _: of_file(
        shared / "formats/t5-small/tokenizer.json", same_score=True, left_out=("\x85", "\u200d")
    ),
    "sentencepiece: llama2": lambda shared, _: of_model(shared / "formats/llama2/tokenizer.model"),
    "sentencepiece: unigram": lambda shared, _: of_model(
        shared / "formats/sentencepiece/test_model.model", same_score=True
    ),
    "sentencepiece: pairs, bytes": of_sentencepiece(model_type="bpe", byte_fallback=True),
    "sentencepiece: pairs, as they are": of_sentencepiece(model_type="bpe", normalization_rule_name="identity"),
    "sentencepiece: unigrams, bytes": of_sentencepiece(model_type="unigram", byte_fallback=True),
    "sentencepiece: unigrams, folded": of_sentencepiece(model_type="unigram", normalization_rule_name="nmt_nfkc_cf"),
    "tiktoken: llama3": llama3,
    "tiktoken: gpt2": of_ranks("gpt2", GPT2),
    "tiktoken: cl100k": of_ranks("cl100k", CL100K),
    "tiktoken: o200k": of_ranks("cl100k", O200K),
    "tiktoken: tekken": tekken,
}


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", FAMILIES)
def test_random_texts_have_the_ids_of_the_library(name: str, shared_data: Path, tmp_path: Path) -> None:
    family = FAMILIES[name](shared_data, tmp_path)
    ours = family.ours
    for text in random_texts((shared_data / "corpus/tinyshakespeare.txt").read_text(encoding="utf-8")):
        for part in family.left_out:
            text = text.replace(part, "")
        expected = family.encode(text)
        ids = ours.encode(text, add_special=False, parse_special=True)
        if ids != expected and family.same_score:
            scores = ours.table.scores
            assert sum(scores[one] for one in ids) == pytest.approx(sum(scores[one] for one in expected), rel=1e-5)
            continue
        assert ids == expected, text
        if family.decode is not None:
            assert ours.decode(ids, unparse_special=True) == family.decode(ids), text
