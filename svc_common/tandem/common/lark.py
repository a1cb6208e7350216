"""What grammars in llguidance's Lark are written of: texts with control tokens in them, JSON, and text up to a mark."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from tandem.common.held_numbers import with_held_numbers

# A model that is unsure likes to write white space for ever: between two tokens of JSON nothing, one space, or a line
# break with its indentation. A model that wants \u00e9 begins with \u00, behind which it would find control characters
# alone: texts without a pattern may hold all escapes. A schema that has "x-guidance" chooses for itself.
JSON_OPTIONS = {"whitespace_pattern": r"[ ]|\n[ ]{0,16}", "json_allow_general_unicode_escapes": True}
TEXT = r"/(.|\n)*/"  # any, without control tokens


def literal(text: str, control: Mapping[str, int]) -> str:
    """Returns the form of a text; `control` are the texts of control tokens, which stand in it for these tokens."""
    found = sorted((token for token in control if token and token in text), key=len, reverse=True)
    if not found:
        return json.dumps(text, ensure_ascii=False)
    parts = re.split(f"({'|'.join(map(re.escape, found))})", text)
    return " ".join(
        f"<[{control[part]}]>" if part in control else json.dumps(part, ensure_ascii=False) for part in parts if part
    )


def json_value(schema: Any) -> str:
    """Returns the form of a value that a JSON schema allows. Raises NotHeldError."""
    if isinstance(schema, dict):
        schema = {"x-guidance": JSON_OPTIONS, **schema}
    return f"%json {with_held_numbers(json.dumps(schema, ensure_ascii=False))}"


class Rules:
    """A grammar as it is written, rule by rule."""

    def __init__(self, control: Mapping[str, int]) -> None:
        self._control = control
        self._lines: list[str] = []
        self._names: dict[str, str] = {}  # of rules, by what they say

    def literal(self, text: str) -> str:
        """Returns the form of a text, which may be empty."""
        return literal(text, self._control) if text else ""

    def rule(self, body: str, attributes: str = "") -> str:
        """Returns the name of a rule, which is made once."""
        said = f"{attributes}: {body}"
        if said not in self._names:
            self._names[said] = f"r{len(self._names)}"
            self._lines.append(self._names[said] + said)
        return self._names[said]

    def up_to(self, mark: str, text: str = TEXT) -> str:
        """Returns the form of any text with the mark behind it, where that is found first."""
        within = next((token for token in self._control if token in mark), None)
        if within is None:
            return self.rule(f"{text} {self.literal(mark)}", "[lazy]")
        # What stands before a control token would be read as text.
        return f"{text} {self.literal(mark[mark.index(within) :])}"

    def grammar(self, start: str) -> str:
        """Returns the grammar with this start."""
        return "\n".join([f"start: {start}", *self._lines, ""])
