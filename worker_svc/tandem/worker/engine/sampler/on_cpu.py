"""Draws rows on a CPU by one compiled call (`draw.c`), where their requests ask for what most ask for: a temperature,
top_n_sigma, top_k, top_p and min_p, or the largest logit.

Whether a row is drawn here is a matter of its own request, and a row is drawn alike whatever the others ask for. The
ids are those of torch's operations (`pipeline.py`), up to the rounding of weights.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch

from tandem.worker.engine.randomness import uniform
from tandem.worker.engine.sampler import ordered
from tandem.worker.engine.sampler.draw import Distribution
from tandem.worker.engine.sampler.table import Parameters
from tandem.worker.engine.sampler.temperature import COLDEST
from tandem.worker.model.cpu import native
from tandem.worker.model.cpu.native import choice


def serves(logits: torch.Tensor, parameters: Parameters) -> npt.NDArray[np.bool_]:
    """Tells which rows are drawn here."""
    if logits.device.type != "cpu" or logits.dtype != torch.float32 or not native.available():
        return np.zeros(len(parameters), dtype=np.bool_)
    simple: npt.NDArray[np.bool_] = parameters["simple"]
    return simple


def draw(logits: torch.Tensor, parameters: Parameters, positions: npt.NDArray[np.int64]) -> choice.Draw:
    """Draws a token of each row of `logits` `[>= rows, vocabulary]`, all of which are served."""
    return choice.draw(
        logits,
        np.where(parameters["greedy"], 0.0, np.maximum(parameters["temperature"], COLDEST)),
        uniform(parameters["seed"], positions.astype(np.uint64)),
        ordered.CANDIDATES,
        top_n_sigma=parameters["top_n_sigma"],
        top_k=parameters["top_k"],
        top_p=parameters["top_p"],
        min_p=parameters["min_p"],
    )


def draw_from(
    logits: torch.Tensor, parameters: Parameters, positions: npt.NDArray[np.int64]
) -> tuple[torch.Tensor, Distribution]:
    """The same, with what each is drawn from."""
    drawn = draw(logits, parameters, positions)
    return torch.from_numpy(drawn.ids.astype(np.int64)), distribution(drawn, parameters)


def distribution(drawn: choice.Draw, parameters: Parameters) -> Distribution:
    """Returns what each row was drawn from."""
    temperature = torch.from_numpy(np.maximum(parameters["temperature"], COLDEST))
    low, high, total = map(torch.from_numpy, (drawn.low, drawn.high, drawn.total))
    return Distribution.plain(low, high, temperature, total)
