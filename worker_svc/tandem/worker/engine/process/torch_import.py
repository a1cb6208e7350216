"""Imports torch without what it needs for programs that are traced.

Two fifths of `import torch` (0.8 of 2.1 seconds of a Zen 3 core, torch 2.13) go into how `torch.compile`,
`torch.export` and fake tensors see each operation. An engine on a CPU computes what it is told at once and asks for
none of it, nor for distributions, and it is started again while callers wait. So these modules are imported when
something of theirs is asked for. Two things do not ask: fake tensors, and `torch.Generator`, which an engine has no use
for either. Other versions of torch than those this was tried with are imported whole.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

TRIED_WITH = "2.13."
_DEFERRED = ("torch.export", "torch._meta_registrations", "torch.distributions")


class _Deferred(ModuleType):
    """Stands for a module that is imported as soon as something of it is asked for."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") and name != "__path__":  # who looks through all modules wants none of them
            raise AttributeError(name)
        waiting = [each for each in _DEFERRED if isinstance(sys.modules.get(each), _Deferred)]
        for each in waiting:
            del sys.modules[each]
        for each in waiting:  # all, in torch's own order: they import each other
            importlib.import_module(each)
        return getattr(sys.modules[self.__name__], name)


def gpu_may_be_here() -> bool:
    """Tells whether the system has a device that CUDA may find: its driver's own, or that of WSL."""
    return any(next(Path("/dev").glob(name), None) for name in ("nvidia*", "dxg"))


def import_torch(device: str) -> ModuleType:
    """Imports and returns torch: whole where it is to compute on a GPU, or may find one."""
    gpu = not device.startswith("cpu") and (device != "auto" or gpu_may_be_here())
    tried = importlib.metadata.version("torch").startswith(TRIED_WITH)
    if tried and not gpu and "torch" not in sys.modules:
        sys.modules.update((name, _Deferred(name)) for name in _DEFERRED)
    return importlib.import_module("torch")
