"""The decoder of a `tokenizer.json`: the text of each token at the beginning of a text and behind another token."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tandem.tokenizer.formats.byte_alphabet import ALPHABET, from_alphabet
from tandem.tokenizer.vocabulary import DecodedForms

_ALPHABET = frozenset(ALPHABET)
_BYTE = re.compile(r"<0x([0-9A-Fa-f]{2})>")
# What WordPiece with `cleanup` removes the first character of, in this order.
_CLEANED = (" .", " ?", " !", " ,", " ' ", " n't", " 'm", " do not", " 's", " 've", " 're")
_CLEAN_FORMS = {" ' ": "'", " do not": " don't"}

Change = Callable[[str, bool], str]  # of a token's text; whether it is the first


def read_decoder(decoder: Mapping[str, Any] | None, texts: Sequence[str]) -> DecodedForms | None:
    """Returns the decoded forms of the given tokens, or None where there is no decoder. Raises ValueError."""
    if decoder is None:
        return None
    changes: list[Change] = []
    to_bytes: Callable[[str], bytes] = str.encode
    fused = False
    strip = ""  # is taken from the beginning of all text
    for step in _steps(decoder, "decoder"):
        kind = step["type"]
        if fused and kind == "Strip" and not strip and _number(step, "stop") == 0 and _number(step, "start") <= 1:
            strip = _character(step) if step["start"] else ""
        elif kind == "Fuse" and not strip:
            fused = True
        elif fused or to_bytes is not str.encode:
            raise ValueError(f"the decoder {kind} is not supported in this form, or not at this place")
        elif kind == "ByteLevel":
            to_bytes, fused = _of_alphabet, True
        elif kind == "ByteFallback":
            to_bytes = _of_byte
        else:
            changes.append(_change(step))

    def form(text: str, first: bool) -> bytes:
        for change in changes:
            text = change(text, first)
        data = to_bytes(text)
        return data.removeprefix(strip.encode()) if first else data

    rest = [form(text, False) if text else b"" for text in texts]
    found = ((index, form(text, True)) for index, text in enumerate(texts) if text)
    return DecodedForms({index: data for index, data in found if data != rest[index]}, rest)


def _steps(decoder: Any, place: str) -> list[Mapping[str, Any]]:
    if not isinstance(decoder, dict) or not isinstance(decoder.get("type"), str):
        raise ValueError(f"{place} is no step with a type")
    if decoder["type"] != "Sequence":
        return [decoder]
    inner = decoder.get("decoders")
    if not isinstance(inner, list):
        raise ValueError(f"{place}.decoders is no list")
    return [step for number, each in enumerate(inner) for step in _steps(each, f"{place}.decoders[{number}]")]


def _change(step: Mapping[str, Any]) -> Change:
    match step["type"]:
        case "Replace":
            pattern = step.get("pattern")
            old = pattern.get("String") if isinstance(pattern, dict) else None
            if not isinstance(old, str) or not old:
                raise ValueError(f"the decoder Replace with the pattern {pattern!r} is not supported")
            new = _text(step, "content")
            return lambda text, first: text.replace(old, new)
        case "WordPiece":
            prefix, cleanup = _text(step, "prefix"), bool(step.get("cleanup", True))
            return lambda text, first: _word_piece(text, first, prefix, cleanup)
        case "Metaspace":
            replacement = _text(step, "replacement")
            scheme = step.get("prepend_scheme") or ("always" if step.get("add_prefix_space", True) else "never")
            if scheme not in ("always", "first", "never") or len(replacement) != 1:
                raise ValueError(
                    f"the decoder Metaspace with {replacement!r} and prepend_scheme {scheme!r} is not supported"
                )
            drops = scheme != "never"
            return lambda text, first: text.replace(replacement, "" if first and drops else " ")
        case "Strip":
            character, start, stop = _character(step), _number(step, "start"), _number(step, "stop")
            return lambda text, first: _stripped(text, character, start, stop)
        case other:
            raise ValueError(f"the decoder {other} is not supported")


def _word_piece(text: str, first: bool, prefix: str, cleanup: bool) -> str:
    if not first:
        text = text.removeprefix(prefix) if text.startswith(prefix) else " " + text
    for found in _CLEANED if cleanup else ():
        text = text.replace(found, _CLEAN_FORMS.get(found, found[1:]))
    return text


def _stripped(text: str, character: str, start: int, stop: int) -> str:
    begin = 0
    while begin < min(start, len(text)) and text[begin] == character:
        begin += 1
    end = len(text)
    while end > max(begin, len(text) - stop) and text[end - 1] == character:
        end -= 1
    return text[begin:end]


def _of_byte(text: str) -> bytes:
    found = _BYTE.fullmatch(text)
    return text.encode() if found is None else bytes([int(found[1], 16)])


def _of_alphabet(text: str) -> bytes:
    return from_alphabet(text) if _ALPHABET.issuperset(text) else text.encode()


def _text(step: Mapping[str, Any], name: str) -> str:
    value = step.get(name)
    if not isinstance(value, str):
        raise ValueError(f"the decoder {step['type']} has the {name} {value!r}, expected a text")
    return value


def _character(step: Mapping[str, Any]) -> str:
    value = _text(step, "content")
    if len(value) != 1:
        raise ValueError(f"the decoder Strip has the content {value!r}, expected one character")
    return value


def _number(step: Mapping[str, Any], name: str) -> int:
    value = step.get(name)
    if type(value) is not int or value < 0:
        raise ValueError(f"the decoder {step['type']} has the {name} {value!r}, expected a number")
    return value
