"""A model may have more ids than its vocabulary. Those behind it show nothing, and everything else stays as it is."""

from __future__ import annotations

import json
import random
import shutil
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer as Library
from tokenizers import decoders, models, normalizers, pre_tokenizers, trainers

from tandem.tokenizer.encoding import TokenIdError
from tandem.tokenizer.formats import FormatError, load_tokenizer, sidecar
from tandem.tokenizer.tokenizer import Tokenizer
from tandem.tokenizer.vocabulary import TokenType
from tests.tokenizer_svc.test_hf_json import KINDS
from tests.tokenizer_svc.test_tekken import content as tekken

LINES = ["the cat sat on the mat, and I'll see it", "ΑΒΓ 1234 龘 é\n", "a  b   c"] * 20


def unigram() -> tuple[Library, Any]:
    library = Library(models.Unigram())
    library.normalizer = normalizers.NFKC()
    library.pre_tokenizer = pre_tokenizers.Metaspace()
    library.decoder = decoders.Metaspace()
    return library, trainers.UnigramTrainer(
        vocab_size=60, special_tokens=["<unk>", "<s>"], unk_token="<unk>", show_progress=False
    )


def saved(folder: Path, kind: str) -> Library:
    library, trainer = {**KINDS, "unigram": unigram}[kind]()
    library.train_from_iterator(LINES, trainer)
    content = json.loads(library.to_str())
    if kind == "llama2":  # the trainer can only make control tokens of bytes
        content["added_tokens"] = content["added_tokens"][:3]
    (folder / "tokenizer.json").write_text(json.dumps(content))
    return Library.from_file(str(folder / "tokenizer.json"))


def padded(folder: Path, **config: object) -> Tokenizer:
    (folder / "config.json").write_text(json.dumps(config))
    return load_tokenizer(folder)


@pytest.mark.parametrize("kind", ["gpt2", "llama3", "unigram"])
def test_padding_shows_as_the_library_shows_it(kind: str, tmp_path: Path) -> None:
    library = saved(tmp_path, kind)
    size = library.get_vocab_size()
    plain, ours = load_tokenizer(tmp_path), padded(tmp_path, vocab_size=size + 300)
    assert (plain.vocabulary_size, ours.vocabulary_size) == (size, size + 300)
    assert set(ours.table.types[size:]) == {TokenType.UNUSED}
    chance = random.Random(5)
    for text in LINES[:3]:
        ids = ours.encode(text, add_special=False)
        assert ids == plain.encode(text, add_special=False) == library.encode(text, add_special_tokens=False).ids
        for _ in range(20):
            place = chance.randrange(len(ids) + 1)
            mixed = [*ids[:place], size + chance.randrange(300), *ids[place:], size + 299]
            assert ours.decode(mixed) == plain.decode(ids) == library.decode(mixed, skip_special_tokens=False)
            stream = ours.stream(stop_strings=[] if place % 2 else ["no such text"])
            assert "".join(stream.push(mixed[at : at + 3]) for at in range(0, len(mixed), 3)) + stream.push(
                [], end=True
            ) == plain.decode(ids)


@pytest.mark.parametrize("kind", KINDS)
def test_a_text_shows_the_same_with_padding_in_it(kind: str, tmp_path: Path) -> None:
    size = saved(tmp_path, kind).get_vocab_size()
    plain, ours = load_tokenizer(tmp_path), padded(tmp_path, vocab_size=size + 1)
    for text in LINES[:3]:
        ids = plain.encode(text)
        assert ours.encode(text) == ids
        for unparse in (False, True):
            shown = plain.decode(ids, unparse_special=unparse)
            assert ours.decode([*ids[:1], size, *ids[1:], size], unparse_special=unparse) == shown


@pytest.mark.parametrize("folder", ["llama3", "llama2"])
def test_files_of_other_libraries_are_padded_too(folder: str, shared_data: Path, tmp_path: Path) -> None:
    shutil.copy(shared_data / "formats" / folder / "tokenizer.model", tmp_path)
    plain = load_tokenizer(tmp_path)
    ours = padded(tmp_path, vocab_size=plain.vocabulary_size + 64)
    assert ours.vocabulary_size == plain.vocabulary_size + 64
    ids = plain.encode("It was 1,234 years ago.\n<s>")
    assert ours.encode("It was 1,234 years ago.\n<s>") == ids
    behind = plain.vocabulary_size, plain.vocabulary_size + 63
    assert ours.decode([ids[0], behind[0], *ids[1:], behind[1]]) == plain.decode(ids)
    assert ours.fingerprint != plain.fingerprint  # other ids are valid


def test_tekken_is_padded_too(tmp_path: Path) -> None:
    (tmp_path / "tekken.json").write_text(json.dumps(tekken()))
    plain = load_tokenizer(tmp_path)
    assert padded(tmp_path, vocab_size=plain.vocabulary_size + 2).vocabulary_size == plain.vocabulary_size + 2


def test_the_size_stands_where_the_model_has_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    size = saved(tmp_path, "gpt2").get_vocab_size()
    assert padded(tmp_path, text_config={"vocab_size": size + 2}).vocabulary_size == size + 2
    of_both = padded(tmp_path, vocab_size=size + 9, text_config={"vocab_size": size + 2})
    assert of_both.vocabulary_size == size + 2
    for around in (
        {"thinker_config": {"text_config": {"vocab_size": size + 2}}},
        {"llm_config": {"vocab_size": size + 2}},
    ):
        assert padded(tmp_path, **around).vocabulary_size == size + 2
    for other in (size, size - 1, 0, -1, True, 1e9, "many", None, size + (1 << 16) + 1, 1 << 60):
        assert padded(tmp_path, vocab_size=other).vocabulary_size == size
    monkeypatch.setitem(sidecar._UNSAID, "gemma3_text", size + 3)
    assert padded(tmp_path, text_config={"model_type": "gemma3_text"}).vocabulary_size == size + 3
    assert padded(tmp_path, text_config={"model_type": ["gemma3_text"]}).vocabulary_size == size
    with pytest.raises(TokenIdError):
        padded(tmp_path, vocab_size=size + 1).decode([size + 1])
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(FormatError, match=r"config\.json"):
        load_tokenizer(tmp_path)
