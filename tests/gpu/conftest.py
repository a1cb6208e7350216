"""Tests that need a card; without one each is skipped and says so. Those of the kernels run on it too."""

from __future__ import annotations

import os

import pytest
import torch

from tandem.worker.model.cuda.device import REPRODUCIBLE_ENVIRONMENT

# cuBLAS reads it at a process's first product, which here may come before the first engine that wants it.
os.environ.update(REPRODUCIBLE_ENVIRONMENT)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if torch.cuda.is_available():
        return
    reason = f"needs a CUDA device, and torch {torch.__version__} sees none"
    for item in items:
        if "tests/gpu/" in item.nodeid:
            item.add_marker(pytest.mark.skip(reason=reason))
