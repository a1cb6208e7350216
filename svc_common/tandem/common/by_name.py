"""Makes messages from objects whose attributes have the contract's field names."""

from __future__ import annotations

from typing import Any

from google.protobuf.message import Message


def fields_of(message: type[Message], *sources: object) -> dict[str, Any]:
    """Returns each field of the message that one of `sources` has, as keywords for its constructor."""
    names = message.DESCRIPTOR.fields_by_name
    return {name: getattr(source, name) for source in sources for name in names if hasattr(source, name)}
