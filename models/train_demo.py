"""Trains the demo model: a small Llama with its own SentencePiece vocabulary, on one plain text file.

    python models/train_demo.py --text tinyshakespeare.txt --out models/demo

The result is an ordinary Hugging Face folder (config.json, generation_config.json, model.safetensors in bfloat16,
tokenizer.model, README.md). It shows that the system runs; it is not meant to be a good model.

How the text becomes training rows:

    paragraph   the text up to and with a blank line (in a play: one speech)
    document    a random run of paragraphs: BOS, its tokens, EOS. The cuts are drawn anew every epoch.
    row         context + 1 tokens of consecutive documents; what is left over opens the next row with a BOS of its own,
                so the first position of a row is BOS, as it is in every prompt

The last tenth of the text is never trained on; the checkpoint with the lowest loss on it is the one that is kept.
"""

from __future__ import annotations

import argparse
import hashlib
import io
import json
import math
import os
import re
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path

import numpy as np
import sentencepiece
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from safetensors.torch import load_file, save_file
from sentencepiece import sentencepiece_model_pb2
from torch import Tensor, nn

BOS, EOS = 1, 2  # Llama 2's ids; 0 is the unknown piece
IGNORED = -1  # pads the last row of an epoch; carries no loss
SMALLEST_TEXT = 20_000  # characters; below it neither the vocabulary nor the held-out tenth means anything
SAMPLING = {"do_sample": True, "temperature": 0.8, "top_k": 50, "top_p": 0.95}


class DemoError(Exception):
    """What is wrong with the input, in one line."""


@dataclass(frozen=True, slots=True)
class Shape:
    """The sizes of the model."""

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


# ---------------------------------------------------------------------------------------------------- text and tokens


def read_text(path: Path) -> str:
    """The text of `path`. Raises DemoError when it is missing, not UTF-8, or too small to train on."""
    try:
        text = path.read_bytes().decode("utf-8")
    except OSError as error:
        raise DemoError(f"cannot read {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise DemoError(f"{path} is not UTF-8 text: byte {error.start} is {error.object[error.start]:#04x}") from error
    if len(text) < SMALLEST_TEXT:
        raise DemoError(f"{path} has {len(text)} characters; training needs at least {SMALLEST_TEXT:,}")
    return text


def paragraphs_of(text: str, longest: int = 2000) -> list[str]:
    """Consecutive pieces of `text`, cut after blank lines, then after line ends, then anywhere, none over `longest`."""
    pieces: list[str] = []
    for paragraph in re.split(r"(?<=\n\n)", text):
        if len(paragraph) <= longest:
            pieces.append(paragraph)
            continue
        start = 0
        while start < len(paragraph):
            end = start + longest
            cut = paragraph.rfind("\n", start, end) + 1
            end = cut if cut > start and end < len(paragraph) else end
            pieces.append(paragraph[start:end])
            start = end
    return [piece for piece in pieces if piece]


def train_vocabulary(text: str, vocab_size: int) -> bytes:
    """A SentencePiece model with Llama 2's conventions: BPE with byte fallback, identity normalization, BOS 1, EOS 2.

    Pieces are learned line by line without the leading space, so that the first word of a line is a piece as it stands
    after a newline (the byte piece <0x0A>); the leading space of the whole text is switched on afterwards.
    """
    model = io.BytesIO()
    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter([line for line in text.split("\n") if line]),
            model_writer=model,
            model_type="bpe",
            vocab_size=vocab_size,
            byte_fallback=True,
            split_digits=True,
            character_coverage=1.0,
            normalization_rule_name="identity",
            remove_extra_whitespaces=False,
            add_dummy_prefix=False,
            unk_id=0,
            bos_id=BOS,
            eos_id=EOS,
            pad_id=-1,
            num_threads=1,
            minloglevel=2,
        )
    except RuntimeError as error:
        raise DemoError(f"the text is too small or too uniform for {vocab_size} pieces: {error}") from error
    proto = sentencepiece_model_pb2.ModelProto.FromString(model.getvalue())
    proto.normalizer_spec.add_dummy_prefix = True
    serialized: bytes = proto.SerializeToString()
    return serialized


def rows_of(
    paragraphs: list[str],
    tokenizer: sentencepiece.SentencePieceProcessor,
    context: int,
    mean: float,
    generator: np.random.Generator,
) -> NDArray[np.int64]:
    """One epoch as rows `[rows, context + 1]`, in random order of documents; the end of the last is IGNORED."""
    documents: list[list[int]] = []
    start = 0
    while start < len(paragraphs):
        end = start + int(generator.geometric(1.0 / mean))
        documents.append([*tokenizer.encode("".join(paragraphs[start:end]).rstrip("\n")), EOS])
        start = end
    rows: list[int] = []
    for index in generator.permutation(len(documents)):
        rest = documents[index]
        while rest:
            room = -len(rows) % (context + 1) or context + 1
            if room == 1:  # a BOS alone at the end of a row would predict nothing
                rows.append(IGNORED)
                continue
            rows += [BOS, *rest[: room - 1]]
            rest = rest[room - 1 :]
    rows += [IGNORED] * (-len(rows) % (context + 1))
    return np.array(rows, dtype=np.int64).reshape(-1, context + 1)


# -------------------------------------------------------------------------------------------------------------- model
# Module names are those of the Hugging Face checkpoint, so that `state_dict()` is the file.


def rotary(shape: Shape) -> tuple[Tensor, Tensor]:
    """Cosines and sines `[context, head_dim]`, both halves alike (rotate-half convention)."""
    frequency = shape.rope_theta ** (-torch.arange(0, shape.head_dim, 2, dtype=torch.float64) / shape.head_dim)
    angle = torch.outer(torch.arange(shape.context, dtype=torch.float64), frequency).repeat(1, 2)
    return angle.cos().float(), angle.sin().float()


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    first, second = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-second, first), dim=-1) * sin


class Attention(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        self.q_proj = nn.Linear(shape.hidden_size, shape.heads * shape.head_dim, bias=False)
        self.k_proj = nn.Linear(shape.hidden_size, shape.kv_heads * shape.head_dim, bias=False)
        self.v_proj = nn.Linear(shape.hidden_size, shape.kv_heads * shape.head_dim, bias=False)
        self.o_proj = nn.Linear(shape.heads * shape.head_dim, shape.hidden_size, bias=False)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        batch, length, _ = x.shape
        q, k, v = (
            projection(x).view(batch, length, -1, self.shape.head_dim).transpose(1, 2)
            for projection in (self.q_proj, self.k_proj, self.v_proj)
        )
        group = self.shape.heads // self.shape.kv_heads
        q, k = rotate(q, cos, sin), rotate(k, cos, sin).repeat_interleave(group, dim=1)
        out = F.scaled_dot_product_attention(q, k, v.repeat_interleave(group, dim=1), is_causal=True)
        projected: Tensor = self.o_proj(out.transpose(1, 2).reshape(batch, length, -1))
        return projected


class Mlp(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(shape.hidden_size, shape.intermediate_size, bias=False)
        self.up_proj = nn.Linear(shape.hidden_size, shape.intermediate_size, bias=False)
        self.down_proj = nn.Linear(shape.intermediate_size, shape.hidden_size, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))
        return out


class Layer(nn.Module):
    def __init__(self, shape: Shape, dropout: float) -> None:
        super().__init__()
        self.input_layernorm = nn.RMSNorm(shape.hidden_size, shape.norm_eps)
        self.self_attn = Attention(shape)
        self.post_attention_layernorm = nn.RMSNorm(shape.hidden_size, shape.norm_eps)
        self.mlp = Mlp(shape)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        x = x + self.dropout(self.self_attn(self.input_layernorm(x), cos, sin))
        return x + self.dropout(self.mlp(self.post_attention_layernorm(x)))


class Llama(nn.Module):
    """The Llama architecture with tied embeddings, for training only."""

    def __init__(self, shape: Shape, dropout: float = 0.0) -> None:
        super().__init__()
        self.model = nn.ModuleDict(
            {
                "embed_tokens": nn.Embedding(shape.vocab_size, shape.hidden_size),
                "layers": nn.ModuleList(Layer(shape, dropout) for _ in range(shape.layers)),
                "norm": nn.RMSNorm(shape.hidden_size, shape.norm_eps),
            }
        )
        self.dropout = nn.Dropout(dropout)
        cos, sin = rotary(shape)
        self.register_buffer("cos", cos, persistent=False)
        self.register_buffer("sin", sin, persistent=False)
        for name, weight in self.named_parameters():
            if weight.dim() == 2:
                depth = math.sqrt(2 * shape.layers) if name.endswith(("o_proj.weight", "down_proj.weight")) else 1.0
                nn.init.normal_(weight, std=0.02 / depth)

    def forward(self, ids: Tensor) -> Tensor:
        """Logits `[batch, length, vocab]` for ids `[batch, length]`."""
        cos, sin = self.cos[: ids.shape[1]], self.sin[: ids.shape[1]]
        x = self.dropout(self.model["embed_tokens"](ids))
        for layer in self.model["layers"]:
            x = layer(x, cos, sin)
        return F.linear(self.model["norm"](x), self.model["embed_tokens"].weight)


def loss_of(logits: Tensor, rows: Tensor, reduction: str = "mean") -> Tensor:
    """Cross-entropy in nats of each token of `rows [batch, length + 1]` given the tokens before it."""
    targets = rows[:, 1:].masked_fill(rows[:, 1:] == BOS, IGNORED)  # where the next document begins cannot be known
    return F.cross_entropy(logits.flatten(0, 1).float(), targets.flatten(), ignore_index=IGNORED, reduction=reduction)


# ----------------------------------------------------------------------------------------------------------- training


def batches(
    paragraphs: list[str], tokenizer: sentencepiece.SentencePieceProcessor, shape: Shape, recipe: Recipe
) -> Iterator[Tensor]:
    """Endless batches of rows; every epoch draws new documents."""
    generator = np.random.default_rng(recipe.seed)
    pool = np.empty((0, shape.context + 1), dtype=np.int64)
    while True:
        while len(pool) < recipe.batch:
            epoch = rows_of(paragraphs, tokenizer, shape.context, recipe.document_paragraphs, generator)
            pool = np.concatenate((pool, epoch))
        yield torch.from_numpy(pool[: recipe.batch])
        pool = pool[recipe.batch :]


def learning_rate(step: int, recipe: Recipe) -> float:
    """Linear warm-up, then a cosine down to a twentieth."""
    if step < recipe.warmup:
        return recipe.learning_rate * (step + 1) / recipe.warmup
    done = (step - recipe.warmup) / max(1, recipe.steps - recipe.warmup)
    return recipe.learning_rate * (0.05 + 0.95 * 0.5 * (1 + math.cos(math.pi * done)))


def parameter_groups(model: nn.Module, weight_decay: float) -> list[dict[str, object]]:
    matrices = [weight for weight in model.parameters() if weight.dim() == 2]
    others = [weight for weight in model.parameters() if weight.dim() != 2]
    return [{"params": matrices, "weight_decay": weight_decay}, {"params": others, "weight_decay": 0.0}]


@torch.no_grad()
def evaluate(model: nn.Module, rows: Tensor, batch: int) -> float:
    """Summed loss in nats over all rows, without dropout."""
    model.eval()
    total = sum(float(loss_of(model(part[:, :-1].clamp(min=0)), part, "sum")) for part in rows.split(batch))
    model.train()
    return total


def train(text: str, out: Path, shape: Shape, recipe: Recipe, source: str, console: Console) -> Report:
    """Trains on `text` and leaves the folder of the best checkpoint in `out`; Ctrl-C ends the training early."""
    torch.manual_seed(recipe.seed)
    paragraphs = paragraphs_of(text)
    split = max(1, round(len(paragraphs) * 0.9))
    held_out = "".join(paragraphs[split:])
    vocabulary = train_vocabulary("".join(paragraphs[:split]), shape.vocab_size)
    tokenizer = sentencepiece.SentencePieceProcessor(model_proto=vocabulary)
    if tokenizer.decode(tokenizer.encode(text)) != text:
        raise DemoError("the vocabulary does not give the text back")
    fixed = np.random.default_rng(0)
    validation = torch.from_numpy(
        rows_of(paragraphs[split:], tokenizer, shape.context, recipe.document_paragraphs, fixed)
    )
    scored = int(((validation[:, 1:] != IGNORED) & (validation[:, 1:] != BOS)).sum())
    model = Llama(shape, recipe.dropout).train()
    optimizer = torch.optim.AdamW(parameter_groups(model, recipe.weight_decay), betas=(0.9, 0.99), fused=True)
    console.print(
        f"{sum(weight.numel() for weight in model.parameters()):,} parameters; {len(text):,} characters, "
        f"{len(tokenizer.encode(text)):,} tokens; {torch.get_num_threads()} thread(s)"
    )

    report, started, smoothed = Report(), time.monotonic(), math.nan
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    try:
        with Progress(*columns, console=console) as progress:
            task = progress.add_task("training", total=recipe.steps)
            for step, rows in enumerate(batches(paragraphs[:split], tokenizer, shape, recipe)):
                for group in optimizer.param_groups:
                    group["lr"] = learning_rate(step, recipe)
                loss = loss_of(model(rows[:, :-1].clamp(min=0)), rows)
                loss.backward()
                nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                optimizer.zero_grad(set_to_none=True)
                value = loss.item()
                if not math.isfinite(value):
                    raise DemoError(f"the loss is {value} at step {step + 1}: lower the learning rate")
                smoothed = value if math.isnan(smoothed) else 0.95 * smoothed + 0.05 * value
                report.steps, report.tokens = step + 1, report.tokens + rows[:, 1:].numel()
                progress.update(task, advance=1, description=f"training, loss {smoothed:.3f}")
                last = step + 1 == recipe.steps
                if last or (step + 1) % recipe.evaluate_every == 0:
                    nats = evaluate(model, validation, recipe.batch)
                    report.history.append((step + 1, nats / scored))
                    better = nats / scored < report.validation_loss
                    console.print(
                        f"step {step + 1:5d}: training loss {smoothed:.3f}, validation loss {nats / scored:.3f}"
                        f"{' (best so far)' if better else ''}"
                    )
                    if better:
                        report.validation_loss = nats / scored
                        report.validation_bits_per_character = nats / len(held_out) / math.log(2)
                        report.train_loss, report.seconds = smoothed, time.monotonic() - started
                        write_folder(out, model, vocabulary, shape)
                if last:
                    break
    except KeyboardInterrupt:
        console.print("stopped; the best checkpoint so far stays")
    if not report.history:
        raise DemoError("stopped before the first evaluation: nothing was written")
    report.seconds = time.monotonic() - started
    difference = check_against_transformers(out, shape, validation[: recipe.batch])
    console.print(f"transformers' LlamaForCausalLM gives the same loss (difference {difference:.1e} nats a token)")
    card = model_card(out, text, shape, recipe, report, source)
    write(out / "README.md", card.encode())
    return report


# ------------------------------------------------------------------------------------------------------------- folder


def write(path: Path, content: bytes) -> None:
    """Whole or not at all: a reader never sees half a file."""
    partial = path.with_name(path.name + ".partial")
    partial.write_bytes(content)
    partial.replace(path)


def write_folder(out: Path, model: Llama, vocabulary: bytes, shape: Shape) -> None:
    """config.json, generation_config.json, tokenizer.model and the weights in bfloat16."""
    out.mkdir(parents=True, exist_ok=True)
    ids = {"bos_token_id": BOS, "eos_token_id": EOS}
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": shape.vocab_size,
        "hidden_size": shape.hidden_size,
        "intermediate_size": shape.intermediate_size,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads,
        "head_dim": shape.head_dim,
        "max_position_embeddings": shape.context,
        "rope_theta": shape.rope_theta,
        "rms_norm_eps": shape.norm_eps,
        "hidden_act": "silu",
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": True,
        "torch_dtype": "bfloat16",
        **ids,
    }
    write(out / "config.json", (json.dumps(config, indent=2) + "\n").encode())
    write(out / "generation_config.json", (json.dumps({**ids, **SAMPLING}, indent=2) + "\n").encode())
    write(out / "tokenizer.model", vocabulary)
    weights = {name: weight.detach().to(torch.bfloat16).contiguous() for name, weight in model.state_dict().items()}
    partial = out / "model.safetensors.partial"
    save_file(weights, partial, metadata={"format": "pt"})
    partial.replace(out / "model.safetensors")


@torch.no_grad()
def check_against_transformers(out: Path, shape: Shape, rows: Tensor) -> float:
    """Loads the folder both ways, in fp32, and compares the loss on `rows`. Returns the difference in nats a token.

    Raises DemoError when they differ: then the training code and the Llama that everybody else means are two models.
    """
    try:
        from transformers import LlamaForCausalLM
        from transformers.utils.logging import disable_progress_bar
    except ImportError as error:
        raise DemoError(f"cannot check the folder against transformers: {error}") from error
    disable_progress_bar()
    ours = Llama(shape)
    ours.load_state_dict({name: weight.float() for name, weight in load_file(out / "model.safetensors").items()})
    theirs = LlamaForCausalLM.from_pretrained(out, dtype=torch.float32).eval()
    ids = rows[:, :-1].clamp(min=0)
    own, reference = float(loss_of(ours.eval()(ids), rows)), float(loss_of(theirs(ids).logits, rows))
    if not abs(own - reference) < 1e-3:
        raise DemoError(f"transformers gives a loss of {reference:.4f} where the training code gives {own:.4f}")
    return abs(own - reference)


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
    """The options that differ from the defaults."""
    made, usual = asdict(recipe), asdict(Recipe())
    return "".join(f" --{name} {made[name]}" for name in ("steps", "seed") if made[name] != usual[name])


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Train the demo model on a plain text file.")
    parser.add_argument(
        "--text", type=Path, required=True, help="plain text, UTF-8; paragraphs are parted by blank lines"
    )
    parser.add_argument("--out", type=Path, required=True, help="the folder to write")
    parser.add_argument("--steps", type=int, default=Recipe().steps, help="training steps (default %(default)s)")
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1, help="CPU threads (default %(default)s)")
    parser.add_argument("--seed", type=int, default=Recipe().seed, help="default %(default)s")
    options = parser.parse_args(arguments)
    for name in ("steps", "threads"):
        if getattr(options, name) < 1:
            parser.error(f"--{name} is {getattr(options, name)}; it must be at least 1")
    if options.seed < 0:
        parser.error(f"--seed is {options.seed}; it must not be negative")
    torch.set_num_threads(options.threads)
    console = Console()
    try:
        text = read_text(options.text)
        recipe = Recipe(steps=options.steps, seed=options.seed)
        train(text, options.out, Shape(), recipe, options.text.name, console)
    except DemoError as error:
        print(f"train_demo: {error}", file=sys.stderr)
        return 1
    size = sum(file.stat().st_size for file in options.out.iterdir())
    console.print(f"{options.out}: {size / 1e6:.1f} MB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
