"""Grammars of arguments that are not written as one JSON object: parameter by parameter, or as Python."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from tandem.common.lark import TEXT, Rules, json_value
from tandem.tokenizer.answers.parameter_types import SHARED, alternatives, listed, resolved, types_of_values

ANY_KEY = r"/[A-Za-z_][A-Za-z0-9_]{0,63}/"
_HOLDS_TEXT = ("pattern", "format")  # what a schema says of a text that a grammar of plain text cannot hold it to
NOTHING = '""'


class NotWrittenError(ValueError):
    """A grammar cannot say this; the message begins with the place in the request."""


def schema_of(function: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the schema of a tool's arguments, which are an object."""
    schema = function.get("parameters", function.get("input_schema"))
    found = dict(resolved(schema, schema)) if isinstance(schema, Mapping) else {}
    return found if "$ref" in found else {"type": "object", **found}


@dataclass(frozen=True)
class Parameter:
    """One of a tool's parameters."""

    name: str
    schema: Any  # with the definitions that it may refer to
    required: bool
    place: str


def parameters_of(schema: Mapping[str, Any], place: str) -> list[Parameter]:
    """Returns the parameters that a schema names, in its order. Raises NotWrittenError."""
    shared = {key: schema[key] for key in SHARED if key in schema}
    properties, required = schema.get("properties", {}), schema.get("required", [])
    if not isinstance(properties, Mapping) or not isinstance(required, list) or "$ref" in schema:
        raise NotWrittenError(f"{place}: the parameters must be told by properties in this model's format")
    return [
        Parameter(name, {**shared, **each} if isinstance(each, Mapping) else each, name in required, f"{place}: {name}")
        for name, each in properties.items()
    ]


def _is_closed(schema: Mapping[str, Any]) -> bool:
    return bool(schema.get("properties")) or schema.get("additionalProperties") is False


@dataclass(frozen=True)
class Elements:
    """Parameters between markers, one by one, values as plain text; `{}` stands for the name, also where a value ends,
    and `{is_text}` in a key for true or false."""

    call: str
    key: str
    value_end: str
    end: str

    def write(self, rules: Rules, name: str, schema: Mapping[str, Any], place: str) -> str:
        """Returns the grammar of a call. Raises NotWrittenError."""
        parts = [rules.literal(self.call.replace("{}", name))]
        if _is_closed(schema):
            for parameter in parameters_of(schema, place):
                key = rules.literal(_key(self.key, parameter))
                whole = f"{key} {_plain_value(rules, parameter, self.value_end.replace('{}', parameter.name))}"
                parts.append(whole if parameter.required else f"({whole})?")
        else:
            before, _, behind = self.key.partition("{}")
            words = ("true", "false") if "{is_text}" in behind else ("",)
            closes = " | ".join(rules.literal(behind.replace("{is_text}", word)) for word in words)
            parts.append(f"({rules.literal(before)} {ANY_KEY} ({closes}) {self._any_value(rules)})*")
        return " ".join([*parts, rules.literal(self.end)])

    def _any_value(self, rules: Rules) -> str:
        if "{}" not in self.value_end:
            return rules.up_to(self.value_end)
        before, _, behind = self.value_end.partition("{}")
        return f"{rules.up_to(before)} {ANY_KEY} {rules.literal(behind)}"


def _key(form: str, parameter: Parameter) -> str:
    schema = parameter.schema
    types = types_of_values(schema, schema) if isinstance(schema, Mapping) else frozenset()
    return form.replace("{}", parameter.name).replace("{is_text}", "true" if types == {"string"} else "false")


def _plain_value(rules: Rules, parameter: Parameter, end: str, splits: bool = True) -> str:
    """Returns the grammar of a value with the marker behind it: texts as they are, all else as JSON."""
    schema, closing = parameter.schema, rules.literal(end)
    if not isinstance(schema, Mapping):
        return rules.up_to(end)
    types, schema = types_of_values(schema, schema), resolved(schema, schema)
    if not types and "$ref" not in schema:
        return rules.up_to(end)
    if (values := listed(schema)) is not None:
        told = (value if isinstance(value, str) else json.dumps(value, ensure_ascii=False) for value in values)
        return f"({' | '.join(map(rules.literal, told))}) {closing}"
    if types == {"string"} and schema.get("type") == "string":
        return rules.up_to(end, text_of(schema, parameter.place))
    if "string" in types:
        return _any_of(rules, parameter, schema, end) if splits else rules.up_to(end)
    return f"{json_value(schema)} {closing}"


def _any_of(rules: Rules, parameter: Parameter, schema: Mapping[str, Any], end: str) -> str:
    """Returns the grammar of a value that may be a text or another thing; of any text where one cannot be held."""
    shared = {key: schema[key] for key in SHARED if key in schema}
    if isinstance(types := schema.get("type"), list):
        own = {key: value for key, value in schema.items() if key not in SHARED}
        choices = [{**own, "type": each} for each in types]
    else:
        choices = alternatives(schema)
    texts: list[Mapping[str, Any]] = []
    others: list[Mapping[str, Any]] = []
    for each in choices:
        told = types_of_values(each, shared)
        (others if told and "string" not in told else texts).append(each)
    try:
        said = [_plain_value(rules, replace(parameter, schema={**shared, **each}), end, splits=False) for each in texts]
    except NotWrittenError:
        return rules.up_to(end)
    if others:
        said.append(f"{json_value({**shared, 'anyOf': others})} {rules.literal(end)}")
    return f"({' | '.join(said)})"


def text_of(schema: Mapping[str, Any], place: str) -> str:
    """Returns the terminal of a text. Raises NotWrittenError for what it cannot be held to."""
    for key in _HOLDS_TEXT:
        if key in schema:
            raise NotWrittenError(f"{place}: {key} of a text cannot be held in this model's format of calls")
    least, most = bounds_of(schema, "Length", place)
    if not least and most is None:
        return TEXT
    return rf"/(.|\n){{{least},{'' if most is None else most}}}/"


def bounds_of(schema: Mapping[str, Any], what: str, place: str) -> tuple[int, int | None]:
    """Returns how much there must and may be of "Length" or "Items". Raises NotWrittenError."""
    least, most = (_count(schema.get(key), f"{place}: {key}") for key in (f"min{what}", f"max{what}"))
    least = least or 0
    if most is not None and most < least:
        raise NotWrittenError(f"{place}: max{what} is less than min{what}")
    return least, most


def _count(value: object, place: str) -> int | None:
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if value is None or (isinstance(value, int) and value >= 0):
        return value
    raise NotWrittenError(f"{place} must be a number of no less than 0, without a fraction")


def python_value(schema: Any) -> str:
    """Returns the grammar of a value in Python: JSON's, whose words the readers take, too, but for booleans."""
    if isinstance(schema, Mapping) and schema.get("type") == "boolean" and listed(schema) is None:
        return '("True" | "False")'
    return json_value(schema)


def keywords(rules: Rules, schema: Mapping[str, Any], place: str, value: Callable[[Any], str]) -> str:
    """Returns the grammar of `name=value, ...`, each `value` by its schema. Raises NotWrittenError."""
    if not _is_closed(schema):
        one = f'{ANY_KEY} "=" {json_value({})}'
        return rules.rule(f'({one} (", " {one})*)?')
    pairs = [
        (f"{rules.literal(each.name + '=')} {value(each.schema)}", each.required)
        for each in parameters_of(schema, place)
    ]
    return in_order(rules, pairs, '", "')


def in_order(rules: Rules, pairs: list[tuple[str, bool]], separator: str) -> str:
    """Returns the grammar of these in their order with separators, all but the required ones left out at will."""
    behind = ""  # what may follow where something stands already
    alone = ""  # and where nothing does
    for text, required in reversed(pairs):
        after = rules.rule(f"{separator} {text} {behind}" if required else f"({separator} {text})? {behind}")
        first = f"{text} {behind}"
        alone = rules.rule(first if required else f"{first} | {alone or NOTHING}")
        behind = after
    return alone or NOTHING
