"""Where a trigger occurs in a text, one of its structures follows."""

from __future__ import annotations

import json

import pytest

from tandem.worker.engine.guides.frames import Words
from tandem.worker.engine.guides.guide import Guide

pytest.importorskip("llguidance")

from tandem.worker.engine.guides.compiling import compile_guide
from tandem.worker.engine.guides.fork_server import build_tokenizer

BYTES = [bytes([value]) for value in range(256)]
CONTROL = [b"</s>", b"<call>", b""]
CALL = 257
SPELLED = build_tokenizer(Words(257, [256], [*BYTES, b"</s>"], [256]))
WITH_CONTROL = build_tokenizer(Words(259, [256], [*BYTES, *CONTROL], [256, 257, 258]))

STRUCTURES = [
    {"begin": "<city>", "schema": {"enum": ["Rome"]}, "end": "</city>"},
    {"begin": "<f=a>", "schema": {"type": "object", "additionalProperties": False}, "end": "</f>"},
    {"begin": "<f=b>", "schema": {"type": "integer"}, "end": "</f>"},
]
ROME = '<city>"Rome"</city>'


def allowed(ids: list[int], structures: list[dict[str, object]], triggers: list[str], **flags: bool) -> bool:
    tag = {"structures": structures, "triggers": triggers, **flags}
    matcher = compile_guide(Guide("structural_tag", json.dumps(tag)), WITH_CONTROL if CALL in ids else SPELLED)
    return matcher.try_consume_tokens(ids) == len(ids) and matcher.is_accepting()


@pytest.mark.parametrize(
    ("text", "free", "once", "at_least_one"),
    [
        ("", True, True, False),
        ("a <cit", True, True, False),
        (ROME, True, True, True),
        (f"a {ROME}", True, True, False),
        (f"{ROME} b", True, False, False),
        (f"{ROME}<f=b>5</f>", True, False, True),
        ("a <city>b", False, False, False),
        (f"{ROME} <city>b", False, False, False),
        ('<city>"Paris"</city>', False, False, False),
        ("<f=a>5</f>", False, False, False),
        ("<f=b>{}</f>", False, False, False),
        ("<f=c>", False, False, False),
        (f"<{ROME}", True, True, False),
    ],
)
def test_a_trigger_begins_one_of_its_structures(text: str, free: bool, once: bool, at_least_one: bool) -> None:
    triggers = ["<city>", "<f="]
    ids = list(text.encode())
    assert allowed(ids, STRUCTURES, triggers) == free
    assert allowed(ids, STRUCTURES, triggers, stop_after_first=True) == once
    assert allowed(ids, STRUCTURES, triggers, at_least_one=True) == at_least_one


@pytest.mark.parametrize(
    ("ids", "right"), [([CALL, *b"1!"], True), ([*b"a ", CALL, *b"1! b"], True), ([CALL, *b"x"], False)]
)
def test_a_trigger_may_be_a_control_token(ids: list[int], right: bool) -> None:
    assert allowed(ids, [{"begin": "<call>", "schema": {"type": "integer"}, "end": "!"}], ["<call>"]) == right
