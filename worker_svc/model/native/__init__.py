"""Matrix products that torch has no quick kernel for on a CPU: half-precision, int8 and int4 weights, in C.

`products.c` is compiled by the machine's C compiler (`CC`, else cc, gcc or clang) when it is first needed, which takes
a few seconds, and kept in `$XDG_CACHE_HOME/tandem` (`~/.cache/tandem`). A `products.so` beside the source, made by
`python -m worker_svc.model.native`, is taken as it is: for images without a compiler. Without either, torch's own
operations serve, slower.

Measured on one Zen 3 core, W `[11264, 2048]`, milliseconds:

| rows                            | 1   | 4   | 8   | 16  | 128 |
|---------------------------------|-----|-----|-----|-----|-----|
| bf16, torch                     | 6.9 | 18  | 38  | 73  |     |
| bf16, here                      | 1.9 | 4.1 | 6.4 | 10  | 67  |
| int8, `_weight_int8pack_mm` on bf16 rows | 3.1 | 6.7 | 13 | 27 | |
| int8 in groups of 32 / 128, here | 1.4 / 1.1 | 2.4 / 2.5 | 4.2 / 4.0 | 7.1 / 6.5 | 53 / 48 |
| int4 in groups of 32, here      | 0.9 | 2.2 | 4.0 | 7.4 | 59  |
"""

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
from dataclasses import dataclass
from pathlib import Path

import torch

logger = logging.getLogger("worker_svc.engine")

_SOURCE = Path(__file__).with_name("products.c")
_PREBUILT = Path(__file__).with_name("products.so")
_FLAGS = ("-O3", "-mavx2", "-mfma", "-mf16c", "-ffp-contract=off", "-shared", "-fPIC", "-fopenmp")
_COMPILE_SECONDS = 120

PANEL = 16  # rows of a weight that lie interleaved


@dataclass(frozen=True, slots=True)
class QuantizedRows:
    """Activations as int16 in groups; number = scale * q of its group."""

    q: torch.Tensor  # [rows, groups * group] int16
    scale: torch.Tensor  # [rows, groups] fp32; NaN where the group holds what is not finite
    sum: torch.Tensor  # [rows, groups] fp32, of the group's numbers


def available() -> bool:
    """Whether the compiled products can be used on this machine; compiles them if need be."""
    return _library() is not None


def quantize_rows(x: torch.Tensor, groups: int, group: int) -> QuantizedRows:
    """`x [rows, k]` fp32 in `groups` groups of `group` numbers, which zeros fill up."""
    x = x.contiguous()
    rows, k = x.shape
    q = torch.empty((rows, groups * group), dtype=torch.int16)
    scale, total = torch.empty((rows, groups)), torch.empty((rows, groups))
    _calls().tandem_quantize_rows(
        x.data_ptr(), rows, k, groups, group, q.data_ptr(), scale.data_ptr(), total.data_ptr(), torch.get_num_threads()
    )
    return QuantizedRows(q, scale, total)


def quantized_product(
    x: QuantizedRows, weight: torch.Tensor, scale: torch.Tensor, least: torch.Tensor | None
) -> torch.Tensor:
    """`[rows, panels * 16]` fp32 of int8 weights (`least` None) or of int4 weights; see `QuantizedWeight`."""
    rows, groups = x.scale.shape
    out = torch.empty((rows, len(weight) * PANEL))
    room = torch.empty(x.q.nbytes + x.scale.nbytes + x.sum.nbytes, dtype=torch.uint8)
    _calls().tandem_quantized_product(
        8 if least is None else 4,
        weight.data_ptr(),
        scale.data_ptr(),
        0 if least is None else least.data_ptr(),
        scale.dtype == torch.float16,
        scale.shape[1] == 1 and groups > 1,
        x.q.data_ptr(),
        x.scale.data_ptr(),
        x.sum.data_ptr(),
        room.data_ptr(),
        out.data_ptr(),
        rows,
        len(weight),
        groups,
        x.q.shape[1] // groups,
        torch.get_num_threads(),
    )
    return out


def half_product(x: torch.Tensor, panels: torch.Tensor) -> torch.Tensor:
    """`x [rows, k]` fp32 times panels `[out / 16, k, 16]` of bf16 or fp16: `[rows, out]` fp32."""
    x = x.contiguous()
    rows, k = x.shape
    out = torch.empty((rows, len(panels) * PANEL))
    bf16 = panels.dtype == torch.bfloat16
    _calls().tandem_half_product(
        bf16, panels.data_ptr(), x.data_ptr(), out.data_ptr(), rows, k, len(panels), torch.get_num_threads()
    )
    return out


def _calls() -> ctypes.CDLL:
    library = _library()
    assert library is not None, "ask available() first"
    return library


@functools.cache
def _library() -> ctypes.CDLL | None:
    if platform.machine() not in ("x86_64", "AMD64") or sys.platform != "linux":
        return None
    if torch.backends.cpu.get_cpu_capability() not in ("AVX2", "AVX512"):
        return None
    try:
        library = ctypes.CDLL(str(_PREBUILT if _PREBUILT.exists() else _compiled()))
    except (OSError, RuntimeError, subprocess.SubprocessError) as error:  # RuntimeError: there is no home
        logger.warning(
            "the compiled matrix products are not there (%s): half-precision and quantized weights will be slow; "
            "a C compiler helps",
            str(error).splitlines()[0],
        )
        return None
    pointer, size, number = ctypes.c_void_p, ctypes.c_int64, ctypes.c_int
    library.tandem_quantize_rows.argtypes = [pointer, *[size] * 4, *[pointer] * 3, number]
    library.tandem_quantized_product.argtypes = [
        number,
        *[pointer] * 3,
        *[number] * 2,
        *[pointer] * 5,
        *[size] * 4,
        number,
    ]
    library.tandem_half_product.argtypes = [number, *[pointer] * 3, *[size] * 3, number]
    for function in (library.tandem_quantize_rows, library.tandem_quantized_product, library.tandem_half_product):
        function.restype = None
    return library


def _compiled() -> Path:
    """The library in the cache, made if it is not there; raises OSError or SubprocessError."""
    text = _SOURCE.read_bytes() + repr(_FLAGS).encode()
    folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "tandem"
    target = folder / f"products-{hashlib.sha256(text).hexdigest()[:16]}.so"
    if target.exists():
        return target
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    compile_to(target)
    return target


def compile_to(target: Path) -> None:
    """Compiles the products; raises OSError or SubprocessError. Nobody sees a half-written file."""
    compiler = os.environ.get("CC") or next(filter(None, map(shutil.which, ("cc", "gcc", "clang"))), None)
    if compiler is None:
        raise FileNotFoundError("no C compiler: neither CC nor cc, gcc, clang")
    # torch brings its own OpenMP: the same one has to serve both, or their threads would compete.
    openmp = Path(torch.__file__).parent / "lib"
    with tempfile.TemporaryDirectory(dir=target.parent) as folder:
        made = Path(folder) / target.name
        command = [compiler, *_FLAGS, "-o", str(made), str(_SOURCE), f"-L{openmp}"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=_COMPILE_SECONDS, check=False)  # noqa: S603
        if done.returncode:
            raise OSError(f"{compiler} failed: {(done.stderr.strip() or 'no message').splitlines()[-1]}")
        made.replace(target)
