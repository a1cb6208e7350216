"""Computes logprobs and ranks: of the chosen token, of the most probable ones, and of ids that were asked for."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch

from tandem.inference.v1 import inference_pb2 as pb
from tandem.limits.fields import limits_of
from tandem.worker.engine.request import LogprobOptions
from tandem.worker.engine.sampler.rows import Alternatives

# Always so many are looked for: which of several equal tokens are among them may depend on this number, and must not
# depend on what other rows ask for.
MOST_PROBABLE = int(limits_of(pb.GenerateRequest.DESCRIPTOR)["output.top_logprobs"].high)


def chosen_logprobs(
    logprobs: torch.Tensor, chosen: torch.Tensor
) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.int32]]:
    """Returns the logprobs and ranks of one id a row: `logprobs` `[rows, vocabulary]`, `chosen` `[rows]`. A rank of 1
    is the most probable; equal tokens share a rank."""
    values = logprobs.gather(1, chosen.unsqueeze(1))
    ranks = (logprobs > values).sum(dim=-1) + 1
    return values.squeeze(1).cpu().numpy(), ranks.cpu().numpy().astype(np.int32)


def alternatives(logprobs: torch.Tensor, options: Sequence[LogprobOptions]) -> Alternatives:
    """Returns what each row reports of other tokens: the most probable in order of rank (those that are possible at
    all; at most MOST_PROBABLE), then the ids it asks for."""
    tops = np.array([each.top for each in options])
    owners, ids, values, ranks = [], [], [], []
    if tops.any():
        best = logprobs.topk(min(MOST_PROBABLE, logprobs.shape[1]), dim=-1)
        falling = -best.values
        larger = torch.searchsorted(falling, falling) + 1
        inside = (np.arange(falling.shape[1]) < tops[:, None]) & (falling < float("inf")).cpu().numpy()
        owners.append(np.nonzero(inside)[0])
        ids.append(best.indices.cpu().numpy()[inside])
        values.append(best.values.cpu().numpy()[inside])
        ranks.append(larger.cpu().numpy()[inside])
    for row, each in enumerate(options):
        if each.ids:
            asked = torch.tensor(each.ids, dtype=torch.int64, device=logprobs.device)
            found = logprobs[row, asked]
            owners.append(np.full(len(each.ids), row))
            ids.append(np.array(each.ids))
            values.append(found.cpu().numpy())
            ranks.append(((logprobs[row] > found.unsqueeze(1)).sum(dim=-1) + 1).cpu().numpy())
    if not owners:
        return Alternatives.nothing(len(options))
    owner = np.concatenate(owners)
    order = np.argsort(owner, kind="stable")
    return Alternatives(
        np.bincount(owner, minlength=len(options)).astype(np.int32),
        np.concatenate(ids)[order].astype(np.int32),
        np.concatenate(values)[order],
        np.concatenate(ranks)[order].astype(np.int32),
    )
