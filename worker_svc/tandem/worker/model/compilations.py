"""Reports when Triton compiles a kernel: a step that does takes seconds, where others take milliseconds."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch


def report_compilations(report: Callable[[], None]) -> None:
    """Calls `report` before and after each compilation on a GPU; elsewhere nothing is compiled in a step."""
    if not torch.cuda.is_available():
        return
    from triton import knobs

    def hook(**about: Any) -> bool:
        report()
        return False  # true would forbid the compilation

    knobs.runtime.jit_cache_hook = knobs.runtime.jit_post_compile_hook = hook
