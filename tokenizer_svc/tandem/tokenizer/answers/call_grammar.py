"""Grammars of answers that call tools as a format writes it, with arguments as the tools' schemas have them.

    required:  reasoning? group                          group = lead head call (between call)* tail
    a schema:  reasoning? (group | JSON)
    else:      reasoning? (text group)* text

`lead` is the marker with which calls begin. What the parser of the format reads is wider than what is written here.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tandem.common.held_numbers import NotHeldError
from tandem.common.lark import TEXT, Rules, json_value
from tandem.common.sub_schemas import escaped
from tandem.tokenizer.answers.call_values import Elements, NotWrittenError, keywords, python_value, schema_of
from tandem.tokenizer.answers.escaped_values import escaped_object
from tandem.tokenizer.answers.formats import FORMATS, HUNYUAN_SUFFIX, M3_MARK, Format

_SPACE = r"/[ \n]{0,4}/"
_DIGITS = "/[0-9]{1,3}/"

WriteCall = Callable[[Rules, "Tool"], str]


@dataclass(frozen=True)
class Tool:
    """A tool that may be called."""

    name: str
    schema: Mapping[str, Any]  # of its arguments, an object
    place: str  # in the request, for what cannot be written

    @classmethod
    def of(cls, given: Mapping[str, Any], place: str, *, held: bool = True) -> Tool:
        """Returns a tool as chat templates get it; without `held` any object may be its arguments. Raises
        NotWrittenError."""
        inner = given.get("function", given)
        name = inner.get("name") if isinstance(inner, Mapping) else None
        if not isinstance(name, str) or not name:
            raise NotWrittenError(f"{place}: a tool that is to be called needs a name")
        return cls(name, schema_of(inner) if held else {"type": "object"}, place)


@dataclass(frozen=True)
class Content:
    """JSON that a schema allows, which an answer is where it calls no tool."""

    schema: Any
    place: str  # in the request, for what cannot be written

    def written(self, tools: Sequence[Tool] = (), arguments: str = "") -> str:
        """Returns its form, or that of it or one call, which is JSON with these `arguments`. Raises NotWrittenError."""
        schema = self.schema
        if tools:
            calls = [_call_schema(tool, arguments, f"/anyOf/{index}") for index, tool in enumerate(tools)]
            schema = {"anyOf": [*calls, _moved(schema, f"/anyOf/{len(calls)}")]}
        try:
            return json_value(schema)
        except NotHeldError as error:
            raise NotWrittenError(f"{self.place}: {error}") from None


def _call_schema(tool: Tool, arguments: str, pointer: str) -> dict[str, Any]:
    given = _moved(tool.schema, f"{pointer}/properties/{escaped(arguments)}")
    return {
        "type": "object",
        "properties": {"name": {"const": tool.name}, arguments: given},
        "required": ["name", arguments],
        "additionalProperties": False,
    }


def _moved(schema: Any, pointer: str) -> Any:
    """Returns a schema whose references lead to the same places once it stands at `pointer` of another."""
    if isinstance(schema, list):
        return [_moved(each, pointer) for each in schema]
    if not isinstance(schema, Mapping):
        return schema
    found = {key: _moved(value, pointer) for key, value in schema.items()}
    if isinstance(ref := schema.get("$ref"), str) and ref.startswith("#"):
        found["$ref"] = f"#{pointer}{ref[1:]}"
    return found


def is_strict(given: Mapping[str, Any]) -> bool:
    """Returns True for a tool that says so."""
    inner = given.get("function", given)
    return given.get("strict") is True or (isinstance(inner, Mapping) and inner.get("strict") is True)


@dataclass(frozen=True)
class Writing:
    """How a format writes calls; see above. Where `between` is None there is one call at most."""

    call: WriteCall
    lead: str = ""
    head: str = ""
    between: str | None = None
    tail: str = ""
    arguments: str = ""  # where calls are JSON without a mark: the key of their arguments


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _json_call(key: str = "arguments", before: str = "", behind: str = "") -> WriteCall:
    def write(rules: Rules, tool: Tool) -> str:
        begin = f'{before}{{"name": {_quoted(tool.name)}, "{key}": '
        return f"{rules.literal(begin)} {json_value(tool.schema)} {rules.literal('}' + behind)}"

    return write


def _named_call(before: str, behind: str, end: str, numbered: bool = False) -> WriteCall:
    def write(rules: Rules, tool: Tool) -> str:
        name = rules.literal(before + tool.name + (":" if numbered else ""))
        number = _DIGITS if numbered else ""
        return f"{name} {number} {rules.literal(behind)} {json_value(tool.schema)} {rules.literal(end)}"

    return write


def _cohere(rules: Rules, tool: Tool) -> str:
    begin = rules.literal('{"tool_call_id": "')
    named = rules.literal(f'", "tool_name": {_quoted(tool.name)}, "parameters": ')
    return f"{begin} {_DIGITS} {named} {json_value(tool.schema)} {rules.literal('}')}"


def _elements(elements: Elements) -> WriteCall:
    return lambda rules, tool: elements.write(rules, tool.name, tool.schema, tool.place)


def _python(value: Callable[[Any], str] = python_value) -> WriteCall:
    def write(rules: Rules, tool: Tool) -> str:
        values = keywords(rules, tool.schema, tool.place, value)
        return f"{rules.literal(tool.name + '(')} {values} {rules.literal(')')}"

    return write


def _keyed(rules: Rules, tool: Tool) -> str:
    return f"{rules.literal(f'{{{_quoted(tool.name)}: ')} {json_value(tool.schema)} {rules.literal('}')}"


def _declared(delimiter: str, end: str) -> WriteCall:
    def write(rules: Rules, tool: Tool) -> str:
        arguments = escaped_object(rules, tool.schema, tool.place, delimiter)
        return f"{rules.literal('call:' + tool.name)} {arguments} {rules.literal(end)}"

    return write


_M3 = Elements(f'{M3_MARK}<invoke name="{{}}">\n', f"{M3_MARK}<{{}}>", f"{M3_MARK}</{{}}>\n", f"{M3_MARK}</invoke>")
_JSON = _json_call()
_HERMES = Writing(_json_call(before="\n", behind="\n</tool_call>"), "<tool_call>", between="\n<tool_call>")
_XML = Elements("\n<function={}>\n", "<parameter={}>\n", "\n</parameter>\n", "</function>")


def _listed(lead: str, tail: str) -> Writing:
    return Writing(_JSON, lead, "[", ", ", f"]{tail}")


def _tagged(lead: str, elements: Elements, tail: str) -> Writing:
    return Writing(_elements(elements), lead, between=f"{tail}\n{lead}", tail=tail)


def _dsml(group: str) -> Writing:
    elements = Elements(
        '<｜DSML｜invoke name="{}">\n', '<｜DSML｜parameter name="{}" string="{is_text}">', "</｜DSML｜parameter>\n",
        "</｜DSML｜invoke>",
    )  # fmt: skip
    return Writing(_elements(elements), f"<｜DSML｜{group}>", "\n", "\n", f"\n</｜DSML｜{group}>")


def writing_of(form: Format, template: str, control: Mapping[str, int]) -> Writing:
    """Returns how a model with this template and these control tokens writes calls; formats without calls write
    JSON."""
    name = form.name
    if name == "hermes" or (name == "granite" and "<tool_call>" in template):
        return _HERMES
    if name == "deepseek" and "```json" not in template:
        call = _named_call("<｜tool▁call▁begin｜>", "<｜tool▁sep｜>", "<｜tool▁call▁end｜>")
        return Writing(call, "<｜tool▁calls▁begin｜>", "", "", "<｜tool▁calls▁end｜>")
    if name == "mistral" and "[ARGS]" not in control:
        return _listed("[TOOL_CALLS]" + (" " if "[TOOL_CALLS] [" in template else ""), "")
    if name == "gemma" and "<start_function_call>" not in template:
        return Writing(_python(), "```tool_code", "\n", "\n", "\n```")
    if name == "glm" and "</arg_key><arg_value>" in template:
        return _glm("")
    if name == "hunyuan3":
        return _hunyuan3(template)
    if name == "longcat":
        return _longcat(template)
    if name == "dsml" and "function_calls" in template:
        return _dsml("function_calls")
    return _WRITINGS.get(name, _PLAIN)


def _glm(line: str) -> Writing:
    """Up to GLM 4.6 with line breaks, from 4.7 on without."""
    elements = Elements(f"{{}}{line}", f"<arg_key>{{}}</arg_key>{line}<arg_value>", f"</arg_value>{line}", "")
    call = _elements(elements)
    return Writing(call, "<tool_call>", between=f"</tool_call>{line}<tool_call>", tail="</tool_call>")


def _hunyuan3(template: str) -> Writing:
    """Returns how Hunyuan 3 writes calls: the second generation's markers have a suffix, the fourth has no <tool_sep>
    and no line breaks."""
    suffix = HUNYUAN_SUFFIX if f"{HUNYUAN_SUFFIX}>" in template else ""
    line, sep = ("\n", f"<tool_sep{suffix}>") if "<tool_sep" in template else ("", "")
    elements = Elements(
        f"{line}<tool_call{suffix}>{{}}{sep}{line}",
        f"<arg_key{suffix}>{{}}</arg_key{suffix}>{line}<arg_value{suffix}>",
        f"</arg_value{suffix}>{line}",
        f"</tool_call{suffix}>",
    )
    return Writing(_elements(elements), f"<tool_calls{suffix}>", between="", tail=f"{line}</tool_calls{suffix}>")


def _longcat(template: str) -> Writing:
    """Returns how LongCat writes calls: the first as JSON, later ones parameter by parameter."""
    if "<longcat_arg_key>" not in template:
        call = _json_call(before="\n", behind="\n</longcat_tool_call>")
        return Writing(call, "<longcat_tool_call>", between="\n<longcat_tool_call>")
    elements = Elements("{}\n", "<longcat_arg_key>{}</longcat_arg_key>\n<longcat_arg_value>",
                        "</longcat_arg_value>\n", "")  # fmt: skip
    return _tagged("<longcat_tool_call>", elements, "</longcat_tool_call>")


_PLAIN = Writing(_JSON, head="[", between=", ", tail="]")
_WRITINGS = {
    "llama3": Writing(_json_call(key="parameters"), between="; ", arguments="parameters"),
    "pythonic": Writing(_python(), head="[", between=", ", tail="]"),
    "qwen3-coder": _tagged("<tool_call>", _XML, "\n</tool_call>"),
    "mistral": Writing(_named_call("", "[ARGS]", ""), "[TOOL_CALLS]", between="[TOOL_CALLS]"),
    "deepseek": Writing(
        _named_call("<｜tool▁call▁begin｜>function<｜tool▁sep｜>", "\n```json\n", "\n```<｜tool▁call▁end｜>"),
        "<｜tool▁calls▁begin｜>", "", "\n", "<｜tool▁calls▁end｜>",
    ),
    "glm": _glm("\n"),
    "minimax": Writing(
        _elements(Elements('<invoke name="{}">\n', '<parameter name="{}">', "</parameter>\n", "</invoke>")),
        "<minimax:tool_call>", "\n", "\n", "\n</minimax:tool_call>",
    ),
    "minimax-m3": Writing(
        _elements(_M3),
        f"{M3_MARK}<tool_call>", "\n", "\n", f"\n{M3_MARK}</tool_call>",
    ),
    "phi4": _listed("<|tool_call|>", "<|/tool_call|>"),
    "granite": _listed("<|tool_call|>", ""),
    "gemma": Writing(
        _declared("<escape>", "<end_function_call>"), "<start_function_call>", between="<start_function_call>"
    ),
    "gemma4": Writing(_declared('<|"|>', "<tool_call|>"), "<|tool_call>", between="<|tool_call>"),
    "lfm2": Writing(_python(), "<|tool_call_start|>", "[", ", ", "]<|tool_call_end|>"),
    "olmo3": Writing(_python(json_value), "<function_calls>", "", "\n", "</function_calls>"),
    "jamba": _listed("<tool_calls>", "</tool_calls>"),
    "apriel": _listed("<tool_calls>", "</tool_calls>"),
    "hunyuan": _listed("<tool_calls>", "</tool_calls>"),
    "nemotron": _listed("<TOOLCALL>", "</TOOLCALL>"),
    "ernie": _HERMES,
    "apertus": Writing(_keyed, "<|tools_prefix|>", "[", ", ", "]<|tools_suffix|>"),
    "dsml": _dsml("tool_calls"),
    "cohere": Writing(_cohere, "<|START_ACTION|>", "[\n", ", ", "\n]<|END_ACTION|>"),
    "kimi": Writing(
        _named_call("<|tool_call_begin|>functions.", "<|tool_call_argument_begin|>", "<|tool_call_end|>", True),
        "<|tool_calls_section_begin|>", "", "", "<|tool_calls_section_end|>",
    ),
    "seed": _tagged("<seed:tool_call>", _XML, "\n</seed:tool_call>"),
    "harmony": Writing(
        _named_call(" to=functions.", " <|constrain|>json<|message|>", ""), "<|channel|>commentary"
    ),
}  # fmt: skip


def knows_calls(form: Format | None) -> bool:
    """Returns True for a format that has calls of its own."""
    return form is not None and (bool(form.calls) or bool(form.bare) or form.is_harmony)


def called_format(form: Format | None) -> Format:
    """Returns the format in which calls are asked for: those that know none, as no template told, become JSON."""
    return form if form is not None and knows_calls(form) else FORMATS["json"]


def call_grammar(
    form: Format,
    tools: Sequence[Tool],
    *,
    template: str = "",
    control: Mapping[str, int],
    required: bool,
    several: bool = True,
    opened: str | None = None,
    reasons: bool = True,
    content: Content | None = None,
) -> str:
    """Returns the Lark grammar of an answer. `opened` is the marker of the reasoning that the prompt has begun; without
    `reasons` the grammar begins behind the reasoning. `content` is what it may be where no calls are required and it
    has none; None: any text, with calls in it. Raises NotWrittenError."""
    rules = Rules(control)
    writing = writing_of(form, template, control)
    call = rules.rule(" | ".join(_written(writing.call, rules, tool) for tool in tools))
    more = f"({rules.literal(writing.between)} {call})*" if several and writing.between is not None else ""
    rest = f"{rules.literal(writing.head)} {call} {more} {rules.literal(writing.tail)}"
    thinks = _reasoning(rules, form, template, opened) if reasons else ""
    if required:
        return rules.grammar(f"{thinks} {rules.literal(writing.lead)} {rest}")
    marks = " | ".join(rules.literal(mark) for mark in form.dropped_content if mark in control)
    text = TEXT
    if content is not None:
        # The beginning of a call and that of other JSON cannot be told apart by what reads them whole.
        text = content.written(tools if writing.arguments else (), writing.arguments)
    if form.is_harmony:
        said = f"{rules.literal(writing.lead)} {rest} | {rules.literal('<|channel|>final<|message|>')} {text}"
    elif content is not None:
        said = text if writing.arguments else f"{rules.literal(writing.lead)} {rest} | {text}"
        if marks:
            said = f"({marks})? ({said}) ({marks})?"
    elif writing.lead:
        group = f"{rules.up_to(writing.lead)} {rest}"
        said = f"({group})* {TEXT}" if several else f"{group} | {TEXT}"
        if marks:
            said = f"({TEXT} ({marks}))* ({said} ({marks})?)"
    else:
        signs = "".join(f"\\{sign}" for sign in form.bare_sign)
        said = rf'{rest} | /[^{signs}](.|\n)*/ | ""'
    return rules.grammar(f"{thinks} ({said})")


def _written(call: WriteCall, rules: Rules, tool: Tool) -> str:
    try:
        return call(rules, tool)
    except NotHeldError as error:
        raise NotWrittenError(f"{tool.place}: {error}") from None


def _reasoning(rules: Rules, form: Format, template: str, opened: str | None) -> str:
    """Returns the grammar of what may stand before the calls; a model whose template knows no reasoning has none."""
    if form.is_harmony:
        told = rules.up_to("<|end|><|start|>assistant")
        return f"({rules.literal('<|channel|>analysis<|message|>')} {told})?"
    if opened is not None:
        return f"{rules.up_to(dict(form.reasoning)[opened])} {_SPACE}"
    pairs = [pair for pair in form.reasoning if any(mark in template for mark in pair)]
    thoughts = [f"{rules.literal(begin)} {rules.up_to(end)} {_SPACE}" for begin, end in pairs]
    return f"({' | '.join(thoughts)})?" if thoughts else ""
