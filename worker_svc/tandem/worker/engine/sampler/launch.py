"""Samples a step: on a GPU the ids stay there for the next one, and come to the host later, where nothing waits.

A row is drawn by kernels (`on_card.py`) or by torch's operations (`pipeline.py`), as its own request asks
(`waits.py`): it has the same token whatever the others ask for.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from tandem.worker.engine.sampler.on_card import Coming, draw_on_card
from tandem.worker.engine.sampler.pipeline import largest, sample
from tandem.worker.engine.sampler.rows import Rows, Sampled
from tandem.worker.engine.sampler.sent import sent
from tandem.worker.engine.sampler.table import SamplingTable


@dataclass(slots=True)
class Launched:
    """Holds a step's tokens, which may be on their way to the host."""

    _tokens: Sampled | Coming
    _device: torch.device
    _ids: torch.Tensor | None = None

    @property
    def ids(self) -> torch.Tensor:
        """Returns their ids on the device, `[rows]` int64; where they come from the host, they are sent when they are
        first wanted."""
        if self._ids is None:
            tokens = self._tokens
            if isinstance(tokens, Coming):
                return tokens.ids
            self._ids = sent(tokens.ids.astype(np.int64), self._device)
        return self._ids

    @property
    def waited(self) -> bool:
        """Tells whether the host has waited for the device to have computed them."""
        return isinstance(self._tokens, Sampled)

    @property
    def arrived(self) -> bool:
        """Tells whether the device has computed them."""
        return not isinstance(self._tokens, Coming) or self._tokens.arrived

    def read(self) -> Sampled:
        """Waits for the tokens and returns them."""
        if isinstance(self._tokens, Coming):
            self._tokens = self._tokens.read()
        return self._tokens


def launch(logits: torch.Tensor, rows: Rows, table: SamplingTable) -> Launched:
    """Draws the token of each row of `logits` (float32 or 16 bits), as `sample` does, and waits only where that must
    be."""
    if not logits.is_cuda and rows.mask is None and table.take_the_largest(rows.requests):
        return Launched(largest(logits, len(rows)), logits.device)
    parameters = table.gather(rows.requests)
    waiting = parameters["waits"] if logits.is_cuda else np.ones(len(rows), dtype=np.bool_)
    if not waiting.any():
        coming = draw_on_card(logits, rows, parameters, table)
        return Launched(coming, logits.device)
    if waiting.all():
        sampled = sample(logits.float(), rows, table, parameters)
    else:
        kinds = np.flatnonzero(~waiting), np.flatnonzero(waiting)
        theirs, others = (logits[sent(places, logits.device)] for places in kinds)
        coming = draw_on_card(theirs, rows.take(kinds[0]), parameters[kinds[0]], table)
        waited = sample(others.float(), rows.take(kinds[1]), table, parameters[kinds[1]])
        sampled = Sampled.joined([coming.read(), waited]).take(np.argsort(np.concatenate(kinds)))
    return Launched(sampled, logits.device)
