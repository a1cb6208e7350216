"""tiktoken rank files with an operator's pattern and special tokens: ids equal tiktoken's."""

from __future__ import annotations

import base64
from pathlib import Path

import pytest
import tiktoken
from hypothesis import given
from hypothesis import strategies as st

from tandem.tokenizer.formats import FormatError, RankSettings, load_tokenizer
from tandem.tokenizer.settings import TokenizerSettings
from tandem.tokenizer.tokenizer import Tokenizer

# As OpenAI publishes them.
CL100K = (
    r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+| ?[^\s\p{L}\p{N}]++[\r\n]*+|\s++$|\s*[\r\n]"
    r"|\s+(?!\S)|\s"
)
_UPPER, _LOWER, _SHORT = (
    r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]",
    r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]",
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
)
O200K = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+{_SHORT}|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*{_SHORT}"
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
SPECIALS = {"<|endoftext|>": 0, "<|endofprompt|>": 19}  # behind the ranks
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=30) | st.lists(
    st.sampled_from(
        ["Hello", " world", "don't", "I'LL", "12345", "  ", "\n", " \r\n/", "éÉ", "e\u0301", "!?", "龘", "ſ"]
    ),
    max_size=15,
).map("".join)


@pytest.fixture(scope="module", params=["cl100k", "o200k", "gpt-4o"])
def both(
    request: pytest.FixtureRequest, shared_data: Path, tmp_path_factory: pytest.TempPathFactory
) -> tuple[tiktoken.Encoding, Tokenizer]:
    """The pattern decides how text is cut; that of o200k is tried with ranks of cl100k, which are at hand."""
    pattern = {"cl100k": CL100K}.get(request.param, O200K)
    [file] = (shared_data / "formats/tiktoken").glob("*cl100k*")
    lines = file.read_bytes().splitlines()[:20_000]
    ranks = {base64.b64decode(piece): int(rank) for piece, rank in map(bytes.split, lines)}
    path = tmp_path_factory.mktemp("ranks") / "ranks.tiktoken"
    path.write_bytes(b"\n".join(lines))
    specials = {text: len(ranks) + index for text, index in SPECIALS.items()}
    given_pattern = request.param if request.param == "gpt-4o" else pattern
    ours = load_tokenizer(path, ranks=RankSettings(given_pattern, {index: text for text, index in specials.items()}))
    return tiktoken.Encoding("theirs", pat_str=pattern, mergeable_ranks=ranks, special_tokens=specials), ours


@given(text=TEXT, special=st.sampled_from(["", *SPECIALS]))
def test_ids_equal_tiktoken(both: tuple[tiktoken.Encoding, Tokenizer], text: str, special: str) -> None:
    library, ours = both
    if ours.vocabulary.encoder == "compiled":  # which does not take U+017F for an s, as docs/tokenizer.md says
        text = text.replace("ſ", "")
    text = f"{text}{special}{text}"
    assert ours.encode(text, parse_special=True) == library.encode(text, allowed_special="all")
    assert ours.encode(text) == library.encode(text, disallowed_special=())
    assert ours.decode(ours.encode(text)) == text


def test_what_is_said_of_a_rank_file(both: tuple[tiktoken.Encoding, Tokenizer]) -> None:
    library, ours = both
    assert (ours.config.eos_id, ours.config.bos_id) == (library.eot_token, None)
    assert ours.vocabulary_size == library.n_vocab
    assert ours.config.end_of_generation_ids == {library.eot_token}


def test_a_rank_file_without_a_pattern_says_how_to_give_one(tmp_path: Path, shared_data: Path) -> None:
    (tmp_path / "a.tiktoken").write_bytes(b"YQ== 0\nYg== 1\n")
    with pytest.raises(FormatError, match="say it with --rank-pattern NAME=PATTERN"):
        load_tokenizer(tmp_path / "a.tiktoken")
    with pytest.raises(FormatError, match="not a regular expression"):
        load_tokenizer(tmp_path / "a.tiktoken", ranks=RankSettings("("))
    with pytest.raises(FormatError, match="is no tiktoken rank file, but --rank-pattern"):
        load_tokenizer(shared_data / "formats/llama2", ranks=RankSettings("a"))


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"rank_pattern": ("a",)}, "--rank-pattern a: NAME=PATTERN"),
        ({"rank_pattern": ("other=x",)}, "for a NAME of --tokenizer"),
        ({"rank_pattern": ("a=x", "a=y")}, "once"),
        ({"rank_special": ("a=1",)}, "--rank-special a=1: NAME=ID=TEXT"),
        ({"rank_special": ("a=x=<|x|>",)}, "NAME=ID=TEXT"),
        ({"rank_special": ("a=1=x", "a=1=y")}, "the id 1 is given twice"),
    ],
)
def test_settings_that_are_wrong_are_named(settings: dict[str, tuple[str, ...]], words: str) -> None:
    with pytest.raises(ValueError, match="rank-") as caught:
        TokenizerSettings(tokenizer=("a=/a",), **settings)  # type: ignore[arg-type]
    assert words in str(caught.value)


def test_settings_of_a_rank_file() -> None:
    settings = TokenizerSettings(tokenizer=("a=/a", "b=/b"), rank_pattern=(r"a=x=\s+",), rank_special=("a=7=<|=|>",))
    assert settings.rank_settings() == {"a": RankSettings(r"x=\s+", {7: "<|=|>"})}
