"""llama.cpp's peculiarities: each row of the table in docs/tokenizer.md is true, and every record that is marked as
one is explained by a row."""

from __future__ import annotations

import json
import logging
import re
import unicodedata
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from sentencepiece import SentencePieceProcessor
from sentencepiece.sentencepiece_model_pb2 import ModelProto

from tandem.tokenizer.encoding import Policy, Segment
from tandem.tokenizer.formats import FormatError, load_tokenizer
from tandem.tokenizer.formats.byte_alphabet import ALPHABET
from tandem.tokenizer.tokenizer import Tokenizer
from tandem.tokenizer.vocabularies.bpe.vocabulary import BpeVocabulary
from tandem.tokenizer.vocabulary import TokenType
from tests.tokenizer_svc.gguf_writer import write_gguf
from tests.tokenizer_svc.pieces import pieces_of
from tests.tokenizer_svc.test_gguf import BYTE, CONTROL, NORMAL, USER, byte_pairs, scored
from tests.tokenizer_svc.test_gguf import UNKNOWN as UNKNOWN_PIECE

WORDS = [
    "[PAD]",
    "[UNK]",
    "[CLS]",
    "[SEP]",
    "▁a",
    "b",
    "▁b",
    "▁σ",
    "σ",
    "▁\u1112",
    "\u1161",
    "\u11ab",
    "▁न",
    "ि",
    "▁。",
]
BERT = {
    "tokenizer.ggml.model": "bert",
    "tokenizer.ggml.tokens": WORDS,
    "tokenizer.ggml.token_type": [CONTROL] * 4 + [NORMAL] * (len(WORDS) - 4),
    "tokenizer.ggml.padding_token_id": 0,
    "tokenizer.ggml.unknown_token_id": 1,
    "tokenizer.ggml.cls_token_id": 2,
    "tokenizer.ggml.seperator_token_id": 3,
}
UNKNOWN = 1
Make = Callable[[dict[str, Any]], Tokenizer]
CHECKS: dict[str, Callable[[Make], None]] = {}


def row(name: str) -> Callable[[Callable[[Make], None]], Callable[[Make], None]]:
    """Registers the check of one row of the table."""

    def register(check: Callable[[Make], None]) -> Callable[[Make], None]:
        CHECKS[name] = check
        return check

    return register


def words(make: Make, text: str) -> list[str]:
    return [WORDS[index] for index in make(BERT).encode(text, add_special=False)]


@row("WPM: a literal U+2581")
def _(make: Make) -> None:
    assert words(make, "a▁b") == ["[UNK]"]


@row("WPM: U+2B820 to U+2B91F")
def _(make: Make) -> None:
    assert words(make, "\U0002b820a") == words(make, "\U0002b920a") == ["[UNK]", "▁a"]


@row("WPM: Hangul")
def _(make: Make) -> None:
    assert words(make, "한") == ["▁\u1112", "\u1161", "\u11ab"]


@row("WPM: combining marks")
def _(make: Make) -> None:
    assert words(make, "नि") == ["▁न", "ि"]
    assert words(make, "a\u0301b") == ["▁a", "b"]


@row("WPM: U+000B, U+000C, U+0085")
def _(make: Make) -> None:
    for space in "\v\f\x85":
        assert words(make, f"a{space}b") == ["▁a", "▁b"]


@row("WPM: unassigned and reassigned characters")
def _(make: Make) -> None:
    assert words(make, "a\u0378b") == ["[UNK]"]


@row("WPM: capital sigma")
def _(make: Make) -> None:
    assert words(make, "ΣΣ") == ["▁σ", "σ"]


@row("WPM: long words")
def _(make: Make) -> None:
    assert words(make, "a" + "b" * 300) == ["▁a", *["b"] * 300]


@row("WPM: [SEP]")
def _(make: Make) -> None:
    bert = make(BERT)
    assert bert.encode("a") == [2, 4, 3]
    assert bert.decode([2, 4, 3], remove_special=True, unparse_special=True) == " a[SEP]"


@row("UGM: a space prefix that the file does not want")
def _(make: Make) -> None:
    merging = make(scored(model="t5", remove_extra_whitespaces=True, add_space_prefix=False, add_eos_token=False))
    assert merging.encode("a", add_special=False) == merging.encode("  a", add_special=False) == [259, 260]
    assert merging.decode([259, 260]) == "a"
    keeping = make(scored(model="t5", add_space_prefix=False, add_eos_token=False))
    assert keeping.encode("a", add_special=False) == [260]


@row("UGM: white space alone, where it does not merge")
def _(make: Make) -> None:
    assert make(scored(model="t5", add_space_prefix=True, add_eos_token=False)).encode(" ") == [259, 259]


@row("UGM: pieces that add up to the same score")
def _(make: Make) -> None:
    metadata = scored(model="t5", add_eos_token=False)
    tokens = [*metadata["tokenizer.ggml.tokens"][:261], "aa"]
    library = SentencePieceProcessor(model_proto=unigrams(tokens, [0.0] * 259 + [-3.0, -4.0, -5.0]))
    metadata |= {
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.scores": [0.0] * 259 + [-3.0, -4.0, -5.0],
        "tokenizer.ggml.token_type": metadata["tokenizer.ggml.token_type"][:262],
    }
    assert make(metadata).encode("a" * 7) == library.EncodeAsIds("a" * 7)


def unigrams(tokens: list[str], scores: list[float]) -> bytes:
    """The same vocabulary as a file of SentencePiece."""
    model = ModelProto()
    model.trainer_spec.model_type = model.trainer_spec.UNIGRAM
    model.trainer_spec.byte_fallback = True
    model.normalizer_spec.add_dummy_prefix = model.normalizer_spec.remove_extra_whitespaces = False
    for index, (token, score) in enumerate(zip(tokens, scores, strict=True)):
        kind = UNKNOWN_PIECE if index == 0 else CONTROL if index < 3 else BYTE if index < 259 else NORMAL
        model.pieces.add(piece=token, score=score, type=kind)
    return bytes(model.SerializeToString())


@row("UGM: a literal U+2581 at an end")
def _(make: Make) -> None:
    merging = make(scored(model="t5", remove_extra_whitespaces=True, add_space_prefix=False, add_eos_token=False))
    assert merging.encode("a▁", add_special=False) == merging.encode("a", add_special=False)


@row("RWKV: control tokens in text")
def _(make: Make) -> None:
    rwkv = make({"tokenizer.ggml.model": "rwkv", "tokenizer.ggml.tokens": ["<s>", "a", "<", "s", ">"]} | {
        "tokenizer.ggml.token_type": [CONTROL, NORMAL, NORMAL, NORMAL, NORMAL]
    })  # fmt: skip
    assert rwkv.encode("a<s>", parse_special=False) == [1, 0]
    assert rwkv.encode_segments([Segment("a<s>")]).ids == [1, 2, 3, 4]


@row("SPM: the space prefix")
def _(make: Make) -> None:
    spm = make(scored())
    assert spm.encode("ab</s>ab", parse_special=True) == [1, 263, 2, 263]
    assert spm.encode_segments([Segment("ab"), Segment("ab")]).ids == [1, 263, 262]


@row("SPM: the first space of a decoded text")
def _(make: Make) -> None:
    spm = make(scored())
    assert spm.decode([263, 263]) == "ab ab"
    assert spm.decode([1, 263], remove_special=False) == " ab"
    assert spm.decode([1, 263], remove_special=True) == " ab"


@row("clean_spaces")
def _(make: Make) -> None:
    tokenizer = make(byte_pairs())
    ids = tokenizer.encode("a , it 's , don 't !", add_special=False)
    assert tokenizer.config.clean_spaces
    assert tokenizer.decode(ids) == "a , it 's , don 't !"
    assert tokenizer.decode_bytes(ids, clean_spaces=True) == b"a, it's, don 't!"


@row("Control tokens by their text")
def _(make: Make) -> None:
    tokenizer = make(byte_pairs(tokens=[*ALPHABET, "Ġa", "ab", "Ġab", "<|im_end|>"], token_type=[NORMAL] * 260))
    assert tokenizer.table.types[259] == TokenType.CONTROL
    assert 259 not in tokenizer.encode("<|im_end|>")


@row("lstrip and rstrip")
def _(make: Make) -> None:
    metadata = byte_pairs() | {"general.name": "Phi-3 mini"}
    assert make(metadata).encode("<e> \u00a0a", parse_special=True)[:2] == [259, make(metadata).encode("\u00a0")[0]]
    assert make(byte_pairs()).encode("<e> a", parse_special=True) == [259, 256]


@row("USER_DEFINED tokens")
def _(make: Make) -> None:
    tokenizer = make(byte_pairs(token_type=[NORMAL] * 259 + [USER]))
    for policy in (Policy.TEXT, Policy.PARSE):
        assert tokenizer.encode_segments([Segment("a<e>", policy)]).ids[-1] == 259
    for policy in (Policy.PLAIN, Policy.REJECT):
        assert 259 not in tokenizer.encode_segments([Segment("a<e>", policy)]).ids


@row("The longest special token first")
def _(make: Make) -> None:
    tokens = [*ALPHABET, "Ġa", "ab", "Ġab", "<x", "x<yy>"]
    tokenizer = make(byte_pairs(tokens=tokens, token_type=[NORMAL] * 259 + [CONTROL] * 2))
    assert tokenizer.encode("<x<yy>", parse_special=True) == [*tokenizer.encode("<"), 260]


@row("Bytes without a token")
def _(make: Make) -> None:
    assert BpeVocabulary([(b"a", 0), (b"b", 1)], (r"\S+|\s+",)).encode("a?b").tolist() == [0, 1]


@row("BPE: white space above U+0800 (U+2028, U+3000) in DeepSeek LLM's and Coder's patterns")
def _(make: Make) -> None:
    for pre in ("deepseek-llm", "deepseek-coder"):
        vocabulary = make(byte_pairs(pre=pre)).vocabulary
        assert isinstance(vocabulary, BpeVocabulary)
        assert pieces_of(vocabulary._patterns, "a\u3000b") == ["a", "\u3000", "b"]
        assert pieces_of(vocabulary._patterns, "a\u00a0b") == ["a", "\u00a0b"]  # below U+0800


@row("Several patterns")
def _(make: Make) -> None:
    vocabulary = make(byte_pairs(pre="falcon")).vocabulary
    assert isinstance(vocabulary, BpeVocabulary)
    assert pieces_of(vocabulary._patterns, "a 12345!?") == ["a", " ", "123", "45", "!?"]


@row("BPE: add_space_prefix in the file")
def _(make: Make) -> None:
    tokenizer = make(byte_pairs(add_space_prefix=True))
    assert tokenizer.decode(tokenizer.encode(" ab", add_special=False)) == " ab"


@row("BPE: U+017F after an apostrophe")
def _(make: Make) -> None:
    vocabulary = make(byte_pairs(pre="llama-bpe")).vocabulary
    assert isinstance(vocabulary, BpeVocabulary)
    assert pieces_of(vocabulary._patterns, "a'ſb") == ["a", "'ſb"]
    assert pieces_of(vocabulary._patterns, "a'sb") == ["a", "'s", "b"]


@row("No pre-tokenizer name, or an unknown one")
def _(make: Make) -> None:
    make(byte_pairs(pre=None))
    with pytest.raises(FormatError, match="strange"):
        make(byte_pairs(pre="strange"))


@row("add_bos_token and the like of WPM and RWKV")
def _(make: Make) -> None:
    flags = {"tokenizer.ggml.add_bos_token": False, "tokenizer.ggml.add_eos_token": True}
    assert make(BERT | flags | {"tokenizer.ggml.eos_token_id": 0}).encode("a") == [2, 4, 3]
    rwkv = {"tokenizer.ggml.model": "rwkv", "tokenizer.ggml.tokens": ["<s>", "a"], "tokenizer.ggml.token_type": [3, 1]}
    flags = {"tokenizer.ggml.add_bos_token": True, "tokenizer.ggml.bos_token_id": 0}
    assert make(rwkv | flags).encode("a") == [1]


@row("Ids that are none")
def _(make: Make) -> None:
    assert make(byte_pairs(bos_token_id=2**32 - 1)).config.bos_id is None


@pytest.mark.parametrize("name", CHECKS)
def test_a_row_of_the_table_is_true(name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.ERROR)
    CHECKS[name](lambda metadata: load_tokenizer(write_gguf(tmp_path / "x.gguf", metadata)))


def test_the_table_has_a_check_for_every_row(repository: Path) -> None:
    page = (repository / "docs/tokenizer.md").read_text(encoding="utf-8")
    table = page.partition("| where | llama.cpp |")[2].partition("\n\n")[0]
    names = [line.split(" | ")[0].removeprefix("| ").replace("`", "") for line in table.splitlines()[2:]]
    assert names == list(CHECKS)


# Which texts a row is about.
RECORDS = {
    "WPM: a literal U+2581": re.compile("▁"),
    "WPM: U+2B820 to U+2B91F": re.compile("[\U0002b820-\U0002b91f]"),
    "WPM: Hangul": re.compile("[가-힣]"),
    "WPM: combining marks": lambda text: any(unicodedata.category(each) in ("Mc", "Me") for each in text),
    "WPM: unassigned and reassigned characters": lambda text: any(unicodedata.category(each) == "Cn" for each in text),
}


@cache
def bert_of_the_library(path: Path) -> tokenizers.Tokenizer:
    pieces = [piece.decode() for piece in load_tokenizer(path).table.pieces]
    shown = {
        piece[1:] if piece.startswith(" ") else piece if re.fullmatch(r"\[.*\]", piece) else "##" + piece: index
        for index, piece in enumerate(pieces)
    }
    model = tokenizers.models.WordPiece(shown, unk_token="[UNK]", max_input_chars_per_word=1_000_000)
    library = tokenizers.Tokenizer(model)
    library.normalizer = tokenizers.normalizers.BertNormalizer()
    library.pre_tokenizer = tokenizers.pre_tokenizers.BertPreTokenizer()
    return library


def test_every_marked_record_is_a_row_of_the_table_and_gets_berts_answer(shared_data: Path) -> None:
    seen = 0
    for file in sorted((shared_data / "vectors").glob("*.jsonl")):
        meta, *records = map(json.loads, file.open(encoding="utf-8"))
        marked = [record for record in records if record.get("quirk")]
        seen += len(marked)
        tokenizer = load_tokenizer(shared_data / "vocabularies" / meta["gguf"]) if marked else None
        for record in marked:
            assert tokenizer is not None
            text = record["text"]
            assert record["op"] == "tokenize" and meta["vocab"] == "bert-bge"
            reasons = [
                name for name, is_about in RECORDS.items()
                if (is_about.search(text) if isinstance(is_about, re.Pattern) else is_about(text))
            ]  # fmt: skip
            assert reasons, record
            ids = tokenizer.encode(text, record["add_special"], record["parse_special"])
            assert ids != record["ids"], "no peculiarity: we answer the same"
            # BERT's library drops what Unicode has not assigned; to us it is a letter that no piece has. It also has a
            # spacing mark in U+11A04, which newer versions of Unicode call a non-spacing one.
            text = text.replace("\U00011a04", "")
            known = "".join("\ua66e" if unicodedata.category(each) == "Cn" else each for each in text)
            expected = bert_of_the_library(shared_data / "vocabularies" / meta["gguf"]).encode(known).ids
            assert (ids[1:-1] if record["add_special"] else ids) == expected, record
    assert seen > 0
