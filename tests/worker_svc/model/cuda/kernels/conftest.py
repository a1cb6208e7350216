"""The kernels run on the card where there is one, else under Triton's interpreter."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

# Older interpreters do not go together with today's numpy; compiled, kernels also run with Triton 3.6.
pytest.importorskip("triton", minversion="3.6" if torch.cuda.is_available() else "3.9")

import triton.language as tl

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")

# The interpreter multiplies bf16 matrices wrongly, and truncates where a card rounds.
DTYPES = [torch.float32, torch.float16, *([torch.bfloat16] if DEVICE.type == "cuda" else [])]


@pytest.fixture(autouse=True)
def _quick_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    """The interpreter looks through all of triton.language whenever a kernel calls a function, `tl.sum` among them, to
    replace what it has replaced already: that takes longer than what is computed. And it makes a table of all types of
    numbers whenever it looks one up."""
    if DEVICE.type == "cuda":
        return
    from triton.runtime import interpreter

    patch_lang: Any = interpreter._patch_lang

    def once(function: Any) -> Any:
        languages = [each for each in function.__globals__.values() if each in (tl, tl.core)]
        if languages and not any(tl.core.is_builtin(each.load) for each in languages):
            return interpreter._LangPatchScope()
        return patch_lang(function)

    monkeypatch.setattr(interpreter, "_patch_lang", once)
    kept: dict[str, np.dtype[Any]] = {}
    looked_up: Any = interpreter._get_np_dtype

    def numbers(kind: Any) -> np.dtype[Any]:
        scalar = kind.scalar
        if scalar.name not in kept:
            kept[scalar.name] = looked_up(scalar)
        return kept[scalar.name]

    monkeypatch.setattr(interpreter, "_get_np_dtype", numbers)


@pytest.fixture
def _rows_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    """A matrix unit computes every row of a product alike. numpy's does not: it has other code for a block's last
    rows, so under the interpreter products are summed up in the order of k."""
    if DEVICE.type == "cuda":
        return
    from triton.runtime import interpreter

    def dot(builder: object, a: Any, b: Any, d: Any, precision: object, imprecise: object) -> Any:
        total = d.data.astype(np.float32)
        for k in range(a.data.shape[1]):
            total += a.data[:, k, None].astype(np.float32) * b.data[k].astype(np.float32)
        return interpreter.TensorHandle(total, d.dtype.scalar)

    monkeypatch.setattr(interpreter.InterpreterBuilder, "create_dot", dot)
