"""`tokenizer.json` files give what the `tokenizers` library gives, for each kind of pipeline that is served."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors, trainers

from tandem.tokenizer.encoding import Policy, Segment
from tandem.tokenizer.formats import FormatError, load_tokenizer
from tandem.tokenizer.tokenizer import Tokenizer
from tandem.tokenizer.vocabulary import TokenType, VocabularyType

TEXT = st.one_of(
    st.text(alphabet=st.characters(exclude_categories=["Cs", "Cn"], exclude_characters="ſ"), max_size=40),
    st.lists(
        st.sampled_from(["the ", "  ", "\n", "I'll", " don't", "123", "4567", "!?", "é", "e\u0301", "龘", "<s>", "a"]),
        max_size=20,
    ).map("".join),
)
LLAMA3_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def byte_level(library: tokenizers.Tokenizer) -> Any:
    library.decoder = decoders.ByteLevel()
    return trainers.BpeTrainer(
        vocab_size=700,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=["<s>", "</s>"],
        show_progress=False,
    )


def gpt2_like() -> tuple[tokenizers.Tokenizer, Any]:
    library = tokenizers.Tokenizer(models.BPE())
    library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    return library, byte_level(library)


def llama3_like() -> tuple[tokenizers.Tokenizer, Any]:
    library = tokenizers.Tokenizer(models.BPE(ignore_merges=True))
    library.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(tokenizers.Regex(LLAMA3_SPLIT), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    return library, byte_level(library)


def qwen_like() -> tuple[tokenizers.Tokenizer, Any]:
    library, trainer = gpt2_like()
    library.normalizer = normalizers.NFC()
    return library, trainer


def digits_first() -> tuple[tokenizers.Tokenizer, Any]:
    library, trainer = gpt2_like()
    library.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    return library, trainer


def llama2_like() -> tuple[tokenizers.Tokenizer, Any]:
    library = tokenizers.Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    library.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    special = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    return library, trainers.BpeTrainer(vocab_size=700, special_tokens=special, show_progress=False)


def bert_like() -> tuple[tokenizers.Tokenizer, Any]:
    library = tokenizers.Tokenizer(models.WordPiece(unk_token="[UNK]"))
    library.normalizer = normalizers.BertNormalizer()
    library.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]
    return library, trainers.WordPieceTrainer(vocab_size=700, special_tokens=special, show_progress=False)


KINDS: dict[str, Callable[[], tuple[tokenizers.Tokenizer, Any]]] = {
    "gpt2": gpt2_like,
    "llama3": llama3_like,
    "qwen": qwen_like,
    "digits": digits_first,
    "llama2": llama2_like,
    "bert": bert_like,
}


@pytest.fixture(scope="module", params=KINDS)
def trained(
    request: pytest.FixtureRequest, shared_data: Path, tmp_path_factory: pytest.TempPathFactory
) -> tuple[str, Tokenizer, tokenizers.Tokenizer]:
    """A tokenizer that the library trained, and what we read from its file."""
    library, trainer = KINDS[request.param]()
    lines = (shared_data / "corpus/botchan.txt").read_text(encoding="utf-8").splitlines()[:1500]
    library.train_from_iterator(lines, trainer)
    path = tmp_path_factory.mktemp(request.param) / "tokenizer.json"
    content = json.loads(library.to_str())
    if request.param == "llama2":  # the trainer can only make control tokens of them
        content["added_tokens"] = content["added_tokens"][:3]
    path.write_text(json.dumps(content))
    return request.param, load_tokenizer(path), tokenizers.Tokenizer.from_file(str(path))


@given(text=TEXT)
def test_ids_equal_the_library(trained: Any, text: str) -> None:
    kind, ours, library = trained
    expected = library.encode(text, add_special_tokens=False).ids
    if kind == "llama2":  # the library puts its prefix in front of special tokens and empty text, llama.cpp behind
        library_text = text.replace("<s>", "")
        expected = library.encode(library_text, add_special_tokens=False).ids if library_text else []
        assert ours.encode(library_text, add_special=False) == expected
    else:
        assert ours.encode(text, add_special=False, parse_special=True) == expected


@given(text=TEXT)
def test_offsets_ascend_and_agree_with_the_ids(trained: Any, text: str) -> None:
    _, ours, _ = trained
    encoding = ours.encode_segments([Segment(text, Policy.PARSE)], with_offsets=True)
    assert encoding.ids == ours.encode(text, parse_special=True)
    assert encoding.byte_offsets == sorted(encoding.byte_offsets)
    assert len(encoding.byte_offsets) == len(encoding.ids)


@pytest.mark.parametrize("folder", ["phi-2", "t5-small"])
def test_real_files(shared_data: Path, folder: str) -> None:
    ours = load_tokenizer(shared_data / "formats" / folder)
    library = tokenizers.Tokenizer.from_file(str(shared_data / "formats" / folder / "tokenizer.json"))
    lines = (shared_data / "corpus/botchan.txt").read_text(encoding="utf-8").splitlines()[:2000]
    differ = [line for line in lines if ours.encode(line) != library.encode(line).ids]
    # In T5 the library breaks ties of equal scores otherwise than sentencepiece does, which made the vocabulary.
    assert len(differ) <= (2 if folder == "t5-small" else 0)


def test_facts_of_real_files(shared_data: Path) -> None:
    phi = load_tokenizer(shared_data / "formats/phi-2")
    assert (phi.type, phi.vocabulary_size, phi.config.eos_id) == (VocabularyType.BPE, 50_295, 50_256)
    assert phi.config.source == "hugging_face"
    assert phi.table.types[50_294] == TokenType.USER_DEFINED
    assert phi.encode("\t\t", add_special=False) == [50_294]
    t5 = load_tokenizer(shared_data / "formats/t5-small")
    assert (t5.type, t5.config.adds_eos, t5.config.eos_id, t5.config.unk_id) == (VocabularyType.UGM, True, 1, 2)


def small(**changes: Any) -> dict[str, Any]:
    library, trainer = gpt2_like()
    library.train_from_iterator(["ab ab abc"], trainer)
    content: dict[str, Any] = json.loads(library.to_str())
    for key, value in changes.items():
        place = content["model"] if key in content["model"] else content
        place[key] = value
    return content


def load_small(tmp_path: Path, **changes: Any) -> Tokenizer:
    (tmp_path / "tokenizer.json").write_text(json.dumps(small(**changes)))
    return load_tokenizer(tmp_path)


@pytest.mark.parametrize(
    ("post_processor", "front", "back"),
    [
        (None, [], []),
        (processors.ByteLevel(), [], []),
        (processors.TemplateProcessing("<s> $A </s>", special_tokens=[("<s>", 0), ("</s>", 1)]), [0], [1]),
        (processors.TemplateProcessing("<s> $A", special_tokens=[("<s>", 0)]), [0], []),
        (processors.TemplateProcessing("$A </s>", special_tokens=[("</s>", 1)]), [], [1]),
        (processors.RobertaProcessing(("</s>", 1), ("<s>", 0)), [0], [1]),
    ],
)
def test_what_the_post_processor_adds(tmp_path: Path, post_processor: Any, front: list[int], back: list[int]) -> None:
    state = None if post_processor is None else json.loads(post_processor.__getstate__())
    tokenizer = load_small(tmp_path, post_processor=state)
    plain = tokenizer.encode("ab", add_special=False)
    assert tokenizer.encode("ab") == [*front, *plain, *back]


def test_neighbouring_files_name_special_tokens(tmp_path: Path) -> None:
    (tmp_path / "special_tokens_map.json").write_text('{"bos_token": "<s>", "eos_token": {"content": "<s>"}}')
    (tmp_path / "tokenizer_config.json").write_text('{"eos_token": "</s>", "add_bos_token": true}')
    tokenizer = load_small(tmp_path)
    assert (tokenizer.config.bos_id, tokenizer.config.eos_id) == (0, 1)
    assert tokenizer.encode("ab")[0] == 0


BROKEN: dict[str, dict[str, Any]] = {
    "normalizer Nmt": {"normalizer": {"type": "Nmt"}},
    "pre-tokenizer Whitespace ": {
        "normalizer": {"type": "Replace", "pattern": {"String": " "}, "content": "\u2581"},
        "pre_tokenizer": {"type": "Whitespace"},
    },
    "post-processor Strange": {"post_processor": {"type": "Strange"}},
    "by a pattern with '('": {
        "pre_tokenizer": {
            "type": "Sequence",
            "pretokenizers": [
                {"type": "Split", "pattern": {"Regex": "("}, "behavior": "Isolated", "invert": False},
                {"type": "ByteLevel", "use_regex": False},
            ],
        }
    },
    "merges[0] is not two tokens": {"merges": ["abc"]},
    "makes 'zz', which is not a token": {"merges": [["z", "z"]]},
    "the vocabulary is empty": {"vocab": {}, "added_tokens": []},
    "has the entry": {"vocab": {"a": -1}},
    "at once": {"vocab": {"a": 1, "b": 1}},
    "model.vocab is 5, expected": {"vocab": 5},
    "the model Strange": {"type": "Strange"},
}


@pytest.mark.parametrize("words", BROKEN)
def test_what_cannot_be_read_is_said_in_one_line(tmp_path: Path, words: str) -> None:
    with pytest.raises(FormatError) as caught:
        load_small(tmp_path, **BROKEN[words])
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("text", ["{", '{"model": 5}', "{}", '{"model": {"type": "BPE"}}', "{" * 5000])
def test_json_that_is_no_tokenizer(tmp_path: Path, text: str) -> None:
    (tmp_path / "tokenizer.json").write_text(text)
    with pytest.raises(FormatError):
        load_tokenizer(tmp_path)


def byte_level_steps(*steps: Any) -> Any:
    return pre_tokenizers.Sequence([*steps, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])


def split(pattern: str, behaviour: str = "isolated", invert: bool = False) -> Any:
    return pre_tokenizers.Split(tokenizers.Regex(pattern), behaviour, invert)


PREPEND, REPLACE = normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")
# What is changed in a file: the normalizer, the pre-tokenizer, options of the model, added tokens.
Change = tuple[Any, Any, dict[str, Any], list[tokenizers.AddedToken]]
BYTE_LEVEL = pre_tokenizers.ByteLevel(add_prefix_space=False)
TOKENS = {
    "single words": [tokenizers.AddedToken("the", single_word=True), tokenizers.AddedToken("<x>", single_word=True)],
    "white space": [tokenizers.AddedToken("<x>", lstrip=True, rstrip=True), tokenizers.AddedToken("<xy>", rstrip=True)],
    "overlaps": [tokenizers.AddedToken(text, normalized=text == "<x") for text in ("<x", "x><y>z", "<x>", "  ")],
}
SERVED: dict[str, dict[str, Change]] = {
    "gpt2": {
        "isolated": (None, byte_level_steps(split(r"\d"), split(r"\s+$")), {}, []),
        "isolated inverted": (None, byte_level_steps(split(r"\w+", invert=True)), {}, []),
        "a literal": (None, byte_level_steps(pre_tokenizers.Split("l", "isolated")), {}, []),
        "digits behind bytes": (
            None,
            pre_tokenizers.Sequence(
                [pre_tokenizers.Punctuation("contiguous"), BYTE_LEVEL, pre_tokenizers.Digits(), split("[0-9][0-9]")]
            ),
            {},
            [],
        ),
        **{name: (None, BYTE_LEVEL, {}, tokens) for name, tokens in TOKENS.items()},
    },
    "llama2": {
        "replaced": (REPLACE, pre_tokenizers.Split(" ", "merged_with_previous"), {}, []),
        **{
            f"metaspace {scheme} {cut}": (None, pre_tokenizers.Metaspace("▁", scheme, split=cut), {}, [])
            for scheme in ("first", "always", "never")
            for cut in (True, False)
        },
        "composed": (normalizers.Sequence([normalizers.NFC(), REPLACE]), None, {}, []),
        "compatible": (normalizers.NFKC(), pre_tokenizers.Metaspace(), {}, []),
        "stripped": (
            normalizers.Sequence([normalizers.NFD(), normalizers.StripAccents()]),
            pre_tokenizers.Metaspace(),
            {},
            [],
        ),
        "both prefixes": (normalizers.Sequence([PREPEND, REPLACE]), pre_tokenizers.Metaspace(), {}, []),
        **{
            f"first {name}": (None, pre_tokenizers.Metaspace("▁", "first", split=False), {}, tokens)
            for name, tokens in TOKENS.items()
        },
    },
    "bert": {"cased": (normalizers.BertNormalizer(lowercase=False), pre_tokenizers.BertPreTokenizer(), {}, [])},
}
REFUSED: dict[str, dict[str, Change]] = {
    "gpt2": {
        "Nmt": (normalizers.Nmt(), BYTE_LEVEL, {}, []),
        "Metaspace": (None, pre_tokenizers.Sequence([pre_tokenizers.Metaspace(), BYTE_LEVEL]), {}, []),
        "Split": (None, pre_tokenizers.Sequence([BYTE_LEVEL, split("a")]), {}, []),
        "MergedWithPrevious": (None, byte_level_steps(split("a", "merged_with_previous", invert=True)), {}, []),
        "Removed": (None, byte_level_steps(split("a|\\s+", "removed", invert=True)), {}, []),
        r"[^a&&": (None, byte_level_steps(split(r"[^a&&b]")), {}, []),
        r"\\h": (None, byte_level_steps(split(r"\h+")), {}, []),
        "'{1,3}+'": (None, byte_level_steps(split(r"\d{1,3}+")), {}, []),
        "dropout": (None, BYTE_LEVEL, {"dropout": 0.1}, []),
        "end_of_word_suffix": (None, BYTE_LEVEL, {"end_of_word_suffix": "</w>"}, []),
        "'Ω'": (normalizers.NFC(), BYTE_LEVEL, {}, [tokenizers.AddedToken("Ω")]),
        "stands for a byte": (None, BYTE_LEVEL, {}, [tokenizers.AddedToken("é")]),
    },
    "llama2": {
        "NFC": (normalizers.Sequence([REPLACE, normalizers.NFC()]), None, {}, []),
        "white space": (
            None,
            pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace()]),
            {},
            [],
        ),
        "ignore_merges": (REPLACE, None, {"ignore_merges": True}, []),
        "with 255 tokens of bytes": (REPLACE, None, {}, [tokenizers.AddedToken("<0x41>")]),
    },
    "bert": {
        "BertPreTokenizer": (normalizers.BertNormalizer(), None, {}, []),
        "BertNormalizer": (normalizers.BertNormalizer(clean_text=False), pre_tokenizers.BertPreTokenizer(), {}, []),
        "'Word'": (
            normalizers.BertNormalizer(),
            pre_tokenizers.BertPreTokenizer(),
            {},
            [tokenizers.AddedToken("Word")],
        ),
    },
}
TRICKY = (
    *(
        "The word, the<x>the other",
        " a  b   c ",
        "▁a▁▁b",
        "",
        " ",
        "\n\n\x0b\x85 x\t\x1c<x>\u3000y",
        "e\u0301 é ò5 ²³45¼",
    ),
    *(
        "<x><y>z  <x>   <xy>\n <x>",
        "1234567 12ab34",
        "  <s>  the</s> a",
        "l'll Hello  \n world  \nend ",
        "a_b-c\u200d²Ⅷ",
    ),
    *("<s>▁x <unk>a", "the's them _the the_ éthe", "龘😀👩\u200d🚀", "'S don't I'LL"),
)


def changed(kind: str, change: Change, lines: list[str], folder: Path) -> Path:
    """A folder with a tokenizer.json of that kind, trained, then changed."""
    normalizer, pre_tokenizer, options, added = change
    library, trainer = KINDS[kind]()
    library.train_from_iterator(lines, trainer)
    library.normalizer, library.pre_tokenizer = normalizer, pre_tokenizer
    library.add_tokens(added)
    content = json.loads(library.to_str())
    content["model"] |= options
    if kind == "llama2":
        given = {token.content for token in added}
        content["added_tokens"] = [
            token
            for token in content["added_tokens"]
            if token["id"] < 3 or token["content"] in given or not token["content"].startswith("<0x")
        ]
    (folder / "tokenizer.json").write_text(json.dumps(content))
    return folder


@pytest.fixture(scope="module")
def lines(shared_data: Path) -> list[str]:
    return (shared_data / "corpus/botchan.txt").read_text(encoding="utf-8").splitlines()[:300]


@pytest.mark.parametrize(("kind", "name"), [(kind, name) for kind, changes in SERVED.items() for name in changes])
def test_other_steps_give_what_the_library_gives(tmp_path: Path, lines: list[str], kind: str, name: str) -> None:
    folder = changed(kind, SERVED[kind][name], lines, tmp_path)
    library = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    ours = load_tokenizer(folder)
    for text in TRICKY:
        if name == "both prefixes" and ("<s>" in text or not text):  # where Prepend puts its prefix, see above
            continue
        expected = library.encode(text, add_special_tokens=False).ids
        assert ours.encode(text, add_special=False, parse_special=True) == expected, text
        encoding = ours.encode_segments([Segment(text, Policy.PARSE)], add_special=False, with_offsets=True)
        assert encoding.ids == expected
        assert encoding.byte_offsets == sorted(encoding.byte_offsets)


@pytest.mark.parametrize(("kind", "words"), [(kind, words) for kind, changes in REFUSED.items() for words in changes])
def test_steps_that_are_not_served_are_named(tmp_path: Path, lines: list[str], kind: str, words: str) -> None:
    folder = changed(kind, REFUSED[kind][words], lines, tmp_path)
    tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))  # the library takes it
    with pytest.raises(FormatError) as caught:
        load_tokenizer(folder)
    assert words in str(caught.value)
