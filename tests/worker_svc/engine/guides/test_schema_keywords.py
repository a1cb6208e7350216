"""Every keyword of JSON schema is served as `jsonschema` understands it, or refused by its name; none is ignored."""

from __future__ import annotations

import json
from typing import Any

import jsonschema
import pytest

from tandem.worker.engine.guides.frames import Words
from tandem.worker.engine.guides.guide import Guide

pytest.importorskip("llguidance")

from tandem.worker.engine.guides.compiling import GuideError, compile_guide
from tandem.worker.engine.guides.fork_server import build_tokenizer

BYTES = Words(257, [256], [bytes([value]) for value in range(256)], [256])
TOKENIZER = build_tokenizer(BYTES)

INTEGER = {"type": "integer"}
SERVED: dict[str, tuple[dict[str, Any], list[str]]] = {
    "type": (INTEGER, ["1", '"a"']),
    "types": ({"type": ["integer", "null"]}, ["1", "null", '"a"']),
    "enum": ({"enum": [1, "a"]}, ["1", '"a"', "2"]),
    "const": ({"const": {"a": 1}}, ['{"a":1}', "1"]),
    "multipleOf": ({"type": "number", "multipleOf": 0.5}, ["1.5", "1.3"]),
    "minimum": ({"type": "number", "minimum": 3}, ["3", "2"]),
    "maximum": ({"type": "integer", "maximum": 3}, ["3", "4"]),
    "exclusiveMinimum": ({"type": "integer", "exclusiveMinimum": 3}, ["4", "3"]),
    "exclusiveMaximum": ({"type": "number", "exclusiveMaximum": 3}, ["2.5", "3"]),
    "minLength": ({"type": "string", "minLength": 2}, ['"ab"', '"a"']),
    "maxLength": ({"type": "string", "maxLength": 2}, ['"ab"', '"abc"']),
    "pattern": ({"type": "string", "pattern": "a"}, ['"bab"', '"b"']),
    "items": ({"type": "array", "items": INTEGER}, ["[1]", '["a"]']),
    "prefixItems": ({"type": "array", "prefixItems": [INTEGER], "items": False}, ["[1]", '["a"]', "[1,2]"]),
    "minItems": ({"type": "array", "minItems": 1}, ["[1]", "[]"]),
    "maxItems": ({"type": "array", "maxItems": 1}, ["[1]", "[1,2]"]),
    "properties": ({"type": "object", "properties": {"a": INTEGER}}, ['{"a":1}', '{"a":"x"}']),
    "patternProperties": (
        {"type": "object", "patternProperties": {"^a": INTEGER}, "additionalProperties": False},
        ['{"a":1}', '{"a":"x"}', '{"b":1}'],
    ),
    "additionalProperties": ({"type": "object", "additionalProperties": INTEGER}, ['{"a":1}', '{"a":"x"}']),
    "required": ({"type": "object", "required": ["a"]}, ['{"a":1}', "{}"]),
    "minProperties": ({"type": "object", "minProperties": 1}, ['{"a":1}', "{}"]),
    "maxProperties": ({"type": "object", "maxProperties": 1}, ['{"a":1}', '{"a":1,"b":2}']),
    "anyOf": ({"anyOf": [INTEGER, {"type": "null"}]}, ["1", "null", '"a"']),
    "allOf": ({"allOf": [{"type": "integer", "minimum": 2}, {"maximum": 5}]}, ["3", "6", "1"]),
    "$ref": ({"$ref": "#/$defs/a", "minimum": 3, "$defs": {"a": INTEGER}}, ["5", "1"]),
    "without a type": ({"minimum": 3}, ["2", "4", '"a"']),
}
REFUSED: dict[str, Any] = {
    "not": {"type": "string"},
    "uniqueItems": True,
    "contains": INTEGER,
    "minContains": 2,
    "maxContains": 2,
    "propertyNames": {"maxLength": 1},
    "if": {"type": "string"},
    "dependentRequired": {"a": ["b"]},
    "dependentSchemas": {"a": {"required": ["b"]}},
    "dependencies": {"a": ["b"]},
    "unevaluatedProperties": False,
    "unevaluatedItems": False,
    "$dynamicRef": "#x",
}


def allows(schema: dict[str, Any], text: str) -> bool:
    matcher = compile_guide(Guide("json_schema", json.dumps(schema)), TOKENIZER)
    ids = list(text.encode())
    return matcher.validate_tokens(ids) == len(ids) and matcher.consume_tokens(ids) and matcher.is_accepting()


@pytest.mark.parametrize("keyword", SERVED)
def test_a_keyword_that_is_served_means_what_it_means_elsewhere(keyword: str):
    schema, texts = SERVED[keyword]
    verdicts = set()
    for text in texts:
        allowed = allows(schema, text)
        assert allowed == jsonschema.Draft202012Validator(schema).is_valid(json.loads(text)), text
        verdicts.add(allowed)
    assert verdicts == {True, False}


@pytest.mark.parametrize("keyword", REFUSED)
@pytest.mark.parametrize("place", ["", "/properties/a", "/anyOf/1", "/items", "/$defs/a"])
def test_a_keyword_that_cannot_be_served_is_refused_by_its_name_and_place(keyword: str, place: str):
    wrong = {"type": ["array", "object", "string"], keyword: REFUSED[keyword]}
    schema: Any = {
        "": wrong,
        "/properties/a": {"type": "object", "properties": {"b": True, "a": wrong}},
        "/anyOf/1": {"anyOf": [INTEGER, wrong]},
        "/items": {"type": "array", "items": wrong},
        "/$defs/a": {"$ref": "#/$defs/a", "$defs": {"a": wrong}},
    }[place]
    with pytest.raises(GuideError, match=keyword.replace("$", r"\$")) as refusal:
        compile_guide(Guide("json_schema", json.dumps(schema)), TOKENIZER)
    assert str(refusal.value).startswith(f"{place}: " if place else "Unimplemented")


def test_alternatives_that_exclude_each_other_are_refused_where_they_may_overlap():
    schema = {"oneOf": [INTEGER, {"type": "integer", "minimum": 3}]}
    with pytest.raises(GuideError, match="oneOf"):
        compile_guide(Guide("json_schema", json.dumps(schema)), TOKENIZER)


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "number", "exclusiveMinimum": 0, "maximum": 0.5},
        {"exclusiveMinimum": 5, "exclusiveMaximum": 5.5},
        {"type": ["number", "null"], "minimum": 0, "exclusiveMinimum": 0, "exclusiveMaximum": 0.25},
        {"type": "number", "exclusiveMaximum": 0, "minimum": -0.5},
        {"type": "number", "exclusiveMaximum": -5, "exclusiveMinimum": -5.75},
        {"type": "integer", "minimum": -(2**63), "maximum": 2**63 - 1},
        {"type": "number", "minimum": -1.7976931348623157e308, "maximum": 1.7976931348623157e308},
        {"minimum": 0, "maximum": 3.4028234663852886e38},
    ],
)
def test_bounds_mean_what_they_mean_elsewhere(schema: dict[str, Any]):
    valid = jsonschema.Draft202012Validator(schema).is_valid
    for text in ("0", "5", "-5", "0.1", "-0.1", "5.1", "-5.1", "5.00001", "0.5", "-7", str(2**62)):
        assert allows(schema, text) == valid(json.loads(text)), text
    assert valid(0) or not allows(schema, "-0")


def test_an_integer_that_is_listed_is_written_exactly():
    for value in (2**53, 2**60, 2**63 - 1, -(10**18)):
        assert allows({"properties": {"id": {"enum": [1, value]}}}, f'{{"id":{value}}}')


@pytest.mark.parametrize("value", [2**53 + 1, 1234567890123456789, -(10**17) + 1, 2**64])
@pytest.mark.parametrize(
    ("listed", "place"),
    [("$", "const"), (["a", {"b/c": "$"}], "const/1/b~1c"), ({"a": ["$"]}, "const/a/0"), ([["$"]], "const/0/0")],
)
def test_an_integer_that_would_be_written_as_another_is_refused_by_its_place(value: int, listed: object, place: str):
    const = json.loads(json.dumps(listed).replace('"$"', str(value)))
    schema = {"type": "array", "items": {"anyOf": [{"$ref": "#/$defs/a"}]}, "$defs": {"a": {"const": const}}}
    with pytest.raises(GuideError, match=rf"^/\$defs/a/{place}: {value} has more digits than are held"):
        compile_guide(Guide("json_schema", json.dumps(schema)), TOKENIZER)


@pytest.mark.parametrize("bound", ["NaN", "Infinity", "-Infinity"])
def test_a_bound_that_is_no_number_is_no_json(bound: str):
    with pytest.raises(GuideError, match="line 1 column"):
        compile_guide(Guide("json_schema", f'{{"type": "number", "exclusiveMinimum": {bound}}}'), TOKENIZER)


def test_numbers_that_are_no_part_of_what_a_schema_asks_are_not_looked_at():
    for schema in ({"default": 2**64}, {"examples": [2**64]}, {"properties": {"const": {"type": "integer"}}}):
        assert allows({"type": "object", **schema}, "{}")


@pytest.mark.parametrize("schema", [{"type": "string"}, {"type": "string", "maxLength": 3}, {}])
def test_a_text_may_hold_the_escape_of_any_character_but_not_half_of_one(schema: dict[str, Any]):
    for text in (r'"\u00e9"', r'"\u20AC"', r'"a\ud83d\ude00"', r'"\u0000"', r'"\n\""'):
        assert allows(schema, text), text
    for text in (r'"\ud83d"', r'"\ude00"', r'"\ud83da"', r'"\u00g9"', r'"\x41"'):
        assert not allows(schema, text), text
