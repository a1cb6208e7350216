"""Answers a gateway. Each RPC translates, calls what serves our own contract, and translates back."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator, Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Protocol

import grpc
from google.protobuf.message import Message
from smg_grpc_proto import vllm_engine_pb2 as vllm
from smg_grpc_proto import vllm_engine_pb2_grpc
from smg_grpc_proto.generated import common_pb2 as common

from tandem.common.callers import Metadata
from tandem.common.errors import invalid_argument, unimplemented
from tandem.common.message_limits import Limit, MessageLimits
from tandem.common.run_service import Lifecycle
from tandem.common.version import version
from tandem.inference.v1 import admin_pb2
from tandem.inference.v1 import inference_pb2 as pb
from tandem.limits.fields import Kind, limits_of
from tandem.worker.front.gateway.answers import Answers
from tandem.worker.front.gateway.fields import refusals
from tandem.worker.front.gateway.kv_events import batch_message, snapshot_messages
from tandem.worker.front.gateway.loads import Loads
from tandem.worker.front.gateway.page_feed import PageFeed
from tandem.worker.front.gateway.requests import translated
from tandem.worker.front.gateway.tokenizer_archive import CHUNK_BYTES, TokenizerArchive
from tandem.worker.front.supervisor import EngineSupervisor
from tandem.worker.settings import WorkerSettings

_SERVICE = vllm.DESCRIPTOR.services_by_name["VllmEngine"]
NAME: str = _SERVICE.full_name
REACHABLE_WHILE_DRAINING = tuple(f"/{NAME}/{rpc}" for rpc in _SERVICE.methods_by_name if rpc != "Generate")
OPERATOR_METHODS = (f"/{NAME}/FlushCache",)
_BEAT_SECONDS = 1.0  # between two load records while nothing changes
_COALESCE_SECONDS = 0.1  # in which changes of the load become one record
_OURS = limits_of(pb.GenerateRequest.DESCRIPTOR)

Context = grpc.aio.ServicerContext[Any, Any]
Generate = Callable[[pb.GenerateRequest, Any], AsyncIterator[pb.GenerateResponse]]


class Worker(Protocol):
    """What a gateway is told about; `WorkerService` has it."""

    settings: WorkerSettings
    supervisor: EngineSupervisor
    lifecycle: Lifecycle | None
    model_name: str
    started_at: float

    def abort(self, request_ids: list[str], metadata: Metadata) -> list[str]:
        """Ends requests; returns those that were there."""
        ...

    @property
    def pending_prompt_tokens(self) -> int:
        """Counts the prompt tokens of requests without a token."""
        ...


def add_gateway(server: grpc.aio.Server, worker: Worker, generate: Generate, feed: PageFeed) -> None:
    """Adds the contract to a server."""
    servicer = GatewayServicer(worker, generate, feed)
    vllm_engine_pb2_grpc.add_VllmEngineServicer_to_server(servicer, server)


def request_limits() -> dict[str, MessageLimits]:
    """Returns the limits of large requests: those of our own contract where a field has become one of it."""
    ids = Limit(_OURS["prompt_ids"].bound)
    few = Limit(1024)
    given = {
        "TokenizedInput.input_ids": ids,
        "TokenizedInput.original_text": Limit(size=1 << 24),
        "SamplingParams.stop_token_ids": Limit(_OURS["stopping.stop_token_ids"].bound),
        "SamplingParams.logit_bias": Limit(_OURS["sampling.logit_bias"].bound),
        "SamplingParams.stop": Limit(1024, 1 << 16),
        "ChoiceConstraint.choices": Limit(1024, 1 << 16),
        "AbortRequest.request_ids": Limit(4096, 128),
    }
    limits = {}
    for rpc in ("Generate", "Abort"):
        message = _SERVICE.methods_by_name[rpc].input_type
        limits[f"/{NAME}/{rpc}"] = MessageLimits(message, _Given(given, few))
    return limits


class _Given(dict[str, Limit]):
    """Limits by name; what is refused anyway has one that is small."""

    def __init__(self, given: dict[str, Limit], others: Limit) -> None:
        super().__init__(given)
        self._others = others

    def __contains__(self, name: object) -> bool:
        return True

    def __missing__(self, name: str) -> Limit:
        return self._others


class GatewayServicer(vllm_engine_pb2_grpc.VllmEngineServicer):  # type: ignore[misc]  # has no types
    """Implements `vllm.grpc.engine.VllmEngine`."""

    def __init__(self, worker: Worker, generate: Generate, feed: PageFeed) -> None:
        """Takes our own `generate`."""
        self._worker = worker
        self._generate = generate
        self._feed = feed
        self._loads = Loads(worker.supervisor)
        self._archive = TokenizerArchive(Path(worker.settings.model))

    async def Generate(  # noqa: N802
        self, request: vllm.GenerateRequest, context: Context
    ) -> AsyncIterator[vllm.GenerateResponse]:
        """Generates by our own Generate."""
        ours = translated(request, self._worker.supervisor.require_info().context_length)
        answers = Answers.to(request)
        async for message in self._generate(ours, context):
            for theirs in answers.take(message):
                yield theirs

    async def Abort(self, request: vllm.AbortRequest, context: Context) -> vllm.AbortResponse:  # noqa: N802
        """Ends requests."""
        _refuse(request)
        self._worker.abort(list(request.request_ids), tuple(context.invocation_metadata() or ()))
        return vllm.AbortResponse()

    async def HealthCheck(  # noqa: N802
        self, request: vllm.HealthCheckRequest, context: Context
    ) -> vllm.HealthCheckResponse:
        """Tells whether new requests should come here."""
        lifecycle = self._worker.lifecycle
        assert lifecycle is not None
        engine = "" if self._worker.supervisor.running else ", its engine is being restarted"
        return vllm.HealthCheckResponse(healthy=lifecycle.serving, message=f"{lifecycle.state}{engine}")

    async def GetModelInfo(  # noqa: N802
        self, request: vllm.GetModelInfoRequest, context: Context
    ) -> vllm.GetModelInfoResponse:
        """Tells what is served."""
        worker, info = self._worker, self._worker.supervisor.require_info()
        defaults = {
            name: int(value) if _OURS[f"sampling.{name}"].kind is Kind.INTEGER else value
            for name, value in info.sampling_defaults.items()
            if name != "repetition_window"  # penalties of this contract look at the whole context
        }
        return vllm.GetModelInfoResponse(
            model_path=worker.settings.model,
            is_generation=True,
            max_context_length=info.context_length,
            vocab_size=info.vocabulary_size,
            served_model_name=worker.model_name,
            tokenizer_path=worker.settings.model,
            model_type=info.architecture,
            eos_token_ids=info.eos_ids,
            bos_token_id=-1 if info.bos_id is None else info.bos_id,
            pad_token_id=-1,
            max_req_input_len=info.context_length - 1,
            default_sampling_params_json=json.dumps(defaults) if defaults else "",
        )

    async def GetServerInfo(  # noqa: N802
        self, request: vllm.GetServerInfoRequest, context: Context
    ) -> vllm.GetServerInfoResponse:
        """Tells what serves it."""
        worker, info, load = self._worker, self._worker.supervisor.info, self._worker.supervisor.load
        assert worker.lifecycle is not None
        return vllm.GetServerInfoResponse(
            active_requests=load.running_requests + load.waiting_requests,
            is_paused=not worker.lifecycle.accepting,
            uptime_seconds=time.time() - worker.started_at,
            server_type="vllm-grpc",  # the gateway's name of the contract
            data_parallel_size=1,
            kv_cache_dtype=info.kv_cache_dtype if info is not None else "",
            block_size=info.page_size if info is not None else 0,
            model_dtype=info.dtype if info is not None else "",
            max_num_seqs=info.max_running_requests if info is not None else 0,
            constrained_decoding_start="first_token",
        )

    async def GetLoads(self, request: vllm.GetLoadsRequest, context: Context) -> vllm.GetLoadsResponse:  # noqa: N802
        """Tells the load of the one rank."""
        _refuse(request)
        return vllm.GetLoadsResponse(
            timestamp=datetime.now(UTC).isoformat(),
            version=version(),
            dp_rank_count=1,
            loads=[] if request.dp_rank else [self._loads.scheduler()],
        )

    async def FlushCache(  # noqa: N802
        self, request: common.FlushCacheRequest, context: Context
    ) -> common.FlushCacheResponse:
        """Drops cached prefixes that no running request uses; running requests need not end for that."""
        _refuse(request)
        answer = await self._worker.supervisor.command("ClearPrefixCache", b"")
        count = admin_pb2.ClearPrefixCacheResponse.FromString(answer).pages_cleared
        return common.FlushCacheResponse(success=True, message=f"{count} pages cleared")

    async def GetTokenizer(  # noqa: N802
        self, request: common.GetTokenizerRequest, context: Context
    ) -> AsyncIterator[common.GetTokenizerChunk]:
        """Sends the tokenizer's files as a zip archive."""
        content, digest = await self._archive.content()
        for start in range(0, len(content), CHUNK_BYTES):
            last = start + CHUNK_BYTES >= len(content)
            yield common.GetTokenizerChunk(data=content[start : start + CHUNK_BYTES], sha256=digest if last else "")

    async def SubscribeKvEvents(  # noqa: N802
        self, request: common.SubscribeKvEventsRequest, context: Context
    ) -> AsyncIterator[common.KvEventBatch]:
        """Streams what happens to cached pages, with the load."""
        _refuse(request)
        feed = self._feed
        sample = 0

        def load_only(number: int) -> common.KvEventBatch:
            nonlocal sample
            sample += 1
            record = self._loads.engine(sample, self._worker.pending_prompt_tokens, more=True)
            record.load_only = True
            return common.KvEventBatch(sequence_number=number, timestamp=time.time(), load=record)

        with feed.subscribed() as wake:
            if request.load_records_before_first_batch:
                yield load_only(0)
            while not feed.known:
                wake.clear()
                await _wait(wake, _BEAT_SECONDS)
                if not feed.known and request.load_records_before_first_batch:
                    yield load_only(0)
            following = request.start_sequence_number
            told: object = None
            told_at = 0.0
            while True:
                wake.clear()
                batches = feed.since(following) if following else None
                messages: Iterator[common.KvEventBatch]
                if batches is None:  # begins, or lags behind what is kept
                    messages = snapshot_messages(list(feed.pages.values()), feed.number, time.time())
                    following = feed.number + 1
                else:
                    messages = map(batch_message, batches)
                    following += len(batches)
                for message in messages:
                    sample += 1
                    message.load.CopyFrom(self._loads.engine(sample, self._worker.pending_prompt_tokens))
                    yield message
                load = self._worker.supervisor.load
                now = (load.running_requests, load.waiting_requests, load.pages_referenced)
                if now != told or time.monotonic() - told_at >= _BEAT_SECONDS:
                    told, told_at = now, time.monotonic()
                    yield load_only(following - 1)
                await _wait(wake, _COALESCE_SECONDS)

    async def Embed(self, request: Message, context: Context) -> Message:  # noqa: N802
        """Is not served."""
        raise unimplemented(["Embed"])

    async def StartProfile(self, request: Message, context: Context) -> Message:  # noqa: N802
        """Is not served."""
        raise unimplemented(["StartProfile"])

    async def StopProfile(self, request: Message, context: Context) -> Message:  # noqa: N802
        """Is not served."""
        raise unimplemented(["StopProfile"])


def _refuse(request: Message) -> None:
    if violations := list(refusals(request)):
        raise invalid_argument(violations)


async def _wait(wake: asyncio.Event, seconds: float) -> None:
    """Waits for something new, but not longer."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await wake.wait()
