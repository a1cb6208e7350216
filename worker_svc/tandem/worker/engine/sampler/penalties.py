"""Penalizes tokens for what was said before.

Tokens count from the last one backwards, prompt and output alike. With the window n and the decay d, the token at
distance i (the last one has 0) counts with the weight

    w(i) = 1                            i < n
           1 - (i - n + 1) / (d + 1)    n <= i < n + d
           0                            beyond

For an id whose last occurrence has the weight w, and whose occurrences weigh c together, in this order:

    repetition   r = 1 + (penalty - 1) w;  logit / r if it is positive, logit * r if not   (Keskar et al. 2019)
    presence     logit - presence * w
    frequency    logit - frequency * c

Without a decay this is llama.cpp's `penalties`; a decay that falls linearly behind the window is ExLlama's.
"""

from __future__ import annotations

import numpy as np
import torch

from tandem.worker.engine.sampler.bounds import bounded
from tandem.worker.engine.sampler.rows import Rows
from tandem.worker.engine.sampler.table import Parameters


def penalize(logits: torch.Tensor, rows: Rows, parameters: Parameters) -> None:
    """Applies the penalties in place to the rows that have some."""
    active = np.flatnonzero(parameters["penalizes"])
    if not active.size:
        return
    rule = parameters[active]
    reach = np.minimum(rule["repetition_window"] + rule["repetition_decay"], rows.positions[active])
    windows = [
        rows.requests[row].tokens[position - length : position][::-1]
        for row, position, length in zip(active.tolist(), rows.positions[active].tolist(), reach.tolist(), strict=True)
    ]
    ids = np.concatenate(windows).astype(np.int64)
    if not ids.size:
        return
    owner = np.repeat(np.arange(active.size), reach)
    pairs = owner * logits.shape[1] + ids
    if rule["repetition_decay"].any():
        distance = np.arange(ids.size) - np.repeat(np.cumsum(reach) - reach, reach)
        fading = (distance - rule["repetition_window"][owner] + 1) / (rule["repetition_decay"][owner] + 1)
        weight = 1 - np.maximum(fading, 0)
        # The first of equal pairs is the last occurrence, because each window is read backwards.
        pairs, first, group = np.unique(pairs, return_index=True, return_inverse=True)
        last, together = weight[first], np.bincount(group, weights=weight)
    else:  # all weigh 1, and the window may be a long context
        pairs, together = np.unique(pairs, return_counts=True)
        last = np.ones(pairs.size)
    owner, ids = np.divmod(pairs, logits.shape[1])
    # The table's rows are wide: to copy one for each id takes longer than all else, where windows are long.
    penalty, presence, frequency = (rule[f"{name}_penalty"][owner] for name in ("repetition", "presence", "frequency"))
    device = logits.device
    index = (torch.from_numpy(active[owner]).to(device), torch.from_numpy(ids).to(device))
    ratio = torch.from_numpy((1 + (penalty - 1) * last).astype(np.float32)).to(device)
    minus = (presence * last + frequency * together).astype(np.float32)
    values = logits[index]
    changed = torch.where(values > 0, values / ratio, values * ratio) - torch.from_numpy(minus).to(device)
    logits[index] = bounded(values, changed)
