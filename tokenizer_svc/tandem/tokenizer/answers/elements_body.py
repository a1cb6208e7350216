"""Calls whose parameters are written one by one between markers, as plain text (Qwen3-Coder, GLM, MiniMax)."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field

from tandem.tokenizer.answers.plain_values import TEXT, as_json
from tandem.tokenizer.answers.reader import BrokenError, Reader, Steps
from tandem.tokenizer.answers.writer import LONGEST_NAME, CallWriter
from tandem.tokenizer.decoding.stop_strings import StopMatcher


@dataclass(frozen=True)
class Elements:
    """The markers around a call's name and around the keys and values of its parameters. White space between them does
    not count. `value_open` and `close` may be "": then there are none; without `name_close` the name goes on to the
    first key or the call's end."""

    name_open: str
    name_close: str
    key_open: str
    key_close: str
    value_open: str
    value_close: str
    close: str
    in_lines: bool = False  # a value has a line break in front and behind
    several: bool = False  # calls may follow one another
    names_end: bool = False  # a name need not have its close
    text_close: str = ""  # of a key whose value is a text, whatever the schema says
    json_close: str = ""  # and of one whose value is not

    _value_end: StopMatcher = field(init=False, repr=False, compare=False)
    _key_end: StopMatcher = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_value_end", StopMatcher([self.value_close]))
        object.__setattr__(self, "_key_end", StopMatcher(list(filter(None, self._key_closes))))

    @property
    def _key_closes(self) -> tuple[str, str, str]:
        return self.key_close, self.text_close, self.json_close

    @property
    def markers(self) -> tuple[str, ...]:
        """What may be a control token."""
        return (self.name_open, self.name_close, self.key_open, *self._key_closes,
                self.value_open, self.value_close, self.close)  # fmt: skip

    def read(self, reader: Reader, calls: CallWriter, ends: Sequence[str]) -> Steps[None]:
        """Reads what is between the markers of a call; `ends` stay. Raises BrokenError."""
        while True:
            yield from self._read(reader, calls, ends)
            reader.record()
            if not self.several:
                return
            yield from reader.solid()
            if not (yield from reader.follows(self.name_open)):
                return

    def _read(self, reader: Reader, calls: CallWriter, ends: Sequence[str]) -> Steps[None]:
        yield from reader.solid()
        if self.name_open:
            yield from reader.expect(self.name_open)
        closes = [self.close] if self.close else list(ends)
        behind = [self.name_close] if self.name_close else []
        if not behind or self.names_end:
            behind += [self.key_open, *closes]
        following: str | None
        name, following = yield from reader.up_to(StopMatcher(behind), LONGEST_NAME)
        following = None if following == self.name_close else following
        name = name.strip()
        calls.begin(name)
        begun: set[str] = set()
        while True:
            if following is None:
                yield from reader.solid()
                following = yield from reader.literal([self.key_open, *closes])
            if following != self.key_open:
                break
            following = None
            key, closed = yield from reader.up_to(self._key_end, LONGEST_NAME)
            key = key.strip()
            if key in begun or not key:
                raise BrokenError
            if self.value_open:
                yield from reader.solid()
                yield from reader.expect(self.value_open)
            value = yield from self._value(reader)
            calls.arguments(f"{', ' if begun else '{'}{json.dumps(key, ensure_ascii=False)}: ")
            is_text = bool(self.text_close) and closed == self.text_close
            calls.arguments(as_json(value, TEXT if is_text else calls.types(name, key)))
            begun.add(key)
        if not following and (self.close or not reader.ended or reader.rest):
            raise BrokenError
        calls.arguments("}" if begun else "{}")
        calls.end()
        if following in ends:
            reader.give_back(following)

    def _value(self, reader: Reader) -> Steps[str]:
        parts: list[str] = []
        if not (yield from reader.until(self._value_end, parts.append)):
            raise BrokenError
        value = "".join(parts)
        if self.in_lines:
            value = value.removeprefix("\n").removesuffix("\n")
        return value
