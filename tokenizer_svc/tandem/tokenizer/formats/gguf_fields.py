"""The vocabulary's metadata of a GGUF file, checked: texts, types and scores of all tokens, ids, flags.

What the metadata leave out goes as in llama.cpp: defaults by vocabulary type.
"""

from __future__ import annotations

import logging
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from tandem.tokenizer.formats.errors import FormatError
from tandem.tokenizer.formats.roles import CONTROL_TEXTS
from tandem.tokenizer.vocabulary import CONTROL_TYPES, TokenType

logger = logging.getLogger("tandem.tokenizer")

PREFIX = "tokenizer.ggml."
_TYPES = bytes([TokenType.UNUSED, *range(1, 256)])  # 0 stands for no type


@dataclass(frozen=True, slots=True)
class Defaults:
    """The values that a file of one `tokenizer.ggml.model` may leave out."""

    adds_bos: bool = False
    adds_eos: bool = False
    adds_sep: bool = False
    space_prefix: bool = False
    clean_spaces: bool = False
    ids: Mapping[str, int] = field(default_factory=dict)


DEFAULTS = {
    "llama": Defaults(adds_bos=True, space_prefix=True, ids={"bos": 1, "eos": 2, "unknown": 0}),
    "gpt2": Defaults(),
    "bert": Defaults(
        adds_bos=True,
        adds_sep=True,
        clean_spaces=True,
        ids={"bos": 101, "unknown": 100, "seperator": 102, "padding": 0},
    ),
    "t5": Defaults(adds_eos=True, ids={"eos": 1, "unknown": 2, "padding": 0}),
    "rwkv": Defaults(),
}


class GgufFields:
    """Typed access to the metadata. Every method raises FormatError."""

    def __init__(self, path: Path, metadata: Mapping[str, Any]) -> None:
        self.path = path
        self._metadata = metadata
        self.model: str = self.get("model", str, "")
        if self.model not in DEFAULTS:
            named = (
                f"has the {PREFIX}model {self.model!r}" if self.model else f"has no {PREFIX}model, and so no vocabulary"
            )
            raise FormatError(path, f"{named}; known are {', '.join(DEFAULTS)}")
        self.defaults = DEFAULTS[self.model]
        self.raw_texts: list[bytes] = self.get("tokens", list, [])
        self.texts = self._read_texts()
        self.types = self._read_types()
        self.scores = self._read_scores()

    def get(self, name: str, kind: type | tuple[type, ...], default: Any) -> Any:
        """Returns the value of `tokenizer.ggml.NAME`."""
        value = self._metadata.get(PREFIX + name, default)
        if value is not default and (not isinstance(value, kind) or (kind is int and isinstance(value, bool))):
            raise FormatError(self.path, f"{PREFIX}{name} has the wrong type {type(value).__name__}")
        return value

    def _read_texts(self) -> list[str]:
        raw = self.raw_texts
        if not raw:
            raise FormatError(self.path, f"has no {PREFIX}tokens")
        try:
            together = b"\n".join(raw).decode().split("\n")  # most vocabularies write no line break as such
            return together if len(together) == len(raw) else [token.decode() for token in raw]
        except UnicodeDecodeError:
            index = next(index for index, token in enumerate(raw) if token.decode("utf-8", "replace").encode() != token)
            raise FormatError(self.path, f"{PREFIX}tokens[{index}] is not valid UTF-8") from None

    def _read_types(self) -> bytearray:
        given = self.get("token_type", array, None)
        if given is None:
            types = bytearray([TokenType.NORMAL]) * len(self.texts)
        else:
            self._check_length("token_type", given)
            numbers = np.asarray(given)
            if not np.isin(numbers, range(7)).all():
                raise FormatError(self.path, f"{PREFIX}token_type holds numbers outside of 0 to 6")
            types = bytearray(numbers.astype(np.uint8)).translate(_TYPES)
        if not CONTROL_TEXTS.isdisjoint(self.texts):
            for index, text in enumerate(self.texts):
                if text in CONTROL_TEXTS and types[index] not in CONTROL_TYPES:
                    types[index] = TokenType.CONTROL
        return types

    def _read_scores(self) -> array[float] | None:
        given = self.get("scores", array, None)
        if self.model not in ("llama", "t5"):
            return None
        if given is None:
            raise FormatError(self.path, f"has no {PREFIX}scores, which the vocabulary type {self.model} needs")
        self._check_length("scores", given)
        return array("f", given)

    def _check_length(self, name: str, values: Sequence[Any]) -> None:
        if len(values) != len(self.texts):
            raise FormatError(self.path, f"{PREFIX}{name} has {len(values)} entries for {len(self.texts)} tokens")

    def id(self, name: str) -> int | None:
        """Returns the token that has a role, or None where there is none."""
        value = self.get(f"{name}_token_id", int, None)
        if value is None:
            default = self.defaults.ids.get(name)
            return default if default is not None and default < len(self.texts) else None
        if not 0 <= value < len(self.texts):
            # Converters write 2^32 - 1 for none; llama.cpp warns and goes on without.
            logger.warning("%s: %s%s_token_id is %d, which is not an id: ignored", self.path, PREFIX, name, value)
            return None
        return int(value)

    def flag(self, name: str, default: bool) -> bool:
        """Returns a boolean of the file."""
        return bool(self.get(name, bool, default))

    def text(self, key: str) -> str:
        """Returns the value of any key that is a text, or "" where it is missing."""
        value = self._metadata.get(key, "")
        if not isinstance(value, str):
            raise FormatError(self.path, f"{key} has the wrong type {type(value).__name__}, expected a text")
        return value

    def has(self, name: str) -> bool:
        """Returns True when the file has `tokenizer.ggml.NAME`."""
        return PREFIX + name in self._metadata
