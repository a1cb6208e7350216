"""The training of the demo model, and the demo model itself."""

from __future__ import annotations

import json
import math
import re
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import sentencepiece
import torch
from rich.console import Console
from safetensors.torch import load_file

BOS, EOS, IGNORED = 1, 2, -1
AWKWARD = [
    "two  spaces, a\ttab\n\n\nand lines\r\n",
    "  leading",
    "trailing \n",
    "é 漢字 🙂👩\u200d🚀",
    "a\u0301",
    "1234",
]


@pytest.fixture(scope="module")
def train_demo(repository: Path) -> ModuleType:
    """The script as it runs: with its own folder first on the path."""
    sys.path.insert(0, str(repository / "models"))
    try:
        import train_demo
    finally:
        sys.path.pop(0)
    return train_demo


def made_up_play(seed: int = 0, paragraphs: int = 400) -> str:
    """Speeches of random words, enough for a small vocabulary."""
    generator = np.random.default_rng(seed)
    syllables = ["ba", "ro", "ken", "ti", "sul", "om", "ver", "na", "qui", "st", "el", "ae", "h", "u"]
    words = ["".join(generator.choice(syllables, generator.integers(1, 5))) for _ in range(300)]
    speeches = []
    for _ in range(paragraphs):
        name = words[generator.integers(0, 10)].title()
        lines = [" ".join(generator.choice(words, 7)).capitalize() + "." for _ in range(generator.integers(1, 5))]
        speeches.append("\n".join([f"{name}:", *lines]))
    return "\n\n".join(speeches) + "\n"


@pytest.fixture(scope="module")
def trained(train_demo: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("trained")
    shape = train_demo.Shape(
        vocab_size=400, hidden_size=64, intermediate_size=96, layers=2, heads=4, kv_heads=2, context=64
    )
    recipe = train_demo.Recipe(steps=12, batch=4, warmup=4, evaluate_every=6)
    train_demo.train(made_up_play(), out, shape, recipe, "made_up_play.txt", Console(quiet=True))
    return out


def test_a_trained_folder_is_a_llama_for_transformers(trained: Path) -> None:
    from transformers import GenerationConfig, LlamaForCausalLM

    model = LlamaForCausalLM.from_pretrained(trained)
    assert model.dtype == torch.bfloat16
    assert model.config.num_attention_heads // model.config.num_key_value_heads == 2
    assert model.get_output_embeddings().weight.data_ptr() == model.get_input_embeddings().weight.data_ptr()
    assert torch.isfinite(model(torch.tensor([[BOS, 300, 301]])).logits).all()
    defaults = GenerationConfig.from_pretrained(trained)
    assert (defaults.bos_token_id, defaults.eos_token_id, defaults.do_sample) == (BOS, EOS, True)


def test_training_lowers_the_loss_below_that_of_guessing(trained: Path) -> None:
    card = (trained / "README.md").read_text()
    match = re.search(r"validation loss ([\d.]+) nats", card)
    assert match is not None
    assert float(match[1]) < math.log(400) - 0.1


def test_a_trained_vocabulary_gives_any_text_back(trained: Path) -> None:
    tokenizer = sentencepiece.SentencePieceProcessor(model_file=str(trained / "tokenizer.model"))
    for text in [*AWKWARD, made_up_play(seed=1, paragraphs=5)]:
        assert tokenizer.decode(tokenizer.encode(text)) == text
    assert (tokenizer.unk_id(), tokenizer.bos_id(), tokenizer.eos_id()) == (0, BOS, EOS)
    assert tokenizer.id_to_piece(3) == "<0x00>"


def test_the_files_can_be_read_by_another_user(trained: Path) -> None:
    for file in trained.iterdir():
        assert file.stat().st_mode & 0o044 == 0o044, file


def test_every_token_of_an_epoch_is_trained_on_once_and_rows_begin_with_bos(
    train_demo: ModuleType, trained: Path
) -> None:
    tokenizer = sentencepiece.SentencePieceProcessor(model_file=str(trained / "tokenizer.model"))
    paragraphs = [f"Speech {number} of many.\n\n" for number in range(100)]
    rows = train_demo.rows_of(paragraphs, tokenizer, 32, 3.0, np.random.default_rng(7))
    assert rows.shape[1] == 33
    assert (rows[:, 0] == BOS).all()
    kept = [token for token in rows.flatten().tolist() if token not in (BOS, IGNORED)]
    documents = "".join(f"{tokenizer.decode(part)}\n\n" for part in split_at(kept, EOS))
    numbers = [int(number) for number in re.findall(r"Speech (\d+) of many\.", documents)]
    assert sorted(numbers) == list(range(100))


def test_each_turn_of_a_dialogue_ends_as_in_the_chat_template(
    train_demo: ModuleType, trained: Path, repository: Path
) -> None:
    """The ids that the training sees are those of the tokenizer's own rendering."""
    from jinja2 import Environment

    tokenizer = sentencepiece.SentencePieceProcessor(model_file=str(trained / "tokenizer.model"))
    paragraphs = ["ROMEO:\nOne.\n\n", "JULIET:\nTwo,\nthree.\n\n"]
    rows = [train_demo.rows_of(paragraphs, tokenizer, 256, 1e9, np.random.default_rng(seed), 1.0) for seed in range(9)]
    kept = [[token for token in row.flatten().tolist() if token != IGNORED] for row in rows]
    seen = {"</s>".join(tokenizer.decode(part) for part in split_at(each[1:], EOS)) for each in kept}
    messages = [{"role": "user", "content": "One."}, {"role": "assistant", "content": "Two,\nthree."}]
    template = Environment(keep_trailing_newline=True).from_string((trained / "chat_template.jinja").read_text())
    names = {"bos_token": "<s>", "eos_token": "</s>"}
    system = [{"role": "system", "content": "Enter ROMEO and JULIET."}]
    rendered = {template.render(messages=each, **names) for each in (messages, [*system, *messages])}
    assert {text.removeprefix("<s>").removesuffix("</s>") for text in rendered} == seen
    prompt = template.render(messages=messages[:1], add_generation_prompt=True, speaker="NURSE", **names)
    assert prompt == "<s>ROMEO:\nOne.</s>NURSE:\n"
    assert (repository / "models/demo/chat_template.jinja").read_text() == train_demo.CHAT_TEMPLATE


def test_a_training_goes_on_with_an_earlier_result(train_demo: ModuleType, trained: Path, tmp_path: Path) -> None:
    shape = train_demo.Shape(
        vocab_size=400, hidden_size=64, intermediate_size=96, layers=2, heads=4, kv_heads=2, context=64
    )
    recipe = train_demo.Recipe(steps=1, batch=4, warmup=1, learning_rate=1e-5, evaluate_every=1)
    train_demo.train(made_up_play(), tmp_path, shape, recipe, "play.txt", Console(quiet=True), trained)
    assert (tmp_path / "tokenizer.model").read_bytes() == (trained / "tokenizer.model").read_bytes()
    before, after = (load_file(folder / "model.safetensors") for folder in (trained, tmp_path))
    assert all(torch.allclose(before[name], after[name], atol=1e-3) for name in before)
    assert (
        "| Beginning | weights and vocabulary of an earlier result: 12 steps of" in (tmp_path / "README.md").read_text()
    )


def split_at(tokens: list[int], end: int) -> list[list[int]]:
    parts: list[list[int]] = [[]]
    for token in tokens:
        if token == end:
            parts.append([])
        else:
            parts[-1].append(token)
    assert parts[-1] == []
    return parts[:-1]


@pytest.mark.parametrize("text", ["", "a\n\n" * 9000, "x" * 5001, "one\ntwo\n" * 1000 + "\n\n" + "y" * 4000])
def test_paragraphs_join_to_the_text_and_none_is_long(train_demo: ModuleType, text: str) -> None:
    from demo_text import paragraphs_of

    pieces = paragraphs_of(text)
    assert "".join(pieces) == text
    assert all(0 < len(piece) <= 2000 for piece in pieces)


@pytest.mark.parametrize(
    ("content", "words"),
    [(b"", "0 characters"), (b"To be", "5 characters"), (b"\xff" * 30_000, "not UTF-8"), (None, "cannot read")],
)
def test_a_text_that_cannot_be_trained_on_is_refused_in_one_line(
    train_demo: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str], content: bytes | None, words: str
) -> None:
    source, out = tmp_path / "text.txt", tmp_path / "out"
    if content is not None:
        source.write_bytes(content)
    assert train_demo.main(["--text", str(source), "--out", str(out)]) == 1
    error = capsys.readouterr().err
    assert words in error
    assert error.count("\n") == 1
    assert not out.exists()


def test_a_text_too_uniform_for_the_vocabulary_is_refused(
    train_demo: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = tmp_path / "text.txt"
    source.write_text("ab\n" * 10_000)
    assert train_demo.main(["--text", str(source), "--out", str(tmp_path / "out")]) == 1
    assert "too uniform" in capsys.readouterr().err


def test_the_demo_folder_is_complete_and_small(repository: Path) -> None:
    folder = repository / "models" / "demo"
    files = {file.name: file.stat().st_size for file in folder.iterdir()}
    expected = {
        "README.md",
        "chat_template.jinja",
        "config.json",
        "generation_config.json",
        "model.safetensors",
        "tokenizer.model",
    }
    assert set(files) == expected
    assert sum(files.values()) < 12_000_000
    config = json.loads((folder / "config.json").read_text())
    weights = load_file(folder / "model.safetensors")
    assert {weight.dtype for weight in weights.values()} == {torch.bfloat16}
    parameters = sum(weight.numel() for weight in weights.values())
    card = (folder / "README.md").read_text()
    assert f"{parameters:,} parameters" in card
    tokenizer = sentencepiece.SentencePieceProcessor(model_file=str(folder / "tokenizer.model"))
    assert tokenizer.vocab_size() == config["vocab_size"]
    for text in AWKWARD:
        assert tokenizer.decode(tokenizer.encode(text)) == text


@pytest.mark.slow
def test_the_demo_model_has_the_validation_loss_of_its_card(
    repository: Path, train_demo: ModuleType, shared_data: Path
) -> None:
    """Measured again with transformers, on every third row of the held-out tenth."""
    from demo_text import read_text, split_text, validation_rows
    from transformers import LlamaForCausalLM

    folder = repository / "models" / "demo"
    stated = re.search(r"validation loss ([\d.]+) nats", (folder / "README.md").read_text())
    assert stated is not None
    tokenizer = sentencepiece.SentencePieceProcessor(model_file=str(folder / "tokenizer.model"))
    model = LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    _, held_out = split_text(read_text(shared_data / "corpus" / "tinyshakespeare.txt"))
    recipe = train_demo.Recipe()
    rows = validation_rows(
        held_out, tokenizer, model.config.max_position_embeddings, recipe.document_paragraphs, recipe.dialogues
    )
    rows = rows[::3]
    nats = train_demo.evaluate(model, rows, 8)
    assert nats / int(train_demo.targets_of(rows).ne(IGNORED).sum()) == pytest.approx(float(stated[1]), abs=0.02)
