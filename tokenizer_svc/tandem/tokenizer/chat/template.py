"""Renders one chat template, as Hugging Face templates expect it, in a Jinja sandbox.

What a template may use is what `transformers` gives it (`utils/chat_template_utils.py` there), and the text is the same
to the byte. Runs in the renderer's process (renderer_process), which bounds time and memory; this module bounds what a
template can reach.
"""

from __future__ import annotations

import datetime
import json
import random
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, NoReturn

from jinja2 import TemplateError, nodes
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace
from markupsafe import Markup

from tandem.tokenizer.chat.origin import Alphabet, Foreign, Origin, on_plain_text
from tandem.tokenizer.chat.render_error import RenderError

# Filters that look at letters and signs, which private characters have none of.
_FILTERS_OF_LETTERS = ("title", "capitalize", "wordcount", "urlencode", "striptags", "escape", "e", "forceescape")


# The roles that templates are written for. Some write a token around them ('<|' + message.role + '|>': Phi-3, GLM), so
# they count as the template's own words. Any other role is the caller's.
ROLES = frozenset(("developer", "system", "user", "assistant", "tool", "function", "ipython", "model", "observation"))


def render(request: Mapping[str, Any], max_characters: int) -> list[tuple[Origin, str]]:
    """Returns the rendered text by origin.

    `request` has `template`, `messages`, `tools`, `add_generation_prompt`, `arguments` and the texts of special tokens
    in `special_tokens` (for example bos_token). A template that writes nothing of the messages' contents, or fails, is
    given each as a list of one part, which those of some models that see, too, only look for. Raises RenderError.
    """
    failure, written = None, []
    try:
        written = _render(request, max_characters, in_parts=False)
    except RenderError as error:
        failure = error
    if not _shows_content(written) and any(_has_text(message) for message in request["messages"]):
        with suppress(RenderError):
            if _shows_content(in_parts := _render(request, max_characters, in_parts=True)):
                return in_parts
    if failure is not None:
        raise failure
    return written


def _shows_content(runs: list[tuple[Origin, str]]) -> bool:
    return any(origin is Origin.CONTENT for origin, _ in runs)


def _has_text(message: Mapping[str, Any]) -> bool:
    content = message.get("content")
    return isinstance(content, str) and bool(content.strip())


def _render(request: Mapping[str, Any], max_characters: int, *, in_parts: bool) -> list[tuple[Origin, str]]:
    template = request["template"]
    alphabet = Alphabet(forbidden=template)
    environment = _environment(alphabet)
    variables = {
        **request["special_tokens"],
        "documents": None,
        **_foreign(request["arguments"], alphabet, Origin.DATA),
        "messages": [_message(message, alphabet, in_parts) for message in request["messages"]],
        "tools": _foreign(request["tools"], alphabet, Origin.DATA) or None,
        "add_generation_prompt": request["add_generation_prompt"],
    }
    random.seed(0)  # the same request gives the same text, whatever the template draws
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


def _environment(alphabet: Alphabet) -> ImmutableSandboxedEnvironment:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols]
    )
    for name in _FILTERS_OF_LETTERS:
        environment.filters[name] = on_plain_text(environment.filters[name])
    environment.filters["tojson"] = _to_json(alphabet)
    environment.filters["safe"] = _safe
    environment.tests["escaped"] = lambda value: isinstance(value, Markup)
    environment.globals.update(raise_exception=_raise, strftime_now=_strftime_now, dict=_Dict(), namespace=_Namespace)
    return environment


def _message(message: Mapping[str, Any], alphabet: Alphabet, in_parts: bool) -> dict[str, Any]:
    """Marks the parts of a message: the content is content, a known role is the template's own word, and the rest is
    data."""
    found = {
        key: _foreign(value, alphabet, Origin.CONTENT if key == "content" else Origin.DATA)
        for key, value in message.items()
    }
    if in_parts and isinstance(message.get("content"), str):
        found["content"] = [{"type": "text", "text": found["content"]}]
    return found | {"role": message["role"]} if message["role"] in ROLES else found


def _foreign(value: Any, alphabet: Alphabet, origin: Origin) -> Any:
    if isinstance(value, str):
        return Foreign.of(value, alphabet, origin)
    if isinstance(value, Mapping):
        return {_foreign(key, alphabet, origin): _foreign(each, alphabet, origin) for key, each in value.items()}
    if isinstance(value, Sequence):
        return [_foreign(each, alphabet, origin) for each in value]
    return value


def _to_json(alphabet: Alphabet) -> Callable[..., Foreign]:
    """Implements the filter `tojson`. The JSON of data is data as a whole: the quotes are the template's, but what they
    enclose is not."""

    def plain(value: Any) -> Any:
        if isinstance(value, str):
            return alphabet.read(value)
        if isinstance(value, Mapping):
            return {plain(key): plain(each) for key, each in value.items()}
        if isinstance(value, (list, tuple)):
            return [plain(each) for each in value]
        return value

    def tojson(
        x: Any, ensure_ascii: Any = False, indent: Any = None, separators: Any = None, sort_keys: Any = False
    ) -> Foreign:
        text = json.dumps(
            plain(x), ensure_ascii=ensure_ascii, indent=plain(indent), separators=plain(separators), sort_keys=sort_keys
        )
        return Foreign.of(text, alphabet, Origin.DATA)

    return tojson


class _Generation(Extension):
    """Implements `{% generation %}` ... `{% endgeneration %}`, which marks an assistant's words for training; the text
    stays."""

    tags = {"generation"}  # noqa: RUF012 - Jinja's name and type

    def parse(self, parser: Parser) -> nodes.Node:
        """Parses a block with its own scope, as transformers does."""
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.CallBlock(self.call_method("_inside"), [], [], body).set_lineno(line)

    def _inside(self, caller: Callable[[], str]) -> str:
        return caller()


class _Dict:
    """A `dict` without access to its class."""

    def __call__(self, *arguments: Any, **values: Any) -> dict[Any, Any]:
        return dict(*arguments, **values)

    def fromkeys(self, *arguments: Any) -> dict[Any, Any]:
        return dict.fromkeys(*arguments)


class _Namespace(Namespace):
    """A `namespace` that takes no names of Python's internals."""

    def __init__(*arguments: Any, **values: Any) -> None:  # so that `self` may be a name
        self, *given = arguments
        names = dict(*given, **values)
        for name in names:
            _check_name(name)
        Namespace.__init__(self, names)

    def __setitem__(self, name: str, value: Any) -> None:
        _check_name(name)
        Namespace.__setitem__(self, name, value)


def _check_name(name: Any) -> None:
    if isinstance(name, str) and name.startswith("_"):
        raise SecurityError(f"a namespace has no names that begin with an underscore: {name!r}")


def _safe(value: Any) -> Markup:
    """Implements the filter `safe`. The output is not HTML, but text that is marked safe is not escaped where the text
    beside it is."""
    return Markup(str.__str__(value) if isinstance(value, Foreign) else value)  # noqa: S704


def _raise(message: str) -> NoReturn:
    raise TemplateError(message)


def _strftime_now(format: str) -> str:
    return datetime.datetime.now().strftime(format)
