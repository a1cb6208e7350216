"""Reads the header of a GGUF file: the key-value pairs, and where the tensors lie behind them.

Only what is asked for becomes Python objects; the rest is stepped over. Every length is checked against the file before
anything is allocated. A vocabulary of 128,000 tokens and 280,000 merges takes about a tenth of a second.
"""

from __future__ import annotations

import mmap
import re
import struct
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

MAGIC = b"GGUF"
# The number of a type in a file, and its struct code.
SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
STRING, ARRAY = 8, 9
DEFAULT_ALIGNMENT = 32
# What llama-gguf-split calls the parts of a model: its name, the part's number from 1, and how many there are.
PART_NAME = re.compile(r"(.+)-(\d{5})-of-(\d{5})\.gguf")
_Read = TypeVar("_Read")
_MAX_KEYS = 1 << 16
_MAX_KEY_BYTES = (1 << 16) - 1
_LONGEST_MESSAGE = 1500
_MAX_TENSORS = 1 << 20
_U32, _U64 = struct.Struct("<I"), struct.Struct("<Q")


class GgufError(Exception):
    """A GGUF file cannot be read: one line with the file and what is wrong."""

    def __init__(self, path: Path, problem: str) -> None:
        self.path = path
        self.problem = one_line(problem)
        super().__init__(f"{path}: {self.problem}")


@dataclass(frozen=True, slots=True)
class GgufTensor:
    """One tensor of the file: its type, shape and place."""

    shape: tuple[int, ...]  # slowest dimension first, as in torch; the file has it the other way round
    kind: int  # `ggml_type`
    offset: int  # bytes from the beginning of the file


@dataclass(frozen=True, slots=True)
class GgufHeader:
    """The wanted key-value pairs, and every tensor by its name."""

    metadata: dict[str, Any]
    tensors: dict[str, GgufTensor]


def one_line(text: str) -> str:
    """Escapes other than printable characters and shortens long text, for messages that quote a damaged file."""
    if len(text) > _LONGEST_MESSAGE:
        text = f"{text[: _LONGEST_MESSAGE // 2]} ... {text[-_LONGEST_MESSAGE // 2 :]}"
    return "".join(each if each.isprintable() else repr(each)[1:-1] for each in text)


def are_parts(names: Sequence[str]) -> bool:
    """Tells whether files of these names are parts of one model; the first of them in order has its keys."""
    found = {(match[1], match[3]) if (match := PART_NAME.fullmatch(name)) else None for name in names}
    return len(found) == 1 and None not in found


def read_metadata(path: Path, wanted: Callable[[str], bool]) -> dict[str, Any]:
    """Returns the values of the wanted keys: numbers, booleans, str, list[bytes] for arrays of strings and array.array
    for arrays of numbers. Raises GgufError."""
    return _with_reader(path, lambda reader: reader.metadata(wanted))


def read_header(path: Path, wanted: Callable[[str], bool]) -> GgufHeader:
    """Returns the same values and the tensors. Raises GgufError."""
    return _with_reader(path, lambda reader: reader.header(wanted))


def read_raw(path: Path, wanted: Callable[[str], bool]) -> dict[str, bytes]:
    """Returns the wanted values as bytes of the file, each behind the number of its type. Raises GgufError."""
    return _with_reader(path, lambda reader: reader.raw(wanted))


def _with_reader(path: Path, read: Callable[[_Reader], _Read]) -> _Read:
    try:
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as view:
            reader = _Reader(path, view)
            try:
                return read(reader)
            except (struct.error, OverflowError):
                raise reader.truncated() from None
    except (OSError, ValueError) as error:  # an empty file cannot be mapped
        reason = error.strerror if isinstance(error, OSError) else error
        raise GgufError(path, f"cannot be read: {reason}") from None


class _Reader:
    def __init__(self, path: Path, data: mmap.mmap) -> None:
        self._path = path
        self._data = data
        self._size = len(data)
        self._at = 0

    def metadata(self, wanted: Callable[[str], bool]) -> dict[str, Any]:
        return self._keys(wanted)[1]

    def raw(self, wanted: Callable[[str], bool]) -> dict[str, bytes]:
        return self._keys(lambda key: False, wanted)[1]

    def header(self, wanted: Callable[[str], bool]) -> GgufHeader:
        count, metadata = self._keys(lambda key: key == "general.alignment" or wanted(key))
        alignment = metadata.get("general.alignment", DEFAULT_ALIGNMENT)
        if type(alignment) is not int or alignment < 8 or alignment & (alignment - 1):
            raise GgufError(self._path, f"general.alignment is {alignment!r}; a power of two from 8 on is expected")
        found = [self._tensor() for _ in range(count)]
        start = -(-self._at // alignment) * alignment
        tensors: dict[str, GgufTensor] = {}
        for name, shape, kind, offset in found:
            if name in tensors:
                raise GgufError(self._path, f"has the tensor {name} twice")
            if offset % alignment:
                raise GgufError(self._path, f"tensor {name} is not aligned to {alignment} bytes; the file is damaged")
            tensors[name] = GgufTensor(shape, kind, start + offset)
        return GgufHeader(metadata, tensors)

    def _tensor(self) -> tuple[str, tuple[int, ...], int, int]:
        name = self._bytes().decode("utf-8", "replace")
        dimensions = self._number(_U32)
        if not 1 <= dimensions <= 4:
            raise GgufError(self._path, f"tensor {name} has {dimensions} dimensions; the file is damaged")
        sizes = [self._number(_U64) for _ in range(dimensions)]
        return name, tuple(reversed(sizes)), self._number(_U32), self._number(_U64)

    def _keys(
        self, wanted: Callable[[str], bool], raw: Callable[[str], bool] = lambda key: False
    ) -> tuple[int, dict[str, Any]]:
        """Returns the number of tensors and the wanted values; with `raw`, their bytes."""
        if self._data[:4] != MAGIC:
            raise GgufError(self._path, "does not begin with GGUF")
        self._at = 4
        version = self._number(_U32)
        if version not in (2, 3):
            named = "big-endian" if version & 0xFFFF == 0 else f"version {version}"
            raise GgufError(self._path, f"is a {named} GGUF file; versions 2 and 3, little-endian, are read")
        tensors, count = self._number(_U64), self._number(_U64)
        if count > _MAX_KEYS or tensors > _MAX_TENSORS:
            raise GgufError(self._path, f"claims to have {count} keys and {tensors} tensors; it is damaged")
        values: dict[str, Any] = {}
        for _ in range(count):
            name = self._bytes()
            if len(name) > _MAX_KEY_BYTES:
                raise GgufError(self._path, f"has a key of {len(name)} bytes; it is damaged")
            key = name.decode("utf-8", "replace")
            start = self._at
            kind = self._number(_U32)
            if raw(key):
                self._skip(key, kind)
                values[key] = self._data[start : self._at]
            elif wanted(key):
                if key in values:
                    raise GgufError(self._path, f"has the key {key} twice")
                values[key] = self._value(key, kind)
            else:
                self._skip(key, kind)
        return tensors, values

    def _value(self, key: str, kind: int) -> Any:
        if kind == STRING:
            try:
                return self._bytes().decode()
            except UnicodeDecodeError:
                raise GgufError(self._path, f"{key} is not valid UTF-8") from None
        if kind == ARRAY:
            return self._array(key)
        code = self._code(key, kind)
        (value,) = struct.unpack_from(f"<{code}", self._data, self._at)
        self._at += struct.calcsize(f"<{code}")
        return value

    def _array(self, key: str) -> list[bytes] | array[Any]:
        kind, count = self._number(_U32), self._number(_U64)
        if kind == STRING:
            return self._strings(count)
        code = self._code(key, kind)
        size = count * struct.calcsize(f"<{code}")
        if size > self._size - self._at:
            raise self.truncated()
        values = array("B" if code == "?" else code)
        values.frombytes(self._data[self._at : self._at + size])
        self._at += size
        return values

    def _strings(self, count: int) -> list[bytes]:
        if count * 8 > self._size - self._at:
            raise self.truncated()
        data, at = self._data, self._at
        unpack = _U64.unpack_from
        ends: list[int] = []
        add = ends.append
        for _ in range(count):
            at += 8 + unpack(data, at)[0]
            add(at)
        if at > self._size:  # what follows a string that is too long is never reached
            raise self.truncated()
        begin, self._at = self._at, at
        region = data[begin:at]  # cutting bytes is half the work of cutting a mapped file
        starts = [begin, *ends[:-1]]
        return (
            [region[start - begin + 8 : end - begin] for start, end in zip(starts, ends, strict=True)] if ends else []
        )

    def _skip(self, key: str, kind: int) -> None:
        if kind == STRING:
            self._bytes()
        elif kind == ARRAY:
            self._array(key)
        else:
            self._at += struct.calcsize(f"<{self._code(key, kind)}")

    def _code(self, key: str, kind: int) -> str:
        code = SCALARS.get(kind)
        if code is None:
            raise GgufError(self._path, f"{key} has the unknown type {kind}")
        return code

    def _number(self, form: struct.Struct) -> int:
        value: int = form.unpack_from(self._data, self._at)[0]
        self._at += form.size
        return value

    def _bytes(self) -> bytes:
        length = self._number(_U64)
        if length > self._size - self._at:
            raise self.truncated()
        found = self._data[self._at : self._at + length]
        self._at += length
        return found

    def truncated(self) -> GgufError:
        return GgufError(self._path, f"is truncated or damaged: it ends within its header ({self._size} bytes)")
