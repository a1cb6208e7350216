"""Requests drawn from the contract: a number and a seed give the same calls on any machine.

Half of them start from an honest request, so that they get past the first check; others are any fields at all, or bytes
that are no message.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

from google.protobuf import message_factory
from google.protobuf.descriptor import FieldDescriptor as Field
from google.protobuf.descriptor import MethodDescriptor

from tandem.inference.v1 import admin_pb2, inference_pb2
from tandem.limits.v1 import limits_pb2
from tandem.tokenizer.v1 import tokenizer_pb2
from tests.fuzz.templates import template

TOKENIZER, WORKER = "tokenizer", "worker"
ENDING = {"SetDraining"}  # the worker would take no more work
METHODS: list[tuple[str, MethodDescriptor]] = [
    (where, method)
    for where, file in ((TOKENIZER, tokenizer_pb2), (WORKER, inference_pb2), (WORKER, admin_pb2))
    for service in file.DESCRIPTOR.services_by_name.values()
    for method in service.methods
    if method.name not in ENDING
]

INTEGERS = (0, 1, 2, 3, 7, 64, 511, 2047, 2048, -1, 2**31 - 1, -(2**31), 2**32 - 1, 2**63 - 1, 2**64 - 1, -(2**63))
FLOATS = (0.0, -0.0, 1.0, 0.5, -1.0, 5e-324, 1e-38, 3e38, 1e308, float("inf"), float("-inf"), float("nan"))
TEXTS = ("", "a", "demo", "ROMEO:", "\0", "é龘\U0001f600", "e" + "\u0301" * 500, "<s></s>", "{", "(" * 300, "x" * 5000)
SCHEMAS = ('{"type": "object"}', "true", '{"$ref": "#"}', '{"enum": []}', '{"type": "array", "minItems": 1000000}')
PATTERNS = ("[a-c]+", "(a|b){2,3}", "(a*)*b", "a{1000000}", "[", "(?=a)b", "\\p{L}+", "(" * 100 + ")" * 100)
GRAMMARS = ('root ::= "a" | "b" root', "root ::= root", "root ::= x", 'start: "a"+', 'start: start start | ""')
# What a text means is not in its type; by the names of fields.
MEANT: dict[str, tuple[str, ...]] = {
    "json_schema": SCHEMAS,
    "regex": PATTERNS,
    "grammar": GRAMMARS,
    "role": ("user", "system", "assistant", "tool", "root"),
    "tools": ("{}", '{"type": "function", "function": {"name": "f", "parameters": {}}}', "[]", "1"),
    "template_arguments": ("{}", '{"a": 1}', "[]", '{"messages": 1}', "{" * 200),
    "arguments": ("{}", '{"a": [1, null]}', "nul", "[" * 200),
}
RANGES = {
    Field.CPPTYPE_INT32: (-(2**31), 2**31 - 1),
    Field.CPPTYPE_UINT32: (0, 2**32 - 1),
    Field.CPPTYPE_INT64: (-(2**63), 2**63 - 1),
    Field.CPPTYPE_UINT64: (0, 2**64 - 1),
}
NAMES = ("model", "tokenizer", "expected_tokenizer_fingerprint")  # mostly absent, or all else is never looked at
MOST_MESSAGES = (60, 8, 2, 1, 1)  # in one repeated field, by its depth
BULK = 4 << 20  # bytes of one message, at most about: servers take 16 MiB


@dataclass(frozen=True, slots=True)
class Call:
    """One call, ready to be sent."""

    number: int
    where: str  # TOKENIZER or WORKER
    path: str
    client_streams: bool
    server_streams: bool
    requests: tuple[bytes, ...]
    seconds: float  # its deadline
    reads: int | None  # it is cancelled after so many answers; None: it is not


def calls(seed: int, numbers: Sequence[int]) -> list[Call]:
    """The calls with these numbers."""
    return [call(seed, number) for number in numbers]


def call(seed: int, number: int) -> Call:
    """The call with this number."""
    random = Random(f"{seed} call {number}")
    where, method = random.choices(METHODS, [1 + len(method.input_type.fields) for _, method in METHODS])[0]
    count = random.randint(1, 4) if method.client_streaming else 1
    return Call(
        number=number,
        where=where,
        path=f"/{method.containing_service.full_name}/{method.name}",
        client_streams=method.client_streaming,
        server_streams=method.server_streaming,
        requests=tuple(_request(method, random) for _ in range(count)),
        seconds=random.choice((0.05, 1.0, 3.0, 3.0)),
        reads=random.choice((0, 1, 3)) if random.random() < 0.1 else None,
    )


def _request(method: MethodDescriptor, random: Random) -> bytes:
    if random.random() < 0.05:
        return random.randbytes(random.choice((1, 9, 100, 3000)))
    message = message_factory.GetMessageClass(method.input_type)()
    if random.random() < 0.7:
        _honest(message, random)
        chance, bold = random.choice((0.03, 0.15, 0.4)), random.choice((0.0, 0.05, 0.3))
    else:
        chance, bold = 0.6, random.choice((0.0, 0.1, 0.5))
    _Filler(random, chance, bold).fill(message)
    for name in NAMES:
        if name in message.DESCRIPTOR.fields_by_name and random.random() < 0.95:
            message.ClearField(name)
    raw: bytes = message.SerializeToString()
    while random.random() < 0.15:
        raw = random.choice((_damaged, _repeated, _nested, _broken_text))(raw, method, random)
    return raw


def _honest(message: Any, random: Random) -> None:
    """Fields without which nothing else is looked at."""
    pb = tokenizer_pb2
    match message.DESCRIPTOR.name:
        case "GenerateRequest":
            message.prompt_ids.extend(random.choices(range(3, 500), k=random.choice((1, 5, 60))))
            message.stopping.max_tokens = random.choice((1, 8, 40))
        case "EncodeRequest":
            message.input.segments.add(text=random.choice(TEXTS))
        case "BatchEncodeRequest" | "CountTokensRequest":
            message.inputs.add().segments.add(text=random.choice(TEXTS))
        case "DecodeRequest":
            message.input.ids.extend(random.choices(range(500), k=9))
        case "BatchDecodeRequest":
            message.inputs.add().ids.extend(random.choices(range(500), k=9))
        case "DecodeStreamRequest":
            message.stream_key = random.choice("ab")
            message.ids.extend(random.choices(range(500), k=9))
            if random.random() < 0.6:
                message.open.CopyFrom(pb.DecodeStreamOpen(stop_strings=["a", "bc"]))
        case "EncodeChatRequest":
            message.messages.add(role="user", content=random.choice(TEXTS))
            message.chat_template = template(random)


class _Filler:
    """Sets fields, each with `chance`; of their values and counts the share `bold` disregards the limits."""

    def __init__(self, random: Random, chance: float, bold: float) -> None:
        self._random, self._chance, self._bold = random, chance, bold
        self._left = BULK  # bytes of texts and elements that may still be made, about

    def fill(self, message: Any, owner: Any = None, depth: int = 0) -> None:
        """`owner` are the limits of the field whose value the message is."""
        for field in message.DESCRIPTOR.fields:
            if self._random.random() > self._chance or (depth > 4 and field.message_type):
                continue
            limits = field.GetOptions().Extensions[limits_pb2.field]
            if field.is_repeated:
                count = self._count(limits.most or (owner.most_each if owner is not None else 0))
                self._extend(getattr(message, field.name), field, limits, count, depth)
            elif field.message_type:
                inner = getattr(message, field.name)
                inner.SetInParent()
                self.fill(inner, limits, depth + 1)
            else:
                setattr(message, field.name, self._value(field, limits))

    def _extend(self, target: Any, field: Any, limits: Any, count: int, depth: int) -> None:
        if field.message_type:
            for _ in range(min(count, MOST_MESSAGES[depth])):
                self.fill(target.add(), limits, depth + 1)
        elif some := [self._value(field, limits) for _ in range(min(count, 20))]:
            size = max(len(each) if isinstance(each, (str, bytes)) else 2 for each in some) + 2
            count = min(count, max(self._left, 0) // size)
            self._left -= count * size
            target.extend(self._random.choices(some, k=count))

    def _count(self, most: int) -> int:
        random = self._random
        if random.random() < self._bold:
            return random.choice((0, most, most + 1, 300, 20_000))
        return min(random.choice((1, 1, 2, 5)), most or 5) if random.random() < 0.95 else min(most, 2000)

    def _value(self, field: Any, limits: Any) -> Any:
        random, kind = self._random, field.cpp_type
        disregards = random.random() < self._bold
        if kind in RANGES:
            low, high = RANGES[kind]
            ends = [int(getattr(limits, end)) for end in ("low", "high") if limits.HasField(end)]
            if disregards:
                number = random.choice((*INTEGERS, *(end + off for end in ends for off in (-1, 0, 1))))
            elif limits.HasField("high"):
                number = random.randint(int(limits.low), int(limits.high))
            else:
                number = max(random.randrange(500), int(limits.low))
            return min(max(number, low), high)
        if kind in (Field.CPPTYPE_FLOAT, Field.CPPTYPE_DOUBLE):
            if disregards:
                return random.choice((*FLOATS, limits.low, limits.high))
            return random.uniform(limits.low, limits.high if limits.HasField("high") else limits.low + 2)
        if kind == Field.CPPTYPE_BOOL:
            return random.random() < 0.5
        if kind == Field.CPPTYPE_ENUM:
            known = [each.number for each in field.enum_type.values]
            return random.choice((99, -1, 2**31 - 1)) if disregards else random.choice(known)
        return self._text(field, limits, disregards)

    def _text(self, field: Any, limits: Any, disregards: bool) -> str | bytes:
        random, is_bytes = self._random, field.type == Field.TYPE_BYTES
        if disregards and is_bytes:
            return random.choice((b"\xff\xfe", b"\xed\xa0\x80", random.randbytes(9)))
        longest = limits.most_each if field.is_repeated else limits.most
        if field.name == "chat_template":
            text = template(random)
        elif disregards and 0 < longest < self._left:
            text = "y" * (longest + random.choice((0, 1)))
            self._left -= len(text)
        else:
            text = random.choice(MEANT.get(field.name, TEXTS) if random.random() < 0.8 else TEXTS)
        return text.encode() if is_bytes else text


def _damaged(raw: bytes, method: MethodDescriptor, random: Random) -> bytes:
    data = bytearray(raw or b"\0")
    place = random.randrange(len(data))
    match random.randrange(4):
        case 0:
            data[place] = random.randrange(256)
        case 1:
            del data[place:]
        case 2:
            data += random.randbytes(random.randrange(1, 12))
        case _:
            data += raw[place:]
    return bytes(data)


def _repeated(raw: bytes, method: MethodDescriptor, random: Random) -> bytes:
    """One field very often: empty messages and texts, or numbers."""
    field = random.choice(method.input_type.fields or [None])
    if field is None:
        return raw
    one = _tag(field.number, 2) + b"\0" if field.type in _WITH_LENGTH else _tag(field.number, 0) + b"\1"
    return raw + one * random.choice((100, 10_000, BULK // len(one)))


def _nested(raw: bytes, method: MethodDescriptor, random: Random) -> bytes:
    """The message as one field of itself, again and again."""
    field = random.choice(method.input_type.fields or [None])
    if field is None or len(raw) > 10_000:
        return raw
    for _ in range(random.choice((1, 40, 200))):
        raw = _tag(field.number, 2) + _varint(len(raw)) + raw
    return raw


def _broken_text(raw: bytes, method: MethodDescriptor, random: Random) -> bytes:
    """A text that is not UTF-8, which no protobuf library would write."""
    fields = [each for each in method.input_type.fields if each.type in _WITH_LENGTH]
    return raw + _tag(random.choice(fields).number, 2) + b"\2\xff\xfe" if fields else raw


_WITH_LENGTH = {Field.TYPE_STRING, Field.TYPE_BYTES, Field.TYPE_MESSAGE}


def _tag(number: int, wire: int) -> bytes:
    return _varint(number << 3 | wire)


def _varint(value: int) -> bytes:
    found = bytearray()
    while value > 0x7F:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*found, value])
