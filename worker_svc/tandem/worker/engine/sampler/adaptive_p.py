"""Adaptive-p (llama.cpp, 2026): draws tokens whose probability is near a target that follows what was drawn so far.

The last stage: a token that is left with the probability p is drawn with a weight of

    exp(-10 d^2 / (1 + d))      d = |p - aim| / 0.3,  aim = 2 target - mean, within 0 to 1

and after the draw of a token with p

    mean <- decay mean + (1 - decay) p

which begins at the target.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch

from tandem.worker.engine.sampler.table import Parameters

_WIDTH = 0.3
_SHARPNESS = 10.0


def used(parameters: Parameters) -> npt.NDArray[np.bool_]:
    """Tells which rows use adaptive-p."""
    used: npt.NDArray[np.bool_] = parameters["adaptive_p_target"] >= 0
    return used


def aim(parameters: Parameters) -> npt.NDArray[np.float64]:
    """Returns the probability that the next draw aims at, `[rows]`."""
    aim: npt.NDArray[np.float64] = np.clip(2 * parameters["adaptive_p_target"] - parameters["state"], 0.0, 1.0)
    return aim


def log_weights(logprobs: torch.Tensor, aim: torch.Tensor) -> torch.Tensor:
    """Returns the log weights of logprobs `[rows, n]` for an aim a row, `[rows]`; -inf where there is no token."""
    distance = (logprobs.exp() - aim.unsqueeze(1)).abs_().div_(_WIDTH)
    weights = distance.square().mul_(-_SHARPNESS).div_(1 + distance)
    return weights.masked_fill_(logprobs == float("-inf"), float("-inf"))


def moved(parameters: Parameters, logprobs: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Returns the means after draws of tokens that had these logprobs, `[rows]`."""
    decay = parameters["adaptive_p_decay"]
    mean: npt.NDArray[np.float64] = decay * parameters["state"] + (1 - decay) * np.exp(logprobs)
    return mean
