"""Text that is read while it comes, by generators: each `yield` waits for more of it.

What a generator decides depends on the text alone, never on where it was cut: it waits until what it looks at is there,
or the text has ended. No character is looked at more often than the longest marker is long.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Generator, Sequence
from typing import TypeAlias, TypeVar

from tandem.tokenizer.decoding.stop_strings import StopMatcher

T = TypeVar("T")
Steps: TypeAlias = Generator[None, None, T]
Write: TypeAlias = Callable[[str], None]

_SPACE = re.compile(r"[ \t\n\r]+")  # JSON's


class BrokenError(Exception):
    """The text is not what the format says."""


class Reader:
    """The text that is not read yet, and a record of what was taken."""

    def __init__(self) -> None:
        self.rest = ""
        self.ended = False
        self._record: list[str] = []
        self._records = False

    def record(self, *beginning: str) -> None:
        """Records what is taken from now on; `beginning` stands in front of it."""
        self._record = list(beginning)
        self._records = True

    def stop_recording(self) -> str:
        """Returns what was recorded, and records no more."""
        text = "".join(self._record)
        self._record.clear()
        self._records = False
        return text

    def take(self, count: int) -> str:
        """Takes so many characters, which are there."""
        text, self.rest = self.rest[:count], self.rest[count:]
        if self._records:
            self._record.append(text)
        return text

    def peek(self) -> Steps[str]:
        """Returns the next character, which stays; "" at the end."""
        while not self.rest and not self.ended:
            yield
        return self.rest[:1]

    def solid(self, write: Write | None = None) -> Steps[str]:
        """Takes white space and returns the character behind it, which stays; "" at the end."""
        while True:
            if (match := _SPACE.match(self.rest)) is not None:
                space = self.take(match.end())
                if write is not None:
                    write(space)
            if self.rest or self.ended:
                return self.rest[:1]
            yield

    def follows(self, *texts: str) -> Steps[str]:
        """Returns the one of several texts that follows, which stays; "" where none does. None of them begins
        another."""
        while True:
            for text in texts:
                if self.rest.startswith(text):
                    return text
            if self.ended or not any(text.startswith(self.rest) for text in texts):
                return ""
            yield

    def literal(self, texts: Sequence[str]) -> Steps[str]:
        """Takes one of several texts if it follows, and returns it; "" where none does. None of them begins another."""
        text = yield from self.follows(*texts)
        return self.take(len(text)) if text else ""

    def expect(self, text: str) -> Steps[None]:
        """Takes a text. Raises BrokenError where another follows."""
        if not (yield from self.literal((text,))):
            raise BrokenError

    def until(self, markers: StopMatcher, write: Write) -> Steps[str]:
        """Hands on all text in front of the marker that is complete first, takes it and returns it; "" at the end."""
        while True:
            match = markers.find(self.rest)
            if match is not None:
                if match.start:
                    write(self.take(match.start))
                return self.take(len(match.stop))
            free = len(self.rest) - (0 if self.ended else markers.held(self.rest))
            if free:
                write(self.take(free))
            if self.ended:
                return ""
            yield

    def give_back(self, marker: str) -> None:
        """Puts back what was taken last."""
        assert self._record.pop() == marker
        self.rest = marker + self.rest

    def up_to(self, markers: StopMatcher, longest: int) -> Steps[tuple[str, str]]:
        """Takes a text and the marker behind it. Raises BrokenError where more than `longest` characters come before
        one, or none comes."""
        parts: list[str] = []
        size = 0
        while True:
            text = self.rest
            match = markers.find(text)
            free = match.start if match is not None else len(text) - (0 if self.ended else markers.held(text))
            if size + free > longest:
                self.take(longest + 1 - size)
                raise BrokenError
            parts.append(self.take(free))
            size += free
            if match is not None:
                return "".join(parts), self.take(len(match.stop))
            if self.ended:
                raise BrokenError
            yield
