"""Sends arrays to the device without waiting for what was launched there before."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch


def sent(array: npt.NDArray[np.generic], device: torch.device) -> torch.Tensor:
    """Returns the array there; on a GPU, a copy of it is on its way."""
    there = torch.from_numpy(array)
    return there.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else there
