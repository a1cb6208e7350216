"""What every format promises: the same events however an answer is cut, nothing lost, no error, linear work."""

from __future__ import annotations

import random
import re
import sys
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tandem.tokenizer.answers.events import Event, Kind, joined
from tandem.tokenizer.answers.formats import FORMATS
from tandem.tokenizer.answers.parser import AnswerParser
from tandem.tokenizer.answers.writer import types_of
from tests.tokenizer_svc.answers.answers import TOOLS, WRITERS, Answer, cut, mutated, parse, said, written

WORDS = re.compile(r"(?=(W\d\d\dW))")  # one may end where another begins
NAMES = st.sampled_from(["look_up", "book.flight", "f"])
# Values that a format without types can tell from each other: no text that looks like JSON.
TEXTS = st.text(st.sampled_from("ab ,;.é\U0001f469'\n\\/"), max_size=12).map(lambda text: f"t{text}t")
VALUES = st.recursive(
    st.integers(-9, 10**9) | st.booleans() | st.none() | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["k", "key_2"]), inner, max_size=2),
    max_leaves=4,
)
PROSE = st.text(st.sampled_from("ab .é\U0001f469'\n"), max_size=30).map(lambda text: f"p{text}p")
CALLS = st.tuples(NAMES, st.dictionaries(st.sampled_from(["city", "n", "x_1"]), VALUES, max_size=3))
ANSWERS = st.builds(
    Answer,
    reasoning=st.just("") | PROSE,
    content=st.just("") | PROSE,
    calls=st.lists(CALLS, max_size=3),
)


@pytest.mark.parametrize("variant", WRITERS)
@given(answer=ANSWERS, seed=st.integers(0, 2**32))
@settings(max_examples=8)
def test_an_answer_is_read_as_it_was_meant_in_any_cut(variant: str, answer: Answer, seed: int) -> None:
    text, meant = written(variant, answer)
    events = parse(variant, [text])
    assert said(events) == meant
    assert not any(event.kind is Kind.BROKEN for event in events)
    assert parse(variant, cut(text, random.Random(seed))) == events


def numbered(variant: str, chance: random.Random) -> str:
    """An answer full of words that each stand there once."""
    words = (f"W{number:03}W" for number in range(1000))
    several = [next(words), {"k": next(words)}]
    arguments: list[tuple[str, dict[str, Any]]] = [
        ("look_up", {"city": next(words), "n": several, "x": f"a {next(words)}\n{next(words)}"}),
        ("f", {}),
        ("book.flight", {"to": next(words), "m": {"k": [1, next(words)]}}),
    ]  # fmt: skip
    answer = Answer(next(words), f"{next(words)} {next(words)}.", arguments[: chance.randrange(4)])
    return written(variant, answer)[0]


def check_mutated(variant: str, seed: int) -> None:
    """Whatever was done to an answer: each word is told as often as it is written, in any cut the same."""
    chance = random.Random(seed)
    text = mutated(variant, numbered(variant, chance), chance)
    events = parse(variant, [text])
    told = Counter(word for event in events for word in WORDS.findall(f"{event.text} {event.name} {event.id}"))
    missing = Counter(WORDS.findall(text)) - told
    assert not missing, (variant, seed, text, missing, events)
    assert parse(variant, cut(text, chance)) == events, (variant, seed, text)
    said(events)  # complete calls have arguments that are JSON objects
    check_order(events)


def check_order(events: Sequence[Event]) -> None:
    """Calls are counted from 0, and each ends or breaks before the next begins."""
    begun: int | None = None
    count = 0
    for event in events:
        if event.kind is Kind.CALL:
            assert begun is None and event.call == count and event.name
            begun, count = count, count + 1
        elif event.kind in (Kind.ARGUMENTS, Kind.CALL_END):
            assert event.call == begun is not None
            begun = None if event.kind is Kind.CALL_END else begun
        elif event.kind is Kind.BROKEN and begun is not None:
            assert event.call == begun
            begun = None
        else:
            assert begun is None
    assert begun is None


@pytest.mark.parametrize("variant", WRITERS)
@given(seed=st.integers(0, 2**64))
@settings(max_examples=12)
def test_nothing_is_lost_of_an_answer_that_went_wrong(variant: str, seed: int) -> None:
    check_mutated(variant, seed)


@pytest.mark.parametrize("name", FORMATS)
@given(data=st.data())
@settings(max_examples=8)
def test_markers_in_any_order_are_no_error(name: str, data: st.DataObject) -> None:
    pieces = [
        *sorted(FORMATS[name].markers()),
        "{",
        "}",
        '"',
        "a",
        " ",
        "[",
        "(",
        ")",
        "]",
        "=",
        "\\",
        ",",
        ":",
        "f",
        "name",
    ]
    text = "".join(data.draw(st.lists(st.sampled_from(pieces), max_size=40)))
    events = parse(name, [text])
    assert parse(name, list(text)) == events
    said(events)
    check_order(events)


def calls_of_python(name: str, text: str) -> int:
    """How many functions reading this text calls, one character at a time."""
    parser = AnswerParser(FORMATS[name], tools=types_of(TOOLS))
    count = 0

    def profile(frame: object, event: str, argument: object) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(profile)
    try:
        for each in text:
            parser.push(each)
        parser.push("", end=True)
    finally:
        sys.setprofile(None)
    return count


@pytest.mark.parametrize("name", FORMATS)
def test_the_work_grows_with_the_text_and_not_faster(name: str) -> None:
    markers = sorted(FORMATS[name].markers()) or ["<"]
    for hostile in ("".join(markers), markers[0], "<", " ", "[", '{"name": "f", "arguments": {"a": "', "f("):
        sizes = [calls_of_python(name, markers[0] + (hostile * size)[:size]) for size in (300, 600)]
        assert sizes[1] <= 2.2 * sizes[0] + 200, (hostile, sizes)


def test_white_space_beside_a_marker_is_the_markers_and_all_other_is_text() -> None:
    events = parse("hermes", ["<think>\n  a \n\n b\n</think>\n\n  c\n\nd \n"])
    assert events == [Event(Kind.REASONING, "a \n\n b"), Event(Kind.CONTENT, "c\n\nd \n")]
    assert parse("hermes", [" \n a  b \n"]) == [Event(Kind.CONTENT, " \n a  b \n")]


def test_an_answer_may_begin_within_the_reasoning_that_the_prompt_has_opened() -> None:
    parser = AnswerParser(FORMATS["hermes"], in_reasoning=True)
    assert joined(parser.push("\nhm\n</think>\n\nyes", end=True)) == [
        Event(Kind.REASONING, "hm"),
        Event(Kind.CONTENT, "yes"),
    ]


def test_an_answer_may_go_on_with_content_that_the_prompt_has_begun() -> None:
    for name in FORMATS:
        parser = AnswerParser(FORMATS[name], in_content=True)
        assert parser.push("and so") == [Event(Kind.CONTENT, "and so")], name
        assert joined(parser.push(" on.", end=True)) == [Event(Kind.CONTENT, " on.")], name
    begun = AnswerParser(FORMATS["harmony"], in_content=True)
    analysis = "<|channel|>analysis<|message|>hm<|end|><|start|>assistant<|channel|>final<|message|>yes"
    assert joined(begun.push(analysis, end=True)) == [Event(Kind.REASONING, "hm"), Event(Kind.CONTENT, "yes")]


def test_a_broken_call_is_content_with_a_flag() -> None:
    text = 'a\n<tool_call>\n{"name": "f", "arguments": {"x": oops}}\n</tool_call>\nb'
    assert parse("hermes", [text]) == [
        Event(Kind.CONTENT, "a"),
        Event(Kind.CALL, call=0, name="f"),
        Event(Kind.ARGUMENTS, '{"x": ', call=0),
        Event(Kind.BROKEN, text[1:-2], call=0),
        Event(Kind.CONTENT, "b"),
    ]


def test_without_calls_they_are_content() -> None:
    text = '<think>a</think>{"name": "f", "parameters": {}} <tool_call>{"name": "f"}</tool_call>'
    for name in ("hermes", "llama3", "json"):
        parser = AnswerParser(FORMATS[name], with_calls=False)
        assert joined(parser.push(text, end=True)) == [Event(Kind.REASONING, "a"), Event(Kind.CONTENT, text[16:])]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("llama3", '{"answer": 42}'),
        ("llama3", '{"name": "Alice", "parameters": {}}'),  # no tool's name
        ("llama3", '{"name": "f"}'),
        ("json", '[{"name": "f", "age": 4}]'),
        ("json", "[1, 2]"),
        ("pythonic", "[see](f)"),
        ("pythonic", "[f(1)]"),
        ("pythonic", "[other(a=1)]"),
    ],
)
def test_what_only_looks_like_a_call_is_content(name: str, text: str) -> None:
    assert parse(name, [text]) == [Event(Kind.CONTENT, text)]


def test_texts_become_the_types_of_the_schema() -> None:
    properties = {"s": {"type": "string"}, "n": {"type": "number"}, "e": {"enum": ["1", "2"]},
                  "u": {"anyOf": [{"type": "string"}, {"type": "null"}]}}  # fmt: skip
    tools = types_of([{"type": "function", "function": {"name": "f", "parameters": {"properties": properties}}}])
    values = {"s": "12", "n": "12", "e": "1", "u": "null", "free": "[1]", "word": "yes", "flag": "True"}
    text = "<tool_call>f" + "".join(f"<arg_key>{k}</arg_key><arg_value>{v}</arg_value>" for k, v in values.items())
    parser = AnswerParser(FORMATS["glm"], tools=tools)
    [(_, arguments)] = said(joined(parser.push(f"{text}</tool_call>", end=True))).calls
    assert arguments == {"s": "12", "n": 12, "e": "1", "u": None, "free": [1], "word": "yes", "flag": True}


SIZES = {"Size": {"type": "string", "enum": ["1", "true"]}, "Loop": {"anyOf": [{"$ref": "#/$defs/Loop"}] * 9}}


@pytest.mark.parametrize(
    ("schema", "text", "value"),
    [
        ({"$ref": "#/$defs/Size"}, "1", "1"),
        ({"anyOf": [{"$ref": "#/$defs/Size"}, {"type": "null"}]}, "true", "true"),
        ({"anyOf": [{"$ref": "#/$defs/Size"}, {"type": "null"}]}, "null", None),
        ({"allOf": [{"$ref": "#/$defs/Size"}], "description": "d"}, "1", "1"),
        ({"const": "5"}, "5", "5"),
        ({"$ref": "#/$defs/Loop"}, "1", 1),
        ({"$ref": "#/$defs/none"}, "1", 1),
        ({"type": ["string", "null"]}, '"quoted"', '"quoted"'),
        ({"type": ["string", "number"]}, "5", 5),
        ({"type": "object"}, "{'a': [1, None], 'b': True}", {"a": [1, None], "b": True}),
        ({"type": "object"}, '{"a": "x\ny", "b": True}', {"a": "x\ny", "b": True}),
        ({"type": "array"}, "['x', \"it's\",]", ["x", "it's"]),
        ({"type": "array"}, "['x", "['x"),
        ({"type": "object"}, "['x']", "['x']"),
        ({"type": ["array", "string"]}, "['x']", "['x']"),
    ],
)
def test_a_text_becomes_what_the_schema_of_its_parameter_allows(schema: dict[str, Any], text: str, value: Any) -> None:
    for root in ({"properties": {"v": schema}}, {"$ref": "#/$defs/Root"}):
        parameters = {**root, "$defs": {**SIZES, "Root": {"properties": {"v": schema}}}}
        tools = types_of([{"function": {"name": "f", "parameters": parameters}}])
        for name, call in (
            ("glm", f"<tool_call>f<arg_key>v</arg_key><arg_value>{text}</arg_value></tool_call>"),
            ("qwen3-coder", f"<function=f>\n<parameter=v>\n{text}\n</parameter>\n</function>"),
        ):
            parser = AnswerParser(FORMATS[name], tools=tools)
            assert said(joined(parser.push(call, end=True))).calls == [("f", {"v": value})]


def test_nothing_is_pushed_behind_the_end() -> None:
    parser = AnswerParser(FORMATS["think"])
    parser.push("a", end=True)
    with pytest.raises(ValueError, match="ended"):
        parser.push("b")
