"""The worker's metrics under vLLM's names, for what scrapes pods and knows only those: endpoint pickers, autoscalers
and vLLM's published dashboard. Prometheus' own way is the recording rules in `deploy/prometheus/rules/recording.yml`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from prometheus_client import CollectorRegistry
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

# Behind `tandem_` here, behind `vllm:` there.
VLLM_NAMES = (
    "num_requests_running",
    "num_requests_waiting",
    "kv_cache_usage_perc",
    "cache_config_info",
    "num_preemptions",
    "prompt_tokens",
    "generation_tokens",
    "prefix_cache_queries",
    "prefix_cache_hits",
    "request_success",
    "time_to_first_token_seconds",
    "inter_token_latency_seconds",
    "request_time_per_output_token_seconds",
    "e2e_request_latency_seconds",
    "request_queue_time_seconds",
    "request_prefill_time_seconds",
    "request_decode_time_seconds",
    "request_prompt_tokens",
    "request_generation_tokens",
    "request_max_num_generation_tokens",
)


class VllmNames(Collector):
    """Shows metrics a second time."""

    def __init__(self, metrics: Sequence[Collector], registry: CollectorRegistry) -> None:
        self._metrics = metrics
        registry.register(self)

    def collect(self) -> Iterable[Metric]:
        """Yields the metrics of `VLLM_NAMES`, renamed."""
        for metric in self._metrics:
            for family in metric.collect():
                name = family.name.removeprefix("tandem_")
                if name in VLLM_NAMES:
                    other = Metric(f"vllm:{name}", family.documentation, family.type)
                    other.samples = [
                        each._replace(name="vllm:" + each.name.removeprefix("tandem_"))
                        for each in family.samples
                        if not each.name.endswith("_created")
                    ]
                    yield other
