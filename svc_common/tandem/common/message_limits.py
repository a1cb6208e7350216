"""Limits the elements of a request message, counted on its bytes before it is parsed.

Parsing holds the interpreter lock and the event loop: 16 MiB of empty messages take protobuf 0.6 s, and Python
minutes to look at. What is within these limits is parsed in some 30 ms at most. They are about all of a message
together; what is allowed in each part of it, with all that is wrong told at once, the services' own validation says.

Counting is a C function (`field_counter.py`) where the wheel brings it or a compiler is at hand, and Python that can be
run in a thread elsewhere.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from google.protobuf.descriptor import Descriptor, FieldDescriptor, ServiceDescriptor

from tandem.common.errors import FieldViolation
from tandem.common.field_counter import library
from tandem.limits.v1 import limits_pb2

MAX_FIELDS = 1 << 19  # fields of one message at all levels together, those that we do not know included
_DEEPEST = 64  # messages within messages

_OTHER, _MESSAGE, _TEXT, _VARINT, _FIXED32, _FIXED64 = range(6)
_WHOLE, _MALFORMED, _TOO_MANY_FIELDS = range(3)


class Limit(NamedTuple):
    """Limits one field in a whole message: its elements, and the bytes of each where it has text or bytes."""

    entries: int | None = None
    size: int | None = None


Limits = Mapping[str, Limit]  # by the name of a message and its field, as "EncodeInput.segments"


class MalformedMessageError(Exception):
    """The bytes are not a protobuf message."""


def limits_of_service(service: ServiceDescriptor, limits: Limits | None = None) -> dict[str, MessageLimits]:
    """Returns the limits of a service's requests by the path of the method, `/package.Service/Method`; `limits` are
    those that the contract leaves to the service."""
    library()  # now, and not when the first large request holds everybody up
    return {
        f"/{service.full_name}/{method.name}": MessageLimits(method.input_type, limits or {})
        for method in service.methods
    }


class MessageLimits:
    """Checks messages of one type. Raises KeyError where a field that needs a limit has none."""

    def __init__(self, message: Descriptor, limits: Limits) -> None:
        self._slots: list[tuple[str, Limit]] = [("", Limit())]  # the first is for all that is not counted
        self._nodes = array("i")
        self._fields = array("i")
        self._add_node(message, "", limits, {}, None)

    @property
    def paths(self) -> dict[str, Limit]:
        """Returns the limited fields by their paths in the request."""
        return dict(self._slots[1:])

    def violations(self, raw: bytes) -> list[FieldViolation]:
        """Returns a violation for each limit that `raw` exceeds. Raises MalformedMessageError."""
        counts, longest = array("q", bytes(8 * len(self._slots))), array("q", bytes(8 * len(self._slots)))
        compiled = library()
        if compiled is None:
            found = _Counting(self._nodes, self._fields, counts, longest).count(raw, 0, len(raw), 0, 0)
        else:
            addresses = (each.buffer_info()[0] for each in (self._nodes, self._fields, counts, longest))
            found = compiled.tandem_count_fields(raw, len(raw), *addresses, MAX_FIELDS)
        if found == _MALFORMED:
            raise MalformedMessageError
        cut = found == _TOO_MANY_FIELDS
        violations = list(self._exceeded(counts, longest, "at least " if cut else ""))
        if cut and not violations:
            violations.append(FieldViolation("request", f"has more than {MAX_FIELDS} fields in all"))
        return violations

    @property
    def quick(self) -> bool:
        """Tells whether counting is quick enough for an event loop."""
        return library() is not None

    def _exceeded(self, counts: array[int], longest: array[int], least: str) -> Iterator[FieldViolation]:
        for (path, limit), count, size in zip(self._slots, counts, longest, strict=True):
            if limit.entries is not None and count > limit.entries:
                yield FieldViolation(path, f"has {least}{count} entries in all; at most {limit.entries} are allowed")
            if limit.size is not None and size > limit.size:
                yield FieldViolation(path, f"has {size} bytes; at most {limit.size} are allowed")

    def _add_node(
        self, message: Descriptor, path: str, limits: Limits, above: dict[str, int], owner: FieldDescriptor | None
    ) -> int:
        """Adds the node of a message type; a message within itself is one node, so its levels count together."""
        if message.full_name in above:
            return above[message.full_name]
        node = len(self._nodes) // 2
        above = {**above, message.full_name: node}
        last = max((field.number for field in message.fields), default=0)
        begin = len(self._fields)
        self._nodes.extend((begin, last))
        self._fields.extend([_OTHER, 0, 0] * (last + 1))
        for field in message.fields:
            place = f"{path}{field.name}"
            kind = _kind(field)
            slot = child = 0
            if needs_limit(field):
                slot = len(self._slots)
                name = f"{message.name}.{field.name}"
                self._slots.append((place, limits[name] if name in limits else _stated(field, owner)))
            if kind == _MESSAGE and field.message_type is not None:
                child = self._add_node(field.message_type, f"{place}.", limits, above, field)
            at = begin + 3 * field.number
            self._fields[at : at + 3] = array("i", (kind, slot, child))
        return node


def needs_limit(field: FieldDescriptor) -> bool:
    """Tells whether this field can make a request large."""
    return bool(field.is_repeated) or field.type in (FieldDescriptor.TYPE_STRING, FieldDescriptor.TYPE_BYTES)


def _stated(field: FieldDescriptor, owner: FieldDescriptor | None) -> Limit:
    """Returns the contract's limit of a field, or of a message in the field `owner`. Raises KeyError."""
    stated = field.GetOptions().Extensions[limits_pb2.field]
    if stated.most and field.is_repeated:
        return Limit(stated.most, stated.most_each or None) if _kind(field) == _TEXT else Limit(stated.most)
    if stated.most:
        return Limit(size=stated.most)
    each = owner.GetOptions().Extensions[limits_pb2.field] if owner is not None else stated
    if each.most_each:
        return Limit(each.most * each.most_each)
    raise KeyError(f"{field.full_name} has no limit")


def _kind(field: FieldDescriptor) -> int:
    match field.type:
        case FieldDescriptor.TYPE_MESSAGE:
            return _MESSAGE
        case FieldDescriptor.TYPE_STRING | FieldDescriptor.TYPE_BYTES:
            return _TEXT
    if not field.is_repeated:
        return _OTHER
    match field.type:
        case FieldDescriptor.TYPE_FLOAT | FieldDescriptor.TYPE_FIXED32 | FieldDescriptor.TYPE_SFIXED32:
            return _FIXED32
        case FieldDescriptor.TYPE_DOUBLE | FieldDescriptor.TYPE_FIXED64 | FieldDescriptor.TYPE_SFIXED64:
            return _FIXED64
        case _:
            return _VARINT


class _Counting:
    """Counts the elements of one message in Python, as the C function does."""

    def __init__(self, nodes: array[int], fields: array[int], counts: array[int], longest: array[int]) -> None:
        self._nodes, self._fields, self._counts, self._longest = nodes, fields, counts, longest
        self._left = MAX_FIELDS

    def count(self, raw: bytes, at: int, end: int, node: int, depth: int) -> int:
        if depth > _DEEPEST:
            return _MALFORMED
        begin, last = self._nodes[2 * node : 2 * node + 2]
        try:
            while at < end:
                if not self._left:
                    return _TOO_MANY_FIELDS
                self._left -= 1
                tag, at = _varint(raw, at, end)
                number, wire = tag >> 3, tag & 7
                if not 0 < number < 1 << 29:
                    return _MALFORMED
                kind, slot, child = _OTHER, 0, 0
                if number <= last:
                    kind, slot, child = self._fields[begin + 3 * number : begin + 3 * number + 3]
                if wire == 0:
                    _, at = _varint(raw, at, end)
                    self._counts[slot] += kind == _VARINT
                elif wire in (1, 5):
                    at += 8 if wire == 1 else 4
                    self._counts[slot] += kind == (_FIXED64 if wire == 1 else _FIXED32)
                elif wire == 2:
                    size, at = _varint(raw, at, end)
                    if size > end - at:
                        return _MALFORMED
                    found = self._value(raw, at, at + size, kind, slot, child, depth)
                    if found != _WHOLE:
                        return found
                    at += size
                else:  # groups, which no message of ours has
                    return _MALFORMED
        except IndexError:
            return _MALFORMED
        return _WHOLE if at == end else _MALFORMED

    def _value(self, raw: bytes, at: int, end: int, kind: int, slot: int, child: int, depth: int) -> int:
        match kind:
            case 1:  # a message
                self._counts[slot] += 1
                return self.count(raw, at, end, child, depth + 1)
            case 2:  # text
                self._counts[slot] += 1
                self._longest[slot] = max(self._longest[slot], end - at)
            case 3:  # varints: each ends with a byte whose highest bit is not set
                self._counts[slot] += len(raw[at:end].translate(None, _GO_ON))
            case 4 | 5:
                self._counts[slot] += (end - at) // (4 if kind == _FIXED32 else 8)
        return _WHOLE


_GO_ON = bytes(range(0x80, 0x100))


def _varint(raw: bytes, at: int, end: int) -> tuple[int, int]:
    """Returns a varint and the index behind it. Raises IndexError."""
    value = 0
    for shift in range(0, 70, 7):
        if at >= end:
            break
        byte = raw[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
    raise IndexError
