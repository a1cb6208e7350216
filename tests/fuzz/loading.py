"""Loads one file of a model or a tokenizer, in a process that may break: `tests/fuzz/files.py` starts it."""

from __future__ import annotations

import resource
import traceback
from multiprocessing.connection import Connection
from pathlib import Path

import torch

from tandem.tokenizer.encoding import Policy, Segment
from tandem.tokenizer.formats import FormatError, load_tokenizer
from tandem.tokenizer.tokenizer import Tokenizer
from tandem.worker.checkpoints import CheckpointError, open_checkpoint
from tandem.worker.model.loading import load_transformer

ADDRESS_SPACE = 16 << 30  # beyond it a file has asked for memory that a small model never needs


def load(kind: str, path: Path, outcome: Connection) -> None:
    """Sends ("loaded" or "refused" or "broken", what there is to say) and its peak of memory in megabytes."""
    resource.setrlimit(resource.RLIMIT_AS, (ADDRESS_SPACE, ADDRESS_SPACE))
    torch.set_num_threads(1)
    try:
        if kind == "model":
            load_transformer(open_checkpoint(path), "cpu", torch.float32)
        else:
            exercise(load_tokenizer(path))
        found = "loaded", ""
    except (FormatError, CheckpointError) as error:
        found = ("refused", str(error)) if str(error) else ("broken", "an error without a word")
    except BaseException:
        found = "broken", traceback.format_exc()
    outcome.send((*found, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024))


def exercise(tokenizer: Tokenizer) -> None:
    """A little of everything that a tokenizer does."""
    text = "a ab Hello, <s> 12 龘\n"
    encoding = tokenizer.encode_segments([Segment(text, Policy.PARSE), Segment(text)], with_offsets=True)
    tokenizer.decode(encoding.ids, True, True)
    tokenizer.decode_bytes(list(range(tokenizer.vocabulary_size))[:100])
    tokenizer.stream(stop_strings=["x"]).push(encoding.ids, end=True)
    assert tokenizer.encode_segments([Segment(text)]).ids == tokenizer.encode_segments([Segment(text)]).ids
