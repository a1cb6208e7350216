"""Which tools an answer calls, as the three interfaces say it and as the SDK has it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from tandem.client import ToolChoice
from tandem.http.call import Call
from tandem.http.errors import wrong
from tandem.http.fields import Json, is_given, object_of, text_of

_WORDS = ("auto", "none", "required")


class ToolKind(msgspec.Struct):
    """What is looked at first of a tool: those of other types have other fields."""

    type: str | None = None


def openai_choice(given: Json) -> tuple[ToolChoice, bool]:
    """Reads OpenAI's, in either of its interfaces. Returns whether it is one call of one tool, too. Raises ApiError."""
    if not is_given(given):
        return "auto", False
    text = text_of(given)
    for word in _WORDS:
        if text == f'"{word}"':
            return word, False
    if not text.lstrip().startswith("{"):
        raise wrong("tool_choice", "must be 'auto', 'none', 'required' or an object")
    chosen = object_of(given, "tool_choice")
    if chosen.get("type") == "function":
        return [_name(chosen, "tool_choice")], True
    if chosen.get("type") == "allowed_tools":
        allowed = chosen.get("allowed_tools", chosen)
        if not isinstance(allowed, Mapping) or allowed.get("mode") != "required":
            raise wrong("tool_choice.mode", "must be 'required': a free answer is not bounded", "not_served")
        tools = allowed.get("tools")
        if not isinstance(tools, list) or not tools:
            raise wrong("tool_choice.tools", "must be a list of tools")
        return [_name(tool, f"tool_choice.tools[{index}]") for index, tool in enumerate(tools)], False
    raise wrong("tool_choice.type", "must be 'function' or 'allowed_tools'", "not_served")


def called_options(call: Call, choice: Json, parallel: bool | None) -> dict[str, Any]:
    """Returns the keywords of the SDK for what OpenAI's interfaces ask of calls. Raises ApiError."""
    name_guides(call)
    call.names["answer"] = "tool_choice"
    chosen, is_single = openai_choice(choice)
    if is_single:
        parallel = False
    return {"tool_choice": chosen, **({} if parallel is None else {"parallel_tool_calls": parallel})}


def name_guides(call: Call) -> None:
    """Names what guides the answer: the format that was asked for, which has a name already, or else the tools."""
    call.names["answer.calls.content_schema"] = call.names.setdefault("guided", "tools")


def is_forced(choice: ToolChoice) -> bool:
    """Whether an answer is calls alone: the format that was asked for is one of what else it says, which is nothing."""
    return choice not in ("auto", "none")


def _name(tool: Any, place: str) -> str:
    inner = tool.get("function", tool) if isinstance(tool, Mapping) else None
    name = inner.get("name") if isinstance(inner, Mapping) else None
    if not isinstance(name, str) or tool.get("type") != "function":
        raise wrong(place, "must have the type 'function' and a name")
    return name


class AnthropicChoice(msgspec.Struct, forbid_unknown_fields=True):
    """Anthropic's."""

    type: str
    name: str | None = None
    disable_parallel_tool_use: bool | None = None

    def choice(self) -> ToolChoice:
        """Raises ApiError."""
        if self.type in ("auto", "none"):
            return self.type
        if self.type == "any":
            return "required"
        if self.type == "tool":
            if not self.name:
                raise wrong("tool_choice.name", "is required", "missing_required_parameter")
            return [self.name]
        raise wrong("tool_choice.type", "must be 'auto', 'any', 'tool' or 'none'")

    @property
    def is_parallel(self) -> bool:
        """Whether there may be several calls: a tool that is named is called once."""
        return self.type != "tool" and not self.disable_parallel_tool_use


def thinking_arguments(effort: str | None) -> dict[str, Any]:
    """Returns the variables of a template for an effort; "none" also switches thinking off where a template can."""
    if effort is None:
        return {}
    return {"reasoning_effort": effort, **({"enable_thinking": False} if effort == "none" else {})}
