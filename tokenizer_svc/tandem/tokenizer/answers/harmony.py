"""OpenAI's Harmony format: messages with a channel, and a recipient where they call a tool.

    <|channel|>analysis<|message|>...<|end|><|start|>assistant<|channel|>final<|message|>...

An answer begins behind `<|start|>assistant`. Analysis is reasoning, the other channels are content.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from tandem.tokenizer.answers.events import Kind
from tandem.tokenizer.answers.json_body import json_object
from tandem.tokenizer.answers.reader import BrokenError, Reader, Steps
from tandem.tokenizer.answers.writer import CallWriter
from tandem.tokenizer.decoding.stop_strings import StopMatcher

CHANNEL, CONSTRAIN, MESSAGE, START = "<|channel|>", "<|constrain|>", "<|message|>", "<|start|>"
ENDS = ("<|end|>", "<|call|>", "<|return|>")
FINAL = f"{CHANNEL}final{MESSAGE}"
MARKERS = (CHANNEL, CONSTRAIN, MESSAGE, START, *ENDS)
_ALL = StopMatcher(MARKERS)
_LONGEST_HEADER = 1024
_HEADER = re.compile(
    r"\s*+(?:assistant)?+\s*+(?:to=([^\s<]++))?+\s*+"
    r"(?:<\|channel\|>\s*+(analysis|commentary|final)\b\s*+(?:to=([^\s<]++))?+\s*+(?:<\|constrain\|>\s*+)?+(?:json|code)?+)?+\s*+"
)
_KINDS = {"analysis": Kind.REASONING, "commentary": Kind.CONTENT, "final": Kind.CONTENT}

Emit = Callable[[Kind, str], None]


def harmony(
    reader: Reader,
    calls: CallWriter,
    emit: Emit,
    begins: Callable[[Kind | None], None],
    broken: Callable[[bool], None],
    with_calls: bool,
    in_content: bool,
) -> Steps[None]:
    """Reads a whole answer, or with `in_content` the rest of one. `broken` is called where a call, or with False a
    header, cannot be read."""
    if in_content:
        yield from _text(reader, emit, Kind.CONTENT)
    while (yield from reader.peek()):
        reader.record()
        try:
            header = yield from _header(reader)
        except BrokenError:
            broken(False)
            yield from _text(reader, emit, Kind.CONTENT)
            continue
        match = _HEADER.fullmatch(header)
        if match is None:
            broken(False)
            yield from _text(reader, emit, Kind.CONTENT)
            continue
        recipient, channel = match[1] or match[3], match[2] or "final"
        if recipient is None or not with_calls:
            reader.stop_recording()
            begins(_KINDS[channel])
            yield from _text(reader, emit, _KINDS[channel])
            begins(None)
        else:
            calls.begun = False
            try:
                calls.begin(recipient.removeprefix("functions."))
                yield from json_object(reader, calls.arguments)
                if (yield from reader.solid()):
                    marker = yield from reader.literal(MARKERS)
                    if not marker:
                        raise BrokenError
                    if marker == CHANNEL:
                        reader.give_back(marker)
                calls.end()
            except BrokenError:
                broken(True)
                yield from _text(reader, emit, Kind.BROKEN)


def _header(reader: Reader) -> Steps[str]:
    """Takes a header with the marker behind it. Raises BrokenError where there is none."""
    parts: list[str] = []
    left = _LONGEST_HEADER
    while True:
        text, marker = yield from reader.up_to(_ALL, left)
        left -= len(text)
        parts.append(text)
        if marker == MESSAGE:
            return "".join(parts)
        if marker == START and not "".join(parts).strip():  # of this message
            parts.clear()
        elif marker in (CHANNEL, CONSTRAIN):
            parts.append(marker)
        else:
            raise BrokenError


def _text(reader: Reader, emit: Emit, kind: Kind) -> Steps[None]:
    """Reads to the next marker."""
    marker = yield from reader.until(_ALL, lambda text: emit(kind, text))
    if marker == CHANNEL:
        reader.rest = marker + reader.rest
