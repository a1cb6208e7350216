"""GGUF vocabularies: defaults, pre-tokenizers, attributes, and files that are broken."""

from __future__ import annotations

import itertools
import json
import logging
import struct
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandem.tokenizer.formats import FormatError, load_tokenizer
from tandem.tokenizer.formats.byte_alphabet import ALPHABET, from_alphabet
from tandem.tokenizer.formats.rwkv_text import unescape
from tandem.tokenizer.tokenizer import Tokenizer
from tandem.tokenizer.vocabularies.bpe.pre_tokenizers import PRE_TOKENIZERS
from tandem.tokenizer.vocabulary import TokenType, VocabularyType
from tests.tokenizer_svc.gguf_writer import gguf_bytes, write_gguf
from tests.tokenizer_svc.pieces import pieces_of

NORMAL, UNKNOWN, CONTROL, USER, BYTE = 1, 2, 3, 4, 6


def byte_pairs(**changes: Any) -> dict[str, Any]:
    """Metadata of a small byte-level vocabulary; `changes` replace keys, None takes one away."""
    tokens = [*ALPHABET, "Ġa", "ab", "Ġab", "<e>"]
    metadata: dict[str, Any] = {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [NORMAL] * 259 + [CONTROL],
        "tokenizer.ggml.merges": ["Ġ a", "a b", "Ġa b"],
        "tokenizer.ggml.eos_token_id": 259,
    }
    metadata |= {f"tokenizer.ggml.{key}": value for key, value in changes.items()}
    return {key: value for key, value in metadata.items() if value is not None}


def scored(**changes: Any) -> dict[str, Any]:
    """Metadata of a small SentencePiece vocabulary."""
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁", "a", "b", "ab", "▁ab"]
    metadata: dict[str, Any] = {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.scores": [0.0] * 259 + [-3.0, -4.0, -5.0, -1.0, -2.0],
        "tokenizer.ggml.token_type": [UNKNOWN, CONTROL, CONTROL, *([BYTE] * 256), *([NORMAL] * 5)],
    }
    metadata |= {f"tokenizer.ggml.{key}": value for key, value in changes.items()}
    return {key: value for key, value in metadata.items() if value is not None}


@pytest.mark.parametrize("pre", ["gpt-2", "llama-bpe", "falcon", "deepseek-coder", "superbpe", "kimi-k2", "jais-2"])
def test_small_byte_pairs(tmp_path: Path, pre: str) -> None:
    tokenizer = load_tokenizer(write_gguf(tmp_path / "x.gguf", byte_pairs(pre=pre)))
    assert tokenizer.type == VocabularyType.BPE
    assert tokenizer.encode(" ab", add_special=False) == [258]
    for text in ("1234567 x", "\n\n a\t\n", "don't 12 é龘'LL!!", " "):
        assert tokenizer.decode(tokenizer.encode(text, add_special=False)) == text


def test_every_vocabulary_loads_and_its_specials_are_found(shared_data: Path) -> None:
    files = sorted((shared_data / "vocabularies").glob("*.gguf"))
    assert len(files) == 19
    for file in files:
        tokenizer = load_tokenizer(file)
        for token in tokenizer.table.specials[:50]:
            assert tokenizer.encode(token.text, add_special=False, parse_special=True) == [token.id], file.name


def test_every_pre_tokenizer_name_is_known_and_cuts_without_loss(shared_data: Path) -> None:
    known = json.loads((shared_data / "vocabularies/pre_types.json").read_text())
    assert set(PRE_TOKENIZERS) == set(known["names"])
    for name, facts in known["names"].items():
        cut = PRE_TOKENIZERS[name]
        assert cut.ignore_merges == facts["ignore_merges"], name
        assert cut.clean_spaces == facts["clean_spaces"], name
        assert cut.adds_bos == facts["add_bos_default"], name
        assert cut.raw_text == facts["escape_whitespaces"], name


@pytest.mark.parametrize(
    ("name", "text", "pieces"),
    [
        ("afmoe", "1234567", ["1", "234", "567"]),
        ("superbpe", "1234567", ["1", "234", "567"]),
        ("deepseek-v3", "1234567", ["123", "456", "7"]),
        ("llama-bpe", "1234567 abc", ["123", "456", "7", " abc"]),
        ("qwen2", "12 a", ["1", "2", " a"]),
        ("kimi-k2", "漢字abc", ["漢字", "abc"]),
        ("gpt-4o", "helloWorld's", ["hello", "World's"]),
        ("falcon", "a12345", ["a", "123", "45"]),
        ("viking", "a1 b", ["a", "1", " b"]),
    ],
)
def test_what_some_pre_tokenizers_cut(tmp_path: Path, name: str, text: str, pieces: list[str]) -> None:
    tokenizer = load_tokenizer(write_gguf(tmp_path / "x.gguf", byte_pairs(pre=name)))
    assert pieces_of(tokenizer.vocabulary._patterns, text) == pieces  # type: ignore[attr-defined]


def test_a_missing_pre_tokenizer_is_warned_about_and_an_unknown_one_refused(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        load_tokenizer(write_gguf(tmp_path / "a.gguf", byte_pairs(pre=None)))
    assert "pre-tokenizer" in caplog.text
    with pytest.raises(FormatError, match=r"'strange'.*llama-bpe"):
        load_tokenizer(write_gguf(tmp_path / "b.gguf", byte_pairs(pre="strange")))


def test_the_same_vocabulary_has_the_same_fingerprint_in_every_format(shared_data: Path) -> None:
    for folder, gguf in (
        ("formats/llama2", "vocabularies/ggml-vocab-llama-spm.gguf"),
        ("formats/llama3", "vocabularies/ggml-vocab-llama-bpe.gguf"),
        ("models/stories260K/meta", "models/stories260K/gguf/stories260K-f32.gguf"),
    ):
        assert load_tokenizer(shared_data / folder).fingerprint == load_tokenizer(shared_data / gguf).fingerprint


def test_ignore_merges_takes_whole_pieces_that_no_merge_makes(tmp_path: Path) -> None:
    tokens = [*ALPHABET, "Ġa", "ab", "Ġab", "<e>", "zz"]
    changes: dict[str, Any] = {"tokens": tokens, "token_type": [NORMAL] * 259 + [CONTROL, NORMAL]}
    merging = load_tokenizer(write_gguf(tmp_path / "a.gguf", byte_pairs(**changes)))
    ignoring = load_tokenizer(write_gguf(tmp_path / "b.gguf", byte_pairs(pre="llama-bpe", **changes)))
    z = merging.encode("z", add_special=False)
    assert merging.encode("zz", add_special=False) == z * 2
    assert ignoring.encode("zz", add_special=False) == [260]
    assert ignoring.encode("zzz", add_special=False) == z * 3


def test_types_of_tokens_whose_text_has_a_role(tmp_path: Path) -> None:
    tokens = [*ALPHABET, "Ġa", "ab", "Ġab", "<|im_end|>"]
    metadata = byte_pairs(tokens=tokens, token_type=[NORMAL] * 259 + [USER])
    tokenizer = load_tokenizer(write_gguf(tmp_path / "a.gguf", metadata))
    assert tokenizer.table.types[259] == TokenType.CONTROL
    assert tokenizer.config.end_of_generation_ids == {259}
    assert 259 not in tokenizer.encode("<|im_end|>", add_special=False)


def test_attributes_that_llama_cpp_infers_from_names(tmp_path: Path, shared_data: Path) -> None:
    phi3 = load_tokenizer(shared_data / "vocabularies/ggml-vocab-phi-3.gguf")
    stripped = {token.text for token in phi3.table.specials if token.rstrip}
    assert "<|assistant|>" in stripped
    assert not {"<unk>", "<s>", "<|endoftext|>"} & stripped
    metadata = byte_pairs(tokens=[*ALPHABET, "Ġa", "ab", "Ġab", "<mask>"], pre="jina-v2-de")
    jina = load_tokenizer(write_gguf(tmp_path / "a.gguf", metadata))
    assert jina.encode("a  <mask>", False, True) == [*jina.encode("a", False), 259]


def test_small_scored_vocabulary_and_its_defaults(tmp_path: Path) -> None:
    tokenizer = load_tokenizer(write_gguf(tmp_path / "a.gguf", scored()))
    assert tokenizer.encode("ab") == [1, 263]
    assert tokenizer.encode("</s>ab</s>", parse_special=True) == [1, 2, 263, 2]
    assert tokenizer.config.adds_space_prefix
    without = load_tokenizer(write_gguf(tmp_path / "b.gguf", scored(add_space_prefix=False, add_bos_token=False)))
    assert without.encode("ab") == [262]


def naive_merge(text: str, ranks: dict[str, int]) -> list[str]:
    """Byte-pair encoding as it is defined: the pair of lowest rank merges, the leftmost first."""
    symbols = list(text)
    while True:
        pairs = [(ranks.get(a + b, 1 << 30), at) for at, (a, b) in enumerate(itertools.pairwise(symbols))]
        if not pairs or min(pairs)[0] == 1 << 30:
            return symbols
        at = min(pairs)[1]
        symbols[at : at + 2] = [symbols[at] + symbols[at + 1]]


@pytest.fixture(scope="module")
def raw(tmp_path_factory: pytest.TempPathFactory) -> tuple[Tokenizer, dict[str, int], list[str]]:
    """A vocabulary of raw text as Gemma 4's: characters, merges of them, bytes."""
    merges = ["▁ a", "a b", "b b", "ab b", "▁a b", "é a", "\n \n", "▁ ▁", "ab ab"]
    products = [merge.replace(" ", "") for merge in merges]
    tokens = ["<unk>", "<s>", *(f"<0x{byte:02X}>" for byte in range(256)), *"ab▁é\n", *products, "▁▁▁▁", "<e>"]
    types = [UNKNOWN, CONTROL, *([BYTE] * 256), *([NORMAL] * (5 + len(products))), USER, CONTROL]
    metadata = {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gemma4",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": types,
        "tokenizer.ggml.merges": merges,
    }
    path = write_gguf(tmp_path_factory.mktemp("raw") / "x.gguf", metadata)
    return load_tokenizer(path), {product: rank for rank, product in enumerate(products)}, tokens


@given(text=st.text(alphabet="ab é\n龘", max_size=30))
def test_raw_text_merges_by_rank_and_falls_back_to_bytes(raw: Any, text: str) -> None:
    tokenizer, ranks, tokens = raw
    expected: list[int] = []
    for line in text.replace(" ", "▁").splitlines(keepends=True):
        body = line.rstrip("\n")
        expected += [each for symbol in naive_merge(body, ranks) for each in ids_of(symbol, tokens)]
        expected += [-1] * (len(line) - len(body))
    plain = tokenizer.encode(text, add_special=False)
    assert tokenizer.decode(plain) == text
    without_breaks = [each for each in expected if each >= 0]
    assert [each for each in plain if "\n" not in tokens[each]] == without_breaks


def ids_of(symbol: str, tokens: list[str]) -> list[int]:
    if symbol in tokens:
        return [tokens.index(symbol)]
    return [tokens.index(f"<0x{byte:02X}>") for byte in symbol.encode()]


@given(st.binary(max_size=20))
def test_the_alphabet_writes_every_byte(data: bytes) -> None:
    assert from_alphabet("".join(ALPHABET[byte] for byte in data)) == data


def test_characters_outside_of_the_alphabet_stand_for_themselves() -> None:
    assert from_alphabet("Ġ龘") == " 龘".encode()


def test_escapes_of_rwkv_tokens() -> None:
    assert unescape(r"a\n\t\r\\\'\x00\xffé") == b"a\n\t\r\\'\x00\xff" + "é".encode()
    for broken in ("a\\", r"\x1", r"\xg0"):
        with pytest.raises(ValueError, match="escape"):
            unescape(broken)


BROKEN = {
    "has no tokenizer.ggml.tokens": byte_pairs(tokens=None),
    "no tokenizer.ggml.merges": byte_pairs(merges=None),
    "merges[1] is not two tokens": byte_pairs(merges=["Ġ a", "ab"]),
    "merges[0] is not two tokens": byte_pairs(merges=["Ġ a b"]),
    "'qq', which is not in": byte_pairs(merges=["q q"]),
    "token_type has 2 entries": byte_pairs(token_type=[1, 1]),
    "outside of 0 to 6": byte_pairs(token_type=[9] * 260),
    "wrong type str": byte_pairs(tokens="x"),
    "tokenizer.ggml.model 'plamo2'": byte_pairs(model="plamo2"),
    "has no tokenizer.ggml.model": byte_pairs(model=None),
    "has no tokenizer.ggml.scores": scored(scores=None),
    "scores has 1 entries": scored(scores=[1.0]),
    "tokens[1] is not valid UTF-8": byte_pairs(tokens=["a", "\udcff"]),
    "is a byte, but its text": scored(token_type=[2, 3, 3] + [BYTE] * 257 + [NORMAL] * 4),
    "eos_token_id has the wrong type": byte_pairs(eos_token_id="x"),
    "broken escape": {
        "tokenizer.ggml.model": "rwkv",
        "tokenizer.ggml.tokens": ["a", "\\x0"],
    },
}


@pytest.mark.parametrize("words", BROKEN)
def test_broken_metadata_is_said_in_one_line(tmp_path: Path, words: str) -> None:
    with pytest.raises(FormatError) as caught:
        load_tokenizer(write_gguf(tmp_path / "x.gguf", BROKEN[words]))
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_every_truncation_is_noticed(tmp_path: Path) -> None:
    whole = gguf_bytes(byte_pairs())
    path = tmp_path / "x.gguf"
    for length in [*range(4, 400, 7), *range(400, len(whole), 211), len(whole) - 1]:
        path.write_bytes(whole[:length])
        with pytest.raises(FormatError):
            load_tokenizer(path)


def test_lengths_that_lie_allocate_nothing(tmp_path: Path) -> None:
    huge = 1 << 60
    head = b"GGUF" + struct.pack("<IQQ", 3, 0, 1)
    key = struct.pack("<Q", 21) + b"tokenizer.ggml.tokens"
    cases = [
        b"GGUF" + struct.pack("<IQQ", 3, 0, huge),
        head + struct.pack("<Q", huge),
        head + key + struct.pack("<I", 8) + struct.pack("<Q", huge),
        head + key + struct.pack("<IIQ", 9, 8, huge),
        head + key + struct.pack("<IIQ", 9, 6, huge),
        head + key + struct.pack("<IIQ", 9, 9, 1),
        head + key + struct.pack("<I", 77),
        b"GGUF" + struct.pack(">IQQ", 3, 0, 1),
        b"GGUF" + struct.pack("<IQQ", 1, 0, 1),
    ]
    for number, data in enumerate(cases):
        path = tmp_path / f"{number}.gguf"
        path.write_bytes(data)
        with pytest.raises(FormatError):
            load_tokenizer(path)


@given(data=st.binary(max_size=200), at=st.integers(0, 3000))
def test_random_damage_gives_an_error_or_a_tokenizer(tmp_path_factory: Any, data: bytes, at: int) -> None:
    whole = bytearray(gguf_bytes(byte_pairs()))
    whole[at : at + len(data)] = data
    path = tmp_path_factory.mktemp("damaged") / "x.gguf"
    path.write_bytes(bytes(whole))
    with suppress(FormatError):
        tokenizer = load_tokenizer(path)
        ids = tokenizer.encode("a b")
        assert all(0 <= id_ < tokenizer.vocabulary_size for id_ in ids)
        assert isinstance(tokenizer.decode(ids), str)


def test_every_id_that_the_file_says_ends_an_answer_does(tmp_path: Path) -> None:
    ends = {f"{name}_token_id": 259 + number for number, name in enumerate(("eot", "eom", "fim_pad", "fim_rep"))}
    tokenizer = load_tokenizer(write_gguf(tmp_path / "x.gguf", scored(**ends, eos_token_id=2, fim_pre_token_id=263)))
    assert tokenizer.config.end_of_generation_ids == {2, 259, 260, 261, 262}


def test_a_vocabulary_without_types_still_falls_back_to_bytes(tmp_path: Path) -> None:
    tokenizer = load_tokenizer(write_gguf(tmp_path / "x.gguf", scored(token_type=None)))
    assert tokenizer.encode("é", add_special=False) == [259, 3 + 0xC3, 3 + 0xA9]


def test_only_unigram_vocabularies_merge_white_space(tmp_path: Path) -> None:
    tokenizer = load_tokenizer(write_gguf(tmp_path / "x.gguf", scored(remove_extra_whitespaces=True)))
    assert tokenizer.encode("  a ", add_special=False) == [259, 259, 259, 260, 259]


def test_what_a_damaged_file_holds_makes_no_long_message(tmp_path: Path) -> None:
    key = "a\n\x00" * 10_000
    path = tmp_path / "x.gguf"
    for data in (gguf_bytes({key: 5}), gguf_bytes({key[:3000]: 5})[:-8] + b"\xff" * 8, gguf_bytes(scored(model=key))):
        path.write_bytes(data)
        with pytest.raises(FormatError) as caught:
            load_tokenizer(path)
        message = str(caught.value)
        assert message.isprintable()
        assert len(message) < 5000
