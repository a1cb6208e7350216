"""The sampler once more, one row at a time in float64, straight from the formulas of docs/sampling.md.

Nothing here is shared with the engine: loops over tokens, whole sorts, no candidates.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from tandem.worker.engine.sampling import Sampling

Array = npt.NDArray[np.float64]
EPSILON = 1e-9  # cuts closer than rounding are not compared


def probabilities(
    logits: Array,
    tokens: Sequence[int],
    s: Sampling,
    *,
    excludes: bool = False,
    mu: float | None = None,
    mean: float | None = None,
) -> Array:
    """What the next token is drawn from; `excludes` is XTC's coin, `mu` mirostat's bound, `mean` that of adaptive_p."""
    x = np.array(logits, dtype=np.float64)
    if s.allowed_ids:
        allowed = np.full_like(x, -np.inf)
        allowed[list(s.allowed_ids)] = x[list(s.allowed_ids)]
        x = allowed
    x[list(s.banned_ids)] = -np.inf
    for sequence in s.banned_sequences:
        begin = list(sequence[:-1])
        if not begin or list(tokens[-len(begin) :]) == begin:
            x[sequence[-1]] = -np.inf
    for token, bias in s.logit_bias:
        x[token] += bias
    x = penalized(x, tokens, s)
    for token, penalty in dry(tokens, s).items():
        x[token] -= penalty
    if s.temperature == 0 and not s.dynamic_temperature_range and s.typical_p == 1 and not s.xtc_probability:
        return (x == x.max()) / (x == x.max()).sum()
    if s.mirostat:
        x = x / s.temperature
        bound = 2 * s.mirostat_tau if mu is None else mu
        return softmax(mirostat(x, s.mirostat, bound))
    if not s.temperature_last:
        x = x / temperature(x, s)
    if s.top_n_sigma:
        x = np.where(x >= x.max() - s.top_n_sigma * x[x > -np.inf].std(), x, -np.inf)
    if s.top_k:
        x = keep(x, np.argsort(-x, kind="stable")[: s.top_k])
    if s.tail_free_z < 1:
        x = tail_free(x, s.tail_free_z)
    if s.typical_p < 1:
        x = typical(x, s.typical_p)
    if s.top_p < 1:
        order = np.argsort(-x, kind="stable")
        mass = np.cumsum(softmax(x)[order])
        x = keep(x, order[: min(int(np.searchsorted(mass, s.top_p - EPSILON)) + 1, alive(x))])
    if s.min_p:
        x = np.where(softmax(x) >= s.min_p * softmax(x).max() * (1 - EPSILON), x, -np.inf)
    if s.top_a:
        p = softmax(x)
        x = np.where((p >= s.top_a * p.max() ** 2) | (p == p.max()), x, -np.inf)
    if excludes:
        p = softmax(x)
        likely = [token for token in np.argsort(-p, kind="stable") if p[token] >= s.xtc_threshold]
        x[likely[:-1]] = -np.inf
    if s.temperature_last:
        x = x / temperature(x, s)
    if s.adaptive_p_target >= 0:
        return adaptive_p(x, s.adaptive_p_target, s.adaptive_p_target if mean is None else mean)
    return softmax(x)


def adaptive_p(x: Array, target: float, mean: float) -> Array:
    distance = np.abs(softmax(x) - min(max(2 * target - mean, 0.0), 1.0)) / 0.3
    return softmax(np.where(x > -np.inf, 5 - 10 * distance**2 / (1 + distance), -np.inf))


def softmax(x: Array) -> Array:
    e = np.exp(x - x.max())
    return e / e.sum()


def alive(x: Array) -> int:
    return int((x > -np.inf).sum())


def keep(x: Array, ids: npt.NDArray[np.int64]) -> Array:
    kept = np.full_like(x, -np.inf)
    kept[ids] = x[ids]
    return kept


def entropy(x: Array) -> float:
    p = softmax(x)
    p = p[p > 0]
    return float(-(p * np.log(p)).sum())


def temperature(x: Array, s: Sampling) -> float:
    if not s.dynamic_temperature_range or alive(x) < 2:
        return max(s.temperature, 1e-30)
    low, high = max(0.0, s.temperature - s.dynamic_temperature_range), s.temperature + s.dynamic_temperature_range
    share = min(1.0, entropy(x) / math.log(alive(x)))
    return max(1e-30, low + (high - low) * share**s.dynamic_temperature_exponent)


def penalized(x: Array, tokens: Sequence[int], s: Sampling) -> Array:
    last: dict[int, float] = {}
    together: dict[int, float] = {}
    for distance, token in enumerate(reversed(tokens)):
        if distance < s.repetition_window:
            weight = 1.0
        elif distance < s.repetition_window + s.repetition_decay:
            weight = 1 - (distance - s.repetition_window + 1) / (s.repetition_decay + 1)
        else:
            break
        last.setdefault(token, weight)
        together[token] = together.get(token, 0.0) + weight
    x = x.copy()
    for token, weight in last.items():
        ratio = 1 + (s.repetition_penalty - 1) * weight
        x[token] = x[token] / ratio if x[token] > 0 else x[token] * ratio
        x[token] -= s.presence_penalty * weight + s.frequency_penalty * together[token]
    return x


def dry(tokens: Sequence[int], s: Sampling) -> dict[int, float]:
    tokens = list(tokens)[-s.dry_window :] if s.dry_window else []
    if not s.dry_multiplier or len(tokens) <= s.dry_allowed_length:
        return {}
    limit = len(tokens)
    for back in range(len(tokens)):
        here = len(tokens) - 1 - back
        sizes = [len(b) for b in s.dry_sequence_breakers if tokens[here : here + len(b)] == list(b)]
        if sizes:
            limit = len(tokens) - here - max(sizes)
            break
    penalties: dict[int, float] = {}
    for place in range(1, len(tokens)):
        length = 0
        while length < min(place, limit) and tokens[place - 1 - length] == tokens[len(tokens) - 1 - length]:
            length += 1
        if length >= s.dry_allowed_length and (tokens[place],) not in s.dry_sequence_breakers:
            penalty = s.dry_multiplier * s.dry_base ** (length - s.dry_allowed_length)
            penalties[tokens[place]] = max(penalties.get(tokens[place], 0.0), penalty)
    return penalties


def tail_free(x: Array, z: float) -> Array:
    if alive(x) <= 2:
        return x
    order = np.argsort(-x, kind="stable")[: alive(x)]
    p = softmax(x)[order]
    curvature = np.abs(np.diff(p, 2))
    share = curvature / curvature.sum() if curvature.sum() > 1e-6 else np.full(curvature.size, 1 / curvature.size)
    beyond = np.flatnonzero(np.cumsum(share) > z)
    count = max(1, int(beyond[0])) if beyond.size else len(order)
    return keep(x, order[:count])


def typical(x: Array, mass: float) -> Array:
    p = softmax(x)
    with np.errstate(divide="ignore"):
        distance = np.abs(-np.log(p) - entropy(x))
    order = np.argsort(distance, kind="stable")[: alive(x)]
    count = int(np.searchsorted(np.cumsum(p[order]), mass - EPSILON)) + 1
    return keep(x, order[:count])


def mirostat(x: Array, version: int, mu: float) -> Array:
    order = np.argsort(-x, kind="stable")[: alive(x)]
    p = softmax(x)[order]
    if version == 2:
        return keep(x, order[: max(1, int((-np.log2(p) <= mu).sum()))])
    top = p[:100]
    t = np.log(np.arange(2, len(top) + 1) / np.arange(1, len(top)))
    b = np.log(top[:-1] / top[1:])
    s = (t * b).sum() / (t * t).sum()
    e = s - 1
    k = (e * 2**mu / (1 - len(x) ** -e)) ** (1 / s)
    return keep(x, order[: max(1, min(int(k), len(order)))])
