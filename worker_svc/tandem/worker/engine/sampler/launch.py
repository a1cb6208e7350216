"""Samples without waiting: on a GPU, the ids of a step stay there for the next one, and come to the host later.

Rows of which nothing is asked but the largest logit, or a temperature, are drawn by one kernel, which `sample` uses for
them too: a row has the same token whatever the others ask for. A step with any other row is sampled at once.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from tandem.worker.engine.randomness import uniform
from tandem.worker.engine.sampler import adaptive_p
from tandem.worker.engine.sampler.pipeline import changes_logits, narrows, sample, takes_the_largest
from tandem.worker.engine.sampler.rows import Alternatives, Rows, Sampled
from tandem.worker.engine.sampler.table import Parameters, SamplingTable
from tandem.worker.engine.sampler.temperature import COLDEST


@dataclass(slots=True)
class Launched:
    """Holds a step's tokens, on their way to the host."""

    ids: torch.Tensor  # [rows] int64, on the device
    _sampled: Sampled | None = None
    _here: tuple[torch.Tensor, torch.Tensor] | None = None  # ids, and the largest logits
    _arrived: torch.cuda.Event | None = None

    @property
    def waited(self) -> bool:
        """Tells whether the host has waited for the device to have computed them."""
        return self._sampled is not None

    def read(self) -> Sampled:
        """Waits for the tokens and returns them."""
        if self._sampled is None:
            if self._arrived is not None:
                self._arrived.synchronize()
            assert self._here is not None
            ids, largest = (each.numpy() for each in self._here)
            count = len(ids)
            self._sampled = Sampled(
                ids.astype(np.int32),
                np.full(count, np.nan, dtype=np.float32),
                np.zeros(count, dtype=np.int32),
                np.isfinite(largest),
                np.ones(count, dtype=np.bool_),
                Alternatives.nothing(count),
            )
        return self._sampled


def prepare(vocabulary: int, device: torch.device) -> None:
    """Compiles, on a GPU, the kernels that draw rows, so that no request waits for that."""
    if device.type == "cuda":
        from tandem.worker.model.cuda.kernels.choose import choose  # Triton is not installed where there is no CUDA

        logits = torch.zeros((1, vocabulary), dtype=torch.float32, device=device)
        bound, uniforms = logits[:, 0].contiguous(), torch.zeros(1, dtype=torch.float64, device=device)
        choose(logits, bound, uniforms)
        choose(logits, bound, uniforms, bound, bound)


def launch(logits: torch.Tensor, rows: Rows, table: SamplingTable) -> Launched:
    """Draws the token of each row, as `sample` does, and waits only where that must be."""
    parameters = table.gather(rows.requests)
    if logits.is_cuda and is_plain(rows, parameters):
        return launch_plain(logits[: len(rows)], rows, parameters)
    sampled = sample(logits, rows, table, parameters)
    return Launched(_sent(sampled.ids.astype(np.int64), logits.device), sampled)


def is_plain(rows: Rows, parameters: Parameters) -> bool:
    """Tells whether every row asks for nothing but the largest logit, or a temperature."""
    plain = (
        ~changes_logits(rows, parameters)
        & ~adaptive_p.used(parameters)
        & (
            takes_the_largest(parameters)
            | (parameters["temperature_last"] & ~narrows(parameters) & (parameters["dynamic_temperature_range"] <= 0))
        )
    )
    return bool((plain & ~parameters["reports"]).all())


def launch_plain(logits: torch.Tensor, rows: Rows, parameters: Parameters) -> Launched:
    """Draws all rows of `logits` `[rows, vocabulary]`, which stay as they are, by one kernel."""
    from tandem.worker.model.cuda.kernels.choose import choose  # Triton is not installed where there is no CUDA

    device = logits.device
    warm = np.where(takes_the_largest(parameters), 0.0, np.maximum(parameters["temperature"], COLDEST)).astype(
        np.float32
    )
    uniforms = uniform(parameters["seed"], rows.positions.astype(np.uint64))
    chosen = choose(logits, _sent(warm, device), _sent(uniforms, device))
    on_card = device.type == "cuda"
    here = [torch.empty(len(rows), dtype=each.dtype, pin_memory=on_card) for each in (chosen.ids, chosen.largest)]
    for target, source in zip(here, (chosen.ids, chosen.largest), strict=True):
        target.copy_(source, non_blocking=True)
    arrived = None
    if on_card:
        arrived = torch.cuda.Event()  # type: ignore[no-untyped-call]
        arrived.record()
    return Launched(chosen.ids, None, (here[0], here[1]), arrived)


def _sent(array: npt.NDArray[np.generic], device: torch.device) -> torch.Tensor:
    there = torch.from_numpy(array)
    return there.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else there
