"""Reads typed fields of the JSON files beside the weights; every error names the file and the field."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any, TypeVar, overload

from tandem.worker.checkpoints.checkpoint import CheckpointError
from tandem.worker.checkpoints.model_parts.limits import ConfigError

_TOO_LARGE = 10**15  # for any whole number of a model; floats have all below it
MAX_JSON_BYTES = 64 << 20  # the index of a model with a thousand shards has a few

_Default = TypeVar("_Default")
_Built = TypeVar("_Built")
REQUIRED: Any = object()  # the default of a field that must be there


class Fields:
    """One JSON object of a file."""

    def __init__(self, path: Path, values: dict[str, Any], prefix: str = "") -> None:
        self.path = path
        self.values = values
        self._prefix = prefix

    @classmethod
    def read(cls, path: Path) -> Fields:
        """Reads the object in a file; raises CheckpointError when there is none."""
        try:
            if path.stat().st_size > MAX_JSON_BYTES:
                raise CheckpointError(f"{path}: larger than {MAX_JSON_BYTES >> 20} MiB, which no such file is")
            values = json.loads(path.read_bytes())
        except FileNotFoundError:
            raise CheckpointError(f"{path}: no such file") from None
        except OSError as error:
            raise CheckpointError(f"{path}: cannot be read: {error.strerror}") from error
        except (ValueError, RecursionError) as error:  # broken JSON, broken UTF-8, absurd numbers or nesting
            raise CheckpointError(f"{path}: not valid JSON: {error}") from error
        if not isinstance(values, dict):
            raise CheckpointError(f"{path}: holds a JSON {type(values).__name__} where an object is expected")
        return cls(path, values)

    def with_values(self, values: dict[str, Any]) -> Fields:
        """Returns fields of the same object with other values."""
        return Fields(self.path, values, self._prefix)

    def renamed(self, usual: Mapping[str, str]) -> Fields:
        """Returns the fields with the names that others have. Refuses one by both names that differ."""
        values = dict(self.values)
        for theirs, name in usual.items():
            if theirs not in values:
                continue
            said = values.pop(theirs)
            if values.setdefault(name, said) != said:
                raise self.error(theirs, f"is {shown(said)}, but {name} is {shown(values[name])}")
        return self.with_values(values)

    def error(self, key: str, problem: str) -> CheckpointError:
        """Makes the error of one field."""
        return CheckpointError(f"{self.path}: {self._prefix}{key} {problem}")

    def has(self, key: str) -> bool:
        """Tells whether the field is there and not null."""
        return self.values.get(key) is not None

    @overload
    def integer(self, key: str) -> int: ...
    @overload
    def integer(self, key: str, default: _Default) -> int | _Default: ...
    def integer(self, key: str, default: Any = REQUIRED) -> Any:
        """Reads a whole number, of less than 16 digits."""
        value = self._value(key, default, "a whole number")
        if value is not default and type(value) is not int:
            raise self.error(key, f"must be a whole number, but is {shown(value)}")
        if value is not default and abs(value) >= _TOO_LARGE:
            raise self.error(key, "must have less than 16 digits")
        return value

    @overload
    def number(self, key: str) -> float: ...
    @overload
    def number(self, key: str, default: _Default) -> float | _Default: ...
    def number(self, key: str, default: Any = REQUIRED) -> Any:
        """Reads a finite number."""
        value = self._value(key, default, "a number")
        if value is default:
            return value
        if type(value) not in (int, float) or not _is_finite(value):
            raise self.error(key, f"must be a finite number, but is {shown(value)}")
        return float(value)

    def boolean(self, key: str, default: bool) -> bool:
        """Reads true or false."""
        value = self._value(key, default, "true or false")
        if not isinstance(value, bool):
            raise self.error(key, f"must be true or false, but is {shown(value)}")
        return value

    def text(self, key: str, default: str | None = None) -> str | None:
        """Reads a string, or the default."""
        value = self._value(key, default, "a string")
        if value is not None and not isinstance(value, str):
            raise self.error(key, f"must be a string, but is {shown(value)}")
        return value

    def kinds(self, key: str, served: Collection[str], layers: int, usual: list[str] | None = None) -> list[str]:
        """Reads what each layer is, one of those `served`; the `usual` ones where that is not said."""
        kinds = self.values.get(key)
        if kinds is None:
            kinds = usual
        if not isinstance(kinds, list) or len(kinds) != layers or any(kind not in served for kind in kinds):
            raise self.error(key, f"must name one of {', '.join(served)} for each of the {layers} layers")
        return kinds

    def object(self, key: str) -> Fields:
        """Reads a nested object; empty when absent."""
        value = self.values.get(key)
        if value is None:
            value = {}
        if not isinstance(value, dict):
            raise self.error(key, f"must be an object, but is {shown(value)}")
        return Fields(self.path, value, f"{self._prefix}{key}.")

    def by_layer(self) -> dict[int, Fields]:
        """Reads the objects in it, which layers' numbers name; transformers begins them with zeros ("05")."""
        found: dict[int, Fields] = {}
        for name in self.values:
            if not (name.isascii() and name.isdecimal() and len(name) < 10) or int(name) in found:
                raise self.error(name, "is not the number of a layer, or is there twice")
            found[int(name)] = self.object(name)
        return found

    def token_ids(self, key: str, vocab_size: int) -> tuple[int, ...]:
        """Reads one id or a list of ids, each below `vocab_size`; empty when absent."""
        value = self.values.get(key)
        ids = [] if value is None else value if isinstance(value, list) else [value]
        for token_id in ids:
            if type(token_id) is not int or not 0 <= token_id < vocab_size:
                raise self.error(key, f"must hold token ids from 0 to {vocab_size - 1}, but has {shown(token_id)}")
        return tuple(dict.fromkeys(ids))

    def _value(self, key: str, default: Any, what: str) -> Any:
        value = self.values.get(key)
        if value is not None:
            return value
        if default is REQUIRED:
            raise self.error(key, f"is missing; {what} is expected")
        return default


def build(kind: Callable[..., _Built], fields: Fields, keys: Mapping[str, str], /, **values: Any) -> _Built:
    """Makes a config object whose errors name the file and, by `keys` (our name -> the file's), its field."""
    try:
        return kind(**values)
    except ConfigError as error:
        raise fields.error(keys.get(error.field, error.field), error.problem) from error


def _is_finite(value: float) -> bool:
    try:
        return math.isfinite(value)
    except OverflowError:  # a whole number beyond every float
        return False


def shown(value: object) -> str:
    """Formats a value of a file for a message."""
    text = json.dumps(value, default=repr)
    return text if len(text) <= 60 else text[:57] + "..."
