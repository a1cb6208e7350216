"""Logits to the next token, for all rows of a step at once.

The stages, in llama.cpp's default order; a stage runs only if some row uses it:

    mask        before min_tokens, the ids that would stop get -inf
    repetition  the last `repetition_window` tokens, each once: positive logits / penalty, negative * penalty
                (Keskar et al. 2019)
    top_k       keep the k largest
    top_p       keep the smallest set of the most probable whose probability is at least p (Holtzman et al. 2020)
    min_p       keep what has at least p times the probability of the most probable
    temperature logits / T, then one draw; T = 0 takes the largest instead

top_k, top_p and min_p all keep a prefix of the ordered logits, so each is one threshold on a row; equal logits stay
together. A draw inverts the cumulative distribution in vocabulary order with one uniform number of (seed, position).

Every operation is row-wise, and sums over the vocabulary are softmax or cumsum, whose order torch keeps for any number
of rows (a plain sum does not): a row's token does not depend on its company. Logprobs are of the raw logits.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch

from worker_svc.engine.randomness import uniform
from worker_svc.engine.request import Request, Sampling
from worker_svc.engine.sampler.rows import Rows, Sampled

_CANDIDATES = 512  # of the ordered logits, looked at before a row is sorted whole for top_p


_ROW = np.dtype(
    [
        ("temperature", np.float32),
        ("top_k", np.int64),
        ("top_p", np.float32),
        ("min_p", np.float32),
        ("repetition_penalty", np.float32),
        ("seed", np.uint64),
    ]
)


class SamplingTable:
    """Parameters of the requests as arrays by slot, so that a step gathers instead of looping over requests."""

    def __init__(self, slots: int) -> None:
        self._rows = np.zeros(slots, dtype=_ROW)
        self._free = list(range(slots - 1, -1, -1))
        self._slot: dict[int, int] = {}

    def gather(self, requests: Sequence[Request]) -> npt.NDArray[np.void]:
        """The parameters of each request, one row of `_ROW` a request."""
        slots = [self._slot_of(request) for request in requests]  # may replace the array
        return self._rows[slots]

    def free(self, request: Request) -> None:
        """Forgets a request; nothing happens if it was never seen."""
        slot = self._slot.pop(request.handle, None)
        if slot is not None:
            self._free.append(slot)

    def _slot_of(self, request: Request) -> int:
        slot = self._slot.get(request.handle)
        if slot is None:
            if not self._free:  # preempted requests keep their slots
                self._free = list(range(2 * len(self._rows) - 1, len(self._rows) - 1, -1))
                self._rows = np.concatenate([self._rows, np.zeros_like(self._rows)])
            slot = self._slot[request.handle] = self._free.pop()
            self._rows[slot] = _row(request.sampling)
        return slot


def _row(sampling: Sampling) -> tuple[float, int, float, float, float, int]:
    # A window of nothing penalizes nothing.
    penalty = sampling.repetition_penalty if sampling.repetition_window else 1.0
    return (sampling.temperature, sampling.top_k, sampling.top_p, sampling.min_p, penalty, sampling.seed)


def sample(logits: torch.Tensor, rows: Rows, table: SamplingTable) -> Sampled:
    """Draws the token of each row from `logits` `[>= len(rows), vocabulary]` (float32; overwritten).

    A draw depends on the request's seed and the row's position alone, so that it is the same wherever the request runs.
    """
    requests, count = rows.requests, len(rows)
    logits = logits[:count]
    rules = table.gather(requests)
    raw = torch.log_softmax(logits, dim=-1) if any(request.logprobs for request in requests) else None
    largest = logits.amax(dim=-1)  # a NaN anywhere in a row comes out here
    finite = torch.isfinite(largest).cpu().numpy()

    if rows.mask is not None:
        _apply_mask(logits, rows.mask)
    _mask_stops(logits, rows)
    _penalize_repetition(logits, rows, rules["repetition_penalty"])

    ids = logits.argmax(dim=-1)
    drawn = np.flatnonzero((rules["temperature"] > 0) & finite)
    if drawn.size:
        rule = rules[drawn]
        places = torch.from_numpy(drawn).to(logits.device)
        chosen = logits if drawn.size == count else logits[places]
        positions = rows.positions[drawn].astype(np.uint64)
        keep = _threshold(chosen, rule["top_k"], rule["top_p"], rule["min_p"])
        if keep is not None:
            chosen = chosen.masked_fill(chosen < keep, float("-inf"))
        ids[places] = _draw(chosen, rule["temperature"], uniform(rule["seed"], positions))

    logprobs = np.full(count, np.nan, dtype=np.float32)
    if raw is not None:
        wanted = np.array([request.logprobs for request in requests])
        values = raw.gather(1, ids.unsqueeze(1)).squeeze(1).cpu().numpy()
        logprobs[wanted] = values[wanted]
    return Sampled(ids.cpu().numpy().astype(np.int32), logprobs, finite)


def _apply_mask(logits: torch.Tensor, mask: npt.NDArray[np.int32]) -> None:
    """Forbids, in place, the ids whose bits are not set; rows with every bit set cost nothing."""
    constrained = np.flatnonzero((mask != -1).any(axis=1))
    if not constrained.size:
        return
    bits = np.unpackbits(mask[constrained].view(np.uint8), axis=1, count=logits.shape[1], bitorder="little")
    rows = torch.from_numpy(constrained).to(logits.device)
    forbidden = torch.from_numpy(bits == 0).to(logits.device)
    logits[rows] = logits[rows].masked_fill_(forbidden, float("-inf"))


def _mask_stops(logits: torch.Tensor, rows: Rows) -> None:
    """Forbids, in place, what would end a request before its min_tokens."""
    places: list[int] = []
    columns: list[int] = []
    for row, (request, position) in enumerate(zip(rows.requests, rows.positions.tolist(), strict=True)):
        if position - request.prompt_tokens < request.stopping.min_tokens:
            masked = request.stopping.masked_ids
            places.extend([row] * len(masked))
            columns.extend(masked)
    if places:
        device = logits.device
        logits[torch.tensor(places, device=device), torch.tensor(columns, device=device)] = float("-inf")


def _penalize_repetition(logits: torch.Tensor, rows: Rows, penalties: npt.NDArray[np.float32]) -> None:
    """Applies the repetition penalty in place to the rows that have one."""
    active = np.flatnonzero(penalties != 1.0)
    if not active.size:
        return
    windows = [_window(rows.requests[row], int(rows.positions[row])) for row in active.tolist()]
    width = max(len(window) for window in windows)
    # Short windows repeat their first id: the same value is written twice, which changes nothing.
    recent = np.empty((active.size, width), dtype=np.int64)
    for place, window in enumerate(windows):
        recent[place, : len(window)] = window
        recent[place, len(window) :] = window[0]
    places = torch.from_numpy(active).to(logits.device).unsqueeze(1)
    columns = torch.from_numpy(recent).to(logits.device)
    penalty = torch.from_numpy(penalties[active]).to(logits.device).unsqueeze(1)
    values = logits[places, columns]
    logits[places, columns] = torch.where(values > 0, values / penalty, values * penalty)


def _window(request: Request, position: int) -> npt.NDArray[np.int32]:
    return request.tokens[max(0, position - request.sampling.repetition_window) : position]


def _threshold(
    logits: torch.Tensor,
    top_k: npt.NDArray[np.int64],
    top_p: npt.NDArray[np.float32],
    min_p: npt.NDArray[np.float32],
) -> torch.Tensor | None:
    """The smallest logit `[rows, 1]` that the filters keep; None if no row filters."""
    vocabulary = logits.shape[-1]
    use_k = (top_k > 0) & (top_k < vocabulary)
    use_p = top_p < 1.0
    use_min_p = min_p > 0.0
    if not (use_k.any() or use_p.any() or use_min_p.any()):
        return None
    device = logits.device
    keep = torch.full((logits.shape[0], 1), float("-inf"), device=device)
    if use_k.any() or use_p.any():
        width = min(vocabulary, max(_CANDIDATES if use_p.any() else 1, int(top_k[use_k].max(initial=0))))
        ordered = logits.topk(width, dim=-1)
        if use_k.any():
            last = torch.from_numpy(np.where(use_k, top_k, 1) - 1).to(device).unsqueeze(1)
            kth = ordered.values.gather(1, last)
            keep = torch.where(torch.from_numpy(use_k).to(device).unsqueeze(1), kth, keep)
        if use_p.any():
            keep = torch.maximum(keep, _top_p_threshold(logits, ordered.indices, keep, top_p, use_p))
    if use_min_p.any():
        # log(0) is -inf: rows without min_p keep everything.
        with np.errstate(divide="ignore"):
            slack = torch.from_numpy(np.log(min_p)).to(device).unsqueeze(1)
        keep = torch.maximum(keep, logits.amax(dim=-1, keepdim=True) + slack)
    return keep


def _top_p_threshold(
    logits: torch.Tensor,
    largest: torch.Tensor,
    keep: torch.Tensor,
    top_p: npt.NDArray[np.float32],
    use_p: npt.NDArray[np.bool_],
) -> torch.Tensor:
    """The logit of the last token that top_p keeps among those of at least `keep`; -inf for rows that do not use it.

    The mass is summed over the `largest` ids first; only a row that is too flat for them is sorted whole.
    """
    device = logits.device
    target = torch.from_numpy(np.where(use_p, top_p, 0.0).astype(np.float64)).to(device).unsqueeze(1)
    mass = torch.softmax(logits.masked_fill(logits < keep, float("-inf")), dim=-1)
    place, reached = _first_to_reach(mass.gather(1, largest), target)
    threshold = logits.gather(1, largest.gather(1, place))
    flat = torch.nonzero(~reached.squeeze(1)).squeeze(1)
    if flat.numel():
        order = logits[flat].sort(dim=-1, descending=True).indices
        place, _ = _first_to_reach(mass[flat].gather(1, order), target[flat])
        threshold[flat] = logits[flat].gather(1, order.gather(1, place))
    return threshold.masked_fill(torch.from_numpy(~use_p).to(device).unsqueeze(1), float("-inf"))


def _first_to_reach(descending: torch.Tensor, target: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Where the sum of `descending` `[rows, n]` reaches `target` `[rows, 1]`, and whether it does. If rounding keeps it
    below, the last place that has any mass."""
    reached = descending.cumsum(dim=-1, dtype=torch.float64) >= target
    any_reached = reached.any(dim=-1, keepdim=True)
    last = (descending > 0).sum(dim=-1, keepdim=True) - 1
    place = torch.where(any_reached, reached.int().argmax(dim=-1, keepdim=True), last.clamp_min(0))
    # Zero mass at the end means that everything was counted.
    return place, any_reached | (descending[:, -1:] == 0)


def _draw(
    logits: torch.Tensor, temperature: npt.NDArray[np.float32], uniforms: npt.NDArray[np.float64]
) -> torch.Tensor:
    """Draws one id a row from softmax(logits / temperature) by inverting the cumulative distribution."""
    device = logits.device
    # The largest becomes 0 before the division, so that no temperature, however small, overflows.
    scaled = (logits - logits.amax(dim=-1, keepdim=True)) / torch.from_numpy(temperature).to(device).unsqueeze(1)
    cumulative = torch.softmax(scaled, dim=-1).cumsum(dim=-1, dtype=torch.float64)
    target = torch.from_numpy(uniforms).to(device).unsqueeze(1) * cumulative[:, -1:]
    # The first id whose cumulative mass exceeds the target has mass itself, because it exceeds its predecessor's.
    # A row without any mass (everything masked) must not point outside of the vocabulary.
    return torch.searchsorted(cumulative, target, right=True).squeeze(1).clamp_max(logits.shape[-1] - 1)
