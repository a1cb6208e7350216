"""Metrics of the worker. Stems, labels and buckets are vLLM's where it has them, so that dashboards carry over.

queue    admission to first scheduled         prefill  first scheduled to first token
decode   first token to last token            e2e      request received to finish
time to first token: request received to first token in the front, queueing in the front included
"""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from tandem.worker.engine.guides.outcome import CompileOutcome
from tandem.worker.engine.messages import Ended, Load, Step

_LATENCY = (
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0, 160.0,
    640.0, 2560.0,
)  # fmt: skip
_REQUEST = (
    0.01, 0.05, 0.1, 0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0,
    480.0, 960.0, 1920.0, 7680.0,
)  # fmt: skip
_TOKEN = (
    0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5,
    10.0, 20.0, 40.0, 80.0,
)  # fmt: skip
_TOKENS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000, 20000, 50000, 100000)
_STEP = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)

FINISH_NAMES = {
    1: "length",
    2: "stop",
    3: "eos",
    4: "stop_sequence",
    5: "abort",
    6: "grammar_end",
    100: "error",
    101: "impossible",
    102: "guide",
}


class WorkerMetrics:
    """All children are made once: a look-up by label costs four times an increment."""

    def __init__(self, registry: CollectorRegistry, model_name: str) -> None:
        def gauge(name: str, text: str) -> Gauge:
            return Gauge(f"tandem_{name}", text, ["model_name"], registry=registry).labels(model_name)

        def counter(name: str, text: str) -> Counter:
            return Counter(f"tandem_{name}", text, ["model_name"], registry=registry).labels(model_name)

        def histogram(name: str, text: str, buckets: tuple[float, ...]) -> Histogram:
            metric = Histogram(f"tandem_{name}", text, ["model_name"], buckets=buckets, registry=registry)
            return metric.labels(model_name)

        self._running = gauge("num_requests_running", "Requests that run")
        self._waiting = gauge("num_requests_waiting", "Requests that wait")
        self._waiting_tokens = gauge("num_tokens_waiting", "Prompt tokens that wait")
        self._cache_usage = gauge("kv_cache_usage_perc", "Share of KV cache pages that running requests use, 0 to 1")
        self._cache_cached = gauge("kv_cache_cached_perc", "Share of KV cache pages that only hold prefixes, 0 to 1")
        self._guide_processes = gauge("guide_processes", "Guides that have a process, in use or kept")
        self._guide_memory = gauge("guide_memory_bytes", "Memory of guides' processes beside what they share")
        self.engine_up = gauge("engine_up", "1 while the engine is ready")
        self.engine_restarts = counter("engine_restarts", "Engines that were started after one died")
        self.engine_stalls = counter("engine_stalls", "Engines that were killed because they said nothing any more")
        self.failed_starts = counter("engine_failed_starts", "Engines that did not start in the place of one that died")
        self.step_age = gauge("engine_step_age_seconds", "Time since the last step while requests run or wait, else 0")
        self.quarantined = counter("requests_quarantined", "Requests refused because engines die with them")
        self.sent_away = counter("requests_sent_away", "Requests without a token that a drain has ended")
        self.refused = counter("requests_refused", "Requests refused because the queue was full")
        self.refused_by_share = counter(
            "requests_refused_by_share",
            "Requests refused because their caller held its share of the full queue",
        )
        self.callers = gauge("active_callers", "Callers with requests that run or wait")
        self.wasted_tokens = counter("wasted_tokens", "Tokens computed for readers that had gone")

        self._prompt_tokens = counter("prompt_tokens", "Prompt tokens of admitted requests")
        self._generation_tokens = counter("generation_tokens", "Tokens generated")
        self._prefix_queries = counter("prefix_cache_queries", "Prompt tokens looked up in the prefix cache")
        self._prefix_hits = counter("prefix_cache_hits", "Prompt tokens found in the prefix cache")
        self._preemptions = counter("num_preemptions", "Requests that lost their pages to others")
        self._places_ceded = counter("places_ceded", "Requests that made way for another caller's")
        self._evictions = counter("kv_cache_evicted_pages", "Cached pages that made room")
        self._merged = counter("kv_cache_merged_pages", "Pages given back because their content was there already")
        self._moved = counter("kv_cache_moved_pages", "Pages moved by defragmentation")
        self._drafts_proposed = counter("spec_decode_num_draft_tokens", "Draft tokens that were computed")
        self._drafts_accepted = counter("spec_decode_num_accepted_tokens", "Draft tokens that became output")
        self._drafts_declined = counter("spec_decode_num_declined_steps", "Steps whose drafts seemed dear")
        self._over_budget = counter("guide_masks_over_budget", "Requests that ended because a mask took too long")
        self._left_out = counter("guide_left_out_rows", "Rows of a step that went without them: their mask was late")
        self._guide_deaths = counter("guide_process_deaths", "Guides' processes that ended while they were needed")
        self._steps = counter("engine_steps", "Forward passes")
        self._overlapped = counter("engine_overlapped_steps", "Forward passes launched before the last one was read")
        self._overlap_wasted = counter("engine_overlap_wasted_tokens", "Tokens computed behind the end of a request")

        self._ttft = histogram("time_to_first_token_seconds", "Request received to first token", _LATENCY)
        self._inter_token = histogram("inter_token_latency_seconds", "Mean time between tokens of a request", _TOKEN)
        self._e2e = histogram("e2e_request_latency_seconds", "Request received to finish", _REQUEST)
        self._guide_compile = histogram(
            "guide_compile_seconds", "Guide received to the end of its compilation", _LATENCY
        )
        self._queue = histogram("request_queue_time_seconds", "Admission to first scheduled", _REQUEST)
        self._prefill = histogram("request_prefill_time_seconds", "First scheduled to first token", _REQUEST)
        self._decode = histogram("request_decode_time_seconds", "First token to last token", _REQUEST)
        self._request_prompt = histogram("request_prompt_tokens", "Prompt tokens of a request", _TOKENS)
        self._request_generation = histogram("request_generation_tokens", "Generated tokens of a request", _TOKENS)
        self._batch_tokens = histogram("iteration_tokens", "Tokens computed in a step", _TOKENS)
        success = Counter(
            "tandem_request_success", "Finished requests", ["model_name", "finished_reason"], registry=registry
        )
        self._finished = {number: success.labels(model_name, name) for number, name in FINISH_NAMES.items()}
        compilations = Counter(
            "tandem_guide_compilations",
            "Guides by how their compilation ended",
            ["model_name", "outcome"],
            registry=registry,
        )
        self._compilations = {each: compilations.labels(model_name, each.name.lower()) for each in CompileOutcome}
        phases = Histogram(
            "tandem_step_phase_seconds",
            "Time of a step's phases",
            ["model_name", "phase"],
            buckets=_STEP,
            registry=registry,
        )
        self._schedule, self._forward, self._sample = (
            phases.labels(model_name, phase) for phase in ("schedule", "forward", "sample")
        )
        self._last = Load()

    def engine_started(self) -> None:
        """Its counters begin at zero again."""
        self._last = Load()
        self.engine_up.set(1)

    def engine_ended(self) -> None:
        """Nothing runs."""
        self.engine_up.set(0)
        self._show(Load())

    def step(self, step: Step) -> None:
        """A step's frame has come."""
        load, last = step.load, self._last
        self._show(load)
        self._prompt_tokens.inc(load.prompt_tokens - last.prompt_tokens)
        self._prefix_queries.inc(load.prompt_tokens - last.prompt_tokens)
        self._prefix_hits.inc(load.cached_prompt_tokens - last.cached_prompt_tokens)
        self._generation_tokens.inc(load.output_tokens - last.output_tokens)
        self._preemptions.inc(load.preemptions - last.preemptions)
        self._places_ceded.inc(load.places_ceded - last.places_ceded)
        self._evictions.inc(load.evictions - last.evictions)
        self._merged.inc(load.merged_pages - last.merged_pages)
        self._moved.inc(load.moved_pages - last.moved_pages)
        self._drafts_proposed.inc(load.drafts_proposed - last.drafts_proposed)
        self._drafts_accepted.inc(load.drafts_accepted - last.drafts_accepted)
        self._drafts_declined.inc(load.drafts_declined - last.drafts_declined)
        self._over_budget.inc(load.masks_over_budget - last.masks_over_budget)
        self._left_out.inc(load.mask_left_out - last.mask_left_out)
        self._guide_deaths.inc(load.guide_process_deaths - last.guide_process_deaths)
        self._steps.inc(load.steps - last.steps)
        self._overlapped.inc(load.overlapped_steps - last.overlapped_steps)
        self._overlap_wasted.inc(load.overlap_wasted_tokens - last.overlap_wasted_tokens)
        self._last = load
        if step.prefill_tokens or step.decode_tokens:
            self._batch_tokens.observe(step.prefill_tokens + step.decode_tokens)
            self._schedule.observe(step.schedule_seconds)
            self._forward.observe(step.forward_seconds)
            self._sample.observe(step.sample_seconds)

    def _show(self, load: Load) -> None:
        self._running.set(load.running)
        self._waiting.set(load.waiting)
        self._waiting_tokens.set(load.waiting_tokens)
        total = max(1, load.pages_total)
        self._cache_usage.set(load.pages_referenced / total)
        self._cache_cached.set(load.pages_cached / total)
        self._guide_processes.set(load.guide_processes)
        self._guide_memory.set(load.guide_memory_bytes)

    def guide_compiled(self, outcome: CompileOutcome, seconds: float) -> None:
        """A guide was compiled, or was not."""
        self._compilations[outcome].inc()
        self._guide_compile.observe(seconds)

    def first_token(self, seconds: float) -> None:
        """A request's first token has come to the front."""
        self._ttft.observe(seconds)

    def finished(self, ended: Ended, prompt_tokens: int, output_tokens: int, seconds: float) -> None:
        """A request has finished."""
        self._finished[ended.reason].inc()
        self._e2e.observe(seconds)
        self._queue.observe(ended.queue_seconds)
        self._prefill.observe(ended.prefill_seconds)
        self._decode.observe(ended.decode_seconds)
        self._request_prompt.observe(prompt_tokens)
        self._request_generation.observe(output_tokens)
        if output_tokens > 1:
            self._inter_token.observe(ended.decode_seconds / (output_tokens - 1))
