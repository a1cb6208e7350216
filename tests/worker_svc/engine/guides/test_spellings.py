"""A guide is about text: all ids that spell what it allows may be sampled, whatever other ids spell the same."""

from __future__ import annotations

import json
import random

import pytest

from tandem.worker.engine.guides.frames import Words
from tandem.worker.engine.guides.guide import Guide

pytest.importorskip("llguidance")

from llguidance import LLMatcher

from tandem.worker.engine.guides.compiling import GuideError, compile_guide
from tandem.worker.engine.guides.fork_server import build_tokenizer

# As SentencePiece has them: a byte each, then pieces, some of one character that is a byte too.
PIECES = [bytes([value]) for value in range(256)] + [
    *(b"x", b"y", b"{", b"}", b'"', b":", b"\n", b" ", b"1", b"a"),
    *(b"xy", b'{"', b'":', b'"x', "é".encode(), "é".encode()[1:] + b"x", "漢".encode(), b"\n\n", b" {"),
]
EOS = len(PIECES)
WORDS = Words(EOS + 2, [EOS], [*PIECES, b"</s>"], [EOS])
TOKENIZER = build_tokenizer(WORDS)
BYTES = build_tokenizer(Words(257, [256], PIECES[:256], [256]))

GUIDES = [
    Guide("choices", json.dumps(["x"])),
    Guide("choices", json.dumps(["xy{", "é漢"])),
    Guide("regex", 'x{2}[{]"\n\n(a|é)+'),
    Guide("grammar", 'start: "{" b "}"\nb: "x" "\\n" | "xy" b # no more'),
    Guide(
        "json_schema", json.dumps({"properties": {"x": {"const": 1}}, "required": ["x"], "additionalProperties": False})
    ),
    Guide("json_schema", '{"x-guidance": {"whitespace_flexible": false}, "enum": ["x", "é"]}'),
    Guide("structural_tag", json.dumps({"structures": [{"begin": "<x", "schema": {}, "end": "y"}], "triggers": ["<"]})),
]


def spells(guide: LLMatcher, piece: bytes) -> bool:
    return bool(piece) and guide.validate_tokens(list(piece)) == len(piece)


@pytest.mark.parametrize("guide", GUIDES, ids=lambda guide: guide.kind)
@pytest.mark.parametrize("seed", range(3))
def test_a_mask_has_all_ids_that_spell_what_may_come(guide: Guide, seed: int) -> None:
    chance = random.Random(seed)
    matcher, by_bytes = compile_guide(guide, TOKENIZER), compile_guide(guide, BYTES)
    for _ in range(12):
        if matcher.is_stopped():
            break
        matcher.compute_ff_bytes()  # that drafts are asked for changes nothing
        allowed = [token for token, bias in enumerate(matcher.compute_logit_bias()) if bias]
        spelled = [token for token, piece in enumerate(PIECES) if spells(by_bytes, piece)]
        assert allowed == spelled + [EOS] * by_bytes.is_accepting()
        if not spelled:
            break
        token = chance.choice(spelled)
        assert matcher.consume_token(token) and by_bytes.consume_tokens(list(PIECES[token]))


@pytest.mark.parametrize(
    "guide",
    [
        Guide("regex", "(?=a)"),
        Guide("grammar", "start: b"),
        Guide("grammar", 'start: "a" <[999]>'),
        Guide("grammar", '{"grammars": [{"lark_grammar": "start: /a/"}]}'),
    ],
)
def test_an_error_shows_no_more_than_the_guide_that_was_given(guide: Guide) -> None:
    with pytest.raises(GuideError) as refusal:
        compile_guide(guide, TOKENIZER)
    assert str(refusal.value) and "no_forcing" not in str(refusal.value)
