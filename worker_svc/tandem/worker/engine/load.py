"""The counters of an engine and what it holds now: each number in one row, with the metric that it becomes.

All parts of an engine count in one `EngineStatistics`, which travels to the front with each step.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Metric:
    """Describes the metric of a number; a gauge may be the share of another field."""

    name: str  # without `tandem_`
    help: str
    share_of: str = ""


def shown(name: str, help: str, *others: Metric, share_of: str = "") -> int:
    """Declares a number that becomes one metric or several."""
    zero: int = field(default=0, metadata={"metrics": (Metric(name, help, share_of), *others)})
    return zero


@dataclass(slots=True)
class EngineStatistics:
    """Counters since the engine started."""

    steps: int = shown("engine_steps", "Forward passes")
    prompt_tokens: int = shown(
        "prompt_tokens",
        "Prompt tokens of admitted requests",  # of each once
        Metric("prefix_cache_queries", "Prompt tokens looked up in the prefix cache"),
    )
    cached_prompt_tokens: int = shown("prefix_cache_hits", "Prompt tokens found in the prefix cache")
    output_tokens: int = shown("generation_tokens", "Tokens generated")
    preemptions: int = shown("num_preemptions", "Requests preempted for lack of KV cache pages")
    places_ceded: int = shown("places_ceded", "Requests preempted for another caller's share")
    evictions: int = shown("kv_cache_evicted_pages", "Cached pages evicted for new ones")
    merged_pages: int = shown("kv_cache_merged_pages", "Pages freed because an equal page was cached")
    state_snapshots: int = shown("state_snapshots", "States of sequences that were kept for prefixes")
    state_evictions: int = shown("state_evictions", "Kept states that gave way to others")
    moved_pages: int = shown("kv_cache_moved_pages", "Pages moved by defragmentation")
    draft_tokens_proposed: int = shown("spec_decode_num_draft_tokens", "Draft tokens verified")
    draft_tokens_accepted: int = shown("spec_decode_num_accepted_tokens", "Draft tokens accepted")
    drafts_declined: int = shown("spec_decode_num_declined_steps", "Steps whose drafts cost more than they gain")
    guide_masks_over_budget: int = shown("guide_masks_over_budget", "Requests that ended because a mask took too long")
    guide_left_out_rows: int = shown("guide_left_out_rows", "Rows left out of a step because their mask was late")
    guide_process_deaths: int = shown("guide_process_deaths", "Guides' processes that ended while in use")
    overlapped_steps: int = shown("engine_overlapped_steps", "Forward passes launched while the previous one ran")
    overlap_wasted_tokens: int = shown("engine_overlap_wasted_tokens", "Tokens computed after the end of a request")


@dataclass(slots=True)
class Load:
    """What runs and waits now, how the pages of the cache are used, and the counters."""

    running_requests: int = shown("num_requests_running", "Running requests")
    waiting_requests: int = shown("num_requests_waiting", "Waiting requests")
    waiting_tokens: int = shown("num_tokens_waiting", "Prompt tokens of waiting requests")
    pages_total: int = 0
    pages_free: int = 0
    pages_cached: int = shown(
        "kv_cache_cached_perc", "Share of KV cache pages that only hold prefixes, 0 to 1", share_of="pages_total"
    )
    pages_referenced: int = shown(
        "kv_cache_usage_perc", "Share of KV cache pages that running requests use, 0 to 1", share_of="pages_total"
    )
    states_total: int = 0
    states_running: int = shown(
        "state_cache_usage_perc", "Share of state slots that running requests use, 0 to 1", share_of="states_total"
    )
    states_cached: int = shown(
        "state_cache_cached_perc", "Share of state slots that only hold prefixes, 0 to 1", share_of="states_total"
    )
    guide_processes: int = shown("guide_processes", "Guides that have a process, in use or kept")
    guide_memory_bytes: int = shown("guide_memory_bytes", "Memory of guides' processes without what they share")
    statistics: EngineStatistics = field(default_factory=EngineStatistics)


def metrics_of(record: type[EngineStatistics | Load]) -> Iterator[tuple[str, Metric]]:
    """Yields each metric of a record, behind the name of its field."""
    for each in dataclasses.fields(record):
        for metric in each.metadata.get("metrics", ()):
            yield each.name, metric
