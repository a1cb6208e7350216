"""Loads the C function that counts a message's fields for `message_limits`."""

from __future__ import annotations

import ctypes
import functools
import logging
from pathlib import Path

from tandem.common.compiled import CSources

SOURCES = CSources(
    Path(__file__).parent,
    "field_counter",
    ("field_counter.c",),
    {
        "count_fields": (
            [ctypes.c_char_p, ctypes.c_int64, *[ctypes.c_void_p] * 4, ctypes.c_int64],
            ctypes.c_int32,
        )
    },
)


@functools.cache
def library() -> ctypes.CDLL | None:
    """Returns the library with `tandem_count_fields`; None where it cannot be had, which is logged."""
    return SOURCES.load(logging.getLogger("tandem.common"), "large requests are counted slowly, in threads")
