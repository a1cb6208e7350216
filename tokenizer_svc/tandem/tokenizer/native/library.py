"""The C functions of this package: their sources, names and arguments."""

from __future__ import annotations

import ctypes
import functools
import logging
from pathlib import Path

from tandem.common.compiled import CSources, Signature

_POINTER, _SIZE, _NUMBER = ctypes.c_void_p, ctypes.c_int64, ctypes.c_int
_FUNCTIONS: dict[str, Signature] = {
    "encode": ([_POINTER, ctypes.c_char_p, _POINTER, _SIZE, *[_POINTER] * 3], _SIZE),
    "fill": ([*[_POINTER] * 3], _NUMBER),
    "pair": ([*[_POINTER] * 3, _SIZE], None),
    "splits": ([*[_POINTER] * 2], _NUMBER),
    "longest": ([_POINTER, ctypes.c_char_p, _POINTER, _SIZE, *[_POINTER] * 3], _SIZE),
    "plant": ([_POINTER, ctypes.c_char_p, *[_POINTER] * 2, _SIZE], None),
    "size": ([*[_POINTER] * 2, _SIZE], _SIZE),
    "join": ([ctypes.c_char_p, *[_POINTER] * 2, _SIZE, _POINTER], None),
    "texts": ([ctypes.c_char_p, *[_POINTER] * 5, _SIZE, *[_POINTER] * 2], _SIZE),
    "small_encode": ([_POINTER, ctypes.c_char_p, _SIZE, _SIZE], _SIZE),
}
_BPE = "vocabularies/bpe"

SOURCES = CSources(
    Path(__file__).parent.parent,
    "encoders",
    (
        *(f"{_BPE}/pre_tokenize.c", f"{_BPE}/merge.c", "vocabularies/longest_match.c"),
        *("native/join_pieces.c", "native/small_encode.c"),
    ),
    _FUNCTIONS,
)


@functools.cache
def library() -> ctypes.CDLL | None:
    """Returns the functions `tandem_...` of the sources, or None where there is no library, which is logged."""
    return SOURCES.load(logging.getLogger("tandem.tokenizer"), "encoding will be slower")
