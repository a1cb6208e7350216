"""Tools that a model may call: functions of Python, their schemas, and how they are run."""

from __future__ import annotations

import asyncio
import inspect
import json
import re
from collections.abc import Callable, Mapping, Sequence
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints, is_typeddict

from tandem.client.answers import ToolCall

Tool = Mapping[str, Any] | Callable[..., Any]  # the JSON schema as templates know it, or a function

_SIMPLE: dict[Any, dict[str, Any]] = {
    str: {"type": "string"},
    int: {"type": "integer"},
    float: {"type": "number"},
    bool: {"type": "boolean"},
    NoneType: {"type": "null"},
    dict: {"type": "object"},
    list: {"type": "array"},
    Any: {},
    inspect.Parameter.empty: {},
}
_LISTS = (list, Sequence, set, frozenset)
# "name: what it is" in a section "Args:", or ":param name: what it is".
_ARGUMENT = re.compile(r"^[ \t]*(?::param[ \t]+)?(\w+)[ \t]*(?:\([^)]*\))?:[ \t]+(\S.*)$", re.MULTILINE)


def tool_schema(tool: Tool) -> Mapping[str, Any]:
    """Returns the schema of a tool; that of a function is made from its signature and its docstring. Raises TypeError
    for types that JSON has no words for."""
    if isinstance(tool, Mapping) or not callable(tool):
        return tool
    signature = inspect.signature(tool)
    try:
        hints = get_type_hints(tool)
    except Exception as error:  # annotations that are strings are evaluated: anything may come of that
        raise TypeError(f"{tool_name(tool)}: its annotations cannot be resolved: {error}") from error
    text = inspect.getdoc(tool) or ""
    said = dict(_ARGUMENT.findall(text))
    properties: dict[str, Any] = {}
    required: list[str] = []
    shared: dict[str, Any] = {}
    for name, parameter in signature.parameters.items():
        if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            raise TypeError(f"{tool_name(tool)}: the parameter {name!r} cannot be given by its name")
        schema = _schema(hints.get(name, inspect.Parameter.empty), f"{tool_name(tool)}: the parameter {name!r}", shared)
        properties[name] = {**schema, "description": said[name].strip()} if name in said else schema
        if parameter.default is parameter.empty:
            required.append(name)
    parameters = {"type": "object", "properties": properties, "required": required}
    if shared:
        parameters["$defs"] = shared
    summary = text.split("\n\n")[0].replace("\n", " ")
    function = {"name": tool_name(tool), "description": summary, "parameters": parameters}
    return {"type": "function", "function": function}


def tool_name(tool: Tool) -> str:
    """Returns the name by which a model calls a tool; "" where a schema has none."""
    if not isinstance(tool, Mapping):
        return getattr(tool, "__name__", type(tool).__name__)
    inner = tool.get("function", tool)
    name = inner.get("name") if isinstance(inner, Mapping) else None
    return name if isinstance(name, str) else ""


def _schema(hint: Any, what: str, shared: dict[str, Any]) -> dict[str, Any]:
    """Returns the schema of a type. What the schemas of classes refer to is added to `shared`: their references begin
    at the whole schema."""
    if hint in _SIMPLE:
        return dict(_SIMPLE[hint])
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Literal:
        return {"enum": list(arguments)}
    if origin in (Union, UnionType):
        return {"anyOf": [_schema(each, what, shared) for each in arguments]}
    if origin in _LISTS:
        return {"type": "array", "items": _schema(arguments[0] if arguments else Any, what, shared)}
    if origin in (dict, Mapping):
        return {"type": "object", "additionalProperties": _schema(arguments[1] if arguments else Any, what, shared)}
    if is_typeddict(hint):
        fields = {name: _schema(each, what, shared) for name, each in get_type_hints(hint).items()}
        return {"type": "object", "properties": fields, "required": sorted(hint.__required_keys__)}
    if callable(model := getattr(hint, "model_json_schema", None)):
        schema = dict(model())
        for name, definition in schema.pop("$defs", {}).items():
            if shared.setdefault(name, definition) != definition:
                raise TypeError(f"{what} has a class {name!r}, and so has another one; give the schema instead")
        return schema
    raise TypeError(f"{what} has the type {hint!r}, which has no JSON schema here; give the schema instead")


def _value(hint: Any, value: Any) -> Any:
    """Returns a value of JSON as a function whose parameter has this type expects it: as records where these are
    classes that read them, as pydantic's models do. Raises what they raise for others."""
    origin, arguments = get_origin(hint), get_args(hint)
    if origin in _LISTS and isinstance(value, list) and arguments:
        values = [_value(arguments[0], each) for each in value]
        return origin(values) if origin in (set, frozenset) else values
    if origin in (dict, Mapping) and isinstance(value, dict) and arguments:
        return {name: _value(arguments[1], each) for name, each in value.items()}
    if is_typeddict(hint) and isinstance(value, dict):
        hints = get_type_hints(hint)
        return {name: _value(hints.get(name, Any), each) for name, each in value.items()}
    if callable(read := getattr(hint, "model_validate", None)):
        return read(value)
    if origin not in (Union, UnionType) or value is None:
        return value
    refused: Exception | None = None
    for each in arguments:
        try:
            taken = _value(each, value)
        except ValueError as error:
            refused = error
        else:
            if taken is not value:
                return taken
    if refused is not None and not isinstance(value, str | int | float):
        raise refused
    return value


async def run_tool(tools: Mapping[str, Callable[..., Any]], call: ToolCall) -> str:
    """Returns what a call gives, as text: a str as it is, anything else as JSON. What goes wrong is told to the
    model."""
    function = tools.get(call.name)
    if function is None:
        return f"error: there is no tool {call.name!r}; there are {', '.join(tools)}"
    try:
        hints = get_type_hints(function)
        arguments = {name: _value(hints.get(name, Any), value) for name, value in dict(call.parsed).items()}
        if inspect.iscoroutinefunction(function):
            value = await function(**arguments)
        else:
            value = await asyncio.to_thread(function, **arguments)
            if inspect.isawaitable(value):  # of an object whose __call__ is one, or behind a decorator
                value = await value
        return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=_plain)
    except Exception as error:
        return f"error: {type(error).__name__}: {error}"


def _plain(value: object) -> object:
    """Returns a record as what JSON has of it, anything else as text."""
    return dump(mode="json") if callable(dump := getattr(value, "model_dump", None)) else str(value)
