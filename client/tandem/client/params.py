"""What a caller may ask of a generation: sampling, stopping, output, and how the call itself is made.

A value that is None is not sent: the model's own default applies. Nothing is checked when an object is built; a call
checks everything together (`validation.py`) and names all violations at once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypedDict

from .guided import Guide

SpecialTokens = Literal["text", "parse", "parse_listed", "reject"]
Preset = Literal["creative", "balanced", "focused", "deterministic"]
Strategy = Literal["greedy", "top_k", "top_p", "temperature", "combined"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """How the next token is chosen; formulas and sources in docs/sampling.md. None: the model's default."""

    temperature: float | None = None  # >= 0; 0 is greedy
    dynamic_temperature_range: float | None = None  # >= 0; the temperature follows the entropy; 0 is off
    dynamic_temperature_exponent: float | None = None  # >= 0
    temperature_last: bool | None = None  # False: before the filters
    top_k: int | None = None  # >= 0; 0 is off
    tail_free_z: float | None = None  # 0 to 1; 1 is off
    typical_p: float | None = None  # 0 to 1; 1 is off
    top_p: float | None = None  # 0 to 1; 1 is off
    min_p: float | None = None  # 0 to 1; 0 is off
    top_a: float | None = None  # 0 to 1; 0 is off
    xtc_probability: float | None = None  # 0 to 1; how often the most probable are excluded; 0 is off
    xtc_threshold: float | None = None  # 0 to 1
    mirostat: int | None = None  # 1 or 2; takes the place of all filters; 0 is off
    mirostat_tau: float | None = None  # >= 0; bits of surprise that are aimed at
    mirostat_eta: float | None = None  # >= 0; how fast
    repetition_penalty: float | None = None  # > 0; 1 is off
    repetition_window: int | None = None  # how many last tokens the three penalties look at; 0 is off
    repetition_decay: int | None = None  # over how many tokens behind the window they fade
    presence_penalty: float | None = None  # -2 to 2; once for what occurred
    frequency_penalty: float | None = None  # -2 to 2; for each occurrence
    dry_multiplier: float | None = None  # >= 0; a penalty for going on with a repetition; 0 is off
    dry_base: float | None = None  # >= 1; it grows by this with each token
    dry_allowed_length: int | None = None  # >= 1; a repetition of so many tokens is penalized when it goes on
    dry_window: int | None = None  # how many last tokens are looked at; None: all
    dry_sequence_breakers: Sequence[Sequence[int]] | None = None  # ids over which no repetition reaches
    logit_bias: Mapping[int, float] | None = None  # id -> what is added to its logit
    allowed_ids: Sequence[int] | None = None  # None or empty: all
    banned_ids: Sequence[int] | None = None
    banned_sequences: Sequence[Sequence[int]] | None = None  # the last id is banned behind the others
    seed: int | None = None  # fixes every draw; None: the worker draws one and the result tells it


@dataclass(frozen=True, slots=True, kw_only=True)
class StoppingParams:
    """When generation ends."""

    # At least 1, or 0 with prompt_logprobs; None, or more than fits: as many as fit into the context.
    max_tokens: int | None = None
    min_tokens: int | None = None  # stop ids and end-of-sequence are masked before this many
    stop: str | Sequence[str] = ()  # strings that end the text; at most 64, each 1 to 1,024 bytes
    stop_token_ids: Sequence[int] = ()  # at most 256
    stop_sequences: Sequence[Sequence[int]] = ()  # ids that end the output in this order; at most 64 of 1 to 64 ids
    ignore_eos: bool = False  # the model's own end-of-sequence ids do not stop
    include_stop: bool = False  # what stopped (string or id) is part of the output


class CallOptions(TypedDict, total=False):
    """Keywords of every call."""

    timeout: float | None  # seconds for everything together; None: no limit; default: the client's
    request_id: str  # at most 128 bytes, for the servers' logs; default: a random one
    metadata: Mapping[str, str]  # further gRPC metadata, for example traceparent


class CountOptions(CallOptions, total=False):
    """Keywords of `count_tokens` and `count_tokens_batch`."""

    tokenizer: str  # name; default "": the service's default
    special_tokens: (
        SpecialTokens  # policy for a text that is a str; default "text": control tokens are plain characters
    )
    add_special: bool  # add BOS and EOS as the model expects; default True


class EncodeOptions(CountOptions, total=False):
    """Keywords of `encode` and `encode_batch`."""

    truncate_to: int | None  # at most so many tokens; the end is cut
    offsets: bool  # fill byte_offsets and code_point_offsets
    pieces: bool  # fill pieces


class EncodeChatOptions(CallOptions, total=False):
    """Keywords of `encode_chat`, beside the fields of `Conversation`."""

    tokenizer: str  # name; default "": the service's default
    rendered_text: bool  # fill rendered_text
    content_ranges: bool  # fill content_ranges
    pieces: bool  # fill pieces


class DecodeOptions(CallOptions, total=False):
    """Keywords of `decode`, `decode_bytes` and `decode_batch`. The words are llama.cpp's."""

    tokenizer: str  # name; default "": the service's default
    remove_special: bool  # drop a leading BOS and a trailing EOS
    unparse_special: bool  # control tokens appear as their text; default: they are dropped
    clean_spaces: bool  # remove the space before punctuation; loses information


class GenerateOptions(CallOptions, total=False):
    """Keywords of `generate`, `stream` and `generate_batch`.

    Every field of `SamplingParams` and `StoppingParams` may be given directly; it replaces the one of the object.
    """

    preset: Preset | None  # what the other fields are where they are not given
    strategy: Strategy | None  # which filters are on; given fields win over it, and it wins over the preset
    sampling: SamplingParams | None
    temperature: float | None
    dynamic_temperature_range: float | None
    dynamic_temperature_exponent: float | None
    temperature_last: bool | None
    top_k: int | None
    tail_free_z: float | None
    typical_p: float | None
    top_p: float | None
    min_p: float | None
    top_a: float | None
    xtc_probability: float | None
    xtc_threshold: float | None
    mirostat: int | None
    mirostat_tau: float | None
    mirostat_eta: float | None
    repetition_penalty: float | None
    repetition_window: int | None
    repetition_decay: int | None
    presence_penalty: float | None
    frequency_penalty: float | None
    dry_multiplier: float | None
    dry_base: float | None
    dry_allowed_length: int | None
    dry_window: int | None
    dry_sequence_breakers: Sequence[Sequence[int]] | None
    logit_bias: Mapping[int, float] | None
    allowed_ids: Sequence[int] | None
    banned_ids: Sequence[int] | None
    banned_sequences: Sequence[Sequence[int]] | None
    seed: int | None

    stopping: StoppingParams | None
    max_tokens: int | None
    min_tokens: int | None
    stop: str | Sequence[str]
    stop_token_ids: Sequence[int]
    stop_sequences: Sequence[Sequence[int]]
    ignore_eos: bool
    include_stop: bool

    logprobs: bool  # of each output token, with its rank
    top_logprobs: int | None  # of the most probable tokens at each position; at most 64
    logprob_ids: Sequence[int]  # of these ids at each position; at most 128
    processed_logprobs: bool  # after all stages instead of the model's own
    prompt_logprobs: bool  # of each prompt token; with max_tokens=0 nothing is generated
    echo: bool  # the text begins with the prompt's
    detokenize: bool  # default True; False: ids only, no tokenizer is needed for a prompt of ids
    graphemes: bool  # never split a user-perceived character over two chunks
    stream_interval_tokens: int | None  # at least this many tokens in a message of the worker
    stream_max_delay_ms: int | None  # send a smaller one after this time; at most 60,000

    tokenizer: str  # name; "": the service's default
    model: str  # name; "": the one that is served
    special_tokens: SpecialTokens  # policy for a prompt that is a str; default "text"
    add_special: bool  # BOS as the model expects; default True

    guided: Guide | None  # what the answer must match: JsonSchema, Regex, Choices or Grammar
    n: int  # outputs, 1 to 64; default 1
    best_of: int | None  # make so many and return the best n; n to 64. Nothing comes before all have ended
    length_penalty: float | None  # they are ranked by total logprob / length^length_penalty; default 1
    draft_tokens: int | None  # speculation: guess at most so many tokens at once; 0 to 32; default: the worker's
    prompt_lookup: int | None  # guess what followed so many last tokens before; 1 to 8

    priority: int | None  # -100 to 100; higher runs first
    cache_salt: str  # prompts share cached prefixes only under the same salt
    bypass_cache: bool  # neither read nor fill the prefix cache

    routing_key: str  # equal keys go to the same worker; default: made from the salt and the prompt's beginning
