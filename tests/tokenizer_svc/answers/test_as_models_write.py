"""What models of each family write is read as they meant it, in any cut, and their templates give the format away."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any

import pytest

from tandem.tokenizer.answers.events import Kind, joined
from tandem.tokenizer.answers.formats import FORMATS, format_of, opened_by
from tandem.tokenizer.answers.parser import AnswerParser
from tests.tokenizer_svc.answers.answers import Answer, cut, parse, said


@dataclass
class Row:
    """An output and what it says; `broken` is what of the content is flagged as a call that cannot be read."""

    text: str
    content: str = ""
    calls: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    reasoning: str = ""
    broken: str = ""


F, LOOK = ("f", {"n": 1}), ("look_up", {})
D = '<|"|>'
_LONG = f'{D}Rome "x" {{,}}{D},n:42,x:-2.5,b:true,o:{{k:[1,{D}a{D}],j:{{}}}},l:[],z:None'
_LONG_READ = {"s": 'Rome "x" {,}', "n": 42, "x": -2.5, "b": True, "o": {"k": [1, "a"], "j": {}}, "l": [], "z": None}
_GEMMA4_CUT = f"<|tool_call>call:f{{s:{D}Ro"
_GEMMA4_OOPS = "<|tool_call>call:f{n:}<tool_call|>"
_GEMMA4_F = "<|tool_call>call:f{n:1}<tool_call|>"

ROWS: dict[str, list[Row]] = {
    "gemma4": [
        Row(f"<|channel>thought\nhm, so<channel|>See.<|tool_call>call:f{{s:{_LONG}}}<tool_call|>",
            "See.", [("f", _LONG_READ)], "hm, so"),
        Row("<|channel>thought\n<channel|>Yes.", "Yes."),
        Row("<|channel>thought<channel|>Yes.", "Yes."),
        Row("<|channel>thought"),
        Row("<|channel>thoughtful, I am<channel|>Yes.", "Yes.", reasoning="thoughtful, I am"),
        Row(f"<|channel>thought\nhm<|tool_call>call:look_up{{}}<tool_call|>{_GEMMA4_F}Done.", "Done.", [LOOK, F], "hm"),
        Row(f"<|tool_call>call:f{{o:{{{D}a b{D}:null}},s:celsius}}<tool_call|>",
            "", [("f", {"o": {"a b": None}, "s": "celsius"})]),
        Row("<|tool_call>:f{n:1}", "", [F]),
        Row(f"{_GEMMA4_OOPS}{_GEMMA4_F}", _GEMMA4_OOPS, [F], broken=_GEMMA4_OOPS),
        Row(_GEMMA4_CUT, _GEMMA4_CUT, broken=_GEMMA4_CUT),
    ],
}  # fmt: skip


@pytest.mark.parametrize("name", ROWS)
def test_what_models_write_is_read_in_any_cut(name: str) -> None:
    for number, row in enumerate(ROWS[name]):
        events = parse(name, [row.text])
        assert said(events) == Answer(row.reasoning, row.content, row.calls), row.text
        assert "".join(event.text for event in events if event.kind is Kind.BROKEN) == row.broken, row.text
        chance = random.Random(number)
        for _ in range(20):
            assert parse(name, cut(row.text, chance)) == events, row.text


@pytest.mark.parametrize("name", ROWS)
def test_without_tools_no_call_is_read(name: str) -> None:
    for row in ROWS[name]:
        parser = AnswerParser(FORMATS[name], with_calls=False)
        answer = said(joined(parser.push(row.text, end=True)))
        assert not answer.calls and answer.reasoning.startswith(row.reasoning), row.text


# What stands in the templates of models, in short.
SIGNS: list[tuple[str, str]] = [
    ("gemma4", "{{ '<|turn>model\\n' }}{{ '<|channel>thought\\n<channel|>' }}{{ '<|tool_call>call:' }}"),
]


@pytest.mark.parametrize(("name", "template"), SIGNS)
def test_a_template_gives_the_format_away(name: str, template: str) -> None:
    found = format_of(template)
    assert found is not None and found.name == name


def test_the_label_of_reasoning_may_be_the_prompts_or_the_answers() -> None:
    form = FORMATS["gemma4"]
    assert opened_by(form, "<|turn>model\n<|channel>") == opened_by(form, "<|channel>thought\n") == "<|channel>"
    assert opened_by(form, "<|channel>thought\n<channel|>") is opened_by(form, "a thought\n") is None
    for text in ("thought\nhm<channel|>Yes.", "hm<channel|>Yes."):
        parser = AnswerParser(form, in_reasoning=True)
        assert said(joined(parser.push(text, end=True))) == Answer("hm", "Yes.")
