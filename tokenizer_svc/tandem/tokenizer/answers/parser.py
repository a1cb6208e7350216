"""Makes events of the text of an answer, while it comes.

The joined events are the same however the text is cut. No text is lost: what cannot be read as a call is content that
is flagged as broken. White space that stands beside a marker belongs to the marker. The work for a piece of text does
not depend on how much went before.
"""

from __future__ import annotations

from tandem.tokenizer.answers.events import Event, Kind
from tandem.tokenizer.answers.formats import Calls, Format
from tandem.tokenizer.answers.harmony import harmony
from tandem.tokenizer.answers.reader import BrokenError, Reader, Steps
from tandem.tokenizer.answers.writer import CallWriter, Types
from tandem.tokenizer.decoding.stop_strings import StopMatcher

_SLICE = 1024  # characters that are looked at together


class AnswerParser:
    """Reads one answer."""

    def __init__(
        self,
        form: Format,
        *,
        tools: Types | None = None,
        in_reasoning: bool = False,
        in_content: bool = False,
        with_calls: bool = True,
    ) -> None:
        """`tools` are those that may be called; without them any name may be a tool's. With `in_reasoning` the answer
        begins within reasoning that the prompt has opened, with `in_content` within content, where harmony has a header
        else. Without `with_calls` calls are content."""
        self.format = form
        self.broken = 0  # calls that could not be read
        self.in_reasoning = in_reasoning and bool(form.reasoning)
        self._events: list[Event] = []
        self._reader = Reader()
        self._calls = CallWriter(self._events, tools)
        self._with_calls = with_calls
        self._space: list[str] = []  # white space that stands in front of what comes next
        self._strips = False  # white space that comes next stands behind a marker
        self._breaks = False  # the last call that could not be read is told of
        self._broken_call: int | None = None
        self._meanings = self._find_meanings()
        self._markers = StopMatcher(list(self._meanings)) if self._meanings else None
        self._steps = self._read_harmony(in_content) if form.is_harmony else self._read(in_reasoning)
        self._done = False

    @property
    def complete_calls(self) -> int:
        """How many calls have come to their end."""
        return self._calls.complete

    def push(self, text: str, end: bool = False) -> list[Event]:
        """Returns the events of more text; with `end` no more follows. Raises ValueError behind the end."""
        if self._done:
            raise ValueError("the answer has ended")
        for at in range(0, len(text), _SLICE):
            self._reader.rest += text[at : at + _SLICE]
            self._go_on()
        if end:
            self._done = self._reader.ended = True
            self._go_on()
        events, self._events[:] = list(self._events), []
        return events

    def _go_on(self) -> None:
        next(self._steps, None)

    def _find_meanings(self) -> dict[str, Calls | str | None]:
        """What each marker in content begins: calls, reasoning up to a text, or nothing."""
        form = self.format
        found: dict[str, Calls | str | None] = dict.fromkeys(form.dropped_content)
        found |= dict(form.reasoning)
        if self._with_calls:
            found |= dict.fromkeys(form.dropped)
            found |= {calls.begin: calls for calls in form.calls}
        return found

    # --- the answer

    def _read(self, in_reasoning: bool) -> Steps[None]:
        marker = ""  # of calls or around them, which has ended the reasoning
        if in_reasoning and self.format.reasoning:
            marker = yield from self._reasoning(list(dict.fromkeys(end for _, end in self.format.reasoning)))
        may_be_bare = True
        while True:
            if not marker:
                if may_be_bare and self._with_calls:
                    yield from self._bare()
                if self._markers is None:
                    yield from self._all_content()
                    return
                marker = yield from self._reader.until(self._markers, self._content)
                if not marker:
                    self._flush_space()
                    return
            meaning = self._meanings[marker]
            may_be_bare = isinstance(meaning, str)
            if isinstance(meaning, str):
                self._drop_space()
                marker = yield from self._reasoning([meaning])
                continue
            if meaning is None:
                self._drop_space()
            else:
                yield from self._marked(marker, meaning)
            marker = ""

    def _all_content(self) -> Steps[None]:
        while True:
            if self._reader.rest:
                self._content(self._reader.take(len(self._reader.rest)))
            if self._reader.ended:
                self._flush_space()
                return
            yield

    def _reasoning(self, ends: list[str]) -> Steps[str]:
        """Reads reasoning up to one of its ends, and returns the marker if it was one of calls."""
        self._strips = self.in_reasoning = True
        ends_at_calls = self.format.calls_end_reasoning and self._with_calls
        begins = [*self._begins, *self.format.dropped] if ends_at_calls else []
        markers = [*ends, *begins]
        if self.format.label:
            yield from self._label(self.format.label, markers)
        found = yield from self._reader.until(StopMatcher(markers), lambda text: self._text(Kind.REASONING, text))
        self.in_reasoning = False
        if found:
            self._drop_space()
        else:
            self._flush_space(Kind.REASONING)
        return found if found in begins else ""

    def _label(self, label: str, markers: list[str]) -> Steps[None]:
        """Takes the first line of the reasoning if it is the label."""
        reader = self._reader
        yield from reader.solid()
        whole = yield from reader.follows(*(label + behind for behind in ("\n", *markers)))
        if whole or reader.rest == label:  # and no more will come
            reader.take(len(label))

    def _bare(self) -> Steps[None]:
        """Reads calls without a marker, if the answer is such."""
        bare, reader = self.format.bare, self._reader
        if bare is None:
            return
        first = yield from reader.solid(None if self._strips else self._space.append)
        if not first or first not in self.format.bare_sign:
            return
        self._calls.begun = False
        reader.record(*self._space)
        self._space.clear()
        try:
            yield from bare(reader, self._calls, sure=False)
        except BrokenError:
            text = reader.stop_recording()
            if self._calls.begun:
                self._break(text)
            else:
                self._content(text)
            return
        reader.stop_recording()
        self._strips = True

    def _marked(self, marker: str, calls: Calls) -> Steps[None]:
        reader = self._reader
        while True:  # over calls whose end is missing
            self._calls.begun = False
            kept = len(marker) - len(calls.keeps)
            reader.record(*self._space, marker[:kept])
            self._space.clear()
            reader.rest = marker[kept:] + reader.rest
            try:
                yield from calls.body.read(reader, self._calls, calls.ends)
                yield from reader.solid()
                ended = bool(calls.ends) and bool((yield from reader.literal(calls.ends)))
                if not ended and calls.needs_end and reader.rest:
                    raise BrokenError
            except BrokenError:
                self._break(reader.stop_recording())
                if not calls.needs_end:
                    return
                found = yield from reader.until(StopMatcher([*calls.ends, *self._begins]), self._still_broken)
                following = self._meanings.get(found)
                if found in calls.ends or not found:
                    self._still_broken(found)
                    self._strips = True
                    return
                assert isinstance(following, Calls)
                marker, calls = found, following
                continue
            reader.stop_recording()
            self._strips = True
            return

    @property
    def _begins(self) -> list[str]:
        return [calls.begin for calls in self.format.calls]

    def _read_harmony(self, in_content: bool) -> Steps[None]:
        def emit(kind: Kind, text: str) -> None:
            self._events.append(Event(kind, text))

        def begins(kind: Kind | None) -> None:
            self.in_reasoning = kind is Kind.REASONING

        def broken(is_call: bool) -> None:
            text = self._reader.stop_recording()
            if is_call:
                self._break(text)
            elif text:
                emit(Kind.CONTENT, text)

        yield from harmony(self._reader, self._calls, emit, begins, broken, self._with_calls, in_content)

    # --- its texts

    def _break(self, text: str) -> None:
        """Tells that a call cannot be read, by its text so far."""
        self._broken_call = self._calls.count - 1 if self._calls.open else None
        self._calls.open = self._breaks = False
        if text.strip() or self._broken_call is not None:
            self._still_broken(text)

    def _still_broken(self, text: str) -> None:
        if text:
            self.broken += not self._breaks
            self._breaks = True
            self._events.append(Event(Kind.BROKEN, text, self._broken_call))

    def _content(self, text: str) -> None:
        self._text(Kind.CONTENT, text)

    def _text(self, kind: Kind, text: str) -> None:
        """Emits text, but for white space at its end, which waits for what follows."""
        if self._strips:
            text = text.lstrip()
            if not text:
                return
            self._strips = False
        solid = text.rstrip()
        if solid:
            self._flush_space(kind)
            self._events.append(Event(kind, solid))
        if len(solid) < len(text):
            self._space.append(text[len(solid) :])

    def _flush_space(self, kind: Kind = Kind.CONTENT) -> None:
        if self._space:
            self._events.append(Event(kind, "".join(self._space)))
            self._space.clear()

    def _drop_space(self) -> None:
        self._space.clear()
        self._strips = True
