"""What a template may do to a text: the result is that of transformers, and every character keeps its origin."""

from __future__ import annotations

import datetime
import time
from types import SimpleNamespace
from typing import Any, Self

import pytest
from transformers.utils import chat_template_utils
from transformers.utils.chat_template_utils import render_jinja_template

from tandem.tokenizer.chat import environment
from tandem.tokenizer.chat.origin import Origin
from tandem.tokenizer.chat.render_error import RenderError
from tandem.tokenizer.chat.template import render

SETTING = (
    "{% macro said(x) %}{{ x }}{% endmacro %}{% macro around() %}{{ caller() }}{% endmacro %}"
    "{% set captured %}{{ messages[0].name }}{% endset %}"
    "{% set called %}{% call around() %}{{ messages[0].name }}{% endcall %}{% endset %}"
)
# How a template comes by a text of the caller.
FORMS = (
    "messages[0].name",
    "'' + messages[0].name",
    "messages[0].name ~ ''",
    "said(messages[0].name)",
    "captured",
    "called",
    "'%s' | format(messages[0].name)",
    "'%s' % (messages[0].name,)",
    "'{}'.format(messages[0].name)",
    "[messages[0].name] | join",
    "['', messages[0].name] | join | trim",
    "''.join([messages[0].name])",
    "messages[0].name | list | join",
    "'@'.replace('@', messages[0].name)",
    "{'k': messages[0].name}.k",
    "messages[0].name | safe | string",
)
MIXED = (
    "'<|' + messages[0].name + '|>'",
    "messages[0].name * 2",
    "messages[0].name | replace('a', '<s>')",
    "'<s>' | safe + messages[0].name",
    "messages[0].name | escape",
    "'<s>'",
)
OPERATIONS = (
    "{{ c }}{{ [c] }}{{ {c: [c]} }}{{ (c, 1) }}",
    "{{ {c: 1}[c] }}{{ {'12': 1, 'a,b': 2}[c] }}{{ {'a,b': 1}.get(c, 'no') }}{{ c in {'12': 1} }}",
    "{{ 'a' in c }}{{ c in 'a,b or 12' }}{{ c in ['a,b', '12'] }}{{ c not in 'x' }}{{ ',' not in c }}",
    "{{ c == '12' }}{{ c != 'a,b' }}{{ c < 'b' }}{{ c <= 'b' }}{{ c > '1' }}{{ 'A' >= c }}{{ c == c }}{{ c == 12 }}",
    "{{ none in c }}",
    "{{ c + 1 }}",
    "{{ c < 1 }}",
    "{{ c + 'x' }}{{ 'x' + c }}{{ c ~ 1 ~ c }}{{ (c + 'x').upper() }}{{ (c ~ ',x').split(',') }}{{ (2 * c).title() }}",
    "{{ c | upper }}{{ c | lower }}{{ c | title }}{{ c | capitalize }}{{ [c] | upper }}{{ [c] | title }}",
    "{{ c.upper() }}{{ c.title() }}{{ c.swapcase() }}{{ c.casefold() }}{{ c.capitalize() }}{{ c.lower() }}",
    "{{ c is upper }}{{ c is lower }}{{ c is string }}{{ c is number }}{{ c is in '12 a,b' }}{{ c is eq '12' }}",
    "{{ c.isalpha() }}{{ c.isdigit() }}{{ c.isspace() }}{{ c.isascii() }}{{ c.isidentifier() }}{{ c.isprintable() }}",
    "{{ c.split(',') }}{{ c.split() }}{{ c.split('b', maxsplit=1) }}{{ c.rsplit(sep=',') }}{{ c.rsplit(none, 1) }}",
    "{{ c.split('') }}",
    "{{ c.split(',', 1) }}{{ c.splitlines(keepends=true) }}{{ c.splitlines() }}{{ c.rsplit(',', maxsplit=1)[-1] }}",
    "{{ c.partition(',') }}{{ c.rpartition(',') }}{{ c.partition('no') }}{{ c.rpartition('no') }}",
    "{{ [c.strip('a<'), c.lstrip('<a'), c.rstrip('b2'), c.strip(), c.lstrip(), c.rstrip()] }}{{ c | trim('a') }}",
    "{{ c.replace('a', 'b') }}{{ c.replace('', '-') }}{{ c.replace('', '-', 2) }}{{ c.replace(',', c, 1) }}",
    "{{ 'xa,bx'.replace(c, '-') }}{{ c | replace('a', 'b') }}{{ 'a,b' | replace(c, 'x') }}{{ c | replace(',', c) }}",
    "{{ c.find('b') }}{{ c.rfind('b', 1) }}{{ c.count('') }}{{ 'xa,bx'.find(c) }}{{ '12'.count(c) }}",
    "{{ c.index(',') }}",
    "{{ c.startswith('a') }}{{ c.endswith(('b', '2')) }}{{ 'a,bc'.startswith(c) }}{{ c.startswith('b', 2) }}",
    "{{ c.removeprefix('a') }}{{ c.removesuffix('b') }}{{ 'a,bc'.removeprefix(c) }}",
    "{{ c.center(9, '*') }}{{ c.ljust(9) }}{{ c.rjust(9, 'é') }}",
    "{{ c.zfill(9) }}{{ c.expandtabs(4) }}{{ c | center(9) }}",
    "{{ c.encode() }}{{ c.encode('utf-8') | length }}{{ c.encode().hex() }}{{ [c.encode()[1:] + c.encode()] }}",
    "{{ c.encode('ascii', 'replace').decode().split('a') }}{{ c.encode().split() }}{{ c.encode() * 2 }}",
    "{{ c.translate({97: 'x', 98: none, 44: 59}) }}{{ c.translate(c.maketrans('ab', 'xy', ',')) }}",
    "{{ c % 'x' }}",
    "{{ c % () }}",
    "{{ c | format('x') }}",
    "{{ '%s|%r|%9s|%-9s|%.2s|%a|%*s' % (c, c, c, c, c, c, 9, c) }}{{ '%(a)s %%' % {'a': c} }}{{ '%s' % c }}",
    "{{ '%d' % c }}",
    "{{ '%5%' % 1 }}",
    "{{ '%-3d|%+d|%#x|%e|%g|%o|%.*f|%ld' % (1, 2, 255, 1.5, 2.5, 8, 2, 1.234, 3) }}{{ 'abc' % [c] }}",
    "{{ '%c' % c }}",
    "{{ '%d %5.2f %x %c %05i' % (12, 1.5, 255, 65, 3) }}{{ '%s%s' | format(c, 1) }}{{ '%(a)s' | format(a=c) }}",
    "{{ '{}|{:>9}|{!r}|{!a}'.format(c, c, c, c) }}{{ '{0}|{0!s:<9}|{{}}|{a}|{b[0]}'.format(c, a=c, b=[c]) }}",
    "{{ '{a}'.format_map({'a': c}) }}{{ '{:{}}{:c}{:05d}'.format('x', 5, 65, 7) }}",
    "{{ '{:{}}'.format('x', c) }}",
    "{{ c.format('x') }}",
    "{{ c.format('x', a='y') }}",
    "{{ c | int }}{{ c | float }}{{ c | int(base=16) }}{{ c | int(default=c) }}{{ (c | int) + 1 }}",
    "{{ c | length }}{{ c | list }}{{ c | first }}{{ c | last }}",
    "{{ c | reverse }}{{ c | sort | join }}{{ c | unique | join }}",
    "{{ c | batch(2) | list }}{{ c | slice(2) | list }}{{ c | wordcount }}{{ c | urlencode }}{{ c | striptags }}",
    "{{ c | urlize }}{{ c | wordwrap(3) }}{{ c | indent(2, true) }}",
    "{{ c | truncate(3) }}{{ c | truncate(4, true, '.', 0) }}",
    "{{ c | e }}{{ c | e | e }}{{ c | forceescape }}{{ c | safe }}",
    "{{ (c | e) ~ '<' }}{{ (c | e) + '<' }}{{ [c | e] | e }}",
    "{{ {'x': c} | xmlattr }}{{ {'x': c} | urlencode }}{{ {'x': [c]} | pprint }}{{ {c: c} | dictsort }}",
    "{{ [c, 'a'] | min }}{{ [c, 'a'] | map('upper') | list }}{{ [c, '12'] | select('in', '12a,b') | list }}",
    "{{ [{'a': c}] | selectattr('a', 'in', ['a,b']) | list }}{{ [{'a': c}, {'a': '12'}] | groupby('a') }}",
    "{{ c | tojson }}{{ {c: [c]} | tojson(indent=2) }}{{ c | string | upper }}{{ c | default('x', true) }}",
    "{{ c[0:1] }}{{ c[1:] }}{{ c[::-1] }}{{ c[99:] }}{{ c['upper']() }}{{ c | attr('lower')() }}{{ messages[0][c] }}",
    "{% for x in c %}{{ x }}{{ x.isalpha() }}{% if x == 'b' %}!{% endif %}{% endfor %}",
    "{% filter upper %}{{ c }}x{% endfilter %}{% filter replace('a', 'b') %}{{ c }}{% endfilter %}",
    "{% set q %}{{ c }}{% endset %}{{ q.split(',') }}{{ q == c }}{{ [q] }}{{ q | length }}{{ q in 'a,b' }}",
    "{% call around() %}{{ c }}{{ [c] }}{% endcall %}{{ [said(c)] }}{{ said(c).split(',') }}",
    "{% set ns = namespace(a='') %}{% for x in c %}{% set ns.a = ns.a + x %}{% endfor %}{{ ns.a == c }}{{ [ns.a] }}",
    "{{ strftime_now(c) }}{{ cycler(c, 'b').next() }}{{ dict(a=c).a.upper() }}{{ dict.fromkeys([c], c) }}",
    "{{ (c, 'b') | join(c) | upper }}{{ ', '.join([c, 'b']).split(', ') }}{{ c.join(['x', 'y']) }}{{ c.join(c) }}",
    "{{ '<%s>' | safe % c }}{{ ('<{}>' | safe).format(c) }}",
    "{{ ('<' | safe).join([c, '<']) }}{{ ('<a' | safe).replace('a', c) }}",
    "{{ (c | safe).striptags() }}{{ (c | safe) | upper }}",
    "{{ (c | safe).split(',') }}{{ [c | safe] }}{{ (c | safe) | list }}",
    "{% autoescape true %}{{ c }}{{ [c] }}{% set q %}{{ c }}<{% endset %}{{ q }}{{ c ~ '<' }}{% endautoescape %}",
    "{% generation %}{{ c }}{% endgeneration %}{% set a, b = (c ~ ',x').split(',')[:2] %}{{ a }}{{ b | upper }}",
    "{{ '\\U000f0000' in c }}{{ '\\U000f0000' ~ c }}",
    "{{ {'\\U000f0000': 1}[c[:1]] }}{{ c | replace('\\U000f0000', 'x') }}",
)  # fmt: skip
TEXTS = (
    *("a,b", "12", "", " ", "-5", "upper", "%Y-%m", "content", "<|a,b|>&amp;'\"", "a%sb", "%(k)s%d", "%", "{}{0}"),
    *("{a}{{x}}", "{", "\U000f0000,\U000f0005b", "é👩‍🚀", "  aß,İb\tΣΑΣ\nΣ.\r\nx ", "ab</think>ab,ab", "<^9"),
)


# How a caller's character and one of the template may come side by side. What the template writes is not in CALLERS.
EXACT = (
    "{{ c }}|{{ c + '@' }}{{ '@' + c }}{{ c ~ '@' ~ c }}{{ '@' ~ c }}{{ c * 2 }}{{ 2 * ('@' + c) }}",
    "{{ (c + '@') | upper }}{{ ('@' + c).title() }}{{ ('@' ~ c) | capitalize }}{{ (c + '@') | title }}",
    "{{ (c + '@').swapcase() }}{{ (c + '@').casefold() }}{{ (c + '@').lower() }}",
    "{{ c.split(',') | join('@') }}{{ c.split() | join('@') }}{{ (c + '@').split('@')[0] }}{{ c.rsplit(',', 1)[1] }}",
    "{{ c.partition(',') | join('@') }}{{ c.rpartition('а') | join('@') }}{{ c.splitlines() | join('@') }}",
    "{{ (c + '@').strip('@') }}{{ ('@' + c).lstrip() }}",
    "{{ c | trim }}{{ c.removeprefix('Ж') }}{{ c.removesuffix('>') }}",
    "{{ c.replace('а', '@') }}{{ '@~@'.replace('@', c) }}{{ '@~@' | replace('~', c) }}{{ c.replace('', '@') }}",
    "{{ '<'.replace('<', '@') ~ ('@'.join(c)) }}{{ c.join(['@', '~']) }}",
    "{{ [c, '@'] | join('~') }}{{ [c, '@'] | join(c) }}",
    "{{ c[1:4] ~ '@' ~ c[::-1] ~ c[0] }}{{ c | reverse }}",
    "{{ c | first }}{{ c | last }}{{ c | list | sort | join('@') }}",
    "{{ '@%s~%%' % c }}{{ '%s@%s' % (c, 12) }}{{ '%(a)s@' % {'a': c} }}{{ '@%s' | format(c) }}{{ '%.3s@' % c }}",
    "{{ (c + '%s@') % '~' }}{{ (c + '%s') % c }}{{ (c + '%5d') % 12 }}{{ (c + '@%s') | format(c) }}",
    "{{ '{}@{{{a}}}'.format(c, a=c) }}{{ (c + '{}@').format('~') }}",
    "{{ (c + '{{@}}').format() }}{{ '{:>40}@'.format(c) }}",
    "{{ '{a}@'.format_map({'a': c}) }}{{ ('@{}' | safe).format('@') }}{{ ('@' | safe) ~ c }}{{ '@' + (c | safe) }}",
    "{{ c.center(40, '@') }}{{ c.ljust(40, '@') }}{{ c.rjust(40, '~') }}{{ c.zfill(40) }}{{ c | center(40) }}",
    "{{ '@'.center(9, c[0]) }}{{ c.expandtabs() }}{{ c | indent(2) }}{{ c | truncate(6, true, '@') }}",
    "{{ c.translate({1078: '@', 1072: none}) }}{{ '@~'.translate({64: c}) }}",
    "{% for x in c %}{{ x }}@{% endfor %}{% set a, b = c.split(',') %}{{ b }}@{{ a }}",
    "{% set q %}@{{ c }}{% endset %}{{ q }}{{ q[1:] ~ '@' }}{% filter upper %}{{ c }}@{% endfilter %}",
    "{% call around() %}{{ c }}@{% endcall %}{{ said('@' + c) }}{% generation %}{{ c }}@{% endgeneration %}",
    "{% set ns = namespace(a='@') %}{% for x in c %}{% set ns.a = ns.a + x %}{% endfor %}{{ ns.a }}",
    "{{ {c: 1}.keys() | first ~ '@' }}{{ dict(a=c).a }}{{ cycler(c, '@').next() }}{{ joiner('@')() }}@",
    "{{ {'Жука': '@'}.get(c, '~') }}{{ '@' if 'Жук' in c else '~' }}",
    "{{ c | length }}{{ c.find('а') }}{{ c | wordcount }}",
    "{{ [c, '@'] | map('upper') | join }}{{ [{'a': c}] | map(attribute='a') | join }}@{{ (c, '@') | min }}",
    "{{ c | string }}@{{ c | default('@') }}{{ '' | default(c, true) }}",
    "{{ c | safe }}@{{ c | batch(3) | map('join') | join('@') }}",
)
# What is made of the whole, or of numbers that the caller gave: all of it is the caller's.
WHOLE = (
    "{{ [c] | first | tojson }}{{ {c: c} | tojson(indent=2) }}",
    "{{ c | urlencode }}{{ {'a': c} | urlencode }}{{ c | pprint }}",
    "{{ c | striptags }}{{ c | urlize }}{{ c | wordwrap(3) }}",
    "{{ c.encode() }}{{ c.encode().decode() }}{{ c.encode().hex() }}{{ c.encode()[2:] }}{{ c.encode() + c.encode() }}",
    "{{ c.encode() * 2 }}{{ c.encode() | string }}",
    "{{ c.encode().split() | first }}{{ '%s' % c.encode() }}{{ '' ~ c.encode() }}",
    "{{ '{}'.format(c.encode()) }}{{ c.encode().upper().decode() }}",
    "{{ '%r' % c }}{{ '%a' % c }}{{ '{!r}{!a}'.format(c, c) }}",
    "{{ '%c' % 60 }}{{ '{:c}'.format(60) }}{{ '@'.translate({64: 60}) }}{{ 60 .to_bytes(1, 'big').decode() }}",
    "{{ '@'.encode().fromhex('3c').decode() }}{{ 60 .to_bytes(1, 'big') }}",
    "{{ '@@'.translate('@'.maketrans('@', '<')) }}",
    "{{ strftime_now(c) }}{{ ''.format(c) }}{{ '{:{}}'.format('', c[-1] + '^5') }}{{ c | e | striptags }}",
    "{{ [c.encode(), c] | join }}{{ (c | safe).unescape() }}",
    "{{ '%s' | format(c.encode()) }}{{ 0x3c.to_bytes(2, 'big').hex() }}",
)  # fmt: skip


TEXT = "Жук, <жаба>\tёß >"
CALLERS = set("ЖУКАБЁжукабё,<>ßSs")


def question(template: str, text: str) -> dict[str, Any]:
    """The text is not the content: a template that shows none of that is tried again with parts."""
    return {
        "template": SETTING + template, "messages": [{"role": "assistant", "content": "", "name": text}], "tools": [],
        "add_generation_prompt": False, "arguments": {}, "special_tokens": {},
    }  # fmt: skip


def ours(template: str, text: str) -> str | None:
    try:
        return "".join(part for _, part in render(question(template, text), 1 << 20))
    except RenderError:
        return None


def theirs(template: str, text: str) -> str | None:
    messages = question(template, text)["messages"]
    try:
        found: str = render_jinja_template([messages], chat_template=SETTING + template)[0][0]
    except Exception:
        return None
    return found


@pytest.fixture
def _still_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Between ours and theirs a second may begin, which `strftime_now` shows."""

    class Still(datetime.datetime):
        @classmethod
        def now(cls, tz: datetime.tzinfo | None = None) -> Self:
            return cls(2026, 2, 3, 4, 5, 6, tzinfo=tz)

    monkeypatch.setattr(environment, "datetime", SimpleNamespace(datetime=Still))
    monkeypatch.setattr(chat_template_utils, "datetime", Still)


@pytest.mark.usefixtures("_still_clock")
@pytest.mark.parametrize("operation", OPERATIONS)
def test_operations_on_text_however_it_came_about_give_what_transformers_gives(operation: str) -> None:
    for forms in (FORMS, MIXED):
        each = "{% for c in [" + ", ".join(forms) + "] %}[" + operation + "]{% endfor %}"
        for text in TEXTS:
            expected = theirs(each, text)
            assert ours(each, text) == expected, text
            if expected is None:  # which one of the forms is enough for
                for form in forms[::5]:
                    one = "{% set c = " + form + " %}" + operation
                    assert ours(one, text) == theirs(one, text), (form, text)


@pytest.mark.parametrize("template", EXACT)
def test_characters_of_the_caller_are_the_callers_and_others_the_templates(template: str) -> None:
    for form in FORMS:
        whole = "{% set c = " + form + " %}" + template
        found = render(question(whole, TEXT), 10_000)
        assert "".join(text for _, text in found) == theirs(whole, TEXT), form
        for origin, text in found:
            for each in "".join(text.split()):
                assert (origin != Origin.TEMPLATE) == (each in CALLERS), (form, each, found)


@pytest.mark.parametrize("template", WHOLE)
def test_what_is_made_of_a_text_as_a_whole_or_of_numbers_is_the_callers(template: str) -> None:
    for form in FORMS:
        found = render(question("{% set c = " + form + " %}" + template, TEXT), 10_000)
        assert not [text for origin, text in found if origin == Origin.TEMPLATE and text.strip()], form
        assert found


@pytest.mark.parametrize("private", ["\U000f0000", "\U000f0001\U0010fffd"])
def test_private_characters_are_never_taken_for_others(private: str) -> None:
    """Neither those that a template writes, by escapes or by numbers, nor those of a message."""
    escaped = "".join(f"\\U{ord(each):08x}" for each in private)
    for template in (f"{{{{ '{escaped}' }}}}{{{{ messages[0].name }}}}", private + "{{ messages[0].name }}"):
        found = render(question(template, "ab" + private), 1000)
        assert found == [(Origin.TEMPLATE, private), (Origin.DATA, "ab" + private)]
    by_number = "{{ '%c' % 983040 }}{{ '&#983040;' | striptags }}{{ messages[0].name }}"
    assert ours(by_number, "ab" + private) == theirs(by_number, "ab" + private) == "\U000f0000" * 2 + "ab" + private
    special = question("{{ bos_token }}{{ messages[0].name }}", "ab") | {"special_tokens": {"bos_token": private}}
    assert render(special, 1000) == [(Origin.TEMPLATE, private), (Origin.DATA, "ab")]


def test_a_template_that_refuses_a_conversation_is_not_asked_again_with_parts() -> None:
    template = (
        "{% for m in messages %}{% if m.content is string and m.content == '' %}{{ raise_exception('empty') }}"
        "{% endif %}{{ m.content if m.content is string else m.content[0].text }};{% endfor %}"
    )
    messages = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": ""}]
    with pytest.raises(RenderError, match="empty"):
        render(question(template, "") | {"template": template, "messages": messages}, 1000)


@pytest.mark.parametrize("name", ["reasoning_content", "thinking", "reasoning"])
def test_reasoning_has_the_names_that_transformers_gives_it(name: str) -> None:
    template = "{{ messages[0].thinking }}|{{ messages[0].reasoning_content }}|{{ messages[0] }}"
    messages = [{"role": "assistant", "content": "a", name: "R"}]
    expected = render_jinja_template([messages], chat_template=template)[0][0]
    found = render(question("", "") | {"template": template, "messages": messages}, 1000)
    assert "".join(text for _, text in found) == expected
    assert {origin for origin, text in found if "R" in text} == {Origin.DATA}


@pytest.mark.parametrize(
    "template",
    [
        "{% set c = '<' + messages[0].name %}{{ c.split('<') | join('x') }}{{ c.replace('a', 'bb') }}{{ c | title }}",
        "{% for x in messages[0].name %}{% if x == '<' %}{{ x }}{% endif %}{% endfor %}",
        "{{ messages[0].name.replace('', '-') }}{{ messages[0].name | e }}{{ ('ß' + messages[0].name) | title }}",
        "{{ messages[0].name % () }}{{ '%s{}' % messages[0].name }}{{ messages[0].name.format() }}",
    ],
)
def test_the_time_grows_with_the_text_and_no_faster(template: str) -> None:
    """Of the processor's time the least says what is done: what else runs takes caches away, so it is asked again."""

    def seconds(characters: int) -> float:
        text = "ab <cé/" * (characters // 7)
        return min(_timed(question(template, text)) for _ in range(3))

    seconds(1000)
    small, large = seconds(10_000), seconds(160_000)
    for _ in range(20):
        if large < 40 * small:  # 16 times as much; a square would be 256
            return
        small, large = min(small, seconds(10_000)), min(large, seconds(160_000))
    assert large < 40 * small


def _timed(asked: dict[str, Any]) -> float:
    start = time.process_time()
    render(asked, 1 << 24)
    return time.process_time() - start


def test_more_characters_than_there_are_private_ones_are_an_error_of_the_conversation() -> None:
    text = "".join(map(chr, range(0x20000, 0x50000)))
    with pytest.raises(RenderError, match="too many distinct characters"):
        render(question("{{ messages[0].name }}", text), 1 << 20)
