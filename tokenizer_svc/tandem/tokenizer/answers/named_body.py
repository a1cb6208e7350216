"""Calls that are written as a name and a JSON object (Mistral, DeepSeek, Kimi, tags with the name in them)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tandem.tokenizer.answers.json_body import json_object
from tandem.tokenizer.answers.literals import Literals
from tandem.tokenizer.answers.reader import BrokenError, Reader, Steps
from tandem.tokenizer.answers.writer import LONGEST_NAME, CallWriter
from tandem.tokenizer.decoding.stop_strings import StopMatcher

_FENCE = "```"


@dataclass(frozen=True)
class Named:
    """A name, one of `separators`, and the arguments. Behind `id_marker`, which may stand between, comes an id."""

    separators: Sequence[str]
    id_marker: str = ""
    kind: str = ""  # stands in place of a name, which then has a line of its own, and a fence around the arguments
    numbered: bool = False  # the name is "functions.NAME:0", and is the id too

    @property
    def markers(self) -> tuple[str, ...]:
        """What may be a control token."""
        return *self.separators, self.id_marker

    def read(self, reader: Reader, calls: CallWriter, ends: Sequence[str]) -> Steps[None]:
        """Reads what is between the markers of a call. Raises BrokenError."""
        yield from reader.solid()
        markers = [*self.separators, *([self.id_marker] if self.id_marker else [])]
        name, marker = yield from reader.up_to(StopMatcher(markers), LONGEST_NAME)
        name, id_ = name.strip(), ""
        if marker == self.id_marker and marker:
            id_, marker = yield from reader.up_to(StopMatcher(self.separators), LONGEST_NAME)
        fenced = bool(self.kind) and name == self.kind
        if fenced:
            name, _ = yield from reader.up_to(StopMatcher(["\n"]), LONGEST_NAME)
            yield from reader.solid()
            yield from reader.expect(_FENCE + "json")
        if marker == "{":
            reader.give_back(marker)
        name = name.strip()
        if self.numbered:
            id_ = name
            name = name.removeprefix("functions.").rpartition(":")[0] or name
        calls.begin(name, id_.strip())
        yield from json_object(reader, calls.arguments)
        if fenced:
            yield from reader.solid()
            yield from reader.expect(_FENCE)
        calls.end()
        reader.record()


@dataclass(frozen=True)
class Declared:
    """`call:NAME{key:value,...}`, with a delimiter around texts (FunctionGemma, Gemma 4)."""

    delimiter: str

    @property
    def markers(self) -> tuple[str, ...]:
        """What may be a control token."""
        return (self.delimiter,)

    def read(self, reader: Reader, calls: CallWriter, ends: Sequence[str]) -> Steps[None]:
        """Reads what is between the markers of a call. Raises BrokenError."""
        yield from reader.solid()
        if not (yield from reader.literal(("call:", ":"))):  # some leave the word out
            raise BrokenError
        name, _ = yield from reader.up_to(StopMatcher(["{"]), LONGEST_NAME)
        parts: list[str] = []
        markers = StopMatcher(ends)
        marker = yield from reader.until(markers, parts.append)
        literals = Literals("".join(parts), self.delimiter)
        arguments = literals.keywords(":", "}")
        literals.finish()
        if marker:
            reader.give_back(marker)
        calls.begin(name.strip())
        calls.arguments(arguments)
        calls.end()
