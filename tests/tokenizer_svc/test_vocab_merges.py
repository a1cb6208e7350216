"""Folders with `vocab.json` and `merges.txt`: the ids that transformers' GPT-2 tokenizer has of them."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
import tokenizers
import transformers
from tokenizers import models, pre_tokenizers, trainers

from tandem.tokenizer.formats import FormatError, load_tokenizer
from tandem.tokenizer.settings import TokenizerSettings
from tandem.tokenizer.vocabulary import TokenType

OPT_SPECIALS = ["<s>", "<pad>", "</s>", "<unk>"]
OPT = {
    **{"bos_token": {"__type": "AddedToken", "content": "</s>", "normalized": True}, "eos_token": "</s>"},
    **{"unk_token": "</s>", "pad_token": "<pad>", "add_bos_token": True, "tokenizer_class": "GPT2Tokenizer"},
}
CHOICES = ["the ", " then", "  ", "\n\n", "I'll", " don't", "123", "4567", "!?", "é", "e\u0301", "龘", "🙂", "<s>"]
CHOICES += ["</s>", "<|endoftext|>", "<pad>", "[X]", "# #", "a", "\t"]


def written(folder: Path, specials: list[str], **config: Any) -> Path:
    """A small vocabulary, trained here, as GPT-2's first tokenizer wrote it."""
    library = tokenizers.Tokenizer(models.BPE())
    library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(
        vocab_size=500,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=specials,
        show_progress=False,
    )
    library.train_from_iterator(["the theory of then and there", "don't, I'll, 1234 # # a ## ##"] * 9, trainer)
    folder.mkdir(exist_ok=True)
    library.model.save(str(folder))
    lines = [line for line in (folder / "merges.txt").read_text().split("\n") if not line.startswith("#version")]
    (folder / "merges.txt").write_text("\n".join(["#version: 0.2", *lines]))
    if config:
        (folder / "tokenizer_config.json").write_text(json.dumps(config))
    (folder / "config.json").write_text(json.dumps({"model_type": "gpt2"}))
    return folder


def assert_ids_agree(folder: Path) -> None:
    ours, theirs = load_tokenizer(folder), transformers.GPT2Tokenizer.from_pretrained(folder)
    assert ours.vocabulary_size == len(theirs)
    assert (ours.config.bos_id, ours.config.eos_id) == (theirs.bos_token_id, theirs.eos_token_id)
    assert ours.config.pad_id == theirs.pad_token_id
    generator = random.Random(0)
    for _ in range(300):
        text = "".join(generator.choices(CHOICES, k=generator.randrange(12)))
        expected = theirs(text)["input_ids"]
        assert list(ours.encode(text, True, True)) == expected, text
        assert ours.decode(expected, False, True) == theirs.decode(expected, clean_up_tokenization_spaces=False)


@pytest.mark.parametrize(
    ("specials", "config"),
    [
        (["<|endoftext|>"], {}),
        (["<|endoftext|>"], {"add_prefix_space": True, "tokenizer_class": "GPT2TokenizerFast"}),
        (["<|endoftext|>"], {"pad_token": "[PAD]", "additional_special_tokens": ["[X]"]}),
        ([], {}),  # none of the vocabulary's: behind it
        (OPT_SPECIALS, OPT),
    ],
)
def test_texts_have_the_ids_of_transformers(specials: list[str], config: dict[str, Any], tmp_path: Path) -> None:
    assert_ids_agree(written(tmp_path, specials, **config))


def test_tokens_beside_the_vocabulary_have_their_own_ids(tmp_path: Path) -> None:
    folder = written(tmp_path, ["<|endoftext|>"])
    ids = json.loads((folder / "vocab.json").read_text())
    (folder / "added_tokens.json").write_text(json.dumps({"[X]": len(ids), "theory of": len(ids) + 1}))
    ours = load_tokenizer(folder)
    assert list(ours.encode("a[X]b", False, True)) == [ids["a"], len(ids), ids["b"]]
    assert ours.table.specials[-1].type == TokenType.USER_DEFINED


def test_the_folder_of_gpt_2_gives_what_its_gguf_file_gives(tmp_path: Path, shared_data: Path) -> None:
    reference = load_tokenizer(shared_data / "vocabularies" / "ggml-vocab-gpt-2.gguf")
    gguf = pytest.importorskip("gguf")
    fields = gguf.GGUFReader(shared_data / "vocabularies" / "ggml-vocab-gpt-2.gguf").fields
    tokens, merges = (fields[f"tokenizer.ggml.{name}"].contents() for name in ("tokens", "merges"))
    (tmp_path / "vocab.json").write_text(json.dumps({token: index for index, token in enumerate(tokens)}))
    (tmp_path / "merges.txt").write_text("#version: 0.2\n" + "\n".join(merges) + "\n", encoding="utf-8")
    ours = load_tokenizer(tmp_path)
    assert (ours.config.bos_id, ours.config.eos_id, ours.vocabulary_size) == (50256, 50256, 50257)
    generator = random.Random(0)
    for _ in range(300):
        text = "".join(generator.choices(CHOICES, k=generator.randrange(20)))
        assert list(ours.encode(text, False, True)) == list(reference.encode(text, False, True)), text
    assert list(ours.encode("Hello world", True, True)) == [15496, 995]


def test_a_file_is_named_as_its_folder_is(tmp_path: Path) -> None:
    folder = written(tmp_path / "small", ["<|endoftext|>"])
    assert list(TokenizerSettings(tokenizer=(str(folder / "vocab.json"),)).tokenizers()) == ["small"]
    assert load_tokenizer(folder / "vocab.json").vocabulary_size == load_tokenizer(folder).vocabulary_size


def test_a_tokenizer_of_another_class_is_refused_by_name(tmp_path: Path) -> None:
    written(tmp_path, ["<|endoftext|>"], tokenizer_class="RobertaTokenizer")
    with pytest.raises(FormatError, match="tokenizer_class RobertaTokenizer are not served, but GPT2Tokenizer's are"):
        load_tokenizer(tmp_path)


@pytest.mark.parametrize(
    ("file", "text", "problem"),
    [
        ("vocab.json", "[]", "is not a tokenizer"),
        ("vocab.json", '{"a": "b"}', "expected an id"),
        ("vocab.json", "{}", "there is no|lacks|makes"),
        ("merges.txt", "a b c", "is not two tokens"),
        ("merges.txt", "t 龘", "which is not a token"),
        ("added_tokens.json", '{"x": -1}', "expected an id"),
        ("added_tokens.json", '{"x": "y"}', "expected"),
        ("added_tokens.json", '{"<x>": 4000000000}', "model.vocab or added_tokens"),
        ("tokenizer_config.json", '{"additional_special_tokens": 3}', "additional_special_tokens is not a list"),
        ("tokenizer_config.json", '{"add_prefix_space": 3}', "add_prefix_space"),
    ],
)
def test_damaged_files_are_refused_with_a_reason(file: str, text: str, problem: str, tmp_path: Path) -> None:
    folder = written(tmp_path, ["<|endoftext|>"])
    (folder / file).write_text(text, encoding="utf-8")
    with pytest.raises(FormatError, match=problem):
        load_tokenizer(folder)
