"""The demo model's card: what was trained, on what, how well, and a sample."""

from __future__ import annotations

import hashlib
import math
import re
from dataclasses import asdict, dataclass, field
from pathlib import Path

import sentencepiece
import torch
from demo_text import BOS, EOS
from safetensors.torch import load_file


@dataclass(frozen=True, slots=True)
class Shape:
    """The sizes of the model, a Llama with tied embeddings."""

    vocab_size: int = 2048
    hidden_size: int = 256
    intermediate_size: int = 640
    layers: int = 4
    heads: int = 4
    kv_heads: int = 2
    context: int = 512
    rope_theta: float = 10_000.0
    norm_eps: float = 1e-5

    @property
    def head_dim(self) -> int:
        return self.hidden_size // self.heads


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
    dialogues: float = 0.5  # share of documents in the form of the chat template
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


def earlier(start: Path) -> str:
    """How the weights that a training began with were made, from their own card."""
    card = start / "README.md"
    match = re.search(r"^\| Training \| (.*) \|$", card.read_text(), re.MULTILINE) if card.is_file() else None
    return match[1] if match else "not told"


def model_card(
    out: Path, text: str, shape: Shape, recipe: Recipe, report: Report, source: str, before: str | None = None
) -> str:
    """The card of the model in `out`; `before` says how the weights that it began with were made."""
    parameters = sum(weight.numel() for weight in load_file(out / "model.safetensors").values())
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
        **({} if before is None else {"Beginning": f"weights and vocabulary of an earlier result: {before}"}),
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
a completion ends by itself after a few of them. In {recipe.dialogues:.0%} of the documents EOS follows each speech, as
in `chat_template.jinja`: so an answer in a conversation ends by itself, mostly after one speech. The user is Romeo and
the model is Juliet, unless `name` of a message, or `speaker` of the template's variables, says another; a system
message is a stage direction. Sampled from the prompt `ROMEO:` and a newline, with the defaults of
`generation_config.json`:

{quoted}

Made by `python models/train_demo.py --text {source} --out models/demo{command_line(recipe, before)}`.
"""


def command_line(recipe: Recipe, before: str | None) -> str:
    """The options that differ from the defaults, and the threads: sums in another order give other weights."""
    made, usual = asdict(recipe), asdict(Recipe())
    names = [name for name in ("steps", "seed", "learning_rate") if made[name] != usual[name]]
    changed = "".join(f" --{name.replace('_', '-')} {made[name]}" for name in names)
    return f"{changed}{'' if before is None else ' --start EARLIER'} --threads {torch.get_num_threads()}"
