"""Metrics of the worker. Stems, labels and buckets are vLLM's where it has them, so that dashboards carry over.

queue    admission to first scheduled         prefill  first scheduled to first token
decode   first token to last token            e2e      request received to finish
time to first token: request received to first token in the front, queueing in the front included
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeVar

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector
from prometheus_client.metrics import MetricWrapperBase

from tandem.worker.engine.account import FinishReason
from tandem.worker.engine.ends import Failure
from tandem.worker.engine.guides.outcome import CompileOutcome
from tandem.worker.engine.load import EngineStatistics, Load, metrics_of
from tandem.worker.engine.process.messages import Ended, EngineInfo, Step
from tandem.worker.front.cards import CardMetrics
from tandem.worker.front.token_gaps import TokenGaps
from tandem.worker.front.vllm_names import VllmNames

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

_Metric = TypeVar("_Metric", bound=MetricWrapperBase)

# Where a label of vLLM's is another word than the contract's.
_FINISHED = {FinishReason.MAX_TOKENS: "length", FinishReason.STOP_TOKEN: "stop", FinishReason.CANCELLED: "abort"}


class WorkerMetrics:
    """Records the worker's metrics. Children are made once: a look-up by label costs four times an increment."""

    def __init__(
        self,
        registry: CollectorRegistry,
        model_name: str,
        *,
        engine_pid: Callable[[], int | None] = lambda: None,
        vllm_names: bool = False,
    ) -> None:
        made: list[MetricWrapperBase] = []

        def kept(metric: _Metric) -> _Metric:
            made.append(metric)
            return metric

        def gauge(name: str, text: str) -> Gauge:
            return kept(Gauge(f"tandem_{name}", text, ["model_name"], registry=registry)).labels(model_name)

        def counter(name: str, text: str) -> Counter:
            return kept(Counter(f"tandem_{name}", text, ["model_name"], registry=registry)).labels(model_name)

        def histogram(name: str, text: str, buckets: tuple[float, ...]) -> Histogram:
            metric = Histogram(f"tandem_{name}", text, ["model_name"], buckets=buckets, registry=registry)
            return kept(metric).labels(model_name)

        self._load = [(name, each.share_of, gauge(each.name, each.help)) for name, each in metrics_of(Load)]
        self._shown = [0.0] * len(self._load)
        self._counters = [(name, counter(each.name, each.help)) for name, each in metrics_of(EngineStatistics)]
        self.engine_up = gauge("engine_up", "1 while the engine is ready")
        self.engine_restarts = counter("engine_restarts", "Engines started after one died")
        self.engine_stalls = counter("engine_stalls", "Engines killed because they stopped responding")
        self.failed_starts = counter("engine_failed_starts", "Restarts of the engine that failed")
        self.step_age = gauge("engine_step_age_seconds", "Time since the last step while requests run or wait, else 0")
        self.quarantined = counter("requests_quarantined", "Requests refused because engines crash on them")
        self.sent_away = counter("requests_sent_away", "Requests without a token that a drain ended")
        self.refused = counter("requests_refused", "Requests refused because the queue was full")
        self.refused_by_share = counter(
            "requests_refused_by_share",
            "Requests refused because their caller held its share of the full queue",
        )
        self.callers = gauge("active_callers", "Callers with requests that run or wait")
        self.page_subscribers = gauge("page_event_subscribers", "Gateways that follow the cached pages")
        self._shared_deltas = counter("shared_deltas", "Deltas of requests that were sent in StreamDeltas calls")
        self._shared_messages = counter("shared_delta_messages", "Messages of StreamDeltas calls")
        self.wasted_tokens = counter("wasted_tokens", "Tokens computed for readers that had gone")

        self._ttft = histogram("time_to_first_token_seconds", "Request received to first token", _LATENCY)
        self._gaps = TokenGaps(
            "tandem_inter_token_latency_seconds",
            "Time between a request's tokens, each gap once",
            _TOKEN,
            {"model_name": model_name},
            registry,
        )
        self._per_token = histogram(
            "request_time_per_output_token_seconds", "Mean time between tokens of a request", _TOKEN
        )
        self._e2e = histogram("e2e_request_latency_seconds", "Request received to finish", _REQUEST)
        self._guide_compile = histogram(
            "guide_compile_seconds", "Guide received to the end of its compilation", _LATENCY
        )
        self._queue = histogram("request_queue_time_seconds", "Admission to first scheduled", _REQUEST)
        self._prefill = histogram("request_prefill_time_seconds", "First scheduled to first token", _REQUEST)
        self._decode = histogram("request_decode_time_seconds", "First token to last token", _REQUEST)
        self._request_prompt = histogram("request_prompt_tokens", "Prompt tokens of a request", _TOKENS)
        self._request_generation = histogram("request_generation_tokens", "Generated tokens of a request", _TOKENS)
        self._longest_output = histogram(
            "request_max_num_generation_tokens", "Generated tokens of a request's longest sample", _TOKENS
        )
        self._batch_tokens = histogram("iteration_tokens", "Tokens computed in a step", _TOKENS)
        success = kept(
            Counter("tandem_request_success", "Finished requests", ["model_name", "finished_reason"], registry=registry)
        )
        self._finished = {
            int(reason): success.labels(model_name, _FINISHED.get(reason, reason.name.lower()))
            for reason in (*FinishReason, *Failure)
        }
        self._requests = Counter(
            "tandem_requests_by_name",
            "Admitted requests by what they are for, the model or an adapter beside it",
            ["model_name", "name"],
            registry=registry,
        )
        self._requests.labels(model_name, model_name)
        compilations = Counter(
            "tandem_guide_compilations",
            "Guide compilations by outcome",
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
        self._weights = gauge("model_weights_bytes", "Size of the weights in memory")
        self._cache_bytes = gauge("kv_cache_bytes", "Size of the KV cache")
        self._cache_tokens = gauge("kv_cache_tokens", "Tokens that the KV cache has room for")
        self.most_running = gauge("max_running_requests", "Requests that may run at once")
        self._cache = kept(
            Gauge(
                "tandem_cache_config_info",
                "1; the labels say how the KV cache is cut into pages",
                ["model_name", "block_size", "num_gpu_blocks", "cache_dtype"],
                registry=registry,
            )
        )
        self._model_name = model_name
        self._last = EngineStatistics()
        # tandem_engine_process_resident_memory_bytes, ..._cpu_seconds_total and others
        ProcessCollector(namespace="tandem_engine", pid=lambda: engine_pid() or "none", registry=registry)
        CardMetrics(registry)
        if vllm_names:
            VllmNames([*made, self._gaps], registry)

    def engine_started(self, info: EngineInfo) -> None:
        """Shows what the engine has; forgets the last counters, since those of a new engine begin at zero."""
        self._last = EngineStatistics()
        self.engine_up.set(1)
        self.most_running.set(info.max_running_requests)
        self._weights.set(info.weight_bytes)
        self._cache_bytes.set(info.kv_cache_bytes)
        self._cache_tokens.set(info.kv_cache_tokens)
        self._cache.clear()
        pages = info.kv_cache_tokens // info.page_size
        self._cache.labels(self._model_name, info.page_size, pages, info.kv_cache_dtype).set(1)

    def admitted(self, name: str) -> None:
        """Counts a request for the model, or for an adapter beside it."""
        self._requests.labels(self._model_name, name or self._model_name).inc()

    def engine_ended(self) -> None:
        """Sets the gauges to an engine that is gone."""
        self.engine_up.set(0)
        self._show(Load())

    def step(self, step: Step) -> None:
        """Records what a step's frame tells."""
        self._show(step.load)
        last, self._last = self._last, step.load.statistics
        for name, counter in self._counters:
            if more := getattr(self._last, name) - getattr(last, name):
                counter.inc(more)
        if step.prefill_tokens or step.decode_tokens:
            self._batch_tokens.observe(step.prefill_tokens + step.decode_tokens)
            self._schedule.observe(step.schedule_seconds)
            self._forward.observe(step.forward_seconds)
            self._sample.observe(step.sample_seconds)

    def _show(self, load: Load) -> None:
        for place, (name, share_of, gauge) in enumerate(self._load):
            value = getattr(load, name)
            if share_of:
                value /= max(1, getattr(load, share_of))
            if value != self._shown[place]:  # most stay as they were from step to step
                self._shown[place] = value
                gauge.set(value)

    def guide_compiled(self, outcome: CompileOutcome, seconds: float) -> None:
        """Records how, and after how long, a compilation ended."""
        self._compilations[outcome].inc()
        self._guide_compile.observe(seconds)

    def first_token(self, seconds: float, exemplar: dict[str, str] | None = None) -> None:
        """Records the time to a request's first token; `exemplar` is its trace, where it has one."""
        self._ttft.observe(seconds, exemplar)

    def shared_deltas(self, count: int) -> None:
        """Records a message with so many requests' deltas."""
        self._shared_deltas.inc(count)
        self._shared_messages.inc()

    def gaps(self, seconds: Mapping[float, int]) -> None:
        """Records the times between tokens and those before them, and how often each."""
        self._gaps.observe(seconds)

    def all_finished(self, longest: int) -> None:
        """Records the end of a request's last sample, and the tokens of the longest."""
        self._longest_output.observe(longest)

    def finished(
        self,
        ended: Ended,
        prompt_tokens: int,
        output_tokens: int,
        seconds: float,
        exemplar: dict[str, str] | None = None,
    ) -> None:
        """Records a finished request; `exemplar` is its trace, where it has one."""
        self._finished[ended.reason].inc()
        self._e2e.observe(seconds, exemplar)
        self._queue.observe(ended.statistics.queue_seconds, exemplar)
        self._prefill.observe(ended.statistics.prefill_seconds, exemplar)
        self._decode.observe(ended.statistics.decode_seconds, exemplar)
        self._request_prompt.observe(prompt_tokens)
        self._request_generation.observe(output_tokens)
        if output_tokens > 1:
            self._per_token.observe(ended.statistics.decode_seconds / (output_tokens - 1))
