"""Tests that need a card; without one each is skipped and says so. `tests/worker_svc/model/kernels` runs on it too."""

from __future__ import annotations

import pytest
import torch


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if torch.cuda.is_available():
        return
    reason = f"needs a CUDA device, and torch {torch.__version__} sees none"
    for item in items:
        if "tests/gpu/" in item.nodeid:
            item.add_marker(pytest.mark.skip(reason=reason))
