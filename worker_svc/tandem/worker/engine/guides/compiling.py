"""Compiles a guide; only ever in the guide's own process."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, cast

from llguidance import LLMatcher, LLParserLimits

from tandem.common.held_numbers import with_held_numbers
from tandem.common.lark import JSON_OPTIONS
from tandem.common.sub_schemas import sub_schemas
from tandem.worker.engine.guides.guide import Guide, depth_violation
from tandem.worker.engine.guides.limits import MAX_GRAMMAR_SIZE, MAX_LEXER_STATES
from tandem.worker.engine.guides.structural_tags import lark_of, read_tags

if TYPE_CHECKING:
    import llguidance
    from llguidance._lib import JsonCompileOptions

JSON_DEFAULTS = cast("JsonCompileOptions", JSON_OPTIONS)
# Where a text is forced, llguidance would allow one spelling of it: of the longest pieces, and of the ids of one piece
# the first, which is the byte <0x78> for x in SentencePiece's vocabularies. With this the model keeps its own.
_ANY_SPELLING = '%llguidance {"no_forcing": true}'
MAX_PLACE_CHECKS = 500  # sub-schemas tried to find the place of an error
MAX_MESSAGE = 500  # characters


class GuideError(ValueError):
    """The guide cannot be served; the message says what is wrong and where."""


def grammar_of(guide: Guide, tokenizer: llguidance.LLTokenizer) -> str:
    """Returns llguidance's form of a guide; raises GuideError."""
    try:
        match guide.kind:
            case "json_schema":
                own = '"x-guidance"' in guide.text
                schema = with_held_numbers(guide.text)
                return LLMatcher.grammar_from_json_schema(schema, defaults=None if own else JSON_DEFAULTS)
            case "regex":
                return LLMatcher.grammar_from_regex(guide.text)
            case "choices":
                alternatives = (json.dumps(choice, ensure_ascii=False) for choice in json.loads(guide.text))
                return LLMatcher.grammar_from_lark(f"start: {' | '.join(alternatives)}")
            case "grammar":
                return LLMatcher.grammar_from_lark(guide.text)
            case "structural_tag":
                return LLMatcher.grammar_from_lark(lark_of(read_tags(guide.text), _control(tokenizer)))
    except ValueError as error:
        raise GuideError(str(error)) from error
    raise AssertionError(guide.kind)


def compile_guide(guide: Guide, tokenizer: llguidance.LLTokenizer) -> LLMatcher:
    """Compiles a guide into a matcher at its beginning; raises GuideError."""
    if violation := depth_violation(guide):
        raise GuideError(violation)
    grammar = grammar_of(guide, tokenizer)
    matcher = LLMatcher(tokenizer, _in_any_spelling(guide, grammar), log_level=0, limits=_limits())
    if matcher.is_error():
        # As it was written, its errors show what the caller knows.
        reason = one_line(
            LLMatcher(tokenizer, grammar, log_level=0, limits=_limits()).get_error() or matcher.get_error()
        )
        place = _place(guide.text) if guide.kind == "json_schema" else ""
        raise GuideError(f"{place}: {reason}" if place else reason)
    return matcher


def _in_any_spelling(guide: Guide, grammar: str) -> str:
    if guide.kind not in ("json_schema", "regex"):  # Lark as it is
        return f"{grammar}\n{_ANY_SPELLING}\n"
    whole = json.loads(grammar)
    for each in whole["grammars"]:
        lark = each.get("lark_grammar") or f"start: %json {json.dumps(each.pop('json_schema'), ensure_ascii=False)}"
        each["lark_grammar"] = f"{lark}\n{_ANY_SPELLING}\n"
    return json.dumps(whole, ensure_ascii=False)


def _control(tokenizer: llguidance.LLTokenizer) -> dict[str, int]:
    """Returns the ids of control tokens by their texts. The byte 0xFF counts as one of llguidance's, and has none."""
    ids = filter(tokenizer.is_special_token, range(tokenizer.vocab_size))
    return {text: token for token in ids if (text := tokenizer.decode_str([token]))}


def _limits() -> llguidance.LLParserLimits:
    return LLParserLimits(max_lexer_states=MAX_LEXER_STATES, max_grammar_size=MAX_GRAMMAR_SIZE, verbose_errors=False)


def one_line(message: str) -> str:
    """Shortens a message of llguidance to one line for a status."""
    return " ".join(message.split())[:MAX_MESSAGE]


def _place(schema_text: str) -> str:
    """Returns the JSON pointer of the smallest sub-schema that cannot be compiled alone; empty if it is the whole."""
    root = json.loads(with_held_numbers(schema_text))
    shared = {key: root[key] for key in ("$defs", "definitions") if isinstance(root, dict) and key in root}
    checks = 0

    def fails(schema: object) -> bool:
        nonlocal checks
        checks += 1
        if checks > MAX_PLACE_CHECKS:
            return False
        whole = {**shared, **schema} if isinstance(schema, dict) else schema
        try:
            grammar = LLMatcher.grammar_from_json_schema(json.dumps(whole), defaults=JSON_DEFAULTS)
        except ValueError:
            return True
        return bool(LLMatcher.validate_grammar(grammar, limits=_limits()))

    pointer = ""
    schema = root
    while True:
        # Alone, true and false cannot be compiled; within a schema they can.
        for path, child in sub_schemas(schema) if isinstance(schema, dict) else ():
            if fails(child):
                pointer, schema = pointer + path, child
                break
        else:
            return pointer
