"""Translates a gateway's request to ours. Pure.

Numbers that the gateway always sends are taken as they are: 0 for `top_p` or `repetition_penalty`, which no request
can mean, is off. What it leaves out (`temperature`, `seed`, `max_tokens`) is chosen as for a request of ours. Penalties
look at the whole context, as vLLM's do.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from smg_grpc_proto import vllm_engine_pb2 as vllm

from tandem.common.errors import FieldViolation, invalid_argument
from tandem.inference.v1 import inference_pb2 as pb
from tandem.worker.engine.guides.structural_tags import read_tags
from tandem.worker.front.gateway.fields import refusals

_WHOLE_CONTEXT = 0xFFFF_FFFF
_SEED_MASK = (1 << 64) - 1
_ALL = -1  # of logprobs: of the whole vocabulary; of truncate_prompt_tokens: to what the model takes


def translated(request: vllm.GenerateRequest, context_length: int) -> pb.GenerateRequest:
    """Returns our form of a request; raises INVALID_ARGUMENT for what has none. Ranges are checked like any other
    request's, afterwards."""
    params = request.sampling_params
    violations = [*refusals(request), *refusals(request.tokenized), *refusals(params), *_violations(request)]
    if violations:
        raise invalid_argument(violations)
    ids = request.tokenized.input_ids
    ours = pb.GenerateRequest(
        request_id=request.request_id,
        prompt_ids=_truncated(ids, params, context_length),
        sampling=_sampling(params),
        stopping=_stopping(params),
        output=_output(params),
    )
    if params.n > 1:
        ours.n = params.n
    if params.WhichOneof("constraint") is not None:
        ours.guided.CopyFrom(_guide(params))
    return ours


def _violations(request: vllm.GenerateRequest) -> Iterator[FieldViolation]:
    params = request.sampling_params
    if request.WhichOneof("input") != "tokenized":
        yield FieldViolation("tokenized", "is missing: the worker takes token ids")
    if request.data_parallel_rank > 0:
        yield FieldViolation("data_parallel_rank", f"must be 0, the only rank, not {request.data_parallel_rank}")
    for name in ("logprobs", "prompt_logprobs"):
        if (count := getattr(params, name)) < 0:
            yield FieldViolation(f"sampling_params.{name}", f"must be 0 or more, not {count}")
    if params.truncate_prompt_tokens < _ALL:
        yield FieldViolation(
            "sampling_params.truncate_prompt_tokens",
            f"must be -1 (what the model takes) or more, not {params.truncate_prompt_tokens}",
        )
    for token in params.logit_bias:
        if token < 0:
            yield FieldViolation("sampling_params.logit_bias", f"ids must be 0 or more, not {token}")


def _truncated(ids: Any, params: vllm.SamplingParams, context_length: int) -> Any:
    """Returns the last ids, as many as were asked for."""
    if not params.HasField("truncate_prompt_tokens"):
        return ids
    most = params.truncate_prompt_tokens
    if most == _ALL:
        most = context_length - 1
    return ids[len(ids) - most :] if 0 < most < len(ids) else ids


def _sampling(params: vllm.SamplingParams) -> pb.SamplingParams:
    ours = pb.SamplingParams(
        top_k=params.top_k,
        top_p=params.top_p or 1.0,
        min_p=params.min_p,
        logit_bias=[pb.LogitBias(id=token, bias=bias) for token, bias in params.logit_bias.items()],
    )
    if params.HasField("temperature"):
        ours.temperature = params.temperature
    if params.HasField("seed"):
        ours.seed = params.seed & _SEED_MASK
    penalties = (params.repetition_penalty or 1.0, params.frequency_penalty, params.presence_penalty)
    ours.repetition_penalty, ours.frequency_penalty, ours.presence_penalty = penalties
    if penalties != (1, 0, 0):
        ours.repetition_window = _WHOLE_CONTEXT
    return ours


def _stopping(params: vllm.SamplingParams) -> pb.StoppingParams:
    ours = pb.StoppingParams(
        min_tokens=params.min_tokens, stop_token_ids=params.stop_token_ids, ignore_eos=params.ignore_eos
    )
    if params.HasField("max_tokens"):
        ours.max_tokens = params.max_tokens
    return ours


def _output(params: vllm.SamplingParams) -> pb.OutputOptions:
    return pb.OutputOptions(
        logprobs=params.HasField("logprobs"),
        top_logprobs=max(params.logprobs, params.prompt_logprobs),
        prompt_logprobs=params.HasField("prompt_logprobs"),
    )


def _guide(params: vllm.SamplingParams) -> pb.GuidedDecoding:
    match params.WhichOneof("constraint"):
        case "json_schema":
            return pb.GuidedDecoding(json_schema=params.json_schema)
        case "regex":
            return pb.GuidedDecoding(regex=params.regex)
        case "choice":
            return pb.GuidedDecoding(choices=pb.ChoiceList(choices=params.choice.choices))
        case "json_object":
            return pb.GuidedDecoding(json_schema='{"type": "object"}')
        case "structural_tag":
            try:
                read_tags(params.structural_tag)
            except ValueError as error:
                raise invalid_argument([FieldViolation("sampling_params.structural_tag", str(error))]) from None
            return pb.GuidedDecoding(structural_tag=params.structural_tag)
    if "::=" in params.grammar:
        violation = FieldViolation("sampling_params.grammar", "is EBNF; Lark is served (rules with one colon)")
        raise invalid_argument([violation])
    return pb.GuidedDecoding(grammar=params.grammar)
