"""How the next token is chosen, every value effective.

Made from SamplingParams of inference.proto by `make protos`; change it there.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """The defaults are those of a request that says nothing, for a model that says nothing either."""

    temperature: float = 1.0  # 0 takes the largest logit
    top_k: int = 0  # keeps the k largest; 0 is off
    top_p: float = 1.0  # mass of the most probable to keep; 1 is off
    min_p: float = 0.0  # keeps what has this share of the largest probability; 0 is off
    repetition_penalty: float = 1.0  # positive logits are divided by it, negative ones multiplied; 1 is off
    repetition_window: int = 64  # how many last tokens, prompt included, all three penalties look at; 0 is off
    seed: int = 0  # fixes every draw
    repetition_decay: int = 0  # behind the window, penalties fade linearly over so many tokens
    presence_penalty: float = 0.0  # subtracted once from what occurred
    frequency_penalty: float = 0.0  # subtracted for each occurrence
    typical_p: float = 1.0  # mass to keep; 1 is off
    tail_free_z: float = 1.0  # curvature to keep; 1 is off
    top_a: float = 0.0  # relative to the largest squared; 0 is off
    dynamic_temperature_range: float = 0.0  # from temperature - range to temperature + range; 0 is off
    dynamic_temperature_exponent: float = 1.0  # of the entropy's share
    xtc_probability: float = 0.0  # how often; 0 is off
    xtc_threshold: float = 0.1  # of those that reach it all but the least probable go
    mirostat: int = 0  # 1 or 2; 0 is off
    mirostat_tau: float = 5.0  # bits of surprise that are aimed at
    mirostat_eta: float = 0.1  # how fast
    dry_multiplier: float = 0.0  # of the penalty; 0 is off
    dry_base: float = 1.75  # the penalty grows by it with each token
    dry_allowed_length: int = 2  # repetitions of so many tokens are penalized when they go on
    dry_window: int = 4294967295  # how many last tokens are looked at; 0 is off
    dry_sequence_breakers: tuple[tuple[int, ...], ...] = ()  # no repetition reaches over one
    logit_bias: tuple[tuple[int, float], ...] = ()  # each id once
    allowed_ids: tuple[int, ...] = ()  # empty: all
    banned_ids: tuple[int, ...] = ()  # never these
    banned_sequences: tuple[tuple[int, ...], ...] = ()  # the last id of one is banned where it would end it
    # keeps what is at most so many standard deviations of all logits below the largest; 0 is off
    top_n_sigma: float = 0.0
    adaptive_p_target: float = -1.0  # the probability that is aimed at; below 0 is off
    adaptive_p_decay: float = 0.9  # how much of the mean a token leaves to those before it
    temperature_last: bool = True  # false: before the filters (top_n_sigma to XTC)

    @property
    def stateful(self) -> bool:
        """Tells whether a draw depends on earlier draws and not on tokens alone: such a request is sampled
        one token at a time, in order, and cannot go on from tokens that another worker produced."""
        return self.mirostat != 0 or self.adaptive_p_target != -1.0
