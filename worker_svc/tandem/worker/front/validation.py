"""Converts a GenerateRequest of the wire to a Submit for the engine, or names every violation.

Pure: no engine, no clock, no randomness but the seed that is handed in. Three refusals, in this order:

    UNIMPLEMENTED        a field is set that this version does not know; all of them are named
    INVALID_ARGUMENT     values out of range; all of them are named, with what is allowed
    FAILED_PRECONDITION  the prompt comes from another tokenizer
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from google.protobuf.message import Message
from google.protobuf.unknown_fields import UnknownFieldSet

from tandem.common.contract import limit_violations
from tandem.common.errors import FieldViolation, failed_precondition, invalid_argument, unimplemented
from tandem.inference.v1 import inference_pb2 as pb
from tandem.limits.fields import limits_of
from tandem.worker.engine.process.messages import EngineInfo, Submit
from tandem.worker.engine.request import LogprobOptions
from tandem.worker.front.generation_rules import (
    draft_tokens,
    guide_of,
    guide_violations,
    lookup_ngram,
    reasoning_of,
    reasoning_violations,
    returns_best,
    sample_violations,
    samples_of,
)
from tandem.worker.front.id_rules import id_violations
from tandem.worker.front.sampling_rules import sampling_violations, to_sampling

LIMITS = limits_of(pb.GenerateRequest.DESCRIPTOR)
MOST_WHOLE = 4  # requests at a time that are told the logprobs of the whole vocabulary
_WHOLE_BYTES = 64 << 20  # of those, for each request
_MESSAGE_BYTES = 1 << 20
_OTHER_BYTES = 16  # of another token's id, logprob and rank


@dataclass(frozen=True, slots=True)
class Delivery:
    """How the answer is cut into messages."""

    interval_tokens: int
    max_delay_seconds: float | None
    others: bool = False  # tokens besides the sampled one are reported at each position
    most_tokens: int = sys.maxsize  # of a message
    scored: bool = True  # logprobs are told, or outputs are ranked by them

    @property
    def is_plain(self) -> bool:
        """Tells whether each token may be sent as soon as it comes, with nothing that makes its message large."""
        return (
            self.interval_tokens == 1
            and self.max_delay_seconds is None
            and not self.others
            and self.most_tokens == sys.maxsize
        )


def validate(
    request: pb.GenerateRequest,
    info: EngineInfo,
    *,
    number: int,
    seed: int,
    fingerprint: str,
    caller: str = "",
    cache_per_caller: bool = False,
) -> tuple[Submit, Delivery]:
    """Returns the engine's form of a request of `caller`; raises ServiceError. `seed` is used where the request has
    none, `fingerprint` is the served tokenizer's, empty if unknown. With `cache_per_caller`, callers share no cached
    page."""
    _refuse_unknown(request)
    violations = list(_violations(request, info))
    if violations:
        raise invalid_argument(violations)
    _check_fingerprint(request.expected_tokenizer_fingerprint, fingerprint)

    stopping, output = request.stopping, request.output
    room = info.context_length - len(request.prompt_ids)
    max_tokens = min(room, stopping.max_tokens) if stopping.HasField("max_tokens") else room
    submit = Submit(
        number=number,
        prompt=_ids(request.prompt_ids),
        resumed=_ids(request.resumed_output_ids),
        max_tokens=max_tokens,
        min_tokens=stopping.min_tokens,
        eos_ids=[] if stopping.ignore_eos else info.eos_ids,
        stop_ids=sorted(set(stopping.stop_token_ids)),
        include_stop=stopping.include_stop,
        sampling=to_sampling(request.sampling, info.sampling_defaults, info.context_length, seed),
        priority=request.priority,
        salt=_salt(request, info, caller if cache_per_caller else None),
        bypass=request.cache.bypass,
        logprobs=_logprobs(request),
        stop_sequences=[list(sequence.ids) for sequence in stopping.stop_sequences],
        samples=samples_of(request),
        draft_tokens=draft_tokens(request.speculation, info),
        lookup_ngram=lookup_ngram(request.speculation, info),
        guide=guide_of(request.guided),
        caller=caller,
        reasoning=reasoning_of(request),
        adapter=info.adapters.index(request.model) if request.model in info.adapters else -1,
    )
    delay = output.stream_max_delay_ms / 1000 if output.HasField("stream_max_delay_ms") else None
    logprobs = submit.logprobs
    most = sys.maxsize
    if logprobs.whole or logprobs.width:
        told = 4 * info.vocabulary_size * logprobs.whole + _OTHER_BYTES * logprobs.width
        most = max(1, _MESSAGE_BYTES // told)
    interval = min(max(1, output.stream_interval_tokens), most)
    return submit, Delivery(interval, delay, others=logprobs.width > 0, most_tokens=most, scored=logprobs.sampled)


def _salt(request: pb.GenerateRequest, info: EngineInfo, caller: str | None) -> str:
    """Returns under which salt pages are shared. What an adapter computes is of no use to the model alone or to another
    one. Lengths keep all that is in front of the request's own salt apart from it."""
    salt = request.cache.salt if caller is None else f"{len(caller)}:{caller}{request.cache.salt}"
    if request.model in info.adapters:
        return f"{len(request.model)}:{request.model}{salt}"
    return f"0:{salt}" if salt and info.adapters else salt


def _logprobs(request: pb.GenerateRequest) -> LogprobOptions:
    output = request.output
    return LogprobOptions(
        sampled=wants_logprobs(output) or returns_best(request),  # ranking needs them
        top=output.top_logprobs,
        ids=tuple(output.logprob_ids),
        processed=output.logprobs_mode == pb.LOGPROBS_MODE_PROCESSED,
        prompt=output.prompt_logprobs,
        whole=output.vocabulary_logprobs,
    )


def wants_logprobs(output: pb.OutputOptions) -> bool:
    """Tells whether the sampled tokens' logprobs are sent."""
    return output.logprobs or output.vocabulary_logprobs or output.top_logprobs > 0 or bool(output.logprob_ids)


def _refuse_unknown(request: pb.GenerateRequest) -> None:
    unknown = list(_unknown_fields(request, ""))
    if unknown:
        raise unimplemented(unknown)


def _unknown_fields(message: Message, prefix: str) -> Iterator[str]:
    """Yields the fields of a later version of the contract, by their numbers."""
    unknown = UnknownFieldSet(message)
    yield from (f"{prefix}{unknown[place].field_number}" for place in range(len(unknown)))
    for descriptor, value in message.ListFields():
        if descriptor.message_type is not None and not descriptor.is_repeated:
            yield from _unknown_fields(value, f"{prefix}{descriptor.name}.")


def _violations(request: pb.GenerateRequest, info: EngineInfo) -> Iterator[FieldViolation]:
    yield from limit_violations(request, LIMITS)
    if not (request.request_id.isascii() and request.request_id.isprintable()):
        yield FieldViolation("request_id", "must be printable ASCII: it stands in logs")
    yield from id_violations(request, LIMITS, info.vocabulary_size)
    yield from _prompt_violations(request, info)
    yield from sampling_violations(request, info.eos_ids)
    yield from _stopping_violations(request, info)
    yield from sample_violations(request)
    yield from guide_violations(request)
    yield from reasoning_violations(request)
    yield from _whole_violations(request, info)
    mode = request.output.logprobs_mode
    if mode not in pb.LogprobsMode.values():
        yield FieldViolation("output.logprobs_mode", f"{mode} is not a known mode")


def scores_only(request: pb.GenerateRequest) -> bool:
    """Tells whether the prompt is scored and nothing is generated."""
    stopping = request.stopping
    return request.output.prompt_logprobs and stopping.HasField("max_tokens") and not stopping.max_tokens


def _prompt_violations(request: pb.GenerateRequest, info: EngineInfo) -> Iterator[FieldViolation]:
    prompt, resumed = len(request.prompt_ids), len(request.resumed_output_ids)
    if scores_only(request):
        if prompt > info.context_length:
            yield FieldViolation(
                "prompt_ids", f"has {prompt} ids; the context takes at most {info.context_length} tokens"
            )
    elif prompt >= info.context_length:
        yield FieldViolation(
            "prompt_ids",
            f"has {prompt} ids; with room for one new token the context of {info.context_length} tokens "
            f"takes at most {info.context_length - 1}",
        )
    elif prompt + resumed > info.context_length:
        yield FieldViolation(
            "resumed_output_ids",
            f"has {resumed} ids; beside a prompt of {prompt} the context of {info.context_length} tokens "
            f"takes at most {info.context_length - prompt}",
        )


def _stopping_violations(request: pb.GenerateRequest, info: EngineInfo) -> Iterator[FieldViolation]:
    stopping = request.stopping
    if stopping.HasField("max_tokens"):
        if not stopping.max_tokens and request.output.prompt_logprobs:
            pass  # the prompt is scored and nothing is generated
        elif not 1 <= stopping.max_tokens <= info.context_length:
            yield FieldViolation(
                "stopping.max_tokens",
                f"must be 1 to the context length {info.context_length}, not {stopping.max_tokens}",
            )
        if stopping.min_tokens > stopping.max_tokens:
            yield FieldViolation(
                "stopping.min_tokens", f"must be at most max_tokens {stopping.max_tokens}, not {stopping.min_tokens}"
            )
        if len(request.resumed_output_ids) > stopping.max_tokens:
            yield FieldViolation(
                "resumed_output_ids",
                f"has {len(request.resumed_output_ids)} ids, more than max_tokens {stopping.max_tokens}",
            )
    elif stopping.min_tokens > info.context_length:
        yield FieldViolation(
            "stopping.min_tokens",
            f"must be at most the context length {info.context_length}, not {stopping.min_tokens}",
        )


def _whole_violations(request: pb.GenerateRequest, info: EngineInfo) -> Iterator[FieldViolation]:
    """A reader who is slow must not make the front keep more than so many bytes."""
    if not request.output.vocabulary_logprobs:
        return
    fitting = _WHOLE_BYTES // (4 * info.vocabulary_size * samples_of(request))
    room = info.context_length - len(request.prompt_ids)
    asked = min(room, request.stopping.max_tokens) if request.stopping.HasField("max_tokens") else room
    if asked > fitting:
        yield FieldViolation(
            "output.vocabulary_logprobs",
            f"can be told of at most {fitting} tokens in each output: set stopping.max_tokens, which is {asked} now",
        )


def _check_fingerprint(expected: str, served: str) -> None:
    if not expected or expected == served:
        return
    if not served:
        raise failed_precondition(
            "expected_tokenizer_fingerprint cannot be checked: this worker does not know its tokenizer "
            "(start it with tokenizer_address or tokenizer_fingerprint)",
            reason="TOKENIZER_UNKNOWN",
        )
    raise failed_precondition(
        f"the prompt was encoded by a tokenizer with fingerprint {expected[:64]}, this worker's model uses {served}",
        reason="TOKENIZER_MISMATCH",
    )


def _ids(ids: Sequence[int]) -> bytes:
    return np.asarray(ids, np.int32).tobytes()
