"""The sampling parameters of a request, as an object and as keywords.

Made from SamplingParams of inference.proto by `make protos`; change it there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypedDict


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """The parameters that choose the next token; formulas are in docs/sampling.md. None: the default."""

    temperature: float | None = None  # >= 0; 0 takes the largest logit
    top_k: int | None = None  # >= 0; keeps the k largest; 0 is off
    top_p: float | None = None  # 0 to 1; keeps the most probable tokens up to this total probability; 1 is off
    min_p: float | None = None  # 0 to 1; keeps tokens with at least this share of the largest probability; 0 is off
    # > 0; divides positive logits of tokens that occurred and multiplies negative ones; 1 is off
    repetition_penalty: float | None = None
    # >= 0; number of last tokens, prompt included, that all three penalties look at; 0 is off
    repetition_window: int | None = None
    seed: int | None = None  # >= 0; seed of the random draws
    # >= 0; number of tokens before the window over which the penalties fade linearly to zero
    repetition_decay: int | None = None
    presence_penalty: float | None = None  # -2 to 2; subtracted once from the logit of each token that occurred
    frequency_penalty: float | None = None  # -2 to 2; subtracted from a token's logit for each of its occurrences
    typical_p: float | None = None  # 0 to 1; keeps the most typical tokens up to this total probability; 1 is off
    tail_free_z: float | None = None  # 0 to 1; share of the probabilities' total curvature to keep; 1 is off
    # 0 to 1; keeps tokens with at least this times the square of the largest probability; 0 is off
    top_a: float | None = None
    # >= 0; the temperature is between temperature - range and temperature + range; 0 is off
    dynamic_temperature_range: float | None = None
    dynamic_temperature_exponent: float | None = None  # >= 0; exponent of the normalized entropy
    xtc_probability: float | None = None  # 0 to 1; probability that it is applied to a token; 0 is off
    # 0 to 1; of the tokens with at least this probability all but the least probable are removed
    xtc_threshold: float | None = None
    mirostat: int | None = None  # 0 to 2; 1 or 2; 0 is off
    mirostat_tau: float | None = None  # >= 0; target surprise of the drawn tokens, in bits
    mirostat_eta: float | None = None  # >= 0; learning rate
    dry_multiplier: float | None = None  # >= 0; factor of the penalty; 0 is off
    dry_base: float | None = None  # >= 1; base of the penalty, which grows by this factor with each repeated token
    dry_allowed_length: int | None = None  # >= 1; shortest repetition, in tokens, that is penalized when it continues
    dry_window: int | None = None  # >= 0; number of last tokens that are searched for repetitions; 0 is off
    # at most 8192 of 1 to 16 ids; id sequences that end a repetition
    dry_sequence_breakers: Sequence[Sequence[int]] | None = None
    logit_bias: Mapping[int, float] | None = None  # at most 4096 ids; each id once
    allowed_ids: Sequence[int] | None = None  # at most 65536 ids; the only ids that may be drawn; empty: all
    banned_ids: Sequence[int] | None = None  # at most 65536 ids; ids that are never drawn
    # at most 256 of 1 to 64 ids; id sequences that never occur: the last id is banned where it would complete one
    banned_sequences: Sequence[Sequence[int]] | None = None
    # >= 0; keeps tokens whose logit is at most so many standard deviations below the largest; 0 is off
    top_n_sigma: float | None = None
    adaptive_p_target: float | None = None  # -1 to 1; target probability of the drawn tokens; below 0 is off
    adaptive_p_decay: float | None = None  # 0 to 0.99; weight of earlier tokens in the mean
    # applies the temperature after the filters (top_n_sigma to XTC); false: before them
    temperature_last: bool | None = None


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
    "top_p": "keeps the most probable tokens up to this total probability; 1 is off",
    "min_p": "keeps tokens with at least this share of the largest probability; 0 is off",
    "repetition_penalty": "divides positive logits of tokens that occurred and multiplies negative ones; 1 is off",
    "repetition_window": "number of last tokens, prompt included, that all three penalties look at; 0 is off",
    "seed": "seed of the random draws",
    "repetition_decay": "number of tokens before the window over which the penalties fade linearly to zero",
    "presence_penalty": "subtracted once from the logit of each token that occurred",
    "frequency_penalty": "subtracted from a token's logit for each of its occurrences",
    "typical_p": "keeps the most typical tokens up to this total probability; 1 is off",
    "tail_free_z": "share of the probabilities' total curvature to keep; 1 is off",
    "top_a": "keeps tokens with at least this times the square of the largest probability; 0 is off",
    "dynamic_temperature_range": "the temperature is between temperature - range and temperature + range; 0 is off",
    "dynamic_temperature_exponent": "exponent of the normalized entropy",
    "xtc_probability": "probability that it is applied to a token; 0 is off",
    "xtc_threshold": "of the tokens with at least this probability all but the least probable are removed",
    "mirostat": "1 or 2; 0 is off",
    "mirostat_tau": "target surprise of the drawn tokens, in bits",
    "mirostat_eta": "learning rate",
    "dry_multiplier": "factor of the penalty; 0 is off",
    "dry_base": "base of the penalty, which grows by this factor with each repeated token",
    "dry_allowed_length": "shortest repetition, in tokens, that is penalized when it continues",
    "dry_window": "number of last tokens that are searched for repetitions; 0 is off",
    "dry_sequence_breakers": "id sequences that end a repetition",
    "logit_bias": "each id once",
    "allowed_ids": "the only ids that may be drawn; empty: all",
    "banned_ids": "ids that are never drawn",
    "banned_sequences": "id sequences that never occur: the last id is banned where it would complete one",
    "top_n_sigma": "keeps tokens whose logit is at most so many standard deviations below the largest; 0 is off",
    "adaptive_p_target": "target probability of the drawn tokens; below 0 is off",
    "adaptive_p_decay": "weight of earlier tokens in the mean",
    "temperature_last": "applies the temperature after the filters (top_n_sigma to XTC); false: before them",
}
