"""The sampling parameters of a request, as an object and as keywords.

Made from SamplingParams of inference.proto by `make protos`; change it there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypedDict


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """How the next token is chosen; formulas are in docs/sampling.md. None: the model's default."""

    temperature: float | None = None  # >= 0; 0 takes the largest logit
    top_k: int | None = None  # >= 0; keeps the k largest; 0 is off
    top_p: float | None = None  # 0 to 1; mass of the most probable to keep; 1 is off
    min_p: float | None = None  # 0 to 1; keeps what has this share of the largest probability; 0 is off
    # > 0; positive logits are divided by it, negative ones multiplied; 1 is off
    repetition_penalty: float | None = None
    # >= 0; how many last tokens, prompt included, all three penalties look at; 0 is off
    repetition_window: int | None = None
    seed: int | None = None  # >= 0; fixes every draw
    repetition_decay: int | None = None  # >= 0; behind the window, penalties fade linearly over so many tokens
    presence_penalty: float | None = None  # -2 to 2; subtracted once from what occurred
    frequency_penalty: float | None = None  # -2 to 2; subtracted for each occurrence
    typical_p: float | None = None  # 0 to 1; mass to keep; 1 is off
    tail_free_z: float | None = None  # 0 to 1; curvature to keep; 1 is off
    top_a: float | None = None  # 0 to 1; relative to the largest squared; 0 is off
    dynamic_temperature_range: float | None = None  # >= 0; from temperature - range to temperature + range; 0 is off
    dynamic_temperature_exponent: float | None = None  # >= 0; of the entropy's share
    xtc_probability: float | None = None  # 0 to 1; how often; 0 is off
    xtc_threshold: float | None = None  # 0 to 1; of those that reach it all but the least probable go
    mirostat: int | None = None  # 0 to 2; 1 or 2; 0 is off
    mirostat_tau: float | None = None  # >= 0; bits of surprise that are aimed at
    mirostat_eta: float | None = None  # >= 0; how fast
    dry_multiplier: float | None = None  # >= 0; of the penalty; 0 is off
    dry_base: float | None = None  # >= 1; the penalty grows by it with each token
    dry_allowed_length: int | None = None  # >= 1; repetitions of so many tokens are penalized when they go on
    dry_window: int | None = None  # >= 0; how many last tokens are looked at; 0 is off
    # at most 8192 of 1 to 16 ids; no repetition reaches over one
    dry_sequence_breakers: Sequence[Sequence[int]] | None = None
    logit_bias: Mapping[int, float] | None = None  # at most 4096 ids; each id once
    allowed_ids: Sequence[int] | None = None  # at most 65536 ids; empty: all
    banned_ids: Sequence[int] | None = None  # at most 65536 ids; never these
    # at most 256 of 1 to 64 ids; the last id of one is banned where it would end it
    banned_sequences: Sequence[Sequence[int]] | None = None
    # >= 0; keeps what is at most so many standard deviations of all logits below the largest; 0 is off
    top_n_sigma: float | None = None
    adaptive_p_target: float | None = None  # -1 to 1; the probability that is aimed at; below 0 is off
    adaptive_p_decay: float | None = None  # 0 to 0.99; how much of the mean a token leaves to those before it
    temperature_last: bool | None = None  # false: before the filters (top_n_sigma to XTC)


class SamplingOptions(TypedDict, total=False):
    """The fields of SamplingParams as keywords."""

    temperature: float | None
    top_k: int | None
    top_p: float | None
    min_p: float | None
    repetition_penalty: float | None
    repetition_window: int | None
    seed: int | None
    repetition_decay: int | None
    presence_penalty: float | None
    frequency_penalty: float | None
    typical_p: float | None
    tail_free_z: float | None
    top_a: float | None
    dynamic_temperature_range: float | None
    dynamic_temperature_exponent: float | None
    xtc_probability: float | None
    xtc_threshold: float | None
    mirostat: int | None
    mirostat_tau: float | None
    mirostat_eta: float | None
    dry_multiplier: float | None
    dry_base: float | None
    dry_allowed_length: int | None
    dry_window: int | None
    dry_sequence_breakers: Sequence[Sequence[int]] | None
    logit_bias: Mapping[int, float] | None
    allowed_ids: Sequence[int] | None
    banned_ids: Sequence[int] | None
    banned_sequences: Sequence[Sequence[int]] | None
    top_n_sigma: float | None
    adaptive_p_target: float | None
    adaptive_p_decay: float | None
    temperature_last: bool | None


# What the contract says of each, for help.
HELP = {
    "temperature": "0 takes the largest logit",
    "top_k": "keeps the k largest; 0 is off",
    "top_p": "mass of the most probable to keep; 1 is off",
    "min_p": "keeps what has this share of the largest probability; 0 is off",
    "repetition_penalty": "positive logits are divided by it, negative ones multiplied; 1 is off",
    "repetition_window": "how many last tokens, prompt included, all three penalties look at; 0 is off",
    "seed": "fixes every draw",
    "repetition_decay": "behind the window, penalties fade linearly over so many tokens",
    "presence_penalty": "subtracted once from what occurred",
    "frequency_penalty": "subtracted for each occurrence",
    "typical_p": "mass to keep; 1 is off",
    "tail_free_z": "curvature to keep; 1 is off",
    "top_a": "relative to the largest squared; 0 is off",
    "dynamic_temperature_range": "from temperature - range to temperature + range; 0 is off",
    "dynamic_temperature_exponent": "of the entropy's share",
    "xtc_probability": "how often; 0 is off",
    "xtc_threshold": "of those that reach it all but the least probable go",
    "mirostat": "1 or 2; 0 is off",
    "mirostat_tau": "bits of surprise that are aimed at",
    "mirostat_eta": "how fast",
    "dry_multiplier": "of the penalty; 0 is off",
    "dry_base": "the penalty grows by it with each token",
    "dry_allowed_length": "repetitions of so many tokens are penalized when they go on",
    "dry_window": "how many last tokens are looked at; 0 is off",
    "dry_sequence_breakers": "no repetition reaches over one",
    "logit_bias": "each id once",
    "allowed_ids": "empty: all",
    "banned_ids": "never these",
    "banned_sequences": "the last id of one is banned where it would end it",
    "top_n_sigma": "keeps what is at most so many standard deviations of all logits below the largest; 0 is off",
    "adaptive_p_target": "the probability that is aimed at; below 0 is off",
    "adaptive_p_decay": "how much of the mean a token leaves to those before it",
    "temperature_last": "false: before the filters (top_n_sigma to XTC)",
}
