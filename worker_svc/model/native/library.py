"""Compiles the C sources beside this file, or finds the library that was made of them, and loads it."""

from __future__ import annotations

import ctypes
import functools
import hashlib
import logging
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import torch

logger = logging.getLogger("worker_svc.engine")

PREBUILT = Path(__file__).with_name("operations.so")
_HEADERS = [Path(__file__).with_name(name) for name in ("numbers.h", "operations.h")]
_SOURCES = [Path(__file__).with_name(name) for name in ("products.c", "rows.c", "attention.c", "layer.c")]
_FLAGS = ("-O3", "-mavx2", "-mfma", "-mf16c", "-ffp-contract=off", "-shared", "-fPIC", "-fopenmp")
_COMPILE_SECONDS = 120

_POINTER, _SIZE, _NUMBER, _FLOAT = ctypes.c_void_p, ctypes.c_int64, ctypes.c_int, ctypes.c_float
_ARGUMENTS = {
    "quantized_product": [
        _NUMBER,
        *[_POINTER] * 3,
        *[_NUMBER] * 2,
        _POINTER,
        _SIZE,
        *[_POINTER] * 2,
        *[_SIZE] * 4,
        _NUMBER,
    ],
    "half_product": [_NUMBER, *[_POINTER] * 3, *[_SIZE] * 3, _NUMBER],
    "add_norm": [*[_POINTER] * 4, *[_SIZE] * 2, _FLOAT, _NUMBER],
    "swiglu": [*[_POINTER] * 2, *[_SIZE] * 3, _NUMBER],
    "rotate_and_store": [_POINTER, _SIZE, *[_POINTER] * 4, _NUMBER, _POINTER, *[_SIZE] * 5, _NUMBER],
    "attention": [
        *[_POINTER] * 4,
        _NUMBER,
        _POINTER,
        *[_SIZE] * 2,
        _POINTER,
        _SIZE,
        _POINTER,
        _SIZE,
        _POINTER,
        *[_SIZE] * 5,
        _FLOAT,
        _NUMBER,
    ],
    "layer": [*[_POINTER] * 4, _NUMBER, *[_POINTER] * 2],
}
_TELLS_FAILURE = ("attention", "layer")


@functools.cache
def library() -> ctypes.CDLL | None:
    """The functions `tandem_...` of the sources; None where they cannot be had, which is logged."""
    if platform.machine() not in ("x86_64", "AMD64") or sys.platform != "linux":
        return None
    if torch.backends.cpu.get_cpu_capability() not in ("AVX2", "AVX512"):
        return None
    try:
        loaded = ctypes.CDLL(str(PREBUILT if PREBUILT.exists() else _compiled()))
    except (OSError, RuntimeError, subprocess.SubprocessError) as error:  # RuntimeError: there is no home
        logger.warning(
            "the compiled operations are not there (%s): half-precision and quantized weights will be slow; "
            "a C compiler helps",
            str(error).splitlines()[0],
        )
        return None
    for name, arguments in _ARGUMENTS.items():
        function = getattr(loaded, f"tandem_{name}")
        function.argtypes, function.restype = arguments, ctypes.c_int if name in _TELLS_FAILURE else None
    return loaded


def calls() -> ctypes.CDLL:
    """The library, which must be there."""
    loaded = library()
    assert loaded is not None, "ask available() first"
    return loaded


def _compiled() -> Path:
    """The library in the cache, made if it is not there; raises OSError or SubprocessError."""
    text = b"".join(path.read_bytes() for path in (*_HEADERS, *_SOURCES)) + repr(_FLAGS).encode()
    folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "tandem"
    target = folder / f"operations-{hashlib.sha256(text).hexdigest()[:16]}.so"
    if target.exists():
        return target
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    compile_to(target)
    return target


def compile_to(target: Path) -> None:
    """Compiles the sources; raises OSError or SubprocessError. Nobody sees a half-written file."""
    compiler = os.environ.get("CC") or next(filter(None, map(shutil.which, ("cc", "gcc", "clang"))), None)
    if compiler is None:
        raise FileNotFoundError("no C compiler: neither CC nor cc, gcc, clang")
    # torch brings its own OpenMP: the same one has to serve both, or their threads would compete.
    openmp = Path(torch.__file__).parent / "lib"
    with tempfile.TemporaryDirectory(dir=target.parent) as folder:
        made = Path(folder) / target.name
        command = [compiler, *_FLAGS, "-o", str(made), *map(str, _SOURCES), f"-L{openmp}", "-lm"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=_COMPILE_SECONDS, check=False)  # noqa: S603
        if done.returncode:
            raise OSError(f"{compiler} failed: {(done.stderr.strip() or 'no message').splitlines()[-1]}")
        made.replace(target)
