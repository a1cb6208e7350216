"""Keeps logits that penalties and biases have changed within float32. An infinite one has no probability, which broke
the step for every request in it, and what is penalized stays possible."""

from __future__ import annotations

import torch

from tandem.limits.fields import FLOAT32_MAX


def bounded(before: torch.Tensor, after: torch.Tensor) -> torch.Tensor:
    """Returns `after`, cut to the largest numbers there are; what was forbidden `before` stays so."""
    return torch.where(before > float("-inf"), after.clamp(-FLOAT32_MAX, FLOAT32_MAX), before)
