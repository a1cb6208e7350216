"""The SDK's records: prompts, encodings, chunks of a stream, results."""

from __future__ import annotations

import math
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tandem.client.account import FinishReason, Usage, WorkerTimings
from tandem.client.answers import AnswerEvent, ContentEvent, ReasoningEvent, ToolCall
from tandem.client.calling import ResponseFormat
from tandem.client.params import EncodeOptions, SpecialTokens
from tandem.client.sampling_params import SamplingParams
from tandem.client.tools import Tool


@dataclass(frozen=True, slots=True)
class Segment:
    """A part of a prompt with its own special-token policy. No token spans two segments."""

    text: str | bytes  # bytes must be valid UTF-8
    special_tokens: SpecialTokens = "text"
    parse_ids: Sequence[int] = ()  # only with "parse_listed": the control tokens that are parsed


@dataclass(frozen=True, slots=True)
class Encoding:
    """The token ids of one input. The optional lists are parallel to `ids`, and empty unless they were asked for."""

    ids: list[int]
    fingerprint: str  # of the tokenizer; a worker that knows its own refuses a prompt of another
    truncated: bool = False
    total_tokens: int = 0  # before truncation
    byte_offsets: list[int] = field(default_factory=list)  # start of each token in the UTF-8 of the text
    code_point_offsets: list[int] = field(default_factory=list)
    pieces: list[bytes] = field(default_factory=list)  # the bytes that each token decodes to
    byte_ends: list[int] = field(default_factory=list)  # where each token ends, exclusive
    code_point_ends: list[int] = field(default_factory=list)
    type_ids: list[int] = field(default_factory=list)  # of a pair: what models are told of each token

    def __len__(self) -> int:
        return len(self.ids)


@dataclass(frozen=True, slots=True)
class ChatMessage:
    """One message of a conversation."""

    role: str  # for example "system", "user", "assistant", "tool"
    content: str | None = None  # None: it has none, as an answer that only calls tools
    name: str | None = None
    tool_calls: Sequence[ToolCall] = ()
    tool_call_id: str | None = None
    reasoning_content: str | None = None  # what an earlier answer thought; templates keep or drop it


Message = ChatMessage | Mapping[str, Any]  # a mapping has the keys of OpenAI's chat messages


@dataclass(frozen=True, slots=True)
class Conversation:
    """A prompt that the model's chat template renders from messages. The messages' content never becomes a control
    token."""

    messages: Sequence[Message]
    tools: Sequence[Tool] = ()  # the JSON schema of each, or a function of Python
    chat_template: str = ""  # Jinja; "": the model's own
    template_arguments: Mapping[str, Any] = field(default_factory=dict)  # further variables for the template
    add_generation_prompt: bool = True  # ends with the beginning of an answer
    continue_final_message: bool = False  # ends within the last message instead, whose content the answer continues
    special_tokens: SpecialTokens = "plain"  # or "text": USER_DEFINED tokens come of any text, as in llama.cpp


@dataclass(frozen=True, slots=True)
class ChatEncoding(Encoding):
    """The ids of a conversation. The fields below are empty unless they were asked for."""

    rendered_text: str = ""
    content_ranges: list[tuple[int, int]] = field(default_factory=list)  # [start, end) of ids from messages' contents


Prompt = str | Segment | Sequence[Segment] | Sequence[int] | Encoding | Conversation
TextInput = str | Segment | Sequence[Segment]


@dataclass(frozen=True, slots=True)
class TopLogprobs:
    """The logprobs of several tokens at one position, in parallel lists: the most probable ones by rank, then those of
    `logprob_ids`."""

    ids: list[int]
    logprobs: list[float]
    ranks: list[int]  # 1 is the most probable
    pieces: list[bytes] = field(default_factory=list)  # the bytes that each decodes to; empty unless asked for


class EncodePairOptions(EncodeOptions, total=False):
    """The keywords of `encode`."""

    pair: TextInput  # a second text: what the model expects is put around both


class EncodePairsOptions(EncodeOptions, total=False):
    """The keywords of `encode_batch`."""

    pairs: Sequence[TextInput]  # a second text for each of the texts, as `pair` of `encode`


@dataclass(frozen=True, slots=True)
class PromptLogprobs:
    """The logprobs of a prompt's tokens, in parallel lists. The first token has none: its logprob is None and its rank
    0."""

    logprobs: list[float | None]
    ranks: list[int]
    top_logprobs: list[TopLogprobs] | None  # None unless top_logprobs or logprob_ids were asked for

    @property
    def total(self) -> float:
        """The logprob of the whole prompt after its first token."""
        return math.fsum(value for value in self.logprobs if value is not None)


@dataclass(frozen=True, slots=True)
class Chunk:
    """The new part of a stream. All texts joined are `result.text`, and all ids joined are `result.output_ids`.

    An id comes when all of its text has come: while the tokenizer holds back bytes of an unfinished character or of a
    possible stop string, their ids wait too. A slow reader gets fewer, larger chunks.
    """

    text: str
    ids: list[int]
    logprobs: list[float] | None = None  # parallel to ids; None unless logprobs were asked for
    ranks: list[int] | None = None  # likewise
    top_logprobs: list[TopLogprobs] | None = None  # likewise
    index: int = 0  # which output, where there are several
    pieces: list[bytes] | None = None  # parallel to ids: the bytes that each decodes to; None unless asked for
    # Of all ids at each of ids, float32 arrays by id; None unless top_logprobs is "all".
    vocabulary_logprobs: list[array[float]] | None = None
    # Bytes of text that wait behind it: for the rest of a character, or because they may become a stop string.
    held_bytes: int = 0
    # What of the answer it tells; empty unless it is parsed. Events may come later than their text.
    events: list[AnswerEvent] = field(default_factory=list)

    @property
    def content(self) -> str:
        """The new text for the reader; all new text where the answer is not parsed."""
        return "".join(event.text for event in self.events if isinstance(event, ContentEvent))

    @property
    def reasoning(self) -> str:
        """The new text that the model wrote for itself."""
        return "".join(event.text for event in self.events if isinstance(event, ReasoningEvent))


@dataclass(frozen=True, slots=True)
class Output:
    """One of the outputs of a generation."""

    index: int  # with best_of, 0 is the best
    text: str
    output_ids: list[int]  # without those of a matched stop string or sequence (unless include_stop)
    logprobs: list[float] | None  # parallel to output_ids
    ranks: list[int] | None  # likewise; 1 is the most probable
    top_logprobs: list[TopLogprobs] | None  # likewise
    finish_reason: FinishReason
    matched_stop: str | None = None
    matched_stop_token: int | None = None
    matched_stop_sequence: int | None = None
    content: str = ""  # the text for the reader; all text where the answer was not parsed
    reasoning: str = ""  # what the model wrote for itself
    tool_calls: list[ToolCall] = field(default_factory=list)  # those that are complete; `arguments` are JSON as text
    broken_calls: int = 0  # those that could not be read, and are content
    reasoning_tokens: int = 0  # of its tokens
    response_format: type[ResponseFormat] | None = None  # as it was asked for
    pieces: list[bytes] | None = None  # parallel to output_ids: the bytes that each decodes to; None unless asked for
    # Of all ids at each of output_ids, float32 arrays by id; None unless top_logprobs is "all".
    vocabulary_logprobs: list[array[float]] | None = None

    @property
    def parsed(self) -> Any:
        """The content as a record of `response_format`; None where none was asked for, or the answer calls tools
        instead. Raises ValueError for what is no such record: an answer that max_tokens cut off."""
        if self.response_format is None or (self.tool_calls and not self.content.strip()):
            return None
        return self.response_format.model_validate_json(self.content)

    @property
    def message(self) -> ChatMessage:
        """The assistant's message that goes into the conversation."""
        return ChatMessage(
            "assistant",
            self.content or (None if self.tool_calls else ""),
            tool_calls=self.tool_calls,
            reasoning_content=self.reasoning or None,
        )


@dataclass(frozen=True, slots=True)
class Timings(WorkerTimings):
    """Times in seconds, at least 0; None where unknown. `worker_*` are measured by the (last) worker, the others by the
    client. Encoding and decoding do not overlap, and neither takes longer than the total; the worker's queue, prefill
    and decode add up to its total."""

    total_seconds: float
    encode_seconds: float | None = None  # None: the prompt came as ids
    time_to_first_token: float | None = None  # from the call until output was here, an echo aside; None: there was none
    decode_seconds: float | None = None  # first ids sent to the tokenizer until their text was here


@dataclass(frozen=True, slots=True)
class GenerationResult:
    """A finished generation. Fields of one output are those of `outputs[0]`, the best one with best_of."""

    text: str
    output_ids: list[int]  # without those of a matched stop string (unless include_stop)
    logprobs: list[float] | None  # parallel to output_ids
    finish_reason: FinishReason
    matched_stop: str | None
    matched_stop_token: int | None
    prompt_ids: list[int]
    usage: Usage
    timings: Timings
    seed: int | None  # gives the same answer again, with the same parameters
    sampling: SamplingParams  # as the worker used them
    max_tokens: int | None  # as the worker used it
    model: str
    request_id: str
    worker: str  # address of the one that finished
    failovers: int = 0  # how often another worker took over
    matched_stop_sequence: int | None = None  # its place in stop_sequences
    outputs: list[Output] = field(default_factory=list)  # all n
    ranks: list[int] | None = None  # parallel to output_ids; 1 is the most probable
    top_logprobs: list[TopLogprobs] | None = None  # parallel to output_ids
    prompt_logprobs: PromptLogprobs | None = None
    content: str = ""  # the text for the reader; all text where the answer was not parsed
    reasoning: str = ""  # what the model wrote for itself
    tool_calls: list[ToolCall] = field(default_factory=list)  # those that are complete; `arguments` are JSON as text
    broken_calls: int = 0  # those that could not be read, and are content
    reasoning_tokens: int = 0  # of its tokens
    pieces: list[bytes] | None = None  # parallel to output_ids: the bytes that each decodes to; None unless asked for
    # Of all ids at each of output_ids, float32 arrays by id; None unless top_logprobs is "all".
    vocabulary_logprobs: list[array[float]] | None = None

    @property
    def parsed(self) -> Any:
        """The content as a record of `response_format`; None where none was asked for, or the answer calls tools
        instead. Raises ValueError for what is no such record: an answer that max_tokens cut off."""
        return self.outputs[0].parsed

    @property
    def message(self) -> ChatMessage:
        """The assistant's message that goes into the conversation."""
        return self.outputs[0].message

    @property
    def total_logprob(self) -> float | None:
        """The logprob of the whole output; None unless logprobs were asked for."""
        return None if self.logprobs is None else math.fsum(self.logprobs)

    @property
    def time_to_first_token(self) -> float | None:
        """The seconds from the call to the first output; None when there was none."""
        return self.timings.time_to_first_token

    @property
    def tokens_per_second(self) -> float | None:
        """The completion tokens per second after the first one; None for fewer than two."""
        first = self.timings.time_to_first_token
        if first is None or self.usage.completion_tokens < 2 or self.timings.total_seconds <= first:
            return None
        return (self.usage.completion_tokens - 1) / (self.timings.total_seconds - first)

    @property
    def milliseconds_per_token(self) -> float | None:
        """The milliseconds from one completion token to the next, after the first one; None for fewer than two."""
        return None if self.tokens_per_second is None else 1000 / self.tokens_per_second


@dataclass(frozen=True, slots=True)
class ToolRun:
    """What came of a conversation in which functions were called."""

    result: GenerationResult  # the last answer
    messages: list[Message]  # all of them: those that were given, answers, and what the functions gave


@dataclass(frozen=True, slots=True)
class SpecialToken:
    """A token that is matched in text as a whole."""

    id: int
    text: str
    control: bool  # False: user-defined, ordinary text that always stays one token
    lstrip: bool = False  # white space to its left becomes part of it
    rstrip: bool = False  # white space to its right becomes part of it
    single_word: bool = False  # found only where neither neighbour is a letter, a digit or the like
    normalized: bool = False  # looked for after all that are not, in what the normalizer leaves


@dataclass(frozen=True, slots=True)
class TokenizerInfo:
    """The description of a tokenizer."""

    name: str
    vocabulary_type: str  # "spm", "bpe", "wpm", "ugm" or "rwkv"
    vocabulary_size: int
    fingerprint: str
    bos_id: int | None
    eos_id: int | None
    end_of_generation_ids: list[int]
    adds_bos: bool
    adds_eos: bool
    source: str
    max_input_bytes: int
    special_tokens: list[SpecialToken]  # empty in a listing
    answer_format: str = ""  # in which answers tell reasoning and calls of tools, as the chat template says; "": none
    # The ids of the marks around reasoning; empty where there are none that are tokens.
    reasoning_begin_ids: list[int] = field(default_factory=list)
    reasoning_end_ids: list[int] = field(default_factory=list)
    front_ids: list[int] = field(default_factory=list)  # what add_special puts in front of a text
    back_ids: list[int] = field(default_factory=list)  # and behind it


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """All ids of a tokenizer; the lists are in the order of the ids."""

    tokenizer: TokenizerInfo
    pieces: list[bytes]  # what an id decodes to; of a control token its text
    types: list[str]  # "normal", "unknown", "control", "user_defined", "unused" or "byte"
    scores: list[float]  # empty where a vocabulary has none


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """The description of the model that a worker serves."""

    name: str
    architecture: str
    checkpoint_format: str
    vocabulary_size: int
    context_length: int
    eos_ids: list[int]
    parameters: int
    dtype: str
    layers: int
    hidden_size: int
    tokenizer_fingerprint: str  # "": not known to the worker
    quantization: str = ""  # of most weights: "int8", "int4" or "fp8"; "": none
    adapters: Sequence[str] = ()  # names that `model=` may be, too: LoRA adapters beside the model

    def serves(self, name: str) -> bool:
        """Returns True when requests may ask for a model of this name."""
        return name in ("", self.name, *self.adapters)

    def answers_like(self, other: ModelInfo) -> bool:
        """Returns True when a generation may move from one to the other: all fields are equal, except that one worker
        may not know its tokenizer, and adapters."""
        fingerprints = {self.tokenizer_fingerprint, other.tokenizer_fingerprint} - {""}
        return len(fingerprints) < 2 and (
            (self.name, self.architecture, self.vocabulary_size, self.parameters, self.layers)
            == (other.name, other.architecture, other.vocabulary_size, other.parameters, other.layers)
            and (self.dtype, self.quantization) == (other.dtype, other.quantization)
        )
