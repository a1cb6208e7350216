"""Renders one chat template, as Hugging Face templates expect it, in a Jinja sandbox.

What a template may use is what `transformers` gives it (`utils/chat_template_utils.py` there), and the text is the same
to the byte. Runs in the renderer's process (renderer_process), which bounds time and memory; this module bounds what a
template can reach.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from jinja2 import Template, TemplateError

from tandem.tokenizer.chat.compiled import CompiledTemplates
from tandem.tokenizer.chat.environment import ChatEnvironment, ConversationRefusedError
from tandem.tokenizer.chat.origin import Alphabet, Origin
from tandem.tokenizer.chat.render_error import RenderError
from tandem.tokenizer.chat.traced import Texts

# The roles that templates are written for. Some write a token around them ('<|' + message.role + '|>': Phi-3, GLM), so
# they count as the template's own words. Any other role is the caller's.
ROLES = frozenset(("developer", "system", "user", "assistant", "tool", "function", "ipython", "model", "observation"))
_NAMES_OF_REASONING = ("reasoning_content", "thinking", "reasoning")

_TEMPLATES = CompiledTemplates()


class _RefusedError(RenderError):
    """The template called raise_exception."""


def render(request: Mapping[str, Any], max_characters: int) -> list[tuple[Origin, str]]:
    """Returns the rendered text by origin.

    `request` has `template`, `messages`, `tools`, `add_generation_prompt`, `arguments`, the texts of special tokens in
    `special_tokens` (for example bos_token), and may have `continue_final_message`. A template that writes nothing of
    the messages' contents, or fails, is given each as a list of one part, which those of some models that see, too,
    only look for. One that refuses the conversation has seen it. Raises RenderError.
    """
    failure, written = None, []
    try:
        written = _render(request, max_characters, in_parts=False)
    except _RefusedError:
        raise
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
    alphabet = Alphabet(forbidden=request["template"])
    for text in request["special_tokens"].values():
        alphabet.forbid(text)
    try:
        text = _text(request, max_characters, Texts(alphabet), in_parts)
    except RenderError:
        raise
    except ConversationRefusedError as error:
        raise _RefusedError(f"{TemplateError.__name__}: {alphabet.read(str(error))}") from None
    except TemplateError as error:
        raise RenderError(f"{type(error).__name__}: {alphabet.read(str(error))}") from None
    except (RecursionError, MemoryError) as error:
        raise RenderError(f"the template needs too much: {type(error).__name__}") from None
    except Exception as error:
        raise RenderError(f"the template fails with {type(error).__name__}: {alphabet.read(str(error))}") from None
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise RenderError(f"the rendered text has a lone surrogate at character {error.start}") from None
    return alphabet.runs(text)


def _text(request: Mapping[str, Any], max_characters: int, texts: Texts, in_parts: bool) -> str:
    """Returns the rendered text in private characters."""
    environment = ChatEnvironment(texts)
    compiled = _TEMPLATES.compiled(request["template"])
    texts.alphabet.forbid(compiled.constants)
    variables = {
        **request["special_tokens"],
        "documents": None,
        **_foreign(request["arguments"], texts, Origin.DATA),
        "messages": [_message(message, texts, in_parts) for message in request["messages"]],
        "tools": _foreign(request["tools"], texts, Origin.DATA) or None,
        "add_generation_prompt": request["add_generation_prompt"],
    }
    end = None
    if request.get("continue_final_message"):
        end = texts.alphabet.mark()
        _mark_end(variables["messages"][-1], end, texts)
    random.seed(0)  # the same request gives the same text, whatever the template draws
    parts: list[str] = []
    length = 0
    template = Template.from_code(environment, compiled.code, environment.make_globals(None))
    for part in template.generate(**variables):
        length += len(part)
        if length > max_characters:
            raise RenderError(f"the rendered text is longer than {max_characters} characters")
        parts.append(part)
    return "".join(parts) if end is None else _continued("".join(parts), end)


def _mark_end(message: dict[str, Any], end: str, texts: Texts) -> None:
    """Puts a mark behind a message's content, and a space, which tells whether the template keeps white space there."""
    place, key = (message["content"][-1], "text") if isinstance(message["content"], list) else (message, "content")
    place[key] = texts.traced(str.__str__(place[key]) + end + " ")


def _continued(text: str, end: str) -> str:
    """Returns what stands in front of the last mark of `_mark_end`, as transformers does for
    `continue_final_message`."""
    at = text.rfind(end)
    if at < 0:
        raise RenderError("the template does not write the content of the last message, so it cannot be continued")
    return text[:at] if text[at + 1 : at + 2] == " " else text[:at].rstrip()


def _message(message: Mapping[str, Any], texts: Texts, in_parts: bool) -> dict[str, Any]:
    """Marks the parts of a message: the content is content, a known role is the template's own word, and the rest is
    data. Reasoning has all the names that transformers gives it."""
    reasoning = next((message[name] for name in _NAMES_OF_REASONING if message.get(name) is not None), None)
    if reasoning is not None:
        message = {"thinking": reasoning, **message, "reasoning_content": reasoning}
    found = {
        key: _foreign(value, texts, Origin.CONTENT if key == "content" else Origin.DATA)
        for key, value in message.items()
    }
    if in_parts and isinstance(message.get("content"), str):
        found["content"] = [{"type": "text", "text": found["content"]}]
    return found | {"role": message["role"]} if message["role"] in ROLES else found


def _foreign(value: Any, texts: Texts, origin: Origin) -> Any:
    if isinstance(value, str):
        return texts.of(value, origin)
    if isinstance(value, Mapping):
        return {_foreign(key, texts, origin): _foreign(each, texts, origin) for key, each in value.items()}
    if isinstance(value, Sequence):
        return [_foreign(each, texts, origin) for each in value]
    return value
