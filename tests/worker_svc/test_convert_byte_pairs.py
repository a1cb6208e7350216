"""Byte-pair vocabularies in converted GGUF files: ids are those of the library that the tokenizer came from."""

from __future__ import annotations

import base64
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import tiktoken
import tokenizers
from tokenizers import Regex, decoders, models, normalizers, pre_tokenizers, processors, trainers

from tandem.tokenizer.formats import load_tokenizer
from tandem.tokenizer.formats.byte_alphabet import ALPHABET
from tandem.worker.convert.byte_pairs import CUTS, merges_of_ranks
from tandem.worker.convert.run import convert
from tests.exhaustive import some
from tests.worker_svc.model.llama_folders import random_llama

PYTHON = os.environ.get("TANDEM_LLAMA_CPP_PYTHON", sys.executable)
TEXTS = [
    "",
    "Wherefore art thou?  Don't   know — it's 12345 o'clock\n\n\tTHEY'LL see",
    "naïve Ünïcode 🙂👩‍🚀 日本語\r\n  end ",
    "<|eot_id|> in text, and <mask> too",
    "aaaaaaaaaaaaaaaa 1 22 333 4444",
]
NAMES = {name: cut for cut, name in CUTS.items()}


def trained(pre: str, corpus: str) -> tokenizers.Tokenizer:
    """A small tokenizer of a family's kind."""
    cut, whole_words = NAMES[pre]
    tokenizer = tokenizers.Tokenizer(models.BPE(ignore_merges=whole_words))
    if pre == "gpt-2":
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    elif pre == "starcoder":
        digits = pre_tokenizers.Digits(individual_digits=True)
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence([digits, pre_tokenizers.ByteLevel(add_prefix_space=False)])
    else:
        split = pre_tokenizers.Split(Regex(cut), "isolated")
        byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split, byte_level])
    if pre.startswith("qwen"):
        tokenizer.normalizer = normalizers.NFC()
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=580, show_progress=False, initial_alphabet=pre_tokenizers.ByteLevel.alphabet()
    )
    tokenizer.train_from_iterator(corpus.splitlines(), trainer)
    tokenizer.add_special_tokens(["<|begin|>", "<|eot_id|>"])
    tokenizer.add_tokens(["<mask>"])
    if pre == "llama-bpe":
        template = processors.TemplateProcessing(
            single="<|begin|> $A", special_tokens=[("<|begin|>", tokenizer.token_to_id("<|begin|>"))]
        )
        tokenizer.post_processor = processors.Sequence([processors.ByteLevel(trim_offsets=False), template])
    return tokenizer


@pytest.fixture(params=some(NAMES, "llama-bpe", "qwen2", "gpt-2", "starcoder"))
def both(request: pytest.FixtureRequest, tmp_path: Path, shared_data: Path) -> tuple[tokenizers.Tokenizer, Path]:
    """A tokenizer, and the GGUF file into which its folder was converted."""
    corpus = (shared_data / "corpus/tinyshakespeare.txt").read_text()[:40_000]
    tokenizer, source = trained(request.param, corpus), tmp_path / "source"
    random_llama(vocab_size=600).save_pretrained(source)
    tokenizer.save(str(source / "tokenizer.json"))
    (source / "tokenizer_config.json").write_text(json.dumps({"chat_template": "{{ messages }}"}))
    convert(source, tmp_path / "model.gguf", "gguf", "auto", lambda done, total: None)
    return tokenizer, tmp_path / "model.gguf"


def test_a_converted_file_gives_the_ids_of_the_tokenizer(both: tuple[tokenizers.Tokenizer, Path]) -> None:
    theirs, ours = both[0], load_tokenizer(both[1])
    for text in TEXTS:
        ids = theirs.encode(text).ids
        assert list(ours.encode(text, add_special=True, parse_special=True)) == ids
        assert ours.decode(ids, remove_special=False, unparse_special=True) == theirs.decode(
            ids, skip_special_tokens=False
        )
    assert ours.config.chat_template == "{{ messages }}"


def test_llama_cpp_reads_the_same_ids(both: tuple[tokenizers.Tokenizer, Path]) -> None:
    if subprocess.run([PYTHON, "-c", "import llama_cpp"], capture_output=True, check=False).returncode:
        pytest.skip(f"llama-cpp-python is not installed for {PYTHON}")
    program = (
        "import json, sys, llama_cpp\n"
        "model = llama_cpp.Llama(sys.argv[1], vocab_only=True, verbose=False)\n"
        "print(json.dumps([model.tokenize(t.encode(), add_bos=True, special=True) for t in json.load(sys.stdin)]))"
    )
    done = subprocess.run(
        [PYTHON, "-c", program, str(both[1])], input=json.dumps(TEXTS), capture_output=True, text=True, check=True
    )
    assert json.loads(done.stdout.splitlines()[-1]) == [both[0].encode(text).ids for text in TEXTS]


def test_merges_of_ranks_make_the_tokens_that_tiktoken_makes(shared_data: Path) -> None:
    """The first ranks of Llama 3, merged by the `tokenizers` library."""
    content = (shared_data / "formats/llama3/tokenizer.model").read_bytes().splitlines()[:6000]
    pieces = [base64.b64decode(line.split()[0]) for line in content]
    cut = NAMES["llama-bpe"][0]
    ranks = {piece: rank for rank, piece in enumerate(pieces)}
    theirs = tiktoken.Encoding("some", pat_str=cut, mergeable_ranks=ranks, special_tokens={})
    texts = [piece.decode("latin-1").translate(dict(enumerate(ALPHABET))) for piece in pieces]
    merges = [(texts[left], texts[right]) for left, right in merges_of_ranks(pieces)]
    ours = tokenizers.Tokenizer(
        models.BPE({text: index for index, text in enumerate(texts)}, merges, ignore_merges=True)
    )
    split = pre_tokenizers.Split(Regex(cut), "isolated")
    ours.pre_tokenizer = pre_tokenizers.Sequence([split, pre_tokenizers.ByteLevel(False, use_regex=False)])
    text = (shared_data / "corpus/botchan.txt").read_text()[:50_000] + "".join(TEXTS)
    assert ours.encode(text).ids == theirs.encode_ordinary(text)


@pytest.mark.skipif("TANDEM_WHOLE_VOCABULARIES" not in os.environ, reason="TANDEM_WHOLE_VOCABULARIES=1: 10 seconds")
def test_llama_3s_table_of_ranks_goes_along(tmp_path: Path, shared_data: Path) -> None:
    source = shared_data / "formats/llama3"
    folder = tmp_path / "source"
    random_llama(vocab_size=128_256, hidden_size=20, intermediate_size=20, num_hidden_layers=1).save_pretrained(folder)
    for name in ("tokenizer.model", "tokenizer_config.json"):
        (folder / name).write_bytes((source / name).read_bytes())
    convert(folder, tmp_path / "model.gguf", "gguf", "bfloat16", lambda done, total: None)
    ours, theirs = load_tokenizer(tmp_path / "model.gguf"), load_tokenizer(source)
    for text in (*TEXTS, (shared_data / "corpus/botchan.txt").read_text()[:100_000]):
        assert ours.encode(text, parse_special=True) == theirs.encode(text, parse_special=True)
    assert set(ours.config.end_of_generation_ids) >= set(theirs.config.end_of_generation_ids)
