"""`python -m tandem.worker.convert.run SOURCE TARGET --to FAMILY`: what `tandem convert` starts.

Nothing half-written: everything goes to a hidden neighbour of the target, which takes the target's name in one step
when all of it is on the disk. An error or a signal removes it; what a killed process left, the next conversion does.

Standard output is one JSON object a line: {"done": bytes, "total": bytes} now and then, at the end {"path", "bytes",
"files", "notes"}, or {"error": one line}.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import os
import shutil
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tandem.common.gguf import GgufError, read_raw
from tandem.worker.checkpoints import Checkpoint, CheckpointError, open_checkpoint, open_head
from tandem.worker.checkpoints.checkpoint import DTYPES
from tandem.worker.convert.gguf import write_gguf, write_vocabulary
from tandem.worker.convert.hugging_face import write_hugging_face
from tandem.worker.convert.meta import write_meta
from tandem.worker.convert.pieces import LEFT_OUT, ConvertError, Progress, Source
from tandem.worker.convert.tokenizers import copy_tokenizer, sentencepiece_model

FAMILIES = {"meta": "meta", "hugging-face": "hugging_face", "gguf": "gguf"}
_PROGRESS_SECONDS = 0.1


def convert(
    source: Path, target: Path, family: str, dtype: str, progress: Progress, adapter: Path | None = None
) -> dict[str, Any]:
    """Writes the checkpoint at `source`, with the changes of an `adapter`, as `family` to `target`, which must not be
    there; says what was written.

    Raises CheckpointError, ConvertError, OSError.
    """
    if target.exists():
        raise ConvertError(f"{target}: is there already; name something new")
    if family == "gguf" and target.suffix != ".gguf":
        raise ConvertError(f"{target}: the name of a GGUF file must end in .gguf")
    if not target.absolute().parent.is_dir():
        raise ConvertError(f"{target.absolute().parent}: no such folder")
    checkpoint = open_checkpoint(source, adapter)
    wanted = checkpoint.dtype if dtype == "auto" else DTYPES[dtype]
    work = Source(checkpoint, wanted, progress, _head(source))
    with _partial(target) as partial:
        if family == "gguf":
            partial = partial / target.name
            write_gguf(work, partial)
            files = [target.name]
        else:
            (write_meta if family == "meta" else write_hugging_face)(work, partial)
            _carry_tokenizer(work, partial, family)
            work.notes.extend([LEFT_OUT] if work.head is not None else [])
            files = sorted(file.name for file in partial.iterdir())
        size = sum(file.stat().st_size for file in ([partial] if partial.is_file() else partial.iterdir()))
        partial.rename(target)
        _sync_folder(target.absolute().parent)
    return {"path": str(target), "bytes": size, "files": files, "notes": work.notes}


def _head(source: Path) -> Checkpoint | None:
    """Opens the head beside the model, if there is one that is served."""
    try:
        return open_head(source)
    except CheckpointError:
        return None


@contextmanager
def _partial(target: Path) -> Iterator[Path]:
    """Makes an empty folder beside the target, which is gone at the end; one conversion to a target at a time."""
    folder = target.absolute().with_name(f".{target.name}.partial")
    folder.mkdir(exist_ok=True)
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ConvertError(f"{target}: another conversion writes it now") from None
        try:
            for left in folder.iterdir():  # by a process that was killed
                left.unlink()
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)
    finally:
        os.close(descriptor)


def _carry_tokenizer(work: Source, folder: Path, family: str) -> None:
    """Copies or makes the tokenizer's files, and notes what could not be."""
    path = work.checkpoint.path
    if work.checkpoint.format != "gguf":
        copied = copy_tokenizer(path, folder)
        if not copied:
            work.notes.append(f"{path} has no tokenizer files; serve the result with --tokenizer")
    else:
        file = path if path.is_file() else next(path.glob("*.gguf"))
        copied = ["tokenizer.model"] if (model := sentencepiece_model(file)) else []
        if model:
            (folder / "tokenizer.model").write_bytes(model)
        elif vocabulary := read_raw(file, lambda key: key.startswith("tokenizer.") or key == "general.architecture"):
            write_vocabulary(vocabulary, folder / "tokenizer.gguf")
            work.notes.append("tokenizer.gguf holds the vocabulary; Tandem reads it, other programs need their own")
        else:
            work.notes.append(f"{file.name} has no tokenizer; serve the result with --tokenizer")
    if family == "meta" and "tokenizer.model" not in copied and work.checkpoint.eos_ids:
        ids = ", ".join(map(str, work.checkpoint.eos_ids))
        work.notes.append(f"params.json cannot say which ids end an answer ({ids}); requests must name them")


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _say(message: dict[str, Any]) -> None:
    print(json.dumps(message), flush=True)  # noqa: T201  (our protocol)


def _throttled(stopped: Sequence[int]) -> Progress:
    """Reports the progress, a few times a second; raises SystemExit if a signal came whose exception was lost."""
    last = 0.0

    def progress(done: int, total: int) -> None:
        nonlocal last
        if stopped:
            raise SystemExit(128 + stopped[0])
        if done == total or time.monotonic() - last >= _PROGRESS_SECONDS:
            last = time.monotonic()
            _say({"done": done, "total": total})

    return progress


def main(arguments: list[str]) -> int:
    """Converts; returns the exit code: 0, 1 after an error that was said, 128 + n after signal n."""
    parser = argparse.ArgumentParser(prog="python -m tandem.worker.convert.run")
    parser.add_argument("source", type=Path)
    parser.add_argument("target", type=Path)
    parser.add_argument("--to", choices=FAMILIES, required=True)
    parser.add_argument("--adapter", type=Path)
    parser.add_argument("--dtype", choices=("auto", *DTYPES), default="auto")
    options = parser.parse_args(arguments)

    stopped: list[int] = []

    def stop(number: int, frame: object) -> None:
        stopped.append(number)
        raise SystemExit(128 + number)

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, stop)
    try:
        progress = _throttled(stopped)
        _say(convert(options.source, options.target, options.to, options.dtype, progress, options.adapter))
    except BrokenPipeError:
        return 128 + signal.SIGPIPE  # whoever asked has left
    except Exception as error:
        if stopped:  # whose exception came out of a library as another one
            return 128 + stopped[0]
        if not isinstance(error, CheckpointError | ConvertError | GgufError | OSError):
            raise
        words = str(error)
        if isinstance(error, OSError):
            words = f"{options.target}: {error.strerror or error}; nothing was written"
        _say({"error": words})
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
