"""Vocabularies agree with the libraries of those who made them, and no text brings one down."""

from __future__ import annotations

import io
import unicodedata
from collections.abc import Collection, Mapping
from functools import cache
from itertools import accumulate
from pathlib import Path

import pytest
import tiktoken
import tokenizers
from hypothesis import given
from hypothesis import strategies as st
from sentencepiece import SentencePieceProcessor, SentencePieceTrainer
from sentencepiece.sentencepiece_model_pb2 import ModelProto  # type: ignore[attr-defined]
from tiktoken.load import load_tiktoken_bpe

from tandem.tokenizer.encode_cache import EncodeCache
from tandem.tokenizer.encoding import Segment
from tandem.tokenizer.formats import load_tokenizer
from tandem.tokenizer.tokenizer import Tokenizer
from tandem.tokenizer.vocabularies.bpe.pre_tokenizers import (
    BEFORE_THREES_OF_DIGITS,
    DIGITS_IN_THREES,
    LLAMA3,
    PRE_TOKENIZERS,
)
from tandem.tokenizer.vocabularies.bpe.tiktoken_bpe import TiktokenBpe, by_engine, cutter_of
from tandem.tokenizer.vocabularies.bpe.vocabulary import BpeVocabulary
from tandem.tokenizer.vocabularies.spm import SpmVocabulary
from tandem.tokenizer.vocabulary import TokenType
from tandem.tokenizer.word_cache import WordCache

META_PATTERN = (  # as Meta publishes it
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
CHARACTERS = st.characters(exclude_categories=["Cs"], exclude_characters="ſ")  # see patterns.LLAMA3
WORDS = ["def ", "  ", "\n", "\t", "x = 1", "don't", "I'LL", "12345", "!!", "\r\n", "▁", " é", "龘", "\0", "👩‍🚀"]
TEXT = st.one_of(
    st.text(alphabet=CHARACTERS, max_size=60),
    st.lists(
        st.sampled_from(WORDS),
        max_size=30,
    ).map("".join),
)


@pytest.fixture(scope="module")
def llama2(shared_data: Path) -> Tokenizer:
    return load_tokenizer(shared_data / "formats/llama2")


@pytest.fixture(scope="module")
def llama3(shared_data: Path) -> Tokenizer:
    return load_tokenizer(shared_data / "formats/llama3")


@pytest.fixture(scope="module")
def sentencepiece(shared_data: Path) -> SentencePieceProcessor:
    return SentencePieceProcessor(model_file=str(shared_data / "formats/llama2/tokenizer.model"))


@pytest.fixture(scope="module")
def metas_tiktoken(shared_data: Path) -> tiktoken.Encoding:
    ranks = load_tiktoken_bpe(str(shared_data / "formats/llama3/tokenizer.model"))
    return tiktoken.Encoding("llama3", pat_str=META_PATTERN, mergeable_ranks=ranks, special_tokens={})


@pytest.fixture(scope="module")
def plain_llama3(shared_data: Path) -> TiktokenBpe:
    ranks = load_tiktoken_bpe(str(shared_data / "formats/llama3/tokenizer.model"))
    return TiktokenBpe([LLAMA3], ranks, {})


@given(text=TEXT)
def test_llama2_equals_sentencepiece(llama2: Tokenizer, sentencepiece: SentencePieceProcessor, text: str) -> None:
    assert llama2.encode(text, add_special=False) == sentencepiece.encode(text)


def test_pairs_of_pieces_that_merge_white_space_equal_sentencepiece(shared_data: Path, tmp_path: Path) -> None:
    lines = (shared_data / "corpus/botchan.txt").read_text(encoding="utf-8").splitlines()[:200]
    made = io.BytesIO()
    SentencePieceTrainer.train(
        sentence_iterator=iter(lines), model_writer=made, vocab_size=120, model_type="bpe", minloglevel=2
    )
    (tmp_path / "tokenizer.model").write_bytes(made.getvalue())
    library = SentencePieceProcessor(model_proto=made.getvalue())
    ours = load_tokenizer(tmp_path)
    for text in ("the cat", " the  cat ", "7", "  ", "", "\tthe\u3000ﬁ", "'S"):
        encoding = ours.encode_segments([Segment(text)], add_special=False, with_offsets=True)
        assert encoding.ids == ours.encode(text, add_special=False) == library.encode(text), text


@given(text=TEXT)
def test_llama3_equals_tiktoken(llama3: Tokenizer, metas_tiktoken: tiktoken.Encoding, text: str) -> None:
    assert llama3.encode(text, add_special=False) == metas_tiktoken.encode_ordinary(text)


def test_whole_corpora_equal_the_libraries(
    llama2: Tokenizer,
    llama3: Tokenizer,
    sentencepiece: SentencePieceProcessor,
    metas_tiktoken: tiktoken.Encoding,
    shared_data: Path,
) -> None:
    text = (shared_data / "corpus/botchan.txt").read_text(encoding="utf-8")
    assert llama2.encode(text, add_special=False) == sentencepiece.encode(text)
    assert llama3.encode(text, add_special=False) == metas_tiktoken.encode_ordinary(text)


def test_every_piece_of_the_vocabulary_is_encoded_as_the_library_does(
    llama2: Tokenizer, sentencepiece: SentencePieceProcessor
) -> None:
    texts = [piece.decode("utf-8", "ignore") for piece in llama2.table.pieces]
    assert [llama2.encode(text, add_special=False) for text in texts] == sentencepiece.encode(texts)


def test_cutting_here_equals_cutting_in_the_library(plain_llama3: TiktokenBpe) -> None:
    for text in ("a  b\n\n c", "  \n x", "don't 12345!!\r\n\r\n", "é" * 50, "\0\x1f", " \u3000x"):
        assert plain_llama3._words.encode(plain_llama3._cut(text)) == plain_llama3.encode(text).tolist()


@pytest.mark.parametrize(
    "text",
    [
        " " * 2_000_000 + "a",
        "\n" * 1_500_000 + "a",
        ("x" + " " * 250_000) * 6,
        "a" * 1_000_000,
        "!" * 1_000_000,
        "\0" * 300_000,
        "👩‍🚀" * 100_000,
        "\ufffd" * 300_000,
    ],
    ids=["spaces", "newlines", "runs", "letters", "punctuation", "nul", "emoji", "replacement"],
)
@pytest.mark.parametrize("name", ["llama2", "llama3"])
def test_pathological_text_is_encoded(name: str, text: str, request: pytest.FixtureRequest) -> None:
    tokenizer: Tokenizer = request.getfixturevalue(name)
    assert tokenizer.decode(tokenizer.encode(text, add_special=False)) == text


def test_bytes_that_a_vocabulary_lacks_are_dropped_and_offsets_stay_right() -> None:
    vocabulary = BpeVocabulary([(b"a", 7), (b"b", 3), (b"ab", 5)], (r"\S+|\s+",))
    assert vocabulary.encode("ab?ba").tolist() == [5, 3, 7]
    assert [each.tolist() for each in vocabulary.encode_with_offsets("é?ab b")] == [[5, 3], [3, 6], [5, 7]]


def test_several_patterns_cut_one_after_the_other_and_unmatched_text_stays() -> None:
    ranked = [(bytes([byte]), byte) for byte in range(256)] + [(b"12", 256), (b"ab", 257), (b"  ", 258)]
    one = BpeVocabulary(ranked, (r"[a-z]+|[0-9]+",))
    two = BpeVocabulary(ranked, (r"[0-9]", r"[a-z]+"))
    assert one.encode("ab12  ab").tolist() == [257, 256, 258, 257]
    assert two.encode("ab12  ab").tolist() == [257, ord("1"), ord("2"), 258, 257]


@given(text=st.text("0123\u0664\u00bd\u2167ab ", max_size=40))
@pytest.mark.parametrize("pattern", [DIGITS_IN_THREES, BEFORE_THREES_OF_DIGITS])
def test_digits_are_cut_in_threes_as_the_pattern_says(pattern: str, text: str) -> None:
    assert cutter_of(pattern)(text) == by_engine(pattern)(text)


@pytest.mark.parametrize("name", ["superbpe", "tiny_aya", "afmoe"])
def test_a_long_number_is_cut_in_time_that_grows_with_it(name: str) -> None:
    """By the patterns themselves this would take hours."""
    plain = TiktokenBpe(PRE_TOKENIZERS[name].patterns, {bytes([byte]): byte for byte in range(256)}, {})
    assert len(plain._cut("x" + "7" * 200_000)) == 1 + -(-200_000 // 3)


def test_the_word_memory_answers_as_without_it_when_it_is_full(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tandem.tokenizer.word_cache._MAX_WORDS", 8)
    calls: list[str] = []

    def encode_many(words: list[str]) -> list[list[int]]:
        calls.extend(words)
        return [[len(word), ord(word[0])] for word in words]

    cache = WordCache(encode_many)
    words = [letter * count for letter in "abcdef" for count in (1, 2, 3, 100)]
    for start in range(0, len(words), 5):
        part = words[start : start + 5] * 2
        assert cache.encode(part) == [number for word in part for number in (len(word), ord(word[0]))]
        assert len(cache._known) <= 8
    assert len(calls) == len(words)


@pytest.fixture(scope="module", params=["spm-unigram1k", "spm-unigram-ja", "t5-small"])
def unigram(request: pytest.FixtureRequest, shared_data: Path) -> Tokenizer:
    return load_tokenizer(shared_data / f"vocabularies/ggml-vocab-{request.param}.gguf")


@pytest.fixture(scope="module")
def unigram_file(shared_data: Path) -> Path:
    return shared_data / "formats/sentencepiece/test_model.model"


UNIGRAM_TEXT = st.text(alphabet=st.one_of(st.sampled_from("  abcThe\n\u3000ａ①㌀é龘"), CHARACTERS), max_size=40)


@given(text=UNIGRAM_TEXT)
def test_unigram_files_equal_the_library_in_either_format(shared_data: Path, unigram_file: Path, text: str) -> None:
    reference = cached_processor(unigram_file).encode(text)
    for source in (unigram_file, shared_data / "vocabularies/ggml-vocab-spm-unigram1k.gguf"):
        assert cached_tokenizer(source).encode(text, add_special=False) == reference, source


@cache
def cached_processor(path: Path) -> SentencePieceProcessor:
    return SentencePieceProcessor(model_file=str(path))


@cache
def cached_tokenizer(path: Path) -> Tokenizer:
    return load_tokenizer(path)


@given(texts=st.lists(UNIGRAM_TEXT, min_size=1, max_size=3))
def test_unigram_offsets_ascend_and_stay_in_the_text(unigram: Tokenizer, texts: list[str]) -> None:
    encoding = unigram.encode_segments([Segment(text) for text in texts], with_offsets=True)
    assert encoding.byte_offsets is not None
    assert len(encoding.byte_offsets) == len(encoding.ids)
    assert encoding.byte_offsets == sorted(encoding.byte_offsets)
    assert all(offset <= len("".join(texts).encode()) for offset in encoding.byte_offsets)
    without = unigram.encode_segments([Segment(text) for text in texts])
    assert without.ids == encoding.ids


def test_a_unigram_segment_that_goes_on_gets_no_space_of_its_own(unigram_file: Path) -> None:
    tokenizer = cached_tokenizer(unigram_file)
    for parts in (("wo", "rld"), ("wo", " rld")):
        ids = tokenizer.encode_segments([Segment(part) for part in parts], add_special=False).ids
        assert tokenizer.decode(ids) == "".join(parts)


def naive_longest_match(data: bytes, ids: dict[bytes, int], longest: int) -> list[int]:
    found: list[int] = []
    while data:
        length = next(length for length in range(min(longest, len(data)), 0, -1) if data[:length] in ids)
        found.append(ids[data[:length]])
        data = data[length:]
    return found


@cache
def ids_by_piece(path: Path) -> tuple[dict[bytes, int], int]:
    """And the length of the longest."""
    ids = {piece: index for index, piece in enumerate(cached_tokenizer(path).table.pieces) if index}
    return ids, max(map(len, ids))


@given(text=TEXT)
def test_rwkv_takes_the_longest_match(shared_data: Path, text: str) -> None:
    path = shared_data / "vocabularies/ggml-vocab-rwkv-world.gguf"
    tokenizer, (ids, longest) = cached_tokenizer(path), ids_by_piece(path)
    encoding = tokenizer.encode_segments([Segment(text)], with_offsets=True)
    assert encoding.ids == naive_longest_match(text.encode(), ids, longest)
    assert tokenizer.decode(encoding.ids) == text
    starts = [0, *accumulate(len(tokenizer.table.pieces[index]) for index in encoding.ids)]
    assert encoding.byte_offsets == starts[:-1]


@cache
def bert_of_the_library(path: Path) -> tokenizers.Tokenizer:
    tokenizer = cached_tokenizer(path)
    shown = {}
    for index, piece in enumerate(tokenizer.table.pieces):
        text = piece.decode()
        special = text.startswith("[") and text.endswith("]")
        shown[text[1:] if text.startswith(" ") else text if special else "##" + text] = index
    model = tokenizers.models.WordPiece(shown, unk_token="[UNK]", max_input_chars_per_word=1_000_000)
    library = tokenizers.Tokenizer(model)
    library.normalizer = tokenizers.normalizers.BertNormalizer()
    library.pre_tokenizer = tokenizers.pre_tokenizers.BertPreTokenizer()
    return library


@given(
    text=TEXT.filter(lambda text: all(unicodedata.category(each) != "Cn" and each not in "\v\f\x85" for each in text))
)
def test_word_pieces_equal_the_library(shared_data: Path, text: str) -> None:
    """But for characters that Unicode has not assigned, which the library drops and llama.cpp keeps, and for three that
    the library drops where llama.cpp sees white space."""
    path = shared_data / "vocabularies/ggml-vocab-bert-bge.gguf"
    ours = cached_tokenizer(path).encode_segments([Segment(text)], add_special=False, with_offsets=True)
    theirs = bert_of_the_library(path).encode(text, add_special_tokens=False)
    assert ours.ids == theirs.ids
    assert ours.ids == cached_tokenizer(path).encode(text, add_special=False)
    assert ours.byte_offsets is not None
    assert ours.byte_offsets == sorted(ours.byte_offsets)


@pytest.mark.parametrize("name", ["bert-bge", "t5-small", "rwkv-world", "falcon", "deepseek-llm", "gpt-neox"])
def test_other_vocabularies_take_pathological_text(name: str, shared_data: Path) -> None:
    tokenizer = cached_tokenizer(shared_data / f"vocabularies/ggml-vocab-{name}.gguf")
    for text in (
        " " * 1_200_000 + "a",
        "a" * 200_000,
        "\0" * 50_000,
        "1" * 200_000,
        "\U0010ffff" * 20_000,
        "é\n" * 50_000,
    ):
        ids = tokenizer.encode(text)
        assert ids and max(ids) < tokenizer.vocabulary_size


@given(
    lines=st.lists(st.sampled_from(["a", "b c", " x", "", "\t", "don't", "1\r", "!!", "é", "<|eot_id|>"]), max_size=40),
    count=st.integers(1, 5),
)
def test_parts_of_a_cut_text_have_the_ids_of_the_whole(llama3: Tokenizer, lines: list[str], count: int) -> None:
    text = "\n".join(lines)
    parts = llama3.cut(text, count)
    assert "".join(parts) == text
    assert 1 <= len(parts) <= count
    for parse in (False, True):
        apart = [index for part in parts for index in llama3.encode(part, False, parse)]
        assert apart == llama3.encode(text, False, parse)


@given(
    texts=st.lists(
        st.one_of(TEXT, st.sampled_from(["", "\0", "a\0b", " ", "\n", "\U0010fffe"])), min_size=1, max_size=8
    )
)
@pytest.mark.parametrize("name", ["llama2", "llama3"])
def test_texts_that_are_encoded_together_have_the_ids_of_each_alone(
    name: str, request: pytest.FixtureRequest, texts: list[str]
) -> None:
    tokenizer: Tokenizer = request.getfixturevalue(name)
    alone = [tokenizer.encode(text) for text in texts]
    assert together(tokenizer, texts) == alone
    cached = tokenizer.with_cache(EncodeCache(1 << 20))
    cached.encode_segments([Segment(texts[0])])
    for _ in range(2):
        assert together(cached, texts) == alone
    assert cached.encode_segments([Segment(texts[-1])]).ids == alone[-1]


def together(tokenizer: Tokenizer, texts: list[str]) -> list[list[int]]:
    return [ids.tolist() for ids in tokenizer.encode_many(texts)]


@given(pieces=st.lists(st.tuples(st.sampled_from("ab \u2581\u00e9\u4e00\U0001f680x"), st.integers(1, 40)), max_size=12))
def test_merging_by_rank_equals_the_sentencepiece_library_on_runs_and_unknown_characters(
    llama2: Tokenizer, sentencepiece: SentencePieceProcessor, pieces: list[tuple[str, int]]
) -> None:
    """Llama 2 gives all runs of spaces one score."""
    text = "".join(character * count for character, count in pieces)
    vocabulary = llama2.vocabulary
    assert isinstance(vocabulary, SpmVocabulary) and vocabulary._merger is not None
    assert llama2.encode(text, add_special=False) == sentencepiece.encode(text)


def small_model(scores: Mapping[str, float], unused: Collection[str] = ()) -> ModelProto:
    """Every byte, every character of the pieces, and the pieces; those that are `unused` are taken apart again."""
    model = ModelProto()
    model.trainer_spec.model_type = model.trainer_spec.BPE
    model.trainer_spec.byte_fallback = True
    model.normalizer_spec.add_dummy_prefix = False
    model.normalizer_spec.remove_extra_whitespaces = False
    model.pieces.add(piece="<unk>", type=TokenType.UNKNOWN)
    for byte in range(256):
        model.pieces.add(piece=f"<0x{byte:02X}>", type=TokenType.BYTE)
    for character in sorted({"\u2581", *"".join(scores)}):
        model.pieces.add(piece=character, score=-1e6, type=TokenType.NORMAL)
    for piece, score in scores.items():
        model.pieces.add(piece=piece, score=score, type=TokenType.UNUSED if piece in unused else TokenType.NORMAL)
    return model


@given(
    pieces=st.lists(st.text("ab\u00e9\u2581", min_size=2, max_size=4), unique=True, max_size=12),
    ties=st.integers(0, 3).map(lambda number: max(1, number - 1)),
    unused=st.just(0) | st.integers(0, 4095),
    unused_characters=st.just("") | st.text("ab\u00e9\u2581", max_size=1),
    texts=st.lists(st.text("ab\u00e9 \u00e8", max_size=20), max_size=8),
)
def test_any_small_vocabulary_is_merged_as_the_sentencepiece_library_does(
    pieces: list[str], ties: int, unused: int, unused_characters: str, texts: list[str]
) -> None:
    """Pieces that nothing makes, equal scores, inner spaces and unused pieces among them, with or without a merger."""
    scores = {piece: -float(number // ties) for number, piece in enumerate(pieces)}
    model = small_model(scores, [piece for number, piece in enumerate(pieces) if unused >> number & 1])
    for piece in model.pieces:
        if piece.piece in unused_characters:
            piece.type = TokenType.UNUSED
    library = SentencePieceProcessor(model_proto=model.SerializeToString())
    vocabulary = SpmVocabulary(model)
    assert [ids.tolist() for ids in vocabulary.encode_many(texts)] == library.encode(texts)
    for text in texts:
        ids, offsets, ends = vocabulary.encode_with_offsets(text)
        assert (offsets <= ends).all() and ends.tolist() == sorted(ends.tolist())
        assert ids.tolist() == library.encode(text)
        assert offsets.tolist() == sorted(offsets.tolist()) and (offsets < len(text.encode())).all()


@pytest.mark.parametrize("kind", [None, TokenType.UNUSED, TokenType.CONTROL])
def test_offsets_stay_in_text_whose_spaces_are_spelt_in_bytes(kind: TokenType | None) -> None:
    model = small_model({"ab": -1, "\u2581a": -2})
    [space] = (piece for piece in model.pieces if piece.piece == "\u2581")
    space.piece, space.type = ("\u4e00", TokenType.NORMAL) if kind is None else ("\u2581", kind)
    ids, offsets, _ = SpmVocabulary(model).encode_with_offsets("ab  12 \u00e9 a")
    found = [(model.pieces[int(index)].piece, int(offset)) for index, offset in zip(ids, offsets, strict=True)]
    assert found[0] == ("ab", 0) and found[-1] == ("\u2581a", 9)
    for place in (2, 3, 6):
        assert [piece for piece, offset in found if offset == place] == ["<0xE2>", "<0x96>", "<0x81>"]


def test_a_vocabulary_with_clear_scores_gets_a_merger_and_one_without_does_not() -> None:
    assert SpmVocabulary(small_model({"ab": -1, "\u2581a": -2, "aa": -3, "aaa": -3}))._merger is not None
    for unclear in ({"ab": -1, "ba": -1}, {"aa": -1, "aaaa": -1}, {"a\u2581": -1}):
        assert SpmVocabulary(small_model(unclear))._merger is None
    assert SpmVocabulary(small_model({"ab": -1, "abc": -2}, {"ab"}))._merger is None
    assert SpmVocabulary(small_model({"ab": -1, "[pad]": -2}, {"[pad]"}))._merger is not None
