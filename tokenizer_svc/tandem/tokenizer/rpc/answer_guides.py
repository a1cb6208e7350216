"""What EncodeChat tells of the answer to come: its format, the marks of its reasoning, and the grammar of its calls."""

from __future__ import annotations

import json
from collections.abc import Sequence

from tandem.common.errors import FieldViolation, invalid_argument
from tandem.tokenizer.answers.call_grammar import Content, Tool, call_grammar, called_format, is_strict, knows_calls
from tandem.tokenizer.answers.call_values import NotWrittenError
from tandem.tokenizer.answers.formats import FORMATS, Format, opened_by, opened_within
from tandem.tokenizer.answers.harmony import FINAL
from tandem.tokenizer.chat.named_templates import template_for
from tandem.tokenizer.encoding import Policy, Segment
from tandem.tokenizer.rpc.loaded import Loaded
from tandem.tokenizer.rpc.validation import Violations, read_tools
from tandem.tokenizer.v1 import tokenizer_pb2 as pb
from tandem.tokenizer.vocabulary import TokenType

_SHOWN = 20  # names in an error


def check_answer(request: pb.EncodeChatRequest, violations: Violations) -> None:
    """Adds what is wrong with the guiding that is asked for, its tools aside."""
    if request.answer.format and request.answer.format not in FORMATS:
        violations.add("answer.format", f"must be one of {', '.join(FORMATS)}")
    if request.answer.HasField("calls") and not request.tools:
        violations.add("answer.calls", "needs tools")
    if request.answer.calls.content_schema and request.answer.calls.required:
        violations.add("answer.calls.content_schema", "cannot be beside required: such an answer calls tools alone")


def answer_guide(request: pb.EncodeChatRequest, loaded: Loaded, text: str) -> pb.AnswerGuide:
    """Returns what guides the answer to a prompt that has this text. Raises INVALID_ARGUMENT."""
    asked = request.answer
    form = FORMATS[asked.format] if asked.format else loaded.answer_format
    calls = asked.HasField("calls") and (not asked.calls.content_schema or knows_calls(form))
    if calls:
        form = called_format(form)
    form = form or FORMATS["none"]
    guide = pb.AnswerGuide(format=form.name)
    opened, continues = opened_by(form, text), request.continue_final_message
    if continues:
        opened = opened or opened_within(form, request.messages[-1].content)
    guide.in_reasoning = opened is not None or (form.is_harmony and not continues)
    # In harmony, calls come in place of the channel that ends the reasoning, and a message that was begun has none.
    if not (form.is_harmony and (request.tools or continues)):
        begin_ids, end_ids = reasoning_ids(form, loaded, opened)
        guide.reasoning_begin_ids.extend(begin_ids)
        guide.reasoning_end_ids.extend(end_ids)
    if calls:
        tools = _tools(request, asked.calls)
        marks = sorted(
            (loaded.specials[text] for text in form.markers() & loaded.specials.keys()), key=lambda token: token.id
        )
        control = {token.text: token.id for token in marks if token.type == TokenType.CONTROL}
        try:
            guide.grammar = call_grammar(
                form,
                tools,
                template=template_for(loaded.template, has_tools=True) or "",
                control=control,
                required=asked.calls.required,
                several=not asked.calls.single,
                opened=opened,
                reasons=not asked.calls.behind_reasoning,
                content=_content(asked.calls),
            )
        except NotWrittenError as error:
            raise _wrong_tool(error) from None
    return guide


def reasoning_ids(form: Format | None, loaded: Loaded, opened: str | None = None) -> tuple[list[int], list[int]]:
    """Returns the marks around the reasoning, those that begin with `opened` if that is not None. Empty where they are
    not tokens: what is spelled may be spelled by other ids as well."""
    if form is None:
        return [], []
    if form.is_harmony:
        marker = Segment(FINAL, Policy.PARSE)
        return [], loaded.tokenizer.encode_segments([marker], add_special=False).id_array.tolist()
    for begin, end in form.reasoning:
        if begin in loaded.specials and end in loaded.specials and opened in (None, begin):
            return [loaded.specials[begin].id], [loaded.specials[end].id]
    return [], []


def _tools(request: pb.EncodeChatRequest, asked: pb.CallChoice) -> Sequence[Tool]:
    given = read_tools(request.tools, "tools")
    try:
        tools = [
            Tool.of(tool, f"tools[{index}]", held=asked.required or is_strict(tool)) for index, tool in enumerate(given)
        ]
    except NotWrittenError as error:
        raise _wrong_tool(error) from None
    if not asked.names:
        return tools
    known = {tool.name for tool in tools}
    if missing := sorted(set(asked.names) - known):
        told = ", ".join(sorted(known)[:_SHOWN])
        raise invalid_argument(
            [FieldViolation("answer.calls.names", f"there is no tool {missing[0]!r}; there are {told}")]
        )
    return [tool for tool in tools if tool.name in asked.names]


def _content(asked: pb.CallChoice) -> Content | None:
    if not asked.content_schema:
        return None
    place = "answer.calls.content_schema"
    try:
        return Content(json.loads(asked.content_schema), place)
    except (ValueError, RecursionError) as error:
        raise NotWrittenError(f"{place}: is not valid JSON: {error}") from None


def _wrong_tool(error: NotWrittenError) -> Exception:
    place, _, description = str(error).partition(": ")
    return invalid_argument([FieldViolation(place, description)])
