"""A GenerateRequest of the wire to a Submit for the engine, or every violation by name.

Pure: no engine, no clock, no randomness but the seed that is handed in. Three refusals, in this order:

    UNIMPLEMENTED        a field is set that this version does not serve; all of them are named
    INVALID_ARGUMENT     values out of range; all of them are named, with what is allowed
    FAILED_PRECONDITION  the prompt comes from another tokenizer
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from google.protobuf.message import Message

from svc_common.errors import FieldViolation, failed_precondition, invalid_argument, unimplemented
from tandem.inference.v1 import inference_pb2 as pb
from worker_svc.engine.messages import EngineInfo, Submit
from worker_svc.engine.request import LogprobOptions
from worker_svc.generation_rules import (
    draft_tokens,
    guide_of,
    guide_violations,
    lookup_ngram,
    ranks,
    sample_violations,
    samples_of,
    speculation_violations,
)
from worker_svc.sampling_rules import SAMPLING_FIELDS, id_violations, sampling_violations, to_sampling

MAX_REQUEST_ID_BYTES = 128
MAX_SALT_BYTES = 256
MAX_NAME_BYTES = 1024
MAX_STOP_IDS = 256
MAX_TOP_LOGPROBS = 64
MAX_LOGPROB_IDS = 128
MAX_STOP_SEQUENCES = 64
MAX_STOP_SEQUENCE_IDS = 64
MAX_PRIORITY = 100
MAX_STREAM_DELAY_MS = 60_000

SERVED_FIELDS = frozenset(
    {
        "request_id",
        "model",
        "prompt_ids",
        "resumed_output_ids",
        "sampling",
        *SAMPLING_FIELDS,
        "stopping",
        "stopping.max_tokens",
        "stopping.min_tokens",
        "stopping.stop_token_ids",
        "stopping.stop_sequences",
        "stopping.ignore_eos",
        "stopping.include_stop",
        "output",
        "output.logprobs",
        "output.logprobs_mode",
        "output.top_logprobs",
        "output.logprob_ids",
        "output.prompt_logprobs",
        "output.echo",
        "output.stream_interval_tokens",
        "output.stream_max_delay_ms",
        "cache",
        "cache.salt",
        "cache.bypass",
        "guided",
        "guided.json_schema",
        "guided.regex",
        "guided.choices",
        "guided.choices.choices",
        "guided.grammar",
        "speculation",
        "speculation.max_draft_tokens",
        "speculation.prompt_lookup_ngram",
        "n",
        "best_of",
        "length_penalty",
        "priority",
        "expected_tokenizer_fingerprint",
    }
)


@dataclass(frozen=True, slots=True)
class Delivery:
    """How the answer is cut into messages."""

    interval_tokens: int
    max_delay_seconds: float | None
    others: bool = False  # tokens besides the sampled one are reported at each position


def validate(
    request: pb.GenerateRequest,
    info: EngineInfo,
    *,
    handle: int,
    seed: int,
    fingerprint: str,
    caller: str = "",
    cache_per_caller: bool = False,
) -> tuple[Submit, Delivery]:
    """The engine's form of a request of `caller`; raises ServiceError. `seed` is used where the request has none,
    `fingerprint` is the served tokenizer's, empty if unknown. With `cache_per_caller`, callers share no cached page."""
    _refuse_unserved(request)
    violations = list(_violations(request, info))
    if violations:
        raise invalid_argument(violations)
    _check_fingerprint(request.expected_tokenizer_fingerprint, fingerprint)

    stopping, output = request.stopping, request.output
    room = info.context_length - len(request.prompt_ids)
    max_tokens = min(room, stopping.max_tokens) if stopping.HasField("max_tokens") else room
    submit = Submit(
        handle=handle,
        prompt=_ids(request.prompt_ids),
        resumed=_ids(request.resumed_output_ids),
        max_tokens=max_tokens,
        min_tokens=stopping.min_tokens,
        eos_ids=[] if stopping.ignore_eos else info.eos_ids,
        stop_ids=sorted(set(stopping.stop_token_ids)),
        include_stop=stopping.include_stop,
        sampling=to_sampling(request.sampling, info.sampling_defaults, info.context_length, seed),
        priority=request.priority,
        # The length in front keeps every pair of caller and salt apart.
        salt=f"{len(caller)}:{caller}{request.cache.salt}" if cache_per_caller else request.cache.salt,
        bypass=request.cache.bypass,
        logprobs=_logprobs(request),
        stop_sequences=[list(sequence.ids) for sequence in stopping.stop_sequences],
        samples=samples_of(request),
        draft_tokens=draft_tokens(request.speculation, info),
        lookup_ngram=lookup_ngram(request.speculation, info),
        guide=guide_of(request.guided),
        caller=caller,
    )
    delay = output.stream_max_delay_ms / 1000 if output.HasField("stream_max_delay_ms") else None
    return submit, Delivery(max(1, output.stream_interval_tokens), delay, others=submit.logprobs.width > 0)


def _logprobs(request: pb.GenerateRequest) -> LogprobOptions:
    output = request.output
    return LogprobOptions(
        sampled=wants_logprobs(output) or ranks(request),  # ranking needs them
        top=output.top_logprobs,
        ids=tuple(output.logprob_ids),
        processed=output.logprobs_mode == pb.LOGPROBS_MODE_PROCESSED,
        prompt=output.prompt_logprobs,
    )


def wants_logprobs(output: pb.OutputOptions) -> bool:
    """Whether the sampled tokens' logprobs are sent."""
    return output.logprobs or output.top_logprobs > 0 or bool(output.logprob_ids)


def _refuse_unserved(request: pb.GenerateRequest) -> None:
    unserved = sorted(path for path in _set_fields(request, "") if path not in SERVED_FIELDS)
    if unserved:
        raise unimplemented(unserved)


def _set_fields(message: Message, prefix: str) -> Iterator[str]:
    """Paths of all fields that are set; does not look into messages that are not served themselves."""
    for descriptor, value in message.ListFields():
        path = f"{prefix}{descriptor.name}"
        yield path
        if path in SERVED_FIELDS and isinstance(value, Message):
            yield from _set_fields(value, f"{path}.")


def _violations(request: pb.GenerateRequest, info: EngineInfo) -> Iterator[FieldViolation]:
    yield from _too_long("request_id", request.request_id, MAX_REQUEST_ID_BYTES)
    yield from _too_long("model", request.model, MAX_NAME_BYTES)
    yield from _too_long("cache.salt", request.cache.salt, MAX_SALT_BYTES)
    yield from _too_long("expected_tokenizer_fingerprint", request.expected_tokenizer_fingerprint, MAX_NAME_BYTES)
    yield from _prompt_violations(request, info)
    yield from sampling_violations(request, info.vocabulary_size, info.eos_ids)
    yield from _stopping_violations(request, info)
    yield from sample_violations(request)
    yield from guide_violations(request)
    yield from speculation_violations(request.speculation)
    if abs(request.priority) > MAX_PRIORITY:
        yield FieldViolation("priority", f"must be -{MAX_PRIORITY} to {MAX_PRIORITY}, not {request.priority}")
    output = request.output
    if output.logprobs_mode not in pb.LogprobsMode.values():
        yield FieldViolation("output.logprobs_mode", f"{output.logprobs_mode} is not a known mode")
    if output.top_logprobs > MAX_TOP_LOGPROBS:
        yield FieldViolation("output.top_logprobs", f"must be 0 to {MAX_TOP_LOGPROBS}, not {output.top_logprobs}")
    if len(output.logprob_ids) > MAX_LOGPROB_IDS:
        yield FieldViolation(
            "output.logprob_ids", f"has {len(output.logprob_ids)} ids; at most {MAX_LOGPROB_IDS} are allowed"
        )
    yield from _id_violations("output.logprob_ids", output.logprob_ids, info)
    if output.HasField("stream_interval_tokens") and output.stream_interval_tokens < 1:
        yield FieldViolation("output.stream_interval_tokens", "must be at least 1, not 0")
    if output.stream_max_delay_ms > MAX_STREAM_DELAY_MS:
        yield FieldViolation(
            "output.stream_max_delay_ms", f"must be at most {MAX_STREAM_DELAY_MS}, not {output.stream_max_delay_ms}"
        )


def scores_only(request: pb.GenerateRequest) -> bool:
    """Whether the prompt is scored and nothing is generated."""
    stopping = request.stopping
    return request.output.prompt_logprobs and stopping.HasField("max_tokens") and not stopping.max_tokens


def _too_long(field: str, text: str, limit: int) -> Iterator[FieldViolation]:
    size = len(text.encode())
    if size > limit:
        yield FieldViolation(field, f"must have at most {limit} bytes, not {size}")


def _prompt_violations(request: pb.GenerateRequest, info: EngineInfo) -> Iterator[FieldViolation]:
    prompt, resumed = len(request.prompt_ids), len(request.resumed_output_ids)
    if prompt == 0:
        yield FieldViolation("prompt_ids", "must have at least one id")
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
    yield from _id_violations("prompt_ids", request.prompt_ids, info)
    yield from _id_violations("resumed_output_ids", request.resumed_output_ids, info)


def _id_violations(field: str, ids: Sequence[int], info: EngineInfo) -> Iterator[FieldViolation]:
    return id_violations(field, ids, info.vocabulary_size)


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
    if len(stopping.stop_token_ids) > MAX_STOP_IDS:
        yield FieldViolation(
            "stopping.stop_token_ids", f"has {len(stopping.stop_token_ids)} ids; at most {MAX_STOP_IDS} are allowed"
        )
    yield from _id_violations("stopping.stop_token_ids", stopping.stop_token_ids, info)
    yield from _sequence_violations(stopping.stop_sequences, info)


def _sequence_violations(sequences: Sequence[pb.TokenSequence], info: EngineInfo) -> Iterator[FieldViolation]:
    field = "stopping.stop_sequences"
    if len(sequences) > MAX_STOP_SEQUENCES:
        yield FieldViolation(field, f"has {len(sequences)} sequences; at most {MAX_STOP_SEQUENCES} are allowed")
        return
    for place, sequence in enumerate(sequences):
        if not 1 <= len(sequence.ids) <= MAX_STOP_SEQUENCE_IDS:
            yield FieldViolation(
                f"{field}[{place}].ids", f"must have 1 to {MAX_STOP_SEQUENCE_IDS} ids, not {len(sequence.ids)}"
            )
        yield from _id_violations(f"{field}[{place}].ids", sequence.ids, info)


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


def _ids(ids: Iterable[int]) -> bytes:
    return np.fromiter(ids, dtype=np.int32).tobytes()
