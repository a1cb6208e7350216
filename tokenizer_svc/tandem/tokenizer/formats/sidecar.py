"""Reads the tokenizer settings of Hugging Face folders: `tokenizer_config.json`, chat templates, where the former is
silent `special_tokens_map.json`, and of the model's `config.json` how many ids it has."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tandem.tokenizer.chat.named_templates import NamedTemplates
from tandem.tokenizer.formats.errors import FormatError

_MAX_BYTES = 64 * 1024 * 1024
_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")
_DEFAULT, _WITH_TOOLS = "default", "tool_use"  # transformers' names of templates
_TOOLS_ALONE = "{{ raise_exception('this model has a chat template for requests with tools, and no other') }}"
NAMED_TOKENS = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token")


@dataclass(frozen=True, slots=True)
class AddedToken:
    """A token that the folder adds to a vocabulary, or changes in it."""

    id: int
    text: str
    special: bool
    lstrip: bool = False
    rstrip: bool = False
    single_word: bool = False
    normalized: bool = False


@dataclass(frozen=True, slots=True)
class Sidecar:
    """The parts of `tokenizer_config.json` that change behaviour. None means that the file does not say."""

    added_tokens: Mapping[int, AddedToken] = field(default_factory=dict)
    special_texts: Mapping[str, str] = field(default_factory=dict)  # "bos_token" -> "<s>"
    add_bos: bool | None = None
    add_eos: bool | None = None
    clean_spaces: bool | None = None
    chat_template: str | None = None
    model_ids: int = 0  # the rows of the model's embedding, which may be more than the vocabulary has; 0: not told


def read_bytes(path: Path) -> bytes:
    """Reads a file that is not large. Raises FormatError."""
    try:
        if path.stat().st_size > _MAX_BYTES:
            raise FormatError(path, f"larger than {_MAX_BYTES} bytes, which is too large for such a file")
        return path.read_bytes()
    except OSError as error:
        raise FormatError(path, f"cannot be read: {error.strerror}") from None


def read_json_object(path: Path) -> dict[str, Any]:
    """Reads a JSON file that holds one object. Raises FormatError."""
    try:
        text = read_bytes(path).decode("utf-8-sig")
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise FormatError(path, f"is not valid JSON: {error}") from None
    if _SURROGATE.search(text) is not None:  # most of them are pairs, and fine
        try:
            json.dumps(value, ensure_ascii=False).encode()
        except UnicodeEncodeError:
            raise FormatError(path, "holds a lone surrogate, which is not valid Unicode") from None
    if not isinstance(value, dict):
        raise FormatError(path, "is not a JSON object")
    return value


def read_sidecar(folder: Path) -> Sidecar:
    """Reads the files that exist, and returns an empty Sidecar when none does. Raises FormatError."""
    path = folder / "tokenizer_config.json"
    config = read_json_object(path) if path.is_file() else {}
    named = folder / "special_tokens_map.json"
    if named.is_file():
        config = {key: value for key, value in read_json_object(named).items() if key in NAMED_TOKENS} | config
    templates = _chat_templates(path, config)
    of_more = folder / "chat_template.json"  # of a model that sees, too; its tokenizer has it as well, or has none
    if not templates and of_more.is_file():
        templates = _chat_templates(of_more, read_json_object(of_more))
    files = _template_files(folder)
    templates = files if _DEFAULT in files else templates | files
    texts = {name: text for name in NAMED_TOKENS if (text := _token_text(path, name, config.get(name))) is not None}
    return Sidecar(
        added_tokens=_added_tokens(path, config.get("added_tokens_decoder")),
        special_texts=texts,
        add_bos=_flag(path, config, "add_bos_token"),
        add_eos=_flag(path, config, "add_eos_token"),
        clean_spaces=_flag(path, config, "clean_up_tokenization_spaces"),
        chat_template=_chosen(templates),
        model_ids=_model_ids(folder / "config.json"),
    )


# Where the text model is in the config of one that sees or hears, too, from the outside in.
_WITHIN = ("thinker_config", "llm_config", "text_config")
_UNSAID = {"gemma3_text": 262208}  # published without a number, which is that of transformers' class


def _model_ids(path: Path) -> int:
    config = read_json_object(path) if path.is_file() else {}
    for name in _WITHIN:
        inner = config.get(name)
        config = inner if isinstance(inner, dict) else config
    kind = config.get("model_type")
    size = config.get("vocab_size", _UNSAID.get(kind) if isinstance(kind, str) else None)
    return size if type(size) is int else 0


def _flag(path: Path, config: Mapping[str, Any], name: str) -> bool | None:
    value = config.get(name)
    if value is not None and not isinstance(value, bool):
        raise FormatError(path, f"{name} is {value!r}, expected true or false")
    return value


def _token_text(path: Path, name: str, value: object) -> str | None:
    if isinstance(value, dict):
        value = value.get("content")
    if value is not None and not isinstance(value, str):
        raise FormatError(path, f"{name} is not a text")
    return value


def _chat_templates(path: Path, config: Mapping[str, Any]) -> dict[str, str]:
    """Returns the only template as "default", or those of a list whose names mean something."""
    value = config.get("chat_template")
    if value is None:
        return {}
    if isinstance(value, str):
        return {_DEFAULT: value}
    if isinstance(value, list):
        named = [entry for entry in value if isinstance(entry, dict) and entry.get("name") in (_DEFAULT, _WITH_TOOLS)]
        found = {entry["name"]: template for entry in named if (template := entry.get("template")) is not None}
        if all(isinstance(template, str) for template in found.values()):
            return found
    raise FormatError(path, "chat_template is neither a text nor a list of named templates")


def _template_files(folder: Path) -> dict[str, str]:
    """Returns the templates that lie in files of their own."""
    found = {}
    places = {_DEFAULT: "chat_template.jinja", _WITH_TOOLS: f"additional_chat_templates/{_WITH_TOOLS}.jinja"}
    for name, place in places.items():
        path = folder / place
        if path.is_file():
            try:
                found[name] = path.read_text(encoding="utf-8")
            except (OSError, UnicodeDecodeError) as error:
                raise FormatError(path, f"cannot be read: {error}") from None
    return found


def _chosen(templates: Mapping[str, str]) -> str | None:
    if _WITH_TOOLS not in templates:
        return templates.get(_DEFAULT)
    return NamedTemplates(templates.get(_DEFAULT, _TOOLS_ALONE), templates[_WITH_TOOLS])


def _added_tokens(path: Path, value: object) -> dict[int, AddedToken]:
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise FormatError(path, "added_tokens_decoder is not an object")
    added: dict[int, AddedToken] = {}
    for key, entry in value.items():
        if not (isinstance(key, str) and key.isascii() and key.isdigit() and len(key) < 10):
            raise FormatError(path, f"added_tokens_decoder has the key {key!r}, which is not an id")
        if not (isinstance(entry, dict) and isinstance(entry.get("content"), str)):
            raise FormatError(path, f"added_tokens_decoder[{key}] has no text")
        for name in ("special", "lstrip", "rstrip", "single_word", "normalized"):
            if not isinstance(entry.get(name, False), bool):
                raise FormatError(
                    path, f"added_tokens_decoder[{key}].{name} is {entry[name]!r}, expected true or false"
                )
        added[int(key)] = read_added_token(int(key), entry)
    return added


def read_added_token(index: int, entry: Mapping[str, Any]) -> AddedToken:
    """Reads one entry of `added_tokens_decoder`, or of `added_tokens` in a `tokenizer.json`."""
    return AddedToken(
        index,
        entry["content"],
        special=bool(entry.get("special", False)),
        lstrip=bool(entry.get("lstrip", False)),
        rstrip=bool(entry.get("rstrip", False)),
        single_word=bool(entry.get("single_word", False)),
        normalized=bool(entry.get("normalized", not entry.get("special", False))),
    )
