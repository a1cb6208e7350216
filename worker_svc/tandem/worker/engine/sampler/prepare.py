"""Loads, on a GPU, everything that a request can need to be sampled, before requests come: kernels are compiled, and
modules loaded, when they are first launched."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch

from tandem.worker.engine.request import LogprobOptions, Request, Stopping
from tandem.worker.engine.sampler.launch import launch
from tandem.worker.engine.sampler.rows import Rows
from tandem.worker.engine.sampler.table import SamplingTable
from tandem.worker.engine.sampling import Sampling

_FILTERS = Sampling(top_n_sigma=2.0, top_k=40, top_p=0.9, min_p=0.01)
_PENALTIES = Sampling(repetition_penalty=1.1, presence_penalty=0.1, frequency_penalty=0.1, logit_bias=((0, 1.0),))
_CHANGES = replace(_PENALTIES, top_p=0.9, banned_ids=(1,))
_WAITING = (
    replace(_CHANGES, repetition_decay=8, allowed_ids=(0, 2), tail_free_z=0.99, typical_p=0.98, top_a=0.01),
    Sampling(xtc_probability=1.0, xtc_threshold=0.01, dry_multiplier=0.8, dry_allowed_length=1, top_k=600),
    Sampling(dynamic_temperature_range=0.2, temperature_last=False, top_k=20, top_p=0.9, min_p=0.01, top_n_sigma=1.0),
    Sampling(dynamic_temperature_range=0.2, top_p=0.9999),
    Sampling(mirostat=1),
    Sampling(mirostat=2),
    Sampling(adaptive_p_target=0.5),
)

_LOGPROBS = LogprobOptions(sampled=True, top=2, ids=(1,))


def prepare(vocabulary: int, device: torch.device, dtype: torch.dtype) -> None:
    """Samples rows of every kind from logits of a `dtype` on a GPU; on a CPU, does nothing."""
    if device.type != "cuda":
        return
    for kind in (Sampling(), _FILTERS, _PENALTIES, _CHANGES):
        _draw(vocabulary, device, dtype, [kind], LogprobOptions())
    _draw(vocabulary, device, dtype, [Sampling(temperature=0.0), *_WAITING], _LOGPROBS)


def _draw(
    vocabulary: int, device: torch.device, dtype: torch.dtype, kinds: list[Sampling], logprobs: LogprobOptions
) -> None:
    requests = [
        Request.make(number, [0, 1, 0, 1], kind, Stopping(4), logprobs=logprobs) for number, kind in enumerate(kinds)
    ]
    requests[0].logprobs = replace(logprobs, processed=logprobs.wanted)
    mask = np.full((len(kinds), -(-vocabulary // 32)), -1, dtype=np.int32)
    mask[:, -1] = 0
    rows = replace(Rows.next_tokens(requests), mask=mask if logprobs.wanted else None)
    logits = torch.zeros((len(rows), vocabulary), dtype=dtype, device=device)
    with torch.inference_mode():
        launch(logits, rows, SamplingTable(len(rows))).read()
