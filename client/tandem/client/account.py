"""Why a generation ended, and what it cost.

Made from inference.proto by `make protos`; change it there.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass


class FinishReason(enum.StrEnum):
    """The reason why a generation ended."""

    STOP_STRING = enum.auto()  # a text of stop was produced; `matched_stop` says which
    MAX_TOKENS = enum.auto()  # max_tokens were produced, or the context is full
    STOP_TOKEN = enum.auto()  # an id of stop_token_ids was sampled; matched_stop_token says which
    EOS = enum.auto()  # an end-of-sequence id of the model was sampled; matched_stop_token says which
    STOP_SEQUENCE = enum.auto()  # an id sequence matched; matched_stop_sequence says which
    CANCELLED = enum.auto()  # by Abort
    GRAMMAR_END = enum.auto()  # guided decoding allows nothing more


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """The usage of a generation, of all its outputs together. None: the worker was lost before it reported."""

    prompt_tokens: int
    cached_prompt_tokens: int | None = None  # of them, taken from the prefix cache when the request first ran
    # produced by all workers together, up to the one that completed a stop string; left_out_tokens included
    completion_tokens: int
    forward_passes: int | None = None
    preemptions: int | None = None  # times that its pages were taken and computed again later
    peak_pages: int | None = None  # of the KV cache, those that it shared included
    peak_kv_bytes: int | None = None  # of those pages
    draft_tokens_proposed: int | None = None  # computed by speculation
    draft_tokens_accepted: int | None = None  # of them, those that became output
    # of the output, resumed_output_ids included: before end_ids and behind begin_ids
    reasoning_tokens: int | None = None
    # the most memory that the engine's process has had so far; of several, the first rank's
    peak_process_bytes: int | None = None
    peak_device_bytes: int | None = None  # the most that it has had allocated on its device; 0: it computes on the CPU
    left_out_tokens: int | None = None  # of samples that best_of left out; told with the first output


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerTimings:
    """Times in seconds, measured by the (last) worker; None where unknown."""

    worker_queue_seconds: float | None = None  # admission to first scheduled
    worker_prefill_seconds: float | None = None  # first scheduled to first token
    worker_decode_seconds: float | None = None  # first token to last token
    worker_total_seconds: float | None = None  # admission to finish
