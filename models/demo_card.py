"""The demo model's card: what was trained, on what, how well, and a sample."""

from __future__ import annotations

import hashlib
import math
from dataclasses import asdict, dataclass, field
from pathlib import Path

import sentencepiece
import torch
from demo_model import Llama, Shape
from demo_text import BOS, EOS


@dataclass(frozen=True, slots=True)
class Recipe:
    """How it is trained. One step sees `batch * context` tokens."""

    steps: int = 1800
    batch: int = 4
    learning_rate: float = 2e-3
    warmup: int = 100
    weight_decay: float = 0.1
    dropout: float = 0.1
    document_paragraphs: float = 8.0  # mean length of a document
    evaluate_every: int = 150
    seed: int = 1


@dataclass(slots=True)
class Report:
    """What happened, for the model card."""

    steps: int = 0
    tokens: int = 0
    seconds: float = 0.0
    train_loss: float = math.nan
    validation_loss: float = math.inf  # nats a token
    validation_bits_per_character: float = math.inf
    history: list[tuple[int, float]] = field(default_factory=list)


@torch.no_grad()
def sample(out: Path, prompt: str, tokens: int, seed: int) -> str:
    """One sampled continuation, with the folder's own defaults."""
    from transformers import LlamaForCausalLM

    tokenizer = sentencepiece.SentencePieceProcessor(model_file=str(out / "tokenizer.model"))
    model = LlamaForCausalLM.from_pretrained(out, dtype=torch.float32).eval()
    torch.manual_seed(seed)
    ids = torch.tensor([[BOS, *tokenizer.encode(prompt)]])
    made = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=tokens, pad_token_id=0)
    return str(tokenizer.decode([token for token in made[0].tolist() if token not in (BOS, EOS)]))


def model_card(out: Path, text: str, shape: Shape, recipe: Recipe, report: Report, source: str) -> str:
    parameters = sum(weight.numel() for weight in Llama(shape).parameters())
    size = sum(file.stat().st_size for file in out.iterdir() if file.name != "README.md")
    example = sample(out, "ROMEO:\n", 120, recipe.seed)
    threads = torch.get_num_threads()
    cores = "one CPU thread" if threads == 1 else f"{threads} CPU threads"
    best_step = min(report.history, key=lambda entry: entry[1])[0]
    quoted = "\n".join(f"> {line}".rstrip() + "  " if line else ">" for line in example.strip("\n").split("\n"))
    digest = hashlib.sha256(text.encode()).hexdigest()
    facts = {
        "Training text": f"`{source}`: {len(text):,} characters, sha256 `{digest}`; the last tenth is held out",
        "Vocabulary": f"SentencePiece BPE with byte fallback, {shape.vocab_size:,} pieces; unk 0, bos 1, eos 2",
        "Shape": f"{shape.layers} layers, hidden {shape.hidden_size}, {shape.heads} heads and {shape.kv_heads} "
        f"kv heads of {shape.head_dim}, MLP {shape.intermediate_size}, tied embeddings, context {shape.context} tokens",
        "Weights": f"{parameters:,} parameters in bfloat16; the folder is {size / 1e6:.1f} MB",
        "Training": f"{report.steps:,} steps of {recipe.batch} x {shape.context} tokens "
        f"({report.tokens / 1e6:.1f} million tokens), {report.seconds / 60:.0f} minutes on {cores}",
        "Recipe": f"AdamW, learning rate {recipe.learning_rate:g} with warm-up and cosine, "
        f"weight decay {recipe.weight_decay:g}, dropout {recipe.dropout:g}, seed {recipe.seed}",
        "Best checkpoint": f"step {best_step:,}: validation loss {report.validation_loss:.3f} nats a token "
        f"({report.validation_bits_per_character:.3f} bits a character), training loss {report.train_loss:.3f}",
    }
    table = "\n".join(f"| {name} | {value} |" for name, value in facts.items())
    return f"""---
library_name: transformers
pipeline_tag: text-generation
---

# The demo model

**It exists to show that the system runs.** It starts in a second, needs no download and has every part of a large
Llama: grouped-query attention, rotary positions, SwiGLU, a SentencePiece vocabulary with byte fallback, BOS and EOS.
It writes lines in the manner of its training text, knows nothing, and is of no other use.

| | |
|---|---|
{table}

A training document is a run of consecutive paragraphs (about {recipe.document_paragraphs:g}) between BOS and EOS, so
a completion ends by itself after a few of them. Sampled from the prompt `ROMEO:` and a newline, with the defaults of
`generation_config.json`:

{quoted}

Made by `python models/train_demo.py --text {source} --out models/demo{command_line(recipe)}`.
"""


def command_line(recipe: Recipe) -> str:
    """The options that differ from the defaults, and the threads: sums in another order give other weights."""
    made, usual = asdict(recipe), asdict(Recipe())
    changed = "".join(f" --{name} {made[name]}" for name in ("steps", "seed") if made[name] != usual[name])
    return f"{changed} --threads {torch.get_num_threads()}"
