"""Answers beside vLLM's parsers: each row of the table of docs/compatibility.md, and every format, in any cut."""

from __future__ import annotations

import random
from typing import Any

import pytest

from tandem.tokenizer.answers.events import Kind
from tests.tokenizer_svc.answers.answers import WRITERS, Answer, cut, parse, said, written

F, LOOK = ("f", {"a": 1}), ("look_up", {})
DEEP: dict[str, Any] = {"a": [1, {"k": 'x "y" \\ \n'}], "city": {"k": [None, True, -2.5]}}
_ONE = '<tool_call>{"name": "f", "arguments": {"a": 1}}</tool_call>'
_OOPS = '<tool_call>{"name": "f", "arguments": {oops}}</tool_call>'
_OTHER = '<tool_call>{"name": "look_up", "arguments": {}}</tool_call>'
_KIMI = "<|tool_call_begin|>%s<|tool_call_argument_begin|>%s<|tool_call_end|>"
_GLM = "<tool_call>f\n<arg_key>a</arg_key>\n<arg_value>1"
_SOON = '<tool_call>{"name": "f", "arguments": "soon"}</tool_call>'
_BARE = 'Here: {"name": "f", "parameters": {"a": 1}}'
_BYTES, _HUGE = "[f(a=b'z'), look_up()]", "[f(a=1e999), look_up()]"

# Format, output, calls, content, and what of the content is flagged as a broken call.
ROWS: dict[str, list[tuple[str, str, list[Any], str, str]]] = {
    "arguments as JSON in a string": [
        ("hermes", '<tool_call>{"name": "f", "arguments": "{\\"a\\": 1}"}</tool_call>', [F], "", ""),
    ],
    "what begins as a call and cannot be read": [
        ("hermes", _ONE + _OOPS + _OTHER, [F, LOOK], _OOPS, _OOPS),
    ],
    "text behind a call": [("hermes", f"{_ONE}\nDone.", [F], "Done.", "")],
    "white space beside the markers": [("hermes", f"Wait. \n\n{_ONE} \n", [F], "Wait.", "")],
    "a bare JSON call of Llama 3 with text in front": [("llama3", _BARE, [], _BARE, "")],
    "`arguments` that are a text without JSON": [("hermes", _SOON, [], _SOON, _SOON)],
    "a call of GLM whose end marker is missing at the end of the output": [
        ("glm", f"{_GLM}</arg_value>", [F], "", ""),
        ("glm", _GLM, [], _GLM, _GLM),
        ("hermes", _ONE.removesuffix("</tool_call>"), [F], "", ""),
    ],
    "Granite's call without the list around it; Phi-4's without `arguments`": [
        ("granite", '<|tool_call|>{"name": "f", "arguments": {"a": 1}}', [F], "", ""),
        ("phi4", '<|tool_call|>[{"name": "look_up"}]<|/tool_call|>', [LOOK], "", ""),
        ("phi4", 'functools[{"name": "look_up"}]', [LOOK], "", ""),
    ],
    "a pythonic list whose first call cannot be read (`b'z'`, `1e999`)": [
        ("pythonic", _BYTES, [], _BYTES, ""),
        ("pythonic", _HUGE, [], _HUGE, ""),
        ("pythonic", "[f(a=1), f(a=b'z'), look_up()]", [F], ", f(a=b'z'), look_up()]", ", f(a=b'z')"),
    ],
    "Kimi's arguments that are no JSON": [
        ("kimi", _KIMI % ("functions.f:0", "soon"), [], _KIMI % ("functions.f:0", "soon"),
         _KIMI % ("functions.f:0", "soon")),
    ],
    "Kimi's ids that are only a number, or have none": [
        ("kimi", _KIMI % ("functions.f:0", '{"a": 1}'), [F], "", ""),
        ("kimi", _KIMI % ("3", '{"a": 1}'), [("3", {"a": 1})], "", ""),
        ("kimi", _KIMI % ("", '{"a": 1}'), [], _KIMI % ("", '{"a": 1}'), _KIMI % ("", '{"a": 1}')),
    ],
}  # fmt: skip


@pytest.mark.parametrize("row", ROWS)
def test_a_row_of_the_table_is_true(row: str) -> None:
    for number, (name, text, calls, content, broken) in enumerate(ROWS[row]):
        events = parse(name, [text])
        answer = said(events)
        assert (answer.calls, answer.content) == (calls, content), text
        assert "".join(event.text for event in events if event.kind is Kind.BROKEN) == broken, text
        chance = random.Random(number)
        for _ in range(20):
            assert parse(name, cut(text, chance)) == events, text


def test_the_table_has_these_rows(repository: Any) -> None:
    table = (repository / "docs/compatibility.md").read_text(encoding="utf-8").partition("## Answers beside")[2]
    rows = {line.split(" | ")[0].removeprefix("| ") for line in table.splitlines() if line.startswith("| ")}
    same = "calls, parallel calls, nested and escaped arguments, `arguments` as JSON in a string"
    assert rows - {"output", same} == set(ROWS) - {"arguments as JSON in a string"}


@pytest.mark.parametrize("variant", [name for name in WRITERS if name != "think"])
def test_parallel_calls_with_nested_and_escaped_arguments_are_read_and_text_behind_stays(variant: str) -> None:
    text, meant = written(variant, Answer("", "Wait.", [("f", DEEP), ("book.flight", {}), ("look_up", {"x_1": "t"})]))
    chance = random.Random(variant)
    behind = "<|end|><|start|>assistant<|channel|>final<|message|>" if variant == "harmony" else "\n"
    for output, content in ((text, meant.content), (f"{text}{behind}Done.", f"{meant.content}Done.")):
        events = parse(variant, [output])
        assert said(events).calls == meant.calls
        assert said(events).content.replace("\n", "") == content
        for _ in range(20):
            assert parse(variant, cut(output, chance)) == events
