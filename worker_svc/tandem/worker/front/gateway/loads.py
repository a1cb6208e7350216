"""Tells the load in a gateway's words. KV-cache usage is what running requests hold: cached prefixes can go."""

from __future__ import annotations

import time
from typing import Protocol

from smg_grpc_proto import vllm_engine_pb2 as vllm
from smg_grpc_proto.generated import common_pb2 as common

from tandem.worker.engine.load import Load
from tandem.worker.engine.process.messages import EngineInfo

_WINDOW = 2.0  # seconds that a rate is taken over, at least


class Rate:
    """The rate of a counter over the last seconds; asking for it is all the work there is."""

    def __init__(self) -> None:
        self._older = self._newer = (0.0, 0)

    def of(self, count: int, now: float) -> float:
        """Returns its growth a second; a counter that fell has begun anew."""
        if count < self._newer[1] or not self._newer[0]:
            self._older = self._newer = (now, count)
        elif now - self._newer[0] >= _WINDOW:
            self._older, self._newer = self._newer, (now, count)
        began, first = self._older
        return (count - first) / (now - began) if now > began else 0.0


class Engine(Protocol):
    """What is asked of the supervisor."""

    info: EngineInfo | None
    load: Load

    @property
    def step_age(self) -> float:
        """Returns the seconds since the last step; 0 without work."""
        ...


class Loads:
    """Tells the load of one engine."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._rate = Rate()

    def scheduler(self) -> vllm.SchedulerLoad:
        """Returns the record that is polled."""
        load, size = self._engine.load, self._page_size
        return vllm.SchedulerLoad(
            num_running_reqs=load.running_requests,
            num_waiting_reqs=load.waiting_requests,
            num_total_reqs=load.running_requests + load.waiting_requests,
            num_used_tokens=load.pages_referenced * size,
            max_total_num_tokens=load.pages_total * size,
            token_usage=self._usage,
            gen_throughput=self._throughput(),
            cache_hit_rate=self._hit_rate,
            utilization=load.running_requests / max(1, self._max_running),
            max_running_requests=self._max_running,
            num_waiting_uncached_tokens=load.waiting_tokens,
        )

    def engine(self, sample: int, pending_tokens: int, *, more: bool = False) -> common.EngineLoad:
        """Returns the record that is pushed, the `sample`th of its stream. `pending_tokens`: prompt tokens of requests
        without output; `more`: with what no choice of a worker depends on."""
        load, size = self._engine.load, self._page_size
        record = common.EngineLoad(
            running_requests=load.running_requests,
            waiting_requests=load.waiting_requests,
            waiting_uncached_tokens=load.waiting_tokens,
            token_usage=self._usage,
            active_token_usage=self._usage,
            gen_throughput=self._throughput(),
            max_running_requests=self._max_running,
            sample=sample,
            engine_reports_steps=True,
            prefill_pending_tokens=pending_tokens,
        )
        if (age := self._engine.step_age) > 0:
            record.engine_silence_ms = round(age * 1000)
        if more:
            record.cache_hit_rate = self._hit_rate
            record.num_used_tokens = load.pages_referenced * size
            record.max_total_num_tokens = load.pages_total * size
        return record

    @property
    def _page_size(self) -> int:
        return self._engine.info.page_size if self._engine.info is not None else 0

    @property
    def _max_running(self) -> int:
        return self._engine.info.max_running_requests if self._engine.info is not None else 0

    @property
    def _usage(self) -> float:
        load = self._engine.load
        return load.pages_referenced / load.pages_total if load.pages_total else 0.0

    @property
    def _hit_rate(self) -> float:
        counted = self._engine.load.statistics
        return counted.cached_prompt_tokens / counted.prompt_tokens if counted.prompt_tokens else 0.0

    def _throughput(self) -> float:
        return self._rate.of(self._engine.load.statistics.output_tokens, time.monotonic())
