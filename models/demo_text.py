"""The demo model's text: how it is read, cut into documents, given a vocabulary and packed into training rows.

    paragraph   the text up to and with a blank line (in a play: one speech)
    document    a random run of paragraphs: BOS, its tokens, EOS. The cuts are drawn anew every epoch.
    dialogue    a document of speeches in the form of the chat template: EOS after each, a stage direction before some
    row         context + 1 tokens of consecutive documents; what is left over opens the next row with a BOS of its own,
                so the first position of a row is BOS, as it is in every prompt

The last tenth of the text is never trained on.
"""

from __future__ import annotations

import io
import re
from pathlib import Path

import numpy as np
import sentencepiece
import torch
from numpy.typing import NDArray
from sentencepiece import sentencepiece_model_pb2
from torch import Tensor

BOS, EOS = 1, 2  # Llama 2's ids; 0 is the unknown piece
IGNORED = -1  # pads the last row of an epoch; carries no loss
SMALLEST_TEXT = 20_000  # characters; below it neither the vocabulary nor the held-out tenth means anything


class DemoError(Exception):
    """What is wrong, in one line."""


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


def split_text(text: str) -> tuple[list[str], list[str]]:
    """The paragraphs to train on, and the last tenth of them, which is held out."""
    paragraphs = paragraphs_of(text)
    split = min(round(len(paragraphs) * 0.9), len(paragraphs) - 1)
    return paragraphs[:split], paragraphs[split:]


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


def turns_of(paragraphs: list[str], direction: bool) -> list[str]:
    """The turns of a dialogue: its speeches, behind a stage direction that names the speakers where one is wanted."""
    turns = [paragraph.strip("\n") for paragraph in paragraphs]
    names = list(dict.fromkeys(match[1] for turn in turns if (match := re.match(r"([^:\n]+):\n", turn))))
    return [f"Enter {' and '.join(names)}.", *turns] if direction and names else turns


def rows_of(
    paragraphs: list[str],
    tokenizer: sentencepiece.SentencePieceProcessor,
    context: int,
    mean: float,
    generator: np.random.Generator,
    dialogues: float = 0.0,
) -> NDArray[np.int64]:
    """One epoch as rows `[rows, context + 1]`, in random order of documents; the end of the last is IGNORED.

    `mean` is that of a document's paragraphs; `dialogues` is the share of documents that are dialogues.
    """
    documents: list[list[int]] = []
    start = 0
    while start < len(paragraphs):
        end = start + int(generator.geometric(1.0 / mean))
        run = paragraphs[start:end]
        if generator.random() < dialogues:
            turns = turns_of(run, direction=generator.random() < 0.5)
        else:
            turns = ["".join(run).rstrip("\n")]
        documents.append([token for turn in turns for token in (*tokenizer.encode(turn), EOS)])
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


def validation_rows(
    paragraphs: list[str],
    tokenizer: sentencepiece.SentencePieceProcessor,
    context: int,
    mean: float,
    dialogues: float,
) -> Tensor:
    """The held-out text as rows `[rows, context + 1]`, the same at every call."""
    return torch.from_numpy(rows_of(paragraphs, tokenizer, context, mean, np.random.default_rng(0), dialogues))
