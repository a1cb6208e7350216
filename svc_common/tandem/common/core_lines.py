"""Lines that gRPC's core writes, in C++ and past Python's logging, become lines like ours."""

from __future__ import annotations

import ctypes
import logging
from pathlib import Path

from tandem.common.compiled import CSources

SOURCES = CSources(
    Path(__file__).parent,
    "core_lines",
    ("core_lines.c",),
    {"take_core_lines": ([ctypes.c_int32, ctypes.c_int32, ctypes.c_char_p], ctypes.c_int32)},
)
_LEVELS = {"debug": 0, "info": 0, "warning": 1, "error": 2}


def take_core_lines(format: str, level: str, service: str) -> None:
    """Writes the core's lines from this level on in the format of the log; without a C compiler they stay its own."""
    library = SOURCES.load(logging.getLogger("tandem.common"), "lines of gRPC's core have a format of their own")
    if library is not None:
        library.tandem_take_core_lines(format == "json", _LEVELS[level], service.encode())
