"""Checks the shape of a `tokenizer.json`: each key that is read has the right type, or the error names it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

Kinds: TypeAlias = tuple[type, ...]

_TEXT: Kinds = (str,)
_FLAG: Kinds = (bool,)
_INTEGER: Kinds = (int,)
_NUMBER: Kinds = (int, float)
_MOST = (2 - 2**-23) * 2.0**127  # of float32, which scores are kept as
_WORDS = {str: "a text", bool: "true or false", int: "an integer", float: "a number", list: "a list", dict: "an object"}

_ADDED = {"single_word": _FLAG, "lstrip": _FLAG, "rstrip": _FLAG, "normalized": _FLAG, "special": _FLAG}
_MODEL: Mapping[str, Kinds] = {
    "type": _TEXT,
    "merges": (list,),
    "unk_token": _TEXT,
    "unk_id": _INTEGER,
    "byte_fallback": _FLAG,
    "fuse_unk": _FLAG,
    "ignore_merges": _FLAG,
    "dropout": _NUMBER,
    "continuing_subword_prefix": _TEXT,
    "end_of_word_suffix": _TEXT,
    "max_input_chars_per_word": _INTEGER,
}
_STEP: Mapping[str, Kinds] = {
    **dict.fromkeys(("behavior", "content", "prepend", "precompiled_charsmap", "replacement"), _TEXT),
    **dict.fromkeys(("prepend_scheme", "prefix", "suffix"), _TEXT),
    **dict.fromkeys(("invert", "individual_digits", "add_prefix_space", "use_regex", "split", "lowercase"), _FLAG),
    **dict.fromkeys(("strip_accents", "clean_text", "handle_chinese_chars", "strip_left", "strip_right"), _FLAG),
    **dict.fromkeys(("cleanup", "trim_offsets"), _FLAG),
    **dict.fromkeys(("start", "stop"), _INTEGER),
    **dict.fromkeys(("pattern", "special_tokens"), (dict,)),
    **dict.fromkeys(
        ("normalizers", "pretokenizers", "processors", "decoders", "cls", "sep", "single", "pair"), (list,)
    ),
}
_REQUIRED: Mapping[str, Sequence[str]] = {
    "Split": ("pattern", "behavior"),
    "Replace": ("pattern", "content"),
    "Prepend": ("prepend",),
    "Precompiled": ("precompiled_charsmap",),
    "BertProcessing": ("sep", "cls"),
    "RobertaProcessing": ("sep", "cls"),
    "TemplateProcessing": ("single", "special_tokens"),
}
_STEPS = {
    "normalizer": "normalizers",
    "pre_tokenizer": "pretokenizers",
    "post_processor": "processors",
    "decoder": "decoders",
}


def model_kind(model: Mapping[str, Any]) -> str:
    """Returns the model's type, which older files leave out."""
    return model.get("type") or ("Unigram" if "unk_id" in model else "BPE")


def check_shape(content: Mapping[str, Any]) -> None:
    """Raises ValueError, which names the key."""
    _check_model(_required(content, "model", (dict,), ""))
    _check(content, {"added_tokens": (list,)}, "")
    for index, token in enumerate(content.get("added_tokens") or ()):
        place = f"added_tokens[{index}]"
        if not isinstance(token, dict):
            raise ValueError(f"{place} is {token!r:.80}, expected an object")
        _required(token, "id", _INTEGER, place + ".")
        _required(token, "content", _TEXT, place + ".")
        _check(token, _ADDED, place + ".")
    for name, inner in _STEPS.items():
        if content.get(name) is not None:
            _check_step(content[name], name, inner)


def _check_model(model: Mapping[str, Any]) -> None:
    vocabulary = _required(model, "vocab", (dict, list), "model.")
    _check(model, _MODEL, "model.")
    kind = model_kind(model)
    if kind == "WordPiece":
        for key in ("continuing_subword_prefix", "max_input_chars_per_word"):
            if key in model:
                _required(model, key, _MODEL[key], "model.")
    if (kind == "Unigram") is not isinstance(vocabulary, list):
        raise _wrong("model.vocab", vocabulary, (list if kind == "Unigram" else dict,))
    if isinstance(vocabulary, list):
        _check_unigrams(model, vocabulary)
    for index, merge in enumerate(model.get("merges") or ()):
        if not (_is(merge, _TEXT) or (isinstance(merge, list) and all(_is(part, _TEXT) for part in merge))):
            raise ValueError(f"model.merges[{index}] is {merge!r:.80}, expected two texts")


def _check_unigrams(model: Mapping[str, Any], vocabulary: list[Any]) -> None:
    for index, entry in enumerate(vocabulary):
        if not (isinstance(entry, list) and len(entry) == 2 and _is(entry[0], _TEXT) and _is(entry[1], _NUMBER)):
            raise ValueError(f"model.vocab[{index}] is {entry!r:.80}, expected a text and a score")
        if not -_MOST <= entry[1] <= _MOST:  # NaN is not, either
            raise ValueError(f"model.vocab[{index}] has a score that no float32 is: {entry[1]!r:.40}")
    if model.get("unk_id") is not None and not 0 <= model["unk_id"] < len(vocabulary):
        raise ValueError(f"model.unk_id is {model['unk_id']}, which is not an id of model.vocab")


def _check_step(step: Any, place: str, inner: str) -> None:
    if not isinstance(step, dict):
        raise ValueError(f"{place} is {step!r:.80}, expected an object")
    kind = _required(step, "type", _TEXT, place + ".")
    _check(step, _STEP, place + ".")
    if kind == "Sequence":
        for index, each in enumerate(_required(step, inner, (list,), place + ".")):
            _check_step(each, f"{place}.{inner}[{index}]", inner)
    for key in _REQUIRED.get(kind, ()):
        _required(step, key, _STEP[key], place + ".")
    if kind in ("BertProcessing", "RobertaProcessing"):
        for key in ("cls", "sep"):
            pair = step[key]
            if not (len(pair) == 2 and _is(pair[0], _TEXT) and _is(pair[1], _INTEGER)):
                raise ValueError(f"{place}.{key} is {pair!r:.80}, expected a text and an id")
    if kind == "TemplateProcessing":
        for name in ("single", "pair"):
            _check_template(step, f"{place}.{name}", step.get(name) or ())


def _check_template(step: Mapping[str, Any], place: str, parts: Sequence[Any]) -> None:
    for index, part in enumerate(parts):
        here = f"{place}[{index}]"
        named = next(iter(part.items())) if isinstance(part, dict) and len(part) == 1 else (None, None)
        if named[0] not in ("Sequence", "SpecialToken") or not isinstance(named[1], dict):
            raise ValueError(f"{here} is {part!r:.80}, expected a Sequence or a SpecialToken")
        _check(named[1], {"id": _TEXT, "type_id": _INTEGER}, f"{here}.{named[0]}.")
        if named[1].get("type_id", 0) not in range(1 << 16):
            raise ValueError(f"{here}.{named[0]}.type_id is {named[1]['type_id']}, expected 0 to 65535")
        if named[0] == "SpecialToken":
            listed = f"{place.rpartition('.')[0]}.special_tokens."
            name = _required(named[1], "id", _TEXT, f"{here}.SpecialToken.")
            token = _required(step["special_tokens"], name, (dict,), listed)
            ids = _required(token, "ids", (list,), f"{listed}{name}.")
            if not all(_is(each, _INTEGER) for each in ids):
                raise ValueError(f"{listed}{name}.ids is {ids!r:.80}, expected ids")


def _check(value: Mapping[str, Any], keys: Mapping[str, Kinds], place: str) -> None:
    for key, kinds in keys.items():
        if value.get(key) is not None and not _is(value[key], kinds):
            raise _wrong(place + key, value[key], kinds)


def _required(value: Mapping[str, Any], key: str, kinds: Kinds, place: str) -> Any:
    if key not in value:
        raise ValueError(f"there is no {place}{key}, expected {_words(kinds)}")
    if not _is(value[key], kinds):
        raise _wrong(place + key, value[key], kinds)
    return value[key]


def _is(value: Any, kinds: Kinds) -> bool:
    return isinstance(value, kinds) and not (isinstance(value, bool) and bool not in kinds)


def _wrong(place: str, value: Any, kinds: Kinds) -> ValueError:
    return ValueError(f"{place} is {value!r:.80}, expected {_words(kinds)}")


def _words(kinds: Kinds) -> str:
    return " or ".join(_WORDS[kind] for kind in kinds)
