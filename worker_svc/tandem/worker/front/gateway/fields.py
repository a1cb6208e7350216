"""What becomes of each field that a gateway may send: nothing is dropped in silence.

| verdict | |
|---|---|
| TRANSLATED | has the same meaning here |
| LEFT_TO_GATEWAY | is about text, which the gateway makes of our ids; nothing here depends on it |
| REFUSED | ends the request with INVALID_ARGUMENT and the field's name when it is set |

Protobuf's default counts as not set where a field has no presence.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum, auto

from google.protobuf.message import Message

from tandem.common.errors import FieldViolation


class Verdict(Enum):
    """What becomes of a field."""

    TRANSLATED = auto()
    LEFT_TO_GATEWAY = auto()
    REFUSED = auto()


_TRANSLATED = """
GenerateRequest.request_id GenerateRequest.tokenized GenerateRequest.sampling_params GenerateRequest.stream
GenerateRequest.data_parallel_rank
TokenizedInput.input_ids
SamplingParams.temperature SamplingParams.top_p SamplingParams.top_k SamplingParams.min_p
SamplingParams.frequency_penalty SamplingParams.presence_penalty SamplingParams.repetition_penalty
SamplingParams.max_tokens SamplingParams.min_tokens SamplingParams.stop_token_ids SamplingParams.ignore_eos
SamplingParams.n SamplingParams.logprobs SamplingParams.prompt_logprobs SamplingParams.seed SamplingParams.logit_bias
SamplingParams.truncate_prompt_tokens SamplingParams.grammar_from_first_token
SamplingParams.json_schema SamplingParams.regex SamplingParams.grammar SamplingParams.structural_tag
SamplingParams.json_object SamplingParams.choice
ChoiceConstraint.choices
AbortRequest.request_ids
GetLoadsRequest.dp_rank GetLoadsRequest.include
SubscribeKvEventsRequest.start_sequence_number SubscribeKvEventsRequest.load_records_before_first_batch
FlushCacheRequest.timeout_s
"""
_LEFT_TO_GATEWAY = """
TokenizedInput.original_text
SamplingParams.stop SamplingParams.skip_special_tokens SamplingParams.spaces_between_special_tokens
SamplingParams.include_stop_str_in_output
"""
_REFUSED = {
    "GenerateRequest.text": "the worker takes token ids: have the gateway tokenize",
    "GenerateRequest.kv_transfer_params": "prefill and decode are not split over workers",
    "GenerateRequest.kv_transfer_params_json": "prefill and decode are not split over workers",
    "GenerateRequest.mm_inputs": "only text models are served",
    "GenerateRequest.extra_mm_inputs": "only text models are served",
    "GenerateRequest.media_refs": "only text models are served",
}

VERDICTS = {
    **dict.fromkeys(_TRANSLATED.split(), Verdict.TRANSLATED),
    **dict.fromkeys(_LEFT_TO_GATEWAY.split(), Verdict.LEFT_TO_GATEWAY),
    **dict.fromkeys(_REFUSED, Verdict.REFUSED),
}


def refusals(message: Message) -> Iterator[FieldViolation]:
    """Yields the fields of a request that are set and not served, those of a later contract included."""
    for descriptor, _ in message.ListFields():
        name = f"{message.DESCRIPTOR.name}.{descriptor.name}"
        if VERDICTS.get(name, Verdict.REFUSED) is Verdict.REFUSED:
            yield FieldViolation(descriptor.name, f"is not served: {_REFUSED.get(name, 'it is not known here')}")
