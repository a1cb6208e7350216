"""The events that an answer consists of."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto


class Kind(Enum):
    """What an event tells."""

    CONTENT = auto()  # text for the reader
    REASONING = auto()  # text that the model wrote for itself
    CALL = auto()  # a call of a tool begins: its name, and its id where the model wrote one
    ARGUMENTS = auto()  # more of that call's arguments, a JSON object as text
    CALL_END = auto()  # the call is complete
    BROKEN = auto()  # more text of a call that cannot be read: to be shown as content


@dataclass(frozen=True, slots=True)
class Event:
    """One event. Texts of neighbours of one kind belong together: where they are cut depends on when ids came."""

    kind: Kind
    text: str = ""
    call: int | None = None  # counted from 0; of a broken one only where it has begun
    name: str = ""
    id: str = ""


def joined(events: list[Event]) -> list[Event]:
    """Returns the events with the texts of neighbours of one kind joined: the same however the ids were cut."""
    found: list[Event] = []
    texts: list[str] = []
    for event in events:
        if found and (event.kind, event.call) == (found[-1].kind, found[-1].call) and event.text and texts:
            texts.append(event.text)
            continue
        if len(texts) > 1:
            found[-1] = Event(found[-1].kind, "".join(texts), found[-1].call)
        found.append(event)
        texts = [event.text] if event.text else []
    if len(texts) > 1:
        found[-1] = Event(found[-1].kind, "".join(texts), found[-1].call)
    return found
