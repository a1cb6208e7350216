"""Conversations render to the bytes that transformers' `apply_chat_template` gives, or are refused where it raises."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer as LibraryTokenizer
from tokenizers.models import BPE
from transformers import PreTrainedTokenizerFast

from tandem.client import ChatMessage, Conversation
from tandem.client.conversations import chat_request
from tandem.tokenizer.chat.formats import LLAMA2, LLAMA3
from tandem.tokenizer.chat.json_text import read_question
from tandem.tokenizer.chat.render_error import RenderError
from tandem.tokenizer.chat.template import render
from tandem.tokenizer.formats import load_tokenizer
from tandem.tokenizer.rpc.chat_validation import chat_question
from tandem.tokenizer.settings import TokenizerSettings
from tandem.tokenizer.tokenizer import Tokenizer
from tandem.tokenizer.v1 import tokenizer_pb2 as pb

# Nothing here is sorted, ASCII or small: order, escapes and numbers all show.
ARGUMENTS = {
    "zoo": {"y": [1, 2.5, None, True, {"deep": [[], {}]}], "a": 'é "quoted" <b>&\'</b> \\ \u2028 👩‍🚀'},
    "big": 2**53 + 1,
    "huge": -(10**30),
    "float": 0.1,
    "tiny": 5e-324,
    "whole": 3.0,
    "naïve": "x",
    "b": 1e22,
    "a": -0.0,
}
TOOLS: list[dict[str, Any]] = [
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "description": 'The weather, "now" <or> later & \u00fcberall',
            "parameters": {
                "type": "object",
                "required": ["town", "days"],
                "properties": {
                    "town": {"type": "string", "description": "Which?", "enum": ["Zürich", "Aachen"]},
                    "days": {"type": "integer", "maximum": 2**53 + 1, "default": 1.5},
                },
            },
            "return": {"type": "object", "description": "what it is"},
        },
    },
    {
        "type": "function",
        "function": {"name": "a", "description": "", "parameters": {"type": "object", "properties": {}}},
    },
]
CALL = {"id": "call12345", "type": "function", "function": {"name": "get_weather", "arguments": ARGUMENTS}}
CONVERSATIONS: dict[str, list[dict[str, Any]]] = {
    "one question": [{"role": "user", "content": "Hi  \n"}],
    "turns": [
        {"role": "system", "content": "Be brief. "},
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": "  Hello <|eot_id|> "},
        {"role": "user", "content": "Wie geht's? 👩‍🚀"},
    ],
    "tools": [
        {"role": "system", "content": "S"},
        {"role": "user", "content": "Weather?"},
        {"role": "assistant", "tool_calls": [CALL]},
        {"role": "tool", "content": '{"b": 1, "a": 2}', "name": "get_weather", "tool_call_id": "call12345"},
        {"role": "assistant", "content": "Fine."},
        {"role": "user", "content": "Thanks"},
    ],
    "an empty answer": [
        {"role": "user", "content": ""},
        {"role": "assistant", "content": "", "tool_calls": [CALL]},
        {"role": "tool", "content": "1", "tool_call_id": "call12345"},
    ],
}
ENVIRONMENT = {
    "tojson": "{{ x | tojson }}",
    "tojson of a text": "{{ messages[0].content | tojson }}{{ messages[0].content | tojson(ensure_ascii=True) }}",
    "tojson in ASCII": "{{ x | tojson(ensure_ascii=True) }}",
    "tojson by place": "{{ x | tojson(True, 3) }}",
    "tojson with an indent": "{{ x | tojson(indent=4) }}{{ x | tojson(indent=0) }}{{ x | tojson(indent='--') }}",
    "tojson with separators": "{{ x | tojson(separators=(',', ':')) }}{{ x | tojson(separators=(';', ' '), indent=2) }}"
    "{{ [x.zoo, 1] | tojson(separators=['|', '']) }}",
    "tojson sorted": "{{ x | tojson(sort_keys=true) }}{{ messages | tojson(sort_keys=true, indent=1) }}",
    "tojson of all": "{{ messages | tojson }}{{ tools | tojson }}{{ [] | tojson }}{{ none | tojson }}",
    "tojson with an unknown option": "{{ x | tojson(separator=',') }}",
    "tojson with wrong separators": "{{ x | tojson(separators=3) }}",
    "tojson of nothing": "{{ missing | tojson }}",
    "tojson of what JSON has not": "{{ (messages | map(attribute='role')) | tojson }}",
    "tojson of mixed keys, sorted": "{{ {1: 2, 'a': 3} | tojson(sort_keys=true) }}",
    "generation": "A\n  {% generation %}\n{{ messages[0].content }}  {% endgeneration %}\nB{%- generation -%} c "
    "{%- endgeneration -%} d",
    "generation has a scope": "{% set a = 1 %}{% generation %}{% set a = 2 %}{{ a }}{% endgeneration %}{{ a }}",
    "generation in a loop": "{% for m in messages %}{% generation %}{{ m.role }}{{ loop.index }}{% endgeneration %}"
    "{% endfor %}",
    "generation without an end": "{% generation %}x",
    "loop controls": "{% for i in range(9) %}{% if i == 2 %}{% continue %}{% endif %}{% if i == 5 %}{% break %}"
    "{% endif %}{{ i }}{% endfor %}",
    "blocks": "{% for m in messages %}\n    {% if true %}\n  x\n    {% endif %}\n{% endfor %}\n",
    "strftime_now": "{{ strftime_now('%Y') }}{{ strftime_now('%%|%z|%Z|') }}{{ strftime_now(format='%G') }}",
    "raise_exception": "{{ raise_exception('no') }}",
    "dict": "{{ dict(a=1) | tojson }}{{ dict([('b', 2)], c=3) | tojson }}{{ dict.fromkeys(['x', 'y'], 1) | tojson }}",
    "dict is no class": "{{ dict.mro() }}",
    "namespace": "{% set n = namespace(a=1, self=2) %}{% set n.b = 3 %}{{ n.a }}{{ n.b }}{{ n.self }}",
    "namespace with a private name": "{% set n = namespace(_a=1) %}{{ n }}",
    "namespace that gets a private name": "{% set n = namespace() %}{% set n._a = 1 %}x",
    "safe text": "{{ '<'|safe + x.zoo.a + '>' }}{{ '%s'|safe|format(x.zoo.a) }}{{ x.zoo.a|safe }}"
    "{{ (x.zoo.a|safe) + '<' }}{{ x.zoo.a is escaped }}{{ (x.zoo.a|safe) is escaped }}{{ x.zoo.a|e }}"
    "{{ '&'|safe ~ x.zoo.a }}{{ x|tojson|safe }}",
    "documents": "{{ documents is defined }}{{ documents is none }}",
    "keys of a message": "{% for m in messages %}{{ m.keys() | list }}{% endfor %}",
    "content that is not there": "{% for m in messages %}{{ m.content is defined }}{{ m.content }}{% endfor %}",
    "numbers": "{{ x.big + 1 }} {{ x.float }} {{ x.whole }} {{ x.huge }} {{ x.b }} {{ x.a }} {{ x.tiny }} {{ x.b*2 }}",
    "order": "{% for key, value in x.items() %}{{ key }}={{ value }};{% endfor %}{{ x | dictsort | length }}",
    "items and length": "{{ x | items | list | length }}{{ x | length }}{{ x.zoo | string | length }}",
    "a list as it is": "{{ x.zoo.y }}{{ messages }}",
    "tests": "{{ x is mapping }}{{ x.zoo.y is sequence }}{{ x.zoo.a is string }}{{ x.big is integer }}"
    "{{ x.float is float }}{{ x.zoo.y is iterable }}{{ messages[0].content is string }}"
    "{{ tools is iterable and tools is not mapping }}",
    "an argument over a special token": "{{ eos_token }}",
    "changing a list": "{{ messages.append(1) }}",
    "too long a range": "{{ range(1000000) | length }}",
}  # fmt: skip


def templates(shared_data: Path) -> dict[str, str]:
    cases = json.loads((shared_data / "chat/chat_template_cases.json").read_text())["cases"]
    files = sorted((shared_data / "chat/templates").glob("*.jinja"))
    return {
        **{case["name"]: case["template_str"] for case in cases},
        **{file.name: file.read_text() for file in files},
        "llama2": LLAMA2,
        "llama3": LLAMA3,
    }


@pytest.fixture(scope="module")
def tokenizer(shared_data: Path) -> Tokenizer:
    return load_tokenizer(shared_data / "formats/llama2")


def ours(tokenizer: Tokenizer, template: str, messages: list[dict[str, Any]], **given: Any) -> str | None:
    """The text as a caller of the SDK gets it, without the network between; None where it is refused."""
    request = chat_request(Conversation(messages, chat_template=template, **given), "")
    received = pb.EncodeChatRequest.FromString(request.SerializeToString())
    question = chat_question(received, tokenizer, None, TokenizerSettings())
    try:
        return "".join(text for _, text in render(read_question(json.loads(json.dumps(question))), 1 << 20))
    except RenderError:
        return None


def theirs(template: str, messages: list[dict[str, Any]], **given: Any) -> str | None:
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=LibraryTokenizer(BPE()), bos_token="<s>", eos_token="</s>", unk_token="<unk>"
    )
    tokenizer.add_special_tokens({"pad_token": "", "sep_token": ""})
    arguments = given.pop("template_arguments", {})
    given["tools"] = given.get("tools") or None
    try:
        text = tokenizer.apply_chat_template(messages, chat_template=template, tokenize=False, **given, **arguments)
    except Exception:
        return None
    assert isinstance(text, str)
    return text


@pytest.mark.parametrize("conversation", CONVERSATIONS)
def test_templates_of_models_render_as_transformers_does(
    shared_data: Path, tokenizer: Tokenizer, conversation: str
) -> None:
    messages = CONVERSATIONS[conversation]
    rendered = 0
    for name, template in templates(shared_data).items():
        for tools in ([], TOOLS):
            for prompt in (True, False):
                given: dict[str, Any] = {"tools": tools, "add_generation_prompt": prompt}
                expected = theirs(template, messages, **given)
                assert ours(tokenizer, template, messages, **given) == expected, name
                rendered += expected is not None
    assert rendered > 50


BEGINNINGS = ["Sure:", ' {"a": 1,\n', "", "Well, \t ", "<think>\nAh </think> So", "Hi", "\n\nx|", "👩‍🚀 <|eot_id|>"]


@pytest.mark.parametrize("beginning", BEGINNINGS)
def test_a_prompt_ends_within_the_last_message_where_transformers_ends_it(
    shared_data: Path, tokenizer: Tokenizer, beginning: str
) -> None:
    messages = [*CONVERSATIONS["turns"], {"role": "assistant", "content": beginning}]
    compared = 0
    for name, template in templates(shared_data).items():
        expected = theirs(template, messages, add_generation_prompt=False, continue_final_message=True)
        found = ours(tokenizer, template, messages, continue_final_message=True)
        if expected is not None:
            assert found == expected, name
            compared += 1
        elif found is not None:  # of a template that takes the content apart
            assert "</think>" in beginning, name
    assert compared > 20


@pytest.mark.parametrize("name", ENVIRONMENT)
def test_what_templates_may_use_is_what_transformers_gives_them(tokenizer: Tokenizer, name: str) -> None:
    given = {
        "tools": TOOLS, "add_generation_prompt": True, "template_arguments": {"x": ARGUMENTS, "eos_token": "<eos>"},
    }  # fmt: skip
    expected = theirs(ENVIRONMENT[name], CONVERSATIONS["tools"], **given)
    assert ours(tokenizer, ENVIRONMENT[name], CONVERSATIONS["tools"], **given) == expected
    refused = ("unknown", "wrong", "nothing", "has not", "mixed", "without", "raise", "no class", "private", "changing")
    assert (expected is None) == any(word in name for word in (*refused, "too long")), expected


PARTS = {
    "by a loop": "{% for m in messages %}{{ m.role }}:{% for part in m.content %}{% if part['type'] == 'text' %}"
    "{{ part['text'] }}{% else %}<image>{% endif %}{% endfor %};{% endfor %}",
    "by a filter": "{% for m in messages %}{{ m.role }}:{% for part in m.content | selectattr('type', 'equalto', "
    "'text') %}{{ part.text }}{% endfor %};{% endfor %}",
    "the first": "{% for m in messages %}{{ m.role }}:{{ m.content[0].text + '' }};{% endfor %}",
    "either": "{% for m in messages %}{{ m.role }}:{% if m.content is string %}{{ m.content }}{% else %}"
    "{{ m.content[0]['text'] }}{% endif %};{% endfor %}",
}  # fmt: skip


@pytest.mark.parametrize("name", PARTS)
def test_a_template_that_looks_for_parts_is_given_them(tokenizer: Tokenizer, name: str) -> None:
    messages = CONVERSATIONS["turns"]
    in_parts = [{**each, "content": [{"type": "text", "text": each["content"]}]} for each in messages]
    expected = theirs(PARTS[name], in_parts)
    assert expected is not None and "Be brief." in expected
    assert ours(tokenizer, PARTS[name], messages) == expected
    assert ours(tokenizer, PARTS[name], [{"role": "user", "content": " "}]) is not None or name == "the first"


def test_a_template_that_shows_no_content_is_rendered_with_contents_as_they_are(tokenizer: Tokenizer) -> None:
    assert ours(tokenizer, "{{ messages[0].content is string }}", CONVERSATIONS["turns"]) == "True"
    assert ours(tokenizer, "{{ raise_exception(messages[0].content) }}", CONVERSATIONS["turns"]) is None


def test_both_ways_to_write_a_message_render_alike(tokenizer: Tokenizer) -> None:
    mapping = {"role": "assistant", "content": "a", "name": "b", "tool_call_id": "c"}
    message = ChatMessage(**mapping)
    request = chat_request(Conversation([message]), "")
    assert request == chat_request(Conversation([dict(reversed(mapping.items()))]), "")
