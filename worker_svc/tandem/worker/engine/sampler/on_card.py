"""Draws rows by kernels on a GPU, without waiting: what `sample` does, but for what `waits.py` lists.

What is asked of the rows is sent along in pinned memory; ids stay on the device, and come to the host later. Whether a
row is drawn here is a matter of its own request, and a row is drawn alike whatever the others ask for.

The ids are those of a CPU up to the rounding of weights, and up to which of several equal logits comes first where
filters have left few.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from tandem.worker.engine.randomness import uniform
from tandem.worker.engine.sampler.constraints import biases, packed_masks
from tandem.worker.engine.sampler.rows import Rows, Sampled
from tandem.worker.engine.sampler.sent import sent
from tandem.worker.engine.sampler.table import Parameters, SamplingTable
from tandem.worker.engine.sampler.temperature import COLDEST


@dataclass(slots=True)
class Coming:
    """Tokens of a step that are on their way to the host."""

    ids: torch.Tensor  # [rows] int64, on the device
    _here: tuple[torch.Tensor, torch.Tensor]  # ids, and the largest logits
    _arrived: torch.cuda.Event | None

    @property
    def arrived(self) -> bool:
        """Tells whether they are there."""
        return self._arrived is None or bool(self._arrived.query())  # type: ignore[no-untyped-call]

    def read(self) -> Sampled:
        """Waits for the tokens and returns them."""
        if self._arrived is not None:
            self._arrived.synchronize()
        ids, largest = (each.numpy() for each in self._here)
        return Sampled.plain(ids.astype(np.int32), ~np.isnan(largest), largest != -np.inf)


def draw_on_card(logits: torch.Tensor, rows: Rows, parameters: Parameters, table: SamplingTable) -> Coming:
    """Draws all rows of `logits` `[>= rows, vocabulary]` (float32 or 16 bits), none of which waits; where something
    changes them, they may be overwritten."""
    from tandem.worker.model.cuda.kernels import survey  # Triton is not installed where there is no CUDA
    from tandem.worker.model.cuda.kernels.choose import Changes, choose

    count, (_, vocabulary), device = len(rows), logits.shape, logits.device
    logits = logits[:count]
    draws = ~parameters["greedy"]
    asked = np.zeros((survey.RULES, count), dtype=np.float64)
    asked[survey.TEMPERATURE.value] = np.where(draws, np.maximum(parameters["temperature"], COLDEST), 0.0)
    asked[survey.UNIFORM.value] = uniform(parameters["seed"], rows.positions.astype(np.uint64))
    filters = {survey.SIGMA: "top_n_sigma", survey.K: "top_k", survey.MIN_P: "min_p"}
    for place, name in filters.items():
        asked[place.value] = np.where(draws, parameters[name], 0.0)
    asked[survey.P.value] = np.where(draws, parameters["top_p"], 1.0)
    filtered = bool((asked[[place.value for place in filters]] > 0).any() or (asked[survey.P.value] < 1).any())

    masked, masks = packed_masks(rows, parameters, table, vocabulary)
    asked[[survey.MASK.value, survey.COUNTS.value]] = -1
    asked[survey.MASK.value, masked] = np.arange(masked.size)
    owners, ids, added = biases(parameters, table)
    penalized = np.flatnonzero(parameters["penalizes"])
    changes = None
    if masked.size or penalized.size or ids.size:
        logits = logits.float()
        there = torch.empty((0, vocabulary), dtype=torch.int32, device=device)
        if penalized.size:
            counts = table.counts(vocabulary, device)
            asked[survey.COUNTS.value, penalized] = counts.update(rows, penalized)
            there = counts.table
        rule = parameters[penalized]
        asked[survey.REPETITION.value, penalized] = 1 + (rule["repetition_penalty"] - 1)  # as `penalties.py` rounds it
        asked[survey.PRESENCE.value, penalized] = rule["presence_penalty"]
        asked[survey.FREQUENCY.value, penalized] = rule["frequency_penalty"]
        changes = Changes(sent(masks, device), there)
    if ids.size:
        from tandem.worker.model.cuda.kernels.changes import add_at

        add_at(logits, sent(owners * logits.stride(0) + ids, device), sent(added, device))
    chosen = choose(logits, sent(asked, device), changes, filtered=filtered)

    on_card = device.type == "cuda"
    here = [torch.empty(count, dtype=each.dtype, pin_memory=on_card) for each in (chosen.ids, chosen.largest)]
    for target, source in zip(here, (chosen.ids, chosen.largest), strict=True):
        target.copy_(source, non_blocking=True)
    arrived = None
    if on_card:
        arrived = torch.cuda.Event()  # type: ignore[no-untyped-call]
        arrived.record()
    return Coming(chosen.ids, (here[0], here[1]), arrived)
