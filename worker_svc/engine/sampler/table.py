"""The parameters of all requests as arrays by slot, so that a step gathers instead of looping over requests."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from worker_svc.engine.request import Request, Sampling

Ids = npt.NDArray[np.int64]
Rules = npt.NDArray[np.void]  # one row of `_ROW` a row of the step

_ROW = np.dtype(
    [
        ("temperature", np.float64),
        ("dynamic_range", np.float64),
        ("dynamic_exponent", np.float64),
        ("temperature_first", np.bool_),
        ("top_k", np.int64),
        ("tail_free_z", np.float64),
        ("typical_p", np.float64),
        ("top_p", np.float64),
        ("min_p", np.float64),
        ("top_a", np.float64),
        ("xtc_probability", np.float64),
        ("xtc_threshold", np.float64),
        ("mirostat", np.int64),
        ("mirostat_tau", np.float64),
        ("mirostat_eta", np.float64),
        ("mirostat_mu", np.float64),  # the one number here that changes
        ("penalizes", np.bool_),
        ("repetition_penalty", np.float64),
        ("repetition_window", np.int64),
        ("repetition_decay", np.int64),
        ("presence_penalty", np.float64),
        ("frequency_penalty", np.float64),
        ("dry_multiplier", np.float64),
        ("min_position", np.int64),  # before it, what would stop is masked
        ("biased", np.bool_),
        ("confined", np.bool_),
        ("banned", np.bool_),
        ("bans_sequences", np.bool_),
        ("changes", np.bool_),  # its logits are changed before anything is chosen, by any of the above
        ("greedy", np.bool_),  # the largest logit is taken
        ("reports", np.bool_),  # logprobs are wanted
        ("seed", np.uint64),
        ("slot", np.int64),
    ]
)


@dataclass(frozen=True, slots=True)
class Lists:
    """The parameters of a request that are no scalars."""

    bias_ids: Ids
    biases: npt.NDArray[np.float32]
    allowed_ids: Ids
    banned_ids: Ids
    stop_ids: Ids


def column(rules: Rules, name: str, device: torch.device) -> torch.Tensor:
    """One parameter of all rows, on the device."""
    return torch.from_numpy(rules[name].copy()).to(device)


class SamplingTable:
    """One slot a request, from its first draw to its end; a preempted request keeps its slot, and with it its state."""

    def __init__(self, slots: int) -> None:
        self._rows = np.zeros(slots, dtype=_ROW)
        self._lists: list[Lists | None] = [None] * slots
        self._free = list(range(slots - 1, -1, -1))
        self._slot: dict[int, int] = {}

    def gather(self, requests: Sequence[Request]) -> Rules:
        """The parameters of each request, one row of the structured array a request."""
        slots = [self._slot_of(request) for request in requests]  # may replace the array
        return self._rows[slots]

    def lists(self, slot: int) -> Lists:
        """The parameters that are no scalars."""
        lists = self._lists[slot]
        assert lists is not None, "a slot in use"
        return lists

    def set_mu(self, slots: Ids, mu: npt.NDArray[np.float64]) -> None:
        """Keeps the state of mirostat for the next draw."""
        self._rows["mirostat_mu"][slots] = mu

    def free(self, request: Request) -> None:
        """Forgets a request; nothing happens if it was never seen."""
        slot = self._slot.pop(request.handle, None)
        if slot is not None:
            self._lists[slot] = None
            self._free.append(slot)

    def _slot_of(self, request: Request) -> int:
        slot = self._slot.get(request.handle)
        if slot is None:
            if not self._free:  # preempted requests keep their slots
                self._free = list(range(2 * len(self._rows) - 1, len(self._rows) - 1, -1))
                self._rows = np.concatenate([self._rows, np.zeros_like(self._rows)])
                self._lists.extend([None] * len(self._lists))
            slot = self._slot[request.handle] = self._free.pop()
            self._rows[slot] = _row(request, slot)
            self._lists[slot] = _lists(request)
        return slot


def _row(request: Request, slot: int) -> tuple[float | int, ...]:
    s: Sampling = request.sampling
    # A window of nothing penalizes nothing.
    window = s.repetition_window + s.repetition_decay
    penalizes = window > 0 and (s.repetition_penalty != 1.0 or s.presence_penalty != 0 or s.frequency_penalty != 0)
    masked = bool(request.stopping.masked_ids)
    dry_multiplier = s.dry_multiplier if s.dry_window else 0.0
    lists = bool(s.bias_ids or s.allowed_ids or s.banned_ids or s.banned_sequences)
    # The largest stays in every filter but typical_p and XTC.
    cold = s.temperature == 0 and s.dynamic_temperature_range == 0
    greedy = cold and s.typical_p == 1 and s.xtc_probability == 0
    return (
        s.temperature,
        s.dynamic_temperature_range,
        s.dynamic_temperature_exponent,
        not s.temperature_last or s.mirostat > 0,
        s.top_k,
        s.tail_free_z,
        s.typical_p,
        s.top_p,
        s.min_p,
        s.top_a,
        s.xtc_probability,
        s.xtc_threshold,
        s.mirostat,
        s.mirostat_tau,
        s.mirostat_eta,
        2 * s.mirostat_tau,
        penalizes,
        s.repetition_penalty,
        s.repetition_window,
        s.repetition_decay,
        s.presence_penalty,
        s.frequency_penalty,
        dry_multiplier,
        request.prompt_tokens + request.stopping.min_tokens if masked else 0,
        bool(s.bias_ids),
        bool(s.allowed_ids),
        bool(s.banned_ids),
        bool(s.banned_sequences),
        penalizes or dry_multiplier > 0 or lists,
        greedy,
        request.logprobs.wanted,
        s.seed,
        slot,
    )


def _lists(request: Request) -> Lists:
    s = request.sampling
    return Lists(
        bias_ids=np.array(s.bias_ids, dtype=np.int64),
        biases=np.array(s.biases, dtype=np.float32),
        allowed_ids=np.unique(np.array(s.allowed_ids, dtype=np.int64)),
        banned_ids=np.unique(np.array(s.banned_ids, dtype=np.int64)),
        stop_ids=np.array(request.stopping.masked_ids, dtype=np.int64),
    )
