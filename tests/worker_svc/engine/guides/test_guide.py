"""How deep references and rules lead into each other."""

from __future__ import annotations

import json

import pytest

from tandem.worker.engine.guides.guide import Guide, depth_violation, reference_depth, rule_depth
from tandem.worker.engine.guides.limits import MAX_REFERENCE_DEPTH, MAX_RULE_DEPTH
from tests.integration.hostile_guides import chained_references, chained_rules, chained_terminals


@pytest.mark.parametrize("depth", [1, 7, 900])
def test_a_chain_is_as_deep_as_it_is_long(depth: int):
    assert reference_depth(chained_references(depth)) == depth + 1
    assert rule_depth(chained_rules(depth)) == depth + 2  # start, r0 to r`depth`
    assert rule_depth(chained_terminals(depth)) == depth + 2


@pytest.mark.parametrize(
    ("schema", "depth"),
    [
        ({"$ref": "#"}, 1 - 1),
        ({"properties": {"child": {"$ref": "#"}}}, 0),
        ({"$ref": "#/$defs/a", "$defs": {"a": {"items": {"$ref": "#/$defs/a"}}}}, 1),
        ({"$defs": {"a": {"$ref": "#/$defs/b"}, "b": {}}}, 0),
        ({"items": {"$ref": "#/$defs/a~1b"}, "$defs": {"a/b": {"$ref": "#/$defs/c"}, "c": {}}}, 2),
        ({"items": {"$ref": "#/%24defs/a"}, "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {}}}, 2),
        ({"anyOf": [{"$ref": "#/$defs/a"}, {"$ref": "#/$defs/b"}], "$defs": {"a": {}, "b": {}}}, 1),
        ({"items": {"$ref": "#/nowhere"}}, 1),
        ({"items": {"$ref": "https://elsewhere.example/schema"}}, 0),
        ({"enum": [{"$ref": "#/$defs/a"}], "$defs": {"a": {}}}, 0),
        ([1], 0),
    ],
)
def test_references_count_once_and_where_they_are_used(schema: object, depth: int):
    assert reference_depth(json.dumps(schema)) == depth


@pytest.mark.parametrize("text", ['{"type": ', "[" * 50_000, "nonsense"])
def test_what_is_no_json_is_left_to_the_compiler(text: str):
    assert reference_depth(text) == 0


def test_words_in_strings_regexes_and_comments_are_no_rules():
    grammar = """
    start: "a" b // c
    b: /c/ "c:" | b2 # c
      | ?
    b2.5: "x"
    c: d
    d: "y"
    """
    assert rule_depth(grammar) == 3


@pytest.mark.parametrize("sign", ['"', "/", '\\"', "a:", "a"])
def test_a_grammar_of_one_sign_is_looked_at_once(sign: str):
    assert rule_depth(sign * (60_000 // len(sign))) <= 1  # what looked twice would not come to an end here


def test_a_violation_names_the_limit():
    deep = Guide("json_schema", chained_references(MAX_REFERENCE_DEPTH))
    assert (
        depth_violation(deep) == f"$ref leads to $ref {MAX_REFERENCE_DEPTH + 1} times in a row; at most 256 are allowed"
    )
    assert not depth_violation(Guide("json_schema", chained_references(MAX_REFERENCE_DEPTH - 1)))
    assert f"at most {MAX_RULE_DEPTH}" in depth_violation(Guide("grammar", chained_rules(MAX_RULE_DEPTH)))
    assert not depth_violation(Guide("grammar", chained_rules(MAX_RULE_DEPTH - 2)))
