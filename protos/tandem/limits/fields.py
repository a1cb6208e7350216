"""The limits of requests' fields (`limits.proto`), read from the descriptors."""

from __future__ import annotations

import enum
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message

from tandem.limits.v1 import limits_pb2

# Numbers travel in double precision, so that they read as they were written; computed is in single precision.
FLOAT32_MAX = 3.4028234663852886e38
FLOAT32_SMALLEST = 2.0**-149
# What an integer field can express.
_INTEGERS = {
    FieldDescriptor.TYPE_UINT32: (0, 2**32 - 1),
    FieldDescriptor.TYPE_UINT64: (0, 2**64 - 1),
    FieldDescriptor.TYPE_INT32: (-(2**31), 2**31 - 1),
}


class Kind(enum.Enum):
    """The kind of value that a field holds."""

    NUMBER = "number"
    INTEGER = "integer"
    FLAG = "flag"
    TEXT = "text"
    IDS = "ids"
    SEQUENCES = "sequences"  # repeated TokenSequence
    BIASES = "biases"  # repeated LogitBias
    TEXTS = "texts"
    MESSAGES = "messages"  # others, repeated


_SCALAR = (Kind.NUMBER, Kind.INTEGER, Kind.FLAG)


@dataclass(frozen=True)
class Limit:
    """The limits of one field. `low` and `high` bound a number, infinite ones stand for any finite number; `least` and
    `most` count the elements of a repeated field or the bytes of a string, `most_each` the ids or bytes of each."""

    path: str
    kind: Kind
    default: float | None
    low: float
    high: float
    low_excluded: bool
    filter: bool
    stateful: bool
    least: int
    most: int | None
    most_each: int
    optional: bool  # it is known whether it is set

    @cached_property
    def scalar(self) -> bool:
        """True when the field holds one number or flag, which may be absent."""
        return self.kind in _SCALAR

    @cached_property
    def name(self) -> str:
        """The path as one word, which is the name of the SDK's and the engine's parameter."""
        return "mirostat" if self.path == "mirostat.version" else self.path.replace(".", "_")

    @property
    def range(self) -> str:
        """The allowed values, as tables and help show them."""
        if self.kind in (Kind.FLAG, Kind.TEXT):
            return f"at most {self.most} bytes" if self.most else ""
        if not self.scalar:
            return f"{self.most} of 1 to {self.most_each} ids" if self.most_each else f"{self.most} ids"
        if self.high < math.inf:
            return f"{self.low:.10g} to {'2^64 - 1' if self.high == 2**64 - 1 else f'{self.high:.10g}'}"
        return f"{'>' if self.low_excluded else '>='} {self.low:g}"

    @property
    def bound(self) -> int:
        """The limit `most` of a field that has one."""
        assert self.most is not None, self.path
        return self.most

    def allows(self, value: float) -> bool:
        """Returns True when a number is within the bounds."""
        above = value - self.low >= FLOAT32_SMALLEST if self.low_excluded else value >= self.low
        return abs(value) <= FLOAT32_MAX and above and value <= self.high

    @cached_property
    def _parents(self) -> list[str]:
        return self.path.split(".")[:-1]

    def owner(self, message: Message) -> Message:
        """Returns the message that contains the field, where `message` is the one that the path begins at."""
        for parent in self._parents:
            message = getattr(message, parent)
        return message

    def is_in(self, message: Message) -> bool:
        """Returns True when all messages that contain the field are present."""
        for parent in self._parents:
            if not message.HasField(parent):
                return False
            message = getattr(message, parent)
        return True

    @cached_property
    def field(self) -> str:
        """The field's own name."""
        return self.path.rpartition(".")[2]


def shown(value: float) -> str:
    """Formats a number as a person would write it."""
    return repr(value).removesuffix(".0")


def limits_of(message: Descriptor) -> dict[str, Limit]:
    """Returns the limits of the fields of a message and of those in it, by path, in the order of the contract."""
    return dict(_limits(message, ""))


def given(message: Message, limits: Mapping[str, Limit]) -> Iterator[tuple[Limit, float]]:
    """Returns the numbers and flags that are set."""
    for limit in limits.values():
        if limit.scalar and (owner := limit.owner(message)).HasField(limit.field):
            yield limit, getattr(owner, limit.field)


def stateful(message: Message, limits: Mapping[str, Limit]) -> list[str]:
    """Returns the paths of the set fields that make draws depend on earlier draws."""
    return [limit.path for limit, value in given(message, limits) if limit.stateful and value != limit.default]


def _limits(message: Descriptor, prefix: str) -> Iterator[tuple[str, Limit]]:
    for field in message.fields:
        path = f"{prefix}{field.name}"
        if field.GetOptions().HasExtension(limits_pb2.field):
            yield path, _limit(path, field)
        elif field.message_type is not None and not field.is_repeated:
            yield from _limits(field.message_type, f"{path}.")


def _limit(path: str, field: FieldDescriptor) -> Limit:
    stated = field.GetOptions().Extensions[limits_pb2.field]
    low, high = _INTEGERS.get(field.type, (-math.inf, math.inf))
    kind = _kind(field)
    typed = {Kind.INTEGER: int, Kind.FLAG: bool}.get(kind, float)
    return Limit(
        path=path,
        kind=kind,
        default=typed(stated.default) if stated.HasField("default") else None,
        low=stated.low if stated.HasField("low") else low,
        high=stated.high if stated.HasField("high") else high,
        low_excluded=stated.low_excluded,
        filter=stated.filter,
        stateful=stated.stateful,
        least=stated.least,
        most=stated.most if stated.HasField("most") else None,
        most_each=stated.most_each,
        optional=field.has_presence,
    )


def _kind(field: FieldDescriptor) -> Kind:
    if field.message_type is not None:
        return {"TokenSequence": Kind.SEQUENCES, "LogitBias": Kind.BIASES}.get(field.message_type.name, Kind.MESSAGES)
    if field.type in (FieldDescriptor.TYPE_STRING, FieldDescriptor.TYPE_BYTES):
        return Kind.TEXTS if field.is_repeated else Kind.TEXT
    if field.is_repeated:
        return Kind.IDS
    if field.type == FieldDescriptor.TYPE_BOOL:
        return Kind.FLAG
    return Kind.INTEGER if field.type in _INTEGERS else Kind.NUMBER
