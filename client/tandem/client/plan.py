"""The plan of a generation: checked options, merged into one set of parameters, ready for requests."""

from __future__ import annotations

import dataclasses
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

from tandem.client.calling import Calling, ResponseFormat
from tandem.client.conversations import chat_request, tool_texts, tools_violations
from tandem.client.errors import FieldViolation, invalid_argument
from tandem.client.guided import Grammar, Guide, as_guide, guide_message, guide_violations, schema_text
from tandem.client.params import GenerateOptions, SpecialTokens, StoppingParams
from tandem.client.prompts import prompt_violations
from tandem.client.reasoning import Reasoning, reasoning_message, reasoning_violations
from tandem.client.sampling import LIMITS as SAMPLING_LIMITS
from tandem.client.sampling import to_message, violations_between, with_preset
from tandem.client.sampling_params import SamplingParams
from tandem.client.tools import Tool
from tandem.client.types import Conversation, Prompt
from tandem.client.validation import RULES, check, check_metadata, check_timeout
from tandem.inference.v1 import inference_pb2 as pb
from tandem.limits.fields import limits_of
from tandem.tokenizer.v1 import tokenizer_pb2

_PARSING_LIMITS = limits_of(tokenizer_pb2.AnswerParsing.DESCRIPTOR)
_MOST_TOOL_CHARACTERS = 64 << 10  # a quarter of the bytes that the service reads
_CALLING = {field.name for field in dataclasses.fields(Calling)}
_FREE = Calling()
STOPPING_FIELDS = tuple(field.name for field in dataclasses.fields(StoppingParams))

Params = TypeVar("Params", SamplingParams, StoppingParams)


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationPlan:
    """The options of `generate` and `stream`, all of them valid."""

    prompt: Prompt
    sampling: SamplingParams
    stopping: StoppingParams
    dry_breakers: str | Sequence[str] = ()
    timeout: float | None
    request_id: str
    logprobs: bool = False
    top_logprobs: int | Literal["all"] | None = None
    logprob_ids: Sequence[int] = ()
    processed_logprobs: bool = False
    prompt_logprobs: bool = False
    echo: bool = False
    detokenize: bool = True
    unparse_special: bool = False
    pieces: bool = False
    graphemes: bool = False
    stream_interval_tokens: int | None = None
    stream_max_delay_ms: int | None = None
    tokenizer: str = ""
    model: str = ""
    special_tokens: SpecialTokens = "text"
    add_special: bool = True
    tools: Sequence[Tool] = ()
    answer_format: str | None = None
    in_reasoning: bool | None = None
    guided: Guide | None = None
    reasoning: Reasoning | None = None
    calling: Calling = _FREE
    response_format: type[ResponseFormat] | None = None
    n: int = 1
    best_of: int | None = None
    length_penalty: float | None = None
    draft_tokens: int | None = None
    prompt_lookup: int | None = None
    priority: int | None = None
    cache_salt: str = ""
    bypass_cache: bool = False
    routing_key: str = ""
    metadata: Mapping[str, str] = dataclasses.field(default_factory=dict)

    @property
    def stop_strings(self) -> list[str]:
        stop = self.stopping.stop
        return [stop] if isinstance(stop, str) else list(stop)

    @property
    def breaker_texts(self) -> list[str]:
        """The sequence breakers of DRY that are given as text."""
        return [self.dry_breakers] if isinstance(self.dry_breakers, str) else list(self.dry_breakers)

    @property
    def parses(self) -> bool:
        """True when the answer is told as events."""
        if self.answer_format is None:
            return self.detokenize and isinstance(self.prompt, Conversation)
        return self.detokenize and self.answer_format != "none"

    @property
    def all_tools(self) -> list[Tool]:
        """The tools that the model may call."""
        if not self.calling.shows_tools:
            return []
        return [*(self.prompt.tools if isinstance(self.prompt, Conversation) else ()), *self.tools]

    def chat_request(self, conversation: Conversation) -> tokenizer_pb2.EncodeChatRequest:
        """Returns the request for the ids of a conversation, and for what guides the answer to it."""
        request = chat_request(dataclasses.replace(conversation, tools=self.all_tools), self.tokenizer)
        if not self.parses:
            return request
        behind = self.reasoning is not None or self.calling.max_reasoning_tokens is not None
        calls, schema = None, schema_text(self.guided)
        if self.guided is None or schema:  # what else guides an answer leaves no place for calls
            calls = self.calling.choice(self.all_tools, behind_reasoning=behind, content_schema=schema)
        guided = calls is not None or self.calling.max_reasoning_tokens is not None or self.guided is not None
        if guided or conversation.continue_final_message:
            request.answer.CopyFrom(tokenizer_pb2.AnswerGuiding(format=self.answer_format or "", calls=calls))
        return request

    def guided_by(self, guide: tokenizer_pb2.AnswerGuide) -> GenerationPlan:
        """Returns the plan with what the tokenizer service tells of the answer. Raises InvalidArgumentError."""
        plan, budget = self, self.calling.max_reasoning_tokens
        if isinstance(self.prompt, Conversation) and self.prompt.continue_final_message and self.in_reasoning is None:
            plan = dataclasses.replace(plan, in_reasoning=guide.in_reasoning)
        if guide.grammar:
            plan = dataclasses.replace(plan, guided=Grammar(guide.grammar), answer_format=guide.format)
        guides = self.guided is not None or budget is not None  # what begins or ends with the reasoning
        if self.reasoning is not None or not guides or (budget is None and (guide.grammar or not guide.in_reasoning)):
            return plan
        if budget is not None and not guide.reasoning_end_ids:
            problem = "cannot be held: the answers of this model have no reasoning whose marks are tokens"
            raise invalid_argument([FieldViolation("max_reasoning_tokens", problem)], request_id=self.request_id)
        begin_ids = () if guide.in_reasoning else tuple(guide.reasoning_begin_ids)
        if not guide.reasoning_end_ids:
            return plan
        reasoning = Reasoning(end_ids=tuple(guide.reasoning_end_ids), begin_ids=begin_ids, max_tokens=budget)
        return dataclasses.replace(plan, reasoning=reasoning)

    def _parsing(self) -> tokenizer_pb2.AnswerParsing | None:
        if not self.parses:
            return None
        texts = tool_texts(self.all_tools)
        # They only help to read calls, so that those of too many tools are read without.
        too_many = len(texts) > _PARSING_LIMITS["tools"].bound or sum(map(len, texts)) > _MOST_TOOL_CHARACTERS
        return tokenizer_pb2.AnswerParsing(
            format=self.answer_format or "",
            in_reasoning=self.in_reasoning,
            tools=[] if too_many else texts,
            without_calls=not texts,
        )

    def with_breakers(self, sequences: Sequence[Sequence[int]]) -> GenerationPlan:
        """Returns the plan with these sequence breakers too. Raises InvalidArgumentError when there are too many."""
        together = [*(self.sampling.dry_sequence_breakers or ()), *sequences]
        most = SAMPLING_LIMITS["dry_sequence_breakers"].most
        assert most is not None
        if len(together) > most:
            problem = f"stand for {len(together)} sequences of ids in this vocabulary; at most {most} are allowed"
            raise invalid_argument([FieldViolation("dry_breakers", problem)], request_id=self.request_id)
        return dataclasses.replace(self, sampling=dataclasses.replace(self.sampling, dry_sequence_breakers=together))

    @property
    def with_logprobs(self) -> bool:
        """True when logprobs of the output were asked for."""
        return self.logprobs or self.with_vocabulary_logprobs or self.with_top_logprobs

    @property
    def with_vocabulary_logprobs(self) -> bool:
        """True when those of the whole vocabulary were asked for."""
        return self.top_logprobs == "all"

    @property
    def with_top_logprobs(self) -> bool:
        """True when logprobs of other tokens were asked for."""
        return self.top_logprobs not in (None, 0, "all") or len(self.logprob_ids) > 0

    @property
    def several(self) -> bool:
        """True when the worker generates more than one output."""
        return max(self.n, self.best_of or 1) > 1

    def decode_open(self, prompt_tail: Sequence[int]) -> tokenizer_pb2.DecodeStreamOpen:
        """Returns the opening message of the answer's decode stream; `prompt_tail` are the last ids of the prompt."""
        return tokenizer_pb2.DecodeStreamOpen(
            tokenizer=self.tokenizer,
            options=tokenizer_pb2.DecodeOptions(unparse_special=True) if self.unparse_special else None,
            context_ids=prompt_tail,
            stop_strings=self.stop_strings,
            include_stop=self.stopping.include_stop,
            graphemes=self.graphemes,
            min_ids=self.stopping.min_tokens or 0,
            answer=self._parsing(),
        )

    def request(self, prompt_ids: Sequence[int], fingerprint: str) -> pb.GenerateRequest:
        """Returns the request for the first worker."""
        stopping = self.stopping
        speculates = self.draft_tokens is not None or self.prompt_lookup is not None
        speculation = pb.SpeculationParams(max_draft_tokens=self.draft_tokens, prompt_lookup_ngram=self.prompt_lookup)
        return pb.GenerateRequest(
            request_id=self.request_id,
            model=self.model,
            prompt_ids=prompt_ids,
            sampling=to_message(self.sampling),
            stopping=pb.StoppingParams(
                max_tokens=stopping.max_tokens,
                min_tokens=stopping.min_tokens,
                stop_token_ids=stopping.stop_token_ids,
                ignore_eos=stopping.ignore_eos,
                include_stop=stopping.include_stop,
                stop_sequences=[pb.TokenSequence(ids=ids) for ids in stopping.stop_sequences],
            ),
            guided=guide_message(self.guided),
            reasoning=reasoning_message(self.reasoning),
            speculation=speculation if speculates else None,
            n=self.n if self.n > 1 else None,
            best_of=self.best_of,
            length_penalty=self.length_penalty,
            output=pb.OutputOptions(
                logprobs=self.logprobs,
                top_logprobs=None if self.top_logprobs == "all" else self.top_logprobs,
                vocabulary_logprobs=self.with_vocabulary_logprobs,
                logprob_ids=self.logprob_ids,
                logprobs_mode=pb.LOGPROBS_MODE_PROCESSED if self.processed_logprobs else pb.LOGPROBS_MODE_UNSPECIFIED,
                prompt_logprobs=self.prompt_logprobs,
                stream_interval_tokens=self.stream_interval_tokens,
                stream_max_delay_ms=self.stream_max_delay_ms,
            ),
            cache=pb.CacheParams(salt=self.cache_salt, bypass=self.bypass_cache),
            priority=self.priority,
            expected_tokenizer_fingerprint=fingerprint,
        )


def make_plan(
    prompt: Prompt, options: GenerateOptions, default_timeout: float | None, field: str = "prompt"
) -> GenerationPlan:
    """Checks everything together: InvalidArgumentError names all violations, TypeError unknown options."""
    given: dict[str, Any] = dict(options)
    sampling = _merged(SamplingParams, given.pop("sampling", None), given, tuple(SAMPLING_LIMITS))
    stopping = _merged(StoppingParams, given.pop("stopping", None), given, STOPPING_FIELDS)
    preset, strategy = given.pop("preset", None), given.pop("strategy", None)
    unknown = sorted(
        given.keys() - {field.name for field in dataclasses.fields(GenerationPlan)} - _CALLING
        | given.keys() & {"prompt", "calling"}
    )
    if unknown:
        raise TypeError(f"unknown option{'s' if len(unknown) > 1 else ''}: {', '.join(unknown)}")
    given.setdefault("timeout", default_timeout)
    given["request_id"] = given.get("request_id") or uuid.uuid4().hex
    given = {name: value for name, value in given.items() if value is not None or name == "timeout"}
    if "guided" in given:
        given["guided"] = as_guide(given["guided"])
    calling = Calling(**{name: given.pop(name) for name in _CALLING if name in given})
    metadata = given.get("metadata", {})

    values: dict[str, object] = {"preset": preset, "strategy": strategy}
    if not check(values):
        sampling = with_preset(sampling, preset, strategy)
    values |= {f"sampling.{name}": getattr(sampling, name) for name in SAMPLING_LIMITS}
    scores_only = type(stopping.max_tokens) is int and not stopping.max_tokens and given.get("prompt_logprobs") is True
    values |= {f"stopping.{name}": getattr(stopping, name) for name in STOPPING_FIELDS}
    if scores_only:
        values["stopping.max_tokens"] = None  # then 0 is allowed
    if isinstance(stopping.stop, str):
        values["stopping.stop"] = [stopping.stop]
    values |= {name: value for name, value in given.items() if name in RULES}
    if given.get("top_logprobs") == "all":
        del values["top_logprobs"]
    if isinstance(given.get("dry_breakers"), str):
        values["dry_breakers"] = [given["dry_breakers"]]
    violations: list[FieldViolation] = prompt_violations(prompt, given.get("special_tokens", "text"), field)
    violations += (
        check(values)
        + violations_between(sampling, stopping)
        + check_timeout(given["timeout"])
        + check_metadata(metadata)
    )
    violations += tools_violations(given.get("tools", ()))
    if not violations:
        tools = [*(prompt.tools if isinstance(prompt, Conversation) else ()), *given.get("tools", ())]
        violations += calling.violations(given, tools, is_chat=isinstance(prompt, Conversation))
    violations += _take_format(given)
    violations += guide_violations(given.get("guided"))
    violations += reasoning_violations(given.get("reasoning"))
    n, best_of = given.get("n", 1), given.get("best_of")
    if isinstance(n, int) and isinstance(best_of, int) and 1 <= best_of < n:
        violations.append(FieldViolation("best_of", f"must be at least n {n}, not {best_of}"))
    if not given.get("detokenize", True) and given.get("echo"):
        violations.append(FieldViolation("echo", "needs text; the ids of the prompt are in the result"))
    if not given.get("detokenize", True) and values["stopping.stop"]:
        violations.append(FieldViolation("stopping.stop", "needs text; with detokenize=False use stop_token_ids"))
    if violations:
        raise invalid_argument(violations, request_id=str(given["request_id"]))
    return GenerationPlan(prompt=prompt, sampling=sampling, stopping=stopping, calling=calling, **given)


def _take_format(given: dict[str, Any]) -> list[FieldViolation]:
    """Guides the answer by its format; returns what is wrong with that."""
    record = given.get("response_format")
    if record is None:
        return []
    if not isinstance(record, type) or not hasattr(record, "model_validate_json"):
        return [FieldViolation("response_format", "must be a pydantic model")]
    if "guided" in given:
        return [FieldViolation("guided", "cannot be beside response_format")]
    given["guided"] = as_guide(record)
    return []


def _merged(cls: type[Params], base: Params | None, given: dict[str, Any], names: Sequence[str]) -> Params:
    taken = {name: given.pop(name) for name in names if name in given}
    changes = {name: value for name, value in taken.items() if value is not None}
    base = cls() if base is None else base
    if not isinstance(base, cls):
        raise TypeError(f"expected {cls.__name__}, not {type(base).__name__}")
    return dataclasses.replace(base, **changes) if changes else base
