"""The C functions beside this file: what they are called, and what they take."""

from __future__ import annotations

import ctypes
import functools
import logging
from pathlib import Path

from tandem.common.compiled import CSources, Signature

_POINTER, _SIZE, _NUMBER, _FLOAT = ctypes.c_void_p, ctypes.c_int64, ctypes.c_int, ctypes.c_float
_FUNCTIONS: dict[str, Signature] = {
    "quantized_product": (
        [_NUMBER, *[_POINTER] * 6, *[_NUMBER] * 2, *[_POINTER] * 2, _SIZE, *[_POINTER] * 2, *[_SIZE] * 4, _NUMBER],
        None,
    ),
    "quantized_rows": (
        [_NUMBER, *[_POINTER] * 6, _NUMBER, _SIZE, _POINTER, *[_SIZE] * 4, _POINTER, _SIZE, _POINTER, _NUMBER],
        _NUMBER,
    ),
    "begin": ([*[_POINTER] * 3, _SIZE, _NUMBER], _NUMBER),
    "rotations": ([_POINTER, *[_SIZE] * 2, _POINTER, _SIZE, *[_POINTER] * 2], _NUMBER),
    "panel_rows": ([_NUMBER, _POINTER, *[_SIZE] * 4, _POINTER, _SIZE, _POINTER], _NUMBER),
    "fill_panels": ([_NUMBER, *[_POINTER] * 2, *[_SIZE] * 2, _NUMBER], None),
    "allow_wide": ([_NUMBER], _NUMBER),
    "allow_amx": ([_NUMBER], _NUMBER),
    "round_to_int8": ([_NUMBER], None),
    "allow_wide_attention": ([_NUMBER], _NUMBER),
    "allow_wide_scores": ([_NUMBER], _NUMBER),
    "choose": ([_POINTER, _POINTER, _NUMBER], _NUMBER),
    "wide_serves": ([], _NUMBER),
    "limit_bf16": ([_NUMBER], None),
    "wide_product": ([_NUMBER, *[_POINTER] * 4, *[_SIZE] * 3, _NUMBER], None),
    "half_product": ([_NUMBER, *[_POINTER] * 3, *[_SIZE] * 3, _NUMBER], None),
    "float8_product": ([*[_POINTER] * 2, _SIZE, *[_POINTER] * 2, *[_SIZE] * 3, _NUMBER], None),
    "float_product": ([*[_POINTER] * 3, *[_SIZE] * 3, _NUMBER], None),
    "route": ([_POINTER, _POINTER, _SIZE, *[_POINTER] * 2, _SIZE, _NUMBER], None),
    "add_gated": ([*[_POINTER] * 3, *[_SIZE] * 3, _NUMBER], None),
    "add_norm": ([*[_POINTER] * 4, *[_SIZE] * 2, _FLOAT, _NUMBER], None),
    "add_layer_norm": ([*[_POINTER] * 5, *[_SIZE] * 2, _FLOAT, _NUMBER], None),
    "activate": ([_NUMBER, _POINTER, _SIZE, _NUMBER], None),
    "gate": ([_NUMBER, _FLOAT, *[_POINTER] * 2, *[_SIZE] * 3, _NUMBER], None),
    **dict.fromkeys(("gate_by_sigmoid", "gate_by_softplus"), ([*[_POINTER] * 2, *[_SIZE] * 4, _NUMBER], None)),
    "rotate_and_store": ([_POINTER, _SIZE, *[_POINTER] * 5, _NUMBER, _POINTER, *[_SIZE] * 2, _NUMBER], None),
    "attention": (
        [
            *[_POINTER] * 4,
            _NUMBER,
            _POINTER,
            *[_SIZE] * 2,
            *[_POINTER, _SIZE],
            _NUMBER,
            *[_POINTER, _SIZE],
            _POINTER,
            *[_SIZE] * 7,
            *[_FLOAT] * 2,
            _POINTER,
            _NUMBER,
        ],
        ctypes.c_int,
    ),
    **dict.fromkeys(
        ("delta_net", "kimi_delta", "mamba", "short_convolution"), ([_POINTER, _POINTER, _SIZE, _POINTER], None)
    ),
    "heads": ([_POINTER, _SIZE, *[_POINTER] * 2, _SIZE, _NUMBER], ctypes.c_int),
    "experts_room": ([_POINTER, _SIZE], ctypes.c_int64),
    "experts": ([*[_POINTER] * 6, _SIZE, _NUMBER], None),
    "largest": ([_POINTER, *[_SIZE] * 3, *[_POINTER] * 2, _NUMBER], ctypes.c_int),
    "first_largest": ([_POINTER, *[_SIZE] * 3, *[_POINTER] * 2], None),
    "draw": ([_POINTER, *[_SIZE] * 4, *[_POINTER] * 4, _NUMBER], ctypes.c_int),
    "report": (
        [_POINTER, *[_SIZE] * 2, _POINTER, _SIZE, *[_POINTER] * 5, _SIZE, *[_POINTER] * 6, _NUMBER],
        ctypes.c_int,
    ),
    "layers": ([_POINTER, _SIZE, *[_POINTER] * 2, _NUMBER, _POINTER], ctypes.c_int),
}

SOURCES = CSources(
    Path(__file__).parent,
    "operations",
    (
        # The compiler takes longest for the first ones.
        *("attention_wide_twos.c", "digits_wide.c", "attention_wide_twos_int8.c", "attention_wide_twos_fp8.c"),
        *("attention_wide_digits.c", "quantized_wide.c", "attention_wide_twos_int4.c", "products.c"),
        *("attention_wide.c", "quantized_amx.c", "attention_amx_digits.c", "attention_amx_int4.c"),
        *("single_row.c", "digits.c", "panels.c", "panels_wide.c", "rows.c", "store.c", "beginning.c"),
        *("attention.c", "attention_wide_fp8.c", "layer.c"),
        *("heads.c", "experts.c", "largest.c", "draw.c", "report.c", "routing.c", "delta_net.c", "mamba.c"),
        *("short_convolution.c", "selection.c", "selection_wide.c", "team.c", "prefetch.c", "amx.c"),
    ),
    _FUNCTIONS,
    # Of OpenMP's, the one that torch has loaded by the same name serves both; else their threads would compete.
    ("-O3", "-mavx2", "-mfma", "-mf16c", "-ffp-contract=off", "-shared", "-fPIC", "-fopenmp"),
    ("avx2", "fma", "f16c"),
)


@functools.cache
def library() -> ctypes.CDLL | None:
    """The functions `tandem_...` of the sources; None where they cannot be had, which is logged."""
    return SOURCES.load(logging.getLogger("tandem.worker.engine"), "half-precision and quantized weights will be slow")


def calls() -> ctypes.CDLL:
    """The library, which must be there."""
    loaded = library()
    assert loaded is not None, "ask available() first"
    return loaded
