"""Mirostat (Basu et al. 2020): steers the surprise of what is chosen to tau, by a bound mu that follows it.

It takes the place of the filters, after the temperature, as in llama.cpp. mu begins at 2 tau. Version 1 estimates the
exponent s of Zipf's law from the 100 most probable tokens, and keeps

    k = (e 2^mu / (1 - N^-e))^(1/s)      e = s - 1, N the size of the vocabulary

of them; version 2 keeps what has a surprise of at most mu bits. After the draw

    mu <- mu - eta (surprise - tau)

where the surprise is -log2 of the chosen token's probability among those that were kept, as in llama.cpp.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
import torch

from tandem.worker.engine.sampler.ordered import Ordered
from tandem.worker.engine.sampler.table import Parameters

_FITTED = 100


def keep_by_zipf(o: Ordered, use: torch.Tensor, mu: torch.Tensor) -> None:
    """Keeps what version 1 does."""
    width = min(_FITTED, o.values.shape[1])
    if width < 2:
        return
    steps = torch.log(
        torch.arange(2, width + 1, device=mu.device, dtype=torch.float64) / torch.arange(1, width, device=mu.device)
    )
    drops = o.values[:, : width - 1] - o.values[:, 1:width]
    there = torch.arange(1, width, device=mu.device) < o.end.unsqueeze(1)
    numerator = torch.where(there, steps * drops, 0.0).cumsum(dim=-1)
    denominator = torch.where(there, steps * steps, 0.0).cumsum(dim=-1)
    s = numerator[:, -1] / denominator[:, -1].clamp_min(1e-30)
    # s = 1 is the limit e -> 0, where (1 - N^-e) / e is log N; s = 0 is a flat beginning, which bounds nothing.
    e = s - 1
    vocabulary = math.log(o.logits.shape[1])
    spread = torch.where(e.abs() < 1e-9, vocabulary, -torch.expm1(-e * vocabulary) / torch.where(e == 0, 1.0, e))
    log_k = (mu * math.log(2) - spread.log()) / s.clamp_min(1e-9)
    k = torch.exp(log_k.clamp(0.0, math.log(2 * o.logits.shape[1]))).nan_to_num(1.0).floor().long().clamp_min(1)
    use = use & (k < o.count())
    o.exact &= ~(use & (k > o.values.shape[1]))
    o.keep_to(k.clamp_max(o.values.shape[1]), use)


def keep_by_surprise(o: Ordered, use: torch.Tensor, mu: torch.Tensor) -> None:
    """Keeps what version 2 does."""
    least = torch.exp2(-mu) * o.total()
    o.keep_to((o.weights >= least.unsqueeze(1)).sum(dim=-1), use)


def moved(parameters: Parameters, logprobs: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Returns the bounds after draws whose tokens have these logprobs, `[rows]`."""
    surprise = -logprobs / math.log(2)
    mu: npt.NDArray[np.float64] = parameters["state"] - parameters["mirostat_eta"] * (
        surprise - parameters["mirostat_tau"]
    )
    return mu
