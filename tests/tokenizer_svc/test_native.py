"""What is compiled answers as the libraries do that serve without it."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
import tiktoken
from hypothesis import given, settings
from hypothesis import strategies as st

from tandem.tokenizer.arrays import ids_of, joined_pieces
from tandem.tokenizer.encoding import Segment
from tandem.tokenizer.formats import load_tokenizer
from tandem.tokenizer.native import piece_joiner
from tandem.tokenizer.native.compiled_encoder import NotServed
from tandem.tokenizer.native.library import library
from tandem.tokenizer.native.piece_joiner import IdRuns, PieceJoiner
from tandem.tokenizer.v1 import tokenizer_pb2 as pb
from tandem.tokenizer.vocabularies.bpe import compiled_bpe as compiled_module
from tandem.tokenizer.vocabularies.bpe import pattern_compiler
from tandem.tokenizer.vocabularies.bpe.compiled_bpe import compiled_bpe, expansions_of
from tandem.tokenizer.vocabularies.bpe.pattern_compiler import Engine, regexs, tiktokens
from tandem.tokenizer.vocabularies.bpe.pattern_parser import NotUnderstood, parse
from tandem.tokenizer.vocabularies.bpe.pre_tokenizers import PRE_TOKENIZERS
from tandem.tokenizer.vocabularies.bpe.tiktoken_bpe import TiktokenBpe, by_tiktokens_engine, cutter_of
from tandem.tokenizer.vocabularies.rwkv import CompiledLongest, PlainLongest
from tandem.tokenizer.vocabulary import VocabularyType
from tests.tokenizer_svc.pieces import BYTES, all_stretches

PATTERNS = sorted({cut.patterns for cut in PRE_TOKENIZERS.values()})
WORDS = [
    "  ",
    "\n",
    "\t",
    "\r\n",
    "don't",
    "I'LL",
    "it'\u017f",
    "12345",
    "!!",
    " é",
    "e\u0301",
    "龘",
    "\0",
    "👩‍🚀",
    "ǅ",
    "²",
]
TEXT = st.lists(
    st.sampled_from(
        [*WORDS, "ABC", "aB", "Ab", " x", "<sentinel:12>", "IMGIMGABZ", "    ", "/", "--", "한", "…", "\u2028"]
    )
    | st.text(max_size=5)
    | st.text("aA1' \n\t", max_size=12),
    max_size=20,
).map("".join)


@pytest.fixture(autouse=True)
def _compiled() -> None:
    if library() is None:
        pytest.skip("no C compiler")


def compiled_pieces(patterns: Sequence[str], engine: Engine, text: str) -> list[str]:
    """The pieces that the compiled cutter makes: each is a token as a whole."""
    ranked = BYTES + all_stretches(text)
    found = compiled_bpe(patterns, engine, ranked, 256).encode(text)
    return [ranked[rank].decode() for rank in found.tolist()]


def pieces_by_regex(patterns: Sequence[str], text: str) -> list[str]:
    pieces = [text] if text else []
    for pattern in patterns:
        pieces = [finer for piece in pieces for finer in cutter_of(pattern)(piece)]
    return pieces


def pieces_by_tiktoken(pattern: str, text: str) -> list[str]:
    ranks = {data: rank for rank, data in enumerate(BYTES + all_stretches(text))}
    library = tiktoken.Encoding("pieces", pat_str=pattern, mergeable_ranks=ranks, special_tokens={})
    return [library.decode_single_token_bytes(rank).decode() for rank in library.encode_ordinary(text)]


@given(patterns=st.sampled_from(PATTERNS), text=TEXT)
def test_every_known_pattern_cuts_as_its_engine_does(patterns: tuple[str, ...], text: str) -> None:
    text = text[:60]
    assert compiled_pieces(patterns, regexs, text) == pieces_by_regex(patterns, text)
    if by_tiktokens_engine(patterns):
        assert compiled_pieces(patterns, tiktokens, text) == pieces_by_tiktoken(patterns[0], text)


SETS = st.sampled_from(
    [
        *(
            "a",
            "b",
            " ",
            r"\n",
            r"\s",
            r"\S",
            r"\p{L}",
            r"\p{Lu}",
            r"\P{N}",
            r"\d",
            r"\W",
            ".",
            r"\pN",
            r"\$",
            r"\u00e9",
        ),
        *(
            r"[^\r\n\p{L}\p{N}]",
            "[a-c]",
            "[^a-c]",
            r"[\s\p{P}]",
            r"[^\S\n]",
            "[-a]",
            r"[b\-\]]",
            "(?:a|b)",
            "(a|[0-9])",
        ),
        *(
            r"(?:(?!\p{Han})[\p{L}\p{M}])",
            r"((?=[\p{L}])([^a-z]))",
            r"(?:(?!a)\p{L})",
            "(?i:s)",
            "(?i:k)",
            "(?i:')",
            r"[\u4e00-\u9fa5]",
        ),
    ]
)
LOOPS = st.tuples(
    SETS, st.sampled_from(["", "", "?", "*", "+", "{2}", "{1,3}", "{0,2}", "{2,}", "?+", "*+", "++"])
).map("".join)
LOOKS = st.tuples(st.sampled_from(["(?=", "(?!"]), SETS).map(lambda parts: "".join(parts) + ")")
PARTS = LOOPS | LOOPS | LOOPS | LOOKS | st.just("$")
SEQUENCES = st.lists(PARTS, min_size=1, max_size=4).map("".join)
GROUPS = st.tuples(st.lists(SEQUENCES, min_size=1, max_size=3).map("|".join), st.sampled_from(["", "?"])).map(
    lambda parts: f"(?:{parts[0]}){parts[1]}"
)
RUNS = st.tuples(SETS, SETS, SETS).map(lambda sets: f"(?:{sets[0]}|{sets[1]}(?={sets[2]}))*")
RANDOM_PATTERNS = st.lists(
    st.tuples(
        st.lists(SEQUENCES | GROUPS, min_size=1, max_size=3).map("".join), st.sampled_from(["", "", ""]) | RUNS
    ).map("".join),
    min_size=1,
    max_size=4,
).map("|".join)
RANDOM_TEXTS = st.text("aabbcABs\u017f\u212ak1'-] \n\u00e9\u4e00\U0001f680.", max_size=30)


@given(pattern=RANDOM_PATTERNS, texts=st.lists(RANDOM_TEXTS, min_size=1, max_size=4))
def test_any_pattern_that_is_understood_cuts_as_the_engines_do(pattern: str, texts: list[str]) -> None:
    try:
        parse(pattern)
    except NotUnderstood:
        return
    complete = pattern + r"|\s+|\S"  # tiktoken drops what is not matched
    for text in texts:
        assert compiled_pieces([pattern], regexs, text) == pieces_by_regex([pattern], text)
        assert compiled_pieces([complete], tiktokens, text) == pieces_by_tiktoken(complete, text)


@pytest.mark.parametrize(
    "pattern",
    [
        *(
            "",
            "a*",
            "a|",
            "(?:a?|b)",
            "(ab)+",
            "(?:a|bc)*",
            "a+?",
            "a(?:a|b(?=c))*d",
            "(?:a(?:a|b(?=c))*|d)?e",
            "a(?:a|b(?=c))+",
            "a(?:a|b(?!c))*",
            "a(?:b(?=c)|d(?=e))*",
            "a{1,3}+",
            "a{2}{3}",
            "a{,3}",
            "a{2000}",
            "^a",
            r"\bx",
        ),
        *(r"(a)\1", "(?<=a)b", "(?>a)", "(?i)a", "(?s:.)", "(?i:[a-c])", r"(?i:\p{Lu})", "[[a]]", "[a&&b]", "[a--b]"),
        *(
            "[z-a]",
            r"[\w-a]",
            "[]a]",
            "a)",
            "(a",
            "[a",
            "a\\",
            r"\p{^L}",
            r"\x{110000}",
            "(?=ab)c",
            "(?:a+)?+",
            "{",
            "]",
        ),
        *("(" * 50 + "a" + ")" * 50, "a|(?:b|cd)(?:b|cd)(?:b|cd)(?:b|cd)e"),
        "|".join(f"{chr(0x4E00 + number)}+" for number in range(32)),
    ],
)
def test_other_patterns_are_left_to_the_engines(pattern: str) -> None:
    with pytest.raises(NotServed):
        compiled_bpe([pattern], regexs, BYTES)


def test_a_class_that_an_engine_does_not_know_is_left_to_it() -> None:
    for engine in (regexs, tiktokens):
        with pytest.raises(NotServed):
            compiled_bpe([r"\p{Nonsense}+"], engine, BYTES)


PUBLISHED = {
    "exaone-moe": (
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?(?:\p{L}\p{M}*(?: \p{L}\p{M}*)*)+|\p{N}"
        r"| ?[^\s\p{L}\p{N}]+[\r\n/]?|\s*[\r\n]|\s+(?!\S)|\s+"
    ),
    "kimi-k2": (
        r"(?V1)[\p{Han}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*"
        r"[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
        r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+"
        r"[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
        r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    ),
}


@pytest.mark.parametrize("name", PUBLISHED)
@given(text=TEXT | st.text("ab é\u0301漢あ '1sT\n", max_size=30))
def test_patterns_that_are_written_otherwise_cut_as_the_published_ones(name: str, text: str) -> None:
    text = text.replace("\u017f", "s")[:60]
    expected = pieces_by_regex([PUBLISHED[name]], text)
    assert pieces_by_regex(PRE_TOKENIZERS[name].patterns, text) == expected
    assert compiled_pieces(PRE_TOKENIZERS[name].patterns, regexs, text) == expected


@pytest.mark.parametrize("name", PUBLISHED)
def test_patterns_that_are_written_otherwise_cut_real_text_as_the_published_ones(name: str, shared_data: Path) -> None:
    corpus = (shared_data / "corpus/botchan.txt").read_text(encoding="utf-8")[:20_000]
    cases = (shared_data / "vocabularies/ggml-vocab-llama-bpe.gguf.inp").read_text(encoding="utf-8")
    for text in (corpus, cases):
        expected = pieces_by_regex([PUBLISHED[name]], text)
        assert pieces_by_regex(PRE_TOKENIZERS[name].patterns, text) == expected
        for engine in (regexs, tiktokens):
            ranked = BYTES + sorted({piece.encode() for piece in expected if len(piece.encode()) > 1})
            found = compiled_bpe(PRE_TOKENIZERS[name].patterns, engine, ranked, 256).encode(text)
            assert [ranked[rank].decode() for rank in found.tolist()] == expected


@given(
    tokens=st.lists(st.text("abc\u00e9", min_size=2, max_size=5), unique=True, max_size=20),
    texts=st.lists(st.text("abc\u00e9", max_size=30) | st.text("ab", min_size=90, max_size=300), max_size=4),
)
def test_any_small_vocabulary_is_merged_as_tiktoken_does(tokens: list[str], texts: list[str]) -> None:
    ranked = [*BYTES, *map(str.encode, tokens)]
    ranks = {token: rank for rank, token in enumerate(ranked)}
    library = tiktoken.Encoding("small", pat_str=".+", mergeable_ranks=ranks, special_tokens={})
    assert [ids.tolist() for ids in compiled_bpe([".+"], tiktokens, ranked).encode_many(texts)] == (
        library.encode_ordinary_batch(texts)
    )


@pytest.mark.parametrize(
    "name",
    ["jais-2", "llama-bpe", "gpt-4o", "youtu", "superbpe", "afmoe", "deepseek-llm", "falcon", "exaone-moe", "kimi-k2"],
)
def test_hostile_text_is_cut_in_time_that_grows_with_it(name: str) -> None:
    """By walking each stretch again and again this would take hours."""
    merger = compiled_bpe(PRE_TOKENIZERS[name].patterns, regexs, BYTES)
    for text in ("a", "A", " ", "1", "'", "\n ", " a", "aA", "\u4e00", "\t/", "!\r"):
        size = 200_000
        text = text * (size // len(text)) + "x"
        ids, offsets = merger.encode_with_offsets(text)
        assert bytes(ids.tolist()) == text.encode()
        assert offsets[-1] == len(text.encode()) - 1


def test_a_long_piece_is_merged_in_time_that_grows_with_it(shared_data: Path) -> None:
    tokenizer = load_tokenizer(shared_data / "formats/llama3")
    for text in ("a" * 300_000, " " * 300_000 + "a", "ab" * 150_000):
        assert tokenizer.decode(tokenizer.encode(text, False)) == text


def test_ranks_become_ids_and_what_has_none_is_dropped() -> None:
    merger = compiled_bpe(
        [r"\S+|\s+"], regexs, [*BYTES, b"ab"], None, expansions_of([[]] * 97 + [[7], [3]] + [[]] * 157 + [[5]])
    )
    assert merger.encode("ab?ba").tolist() == [5, 3, 7]
    assert [each.tolist() for each in merger.encode_with_offsets("\u00e9?ab b")] == [[5, 3], [3, 6]]


def test_text_that_no_alternative_matches_is_a_piece_with_the_library_and_without_it() -> None:
    ranked = [*BYTES, b"12", b"ab", b"  "]
    patterns = (r"[a-z]+|\s+",)
    plain = TiktokenBpe(patterns, {token: rank for rank, token in enumerate(ranked)}, {})
    texts = ["ab12  ab", "1", "ab"]
    expected = [[257, 256, 258, 257], [ord("1")], [257]]
    for encoder in (plain, compiled_bpe(patterns, tiktokens, ranked)):
        assert [ids.tolist() for ids in encoder.encode_many(texts)] == expected
        assert [encoder.encode(text).tolist() for text in texts] == expected


def test_a_token_with_two_ranks_is_refused() -> None:
    with pytest.raises(ValueError, match="two ranks"):
        compiled_bpe([".+"], regexs, [*BYTES, b"ab", b"ab"])


NAMES = ["llama-bpe", "deepseek-coder", "roberta-bpe", "llama-spm"]
if settings.default.max_examples > 100:
    NAMES += ["gpt-2", "falcon", "deepseek-llm", "starcoder", "phi-3"]


@pytest.mark.parametrize("name", NAMES)
def test_vocabularies_answer_the_same_without_the_library(
    name: str, shared_data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = shared_data / f"vocabularies/ggml-vocab-{name}.gguf"
    compiled = load_tokenizer(path)
    monkeypatch.setattr(compiled_module, "library", lambda: None)
    plain = load_tokenizer(path)
    by = "sentencepiece" if compiled.type is VocabularyType.SPM else "tiktoken"
    assert (compiled.vocabulary.encoder, plain.vocabulary.encoder) == (
        "compiled",
        f"{by} (there is no compiled library)",
    )
    assert compiled.fingerprint == plain.fingerprint
    corpus = (shared_data / "corpus/botchan.txt").read_text(encoding="utf-8")
    texts = [
        *(piece.decode("utf-8", "replace") for piece in compiled.table.pieces[:1000]),
        corpus[:20_000],
        *WORDS,
        "".join(WORDS),
    ]
    for text in ("\n".join(texts), *texts[-20:]):
        ours, theirs = (each.encode_segments([Segment(text)], with_offsets=True) for each in (compiled, plain))
        assert (ours.ids, ours.byte_offsets) == (theirs.ids, theirs.byte_offsets)
    assert [ids.tolist() for ids in compiled.vocabulary.encode_many(texts)] == [
        ids.tolist() for ids in plain.vocabulary.encode_many(texts)
    ]


@given(
    tokens=st.lists(st.binary(min_size=1, max_size=4) | st.text("ab\u00e9", min_size=1).map(str.encode), max_size=20),
    unk_id=st.none() | st.just(999),
    texts=st.lists(st.text("abc\u00e9\u00e8", max_size=20), max_size=4),
)
def test_the_longest_tokens_are_those_that_python_finds(
    tokens: list[bytes], unk_id: int | None, texts: list[str]
) -> None:
    ids = {token: index for index, token in enumerate(tokens)}
    ours, theirs = CompiledLongest(ids, unk_id), PlainLongest(ids, unk_id)
    assert [each.tolist() for each in ours.encode_many(texts)] == [each.tolist() for each in theirs.encode_many(texts)]
    for text in texts:
        assert [each.tolist() for each in ours.encode_with_offsets(text)] == [
            each.tolist() for each in theirs.encode_with_offsets(text)
        ]


@given(pieces=st.lists(st.binary(max_size=4), min_size=1, max_size=9), ids=st.lists(st.integers(0, 8), max_size=200))
def test_pieces_are_joined_as_python_does(pieces: list[bytes], ids: list[int]) -> None:
    array = ids_of([index % len(pieces) for index in ids])
    joiner = PieceJoiner(pieces)
    assert joiner.join(array) == joined_pieces(pieces, array)
    assert joiner.join(array[::2]) == joined_pieces(pieces, array[::2])


@given(
    pieces=st.lists(st.binary(max_size=4) | st.sampled_from([" a", "é" * 20, "龘", "🚀"]).map(str.encode), min_size=9),
    lists=st.lists(st.lists(st.integers(0, 8), max_size=30), max_size=9),
    spaces=st.lists(st.booleans(), min_size=9, max_size=9),
    compiled=st.booleans(),
)
def test_lists_are_joined_to_what_protobuf_reads(
    pieces: list[bytes], lists: list[list[int]], spaces: list[bool], compiled: bool
) -> None:
    edges = np.cumsum([0, *map(len, lists)])
    runs = IdRuns(
        ids_of([index for each in lists for index in each]),
        edges[:-1],
        edges[1:],
        np.array(spaces[: len(lists)], np.bool_),
    )
    with nullcontext() if compiled else mock.patch.object(piece_joiner, "library", return_value=None):
        found = pb.BatchDecodeResponse.FromString(b"".join(PieceJoiner(pieces).join_fields(runs))).decoded
    texts = [b"".join(pieces[index] for index in each) for each in lists]
    for n, each in enumerate(lists):
        if spaces[n] and each and pieces[each[0]].startswith(b" "):
            texts[n] = texts[n][1:]
    assert [each.text for each in found] == [text.decode("utf-8", "replace") for text in texts]
    assert [each.raw for each in found] == [b"" if is_utf8(text) else text for text in texts]


def is_utf8(text: bytes) -> bool:
    try:
        return text.decode() is not None
    except UnicodeDecodeError:
        return False


def test_any_bytes_are_utf8_where_python_says_so() -> None:
    """Every beginning of a character that could be wrong, and borders of what is read at once."""
    leads = [bytes([lead, second]) for lead in range(0x80, 0x100) for second in (0x00, 0x7F, 0x80, 0x8F, 0x90, 0x9F)]
    leads += [bytes([lead, second]) for lead in range(0x80, 0x100) for second in (0xA0, 0xBF, 0xC0, 0xFF)]
    texts = [lead + rest for lead in leads for rest in (b"", b"\x80", b"\x80\x80", b"\xbf\xc0", b"a")]
    texts += [b"a" * before + text + b"a" * 9 for text in texts for before in (0, 3, 7)]
    joiner = PieceJoiner(texts)
    runs = IdRuns(
        ids_of(range(len(texts))),
        *np.array([range(len(texts)), range(1, len(texts) + 1)]),
        np.zeros(len(texts), np.bool_),
    )
    found = pb.BatchDecodeResponse.FromString(b"".join(joiner.join_fields(runs))).decoded
    assert [(each.text, each.raw) for each in found] == [
        (text.decode("utf-8", "replace"), b"" if is_utf8(text) else text) for text in texts
    ]


def test_threads_learn_characters_and_encode_at_once(shared_data: Path) -> None:
    pattern_compiler.compiled.cache_clear()
    tokenizer = load_tokenizer(shared_data / "vocabularies/ggml-vocab-llama-bpe.gguf")
    texts = ["".join(map(chr, range(start, start + 500, 7))) + " ab" for start in range(0x100, 0xD000, 0x300)]
    with ThreadPoolExecutor(4) as threads:
        found = list(threads.map(tokenizer.encode, texts * 4))
    assert found == [tokenizer.encode(text) for text in texts] * 4
    assert list(map(tokenizer.decode, found)) == texts * 4


def test_without_a_compiler_tokenizers_load_and_say_why(tmp_path: Path, shared_data: Path) -> None:
    code = "import sys\nfrom pathlib import Path\nfrom tandem.tokenizer.formats import load_tokenizer\n"
    code += "print(load_tokenizer(Path(sys.argv[1])).vocabulary.encoder)"
    environment = {"CC": "false", "XDG_CACHE_HOME": str(tmp_path), "PATH": "/nowhere"}
    file = shared_data / "models/stories260K/meta"
    done = subprocess.run(
        [sys.executable, "-c", code, file], env=environment, capture_output=True, text=True, check=True
    )
    assert done.stdout == "sentencepiece (there is no compiled library)\n"
    assert "encoding will be slower" in done.stderr
