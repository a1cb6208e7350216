"""Trains the demo model: a small Llama with its own SentencePiece vocabulary, on one plain text file.

    python models/train_demo.py --text tinyshakespeare.txt --out models/demo

The result is an ordinary Hugging Face folder (config.json, generation_config.json, chat_template.jinja,
model.safetensors in bfloat16, tokenizer.model, README.md). With `--start FOLDER` it goes on with the weights and the
vocabulary of an earlier result. It shows that the system runs; it is not meant to be a good model. The checkpoint with
the lowest loss on the held-out tenth of the text is the one that is kept.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import sentencepiece
import torch
import torch.nn.functional as F
from demo_card import Recipe, Report, Shape, earlier, model_card
from demo_text import BOS, EOS, IGNORED, DemoError, read_text, rows_of, split_text, train_vocabulary, validation_rows
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from safetensors.torch import load_file, save
from torch import Tensor, nn
from transformers import LlamaConfig, LlamaForCausalLM

IDS = {"bos_token_id": BOS, "eos_token_id": EOS}
# Every turn is a speech that ends with </s>, as in the dialogues of demo_text.
CHAT_TEMPLATE = """\
{#- A play. Who speaks is the `name` of a message, else ROMEO for the user and JULIET for the assistant; the variable
    `speaker` says another name for the next answer. A system message is a stage direction. -#}
{{- bos_token -}}
{%- set names = {'user': 'ROMEO', 'assistant': speaker or 'JULIET'} -%}
{%- for message in messages -%}
  {%- if message.role in names -%}
    {{- (message.name or names[message.role]) + ':\\n' + (message.content or '') + eos_token -}}
  {%- elif message.role == 'system' -%}
    {{- message.content + eos_token -}}
  {%- else -%}
    {{- raise_exception('the demo model knows the roles system, user and assistant, but not ' + message.role) -}}
  {%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}
  {{- names['assistant'] + ':\\n' -}}
{%- endif -%}
"""
SAMPLING = {"do_sample": True, "temperature": 0.8, "top_k": 50, "top_p": 0.95}


def described(shape: Shape) -> dict[str, object]:
    """The model's config.json."""
    return {
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
        **IDS,
    }


def llama(shape: Shape, dropout: float) -> LlamaForCausalLM:
    """An untrained model, with dropout behind the embedding and every part of a layer."""
    model = LlamaForCausalLM(LlamaConfig.from_dict(described(shape))).float()
    for name, weight in model.named_parameters():
        if weight.dim() == 2:
            depth = math.sqrt(2 * shape.layers) if name.endswith(("o_proj.weight", "down_proj.weight")) else 1.0
            nn.init.normal_(weight, std=0.02 / depth)

    def drop(module: nn.Module, _: object, out: Any) -> Any:
        hidden, *rest = out if isinstance(out, tuple) else (out,)
        dropped = F.dropout(hidden, dropout, module.training)
        return (dropped, *rest) if isinstance(out, tuple) else dropped

    parts = [part for layer in model.model.layers for part in (layer.self_attn, layer.mlp)]
    for part in (model.model.embed_tokens, *parts):
        part.register_forward_hook(drop)
    return model


def targets_of(rows: Tensor) -> Tensor:
    """What each position of `rows [batch, length + 1]` should predict: not where the next document begins."""
    return rows[:, 1:].masked_fill(rows[:, 1:] == BOS, IGNORED)


def loss_of(logits: Tensor, rows: Tensor, reduction: str = "mean") -> Tensor:
    """Cross-entropy in nats of each token of `rows [batch, length + 1]` given the tokens before it."""
    flat = logits.flatten(0, 1).float()
    return F.cross_entropy(flat, targets_of(rows).flatten(), ignore_index=IGNORED, reduction=reduction)


def batches(
    paragraphs: list[str], tokenizer: sentencepiece.SentencePieceProcessor, shape: Shape, recipe: Recipe
) -> Iterator[Tensor]:
    """Endless batches of rows; every epoch draws new documents."""
    generator = np.random.default_rng(recipe.seed)
    pool = np.empty((0, shape.context + 1), dtype=np.int64)
    while True:
        while len(pool) < recipe.batch:
            epoch = rows_of(
                paragraphs, tokenizer, shape.context, recipe.document_paragraphs, generator, recipe.dialogues
            )
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
    total = sum(float(loss_of(model(part[:, :-1].clamp(min=0)).logits, part, "sum")) for part in rows.split(batch))
    model.train()
    return total


def train(
    text: str, out: Path, shape: Shape, recipe: Recipe, source: str, console: Console, start: Path | None = None
) -> Report:
    """Trains on `text` and leaves the folder of the best checkpoint in `out`; Ctrl-C ends the training early. `start`
    is the folder of an earlier result, whose weights and vocabulary are the beginning."""
    torch.manual_seed(recipe.seed)
    paragraphs, held_out = split_text(text)
    if start is None:
        vocabulary = train_vocabulary("".join(paragraphs), shape.vocab_size)
    else:
        vocabulary = (start / "tokenizer.model").read_bytes()
    tokenizer = sentencepiece.SentencePieceProcessor(model_proto=vocabulary)
    if tokenizer.decode(tokenizer.encode(text)) != text:
        raise DemoError("the vocabulary does not give the text back")
    validation = validation_rows(held_out, tokenizer, shape.context, recipe.document_paragraphs, recipe.dialogues)
    scored = int(targets_of(validation).ne(IGNORED).sum())
    model = llama(shape, recipe.dropout).train()
    if start is not None:
        for name, weight in load_file(start / "model.safetensors").items():
            model.get_parameter(name).data.copy_(weight)
    optimizer = torch.optim.AdamW(parameter_groups(model, recipe.weight_decay), betas=(0.9, 0.99), fused=True)
    console.print(
        f"{sum(weight.numel() for weight in model.parameters()):,} parameters; {len(text):,} characters, "
        f"{len(tokenizer.encode(text)):,} tokens; {torch.get_num_threads()} thread(s)"
    )

    before = None if start is None else earlier(start)
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
            for step, rows in enumerate(batches(paragraphs, tokenizer, shape, recipe)):
                for group in optimizer.param_groups:
                    group["lr"] = learning_rate(step, recipe)
                loss = loss_of(model(rows[:, :-1].clamp(min=0)).logits, rows)
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
                        report.validation_bits_per_character = nats / len("".join(held_out)) / math.log(2)
                        report.train_loss, report.seconds = smoothed, time.monotonic() - started
                        write_folder(out, model, vocabulary, shape)
                if last:
                    break
    except KeyboardInterrupt:
        console.print("stopped; the best checkpoint so far stays")
    if not report.history:
        raise DemoError("stopped before the first evaluation: nothing was written")
    report.seconds = time.monotonic() - started
    card = model_card(out, text, shape, recipe, report, source, before)
    write(out / "README.md", card.encode())
    return report


def write(path: Path, content: bytes) -> None:
    """Whole or not at all: a reader never sees half a file."""
    partial = path.with_name(path.name + ".partial")
    partial.write_bytes(content)
    partial.replace(path)


def write_folder(out: Path, model: LlamaForCausalLM, vocabulary: bytes, shape: Shape) -> None:
    """config.json, generation_config.json, chat_template.jinja, tokenizer.model and the weights in bfloat16."""
    write(out / "config.json", (json.dumps(described(shape), indent=2) + "\n").encode())
    write(out / "generation_config.json", (json.dumps({**IDS, **SAMPLING}, indent=2) + "\n").encode())
    write(out / "chat_template.jinja", CHAT_TEMPLATE.encode())
    write(out / "tokenizer.model", vocabulary)
    weights = {name: weight.detach().to(torch.bfloat16) for name, weight in model.named_parameters()}
    write(out / "model.safetensors", save(weights, metadata={"format": "pt"}))


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Train the demo model on a plain text file.")
    parser.add_argument(
        "--text", type=Path, required=True, help="plain text, UTF-8; paragraphs are parted by blank lines"
    )
    parser.add_argument("--out", type=Path, required=True, help="the folder to write")
    parser.add_argument("--steps", type=int, default=Recipe().steps, help="training steps (default %(default)s)")
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1, help="CPU threads (default %(default)s)")
    parser.add_argument("--start", type=Path, help="an earlier result, to go on with")
    parser.add_argument(
        "--learning-rate", type=float, default=Recipe().learning_rate, help="at its highest (default %(default)s)"
    )
    parser.add_argument("--seed", type=int, default=Recipe().seed, help="default %(default)s")
    options = parser.parse_args(arguments)
    for name in ("steps", "threads"):
        if getattr(options, name) < 1:
            parser.error(f"--{name} is {getattr(options, name)}; it must be at least 1")
    if options.seed < 0:
        parser.error(f"--seed is {options.seed}; it must not be negative")
    if not 0 < options.learning_rate < 1:
        parser.error(f"--learning-rate is {options.learning_rate}; it must be above 0 and below 1")
    torch.set_num_threads(options.threads)
    console = Console()
    try:
        text = read_text(options.text)
        options.out.mkdir(parents=True, exist_ok=True)  # says now, not after the training, that it cannot be written
        recipe = Recipe(steps=options.steps, seed=options.seed, learning_rate=options.learning_rate)
        train(text, options.out, Shape(), recipe, options.text.name, console, options.start)
    except DemoError as error:
        print(f"train_demo: {error}", file=sys.stderr)
        return 1
    except OSError as error:
        print(f"train_demo: cannot read or write {error.filename}: {error.strerror}", file=sys.stderr)
        return 1
    size = sum(file.stat().st_size for file in options.out.iterdir())
    console.print(f"{options.out}: {size / 1e6:.1f} MB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
