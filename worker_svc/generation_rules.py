"""How many answers, what they must match, and whether they are speculated on: the rules of n, best_of, guided and
speculation, and what the engine gets of them. Pure, like `validation.py`, which applies them."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator

from svc_common.errors import FieldViolation
from tandem.inference.v1 import inference_pb2 as pb
from tandem.limits.fields import shown
from worker_svc.engine.guides.limits import MAX_GUIDE_BYTES
from worker_svc.engine.messages import EngineInfo

MAX_SAMPLES = 64
MAX_LENGTH_PENALTY = 10.0
DEFAULT_LENGTH_PENALTY = 1.0
MAX_CHOICES = 1024
MAX_DRAFT_TOKENS = 32
MAX_LOOKUP_NGRAM = 8
DEFAULT_DRAFT_TOKENS = 8  # where a request asks for prompt lookup and names no number
DEFAULT_LOOKUP_NGRAM = 3


def samples_of(request: pb.GenerateRequest) -> int:
    """How many answers are made."""
    n = request.n if request.HasField("n") else 1
    return max(1, request.best_of if request.HasField("best_of") else n)


def ranks(request: pb.GenerateRequest) -> bool:
    """Whether more answers are made than returned."""
    return samples_of(request) > (request.n if request.HasField("n") else 1)


def sample_violations(request: pb.GenerateRequest) -> Iterator[FieldViolation]:
    """Of n, best_of and length_penalty."""
    for name in ("n", "best_of"):
        if request.HasField(name) and not 1 <= getattr(request, name) <= MAX_SAMPLES:
            yield FieldViolation(name, f"must be 1 to {MAX_SAMPLES}, not {getattr(request, name)}")
    if request.HasField("best_of") and request.HasField("n") and 1 <= request.best_of < request.n:
        yield FieldViolation("best_of", f"must be at least n {request.n}, not {request.best_of}")
    penalty = request.length_penalty
    if not math.isfinite(penalty) or abs(penalty) > MAX_LENGTH_PENALTY:
        yield FieldViolation(
            "length_penalty", f"must be -{MAX_LENGTH_PENALTY:g} to {MAX_LENGTH_PENALTY:g}, not {shown(penalty)}"
        )
    if request.resumed_output_ids and samples_of(request) > 1:
        yield FieldViolation(
            "resumed_output_ids",
            "must be empty where several answers are made: send the request again with the same seed, "
            "and drop what was received",
        )


def guide_of(guided: pb.GuidedDecoding) -> tuple[str, str] | None:
    """Kind and text of what the output must match."""
    kind = guided.WhichOneof("guide")
    if kind is None:
        return None
    if kind == "choices":
        return kind, json.dumps(list(guided.choices.choices), ensure_ascii=False)
    return kind, getattr(guided, kind)


def guide_violations(request: pb.GenerateRequest) -> Iterator[FieldViolation]:
    """Of `guided`: its size; whether it can be compiled, the engine finds out."""
    if not request.HasField("guided"):
        return
    guide = guide_of(request.guided)
    if guide is None:
        yield FieldViolation("guided", "must have one of json_schema, regex, choices, grammar")
        return
    kind, text = guide
    field = f"guided.{kind}"
    if kind == "choices":
        choices = request.guided.choices.choices
        if not 1 <= len(choices) <= MAX_CHOICES:
            yield FieldViolation(field, f"must have 1 to {MAX_CHOICES} choices, not {len(choices)}")
        elif "" in choices:
            yield FieldViolation(f"{field}[{list(choices).index('')}]", "must not be empty")
    elif not text:
        yield FieldViolation(field, "must not be empty")
    if len(text.encode()) > MAX_GUIDE_BYTES:
        yield FieldViolation(field, f"must have at most {MAX_GUIDE_BYTES} bytes, not {len(text.encode())}")


def speculation_violations(speculation: pb.SpeculationParams) -> Iterator[FieldViolation]:
    """Of `speculation`."""
    if speculation.max_draft_tokens > MAX_DRAFT_TOKENS:
        yield FieldViolation(
            "speculation.max_draft_tokens", f"must be 0 to {MAX_DRAFT_TOKENS}, not {speculation.max_draft_tokens}"
        )
    ngram = speculation.prompt_lookup_ngram
    if speculation.HasField("prompt_lookup_ngram") and not 1 <= ngram <= MAX_LOOKUP_NGRAM:
        yield FieldViolation("speculation.prompt_lookup_ngram", f"must be 1 to {MAX_LOOKUP_NGRAM}, not {ngram}")


def draft_tokens(speculation: pb.SpeculationParams, info: EngineInfo) -> int:
    """Drafts at most; 0 is no speculation."""
    if speculation.HasField("max_draft_tokens"):
        return speculation.max_draft_tokens
    if speculation.HasField("prompt_lookup_ngram"):
        return info.draft_tokens or DEFAULT_DRAFT_TOKENS
    return info.draft_tokens


def lookup_ngram(speculation: pb.SpeculationParams, info: EngineInfo) -> int:
    """Length of what prompt lookup looks for; 0: a draft model is asked instead."""
    if speculation.HasField("prompt_lookup_ngram"):
        return speculation.prompt_lookup_ngram
    return 0 if info.draft_model else DEFAULT_LOOKUP_NGRAM
