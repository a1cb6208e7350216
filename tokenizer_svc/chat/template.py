"""Renders one chat template, as Hugging Face templates expect it, in a Jinja sandbox.

Runs in the renderer's process (`chat.worker`), which bounds time and memory; this module bounds what a template can
reach.
"""

from __future__ import annotations

import datetime
import json
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

from jinja2 import TemplateError
from jinja2.ext import loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

from tokenizer_svc.chat.origin import Alphabet, Foreign, Origin, on_plain_text

# Filters that look at letters and signs, which private characters have none of.
_FILTERS_OF_LETTERS = ("title", "capitalize", "wordcount", "urlencode", "striptags", "escape", "e", "forceescape")


class RenderError(ValueError):
    """A template that cannot be rendered with these messages: what it says, or what is wrong with it."""


def render(request: Mapping[str, Any], max_characters: int) -> list[tuple[Origin, str]]:
    """The rendered text by origin.

    `request` has `template`, `messages`, `tools`, `add_generation_prompt`, `arguments` and the texts of special tokens
    in `special_tokens` (for instance bos_token). Raises RenderError.
    """
    template = request["template"]
    alphabet = Alphabet(forbidden=template)
    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols])
    for name in _FILTERS_OF_LETTERS:
        environment.filters[name] = on_plain_text(environment.filters[name])
    environment.filters["tojson"] = _ToJson(alphabet)
    environment.globals.update(raise_exception=_raise, strftime_now=_strftime_now)
    variables = {
        **_foreign(request["arguments"], alphabet, Origin.DATA),
        **request["special_tokens"],
        "messages": [_message(message, alphabet) for message in request["messages"]],
        "tools": _foreign(request["tools"], alphabet, Origin.DATA) or None,
        "add_generation_prompt": request["add_generation_prompt"],
    }
    parts: list[str] = []
    length = 0
    try:
        for part in environment.from_string(template).generate(**variables):
            length += len(part)
            if length > max_characters:
                raise RenderError(f"the rendered text is longer than {max_characters} characters")
            parts.append(part)
    except RenderError:
        raise
    except TemplateError as error:
        raise RenderError(f"{type(error).__name__}: {alphabet.read(str(error))}") from None
    except (RecursionError, MemoryError) as error:
        raise RenderError(f"the template needs too much: {type(error).__name__}") from None
    except Exception as error:
        raise RenderError(f"the template fails with {type(error).__name__}: {alphabet.read(str(error))}") from None
    text = "".join(parts)
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise RenderError(f"the rendered text has a lone surrogate at character {error.start}") from None
    return alphabet.runs(text)


def _message(message: Mapping[str, Any], alphabet: Alphabet) -> dict[str, Any]:
    """Roles are checked words, and stay plain; the content is content, all else is data."""
    content = message["content"]
    return {
        "role": message["role"],
        "content": Foreign.of(content, alphabet, Origin.CONTENT),
        **{
            key: _foreign(value, alphabet, Origin.DATA)
            for key, value in message.items()
            if key not in ("role", "content")
        },
    }


def _foreign(value: Any, alphabet: Alphabet, origin: Origin) -> Any:
    if isinstance(value, str):
        return Foreign.of(value, alphabet, origin)
    if isinstance(value, Mapping):
        return {_foreign(key, alphabet, origin): _foreign(each, alphabet, origin) for key, each in value.items()}
    if isinstance(value, Sequence):
        return [_foreign(each, alphabet, origin) for each in value]
    return value


class _ToJson:
    """JSON of data is data as a whole: its quotes are ours, but what they enclose is not."""

    def __init__(self, alphabet: Alphabet) -> None:
        self._alphabet = alphabet

    def __call__(self, value: Any, ensure_ascii: bool = False, indent: int | None = None, **options: Any) -> Foreign:
        if indent is not None and not 0 <= int(indent) <= 16:
            raise RenderError(f"tojson with an indent of {indent}")
        text = json.dumps(self._plain(value), ensure_ascii=bool(ensure_ascii), indent=indent)
        return Foreign.of(text, self._alphabet, Origin.DATA)

    def _plain(self, value: Any) -> Any:
        if isinstance(value, str):
            return self._alphabet.read(value)
        if isinstance(value, Mapping):
            return {self._plain(key): self._plain(each) for key, each in value.items()}
        if isinstance(value, (list, tuple)):
            return [self._plain(each) for each in value]
        return value


def _raise(message: str) -> NoReturn:
    raise TemplateError(message)


def _strftime_now(form: str) -> str:
    return datetime.datetime.now().astimezone().strftime(form)
