"""The options of a generation: sampling, stopping, output, and the call itself.

A value that is None is not sent: the model's own default applies. Nothing is checked when an object is built; a call
checks everything together (`validation.py`) and names all violations at once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypedDict

from tandem.client.calling import ResponseFormat, ToolChoice
from tandem.client.guided import Guide, HasJsonSchema
from tandem.client.reasoning import Reasoning
from tandem.client.sampling_params import SamplingOptions, SamplingParams
from tandem.client.tools import Tool

SpecialTokens = Literal["text", "plain", "parse", "parse_listed", "reject"]
Preset = Literal["creative", "balanced", "focused", "deterministic"]
Strategy = Literal["greedy", "top_k", "top_p", "temperature", "combined"]


@dataclass(frozen=True, slots=True, kw_only=True)
class StoppingParams:
    """The conditions that end a generation."""

    # At least 1, or 0 with prompt_logprobs; None, or more than fits: as many as fit into the context.
    max_tokens: int | None = None
    min_tokens: int | None = None  # no stop id, EOS, sequence or string ends the output before this many
    stop: str | Sequence[str] = ()  # strings that end the text; at most 64, each 1 to 1,024 bytes
    stop_token_ids: Sequence[int] = ()  # at most 256
    stop_sequences: Sequence[Sequence[int]] = ()  # ids that end the output in this order; at most 64 of 1 to 64 ids
    ignore_eos: bool = False  # the model's own end-of-sequence ids do not stop
    include_stop: bool = False  # what stopped (string or id) is part of the output


class CallOptions(TypedDict, total=False):
    """The keywords of every call."""

    timeout: float | None  # seconds for everything together; None: no limit; default: the client's
    request_id: str  # at most 128 printable ASCII characters, for the servers' logs; default: a random one
    metadata: Mapping[str, str]  # further gRPC metadata, for example traceparent


class CountOptions(CallOptions, total=False):
    """The keywords of `count_tokens` and `count_tokens_batch`."""

    tokenizer: str  # name; default "": the service's default
    special_tokens: (
        SpecialTokens  # policy for a text that is a str; default "text": control tokens are plain characters
    )
    add_special: bool  # add BOS and EOS as the model expects; default True


class EncodeOptions(CountOptions, total=False):
    """The keywords of `encode` and `encode_batch`, beside their second texts."""

    truncate_to: int | None  # at most so many tokens; the end is cut
    offsets: bool  # fill byte_offsets, byte_ends, code_point_offsets and code_point_ends
    pieces: bool  # fill pieces


class EncodeChatOptions(CallOptions, total=False):
    """The keywords of `encode_chat`, beside the fields of `Conversation`."""

    tokenizer: str  # name; default "": the service's default
    rendered_text: bool  # fill rendered_text
    content_ranges: bool  # fill content_ranges
    pieces: bool  # fill pieces


class DecodeOptions(CallOptions, total=False):
    """The keywords of `decode`, `decode_bytes` and `decode_batch`, named as in llama.cpp."""

    tokenizer: str  # name; default "": the service's default
    remove_special: bool  # drop a leading BOS and a trailing EOS
    unparse_special: bool  # control tokens appear as their text; default: they are dropped
    clean_spaces: bool  # remove the space before punctuation; loses information


class GenerateOptions(CallOptions, SamplingOptions, total=False):
    """The keywords of `generate`, `stream`, `chat`, `stream_chat` and `generate_batch`.

    Every field of `SamplingParams` and `StoppingParams` can be given directly; it replaces the field of the object.
    """

    preset: Preset | None  # what the other fields are where they are not given
    strategy: Strategy | None  # which filters are on; given fields win over it, and it wins over the preset
    sampling: SamplingParams | None
    dry_breakers: str | Sequence[str]  # texts over which no repetition reaches, whatever tokens spell them; at most 64

    stopping: StoppingParams | None
    max_tokens: int | None
    min_tokens: int | None
    stop: str | Sequence[str]
    stop_token_ids: Sequence[int]
    stop_sequences: Sequence[Sequence[int]]
    ignore_eos: bool
    include_stop: bool

    logprobs: bool  # of each output token, with its rank
    # Of the most probable tokens at each position, at most 64; "all": of the whole vocabulary, in vocabulary_logprobs.
    top_logprobs: int | Literal["all"] | None
    logprob_ids: Sequence[int]  # of these ids at each position; at most 128
    processed_logprobs: bool  # after all stages instead of the model's own
    prompt_logprobs: bool  # of each prompt token; with max_tokens=0 nothing is generated
    echo: bool  # the text begins with the prompt's
    detokenize: bool  # default True; False: ids only, no tokenizer is needed for a prompt of ids
    unparse_special: bool  # control tokens appear in the text; default: they are dropped
    pieces: bool  # the bytes of each token beside its id, those of top_logprobs too
    graphemes: bool  # never split a user-perceived character over two chunks
    stream_interval_tokens: int | None  # at least this many tokens in a message of the worker
    stream_max_delay_ms: int | None  # send a smaller one after this time; at most 60,000

    tokenizer: str  # name; "": the service's default
    model: str  # name; "": the one that is served
    special_tokens: SpecialTokens  # policy for a prompt that is a str; default "text"
    add_special: bool  # BOS as the model expects; default True

    tools: Sequence[Tool]  # that the model may call: schemas or functions; beside those of a Conversation
    answer_format: str  # how the answer is parsed; "": as the chat template tells, the default in chat; "none": not
    tool_choice: ToolChoice  # "auto", "none", "required", or names of tools of which some must be called
    parallel_tool_calls: bool  # default True; False: one call at most
    in_reasoning: bool  # the prompt ends within reasoning; default: as its last tokens tell

    guided: Guide | type[HasJsonSchema] | None  # what the answer must match; a pydantic model stands for its schema
    reasoning: Reasoning | None  # where what the model thinks ends, its budget, and that guided begins behind it
    max_reasoning_tokens: int | None  # of a conversation: after so many the model must answer
    response_format: type[ResponseFormat] | None  # a pydantic model: guides the answer, which is then in `parsed`
    n: int  # outputs, 1 to 64; default 1
    best_of: int | None  # make so many and return the best n; n to 64. Nothing comes before all have ended
    length_penalty: float | None  # they are ranked by total logprob / length^length_penalty; default 1
    draft_tokens: int | None  # speculation: guess at most so many tokens at once; 0 to 32; default: the worker's
    prompt_lookup: int | None  # guess what followed so many last tokens before; 1 to 8

    priority: int | None  # -100 to 100; higher runs first
    cache_salt: str  # prompts share cached prefixes only under the same salt
    bypass_cache: bool  # neither read nor fill the prefix cache

    routing_key: str  # equal keys go to the same worker; default: made from the salt and the prompt's beginning
