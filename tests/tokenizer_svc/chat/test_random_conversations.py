"""Random conversations render as with transformers, by templates that take texts apart as those of models do."""

from __future__ import annotations

import json
from pathlib import Path
from random import Random
from typing import Any

import pytest

from tandem.tokenizer.chat.json_text import read_question
from tandem.tokenizer.chat.origin import Origin
from tandem.tokenizer.chat.render_error import RenderError
from tandem.tokenizer.chat.template import render
from tests.tokenizer_svc.chat.test_transformers import CALL, TOOLS, templates, theirs

TEXTS = (
    *("Hi", "", " ", "<think>\nplan\n</think>\n\nHello", "<think></think>ok", "</think>x", "a<think>b", "  sp  ", "3"),
    *('<result>\n{"a": 1}\n</result>', "/quiet", "hey /quiet", '{"name": "x"}', "<|end|>", "<|user|>\nme", "a\n\nb"),
    *("é 👩‍🚀 ß", "\U000f0000", "\U000f0001<think>\U0010fffd</think>\U000f0000", "%s {0} {{ x }}", "user", "</think>"),
)
TEMPLATES = {
    "a macro of parts, thoughts cut out of what it gives": """
{%- macro text_of(content) %}
    {%- if content is string %}{{ content }}{% elif content is iterable %}
        {%- for part in content %}{{ part if part is string else part.text }}{% endfor %}
    {%- endif %}
{%- endmacro %}
{%- set ns = namespace(last=-1) %}
{%- for m in messages %}{% if m.role == 'user' %}{% set ns.last = loop.index0 %}{% endif %}{% endfor %}
{%- for m in messages %}
    {%- set content = text_of(m.content) | trim %}
    {{- '<|' + m.role + '|>' }}
    {%- if m.role == 'assistant' %}
        {%- set thought = '' %}
        {%- if m.reasoning_content is string %}{% set thought = m.reasoning_content %}
        {%- elif '</think>' in content %}
            {%- set thought = content.split('</think>')[0].rstrip('\\n').split('<think>')[-1].lstrip('\\n') %}
            {%- set content = content.split('</think>')[-1].lstrip('\\n') %}
        {%- endif %}
        {{- '\\n<think>' + thought.strip() + '</think>' if loop.index0 > ns.last and thought else '' }}
        {{- '\\n' + content if content.strip() else '' }}
        {%- for call in m.tool_calls or [] %}
            {{- '<call>' + call.function.name }}
            {%- for key, value in call.function.arguments.items() %}
                {{- '<' ~ key ~ '>' }}{{ value if value is string else value | tojson }}
            {%- endfor %}
        {%- endfor %}
    {%- else %}
        {{- '\\n' + content }}{{ ' (quiet)' if content.endswith('/quiet') and not content.startswith('/') }}
    {%- endif %}
{%- endfor %}
{{- '<|assistant|>' if add_generation_prompt }}""",
    "captured blocks, joined turns, results found by their marks": """
{%- set ns = namespace(system='', turns=[], before='') %}
{%- for m in messages %}
    {%- if m.role == 'system' %}
        {%- set ns.system = ns.system ~ (m.content or '') | upper ~ '\\n' %}
        {%- continue %}
    {%- endif %}
    {%- set turn %}{{ m.role }}:{{ m.content }}{% if m.tool_calls %}{{ m.tool_calls | tojson }}{% endif %}{% endset %}
    {%- if m.role == 'tool' or (m.content is string and m.content.startswith('<result>')
            and m.content.endswith('</result>')) %}
        {%- set turn = turn.replace('<result>', '[').replace('</result>', ']').split('\\n') | join(' ') %}
    {%- endif %}
    {%- set ns.turns = ns.turns + [turn if ns.before != m.role else turn.partition(':')[2]] %}
    {%- set ns.before = m.role %}
{%- endfor %}
{{- ns.system }}{{ ns.turns | join('<|end|>') | replace('<think>', '«') }}{{ ns.turns | map('length') | sum }}
{%- if tools %}{{ 'tools: %s' % (tools | map(attribute='function.name') | join(', ')) }}{% endif %}
{{- '%s|%-9s|' | format(ns.turns[-1], ns.before) }}{{ '{}{!r}'.format(ns.turns[0], ns.before) }}""",
    "every way to look into a text": """
{%- for m in messages if m.content %}
    {%- set c = '' ~ m.content %}
    {{- [c, c[1:], c | title, c.find('<'), c.count('think'), c in 'user or 3', c == '3', c is upper, c | int] }}
    {{- c.split('<', maxsplit=1)[-1].removesuffix('>').center(12, '.') }}{{ {'3': 'three'}.get(c, c | length) }}
    {%- filter upper %}{{ m.role }} {{ c | indent(2) }}{% endfilter %}
    {%- for x in c | unique %}{% if not x.isalnum() %}{{ x }}{% endif %}{% endfor %}
    {{- (c.split() + [m.role]) | sort | first }}{{ {'c': c, 'n': [c]} | tojson(indent=1) }}
{%- endfor %}""",
    "refuses what does not alternate": """
{%- for m in messages %}
    {%- if m.role == 'user' and not (m.content | trim) %}{{ raise_exception('nothing asked: ' ~ m.content) }}{% endif %}
    {%- if loop.previtem and loop.previtem.role == m.role %}{{ raise_exception('two of ' ~ m.role) }}{% endif %}
    {{- m.role }}{{ ': ' + m.content if m.content is string else '' }}
    {{- m.thinking if m.thinking is defined else '' }}{{ eos_token }}
{%- endfor %}""",
}


def conversation(random: Random) -> list[dict[str, Any]]:
    messages: list[dict[str, Any]] = []
    if random.random() < 0.4:
        messages.append({"role": "system", "content": random.choice(TEXTS)})
    for _ in range(random.randint(1, 3)):
        messages.append({"role": "user", "content": random.choice(TEXTS)})
        if random.random() < 0.8:
            answer: dict[str, Any] = {"role": "assistant", "content": random.choice(TEXTS)}
            if random.random() < 0.3:
                answer["reasoning_content"] = random.choice(TEXTS)
            messages.append(answer)
            if random.random() < 0.3:
                answer["tool_calls"] = [CALL]
                result = {"role": "tool", "content": random.choice(TEXTS), "name": "get_weather"}
                messages.append(result | {"tool_call_id": "call12345"})
    return messages


def ours(template: str, messages: list[dict[str, Any]], **given: Any) -> list[tuple[Origin, str]] | None:
    question = {
        "template": template,
        "messages": [_in_json(message) for message in messages],
        "tools": [json.dumps(tool) for tool in given["tools"]],
        "add_generation_prompt": given["add_generation_prompt"],
        "arguments": "{}",
        "special_tokens": {
            "bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "pad_token": "", "sep_token": "",
        },
    }  # fmt: skip
    try:
        return render(read_question(question), 1 << 20)
    except RenderError:
        return None


def _in_json(message: dict[str, Any]) -> dict[str, Any]:
    if "tool_calls" not in message:
        return message
    calls = [
        {**call, "function": {**call["function"], "arguments": json.dumps(call["function"]["arguments"])}}
        for call in message["tool_calls"]
    ]
    return {**message, "tool_calls": calls}


def compare(template: str, random: Random, count: int) -> tuple[int, int]:
    """Returns how many were rendered, and how many refused."""
    rendered = refused = 0
    for _ in range(count):
        messages = conversation(random)
        given: dict[str, Any] = {"tools": random.choice([[], TOOLS]), "add_generation_prompt": random.random() < 0.5}
        expected = theirs(template, json.loads(json.dumps(messages)), **given)
        found = ours(template, messages, **given)
        assert (None if found is None else "".join(text for _, text in found)) == expected, (messages, given)
        rendered += expected is not None
        refused += expected is None
        marks = "".join(text for origin, text in found or () if origin == Origin.TEMPLATE)
        assert "\U000f0000" not in marks and "👩" not in marks
    return rendered, refused


@pytest.mark.parametrize("name", TEMPLATES)
def test_templates_that_take_texts_apart(name: str) -> None:
    rendered, refused = compare(TEMPLATES[name], Random(name), 150)
    assert rendered > 20
    assert (refused > 20) == name.startswith("refuses")


def test_templates_of_models(shared_data: Path) -> None:
    rendered = 0
    for name, template in templates(shared_data).items():
        rendered += compare(template, Random(name), 4)[0]
    assert rendered > 50
