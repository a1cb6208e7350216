"""Pairs of texts, what post-processors put around texts, and where tokens end: as in the `tokenizers` library."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import models, normalizers, pre_tokenizers, processors

from tandem.tokenizer.encoding import Segment, TruncationError
from tandem.tokenizer.formats import FormatError, load_tokenizer
from tandem.tokenizer.formats.byte_alphabet import ALPHABET
from tandem.tokenizer.tokenizer import Tokenizer

TEXT = st.text("ab éÉ\u0301龘😀\n", max_size=12)
SPECIALS = ("[CLS]", "[SEP]", "[gMASK]", "<sop>")
IDS = {text: index for index, text in enumerate(SPECIALS)}


def template(single: str, pair: str) -> Any:
    return processors.TemplateProcessing(single=single, pair=pair, special_tokens=list(IDS.items()))


PROCESSORS: dict[str, Any] = {
    "none": None,
    "bytes": processors.ByteLevel(trim_offsets=False),
    "bert": processors.BertProcessing(("[SEP]", 1), ("[CLS]", 0)),
    "roberta": processors.RobertaProcessing(("[SEP]", 1), ("[CLS]", 0), trim_offsets=False),
    "glm": template("[gMASK] <sop> $A", "[gMASK] <sop> $A $B"),
    "llama": template("[CLS] $A", "[CLS] $A [CLS]:1 $B:1"),
    "much": template("[CLS] $A [SEP] <sop>", "[CLS] <sop>:3 $A:2 [SEP] [SEP]:1 $B:1 [SEP]:4"),
    "sequence": processors.Sequence([processors.ByteLevel(trim_offsets=False), template("$A [SEP]", "$A $B:1 [SEP]")]),
}
FORMS: dict[str, Any] = {"": None, "NFD": normalizers.NFD(), "NFKC": normalizers.NFKC()}


@pytest.fixture(params=PROCESSORS)
def both(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[tokenizers.Tokenizer, Tokenizer]:
    return both_with(PROCESSORS[request.param], tmp_path)


def both_with(processor: Any, folder: Path, form: str = "") -> tuple[tokenizers.Tokenizer, Tokenizer]:
    merges = [("a", "b"), ("Ġ", "a"), ("Ã", "©")]
    texts = [*SPECIALS, *ALPHABET, *map("".join, merges)]
    library = tokenizers.Tokenizer(models.BPE({text: index for index, text in enumerate(texts)}, merges))
    library.normalizer = FORMS[form]
    library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    library.post_processor = processor
    library.add_special_tokens(list(SPECIALS))
    library.save(str(folder / "tokenizer.json"))
    return library, load_tokenizer(folder)


@given(text=TEXT)
def test_what_stands_around_a_text(both: tuple[tokenizers.Tokenizer, Tokenizer], text: str) -> None:
    library, ours = both
    ids = library.encode(text).ids
    assert ours.encode(text) == ids
    assert ours.decode(ids, remove_special=True, unparse_special=True).removesuffix("[SEP]") == text
    stream = ours.stream(remove_special=True, unparse_special=True)
    pushed = [stream.push([index]) for index in ids]
    assert "".join([*pushed, stream.push([], end=True)]) == ours.decode(ids, True, True)


@given(first=TEXT, second=TEXT, added=st.booleans(), most=st.none() | st.integers(8, 24), left=st.booleans())
def test_two_texts(
    both: tuple[tokenizers.Tokenizer, Tokenizer], first: str, second: str, added: bool, most: int | None, left: bool
) -> None:
    library, ours = both
    library.no_truncation()
    whole = library.encode(first, second, add_special_tokens=added)
    if most is not None:
        library.enable_truncation(most, direction="left" if left else "right")
    expected = library.encode(first, second, add_special_tokens=added)
    found = ours.encode_pair([Segment(first)], [Segment(second)], added, True, most, left)
    assert found.ids == expected.ids
    assert found.total_tokens == len(whole.ids)
    assert found.type_ids == expected.type_ids
    base = [len(first) if sequence == 1 else 0 for sequence in expected.sequence_ids]
    places = zip(found.code_point_offsets or (), found.code_point_ends or (), strict=True)
    told = zip(expected.sequence_ids, base, expected.offsets, places, strict=True)
    assert all(place == (start + at, end + at) for text, at, (start, end), place in told if text is not None)
    assert all(start == end for text, _, _, (start, end) in told if text is None)
    without = ours.encode_pair([Segment(first)], [Segment(second)], added, False, most, left)
    assert (without.ids, without.type_ids, without.byte_offsets) == (found.ids, found.type_ids, None)


@given(text=TEXT, form=st.sampled_from(list(FORMS)))
def test_where_tokens_end(tmp_path: Path, text: str, form: str) -> None:
    library, ours = both_with(None, tmp_path, form)
    found = ours.encode_segments([Segment(text)], with_offsets=True)
    assert (
        list(zip(found.code_point_offsets or (), found.code_point_ends or (), strict=True))
        == library.encode(text).offsets
    )
    if not form:  # tokens tile the bytes
        assert found.byte_ends == [*(found.byte_offsets or [])[1:], len(text.encode())][: len(found.ids)]


@pytest.mark.parametrize("name", ["llama-spm", "bert-bge", "t5-small", "rwkv-world", "gpt-2", "phi-3"])
@given(text=st.text("ab cdé龘\u2581 \n\u3000ﬁ😀", max_size=20))
def test_each_token_of_every_kind_has_a_place(shared_data: Path, name: str, text: str) -> None:
    ours = loaded(shared_data / f"vocabularies/ggml-vocab-{name}.gguf")
    found = ours.encode_segments([Segment(text)], with_offsets=True)
    starts, ends, points, point_ends = (
        each or [] for each in (found.byte_offsets, found.byte_ends, found.code_point_offsets, found.code_point_ends)
    )
    data = text.encode()
    assert all(0 <= start <= end <= len(data) for start, end in zip(starts, ends, strict=True))
    for start, end, point, point_end in zip(starts, ends, points, point_ends, strict=True):
        covered = text[point:point_end].encode()
        assert data[start:end] in covered and (start < end or not covered)
    if name in ("gpt-2", "rwkv-world"):  # of which each token is bytes of the text
        assert [data[start:end] for start, end in zip(starts, ends, strict=True)] == ours.pieces(found.ids)


_LOADED: dict[Path, Tokenizer] = {}


def loaded(path: Path) -> Tokenizer:
    if path not in _LOADED:
        _LOADED[path] = load_tokenizer(path)
    return _LOADED[path]


def test_words_of_bert_end_where_the_library_says(shared_data: Path, tmp_path: Path) -> None:
    words = ["[UNK]", "a", "##b", "##c", "b", "龘", "."]
    library = tokenizers.Tokenizer(
        models.WordPiece({word: index for index, word in enumerate(words)}, unk_token="[UNK]")
    )
    library.normalizer, library.pre_tokenizer = normalizers.BertNormalizer(), pre_tokenizers.BertPreTokenizer()
    library.save(str(tmp_path / "tokenizer.json"))
    ours = load_tokenizer(tmp_path)
    for text in ("ab a\u0301bc  龘龘 zz. A\u0301", "", "\u0301a", "b\u200bb .. ÀB"):
        found = ours.encode_segments([Segment(text)], with_offsets=True)
        expected = library.encode(text)
        assert found.ids == expected.ids
        assert list(zip(found.code_point_offsets, found.code_point_ends, strict=True)) == expected.offsets  # type: ignore[arg-type]


def test_pairs_of_files_without_a_template(shared_data: Path) -> None:
    def pair(name: str, first: str, second: str) -> tuple[list[int], list[int] | None]:
        found = load_tokenizer(shared_data / name).encode_pair([Segment(first)], [Segment(second)])
        return found.ids, found.type_ids

    assert pair("formats/llama2", "a", "b") == ([1, 263, 1, 289], [0, 0, 1, 1])
    assert pair("formats/t5-small", "a", "b") == ([3, 9, 1, 3, 115, 1], [0] * 6)
    assert pair("vocabularies/ggml-vocab-bert-bge.gguf", "a", "b") == ([101, 1037, 102, 1038, 102], [0, 0, 0, 1, 1])


def test_too_few_tokens_for_a_pair(tmp_path: Path) -> None:
    _, ours = both_with(PROCESSORS["much"], tmp_path)
    assert len(ours.encode_pair([Segment("ab")], [Segment("ab")], max_tokens=5).ids) == 5
    with pytest.raises(TruncationError, match="at least 5"):
        ours.encode_pair([Segment("ab")], [Segment("ab")], max_tokens=4)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"single": [{"SpecialToken": {"id": "[CLS]"}}]}, "has the texts none in single, expected A"),
        ({"pair": [{"Sequence": {"id": "B"}}, {"Sequence": {"id": "A"}}]}, "has the texts BA in pair, expected AB"),
        ({"pair": [{"Sequence": {"id": "A", "type_id": -1}}]}, "post_processor.pair[0].Sequence.type_id is -1"),
        ({"pair": [{"Strange": {}}]}, "post_processor.pair[0] is"),
        ({"special_tokens": {}}, "there is no post_processor.special_tokens.[CLS]"),
        ({"special_tokens": {"[CLS]": {"ids": [99999]}}}, "bos_id 99999 lies outside"),
    ],
)
def test_templates_that_are_wrong_are_named(tmp_path: Path, change: dict[str, Any], words: str) -> None:
    both_with(template("[CLS] $A", "[CLS] $A $B"), tmp_path)
    content = json.loads((tmp_path / "tokenizer.json").read_text())
    content["post_processor"] |= change
    (tmp_path / "tokenizer.json").write_text(json.dumps(content))
    with pytest.raises(FormatError) as caught:
        load_tokenizer(tmp_path)
    assert words in str(caught.value)
