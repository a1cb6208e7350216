"""A model of random weights and a vocabulary of invented words, in each layout that a server reads.

A word is a space and up to four letters, and each is one token: text of n words is n tokens for everybody, whatever
splits it, and so is what comes back, but for the few tokens that are bytes.
"""

from __future__ import annotations

import functools
import itertools
import string
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import numpy as np
import tokenizers
import torch
import transformers

from benchmarks.shapes import VOCABULARY, Shape
from tests.worker_svc.checkpoints.gguf_models import save_gguf

_SPECIAL = ("<pad>", "<s>", "</s>")
_SPACE = "\u0120"  # a space, as byte-level vocabularies write it
_BYTES = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
FIRST_WORD = len(_SPECIAL) + len(_BYTES)


@functools.cache
def words() -> list[str]:
    """All words of the vocabulary, without their spaces; `words()[i]` has the id FIRST_WORD + i."""
    lengths = itertools.count(1)
    made = ("".join(word) for length in lengths for word in itertools.product(string.ascii_lowercase, repeat=length))
    return list(itertools.islice(made, VOCABULARY - FIRST_WORD))


def prompts(count: int, length: int, seed: int) -> list[list[int]]:
    """Random words, as ids."""
    return np.random.default_rng(seed).integers(FIRST_WORD, VOCABULARY, (count, length)).tolist()


def text_of(prompt: list[int]) -> str:
    """The text of words, whose tokens they are."""
    return "".join(f" {words()[word - FIRST_WORD]}" for word in prompt)


def _vocabulary() -> tuple[list[str], list[tuple[str, str]]]:
    """All tokens by their ids, and the merges that make words of letters."""
    tokens = [*_SPECIAL, *_BYTES, *(_SPACE + word for word in words())]
    return tokens, [(_SPACE + word[:-1], word[-1]) for word in words()]


def vocabulary_fields() -> dict[str, object]:
    """The vocabulary, as a GGUF file's metadata has it."""
    tokens, merges = _vocabulary()
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [3] * len(_SPECIAL) + [1] * (len(tokens) - len(_SPECIAL)),
        "tokenizer.ggml.merges": [" ".join(pair) for pair in merges],
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.add_bos_token": False,
    }


def write_model(path: Path, kind: str, shape: Shape, layers: int) -> None:
    """Writes `path`.gguf with matrices of a kind, and for BF16 a folder `path` in Hugging Face's layout too, of the
    same numbers."""
    settings = shape.settings(layers)
    config = transformers.AutoConfig.for_model(settings.pop("model_type"), **settings)
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    tokens, merges = _vocabulary()
    if kind == "BF16":
        model.generation_config = transformers.GenerationConfig()  # none of its ids ends an answer
        model.save_pretrained(path)
        _write_tokenizer(path, tokens, merges)
    save_gguf(model, path.with_name(f"{path.name}.gguf"), kind, vocabulary_fields())


def _write_tokenizer(folder: Path, tokens: list[str], merges: list[tuple[str, str]]) -> None:
    made = tokenizers.Tokenizer(tokenizers.models.BPE({token: i for i, token in enumerate(tokens)}, merges))
    made.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = tokenizers.decoders.ByteLevel()
    made.add_special_tokens(list(_SPECIAL))
    wrapped = transformers.PreTrainedTokenizerFast(tokenizer_object=made, bos_token="<s>", eos_token="</s>")
    wrapped.save_pretrained(folder)
