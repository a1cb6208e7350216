"""Grammars of arguments with a delimiter around texts, and none around keys (FunctionGemma, Gemma 4)."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from tandem.common.lark import TEXT, Rules, json_value
from tandem.tokenizer.answers.call_values import (
    ANY_KEY,
    NOTHING,
    NotWrittenError,
    bounds_of,
    in_order,
    parameters_of,
    text_of,
)
from tandem.tokenizer.answers.parameter_types import SHARED, listed

_MAX_DEPTH = 16
_SAYS_NOTHING = {*SHARED, "title", "description", "default", "examples", "$comment", "deprecated"}  # of a value
_NESTED = 3  # lists and objects within one another where a schema does not tell
_COMMA = '","'


def escaped_object(rules: Rules, schema: Mapping[str, Any], place: str, delimiter: str) -> str:
    """Returns the grammar of `{key:value,...}` with the delimiter around texts. Raises NotWrittenError."""
    return _Escaped(rules, delimiter).value({"type": "object", **schema}, place, 0)


class _Escaped:
    """Writes values with a delimiter around texts, and keys without one."""

    def __init__(self, rules: Rules, delimiter: str) -> None:
        self._rules = rules
        self._delimiter = delimiter
        self._named: dict[str, str] = {}  # rules of what schemas refer to; "" while one is written
        self._any = ""

    def value(self, schema: Any, place: str, depth: int) -> str:
        """Returns the grammar of a value. Raises NotWrittenError."""
        if depth > _MAX_DEPTH or not isinstance(schema, Mapping):
            raise _not_held(place)
        shared = {key: schema[key] for key in SHARED if key in schema}
        if "$ref" in schema:
            return self._referred(str(schema["$ref"]), shared, place, depth)
        if (values := listed(schema)) is not None:
            return f"({' | '.join(self._literals(values, place))})"
        for each in ("anyOf", "oneOf", "allOf"):
            choices = schema.get(each)
            if isinstance(choices, list) and choices and (each != "allOf" or len(choices) == 1):
                told = [{**shared, **choice} if isinstance(choice, Mapping) else choice for choice in choices]
                return f"({' | '.join(self.value(choice, place, depth + 1) for choice in told)})"
        match schema.get("type", "object" if "properties" in schema else None):
            case [*types] if types:
                return f"({' | '.join(self.value({**schema, 'type': each}, place, depth + 1) for each in types)})"
            case "string":
                return self._text(text_of(schema, place))
            case "integer" | "number" | "boolean" | "null":
                return json_value(schema)
            case "array":
                items = schema.get("items", True)
                one = self._any_or({**shared, **items} if isinstance(items, Mapping) else items, place, depth + 1)
                return self._rules.rule(f'"[" {_repeated(one, *bounds_of(schema, "Items", place))} "]"')
            case "object" if schema.get("properties"):
                pairs = [
                    (f"{self._rules.literal(each.name + ':')} {self._any_or(each.schema, each.place, depth + 1)}",
                     each.required)
                    for each in parameters_of(schema, place)
                ]  # fmt: skip
                return f'"{{" {in_order(self._rules, pairs, _COMMA)} "}}"'
            case "object":
                more = schema.get("additionalProperties", True)
                if more is False:
                    return '"{" "}"'
                one = self._any_or({**shared, **more} if isinstance(more, Mapping) else more, place, depth + 1)
                return self._open_object(one)
        raise _not_held(place)

    def _any_or(self, schema: Any, place: str, depth: int) -> str:
        """Returns the grammar of a value, which is any where the schema does not hold it to anything."""
        if schema is True or (isinstance(schema, Mapping) and not set(schema) - _SAYS_NOTHING):
            return self._any_value()
        return self.value(schema, place, depth)

    def _referred(self, reference: str, shared: Mapping[str, Any], place: str, depth: int) -> str:
        _, _, key_and_name = reference.partition("#/")
        key, _, name = key_and_name.partition("/")
        definitions = shared.get(key)
        told = definitions.get(name) if isinstance(definitions, Mapping) else None
        if not isinstance(told, Mapping) or self._named.get(reference) == "":  # within itself
            raise _not_held(place)
        if reference not in self._named:
            self._named[reference] = ""
            self._named[reference] = self._rules.rule(self._any_or({**shared, **told}, place, depth + 1))
        return self._named[reference]

    def _any_value(self) -> str:
        """Returns the grammar of any value, whose lists and objects are not nested without end."""
        if not self._any:
            single = f"{self._text(TEXT)} | {json_value({'type': ['number', 'boolean', 'null']})}"
            self._any = self._rules.rule(single)
            for _ in range(_NESTED):
                several = f'"[" {_repeated(self._any, 0, None)} "]"'
                self._any = self._rules.rule(f"{single} | {several} | {self._open_object(self._any)}")
        return self._any

    def _open_object(self, one: str) -> str:
        pair = f'{ANY_KEY} ":" {one}'
        return self._rules.rule(f'"{{" ({pair} ({_COMMA} {pair})*)? "}}"')

    def _text(self, text: str) -> str:
        return f"{self._rules.literal(self._delimiter)} {self._rules.up_to(self._delimiter, text)}"

    def _literals(self, values: list[Any], place: str) -> Iterator[str]:
        for value in values:
            if isinstance(value, str):
                yield self._rules.literal(f"{self._delimiter}{value}{self._delimiter}")
            elif value is None or isinstance(value, bool | int | float):
                yield self._rules.literal(json.dumps(value))
            else:
                raise NotWrittenError(
                    f"{place}: a value that is a list or an object cannot be listed in this model's format"
                )


def _not_held(place: str) -> NotWrittenError:
    return NotWrittenError(f"{place}: this schema cannot be held in this model's format of calls")


def _repeated(one: str, least: int, most: int | None) -> str:
    """Returns the grammar of so many items with commas between them."""
    if most == 0:
        return NOTHING
    more = f"{one} ({_COMMA} {one}){{{max(0, least - 1)},{'' if most is None else most - 1}}}"
    return more if least else f"({more})?"
