"""WordLevel behind each pre-tokenizer that makes words, and Unigram behind normalizers, give what the library gives."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import decoders, models, normalizers, pre_tokenizers

from tandem.tokenizer.encoding import Policy, Segment
from tandem.tokenizer.formats import FormatError, load_tokenizer
from tandem.tokenizer.vocabulary import VocabularyType
from tests.exhaustive import some
from tests.tokenizer_svc.test_hf_pipeline import is_old

WORDS = ["<unk>", "<s>", "a", "ab", "b", "12", "3", ".", ",", "..", "\u00e9", "e", "\u9f98", "_", "fi", "a.b", "\u30ab"]
TEXT = st.text("ab12.,_ \u00e9e\u0301\u9f98\ufb01\u3000\u200d\n\u00a0\u2160\uff76\uff9eA$", max_size=14) | st.text(
    st.characters(exclude_categories=["Cs", "Cn", "Co"]).filter(is_old), max_size=8
)
CUTS: dict[str, Any] = {
    "none": None,
    "Whitespace": pre_tokenizers.Whitespace(),
    "WhitespaceSplit": pre_tokenizers.WhitespaceSplit(),
    "BertPreTokenizer": pre_tokenizers.BertPreTokenizer(),
    "several": pre_tokenizers.Sequence(
        [pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Digits(individual_digits=False), pre_tokenizers.Punctuation()]
    ),
    "split": pre_tokenizers.Sequence(
        [pre_tokenizers.Whitespace(), pre_tokenizers.Split(tokenizers.Regex("b"), "merged_with_next")]
    ),
}


@pytest.mark.parametrize("cut", CUTS)
@given(texts=st.lists(TEXT, min_size=1, max_size=4), form=st.sampled_from(["", "NFKC", "NFD", "Lowercase"]))
def test_whole_words(tmp_path: Path, cut: str, texts: list[str], form: str) -> None:
    library = tokenizers.Tokenizer(models.WordLevel({word: index for index, word in enumerate(WORDS)}, "<unk>"))
    if form:
        library.normalizer = getattr(normalizers, form)()
    if CUTS[cut] is not None:
        library.pre_tokenizer = CUTS[cut]
    library.add_special_tokens(["<s>", "<unk>"])
    library.save(str(tmp_path / "tokenizer.json"))
    ours = load_tokenizer(tmp_path)
    assert ours.type is VocabularyType.WPM
    for text in [*texts, f"{texts[0]}<s>{texts[-1]}"]:
        expected = library.encode(text)
        found = ours.encode_segments([Segment(text, Policy.PARSE)], with_offsets=True)
        assert found.ids == expected.ids == ours.encode(text, parse_special=True)
        places = zip(found.code_point_offsets or (), found.code_point_ends or (), strict=True)
        assert list(places) == expected.offsets
        assert ours.decode(found.ids) == library.decode(found.ids)
        shown = ours.decode(found.ids, unparse_special=True)
        assert shown == library.decode(found.ids, skip_special_tokens=False)


MERGES = [
    ("a", "b"),
    ("b", "a"),
    ("ab", "a"),
    ("b", "b"),
    ("1", "2"),
    (".", "."),
    ("a", "ba"),
    ("ab", "ab"),
    ("e", "a"),
]
LETTERS = ["<unk>", "<s>", *"ab12.,_e\u00e9\u9f98", "ab", "ba", "aba", "bb", "12", "..", "abab", "ea", "a.b", "abba"]


@pytest.mark.parametrize("cut", some([name for name in CUTS if name != "none"], "Whitespace"))
@given(
    texts=st.lists(TEXT | st.text("ab12. e", max_size=30), min_size=1, max_size=4),
    form=st.sampled_from(["", "NFKC", "NFD"]),
    fused=st.booleans(),
    unknown=st.booleans(),
    whole=st.booleans(),
    spelt=st.booleans(),
)
def test_pairs_of_characters_of_words(
    tmp_path: Path, cut: str, texts: list[str], form: str, fused: bool, unknown: bool, whole: bool, spelt: bool
) -> None:
    names = LETTERS + [f"<0x{byte:02X}>" for byte in range(256)] if spelt else LETTERS
    options = {"unk_token": "<unk>"} if unknown else {}
    library = tokenizers.Tokenizer(
        models.BPE(
            {text: index for index, text in enumerate(names)},
            [(left, right) for left, right in MERGES if left + right in names],
            fuse_unk=fused,
            ignore_merges=whole,
            byte_fallback=spelt,
            **options,
        )
    )
    if form:
        library.normalizer = getattr(normalizers, form)()
    library.pre_tokenizer = CUTS[cut]
    if spelt:
        library.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Fuse()])
    library.add_special_tokens(["<s>", "<unk>"])
    library.save(str(tmp_path / "tokenizer.json"))
    ours = load_tokenizer(tmp_path)
    assert ours.type is VocabularyType.BPE
    for text in [*texts, f"{texts[0]}<s>{texts[-1]}", "ab" * 300]:
        expected = library.encode(text)
        found = ours.encode_segments([Segment(text, Policy.PARSE)], with_offsets=True)
        assert found.ids == expected.ids == ours.encode(text, parse_special=True)
        if unknown and not spelt:  # the library's places move by what it leaves out
            places = zip(found.code_point_offsets or (), found.code_point_ends or (), strict=True)
            assert list(places) == expected.offsets
        assert ours.decode(found.ids) == library.decode(found.ids)


def test_words_without_an_unknown_token_are_refused(tmp_path: Path) -> None:
    tokenizers.Tokenizer(models.WordLevel({"a": 0}, "<unk>")).save(str(tmp_path / "tokenizer.json"))
    with pytest.raises(FormatError, match="there is no unknown token"):
        load_tokenizer(tmp_path)


PIECES = [("<unk>", 0.0), ("<s>", 0.0), ("\u2581", -3.1), ("a", -2.07), ("b", -2.23), ("ab", -3.01), ("\u2581a", -2.51)]
PIECES += [("e", -2.71), ("\u00e9", -3.33), ("\u0301", -3.47), ("fi", -5.3), ("f", -3.9), ("i", -4.1), ("\u30ab", -2.9)]
PIECES += [("\u2581ab", -3.77), ("\u2581fi", -5.9), ("\u9f98", -4.7), ("A", -4.9), ("\u2581A", -5.53)]
STEPS = [["NFKC"], ["NFC"], ["NFD", "StripAccents"], ["NFKC", "Lowercase"], ["NFKD", "StripAccents", "Lowercase"]]


@pytest.mark.parametrize("forms", STEPS, ids=lambda forms: "+".join(forms))
@given(texts=st.lists(st.text("ab \u00e9e\u0301\ufb01fi\uff76\u9f98A\u3000\u00a0\u2581", max_size=12), max_size=4))
@pytest.mark.parametrize("scheme", ["always", "never"])
def test_unigrams_behind_normalizers(tmp_path: Path, forms: list[str], scheme: Any, texts: list[str]) -> None:
    """Prefix and spaces are those of the normalized text: U+3000 becomes a space, and a mark may vanish."""
    library = tokenizers.Tokenizer(models.Unigram(PIECES, unk_id=0))
    library.normalizer = normalizers.Sequence([getattr(normalizers, form)() for form in forms])
    library.pre_tokenizer = pre_tokenizers.Metaspace("\u2581", scheme)
    library.decoder = decoders.Metaspace("\u2581", scheme)
    library.add_special_tokens(["<unk>", "<s>"])
    library.save(str(tmp_path / "tokenizer.json"))
    ours = load_tokenizer(tmp_path)
    for text in texts:
        ids = library.encode(text).ids
        assert ours.encode(text, parse_special=True) == ids
        assert ours.decode(ids) == library.decode(ids)
