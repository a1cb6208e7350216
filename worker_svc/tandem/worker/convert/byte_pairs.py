"""Converts byte-pair vocabularies to keys of a GGUF file: from a `tokenizer.json`, or from Meta's table of ranks (Llama
3).

llama.cpp does not store how text is cut before pairs are merged: it knows some ways by name (`tokenizer.ggml.pre`), and
so the ways that are recognised here are those of the families that are served.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

_CONTROL, _USER_DEFINED, _NORMAL, _UNUSED = 3, 4, 1, 5
_LLAMA3_RANKS, _LLAMA3_SPECIALS = 128_000, 256
_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}%s| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_MARKED_WORDS = (  # of Qwen3.5: marks belong to words
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}"
    r"| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
GPT2, GPT2_DIGITS = "GPT-2", "GPT-2, each digit apart"  # which are no pattern in a tokenizer.json
DIGITS = {"type": "Digits", "individual_digits": True}
# How text is cut, and whether words that are tokens are taken whole -> llama.cpp's name for both.
CUTS = {
    (_WORDS % "{1,3}", True): "llama-bpe",
    (_WORDS % "{1,3}", False): "smaug-bpe",
    (_WORDS % "", False): "qwen2",
    (_MARKED_WORDS, False): "qwen35",
    (GPT2, False): "gpt-2",
    (GPT2_DIGITS, False): "starcoder",
}
_NORMALIZED = ("qwen2", "qwen35")  # to NFC, which llama.cpp leaves out


def _alphabet() -> str:
    """Returns the character that stands for each byte (GPT-2's table)."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = iter(range(0x100, 0x200))
    return "".join(chr(byte if byte in printable else next(others)) for byte in range(256))


_ALPHABET = _alphabet()


class UnknownTokenizerError(Exception):
    """A GGUF file cannot express the tokenizer; the message says why."""


def from_json(path: Path, size: int, config: Mapping[str, Any], eos_ids: Sequence[int]) -> dict[str, Any]:
    """Returns the keys that say what a `tokenizer.json` says, for a model of `size` tokens; `config` is what its
    tokenizer_config.json holds. Raises UnknownTokenizerError."""
    try:
        content = json.loads(path.read_bytes())
        model = content["model"]
        if model["type"] != "BPE":
            raise UnknownTokenizerError(f"its model is {model['type']}")
        pre = _pre(content, bool(model.get("ignore_merges")))
        texts: dict[int, str] = {index: text for text, index in model["vocab"].items()}
        merges = [merge if isinstance(merge, str) else " ".join(merge) for merge in model["merges"]]
        added = {int(token["id"]): token for token in content.get("added_tokens") or ()}
        texts |= {index: str(token["content"]) for index, token in added.items()}
        specials = {index: bool(token.get("special")) for index, token in added.items()}
        bos = _first_token(content.get("post_processor"))
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise UnknownTokenizerError(f"it cannot be read ({type(error).__name__})") from None
    return _keys(texts, merges, specials, pre, size, config, eos_ids, bos)


def from_ranks(
    path: Path, size: int, config: Mapping[str, Any], eos_ids: Sequence[int], *, scaled_rope: bool
) -> dict[str, Any]:
    """Returns the same for Meta's table of ranks; `scaled_rope` is what tells Llama 3.1 from 3.0.

    Raises UnknownTokenizerError.
    """
    try:
        pieces = [base64.b64decode(line.split()[0], validate=True) for line in path.read_bytes().splitlines() if line]
    except (OSError, ValueError, IndexError):
        raise UnknownTokenizerError("it cannot be read") from None
    if len(pieces) != _LLAMA3_RANKS:
        raise UnknownTokenizerError(f"it has {len(pieces)} ranks; those of Llama 3, {_LLAMA3_RANKS}, are known")
    texts = {index: piece.decode("latin-1").translate(dict(enumerate(_ALPHABET))) for index, piece in enumerate(pieces)}
    added = config.get("added_tokens_decoder")
    if isinstance(added, dict) and added:
        specials = {int(index): bool(token.get("special")) for index, token in added.items()}
        texts |= {int(index): str(token["content"]) for index, token in added.items()}
    else:
        named = dict(enumerate(_llama3_specials(scaled_rope), _LLAMA3_RANKS))
        specials = dict.fromkeys(named, True)
        texts |= named
    merges = [f"{texts[left]} {texts[right]}" for left, right in merges_of_ranks(pieces)]
    return _keys(texts, merges, specials, "llama-bpe", size, config, eos_ids, _LLAMA3_RANKS)


def merges_of_ranks(pieces: Sequence[bytes]) -> Iterator[tuple[int, int]]:
    """Yields the two tokens that each longer token is made of last, in the order of ranks; tokens that merging never
    makes are left out. A token's bytes are merged as in any text, by the lowest rank, with the ranks before its own."""
    ranks = {piece: index for index, piece in enumerate(pieces)}
    for own, piece in enumerate(pieces):
        parts = [piece[i : i + 1] for i in range(len(piece))]
        while len(parts) > 2:
            pairs = [ranks.get(left + right, own) for left, right in pairwise(parts)]
            lowest = min(pairs)
            if lowest >= own:
                break
            at = pairs.index(lowest)
            parts[at : at + 2] = [parts[at] + parts[at + 1]]
        if len(parts) == 2 and parts[0] in ranks and parts[1] in ranks:
            yield ranks[parts[0]], ranks[parts[1]]


def _keys(
    texts: Mapping[int, str],
    merges: Sequence[str],
    specials: Mapping[int, bool],
    pre: str,
    size: int,
    config: Mapping[str, Any],
    eos_ids: Sequence[int],
    bos: int | str | None,
) -> dict[str, Any]:
    """Makes the keys. `specials`: added tokens, and whether they are control tokens; `bos`: what goes before every
    text."""
    if max(texts) >= size:
        raise UnknownTokenizerError(f"it has the id {max(texts)}, but the model only {size} rows")
    ids = {text: index for index, text in texts.items()}
    first = ids.get(bos) if isinstance(bos, str) else bos
    named = ids.get(_text(config.get("bos_token"))) if first is None else first
    adds = config.get("add_bos_token")
    keys: dict[str, Any] = {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": pre,
        "tokenizer.ggml.tokens": [texts.get(index, f"[PAD{index}]").encode() for index in range(size)],
        "tokenizer.ggml.token_type": [
            (_CONTROL if specials[index] else _USER_DEFINED)
            if index in specials
            else (_NORMAL if index in texts else _UNUSED)
            for index in range(size)
        ],
        "tokenizer.ggml.merges": [merge.encode() for merge in merges],
        "tokenizer.ggml.add_bos_token": first is not None if adds is None else bool(adds),
    }
    eos = eos_ids[0] if eos_ids else ids.get(_text(config.get("eos_token")))
    for name, index in (("bos", named), ("eos", eos)):
        if index is not None:
            keys[f"tokenizer.ggml.{name}_token_id"] = index
    if isinstance(template := config.get("chat_template"), str):
        keys["tokenizer.chat_template"] = template
    return keys


def _pre(content: Mapping[str, Any], whole_words: bool) -> str:
    """Returns llama.cpp's name for the way in which a tokenizer.json cuts text."""
    cutter = content["pre_tokenizer"]
    steps = cutter["pretokenizers"] if cutter["type"] == "Sequence" else [cutter]
    if steps[-1]["type"] != "ByteLevel":
        raise UnknownTokenizerError("it does not work on bytes")
    if len(steps) == 1 and steps[0].get("use_regex", True):
        cut: str | None = GPT2
    elif len(steps) == 2 and steps[0] == DIGITS and steps[1].get("use_regex", True):
        cut = GPT2_DIGITS
    elif len(steps) == 2 and steps[0]["type"] == "Split" and not steps[1].get("use_regex", True):
        cut = steps[0]["pattern"].get("Regex")
    else:
        cut = None
    normalizer = content.get("normalizer")
    pre = CUTS.get((cut or "", whole_words)) if not steps[-1].get("add_prefix_space") else None
    if pre is None or (normalizer is not None and (pre not in _NORMALIZED or normalizer.get("type") != "NFC")):
        raise UnknownTokenizerError(f"it cuts text in a way that is none of {', '.join(CUTS.values())}")
    return pre


def _first_token(processor: Any) -> str | None:
    """Returns the token that a post-processor puts before a text."""
    for step in processor.get("processors", [processor]) if processor else []:
        if step.get("type") == "TemplateProcessing" and (first := step["single"][0].get("SpecialToken")):
            return str(first["id"])
    return None


def _text(token: Any) -> str:
    return str(token.get("content")) if isinstance(token, dict) else str(token)


def _llama3_specials(scaled_rope: bool) -> list[str]:
    """Returns Meta's special tokens in the order of their ids."""
    named = {0: "begin_of_text", 1: "end_of_text", 6: "start_header_id", 7: "end_header_id", 9: "eot_id"}
    if scaled_rope:
        named |= {4: "finetune_right_pad_id", 8: "eom_id", 10: "python_tag"}
    reserved = iter(range(_LLAMA3_SPECIALS))
    return [
        f"<|{named[place] if place in named else f'reserved_special_token_{next(reserved)}'}|>"
        for place in range(_LLAMA3_SPECIALS)
    ]
