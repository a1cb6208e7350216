"""`vocab.json` and `merges.txt`: GPT-2's byte pairs as they were before `tokenizer.json`, as OPT and GPT-Neo still are.

What both mean is put in the words of a `tokenizer.json`. `tokenizer_config.json` names the special tokens and says
whether the first one is added; those that the vocabulary lacks stand behind it, in the order in which they are named.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from tandem.tokenizer.formats import hf_json
from tandem.tokenizer.formats.errors import FormatError
from tandem.tokenizer.formats.sidecar import NAMED_TOKENS, AddedToken, Sidecar, read_bytes, read_json_object
from tandem.tokenizer.tokenizer import Tokenizer

NAME, MERGES = "vocab.json", "merges.txt"
_CLASSES = ("GPT2Tokenizer", "GPT2TokenizerFast")
_USUAL = dict.fromkeys(("bos_token", "eos_token", "unk_token"), "<|endoftext|>")
# What `TemplateProcessing` calls the two texts.
_FIRST, _SECOND = ({"Sequence": {"id": name, "type_id": place}} for place, name in enumerate("AB"))


def is_vocabulary(path: Path) -> bool:
    """Tells whether a file is one of the two, which lie beside each other."""
    return path.name == NAME and (path.parent / MERGES).is_file()


def load(path: Path, vocabulary: Mapping[str, Any], sidecar: Sidecar) -> Tokenizer:
    """Loads the tokenizer of a `vocab.json` and what lies beside it. Raises FormatError."""
    config = _settings(path.parent)
    sidecar = replace(sidecar, special_texts=_USUAL | dict(sidecar.special_texts))
    added = _added(path, vocabulary, config, sidecar)
    content: dict[str, Any] = {
        "model": {"type": "BPE", "vocab": vocabulary, "merges": _merges(path.parent / MERGES)},
        "added_tokens": [_entry(token) for token in added],
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": config.get("add_prefix_space") or False},
        "decoder": {"type": "ByteLevel"},
        "post_processor": _template(added, sidecar) if sidecar.add_bos else None,
    }
    return hf_json.load(path, content, sidecar)


def _settings(folder: Path) -> Mapping[str, Any]:
    """Returns what is said beside the files. Raises FormatError for a class of tokenizers that cuts text otherwise."""
    said: dict[str, Any] = {}
    for name in ("config.json", "special_tokens_map.json", "tokenizer_config.json"):
        file = folder / name
        if file.is_file():
            found = read_json_object(file)
            if name != "config.json":
                said |= found
            if found.get("tokenizer_class") not in (None, *_CLASSES):
                kind = str(found["tokenizer_class"])[:60]
                problem = f"{NAME} and {MERGES} of the tokenizer_class {kind} are not served, but {_CLASSES[0]}'s are"
                raise FormatError(file, f"{problem}; transformers writes a tokenizer.json of it (save_pretrained)")
    return said


def _merges(path: Path) -> list[str]:
    try:
        lines = read_bytes(path).decode().split("\n")
    except UnicodeDecodeError as error:
        raise FormatError(path, f"cannot be read: {error}") from None
    merges = [line.removesuffix("\r") for line in lines]
    return [line for line in merges if line and not line.startswith("#version")]


def _added(
    path: Path, vocabulary: Mapping[str, Any], config: Mapping[str, Any], sidecar: Sidecar
) -> tuple[AddedToken, ...]:
    """Returns the tokens that are found in text as a whole, in the order of their ids."""
    beside = path.parent / "added_tokens.json"
    known = dict(vocabulary) | (read_json_object(beside) if beside.is_file() else {})
    known |= {token.text: token.id for token in sidecar.added_tokens.values()}
    for text, number in known.items():
        if type(number) is not int or number < 0:
            raise FormatError(beside if text not in vocabulary else path, f"{text!r} is {number!r}, expected an id")
    special = dict.fromkeys(
        text for name in (*NAMED_TOKENS, "mask_token") if (text := _text(config.get(name) or _USUAL.get(name)))
    )
    for key in ("additional_special_tokens", "extra_special_tokens"):
        listed = config.get(key) or ()
        if not isinstance(listed, list | tuple):
            raise FormatError(path.parent / "tokenizer_config.json", f"{key} is not a list")
        special |= dict.fromkeys(text for each in listed if (text := _text(each)))
    found = {text: number for text, number in known.items() if text in special or vocabulary.get(text) != number}
    behind = itertools.count(1 + max(known.values(), default=-1))
    found |= {text: next(behind) for text in special if text not in found}
    tokens = [
        sidecar.added_tokens.get(number) or AddedToken(number, text, special=text in special)
        for text, number in found.items()
    ]
    return tuple(sorted(tokens, key=lambda token: token.id))


def _text(value: object) -> str:
    value = value.get("content") if isinstance(value, dict) else value
    return value if isinstance(value, str) else ""


def _entry(token: AddedToken) -> dict[str, Any]:
    flags = ("special", "lstrip", "rstrip", "single_word", "normalized")
    return {"id": token.id, "content": token.text, **{name: getattr(token, name) for name in flags}}


def _template(added: tuple[AddedToken, ...], sidecar: Sidecar) -> dict[str, Any]:
    """Returns the step that puts the first special token before each text."""
    text = sidecar.special_texts["bos_token"]
    number = next(token.id for token in added if token.text == text)
    before = [{"SpecialToken": {"id": text, "type_id": place}} for place in range(2)]
    return {
        "type": "TemplateProcessing",
        "single": [before[0], _FIRST],
        "pair": [before[0], _FIRST, before[1], _SECOND],
        "special_tokens": {text: {"id": text, "ids": [number], "tokens": [text]}},
    }
