"""The metrics of the tokenizer service, beside those that every service has."""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import accumulate
from operator import add

import numpy as np
from prometheus_client import Counter, Gauge, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from tandem.common.metrics import ServiceMetrics
from tandem.tokenizer.encode_cache import EncodeCache
from tandem.tokenizer.rpc.small_encodes import SmallCounts

_TOKEN_BUCKETS = (1, 4, 16, 64, 256, 1024, 4096, 16_384, 65_536, 262_144, 1_048_576)
_BOUNDS = (*map(floatToGoString, _TOKEN_BUCKETS), "+Inf")
_WAIT_BUCKETS = (0.0001, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)


class EncodedTexts:
    """Counts what one tokenizer has encoded. Safe to use from many threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._inputs = [0] * (len(_TOKEN_BUCKETS) + 1)  # by their number of tokens
        self._input_tokens = 0
        self._tokens = 0
        self._bytes = 0
        self.small = SmallCounts(_TOKEN_BUCKETS)  # of requests that are answered at once

    def add(self, size: int = 0, tokens: int = 0) -> None:
        """Counts text of that many bytes, and tokens made of text, but no input."""
        with self._lock:
            self._bytes += size
            self._tokens += tokens

    def add_input(self, size: int, tokens: int) -> None:
        """Counts one input, its text and its tokens."""
        with self._lock:
            self._inputs[bisect_left(_TOKEN_BUCKETS, tokens)] += 1
            self._input_tokens += tokens
            self._tokens += tokens
            self._bytes += size

    def add_inputs(self, *tokens: int) -> None:
        """Counts inputs of so many tokens each, but neither text nor tokens."""
        if len(tokens) == 1:  # numpy would take five microseconds
            with self._lock:
                self._inputs[bisect_left(_TOKEN_BUCKETS, tokens[0])] += 1
                self._input_tokens += tokens[0]
            return
        counts = np.bincount(np.searchsorted(_TOKEN_BUCKETS, tokens), minlength=len(self._inputs)).tolist()
        with self._lock:
            self._inputs = list(map(add, self._inputs, counts))
            self._input_tokens += sum(tokens)

    def add_to(
        self, tokenizer: str, tokens: CounterMetricFamily, size: CounterMetricFamily, inputs: HistogramMetricFamily
    ) -> None:
        """Adds what was counted to the families."""
        small_size, small_tokens, small_inputs = self.small.read()
        with self._lock:
            tokens.add_metric((tokenizer,), self._tokens + small_tokens)
            size.add_metric((tokenizer,), self._bytes + small_size)
            counts = accumulate(map(add, self._inputs, small_inputs))
            buckets = list(zip(_BOUNDS, counts, strict=True))
            inputs.add_metric((tokenizer,), buckets, self._input_tokens + small_tokens)


class _EncodedCollector(Collector):
    def __init__(self, encoded: Mapping[str, EncodedTexts]) -> None:
        self._encoded = encoded

    def describe(self) -> Iterable[Metric]:
        return self.collect()

    def collect(self) -> Iterable[Metric]:
        labels = ("tokenizer",)
        tokens = CounterMetricFamily("tandem_tokenizer_encoded_tokens", "Tokens made from text.", labels=labels)
        size = CounterMetricFamily("tandem_tokenizer_encoded_bytes", "Text that was encoded, in bytes.", labels=labels)
        inputs = HistogramMetricFamily("tandem_tokenizer_input_tokens", "Tokens of one input.", labels=labels)
        for name, encoded in list(self._encoded.items()):
            encoded.add_to(name, tokens, size, inputs)
        return tokens, size, inputs


@dataclass(frozen=True, slots=True)
class NamedMetrics:
    """The metrics of one tokenizer; looking labels up costs more than counting."""

    encoded: EncodedTexts
    decoded_tokens: Counter
    decoded_bytes: Counter
    streams: Counter
    stop_matches: Counter
    tool_calls: Callable[[str, str], Counter]  # by format and result, "complete" or "broken"


class _CacheCollector(Collector):
    """Reads the caches at each scrape, so that counting costs an encode nothing."""

    def __init__(self, caches: Mapping[str, EncodeCache]) -> None:
        self._caches = caches

    def collect(self) -> Iterable[Metric]:
        lookups = CounterMetricFamily(
            "tandem_tokenizer_cache_lookups", "Texts looked up in the encode cache.", labels=("tokenizer", "result")
        )
        size = GaugeMetricFamily(
            "tandem_tokenizer_cache_bytes", "Memory that the encode cache takes.", labels=("tokenizer",)
        )
        for name, cache in list(self._caches.items()):
            lookups.add_metric((name, "hit"), cache.hits)
            lookups.add_metric((name, "miss"), cache.misses)
            size.add_metric((name,), cache.bytes)
        return lookups, size


class TokenizerMetrics(ServiceMetrics):
    """| metric                                   | type      | meaning                                        |
    |------------------------------------------|-----------|------------------------------------------------|
    | tandem_tokenizer_encoded_tokens_total    | counter   | tokens made from text, by tokenizer            |
    | tandem_tokenizer_encoded_bytes_total     | counter   | text they were made from, in bytes             |
    | tandem_tokenizer_input_tokens            | histogram | tokens of one input                            |
    | tandem_tokenizer_decoded_tokens_total    | counter   | ids turned into text, streams included         |
    | tandem_tokenizer_decoded_bytes_total     | counter   | text they gave, in bytes                       |
    | tandem_tokenizer_streams_total           | counter   | streams that were opened                       |
    | tandem_tokenizer_stop_matches_total      | counter   | streams that a stop string ended               |
    | tandem_tokenizer_tool_calls_total        | counter   | calls in answers, by format and result         |
    | tandem_tokenizer_stream_messages_total   | counter   | messages of DecodeStream                       |
    | tandem_tokenizer_stream_requests_total   | counter   | requests in them: a batch has many             |
    | tandem_tokenizer_stream_errors_total     | counter   | requests of a batch that were refused, by code |
    | tandem_tokenizer_cache_lookups_total     | counter   | texts looked up in the encode cache, by result |
    | tandem_tokenizer_cache_bytes             | gauge     | memory that it takes, by tokenizer             |
    | tandem_tokenizer_open_streams            | gauge     | streams that are open now                      |
    | tandem_tokenizer_pool_queued             | gauge     | jobs that wait for a thread                    |
    | tandem_tokenizer_pool_running            | gauge     | jobs that run in a thread                      |
    | tandem_tokenizer_pool_wait_seconds       | histogram | how long a job waited                          |
    | tandem_tokenizer_pool_refused_total      | counter   | jobs refused because too many waited           |
    | tandem_tokenizer_chat_refused_total      | counter   | conversations refused for the same reason      |
    """

    def __init__(self) -> None:
        super().__init__("tandem-tokenizer")

        def counter(name: str, words: str, *labels: str) -> Counter:
            return Counter(f"tandem_tokenizer_{name}", words, labels, registry=self.registry)

        def gauge(name: str, words: str) -> Gauge:
            return Gauge(f"tandem_tokenizer_{name}", words, registry=self.registry)

        self._decoded_tokens = counter("decoded_tokens_total", "Ids turned into text.", "tokenizer")
        self._decoded_bytes = counter("decoded_bytes_total", "Text decoded from ids, in bytes.", "tokenizer")
        self._streams = counter("streams_total", "Decode streams that were opened.", "tokenizer")
        self._stop_matches = counter("stop_matches_total", "Decode streams ended by a stop string.", "tokenizer")
        self._tool_calls = counter(
            "tool_calls_total",
            "Calls of tools in answers, complete or broken.",
            "tokenizer",
            "format",
            "result",
        )
        self.stream_messages = counter("stream_messages_total", "Messages received by DecodeStream.")
        self.stream_requests = counter("stream_requests_total", "Requests in DecodeStream messages; a batch has many.")
        self.stream_errors = counter("stream_errors_total", "Requests of a batch that were refused.", "grpc_code")
        self._encoded: dict[str, EncodedTexts] = {}
        self.registry.register(_EncodedCollector(self._encoded))
        self._caches: dict[str, EncodeCache] = {}
        self.registry.register(_CacheCollector(self._caches))
        self.chat_refused = counter("chat_refused_total", "Conversations refused because too many were queued.")
        self.open_streams = gauge("open_streams", "Decode streams that are open now.")
        self.pool_queued = gauge("pool_queued", "Jobs that wait for a thread.")
        self.pool_running = gauge("pool_running", "Jobs that run in a thread.")
        self.pool_refused = counter("pool_refused_total", "Jobs refused because too many were queued.")
        self.pool_wait = Histogram(
            "tandem_tokenizer_pool_wait_seconds",
            "How long a job waited for a thread.",
            buckets=_WAIT_BUCKETS,
            registry=self.registry,
        )

    def named(self, tokenizer: str, cache: EncodeCache) -> NamedMetrics:
        """Returns the metrics of one tokenizer; ask once and keep them. From now on `cache` is the one that is
        shown."""
        self._caches[tokenizer] = cache
        return NamedMetrics(
            self._encoded.setdefault(tokenizer, EncodedTexts()),
            self._decoded_tokens.labels(tokenizer),
            self._decoded_bytes.labels(tokenizer),
            self._streams.labels(tokenizer),
            self._stop_matches.labels(tokenizer),
            partial(self._tool_calls.labels, tokenizer),
        )
