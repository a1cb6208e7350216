"""Computes the temperature, fixed or dynamic.

Logits are divided by T. With a range r and an exponent x the temperature follows the entropy H of what the filters
kept, n tokens, as llama.cpp does it:

    T = low + (high - low) (H / log n)^x        low = max(0, T - r), high = T + r

Where one token is left, T stays as it is.
"""

from __future__ import annotations

import numpy as np
import torch

from tandem.limits.fields import FLOAT32_MAX
from tandem.worker.engine.sampler.ordered import Ordered
from tandem.worker.engine.sampler.table import Parameters, column

COLDEST = 1e-30  # zero takes the largest; dividing by this does the same


def effective(o: Ordered, parameters: Parameters) -> torch.Tensor:
    """Returns the temperature of each row of `o`, `[rows]`."""
    device = o.values.device
    fixed = column(parameters, "temperature", device)
    span = parameters["dynamic_temperature_range"]
    if not (span > 0).any():
        return fixed.clamp_min(COLDEST)
    low = torch.from_numpy(np.maximum(0, parameters["temperature"] - span)).to(device)
    high = torch.from_numpy(np.minimum(parameters["temperature"] + span, FLOAT32_MAX)).to(device)
    count = o.count()
    evenness = (o.entropy() / count.clamp_min(2).log()).clamp(0.0, 1.0)
    moving = low + (high - low) * evenness ** column(parameters, "dynamic_temperature_exponent", device)
    use = torch.from_numpy(span > 0).to(device) & (count > 1)
    return torch.where(use, moving, fixed).clamp_min(COLDEST)
