"""Makes a `tokenizer.json` with the ids of a SentencePiece model, Meta's table of ranks or a GGUF vocabulary.

Only where one exists; each reason why none does is an UnknownTokenizerError:

- SentencePiece joins the best pair of neighbours by the score of what it makes, the leftmost of equals; a
  tokenizer.json has a rank for each pair. They agree where no two pieces share a score, but for runs of one character,
  which grow from the left in both where longer runs come first; where each character of a piece is a piece; and where
  text is not normalized before.
- Byte pairs agree where the way in which text is cut has a name that is known here (`byte_pairs.py`).

`python -m tandem.worker.convert.tokenizer_json MODEL TARGET` writes a zip archive of it with the model's other
tokenizer files. Standard output is one JSON object: {"files": names} or {"error": one line}.
"""

from __future__ import annotations

import argparse
import json
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

from tandem.common.gguf import GgufError, are_parts, read_metadata
from tandem.worker.checkpoints import CheckpointError, open_checkpoint
from tandem.worker.checkpoints.special_ids import protobuf_fields
from tandem.worker.convert.byte_pairs import CUTS, DIGITS, GPT2, GPT2_DIGITS, UnknownTokenizerError
from tandem.worker.convert.tokenizers import TOKENIZER_FILES, gguf_vocabulary

JSON_NAME, CONFIG_NAME = "tokenizer.json", "tokenizer_config.json"
_ALONG = ("config.json", "generation_config.json")
_NORMAL, _UNKNOWN, _CONTROL, _USER_DEFINED, _UNUSED, _BYTE = 1, 2, 3, 4, 5, 6
_SPACE = "▁"  # U+2581, which stands for a space in the pieces
# sentencepiece_model.proto: what of TrainerSpec and NormalizerSpec has no place in a GGUF file.
_TRAINER, _NORMALIZER = 2, 3
_MODEL_TYPE, _BPE = 3, 2
_CHARACTER_MAP, _EXTRA_SPACES, _ESCAPES = 2, 4, 5
_EPOCH = (1980, 1, 1, 0, 0, 0)  # so that equal folders make equal archives


def tokenizer_files(model: Path) -> dict[str, bytes]:
    """Returns the files that a gateway needs of a checkpoint's tokenizer, by name, `tokenizer.json` among them. Raises
    UnknownTokenizerError, CheckpointError, GgufError, OSError."""
    folder = model if model.is_dir() else model.parent
    known = [*TOKENIZER_FILES, *_ALONG] if model.is_dir() else []
    files = {name: (folder / name).read_bytes() for name in known if (folder / name).is_file()}
    if JSON_NAME in files:
        return files
    keys = _vocabulary(model)
    files[JSON_NAME] = json.dumps(tokenizer_json(keys), ensure_ascii=False).encode()
    if CONFIG_NAME not in files:
        files[CONFIG_NAME] = json.dumps(_config(keys), ensure_ascii=False).encode()
    return files


def tokenizer_json(keys: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the content of a `tokenizer.json` for the vocabulary that GGUF keys describe. Raises
    UnknownTokenizerError."""
    model = keys.get("tokenizer.ggml.model")
    make = {"llama": _of_scores, "gpt2": _of_merges}.get(str(model))
    if make is None:
        raise UnknownTokenizerError(f"its vocabulary is of type {model!r}; llama and gpt2 are known")
    try:
        texts = [bytes(token).decode() for token in keys["tokenizer.ggml.tokens"]]
    except UnicodeDecodeError:
        raise UnknownTokenizerError("it has tokens that are not UTF-8") from None
    kinds = list(keys.get("tokenizer.ggml.token_type", [_NORMAL] * len(texts)))
    if len(set(texts)) < len(texts):
        raise UnknownTokenizerError("two of its ids have the same text")
    bos = keys.get("tokenizer.ggml.bos_token_id") if _adds_bos(keys) else None
    if keys.get("tokenizer.ggml.add_eos_token"):
        raise UnknownTokenizerError("it adds an end-of-sequence token to prompts")
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            {
                "id": index,
                "content": texts[index],
                "single_word": False,
                "lstrip": False,
                "rstrip": False,
                "normalized": False,
                "special": kind != _USER_DEFINED,
            }
            for index, kind in enumerate(kinds)
            if kind in (_CONTROL, _UNKNOWN, _USER_DEFINED)
        ],
        **make(keys, texts, kinds),
        "post_processor": None if bos is None else _template(texts[bos], bos),
    }


def _adds_bos(keys: Mapping[str, Any]) -> bool:
    """Tells whether prompts begin with the bos token: as the file says, else as llama.cpp has it."""
    default = keys["tokenizer.ggml.model"] == "llama" or keys.get("tokenizer.ggml.pre") == "llama-bpe"
    return bool(keys.get("tokenizer.ggml.add_bos_token", default))


def _of_scores(keys: Mapping[str, Any], texts: Sequence[str], kinds: Sequence[int]) -> dict[str, Any]:
    name = str(keys.get("general.name", "")).lower()
    if "phi-3" in name or "phi3" in name:
        raise UnknownTokenizerError("its special tokens swallow the spaces behind them")
    if sum(kind == _BYTE for kind in kinds) != 256:
        raise UnknownTokenizerError("it has no piece for each byte")
    scores = dict(zip(texts, map(float, keys["tokenizer.ggml.scores"]), strict=True))
    unknown = next((text for text, kind in zip(texts, kinds, strict=True) if kind == _UNKNOWN), None)
    prepend = [{"type": "Prepend", "prepend": _SPACE}] if keys.get("tokenizer.ggml.add_space_prefix", True) else []
    strip = [{"type": "Strip", "content": " ", "start": 1, "stop": 0}] if prepend else []
    escape = {"type": "Replace", "pattern": {"String": " "}, "content": _SPACE}
    unescape = {"type": "Replace", "pattern": {"String": _SPACE}, "content": " "}
    return {
        "normalizer": {"type": "Sequence", "normalizers": [*prepend, escape]},
        "pre_tokenizer": None,
        "decoder": {"type": "Sequence", "decoders": [unescape, {"type": "ByteFallback"}, {"type": "Fuse"}, *strip]},
        "model": _model(
            texts, list(_ranked_pairs(texts, kinds, scores)), unk_token=unknown, fuse_unk=True, byte_fallback=True
        ),
    }


def _ranked_pairs(texts: Sequence[str], kinds: Sequence[int], scores: Mapping[str, float]) -> Iterator[list[str]]:
    """Yields the pairs that can be joined, the best first. Raises UnknownTokenizerError."""
    usable = {text for text, kind in zip(texts, kinds, strict=True) if kind == _NORMAL}
    idle = [text for text, kind in zip(texts, kinds, strict=True) if kind == _UNUSED]
    if any(len(text) == 1 or any(_pairs(text, usable)) for text in idle):
        raise UnknownTokenizerError("text can become pieces that are marked as unused")
    made = {text: pairs for text in usable if len(text) > 1 and (pairs := list(_pairs(text, usable)))}
    characters = {character for text in usable if len(text) > 1 for character in text}
    if missing := sorted(characters - usable):
        raise UnknownTokenizerError(f"it joins the character {missing[0]!r}, which is no piece itself")
    ranked = sorted(made, key=lambda text: (-scores[text], -len(text)))
    for score, tied in groupby(ranked, key=scores.__getitem__):
        together = list(tied)
        if len(together) > 1 and any(set(text) != set(together[0][0]) for text in together):
            raise UnknownTokenizerError(f"it has {len(together)} pieces of the score {score:g}")
    for text in ranked:
        yield from made[text]


def _pairs(text: str, known: set[str]) -> Iterator[list[str]]:
    """Yields the two pieces that a text can be made of, the longest left one first."""
    for cut in range(len(text) - 1, 0, -1):
        if text[:cut] in known and text[cut:] in known:
            yield [text[:cut], text[cut:]]


def _of_merges(keys: Mapping[str, Any], texts: Sequence[str], kinds: Sequence[int]) -> dict[str, Any]:
    pre = str(keys.get("tokenizer.ggml.pre", ""))
    known = {name: (cut, whole) for (cut, whole), name in CUTS.items()}
    if pre not in known:
        raise UnknownTokenizerError(f"it cuts text as {pre!r} does; known are {', '.join(known)}")
    cut, whole = known[pre]
    by_words = cut in (GPT2, GPT2_DIGITS)
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": by_words}
    split = {"type": "Split", "pattern": {"Regex": cut}, "behavior": "Isolated", "invert": False}
    first = DIGITS if by_words else split
    merges = [bytes(merge).decode().split(" ") for merge in keys.get("tokenizer.ggml.merges", ())]
    return {
        "normalizer": None,
        "pre_tokenizer": level if cut == GPT2 else {"type": "Sequence", "pretokenizers": [first, level]},
        "decoder": level,
        "model": _model(texts, merges, ignore_merges=whole),
    }


def _model(texts: Sequence[str], merges: Sequence[Sequence[str]], **options: Any) -> dict[str, Any]:
    plain: dict[str, Any] = {
        "type": "BPE",
        "dropout": None,
        "unk_token": None,
        "continuing_subword_prefix": None,
        "end_of_word_suffix": None,
        "fuse_unk": False,
        "byte_fallback": False,
        "ignore_merges": False,
    }
    return plain | options | {"vocab": {text: index for index, text in enumerate(texts)}, "merges": list(merges)}


def _template(bos: str, bos_id: int) -> dict[str, Any]:
    first = {"SpecialToken": {"id": bos, "type_id": 0}}
    one, two = {"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}
    return {
        "type": "TemplateProcessing",
        "single": [first, one],
        "pair": [first, one, {"SpecialToken": {"id": bos, "type_id": 1}}, two],
        "special_tokens": {bos: {"id": bos, "ids": [bos_id], "tokens": [bos]}},
    }


def _config(keys: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the content of a `tokenizer_config.json`."""
    tokens = keys["tokenizer.ggml.tokens"]
    named = {"bos_token": "bos", "eos_token": "eos", "unk_token": "unknown", "pad_token": "padding"}
    found = {role: keys.get(f"tokenizer.ggml.{name}_token_id") for role, name in named.items()}
    config: dict[str, Any] = {
        role: bytes(tokens[index]).decode()
        for role, index in found.items()
        if index is not None and index < len(tokens)
    }
    config["add_bos_token"] = _adds_bos(keys)
    config["clean_up_tokenization_spaces"] = False
    if isinstance(template := keys.get("tokenizer.chat_template"), str):
        config["chat_template"] = template
    return config


def _vocabulary(model: Path) -> dict[str, Any]:
    if gguf := _gguf(model):
        return read_metadata(gguf, lambda key: key.startswith("tokenizer.") or key == "general.name")
    checkpoint = open_checkpoint(model)
    file = model / "tokenizer.model"
    keys = gguf_vocabulary(model, checkpoint.config, checkpoint.eos_ids)
    if keys["tokenizer.ggml.model"] == "llama":
        _check_sentencepiece(file.read_bytes())
    return keys


def _gguf(model: Path) -> Path | None:
    found = sorted(model.glob("*.gguf")) if model.is_dir() else [model]
    return found[0] if len(found) == 1 or are_parts([file.name for file in found]) else None


def _check_sentencepiece(content: bytes) -> None:
    """Raises UnknownTokenizerError for a model that does what a GGUF vocabulary cannot say."""
    kind, normalizer = 1, {}
    for number, value in protobuf_fields(content):
        if number == _TRAINER and isinstance(value, bytes):
            kind = dict(protobuf_fields(value)).get(_MODEL_TYPE, 1)  # type: ignore[assignment]
        elif number == _NORMALIZER and isinstance(value, bytes):
            normalizer = dict(protobuf_fields(value))
    if kind != _BPE:
        raise UnknownTokenizerError("its SentencePiece model is not of type BPE")
    if normalizer.get(_CHARACTER_MAP) or normalizer.get(_EXTRA_SPACES, 1) or not normalizer.get(_ESCAPES, 1):
        raise UnknownTokenizerError("its SentencePiece model normalizes text")


def write_archive(files: Mapping[str, bytes], target: Path) -> None:
    """Writes a zip archive that depends on nothing but the files."""
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in sorted(files):
            archive.writestr(zipfile.ZipInfo(name, _EPOCH), files[name], zipfile.ZIP_DEFLATED)


def main() -> int:
    """Writes the archive; returns the exit code."""
    parser = argparse.ArgumentParser(description="a model's tokenizer files with a tokenizer.json, as a zip archive")
    parser.add_argument("model", type=Path, help="checkpoint: a folder, or a GGUF file")
    parser.add_argument("target", type=Path, help="zip archive that is written")
    arguments = parser.parse_args()
    try:
        files = tokenizer_files(arguments.model)
        write_archive(files, arguments.target)
    except (UnknownTokenizerError, CheckpointError, GgufError, OSError, ValueError) as error:
        print(json.dumps({"error": " ".join(str(error).split())}))  # noqa: T201
        return 1
    print(json.dumps({"files": sorted(files)}))  # noqa: T201
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
