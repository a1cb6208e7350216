"""The rules of n, best_of, guided, reasoning and speculation, and what the engine gets of them. Pure, like
`validation.py`, which applies them."""

from __future__ import annotations

import json
from collections.abc import Iterator

from tandem.common.errors import FieldViolation
from tandem.inference.v1 import inference_pb2 as pb
from tandem.limits.fields import limits_of
from tandem.worker.engine.guides.structural_tags import read_tags
from tandem.worker.engine.process.messages import EngineInfo

_LIMITS = limits_of(pb.GenerateRequest.DESCRIPTOR)
DEFAULT_LENGTH_PENALTY = float(_LIMITS["length_penalty"].default or 0)
_KINDS = [field.name for field in pb.GuidedDecoding.DESCRIPTOR.oneofs_by_name["guide"].fields]
MAX_GUIDE_BYTES = _LIMITS["guided.grammar"].bound
DEFAULT_DRAFT_TOKENS = 8  # where a request asks for prompt lookup and names no number
DEFAULT_LOOKUP_NGRAM = 3


def samples_of(request: pb.GenerateRequest) -> int:
    """Returns how many answers are made."""
    n = request.n if request.HasField("n") else 1
    return max(1, request.best_of if request.HasField("best_of") else n)


def returns_best(request: pb.GenerateRequest) -> bool:
    """Tells whether more answers are made than returned, so that the best are chosen."""
    return samples_of(request) > (request.n if request.HasField("n") else 1)


def sample_violations(request: pb.GenerateRequest) -> Iterator[FieldViolation]:
    """Yields what is wrong between n, best_of and resumed output."""
    if request.HasField("best_of") and request.HasField("n") and 1 <= request.best_of < request.n:
        yield FieldViolation("best_of", f"must be at least n {request.n}, not {request.best_of}")
    if request.resumed_output_ids and samples_of(request) > 1:
        yield FieldViolation(
            "resumed_output_ids",
            "must be empty where several answers are made: send the request again with the same seed, "
            "and drop what was received",
        )


def guide_of(guided: pb.GuidedDecoding) -> tuple[str, str] | None:
    """Returns kind and text of what the output must match; None without a guide."""
    kind = guided.WhichOneof("guide")
    if kind is None:
        return None
    if kind == "choices":
        return kind, json.dumps(list(guided.choices.choices), ensure_ascii=False)
    return kind, getattr(guided, kind)


def guide_violations(request: pb.GenerateRequest) -> Iterator[FieldViolation]:
    """Yields violations of the sizes of `guided`; the engine finds out whether it can be compiled."""
    if not request.HasField("guided"):
        return
    guide = guide_of(request.guided)
    if guide is None:
        yield FieldViolation("guided", f"must have one of {', '.join(_KINDS)}")
        return
    kind, text = guide
    if kind == "choices" and len(text.encode()) > MAX_GUIDE_BYTES:
        yield FieldViolation(
            "guided.choices", f"must have at most {MAX_GUIDE_BYTES} bytes together, not {len(text.encode())}"
        )
    if kind == "structural_tag":
        try:
            read_tags(text)
        except ValueError as error:
            yield FieldViolation("guided.structural_tag", str(error))


def reasoning_of(request: pb.GenerateRequest) -> tuple[list[int], list[int], int | None] | None:
    """Returns the marks and the budget of the reasoning; None where nothing is said of it."""
    if not request.HasField("reasoning"):
        return None
    reasoning = request.reasoning
    budget = reasoning.max_tokens if reasoning.HasField("max_tokens") else None
    return list(reasoning.begin_ids), list(reasoning.end_ids), budget


def reasoning_violations(request: pb.GenerateRequest) -> Iterator[FieldViolation]:
    """Yields what is wrong between the ids that the reasoning may force and those that may be drawn."""
    reasoning, sampling = request.reasoning, request.sampling
    forced = {"end_ids": set(reasoning.end_ids)}
    if request.HasField("guided"):
        forced["begin_ids"] = set(reasoning.begin_ids[1:])  # the first is the model's choice
    for name, ids in forced.items():
        forbidden = ids & set(sampling.banned_ids)
        if sampling.allowed_ids:
            forbidden |= ids - set(sampling.allowed_ids)
        if forbidden:
            yield FieldViolation(f"reasoning.{name}", f"must be ids that may be drawn; {min(forbidden)} may not")


def draft_tokens(speculation: pb.SpeculationParams, info: EngineInfo) -> int:
    """Returns the most drafts of a step; 0 is no speculation."""
    if speculation.HasField("max_draft_tokens"):
        return speculation.max_draft_tokens
    if speculation.HasField("prompt_lookup_ngram"):
        return info.draft_tokens or DEFAULT_DRAFT_TOKENS
    return info.draft_tokens


def lookup_ngram(speculation: pb.SpeculationParams, info: EngineInfo) -> int:
    """Returns the length of the n-gram that prompt lookup searches for; 0: a draft model is asked instead."""
    if speculation.HasField("prompt_lookup_ngram"):
        return speculation.prompt_lookup_ngram
    return 0 if info.draft_model else DEFAULT_LOOKUP_NGRAM
