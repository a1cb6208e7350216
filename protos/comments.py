"""Reads the comments of the contract."""

from __future__ import annotations

import re
from collections.abc import Iterator

from google.protobuf.descriptor_pb2 import FileDescriptorSet

_MESSAGES, _ENUMS, _MEMBERS = 4, 5, 2  # numbers of descriptor.proto: of a file, and of a message or an enum


def first_sentences(descriptors: FileDescriptorSet) -> dict[tuple[str, str], str]:
    """Returns the first sentence of the comment of each field of a message and each value of an enum, by both names,
    without the full stop and beginning in lower case."""
    said: dict[tuple[str, str], str] = {}
    for file in descriptors.file:
        for location in file.source_code_info.location:
            text = " ".join((location.leading_comments + " " + location.trailing_comments).split())
            text = re.split(r"\.(?: |$)", text)[0]
            text = text[:1].lower() + text[1:]
            match list(location.path):
                case [kind, at, member, place] if kind == _MESSAGES and member == _MEMBERS:
                    message = file.message_type[at]
                    said[message.name, message.field[place].name] = text
                case [kind, at, member, place] if kind == _ENUMS and member == _MEMBERS:
                    enum = file.enum_type[at]
                    said[enum.name, enum.value[place].name] = text
    return said


def declared(line: str, comment: str) -> Iterator[str]:
    """Yields a field of a class with its comment behind it, or above it where that would be too wide."""
    if len(line) + len(comment) + 8 <= 120:
        yield f"    {line}{f'  # {comment}' if comment else ''}\n"
        return
    text = ""
    for word in comment.split():
        if len(text) + len(word) + 7 > 120:
            yield f"    # {text}\n"
            text = ""
        text = f"{text} {word}".strip()
    yield f"    # {text}\n    {line}\n"
