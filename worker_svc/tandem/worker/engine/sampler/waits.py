"""Lists what only torch's operations compute (`pipeline.py`): on a GPU, the host waits for their results. A request
that asks for none of it is drawn by kernels, and nobody waits (`on_card.py`).
"""

from __future__ import annotations

from collections.abc import Callable

from tandem.worker.engine.request import Request
from tandem.worker.engine.sampling import Sampling


def is_greedy(s: Sampling) -> bool:
    """Tells whether the largest logit is taken, which stays in every filter but typical_p and XTC."""
    cold = s.temperature == 0 and s.dynamic_temperature_range == 0
    return cold and s.typical_p == 1 and s.xtc_probability == 0


def penalizes(s: Sampling) -> bool:
    """Tells whether tokens are penalized for having occurred; a window of nothing penalizes nothing."""
    window = s.repetition_window + s.repetition_decay
    return window > 0 and (s.repetition_penalty != 1.0 or s.presence_penalty != 0 or s.frequency_penalty != 0)


# Of those that draw.
_OF_DRAWS: dict[str, Callable[[Sampling], bool]] = {
    "tail_free_z": lambda s: s.tail_free_z != 1,
    "typical_p": lambda s: s.typical_p != 1,
    "top_a": lambda s: s.top_a != 0,
    "xtc_probability": lambda s: s.xtc_probability != 0,
    "mirostat": lambda s: s.mirostat != 0,
    "dynamic_temperature_range": lambda s: s.dynamic_temperature_range > 0,
    "temperature_last=false": lambda s: not s.temperature_last,
    "adaptive_p_target": lambda s: s.adaptive_p_target >= 0,
}
WAITS: dict[str, Callable[[Request], bool]] = {
    name: (lambda request, asks=asks: not is_greedy(request.sampling) and asks(request.sampling))
    for name, asks in _OF_DRAWS.items()
} | {
    "dry_multiplier": lambda request: request.sampling.dry_multiplier > 0 and request.sampling.dry_window > 0,
    "repetition_decay": lambda request: penalizes(request.sampling) and request.sampling.repetition_decay > 0,
    "penalties with speculation": lambda request: penalizes(request.sampling) and request.drafting is not None,
    "logprobs": lambda request: request.logprobs.wanted,
}


def draws_simply(s: Sampling) -> bool:
    """Tells whether a token is drawn by what kernels compute, on a GPU or on a CPU."""
    return is_greedy(s) or not any(asks(s) for asks in _OF_DRAWS.values())


def waits(request: Request) -> bool:
    """Tells whether the host waits for the request's tokens on a GPU."""
    return any(asks(request) for asks in WAITS.values())
