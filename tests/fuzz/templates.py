"""Chat templates put together by chance, some of them hostile."""

from __future__ import annotations

from random import Random

PARTS = (
    *("{{ m.content }}", "{{ m.content | trim }}", "{{ messages | tojson }}", "{{ bos_token }}", "{{ m }}", "text\n"),
    *("{{ m.content * 1000000 }}", "{{ m.content | indent(1000000) }}", "{{ 9 ** 9 ** 9 }}", "{{ 'a' * 99999999 }}"),
    *("{{ ''.__class__.__mro__ }}", "{{ m.__init__.__globals__ }}", "{{ '{0.__class__}'.format(m) }}", "{{ cycler }}"),
    *("{% set x = namespace(n=0) %}{% set x.n = x.n + 1 %}", "{{ raise_exception('no') }}", "{{ 1 // 0 }}"),
    *("{{ missing.field }}", "{{ '%s' % m.content }}", "{{ range(10**9) | list }}", "{{ range(10**9) | length }}"),
    *("{% macro f(x) %}{{ f(x) }}{% endmacro %}{{ f(1) }}", "{% include 'a' %}", "{% break %}", "{# ", "{{", "%}"),
    *("{{ lipsum(n=10000) }}", "{{ messages | map(attribute='content') | join }}", "{{ m.role == 'user' }}"),
    *("{{ strftime_now('%Y') }}", "\0", "\ud7ff\U0010ffff", "{{ '\\ud800' }}", "{{ m.content[::-1] }}", "{% raw %}"),
)  # fmt: skip
LOOPS = ("messages", "messages", "messages", "range(5)", "range(99999999)", "messages * 100000", "'abc'")


def template(random: Random) -> str:
    """One of them."""
    parts = "".join(random.choices(PARTS if random.random() < 0.5 else PARTS[:6], k=random.randint(1, 5)))
    text = f"{{% for m in {random.choice(LOOPS)} %}}{parts}{{% endfor %}}"
    depth = random.choice((0, 0, 0, 0, 1, 30, 500))
    text = "{% if true %}" * depth + text + "{% endif %}" * depth
    if random.random() < 0.1:
        place = random.randrange(len(text))
        text = text[:place] + random.choice("{}%#'\0|(") + text[place + random.randrange(3) :]
    return text
