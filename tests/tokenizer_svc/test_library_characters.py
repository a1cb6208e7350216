"""What each code point is to Hugging Face's library: to BERT's words, to Punctuation, and to normalizers."""

from __future__ import annotations

from itertools import chain
from pathlib import Path

import pytest
import tokenizers
from tokenizers import models, normalizers, pre_tokenizers

from tandem.tokenizer.formats import load_tokenizer
from tandem.tokenizer.formats.byte_alphabet import ALPHABET
from tandem.tokenizer.normalizing import FORMS, Normalizer

# All code points, but of Han, Hangul and private use, which are thousands in a row and all alike, the ends.
ENDS = [1, 0x3500, 0x4D00, 0x4F00, 0x9F00, 0xAD00, 0xD700, 0xD800, 0xE000, 0xE100, 0xF800, 0x17100, 0x18700, 0x20100]
ENDS += [0x2A600, 0x2D000, 0x2EB00, 0x2FB00, 0xE0000, 0xF0100, 0xFFF00, 0x100100, 0x10FF00, 0x110000]
CHARACTERS = list(map(chr, chain.from_iterable(map(range, ENDS[::2], ENDS[1::2]))))


def differing(found: list[str] | list[list[int]], expected: list[str] | list[list[int]]) -> list[str]:
    pairs = zip(CHARACTERS, found, expected, strict=True)
    return [f"U+{ord(character):04X}" for character, ours, theirs in pairs if ours != theirs]


def check_ids(folder: Path, library: tokenizers.Tokenizer) -> None:
    """Has every character encoded by both, between two letters."""
    library.save(str(folder / "tokenizer.json"))
    texts = [f"a{character}b" for character in CHARACTERS]
    found = [ids.tolist() for ids in load_tokenizer(folder).vocabulary.encode_many(texts)]
    assert differing(found, [each.ids for each in library.encode_batch(texts, add_special_tokens=False)]) == []


@pytest.mark.parametrize("lowercase", [True, False], ids=["uncased", "cased"])
def test_words_of_bert(tmp_path: Path, lowercase: bool) -> None:
    pieces = ["[UNK]", "a", "##b", "b", "##a"]
    library = tokenizers.Tokenizer(models.WordPiece({text: at for at, text in enumerate(pieces)}, unk_token="[UNK]"))
    library.normalizer = normalizers.BertNormalizer(lowercase=lowercase)
    library.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    check_ids(tmp_path, library)


def test_punctuation_in_front_of_bytes(tmp_path: Path) -> None:
    """The letter joins the first byte of what follows, but not of punctuation, which is a piece of its own."""
    merges = [("a", byte) for byte in ALPHABET]
    texts = [*ALPHABET, *map("".join, merges)]
    library = tokenizers.Tokenizer(models.BPE({text: at for at, text in enumerate(texts)}, merges))
    library.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Punctuation(), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    check_ids(tmp_path, library)


def test_words_between_punctuation(tmp_path: Path) -> None:
    library = tokenizers.Tokenizer(models.WordLevel({"<unk>": 0, "a": 1, "b": 2}, "<unk>"))
    library.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    check_ids(tmp_path, library)


@pytest.mark.parametrize("step", [*FORMS, "StripAccents", "Lowercase"])
@pytest.mark.parametrize("form", ["{}", "e\u0301{}\u0334", "e\u0334{}\u0301\u0327"])
def test_normalizers(step: str, form: str) -> None:
    """Each character by itself, and among marks that it could change places with."""
    text = "\0".join(map(form.format, CHARACTERS))
    normal = Normalizer([step]).apply(text)
    assert differing(normal.split("\0"), getattr(normalizers, step)().normalize_str(text).split("\0")) == []
    assert Normalizer([step]).locate(text)[0] == normal
