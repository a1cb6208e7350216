"""Answers as models of each format write them, and what is done to them: cuts and mutations."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from tandem.tokenizer.answers.events import Event, Kind, joined
from tandem.tokenizer.answers.formats import FORMATS
from tandem.tokenizer.answers.parser import AnswerParser
from tandem.tokenizer.answers.writer import types_of

Arguments = dict[str, Any]

TOOLS: list[dict[str, Any]] = [
    {"type": "function", "function": {"name": name, "parameters": {"type": "object", "properties": {}}}}
    for name in ("look_up", "book.flight", "f")
]


@dataclass
class Answer:
    """What a model means to say."""

    reasoning: str = ""
    content: str = ""
    calls: list[tuple[str, Arguments]] = field(default_factory=list)


def _json(arguments: Arguments) -> str:
    return json.dumps(arguments, ensure_ascii=False)


def _object(name: str, arguments: Arguments, key: str = "arguments") -> str:
    return _json({"name": name, key: arguments})


def _text(value: Any) -> str:
    return value if isinstance(value, str) else _json(value)


def _literal(value: Any) -> str:
    return repr(value)


def _gemma(value: Any, delimiter: str) -> str:
    if isinstance(value, str):
        return f"{delimiter}{value}{delimiter}"
    if isinstance(value, dict):
        return "{" + ",".join(f"{key}:{_gemma(each, delimiter)}" for key, each in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ",".join(_gemma(each, delimiter) for each in value) + "]"
    return _json(value)


def _think(reasoning: str, begin: str = "<think>\n", end: str = "\n</think>\n\n") -> str:
    return f"{begin}{reasoning}{end}" if reasoning else ""


def _tagged(write: Callable[[str, Arguments], str], begin: str = "\n<tool_call>\n", end: str = "\n</tool_call>") -> Any:
    return lambda answer: (
        _think(answer.reasoning)
        + answer.content
        + "".join(begin + write(name, arguments) + end for name, arguments in answer.calls)
    )


def _xml(name: str, arguments: Arguments) -> str:
    parameters = "".join(f"<parameter={key}>\n{_text(value)}\n</parameter>\n" for key, value in arguments.items())
    return f"<function={name}>\n{parameters}</function>"


def _glm(name: str, arguments: Arguments) -> str:
    return name + "".join(
        f"\n<arg_key>{key}</arg_key>\n<arg_value>{_text(value)}</arg_value>" for key, value in arguments.items()
    )


def _glm47(name: str, arguments: Arguments) -> str:
    return _glm(name, arguments).replace("\n<arg_", "<arg_")


def _minimax(name: str, arguments: Arguments) -> str:
    parameters = "".join(f'<parameter name="{key}">{_text(value)}</parameter>\n' for key, value in arguments.items())
    return f'<invoke name="{name}">\n{parameters}</invoke>'


def _python(calls: Sequence[tuple[str, Arguments]]) -> str:
    written = (f"{name}({', '.join(f'{k}={_literal(v)}' for k, v in arguments.items())})" for name, arguments in calls)
    return f"[{', '.join(written)}]"


def _list(calls: Sequence[tuple[str, Arguments]], key: str = "arguments") -> str:
    return f"[{', '.join(_object(name, arguments, key) for name, arguments in calls)}]"


def _bare(write: Callable[[Sequence[tuple[str, Arguments]]], str]) -> Callable[[Answer], str]:
    """A call is the whole answer."""
    return lambda answer: _think(answer.reasoning) + (write(answer.calls) if answer.calls else answer.content)


def _mistral(answer: Answer) -> str:
    text = _think(answer.reasoning, "[THINK]", "[/THINK]") + answer.content
    return text + "".join(f"[TOOL_CALLS]{name}[ARGS]{_json(arguments)}" for name, arguments in answer.calls)


def _mistral_list(answer: Answer) -> str:
    return answer.content + (f"[TOOL_CALLS] {_list(answer.calls)}" if answer.calls else "")


def _deepseek(fenced: bool) -> Callable[[Answer], str]:
    def one(name: str, arguments: Arguments) -> str:
        body = f"function<｜tool▁sep｜>{name}\n```json\n{_json(arguments)}\n```" if fenced else (
            f"{name}<｜tool▁sep｜>{_json(arguments)}"
        )  # fmt: skip
        return f"<｜tool▁call▁begin｜>{body}<｜tool▁call▁end｜>"

    def write(answer: Answer) -> str:
        calls = "\n".join(one(*call) for call in answer.calls)
        inner = f"<｜tool▁calls▁begin｜>{calls}<｜tool▁calls▁end｜>" if calls else ""
        return _think(answer.reasoning) + answer.content + inner

    return write


def _kimi(answer: Answer) -> str:
    calls = "".join(
        f"<|tool_call_begin|>functions.{name}:{index}<|tool_call_argument_begin|>{_json(arguments)}<|tool_call_end|>"
        for index, (name, arguments) in enumerate(answer.calls)
    )
    inner = f"<|tool_calls_section_begin|>{calls}<|tool_calls_section_end|>" if calls else ""
    return _think(answer.reasoning, "◁think▷", "◁/think▷") + answer.content + inner


def _granite(answer: Answer) -> str:
    text = _think(answer.reasoning, "Here is my thought process:\n", "\nHere is my response:\n") + answer.content
    return text + (f"\n<|tool_call|>{_list(answer.calls)}" if answer.calls else "")


def _cohere(answer: Answer) -> str:
    text = _think(answer.reasoning, "<|START_THINKING|>", "<|END_THINKING|>")
    if answer.content:
        text += f"<|START_RESPONSE|>{answer.content}<|END_RESPONSE|>"
    objects = (
        _json({"tool_call_id": str(i), "tool_name": n, "parameters": a}) for i, (n, a) in enumerate(answer.calls)
    )
    return text + (f"<|START_ACTION|>[\n{', '.join(objects)}\n]<|END_ACTION|>" if answer.calls else "")


def _seed(answer: Answer) -> str:
    text = _think(answer.reasoning, "<seed:think>", "</seed:think>") + answer.content
    return text + "".join(f"<seed:tool_call>\n{_xml(*call)}\n</seed:tool_call>" for call in answer.calls)


def _harmony(answer: Answer) -> str:
    messages = []
    if answer.reasoning:
        messages.append(f"<|channel|>analysis<|message|>{answer.reasoning}")
    if answer.content:
        channel = "commentary" if answer.calls else "final"
        messages.append(f"<|channel|>{channel}<|message|>{answer.content}")
    messages += [
        f"<|channel|>commentary to=functions.{name} <|constrain|>json<|message|>{_json(arguments)}"
        for name, arguments in answer.calls
    ]
    return "<|end|><|start|>assistant".join(messages)


def _gemma_calls(answer: Answer) -> str:
    return answer.content + "".join(
        f"<start_function_call>call:{name}{_gemma(arguments, '<escape>')}<end_function_call>"
        for name, arguments in answer.calls
    )


def _gemma4(answer: Answer) -> str:
    text = _think(answer.reasoning, "<|channel>thought\n", "<channel|>") or "<|channel>thought\n<channel|>"
    calls = ((name, _gemma(arguments, '<|"|>')) for name, arguments in answer.calls)
    return text + answer.content + "".join(f"<|tool_call>call:{name}{written}<tool_call|>" for name, written in calls)


def _gemma_code(answer: Answer) -> str:
    calls = "\n".join(f"print({_python([call])[1:-1]})" for call in answer.calls)
    return answer.content + (f"\n```tool_code\n{calls}\n```" if calls else "")


def _functools(answer: Answer) -> str:
    return answer.content + (f"functools{_list(answer.calls)}" if answer.calls else "")


def _listed(answer: Answer) -> str:
    return answer.content + (f"<|tool_call|>{_list(answer.calls)}<|/tool_call|>" if answer.calls else "")


def _lfm2(json_calls: bool = False) -> Callable[[Answer], str]:
    write = _list if json_calls else _python
    return lambda answer: (
        _think(answer.reasoning)
        + answer.content
        + (f"<|tool_call_start|>{write(answer.calls)}<|tool_call_end|>" if answer.calls else "")
    )


def _olmo3(answer: Answer) -> str:
    lines = (
        f"{name}({', '.join(f'{k}={_json(v)}' for k, v in arguments.items())})" for name, arguments in answer.calls
    )
    calls = f"<function_calls>{chr(10).join(lines)}</function_calls>" if answer.calls else ""
    return _think(answer.reasoning) + answer.content + calls


def _tool_calls(answer: Answer) -> str:
    calls = f"\n<tool_calls>\n{_list(answer.calls)}\n</tool_calls>" if answer.calls else ""
    return _think(answer.reasoning) + answer.content + calls


def _hunyuan(answer: Answer) -> str:
    text = _think(answer.reasoning) + f"<answer>\n{answer.content}\n"
    return text + (f"<tool_calls>{_list(answer.calls)}</tool_calls>\n</answer>" if answer.calls else "</answer>")


def _hunyuan3(suffix: str = "", line: str = "\n", sep: bool = True) -> Callable[[Answer], str]:
    def one(name: str, arguments: Arguments) -> str:
        pairs = "".join(
            f"<arg_key{suffix}>{key}</arg_key{suffix}>{line}<arg_value{suffix}>{_text(value)}</arg_value{suffix}>{line}"
            for key, value in arguments.items()
        )
        begin = f"<tool_call{suffix}>{name}" + (f"<tool_sep{suffix}>" if sep else "")
        return f"{begin}{line}{pairs}</tool_call{suffix}>{line}"

    def write(answer: Answer) -> str:
        calls = line + "".join(one(*call) for call in answer.calls)
        text = _think(answer.reasoning, f"<think{suffix}>", f"</think{suffix}>") + answer.content
        return text + (f"<tool_calls{suffix}>{calls}</tool_calls{suffix}>" if answer.calls else "")

    return write


def _ernie(answer: Answer) -> str:
    text = _think(answer.reasoning) + (f"<response>\n{answer.content}\n</response>\n" if answer.content else "")
    calls = (f"\n<tool_call>\n{_object(*call)}\n</tool_call>\n" for call in answer.calls)
    return text + "".join(calls)


def _longcat(write: Callable[[str, Arguments], str]) -> Callable[[Answer], str]:
    return lambda answer: (
        _think(answer.reasoning, "<longcat_think>\n", "\n</longcat_think>\n")
        + answer.content
        + "".join(f"\n<longcat_tool_call>{write(*call)}\n</longcat_tool_call>" for call in answer.calls)
    )


def _longcat_pairs(name: str, arguments: Arguments) -> str:
    return name + "".join(
        f"\n<longcat_arg_key>{key}</longcat_arg_key>\n<longcat_arg_value>{_text(value)}</longcat_arg_value>"
        for key, value in arguments.items()
    )


def _apertus(answer: Answer) -> str:
    text = _think(answer.reasoning, "<|inner_prefix|>", "<|inner_suffix|>") + answer.content
    calls = _json([{name: arguments} for name, arguments in answer.calls])  # type: ignore[arg-type]
    return text + (f"<|tools_prefix|>{calls}<|tools_suffix|>" if answer.calls else "")


def _dsml(group: str) -> Callable[[Answer], str]:
    def one(name: str, arguments: Arguments) -> str:
        parameters = "".join(
            f'<｜DSML｜parameter name="{key}" string="{str(isinstance(value, str)).lower()}">{_text(value)}'
            "</｜DSML｜parameter>\n"
            for key, value in arguments.items()
        )
        return f'<｜DSML｜invoke name="{name}">\n{parameters}</｜DSML｜invoke>\n'

    def write(answer: Answer) -> str:
        calls = "".join(one(*call) for call in answer.calls)
        inner = f"\n\n<｜DSML｜{group}>\n{calls}</｜DSML｜{group}>" if calls else ""
        return _think(answer.reasoning) + answer.content + inner

    return write


_M3 = "]<]minimax[>["


def _m3_value(value: Any, nested: bool) -> str:
    if nested and isinstance(value, dict) and value:
        return "".join(f"{_M3}<{key}>{_m3_value(each, nested)}{_M3}</{key}>" for key, each in value.items())
    if nested and isinstance(value, list) and value:
        return "".join(f"{_M3}<item>{_m3_value(each, nested)}{_M3}</item>" for each in value)
    return _text(value)


def _m3(nested: bool) -> Callable[[Answer], str]:
    def one(name: str, arguments: Arguments) -> str:
        parameters = "".join(
            f"{_M3}<{key}>{_m3_value(value, nested)}{_M3}</{key}>\n" for key, value in arguments.items()
        )
        return f'{_M3}<invoke name="{name}">\n{parameters}{_M3}</invoke>\n'

    def write(answer: Answer) -> str:
        calls = "".join(one(*call) for call in answer.calls)
        text = _think(answer.reasoning, "<mm:think>", "</mm:think>") + answer.content
        return text + (f"\n{_M3}<tool_call>\n{calls}{_M3}</tool_call>" if calls else "")

    return write


# How each format is written, by the format and a variant of it.
WRITERS: dict[str, Callable[[Answer], str]] = {
    "think": lambda answer: _think(answer.reasoning) + answer.content,
    "json": _bare(_list),
    "json one": _bare(lambda calls: "\n".join(_object(*call) for call in calls)),
    "hermes": _tagged(_object),
    "qwen3-coder": _tagged(_xml),
    "qwen3-coder bare": _tagged(_xml, "\n", ""),
    "llama3": _bare(lambda calls: "; ".join(_object(*call, "parameters") for call in calls)),
    "llama3 tag": lambda answer: answer.content + "".join(
        f"<|python_tag|>{_object(*call, 'parameters')}" for call in answer.calls),
    "llama3 function": lambda answer: answer.content + "".join(
        f"<function={name}>{_json(arguments)}</function>" for name, arguments in answer.calls),
    "pythonic": _bare(_python),
    "pythonic tag": lambda answer: (
        f"<|python_start|>{_python(answer.calls)}<|python_end|>" if answer.calls else answer.content),
    "mistral": _mistral,
    "mistral list": _mistral_list,
    "deepseek": _deepseek(True),
    "deepseek 3.1": _deepseek(False),
    "glm": _tagged(_glm),
    "glm 4.7": _tagged(_glm47, "<tool_call>", "</tool_call>"),
    "minimax": _tagged(_minimax, "\n<minimax:tool_call>\n", "\n</minimax:tool_call>"),
    "phi4": _listed,
    "phi4 functools": _functools,
    "granite": _granite,
    "granite 4": _tagged(_object),
    "gemma": _gemma_calls,
    "gemma code": _gemma_code,
    "gemma list": _bare(_python),
    "gemma4": _gemma4,
    "lfm2": _lfm2(),
    "lfm2 json": _lfm2(json_calls=True),
    "olmo3": _olmo3,
    "jamba": _tool_calls,
    "apriel": lambda answer: _tool_calls(answer).replace("<think>", "Here are my reasoning steps:").replace(
        "</think>", "[BEGIN FINAL RESPONSE]"),
    "nemotron": lambda answer: _think(answer.reasoning) + answer.content + (
        f"<TOOLCALL>{_list(answer.calls)}</TOOLCALL>" if answer.calls else ""),
    "hunyuan": _hunyuan,
    "hunyuan3": _hunyuan3(),
    "hunyuan3 suffix": _hunyuan3(":opensource"),
    "hunyuan3 4": _hunyuan3(":opensource", "", sep=False),
    "ernie": _ernie,
    "longcat": _longcat(lambda *call: f"\n{_object(*call)}"),
    "longcat pairs": _longcat(_longcat_pairs),
    "apertus": _apertus,
    "dsml": _dsml("function_calls"),
    "dsml 4": _dsml("tool_calls"),
    "minimax-m3": _m3(nested=True),
    "minimax-m3 flat": _m3(nested=False),
    "cohere": _cohere,
    "kimi": _kimi,
    "seed": _seed,
    "harmony": _harmony,
}  # fmt: skip


def written(variant: str, answer: Answer) -> tuple[str, Answer]:
    """An answer's text, and what of it the variant can say."""
    write = WRITERS[variant]
    if variant == "think":
        answer = Answer(answer.reasoning, answer.content)
    elif write(Answer("reasoning", "content")) == write(Answer("", "content")):
        answer = Answer("", answer.content, answer.calls)
    if answer.calls and write(Answer("", "content", answer.calls)) == write(Answer("", "", answer.calls)):
        answer = Answer(answer.reasoning, "", answer.calls)
    return write(answer), answer


def parse(variant: str, parts: Sequence[str]) -> list[Event]:
    """The joined events of an answer that comes in parts."""
    parser = AnswerParser(FORMATS[variant.split()[0]], tools=types_of(TOOLS))
    events: list[Event] = []
    for part in parts:
        events += parser.push(part)
    return joined(events + parser.push("", end=True))


def cut(text: str, chance: random.Random) -> list[str]:
    """The text in random parts, of one character each at times."""
    if chance.random() < 0.2:
        return list(text)
    places = sorted(chance.choices(range(len(text) + 1), k=chance.randrange(12)))
    return [text[a:b] for a, b in zip([0, *places], [*places, len(text)], strict=True)]


def mutated(variant: str, text: str, chance: random.Random) -> str:
    """The text with something deleted, doubled, inserted, moved or cut off."""
    signs = ["{", "}", '"', "\\", "[", "]", "(", ")", ",", ":", "\n", "'", "<", "```", "é\U0001f469\u200d", "\x00"]
    fragments = [*sorted(FORMATS[variant.split()[0]].markers()), *signs, '{"name": "f", ', "null", "print(", "<escape>"]
    for _ in range(chance.randrange(1, 5)):
        a, b = sorted((chance.randrange(len(text) + 1), chance.randrange(len(text) + 1)))
        b = min(b, a + 40)
        match chance.randrange(5):
            case 0:
                text = text[:a] + text[b:]
            case 1:
                text = text[:b] + text[a:b] + text[b:]
            case 2:
                text = text[:a] + chance.choice(fragments) + text[a:]
            case 3:
                text = text[:a] + text[b:] + text[a:b]
            case _:
                text = text[: max(b, len(text) - chance.randrange(40))]
    return text


def said(events: Sequence[Event]) -> Answer:
    """What joined events come to; calls that broke are none."""
    arguments: dict[int, str] = {}
    names: dict[int, str] = {}
    complete: list[int] = []
    answer = Answer()
    for event in events:
        match event.kind:
            case Kind.CONTENT | Kind.BROKEN:
                answer.content += event.text
            case Kind.REASONING:
                answer.reasoning += event.text
            case Kind.CALL:
                assert event.call is not None
                names[event.call], arguments[event.call] = event.name, ""
            case Kind.ARGUMENTS:
                assert event.call is not None
                arguments[event.call] += event.text
            case Kind.CALL_END:
                assert event.call is not None
                complete.append(event.call)
    answer.calls = [(names[index], json.loads(arguments[index])) for index in complete]
    assert all(isinstance(each, dict) for _, each in answer.calls)
    return answer
