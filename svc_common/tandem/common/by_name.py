"""Answers made of what is known under the contract's own names."""

from __future__ import annotations

from typing import Any

from google.protobuf.message import Message


def fields_of(message: type[Message], *sources: object) -> dict[str, Any]:
    """The fields of a message that one of `sources` has an attribute for, as keywords for its constructor."""
    names = message.DESCRIPTOR.fields_by_name
    return {name: getattr(source, name) for source in sources for name in names if hasattr(source, name)}
