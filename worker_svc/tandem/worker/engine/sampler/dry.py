"""DRY ("don't repeat yourself"): a penalty for the token that would make a repetition longer.

Let the last `window` tokens be t. For each earlier place j, let m(j) be how many tokens before j equal the tokens at
the end of t: then choosing t[j] would make a repetition of m(j) + 1 tokens. With the longest such m of an id,

    logit - multiplier * base^(m - allowed_length)      if m >= allowed_length

A sequence breaker (a new line, a name) ends what counts as repetition: no m reaches back over the last one, and a
breaker of one token is never penalized. As in llama.cpp, after pull request 5637 of text-generation-webui.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
import torch

from tandem.worker.engine.sampler.bounds import bounded
from tandem.worker.engine.sampler.breakers import Breakers
from tandem.worker.engine.sampler.rows import Rows
from tandem.worker.engine.sampler.table import Parameters, SamplingTable
from tandem.worker.engine.sampling import Sampling

_LOG_LARGEST_FLOAT = 88.7228391  # a longer repetition would overflow the power: its exponent is cut there
_SMALLEST_BASE_THAT_GROWS = 1.000001


def penalize_continuations(logits: torch.Tensor, rows: Rows, parameters: Parameters, table: SamplingTable) -> None:
    """Applies DRY in place to the rows that use it."""
    active = np.flatnonzero(parameters["dry_multiplier"] > 0)
    if not active.size:
        return
    found = [
        continuations(
            rows.requests[row].tokens[max(0, position - rows.requests[row].sampling.dry_window) : position],
            rows.requests[row].sampling,
            table.lists(slot).breakers,
        )
        for row, position, slot in zip(
            active.tolist(), rows.positions[active].tolist(), parameters["slot"][active].tolist(), strict=True
        )
    ]
    places = np.repeat(active, [len(ids) for ids, _ in found])
    if places.size:
        device = logits.device
        ids = np.concatenate([ids for ids, _ in found])
        index = (torch.from_numpy(places).to(device), torch.from_numpy(ids).to(device))
        values = logits[index]
        penalties = torch.from_numpy(np.concatenate([penalty for _, penalty in found])).to(device)
        logits[index] = bounded(values, values - penalties)


def continuations(
    tokens: npt.NDArray[np.int32], sampling: Sampling, breakers: Breakers
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float32]]:
    """Returns the ids that would continue a repetition at the end of `tokens`, each once, and their penalties."""
    nothing = np.empty(0, np.int64), np.empty(0, np.float32)
    allowed, most = sampling.dry_allowed_length, len(tokens)
    if most <= allowed:
        return nothing
    if sampling.dry_base > _SMALLEST_BASE_THAT_GROWS:
        # Longer matches have the same penalty: there is no need to follow them.
        most = min(most, allowed + int(_LOG_LARGEST_FLOAT / math.log(sampling.dry_base)))
    most = min(most, breakers.reach(tokens, most))
    if most < allowed:
        return nothing
    ends = np.flatnonzero(tokens[:-1] == tokens[-1]) + 1  # where something that ends like `tokens` has just ended
    ids, lengths = [], []
    length = 1
    while ends.size and length < most:
        # Those that go on matching one token further back; the others stay behind with their length.
        inside = ends > length
        matches = inside.copy()
        matches[inside] = tokens[ends[inside] - length - 1] == tokens[-length - 1]
        ids.append(tokens[ends[~matches]])
        lengths.append(np.full(ids[-1].size, length))
        ends = ends[matches]
        length += 1
    ids.append(tokens[ends])
    lengths.append(np.full(ends.size, length))
    all_ids, all_lengths = np.concatenate(ids).astype(np.int64), np.concatenate(lengths)
    keep = (all_lengths >= allowed) & ~np.isin(all_ids, breakers.single)
    # By id, and for each id the longest match last.
    order = np.lexsort((all_lengths[keep], all_ids[keep]))
    ordered, matched = all_ids[keep][order], all_lengths[keep][order]
    last = np.append(ordered[1:] != ordered[:-1], True) if ordered.size else np.empty(0, np.bool_)
    exponent = (matched[last] - allowed).astype(np.float64)
    with np.errstate(over="ignore"):
        penalty = np.minimum(sampling.dry_multiplier * sampling.dry_base**exponent, np.finfo(np.float32).max)
    return ordered[last], penalty.astype(np.float32)
