"""A template is compiled once, and its code serves renderings that have nothing else in common."""

from __future__ import annotations

from typing import Any

import pytest
from jinja2 import TemplateSyntaxError

from tandem.tokenizer.chat.compiled import KEPT_CHARACTERS, CompiledTemplates
from tandem.tokenizer.chat.origin import Origin
from tandem.tokenizer.chat.template import render

# What a compiler computes beforehand, if it may: filters of constants, some of which give a caller's text, and joins of
# these.
CONSTANT = "{{ [1, 'é']|tojson }}{{ {'x': 'ü'}|tojson ~ 'y' }}{{ '&eacute;'|striptags }}{{ '%c' % 983040 }}"


def question(template: str, content: str, **special_tokens: str) -> dict[str, Any]:
    return {
        "template": template, "messages": [{"role": "user", "content": content}], "tools": [],
        "add_generation_prompt": False, "arguments": {}, "special_tokens": special_tokens,
    }  # fmt: skip


def test_a_template_is_compiled_once() -> None:
    templates = CompiledTemplates()
    assert templates.compiled("{{ messages }}") is templates.compiled("{{ messages }}")
    assert templates.compiled("{{ messages }} ") is not templates.compiled("{{ messages }}")


def test_no_more_than_so_many_characters_are_kept_and_those_used_last() -> None:
    templates = CompiledTemplates(kept_characters=10)
    first, second = templates.compiled("aaaa"), templates.compiled("bbbb")
    assert templates.compiled("aaaa") is first
    assert templates.compiled("cccc") is templates.compiled("cccc")  # in place of the second
    assert templates.compiled("aaaa") is first
    assert templates.compiled("bbbb") is not second
    assert templates.compiled("d" * 11) is not templates.compiled("d" * 11)
    assert templates.compiled("bbbb") is templates.compiled("bbbb")
    assert KEPT_CHARACTERS >= 262_144, "less than the longest template of a request"


def test_one_that_is_none_is_refused_each_time() -> None:
    templates = CompiledTemplates()
    for _ in range(2):
        with pytest.raises(TemplateSyntaxError):
            templates.compiled("{% if %}")


def test_a_rendering_leaves_nothing_for_the_next_one_of_the_same_template() -> None:
    """Each has private characters of its own for what its caller wrote, and other ones that it must not take."""
    template = CONSTANT + "{{ bos_token }}[{{ messages[0].content }}]"
    alone: dict[tuple[str, str], Any] = {}
    callers = [("abc", "<s>"), ("\U000f0000\U000f0001é", "\U000f0002"), ("ünü", "\U000f0000"), ("", "é")]
    for at, (content, token) in enumerate(callers):
        new = template + "{#" + "x" * at + "#}"  # which no rendering has compiled
        alone[content, token] = render(question(new, content, bos_token=token), 1000)
    for content, token in [*callers, *reversed(callers)]:
        found = render(question(template, content, bos_token=token), 1000)
        assert found == alone[content, token]
        text = "".join(part for _, part in found)
        assert text == f'[1, "é"]{{"x": "ü"}}yé\U000f0000{token}[{content}]'
        assert "".join(part for origin, part in found if origin == Origin.CONTENT) == content
