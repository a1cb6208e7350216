"""What may stand behind a marker of calls."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from tandem.tokenizer.answers.json_body import json_calls
from tandem.tokenizer.answers.reader import Reader, Steps
from tandem.tokenizer.answers.writer import CallWriter


class Body(Protocol):
    """How calls are written behind their marker."""

    @property
    def markers(self) -> tuple[str, ...]:
        """What of it may be a control token."""
        ...

    def read(self, reader: Reader, calls: CallWriter, ends: Sequence[str]) -> Steps[None]:
        """Reads calls up to one of `ends`, which stays. Raises BrokenError."""
        ...


@dataclass(frozen=True)
class Plain:
    """Calls that have no markers and show their end."""

    calls: Callable[[Reader, CallWriter], Steps[None]]

    markers = ()

    def read(self, reader: Reader, calls: CallWriter, ends: Sequence[str]) -> Steps[None]:
        """Reads the calls. Raises BrokenError."""
        return self.calls(reader, calls)


@dataclass(frozen=True)
class JsonOr:
    """Calls as JSON where one of `signs` comes first, or else what the other one reads."""

    signs: str
    other: Body

    @property
    def markers(self) -> tuple[str, ...]:
        """What may be a control token."""
        return self.other.markers

    def read(self, reader: Reader, calls: CallWriter, ends: Sequence[str]) -> Steps[None]:
        """Reads what is between the markers of a call. Raises BrokenError."""
        first = yield from reader.solid()
        if first and first in self.signs:
            yield from json_calls(reader, calls)
        else:
            yield from self.other.read(reader, calls, ends)
