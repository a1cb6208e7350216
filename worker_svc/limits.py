"""How many elements a large request to the worker may have in all (`svc_common.message_limits`). What each of its parts
may have, and all that is wrong at once, `validation.py` says.
"""

from __future__ import annotations

from svc_common.message_limits import Limit, Limits, MessageLimits, limits_of_service
from tandem.inference.v1 import admin_pb2, inference_pb2
from worker_svc.engine.guides.limits import MAX_GUIDE_BYTES
from worker_svc.generation_rules import MAX_CHOICES
from worker_svc.sampling_rules import LIMITS
from worker_svc.validation import (
    MAX_LOGPROB_IDS,
    MAX_NAME_BYTES,
    MAX_REQUEST_ID_BYTES,
    MAX_SALT_BYTES,
    MAX_STOP_IDS,
    MAX_STOP_SEQUENCE_IDS,
    MAX_STOP_SEQUENCES,
)

MAX_ABORT_IDS = 4096
MAX_CONTEXT = 1 << 21  # ids that are worth a look, whatever the model's context


def request_limits() -> dict[str, MessageLimits]:
    """By the path of the method."""
    guide = Limit(size=MAX_GUIDE_BYTES)
    sequence_ids = [MAX_STOP_SEQUENCES * MAX_STOP_SEQUENCE_IDS]
    lists: dict[str, Limit] = {}
    for limit in LIMITS.values():
        if not limit.scalar:
            *parents, name = limit.path.split(".")
            owner = {"": "SamplingParams", "dry": "Dry"}[".".join(parents)]
            lists[f"{owner}.{name}"] = Limit(limit.most)
            sequence_ids.append((limit.most or 0) * limit.most_each)
    limits: Limits = {
        "GenerateRequest.request_id": Limit(size=MAX_REQUEST_ID_BYTES),
        "GenerateRequest.model": Limit(size=MAX_NAME_BYTES),
        "GenerateRequest.expected_tokenizer_fingerprint": Limit(size=MAX_NAME_BYTES),
        "GenerateRequest.prompt_ids": Limit(MAX_CONTEXT),
        "GenerateRequest.resumed_output_ids": Limit(MAX_CONTEXT),
        **lists,
        "TokenSequence.ids": Limit(max(sequence_ids)),
        "StoppingParams.stop_token_ids": Limit(MAX_STOP_IDS),
        "StoppingParams.stop_sequences": Limit(MAX_STOP_SEQUENCES),
        "OutputOptions.logprob_ids": Limit(MAX_LOGPROB_IDS),
        "CacheParams.salt": Limit(size=MAX_SALT_BYTES),
        "GuidedDecoding.json_schema": guide,
        "GuidedDecoding.regex": guide,
        "GuidedDecoding.grammar": guide,
        "ChoiceList.choices": Limit(MAX_CHOICES, MAX_GUIDE_BYTES),
        "AbortRequest.request_ids": Limit(MAX_ABORT_IDS, MAX_REQUEST_ID_BYTES),
        "GetModelRequest.model": Limit(size=MAX_NAME_BYTES),
    }
    inference = inference_pb2.DESCRIPTOR.services_by_name["InferenceService"]
    admin = admin_pb2.DESCRIPTOR.services_by_name["WorkerAdminService"]
    return limits_of_service(inference, limits) | limits_of_service(admin, limits)
