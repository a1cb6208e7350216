"""The formats that models were trained to write, as data."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tandem.tokenizer.answers import harmony
from tandem.tokenizer.answers.body import Body, JsonOr, Plain
from tandem.tokenizer.answers.elements_body import Elements
from tandem.tokenizer.answers.json_body import json_calls, keyed_calls
from tandem.tokenizer.answers.named_body import Declared, Named
from tandem.tokenizer.answers.nested_body import Nested
from tandem.tokenizer.answers.python_body import loose_list, python_lines, python_list
from tandem.tokenizer.answers.reader import Steps

BareBody = Callable[..., Steps[None]]


@dataclass(frozen=True)
class Calls:
    """Calls behind a marker. `ends` are the markers that may stand behind them; none where the calls show their end."""

    begin: str
    body: Body
    ends: tuple[str, ...] = ()
    keeps: str = ""  # the end of `begin` that is the body's already
    needs_end: bool = False  # what stands behind the calls belongs to them up to one of the ends


@dataclass(frozen=True)
class Format:
    """What a model writes around its reasoning and its calls; everything else is content."""

    name: str
    reasoning: tuple[tuple[str, str], ...] = (("<think>", "</think>"),)
    label: str = ""  # a line that stands first in the reasoning and is not told
    calls_end_reasoning: bool = False  # which has no end of its own then
    calls: tuple[Calls, ...] = ()
    bare: BareBody | None = None  # an answer may be a call without any marker
    bare_sign: str = ""  # with which that begins
    dropped: tuple[str, ...] = ()  # markers around calls that mean nothing by themselves
    dropped_content: tuple[str, ...] = ()  # and around content
    parts: tuple[str, ...] = ()  # control tokens that markers are made of
    is_harmony: bool = False

    def markers(self, with_calls: bool = True) -> frozenset[str]:
        """All texts that mean something here: control tokens that a parser must see."""
        if self.is_harmony:
            return frozenset(harmony.MARKERS)
        found = {marker for pair in self.reasoning for marker in pair} | set(self.dropped_content)
        if with_calls:
            found.update((*self.dropped, *self.parts))
            for calls in self.calls:
                found.update((calls.begin, *calls.ends, *calls.body.markers))
        return frozenset(found) - {""}


_JSON = Plain(json_calls)
_XML = Elements("<function=", ">", "<parameter=", ">", "", "</parameter>", "</function>", in_lines=True, several=True)
_GLM = Elements("", "", "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>", "")
_LONGCAT = Elements(
    "", "", "<longcat_arg_key>", "</longcat_arg_key>", "<longcat_arg_value>", "</longcat_arg_value>", ""
)
_MINIMAX = Elements('<invoke name="', '">', '<parameter name="', '">', "", "</parameter>", "</invoke>", several=True)
_DSML = Elements(
    '<｜DSML｜invoke name="', '">', '<｜DSML｜parameter name="', '">', "", "</｜DSML｜parameter>", "</｜DSML｜invoke>",
    several=True, text_close='" string="true">', json_close='" string="false">',
)  # fmt: skip
_DEEPSEEK = Named(("<｜tool▁sep｜>",), kind="function")
_MISTRAL = JsonOr("[{", Named(("[ARGS]", "{"), id_marker="[CALL_ID]"))
_KIMI = Named(("<|tool_call_argument_begin|>",), numbered=True)
_TAG = Named((">",))

_THINK = ("<think>", "</think>")
M3_MARK = "]<]minimax[>["
HUNYUAN_SUFFIX = ":opensource"  # of all markers of some of Hunyuan 3's and 4's models


def _hunyuan(suffix: str) -> Calls:
    call, key, value = (f"tool_call{suffix}>", f"arg_key{suffix}>", f"arg_value{suffix}>")
    body = Elements(
        f"<{call}", f"<tool_sep{suffix}>", f"<{key}", f"</{key}", f"<{value}", f"</{value}", f"</{call}",
        several=True, names_end=True,
    )  # fmt: skip
    return Calls(f"<tool_calls{suffix}>", body, (f"</tool_calls{suffix}>",), needs_end=True)


_HERMES = Calls("<tool_call>", _JSON, ("</tool_call>",), needs_end=True)
_TOOL_CALLS = Calls("<tool_calls>", _JSON, ("</tool_calls>",), needs_end=True)
_LIST = Calls("<|tool_call|>", _JSON, ("<|/tool_call|>", "</|tool_call|>"))

FORMATS = {
    each.name: each
    for each in (
        Format("none", reasoning=()),
        Format("think"),
        Format("json", bare=json_calls, bare_sign="{["),
        Format("hermes", calls=(_HERMES,)),
        Format(
            "qwen3-coder",
            calls=(
                Calls("<tool_call>", _XML, ("</tool_call>",), needs_end=True),
                Calls("<function=", _XML, ("</tool_call>",), keeps="<function="),
            ),
        ),
        Format(
            "llama3",
            calls=(
                Calls("<|python_tag|>", _JSON),
                Calls("<function=", _TAG, ("</function>",), needs_end=True),
            ),
            bare=json_calls,
            bare_sign="{",
            dropped=("<|eom_id|>",),
        ),
        Format(
            "pythonic",
            calls=(Calls("<|python_start|>", Plain(python_list), ("<|python_end|>",), needs_end=True),),
            bare=python_list,
            bare_sign="[",
            dropped=("<|eom_id|>",),
        ),
        Format("mistral", reasoning=(("[THINK]", "[/THINK]"), _THINK), calls=(Calls("[TOOL_CALLS]", _MISTRAL),)),
        Format(
            "deepseek",
            calls=(Calls("<｜tool▁call▁begin｜>", _DEEPSEEK, ("<｜tool▁call▁end｜>",), needs_end=True),),
            dropped=("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"),
        ),
        Format(
            "glm",
            calls=(Calls("<tool_call>", _GLM, ("</tool_call>",), needs_end=True),),
            dropped_content=("<|assistant|>",),
        ),
        Format("minimax", calls=(Calls("<minimax:tool_call>", _MINIMAX, ("</minimax:tool_call>",), needs_end=True),)),
        Format(
            "minimax-m3",
            reasoning=(("<mm:think>", "</mm:think>"),),
            calls=(Calls(f"{M3_MARK}<tool_call>", Nested(M3_MARK), (f"{M3_MARK}</tool_call>",), needs_end=True),),
            parts=("<tool_call>", "</tool_call>"),
        ),
        Format("phi4", calls=(_LIST, Calls("functools[", _JSON, keeps="["))),
        Format(
            "granite",
            reasoning=(("Here is my thought process:", "Here is my response:"), _THINK),
            calls=(_LIST, _HERMES),
            dropped_content=("<response>", "</response>"),
        ),
        Format(
            "gemma",
            calls=(
                Calls("<start_function_call>", Declared("<escape>"), ("<end_function_call>",), needs_end=True),
                Calls("```tool_code", Plain(python_lines), ("```",), needs_end=True),
            ),
            bare=python_list,
            bare_sign="[",
        ),
        Format(
            "gemma4",
            reasoning=(("<|channel>", "<channel|>"),),
            label="thought",
            calls_end_reasoning=True,
            calls=(Calls("<|tool_call>", Declared('<|"|>'), ("<tool_call|>",), needs_end=True),),
            dropped_content=("<channel|>",),
        ),
        Format(
            "lfm2",
            calls=(Calls("<|tool_call_start|>", Plain(loose_list), ("<|tool_call_end|>",), needs_end=True),),
            dropped=("<|tool_call_end|>",),
        ),
        Format(
            "olmo3", calls=(Calls("<function_calls>", Plain(python_lines), ("</function_calls>",), needs_end=True),)
        ),
        Format("jamba", calls=(_TOOL_CALLS,)),
        Format(
            "apriel",
            reasoning=(("Here are my reasoning steps:", "[BEGIN FINAL RESPONSE]"), _THINK),
            calls=(_TOOL_CALLS,),
            dropped_content=("[END FINAL RESPONSE]",),
        ),
        Format("nemotron", calls=(Calls("<TOOLCALL>", _JSON, ("</TOOLCALL>",), needs_end=True),)),
        Format("hunyuan", calls=(_TOOL_CALLS,), dropped_content=("<answer>", "</answer>")),
        Format(
            "hunyuan3",
            reasoning=(_THINK, (f"<think{HUNYUAN_SUFFIX}>", f"</think{HUNYUAN_SUFFIX}>")),
            calls=(_hunyuan(""), _hunyuan(HUNYUAN_SUFFIX)),
        ),
        Format("ernie", calls=(_HERMES,), dropped_content=("<response>", "</response>")),
        Format(
            "longcat",
            reasoning=(("<longcat_think>", "</longcat_think>"), _THINK),
            calls=(Calls("<longcat_tool_call>", JsonOr("{", _LONGCAT), ("</longcat_tool_call>",), needs_end=True),),
        ),
        Format(
            "apertus",
            reasoning=(("<|inner_prefix|>", "<|inner_suffix|>"),),
            calls_end_reasoning=True,
            calls=(Calls("<|tools_prefix|>", Plain(keyed_calls), ("<|tools_suffix|>",), needs_end=True),),
            dropped_content=("<|inner_suffix|>",),
        ),
        Format(
            "dsml",
            parts=("｜DSML｜",),
            calls=tuple(
                Calls(f"<｜DSML｜{name}>", _DSML, (f"</｜DSML｜{name}>",), needs_end=True)
                for name in ("function_calls", "tool_calls")
            ),
        ),
        Format(
            "cohere",
            reasoning=(("<|START_THINKING|>", "<|END_THINKING|>"),),
            calls=(Calls("<|START_ACTION|>", _JSON, ("<|END_ACTION|>",), needs_end=True),),
            dropped_content=("<|START_RESPONSE|>", "<|END_RESPONSE|>"),
        ),
        Format(
            "kimi",
            reasoning=(("◁think▷", "◁/think▷"), _THINK),
            calls=(Calls("<|tool_call_begin|>", _KIMI, ("<|tool_call_end|>",), needs_end=True),),
            calls_end_reasoning=True,
            dropped=("<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"),
        ),
        Format(
            "seed",
            reasoning=(("<seed:think>", "</seed:think>"),),
            calls=(Calls("<seed:tool_call>", _XML, ("</seed:tool_call>",), needs_end=True),),
        ),
        Format("harmony", reasoning=(), is_harmony=True),
    )
}


def opened_within(form: Format, text: str) -> str | None:
    """Returns the marker of reasoning that this beginning of an answer has begun, and not ended; None for none."""
    begin, end = max(form.reasoning, key=lambda marks: text.rfind(marks[0]), default=("", ""))
    return begin if text.rfind(begin) > text.rfind(end) else None


def opened_by(form: Format, text: str) -> str | None:
    """Returns the marker with which a prompt of this end has begun the reasoning of the answer; None where it has
    not."""
    text = text.rstrip()
    if form.label:
        text = text.removesuffix(form.label).rstrip()
    return next((begin for begin, _ in form.reasoning if text.endswith(begin)), None)
