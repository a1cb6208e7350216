"""Keeps the parameters of all requests as arrays by slot, so that a step gathers instead of looping over requests."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace

import numpy as np
import numpy.typing as npt
import torch

from tandem.worker.engine.request import Request
from tandem.worker.engine.sampler.breakers import Breakers
from tandem.worker.engine.sampler.counts import Counts
from tandem.worker.engine.sampler.waits import draws_simply, is_greedy, penalizes, waits
from tandem.worker.engine.sampling import Sampling

Ids = npt.NDArray[np.int64]
Words = npt.NDArray[np.int32]  # [ceil(vocabulary / 32)]
Parameters = npt.NDArray[np.void]  # one row of `_ROW` a row of the step

_TYPES = {"float": np.float64, "int": np.int64}
_NUMBERS = {each.name: _TYPES[str(each.type)] for each in fields(Sampling) if str(each.type) in _TYPES}
# What is worked out once a request, so that most steps look at nothing else.
_DERIVED = {
    "temperature_last": np.bool_,
    "state": np.float64,  # of mirostat or adaptive_p: the one number here that changes
    "penalizes": np.bool_,
    "min_position": np.int64,  # before it, what would stop is masked
    "biased": np.bool_,
    "confined": np.bool_,
    "banned": np.bool_,
    "bans_sequences": np.bool_,
    "changes": np.bool_,  # its logits are changed before anything is chosen, by any of the above
    "greedy": np.bool_,  # the largest logit is taken
    "simple": np.bool_,  # it, or one that is drawn by a temperature and the filters of most requests
    "reports": np.bool_,  # logprobs are wanted
    "waits": np.bool_,  # on a GPU, the host waits for its tokens
    "slot": np.int64,
}
_ROW = np.dtype([*(_NUMBERS | {"seed": np.uint64}).items(), *_DERIVED.items()])


@dataclass(frozen=True, slots=True)
class Lists:
    """The parameters of a request that are no scalars."""

    bias_ids: Ids
    biases: npt.NDArray[np.float32]
    allowed_ids: Ids
    banned_ids: Ids
    stop_ids: Ids
    breakers: Breakers
    packed: list[Words] = field(default_factory=list)  # allowed and banned ids as one mask, once a step wanted it


def column(parameters: Parameters, name: str, device: torch.device) -> torch.Tensor:
    """Returns one parameter of all rows, on the device."""
    return torch.from_numpy(parameters[name].copy()).to(device)


class SamplingTable:
    """Gives each request a slot, from its first draw to its end; a preempted one keeps it, and its state."""

    def __init__(self, slots: int) -> None:
        self._rows = np.zeros(slots, dtype=_ROW)
        self._lists: list[Lists | None] = [None] * slots
        self._plain = [False] * slots
        self._free = list(range(slots - 1, -1, -1))
        self._slot: dict[int, int] = {}
        self._newest: Lists | None = None
        self._newest_given: tuple[object, ...] = ((),) * 4
        self._counts: Counts | None = None

    def gather(self, requests: Sequence[Request]) -> Parameters:
        """Returns the parameters of each request, one row of the structured array a request."""
        slots = [self._slot_of(request) for request in requests]  # may replace the array
        return self._rows[slots]

    def take_the_largest(self, requests: Sequence[Request]) -> bool:
        """Tells whether all of these ask for the id of the largest logit as it is, and for nothing else."""
        return all(self._plain[self._slot_of(request)] for request in requests)

    def lists(self, slot: int) -> Lists:
        """Returns the parameters that are no scalars."""
        lists = self._lists[slot]
        assert lists is not None, "a slot in use"
        return lists

    def set_state(self, slots: Ids, state: npt.NDArray[np.float64]) -> None:
        """Keeps the state of mirostat or adaptive_p for the next draw."""
        self._rows["state"][slots] = state

    def counts(self, vocabulary: int, device: torch.device) -> Counts:
        """Returns how often ids occurred, on the device; made when they are first wanted."""
        if self._counts is None:
            self._counts = Counts(len(self._rows), vocabulary, device)
        return self._counts

    def free(self, request: Request) -> None:
        """Forgets a request; nothing happens if it was never seen."""
        if self._counts is not None:
            self._counts.forget(request.number)
        slot = self._slot.pop(request.number, None)
        if slot is not None:
            self._lists[slot] = None
            self._free.append(slot)

    def _slot_of(self, request: Request) -> int:
        slot = self._slot.get(request.number)
        if slot is None:
            if not self._free:  # preempted requests keep their slots
                self._free = list(range(2 * len(self._rows) - 1, len(self._rows) - 1, -1))
                self._rows = np.concatenate([self._rows, np.zeros_like(self._rows)])
                self._lists.extend([None] * len(self._lists))
                self._plain.extend([False] * len(self._plain))
            slot = self._slot[request.number] = self._free.pop()
            self._rows[slot] = row = _row(request, slot)
            asked = dict(zip(_ROW.names or (), row, strict=True))
            early = asked["min_position"] > request.prompt_tokens
            self._plain[slot] = bool(asked["greedy"]) and not (asked["changes"] or asked["reports"] or early)
            self._lists[slot] = self._lists_of(request)
        return slot

    def _lists_of(self, request: Request) -> Lists:
        """Makes the lists of a request: the samples of a prompt come one behind the other and share what is long."""
        s = request.sampling
        given = (s.logit_bias, s.allowed_ids, s.banned_ids, s.dry_sequence_breakers)
        if self._newest is None or any(a is not b for a, b in zip(given, self._newest_given, strict=True)):
            self._newest, self._newest_given = _lists(request), given
        return replace(self._newest, stop_ids=np.array(request.stopping.masked_ids, dtype=np.int64))


def _row(request: Request, slot: int) -> tuple[float | int, ...]:
    s: Sampling = request.sampling
    penalized = penalizes(s)
    masked = bool(request.stopping.masked_ids)
    dry_multiplier = s.dry_multiplier if s.dry_window else 0.0
    lists = bool(s.logit_bias or s.allowed_ids or s.banned_ids or s.banned_sequences)
    row: dict[str, float | int] = {name: getattr(s, name) for name in _NUMBERS}
    row |= {
        "temperature_last": s.temperature_last and s.mirostat == 0,
        "state": 2 * s.mirostat_tau if s.mirostat else s.adaptive_p_target,
        "penalizes": penalized,
        "dry_multiplier": dry_multiplier,
        "min_position": request.prompt_tokens + request.stopping.min_tokens if masked else 0,
        "biased": bool(s.logit_bias),
        "confined": bool(s.allowed_ids),
        "banned": bool(s.banned_ids),
        "bans_sequences": bool(s.banned_sequences),
        "changes": penalized or dry_multiplier > 0 or lists,
        "greedy": is_greedy(s),
        "simple": draws_simply(s),
        "reports": request.logprobs.wanted,
        "waits": waits(request),
        "slot": slot,
    }
    return tuple(row[name] for name in _ROW.names or ())


def _lists(request: Request) -> Lists:
    s = request.sampling
    return Lists(
        bias_ids=np.array([id_ for id_, _ in s.logit_bias], dtype=np.int64),
        biases=np.array([bias for _, bias in s.logit_bias], dtype=np.float32),
        allowed_ids=np.unique(np.array(s.allowed_ids, dtype=np.int64)),
        banned_ids=np.unique(np.array(s.banned_ids, dtype=np.int64)),
        stop_ids=np.array(request.stopping.masked_ids, dtype=np.int64),
        breakers=Breakers.of(s.dry_sequence_breakers),
    )
