"""Why a request ended, and what it cost.

Made from inference.proto by `make protos`; change it there.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass


class FinishReason(enum.IntEnum):
    """The numbers are the contract's."""

    MAX_TOKENS = 1  # max_tokens were produced, or the context is full
    STOP_TOKEN = 2  # an id of stop_token_ids was sampled; matched_stop_token says which
    EOS = 3  # an end-of-sequence id of the model was sampled; matched_stop_token says which
    STOP_SEQUENCE = 4  # an id sequence matched; matched_stop_sequence says which
    CANCELLED = 5  # by Abort
    GRAMMAR_END = 6  # guided decoding allows nothing more


@dataclass(slots=True)
class Usage:
    """What the contract tells of a request; what the front alone knows stays 0 in the engine."""

    prompt_tokens: int = 0
    cached_prompt_tokens: int = 0  # of them, taken from the prefix cache when the request first ran
    completion_tokens: int = 0  # sent in deltas; without resumed_output_ids
    forward_passes: int = 0
    preemptions: int = 0  # times that its pages were taken and computed again later
    peak_pages: int = 0  # of the KV cache, those that it shared included
    peak_kv_bytes: int = 0  # of those pages
    draft_tokens_proposed: int = 0  # computed by speculation
    draft_tokens_accepted: int = 0  # of them, those that became output
    reasoning_tokens: int = 0  # of the output, resumed_output_ids included: before end_ids and behind begin_ids
    # the most memory that the engine's process has had so far; of several, the first rank's
    peak_process_bytes: int = 0
    peak_device_bytes: int = 0  # the most that it has had allocated on its device; 0: it computes on the CPU
    left_out_tokens: int = 0  # of samples that best_of left out; told with the first output
