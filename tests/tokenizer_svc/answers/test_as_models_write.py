"""What models of each family write is read as they meant it, in any cut, and their templates give the format away."""

from __future__ import annotations

import json
import random
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tandem.tokenizer.answers.events import Kind, joined
from tandem.tokenizer.answers.formats import FORMATS, opened_by
from tandem.tokenizer.answers.parser import AnswerParser
from tandem.tokenizer.answers.signs import format_of
from tests.tokenizer_svc.answers.answers import Answer, cut, parse, said


@dataclass
class Row:
    """An output and what it says; `broken` is what of the content is flagged as a call that cannot be read."""

    text: str
    content: str = ""
    calls: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    reasoning: str = ""
    broken: str = ""


F: tuple[str, dict[str, Any]] = ("f", {"n": 1})
LOOK: tuple[str, dict[str, Any]] = ("look_up", {})
D = '<|"|>'
_LONG = f'{D}Rome "x" {{,}}{D},n:42,x:-2.5,b:true,o:{{k:[1,{D}a{D}],j:{{}}}},l:[],z:None'
_LONG_READ = {"s": 'Rome "x" {,}', "n": 42, "x": -2.5, "b": True, "o": {"k": [1, "a"], "j": {}}, "l": [], "z": None}
_GEMMA4_CUT = f"<|tool_call>call:f{{s:{D}Ro"
_GEMMA4_OOPS = "<|tool_call>call:f{n:}<tool_call|>"
_LFM = ("<|tool_call_start|>", "<|tool_call_end|>")
_JSON = '{"name": "f", "arguments": {"n": 1, "o": {"k": "}"}}}, {"name": "look_up", "arguments": {}}'
JSON_CALLS: list[tuple[str, dict[str, Any]]] = [("f", {"n": 1, "o": {"k": "}"}}), LOOK]
_F = '{"name": "f", "arguments": {"n": 1}}'
_APRIEL = "Here are my reasoning steps:\nhm\n[BEGIN FINAL RESPONSE]\n"
_HY3_CUT = "<tool_calls>\n<tool_call>f<tool_sep>\n<arg_key>n</arg_key>\n<arg_value>1"
_M3 = "]<]minimax[>["
_M3_CUT = f'{_M3}<tool_call>{_M3}<invoke name="f">{_M3}<n>1{_M3}</m>'
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
    "lfm2": [
        Row(f"<think>hm</think>See. {_LFM[0]}[f(s='Rome', n=42, x=-2.5, b=True, o={{'k': [1, 'a']}}, l=[None])]"
            f"{_LFM[1]}Done.", "See.Done.",
            [("f", {"s": "Rome", "n": 42, "x": -2.5, "b": True, "o": {"k": [1, "a"]}, "l": [None]})], "hm"),
        Row(f"{_LFM[0]}[f(n=1), look_up()]{_LFM[1]}", "", [F, LOOK]),
        Row(f"{_LFM[0]}[f(s='it's Bob's', t='a', n=07)]{_LFM[1]}", "", [("f", {"s": "it's Bob's", "t": "a", "n": 7})]),
        Row(f'{_LFM[0]}[f(s="a\nb", from={{"k": true}})]{_LFM[1]}', "", [("f", {"s": "a\nb", "from": {"k": True}})]),
        Row(f'{_LFM[0]}[{_JSON}]{_LFM[1]}', "", JSON_CALLS),
        Row(f"{_LFM[0]}[f(n=1)]", "", [F]),
        Row(f"{_LFM[0]}[f(n=1)]{_LFM[1]}a{_LFM[1]}", "a", [F]),
        Row(f"{_LFM[0]}[f(n=)]{_LFM[1]}", f"{_LFM[0]}[f(n=)]{_LFM[1]}", broken=f"{_LFM[0]}[f(n=)]{_LFM[1]}"),
    ],
    "olmo3": [
        Row("<think>hm</think><function_calls>f(s='Rome', b=true, o=null)\nlook_up()</function_calls>",
            "", [("f", {"s": "Rome", "b": True, "o": None}), LOOK], "hm"),
        Row("See. <function_calls>\nf(n=1)\n</function_calls>Done.", "See.Done.", [F]),
        Row('<function_calls>f(o={"k": [1, null]}, s="a\\nb")</function_calls>',
            "", [("f", {"o": {"k": [1, None]}, "s": "a\nb"})]),
        Row("<function_calls>f(n=)</function_calls>", "<function_calls>f(n=)</function_calls>",
            broken="<function_calls>f(n=)</function_calls>"),
    ],
    "jamba": [
        Row(f" See.<tool_calls>[\n    {_JSON}\n]</tool_calls>", " See.", JSON_CALLS),
        Row(f"<think>hm</think><tool_calls>\n{_F}\n{_F}\n</tool_calls>", "", [F, F], "hm"),  # MiniMax M1
    ],
    "apriel": [
        Row(f"{_APRIEL}See.\n<tool_calls>[{_JSON}]</tool_calls>", "See.", JSON_CALLS, "hm"),
        Row(f"{_APRIEL}Yes.\n[END FINAL RESPONSE]", "Yes.", reasoning="hm"),
    ],
    "nemotron": [Row(f"<think>\nhm\n</think>\n\n<TOOLCALL>[{_JSON}]</TOOLCALL>", "", JSON_CALLS, "hm")],
    "hunyuan": [
        Row(f"<think>\nhm\n</think>\n<answer>\nSee.\n<tool_calls>[{_JSON}]</tool_calls>\n</answer>",
            "See.", JSON_CALLS, "hm"),
        Row("<think>\n\n</think>\n<answer>\nYes.\n</answer>", "Yes."),
        Row("<tool_calls>[oops]</tool_calls>", "<tool_calls>[oops]</tool_calls>",
            broken="<tool_calls>[oops]</tool_calls>"),
    ],
    "hunyuan3": [
        Row("<think>hm</think>See.<tool_calls>\n<tool_call>f<tool_sep>\n<arg_key>s</arg_key>\n<arg_value>Rome\n"
            "</arg_value>\n<arg_key>n</arg_key>\n<arg_value>1</arg_value>\n</tool_call>\n<tool_call>look_up<tool_sep>\n"
            "</tool_call>\n</tool_calls>", "See.", [("f", {"s": "Rome\n", "n": 1}), LOOK], "hm"),
        Row("<tool_calls><tool_call>look_up<tool_sep></tool_call></tool_calls>Done.", "Done.", [LOOK]),
        Row("<think:opensource>hm</think:opensource><tool_calls:opensource><tool_call:opensource>f<arg_key:opensource>n"
            "</arg_key:opensource><arg_value:opensource>1</arg_value:opensource></tool_call:opensource>"
            "</tool_calls:opensource>", "", [F], "hm"),
        Row(_HY3_CUT, _HY3_CUT, broken=_HY3_CUT),
    ],
    "ernie": [
        Row(f"<think>\nhm\n</think>\n\n\n<tool_call>\n{_F}\n</tool_call>\n", "", [F], "hm"),
        Row("<think>\nhm\n</think>\n\n<response>\nYes.\n</response>\n", "Yes.", reasoning="hm"),
    ],
    "longcat": [
        Row(f"<longcat_think>hm</longcat_think>See.\n<longcat_tool_call>\n{_F}\n</longcat_tool_call>\n"
            '<longcat_tool_call>\n{"name": "look_up", "arguments": {}}\n</longcat_tool_call>', "See.", [F, LOOK], "hm"),
        Row("<longcat_tool_call>f\n<longcat_arg_key>n</longcat_arg_key>\n<longcat_arg_value>1</longcat_arg_value>\n"
            "</longcat_tool_call>", "", [F]),
    ],
    "apertus": [
        Row('<|inner_prefix|>hm<|inner_suffix|>See. <|tools_prefix|>[{"f": {"n": 1, "o": {"k": [1]}}}, '
            '{"look_up": {}}]<|tools_suffix|>Done.', "See.Done.", [("f", {"n": 1, "o": {"k": [1]}}), LOOK], "hm"),
        Row('<|inner_prefix|>hm<|tools_prefix|>[{"f": {"n": 1}}]', "", [F], "hm"),
        Row('<|tools_prefix|>[{"f": "{\\"n\\": 1}"}]<|tools_suffix|><|inner_suffix|>Yes.', "Yes.", [F]),
        Row('<|tools_prefix|>{"look_up": {}}<|tools_suffix|>', "", [LOOK]),
        Row("<|tools_prefix|>[]<|tools_suffix|>", "<|tools_prefix|>[]<|tools_suffix|>",
            broken="<|tools_prefix|>[]<|tools_suffix|>"),
    ],
    "dsml": [
        Row(f"<think>hm</think>See.\n\n<｜DSML｜{group}>\n"
            '<｜DSML｜invoke name="f">\n<｜DSML｜parameter name="s" string="true">5</｜DSML｜parameter>\n'
            '<｜DSML｜parameter name="o" string="false">{"k": [1]}</｜DSML｜parameter>\n'
            '<｜DSML｜parameter name="n">5</｜DSML｜parameter>\n</｜DSML｜invoke>\n'
            f'<｜DSML｜invoke name="look_up">\n</｜DSML｜invoke>\n</｜DSML｜{group}>',
            "See.", [("f", {"s": "5", "o": {"k": [1]}, "n": 5}), LOOK], "hm")
        for group in ("function_calls", "tool_calls")
    ],
    "minimax-m3": [
        Row(f'<mm:think>hm</mm:think>{_M3}<tool_call>\n{_M3}<invoke name="f">\n{_M3}<n>1{_M3}</n>\n{_M3}<l>{_M3}<item>'
            f"{_M3}<k>a{_M3}</k>{_M3}</item>{_M3}</l>\n{_M3}</invoke>\n{_M3}<invoke name=look_up>{_M3}</invoke>\n"
            f"{_M3}</tool_call>", "", [("f", {"n": 1, "l": [{"k": "a"}]}), LOOK], "hm"),
        Row(_M3_CUT, _M3_CUT, broken=_M3_CUT),
    ],
    # Newer models of families that are known.
    "glm": [
        Row("<think>hm</think><tool_call>f<arg_key>n</arg_key><arg_value>1</arg_value></tool_call>"
            "<tool_call>look_up</tool_call>", "", [F, LOOK], "hm"),
    ],
    "qwen3-coder": [
        Row("<think>\nhm\n</think>\n\n<tool_call>\n<function=f>\n<parameter=n>\n1\n</parameter>\n</function>\n"
            "</tool_call>\n<tool_call><function=f><parameter=n>1</parameter></function></tool_call>", "", [F, F], "hm"),
    ],
    "kimi": [
        Row("<think>hm<|tool_calls_section_begin|><|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>"
            '{"n": 1}<|tool_call_end|><|tool_calls_section_end|>', "", [F], "hm"),
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
    ("lfm2", "{{ '<|im_start|>' }}List of tools: <|tool_list_start|>[{{ tools }}]<|tool_list_end|>"),
    ("lfm2", "{{ '<|im_start|>' }}List of tools: [{{ tools }}]{{ message.content.split('</think>')[-1] }}"),
    ("lfm2", "{{ '<|tool_call_start|>[' }}{{ '<think>' + message.thinking + '</think>' }}"),
    ("olmo3", "{{ '<function_calls>' + message['function_calls'] + '</function_calls>' }}{{ '<think>' }}"),
    ("jamba", "{{ '<tool_calls>[' }}{{ ']</tool_calls>' }}"),
    ("apriel", "{{ 'Here are my reasoning steps:' }}[BEGIN FINAL RESPONSE]{{ '<tool_calls>[' }}"),
    ("nemotron", "<AVAILABLE_TOOLS>{{ tools }}</AVAILABLE_TOOLS><TOOLCALL>[]</TOOLCALL>{{ '<think>' }}"),
    ("hunyuan", "{{ '<think>\\n\\n</think>\\n<answer>\\n' }}<tool_calls>[]</tool_calls>"),
    ("hunyuan", "<｜hy_Assistant｜>{{ content.split('<answer>')[-1].split('</answer>')[0] }}"),
    ("hunyuan3", "<tool_calls>\n<tool_call>{{ name }}<tool_sep>\n<arg_key>{{ key }}</arg_key>"),
    ("hunyuan3", "<tool_calls:opensource><tool_call:opensource>{{ name }}<arg_key:opensource>"),
    ("ernie", "{{ '<response>\\n' + content + '\\n</response>' }}{{ '</think>' }}<tool_call>"),
    ("longcat", "<longcat_tool_call>{{ '<longcat_think>' }}"),
    ("apertus", "{% set inner_token = '<|inner_prefix|>' %}{{ '<|tools_prefix|>[' }}"),
    ("dsml", "{% set dsml_token = '｜DSML｜' %}<{{ dsml_token }}function_calls>{{ '<think>' }}"),
    ("minimax-m3", "{% set mark = ']<]minimax[>[' %}{{ mark }}<tool_call>"),
    # Newer models of families that are known.
    ("glm", "[gMASK]<sop><tool_call>{{ name }}<arg_key>{{ key }}</arg_key><arg_value>{{ '<think>' }}"),
    ("qwen3-coder", "<tool_call>\n<function=f>\n<parameter=p>\nv\n</parameter>{{ '<think>' }}"),
    ("kimi", "<|tool_calls_section_begin|><|tool_call_begin|>{{ id }}<|tool_call_argument_begin|><think></think>"),
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


# The format of each real template that gives one away.
REAL = {
    "CohereForAI-c4ai-command-r7b-12-2024-tool_use": "cohere",
    "NousResearch-Hermes-2-Pro-Llama-3-8B-tool_use": "hermes",
    "NousResearch-Hermes-3-Llama-3.1-8B-tool_use": "hermes",
    "Qwen-Qwen2.5-7B-Instruct": "hermes",
    "deepseek-ai-DeepSeek-R1-Distill-Llama-8B": "deepseek",
    "deepseek-ai-DeepSeek-R1-Distill-Qwen-32B": "deepseek",
    "fireworks-ai-llama-3-firefunction-v2": "phi4",
    "llama-cpp-deepseek-r1": "deepseek",
    "meetkai-functionary-medium-v3.1": "llama3",
    "meta-llama-Llama-3.1-8B-Instruct": "llama3",
    "meta-llama-Llama-3.2-3B-Instruct": "llama3",
    "meta-llama-Llama-3.3-70B-Instruct": "llama3",
    "mistralai-Mistral-Nemo-Instruct-2407": "mistral",
    "ibm-granite/granite-3.0-8b-instruct": "granite",
    "Mistral-Large-Instruct-2407 (mistralai 'v3' template; modified to have system prompt at start)": "mistral",
    "Mistral-Nemo-Instruct-2407 (mistralai 'v3-tekken' template; modified to have system prompt at start)": "mistral",
}


def test_real_templates_keep_their_formats(shared_data: Path) -> None:
    templates = {file.stem: file.read_text() for file in (shared_data / "chat/templates").glob("*.jinja")}
    cases = json.loads((shared_data / "chat/chat_template_cases.json").read_text())["cases"]
    templates |= {case["name"]: case["template_str"] for case in cases}
    found = {name: form.name for name, text in templates.items() if (form := format_of(text)) is not None}
    assert len(templates) > 40 and found == REAL
