"""The calls of an answer as events, and what is known of the tools that may be called."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tandem.tokenizer.answers.events import Event, Kind
from tandem.tokenizer.answers.parameter_types import resolved, types_of_values
from tandem.tokenizer.answers.reader import BrokenError

LONGEST_NAME = 512  # characters
MAX_DEPTH = 64  # of values within one another
MOST_DIGITS = 400  # of a number
OF_PYTHON = {"True": "true", "False": "false", "None": "null"}  # words that models write in JSON

Types = Mapping[str, Mapping[str, frozenset[str]]]  # of the parameters of each tool, as its schema names them


def types_of(tools: list[dict[str, Any]]) -> Types:
    """Returns the JSON types of each tool's parameters, where its schema tells them. Tools are as chat templates get
    them; what is not understood is left out."""
    found: dict[str, dict[str, frozenset[str]]] = {}
    for tool in tools:
        inner = tool.get("function", tool)
        if not isinstance(inner, dict) or not isinstance(inner.get("name"), str):
            continue
        root = inner.get("parameters", inner.get("input_schema"))
        schema = resolved(root, root) if isinstance(root, dict) else {}
        properties = schema.get("properties")
        parameters = properties if isinstance(properties, dict) else {}
        found[inner["name"]] = {
            name: types_of_values(each, schema) for name, each in parameters.items() if isinstance(each, dict)
        }
    return found


class CallWriter:
    """Writes one call after the other."""

    def __init__(self, events: list[Event], types: Types | None) -> None:
        """Appends to `events`. Without `types` any name may be a tool's."""
        self._events = events
        self._types = types
        self.count = 0  # calls that have begun
        self.open = False
        self.begun = False  # since it was set to False
        self.complete = 0  # calls that have come to their end

    def knows(self, name: str) -> bool:
        """True where a tool may have this name."""
        return self._types is None or name in self._types

    def begin(self, name: str, id_: str = "") -> None:
        """Begins a call. Raises BrokenError where this is no name."""
        if not name or len(name) > LONGEST_NAME or not _is_text(name) or not _is_text(id_):
            raise BrokenError
        self._events.append(Event(Kind.CALL, "", self.count, name, id_))
        self.count += 1
        self.open = self.begun = True

    def arguments(self, text: str) -> None:
        """Adds text to the arguments of the call that has begun."""
        self._events.append(Event(Kind.ARGUMENTS, text, self.count - 1))

    def end(self) -> None:
        """Ends the call that has begun."""
        self._events.append(Event(Kind.CALL_END, "", self.count - 1))
        self.open = False
        self.complete += 1

    def types(self, tool: str, parameter: str) -> frozenset[str]:
        """Returns the types that the schema allows; none where it does not say."""
        return (self._types or {}).get(tool, {}).get(parameter, frozenset())


def _is_text(text: str) -> bool:
    """False for half a character, which no message can carry."""
    return text.isascii() or not any("\ud800" <= each <= "\udfff" for each in text)
