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
    top_p: float = 1.0  # keeps the most probable tokens up to this total probability; 1 is off
    min_p: float = 0.0  # keeps tokens with at least this share of the largest probability; 0 is off
    # divides positive logits of tokens that occurred and multiplies negative ones; 1 is off
    repetition_penalty: float = 1.0
    repetition_window: int = 64  # number of last tokens, prompt included, that all three penalties look at; 0 is off
    seed: int = 0  # seed of the random draws
    repetition_decay: int = 0  # number of tokens before the window over which the penalties fade linearly to zero
    presence_penalty: float = 0.0  # subtracted once from the logit of each token that occurred
    frequency_penalty: float = 0.0  # subtracted from a token's logit for each of its occurrences
    typical_p: float = 1.0  # keeps the most typical tokens up to this total probability; 1 is off
    tail_free_z: float = 1.0  # share of the probabilities' total curvature to keep; 1 is off
    top_a: float = 0.0  # keeps tokens with at least this times the square of the largest probability; 0 is off
    # the temperature is between temperature - range and temperature + range; 0 is off
    dynamic_temperature_range: float = 0.0
    dynamic_temperature_exponent: float = 1.0  # exponent of the normalized entropy
    xtc_probability: float = 0.0  # probability that it is applied to a token; 0 is off
    xtc_threshold: float = 0.1  # of the tokens with at least this probability all but the least probable are removed
    mirostat: int = 0  # 1 or 2; 0 is off
    mirostat_tau: float = 5.0  # target surprise of the drawn tokens, in bits
    mirostat_eta: float = 0.1  # learning rate
    dry_multiplier: float = 0.0  # factor of the penalty; 0 is off
    dry_base: float = 1.75  # base of the penalty, which grows by this factor with each repeated token
    dry_allowed_length: int = 2  # shortest repetition, in tokens, that is penalized when it continues
    dry_window: int = 4294967295  # number of last tokens that are searched for repetitions; 0 is off
    dry_sequence_breakers: tuple[tuple[int, ...], ...] = ()  # id sequences that end a repetition
    logit_bias: tuple[tuple[int, float], ...] = ()  # each id once
    allowed_ids: tuple[int, ...] = ()  # the only ids that may be drawn; empty: all
    banned_ids: tuple[int, ...] = ()  # ids that are never drawn
    # id sequences that never occur: the last id is banned where it would complete one
    banned_sequences: tuple[tuple[int, ...], ...] = ()
    # keeps tokens whose logit is at most so many standard deviations below the largest; 0 is off
    top_n_sigma: float = 0.0
    adaptive_p_target: float = -1.0  # target probability of the drawn tokens; below 0 is off
    adaptive_p_decay: float = 0.9  # weight of earlier tokens in the mean
    temperature_last: bool = True  # applies the temperature after the filters (top_n_sigma to XTC); false: before them

    @property
    def stateful(self) -> bool:
        """Tells whether a draw depends on earlier draws and not on tokens alone: such a request is sampled
        one token at a time, in order, and cannot go on from tokens that another worker produced."""
        return self.mirostat != 0 or self.adaptive_p_target != -1.0
