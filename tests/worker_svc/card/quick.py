"""Engines on a virtual card that take a processor little time."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from unittest.mock import patch

import torch

from tandem.worker.engine.process import calibration
from tandem.worker.model import row_invariance
from tandem.worker.model.cuda.operations import TritonOperations


@contextmanager
def quick() -> Iterator[None]:
    """Every row more costs a processor time: less padding, and keys are learnt from a few tokens."""
    on = TritonOperations.on

    def with_few_rows(device: torch.device, **options: bool) -> TritonOperations:
        operations = on(device, **options)
        operations.row_multiple = min(4, operations.row_multiple)
        return operations

    with (
        patch.object(calibration, "TOKENS", 4),
        patch.dict(row_invariance._CROWD, cuda=8),
        patch.object(TritonOperations, "on", staticmethod(with_few_rows)),
        patch("tandem.worker.engine.process.build.sampler.prepare"),  # but for the tests that want it
    ):
        yield
