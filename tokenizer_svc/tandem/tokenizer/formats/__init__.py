"""Finds out what a tokenizer file is, by its content, and loads it."""

from __future__ import annotations

import gc
from pathlib import Path

from tandem.common.gguf import are_parts
from tandem.tokenizer.formats import gguf_file, hf_json, sentencepiece_model, tekken, tiktoken_ranks, vocab_merges
from tandem.tokenizer.formats.errors import FormatError
from tandem.tokenizer.formats.sidecar import read_json_object, read_sidecar
from tandem.tokenizer.formats.tiktoken_ranks import RankSettings
from tandem.tokenizer.tokenizer import Tokenizer

__all__ = ["FILE_NAMES", "FormatError", "RankSettings", "load_tokenizer"]

_MAX_BYTES = 256 * 1024 * 1024
_KNOWN_NAMES = ("tokenizer.model", "tokenizer.json", "tekken.json")
FILE_NAMES = (*_KNOWN_NAMES, vocab_merges.NAME)  # that say nothing of what is in them
_OLDER = f"{vocab_merges.NAME} with {vocab_merges.MERGES}"
_EXPECTED = (
    f"expected a SentencePiece model, a tiktoken rank file, a tokenizer.json, a tekken.json, a {_OLDER} or a GGUF file"
)


def load_tokenizer(path: Path | str, *, llama3_version: str = "auto", ranks: RankSettings | None = None) -> Tokenizer:
    """Loads the tokenizer of a file or a model folder.

    A `tokenizer_config.json` beside the file is honoured. `llama3_version` ("3.0", "3.1", "auto") chooses Meta's table
    of special tokens for a Llama 3 rank file that has none; `ranks` are the operator's for another. Raises FormatError.
    """
    # Hundreds of thousands of small objects, none of them in a cycle: the collector would look at them again and again.
    collecting = gc.isenabled()
    gc.disable()
    try:
        return _load(_find(Path(path)), llama3_version, ranks)
    finally:
        if collecting:
            gc.enable()


def _load(file: Path, llama3_version: str, ranks: RankSettings | None) -> Tokenizer:
    head = _head(file)
    if ranks is not None and not tiktoken_ranks.is_tiktoken_ranks(head):
        raise FormatError(file, "is no tiktoken rank file, but --rank-pattern or --rank-special is for one")
    if gguf_file.is_gguf(head):
        return gguf_file.load(file)
    try:
        if file.stat().st_size > _MAX_BYTES:
            raise FormatError(file, f"is larger than {_MAX_BYTES} bytes; {_EXPECTED}")
        data = file.read_bytes()
    except OSError as error:
        raise FormatError(file, f"cannot be read: {error.strerror}") from None
    if not data:
        raise FormatError(file, f"is empty; {_EXPECTED}")
    sidecar = read_sidecar(file.parent)
    if data[:64].lstrip()[:1] == b"{":
        content = read_json_object(file)
        if tekken.is_tekken(content):
            return tekken.load(file, content, sidecar)
        if vocab_merges.is_vocabulary(file):
            return vocab_merges.load(file, content, sidecar)
        return hf_json.load(file, content, sidecar)
    if tiktoken_ranks.is_tiktoken_ranks(data[:4096]):
        return tiktoken_ranks.load(file, data, sidecar, llama3_version, ranks or RankSettings())
    model = sentencepiece_model.parse(data)
    if model is not None:
        return sentencepiece_model.load(file, model, sidecar)
    raise FormatError(file, f"is not a tokenizer of a known format, or is damaged; {_EXPECTED}")


def _head(file: Path) -> bytes:
    try:
        with file.open("rb") as opened:
            return opened.read(4096)
    except OSError as error:
        raise FormatError(file, f"cannot be read: {error.strerror}") from None


def _find(path: Path) -> Path:
    if path.is_dir():
        for name in _KNOWN_NAMES:
            if (path / name).is_file():
                return path / name
        if vocab_merges.is_vocabulary(path / vocab_merges.NAME):
            return path / vocab_merges.NAME
        found = sorted(path.glob("*.gguf"))
        if len(found) == 1 or are_parts([file.name for file in found]):
            return found[0]
        if found:
            raise FormatError(path, f"the folder has {len(found)} GGUF files; name one of them")
        raise FormatError(
            path, f"the folder has no tokenizer file ({', '.join(_KNOWN_NAMES)}, {_OLDER} or a GGUF file)"
        )
    if not path.exists():
        raise FormatError(path, "does not exist")
    if not path.is_file():
        raise FormatError(path, "is not a file")
    return path
