"""What a call's grammar allows, the format's parser reads as a call; and what models of the format write is allowed."""

from __future__ import annotations

import json
import math
import random
from typing import Any

import jsonschema
import pytest

pytest.importorskip("llguidance")

from llguidance import LLMatcher

from tandem.tokenizer.answers.call_grammar import Content, Tool, call_grammar
from tandem.tokenizer.answers.call_values import NotWrittenError
from tandem.tokenizer.answers.events import Kind, joined
from tandem.tokenizer.answers.formats import FORMATS
from tandem.tokenizer.answers.parser import AnswerParser
from tandem.tokenizer.answers.writer import types_of
from tandem.worker.engine.guides.fork_server import build_tokenizer
from tandem.worker.engine.guides.frames import Words
from tests.tokenizer_svc.answers.answers import WRITERS, Answer, said

MARKERS = sorted(
    {
        marker
        for form in FORMATS.values()
        for marker in form.markers()
        if marker.isascii() is False or "|" in marker or "[" in marker
    }
)
CONTROL = {marker: 257 + place for place, marker in enumerate(MARKERS)}
END = 256
PIECES = [bytes([value]) for value in range(256)] + [b"<end>", *(marker.encode() for marker in MARKERS)]
TOKENIZER = build_tokenizer(Words(len(PIECES), [END], PIECES, [END, *CONTROL.values()]))

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "maxLength": 5},
        "unit": {"enum": ["C", "F"]},
        "days": {"type": "integer", "minimum": 0, "maximum": 9},
        "exact": {"type": "boolean"},
        "at": {"type": "array", "items": {"type": "integer", "minimum": 0, "maximum": 9}, "maxItems": 2},
    },
    "required": ["city", "unit", "at"],
    "additionalProperties": False,
}  # fmt: skip
GIVEN: list[dict[str, Any]] = [
    {"type": "function", "function": {"name": "look_up", "parameters": SCHEMA}},
    {
        "type": "function",
        "function": {"name": "f", "parameters": {"type": "object", "properties": {}, "additionalProperties": False}},
    },
]
TOOLS = [Tool.of(tool, "tools[0]") for tool in GIVEN]
ARGUMENTS: dict[str, Any] = {"city": "Rome", "unit": "C", "days": 3, "exact": True, "at": [1, 2]}
# How a template shows what it writes, where several are written by models of one format.
TEMPLATES = {
    "deepseek": "```json",
    "granite 4": "<tool_call>",
    "mistral list": "[TOOL_CALLS] [",
    "gemma": "<start_function_call>",
    "gemma4": "<|channel>",
    "glm 4.7": "</arg_key><arg_value>",
    "hunyuan3": "<tool_sep>",
    "hunyuan3 suffix": "<tool_sep:opensource>",
    "hunyuan3 4": "<tool_call:opensource>",
    "longcat pairs": "<longcat_arg_key>",
    "dsml": "function_calls",
}
WRITTEN = [
    "json",
    "hermes",
    "qwen3-coder",
    "llama3",
    "mistral",
    "mistral list",
    "deepseek",
    "deepseek 3.1",
    "minimax",
    "phi4",
    "granite",
    "granite 4",
    "gemma",
    "gemma4",
    "glm 4.7",
    "nemotron",
    "olmo3",
    "hunyuan3",
    "hunyuan3 suffix",
    "hunyuan3 4",
    "ernie",
    "longcat",
    "longcat pairs",
    "apertus",
    "dsml",
    "dsml 4",
    "minimax-m3 flat",
    "cohere",
    "kimi",
    "seed",
    "harmony",
]
FORCED = sorted({variant.split()[0] for variant in WRITERS} - {"think"})


def ids_of(text: str) -> list[int]:
    ids: list[int] = []
    while text:
        marker = max((each for each in MARKERS if text.startswith(each)), key=len, default="")
        ids += [CONTROL[marker]] if marker else list(text[0].encode())
        text = text[len(marker) or 1 :]
    return ids


def grammar(variant: str, **options: Any) -> str:
    control = {k: v for k, v in CONTROL.items() if variant != "mistral list" or k != "[ARGS]"}
    form = FORMATS[variant.split()[0]]
    asked = {"required": True, "template": TEMPLATES.get(variant, ""), **options}
    return call_grammar(form, TOOLS, control=control, **asked)


def matcher(lark: str) -> LLMatcher:
    found = LLMatcher(TOKENIZER, LLMatcher.grammar_from_lark(lark), log_level=0)
    assert not found.is_error(), (found.get_error(), lark)
    return found


def allowed(lark: str, text: str) -> bool:
    made = matcher(lark)
    ids = ids_of(text)
    return made.try_consume_tokens(ids) == len(ids) and made.is_accepting()


def walk(lark: str, chance: random.Random) -> str:
    """A text that the grammar allows: any next token, or its end where it may end."""
    made = matcher(lark)
    out: list[int] = []
    while not made.is_stopped():
        mask = made.compute_logit_bias()
        may = [token for token, bias in enumerate(mask) if bias and token != END]
        if not may or (mask[END] and chance.random() < 0.5):
            break
        plain = [token for token in may if token > END or 32 <= token < 127] or may
        closing = [token for token in may if token > END or chr(token) in '"]})\n<']
        token = chance.choice(closing if closing and (len(out) > 300 or chance.random() < 0.2) else plain)
        assert made.consume_token(token), (token, out)
        out.append(token)
        assert len(out) < 3000, bytes(each for each in out if each < END)
    return b"".join(PIECES[token] for token in out).decode()


def read(form: str, text: str) -> tuple[Answer, bool]:
    parser = AnswerParser(FORMATS[form], tools=types_of(GIVEN))
    events = joined(parser.push(text, end=True))
    return said(events), any(event.kind is Kind.BROKEN for event in events)


@pytest.mark.parametrize("form", FORCED)
@pytest.mark.parametrize("seed", [1, 2])
def test_what_is_allowed_is_read_as_calls_that_the_schemas_allow(form: str, seed: int) -> None:
    text = walk(grammar(form, reasons=False), random.Random(seed))
    answer, broken = read(form, text)
    assert answer.calls and not broken and not answer.content and not answer.reasoning, text
    for name, arguments in answer.calls:
        jsonschema.validate(arguments, {tool.name: tool.schema for tool in TOOLS}[name])


@pytest.mark.parametrize("variant", WRITTEN)
def test_what_models_write_is_allowed(variant: str) -> None:
    calls = [("look_up", ARGUMENTS), ("f", {})]
    alone = WRITERS[variant](Answer("", "", calls[:1])).strip()
    lark = grammar(variant)
    assert allowed(lark, alone), (alone, lark)
    wrong = WRITERS[variant](Answer("", "", [("look_up", {**ARGUMENTS, "unit": "K"})])).strip()
    other = WRITERS[variant](Answer("", "", [("g", {})])).strip()
    assert not allowed(lark, wrong) and not allowed(lark, other) and not allowed(lark, "No.")
    free = grammar(variant, required=False)
    assert allowed(free, alone) and not allowed(free, wrong)


RECORD = {
    "type": "object",
    "properties": {"answer": {"type": "string", "maxLength": 9}, "sure": {"type": "boolean"}},
    "required": ["answer", "sure"],
    "additionalProperties": False,
}


@pytest.mark.parametrize("form", sorted({*FORCED, "harmony"}))
@pytest.mark.parametrize("seed", range(4))
def test_beside_a_schema_an_answer_is_calls_or_json_that_the_schema_allows(form: str, seed: int) -> None:
    chance = random.Random(seed)
    lark = grammar(form, required=False, reasons=form == "harmony", content=Content(RECORD, "schema"))
    answer, broken = read(form, walk(lark, chance))
    assert not broken
    assert bool(answer.calls) != bool(answer.content)
    if answer.content:
        jsonschema.validate(json.loads(answer.content), RECORD)
    for name, arguments in answer.calls:
        jsonschema.validate(arguments, {tool.name: tool.schema for tool in TOOLS}[name])
    # Both are possible, however the walk went.
    record = '{"answer": "yes", "sure": true}'
    said = f"<|channel|>final<|message|>{record}" if form == "harmony" else record
    assert allowed(lark, said) and read(form, said) == (Answer("", record), False)
    assert not allowed(lark, said.replace("sure", "safe")) and not allowed(lark, f"Yes: {record}")
    call = walk(grammar(form, reasons=False, several=form != "llama3"), chance)  # of which this mode has one
    assert allowed(lark, call) and not allowed(lark, call + record) and not allowed(lark, record + call)


def test_references_of_tools_and_of_the_schema_lead_where_they_led() -> None:
    city = {"$defs": {"c": {"enum": ["Rome", "Oslo"]}}, "properties": {"to": {"$ref": "#/$defs/c"}}, "required": ["to"]}
    tree = {
        "$defs": {"c": {"type": "object", "properties": {"of": {"$ref": "#/$defs/c"}}, "additionalProperties": False}},
        "$ref": "#/$defs/c",
    }
    tools = [Tool.of({"name": "go", "parameters": {"type": "object", **city}}, "tools[0]")]
    lark = call_grammar(FORMATS["llama3"], tools, control={}, required=False, content=Content(tree, "schema"))
    for text, may in (
        ('{"name": "go", "parameters": {"to": "Oslo"}}', True),
        ('{"name": "go", "parameters": {"to": "Bonn"}}', False),
        ('{"of": {"of": {}}}', True),
        ('{"of": {"on": {}}}', False),
        ("{}", True),
    ):
        assert allowed(lark, text) is may, text


def test_reasoning_may_come_before_and_must_where_the_prompt_has_begun_it() -> None:
    call = WRITERS["hermes"](Answer("", "", [("f", {})])).strip()
    for thought, opened in (("<think>hm</think>\n\n", None), ("hm</think>\n\n", "<think>")):
        lark = grammar("hermes", opened=opened, template="</think>")
        assert allowed(lark, thought + call) and allowed(lark, call) is (opened is None)
        assert not allowed(grammar("hermes", reasons=False, template="</think>"), thought + call)
        assert not allowed(grammar("hermes"), thought + call)
    assert allowed(grammar("harmony"), WRITERS["harmony"](Answer("hm", "", [("f", {})])))
    assert allowed(grammar("harmony", required=False), WRITERS["harmony"](Answer("hm", "Yes.")))


def test_one_call_where_one_was_asked_for() -> None:
    two = WRITERS["hermes"](Answer("", "", [("f", {}), ("f", {})])).strip()
    for required in (True, False):
        assert allowed(grammar("hermes", required=required), two)
        assert not allowed(grammar("hermes", required=required, several=False), two)


def test_what_a_format_cannot_hold_is_named() -> None:
    dated = {"name": "f", "parameters": {"type": "object", "properties": {"day": {"type": "string", "format": "date"}}}}
    with pytest.raises(NotWrittenError, match=r"tools\[3\]: day: format"):
        call_grammar(FORMATS["qwen3-coder"], [Tool.of(dated, "tools[3]")], control={}, required=True)


def test_a_number_that_would_be_written_as_another_is_named_or_written_as_it_is() -> None:
    tool = {"name": "f", "parameters": {"type": "object", "properties": {"v": {"enum": [2**53 + 1]}}}}
    asked = [Tool.of(tool, "tools[3]")]
    with pytest.raises(NotWrittenError, match=r"^tools\[3\]: /properties/v/enum/0: 9007199254740993 has more digits"):
        call_grammar(FORMATS["hermes"], asked, control={}, required=True)
    lark = call_grammar(FORMATS["glm"], asked, control={}, required=True)
    call = "<tool_call>f\n<arg_key>v</arg_key>\n<arg_value>9007199254740993</arg_value>\n</tool_call>"
    assert allowed(lark, call) and not allowed(lark, call.replace("993", "992"))


@pytest.mark.parametrize("name", ["qwen3-coder", "gemma4"])
@pytest.mark.parametrize(
    ("bounds", "problem"),
    [
        ({"minLength": "3"}, "minLength must be a number"),
        ({"maxLength": [3]}, "maxLength must be a number"),
        ({"minLength": -1}, "minLength must be a number"),
        ({"maxLength": math.inf}, "maxLength must be a number"),
        ({"minLength": 3, "maxLength": 1.0}, "maxLength is less than minLength"),
    ],
)
def test_bounds_that_no_text_can_keep_are_named(name: str, bounds: dict[str, Any], problem: str) -> None:
    tool = {"name": "f", "parameters": {"type": "object", "properties": {"v": {"type": "string", **bounds}}}}
    with pytest.raises(NotWrittenError, match=rf"tools\[0\]: v: {problem}"):
        call_grammar(FORMATS[name], [Tool.of(tool, "tools[0]")], control={}, required=True)


DEFINED = {
    "Size": {"type": "string", "enum": ["1", "xl"]},
    "Loop": {"anyOf": [{"type": "string"}, *[{"$ref": "#/$defs/Loop"}] * 9]},
    "Part": {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]},
}


@pytest.mark.parametrize(
    ("schema", "right", "wrong"),
    [
        ({"$ref": "#/$defs/Size"}, ["1", "xl"], ['"1"', "m"]),
        ({"anyOf": [{"$ref": "#/$defs/Size"}, {"type": "null"}]}, ["1", "null"], ["m", "2", ""]),
        ({"type": ["string", "null"], "maxLength": 5}, ["null", "abcde"], ["abcdef"]),
        (
            {"anyOf": [{"const": "a"}, {"$ref": "#/$defs/Part"}, {"type": "boolean"}]},
            ["a", '{"n":1}', "true"],
            ["b", "{}"],
        ),
        ({"anyOf": [{"type": "string", "format": "date"}, {"type": "null"}]}, ["2020-01-01", "null", "any"], []),
        ({"$ref": "#/$defs/Loop"}, ["any"], []),
        ({"$ref": "#/$defs/Part"}, ['{"n":1}'], ["any", "{}"]),
    ],
)
@pytest.mark.parametrize("is_root", [True, False])
def test_a_parameter_is_held_to_what_its_schema_refers_to(
    schema: dict[str, Any], right: list[str], wrong: list[str], is_root: bool
) -> None:
    own = {"type": "object", "properties": {"v": schema}, "required": ["v"]}
    root = own if is_root else {"$ref": "#/$defs/Root"}
    tool = Tool.of({"name": "f", "parameters": {**root, "$defs": {**DEFINED, "Root": own}}}, "tools[0]")
    lark = call_grammar(FORMATS["glm"], [tool], control={}, required=True)
    call = "<tool_call>f\n<arg_key>v</arg_key>\n<arg_value>%s</arg_value>\n</tool_call>"
    for text in right:
        assert allowed(lark, call % text), text
    for text in wrong:
        assert not allowed(lark, call % text), text
    assert not allowed(lark, "<tool_call>f\n</tool_call>")


def test_a_choice_that_is_none_leaves_a_value_open() -> None:
    tool = {"name": "f", "parameters": {"type": "object", "properties": {"v": {"anyOf": 5}}}}
    lark = call_grammar(FORMATS["glm"], [Tool.of(tool, "tools[0]")], control={}, required=True)
    assert allowed(lark, "<tool_call>f\n<arg_key>v</arg_key>\n<arg_value>any</arg_value>\n</tool_call>")


D = '<|"|>'
NESTED: dict[str, Any] = {
    "P": {"type": "object", "properties": {"n": {"type": "integer"}, "q": {"$ref": "#/$defs/Q"}}, "required": ["n"]},
    "Q": {"enum": ["a"]},
}


def gemma4(properties: dict[str, Any]) -> str:
    schema = {"type": "object", "properties": properties, "$defs": NESTED}
    tool = Tool.of({"name": "f", "parameters": schema}, "tools[0]")
    return call_grammar(FORMATS["gemma4"], [tool], control=CONTROL, required=True, reasons=False)


@pytest.mark.parametrize(
    ("schema", "right", "wrong"),
    [
        ({"type": "array", "items": {"type": "integer"}, "minItems": 2, "maxItems": 100_000}, "[1,2]", "[1]"),
        ({"type": "array"}, f"[1,{D}a{D},[2,{{k:{D}b{D}}}]]", "[a]"),
        ({"anyOf": [{"type": "string"}, {"type": "null"}]}, "null", "1"),
        ({"type": ["string", "integer"]}, f"{D}x{D}", "true"),
        ({"type": "object"}, f"{{k:{D}x{D},m:[1]}}", "1"),
        ({"type": "object", "additionalProperties": {"type": "integer"}}, "{k:1,m:2}", f"{{k:{D}x{D}}}"),
        ({"$ref": "#/$defs/P"}, f"{{n:1,q:{D}a{D}}}", f"{{q:{D}a{D}}}"),
        ({"type": "array", "items": {"$ref": "#/$defs/Q"}}, f"[{D}a{D}]", f"[{D}b{D}]"),
        ({"description": "any"}, "{k:[1]}", "x"),
    ],
)
def test_values_of_gemma_4_keep_to_their_schemas(schema: dict[str, Any], right: str, wrong: str) -> None:
    lark = gemma4({"v": schema})
    call = f"<|tool_call>call:f{{v:{right}}}<tool_call|>"
    assert allowed(lark, call) and not allowed(lark, call.replace(f"v:{right}", f"v:{wrong}"))
    [(_, arguments)] = read("gemma4", call)[0].calls
    jsonschema.validate(arguments["v"], {**schema, "$defs": NESTED})


@pytest.mark.parametrize(
    "schema",
    [
        {"$ref": "#/$defs/none"},
        {"type": "array", "minItems": 3, "maxItems": 1},
        {"type": "array", "minItems": "3"},
        {"enum": [[1]]},
    ],
)
def test_what_gemma_4_cannot_hold_is_named(schema: dict[str, Any]) -> None:
    with pytest.raises(NotWrittenError, match=r"tools\[0\]: v: "):
        gemma4({"v": schema})


@pytest.mark.parametrize("form", ["gemma4", "gemma", "pythonic", "lfm2", "olmo3", "glm", "qwen3-coder", "hermes"])
@pytest.mark.parametrize(
    "name", ["$filter", "@type", "2fa", "1", "first name", "a/b", "page[size]", "user.id", "x-y", "#c"]
)
def test_a_parameter_of_any_usual_name_is_written_and_read(form: str, name: str) -> None:
    inner = {"type": "object", "properties": {name: {"const": 2}}, "required": [name], "additionalProperties": False}
    schema = {**inner, "properties": {name: {"const": 1}, "o": inner}, "required": [name, "o"]}
    lark = call_grammar(FORMATS[form], [Tool("f", schema, "tools[0]")], control=CONTROL, required=True, several=False)
    answer, broken = read(form, walk(lark, random.Random(name)))
    assert answer.calls == [("f", {name: 1, "o": {name: 2}})] and not broken


def test_a_schema_within_itself_cannot_be_held_by_gemma_4() -> None:
    tree = {"type": "object", "properties": {"left": {"$ref": "#/$defs/T"}, "right": {"$ref": "#/$defs/T"}}}
    tool = Tool.of({"name": "f", "parameters": {"properties": {"t": tree}, "$defs": {"T": tree}}}, "tools[0]")
    with pytest.raises(NotWrittenError, match="cannot be held"):
        call_grammar(FORMATS["gemma4"], [tool], control=CONTROL, required=True)
