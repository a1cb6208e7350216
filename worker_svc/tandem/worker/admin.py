"""The worker's control plane."""

from __future__ import annotations

from typing import TYPE_CHECKING

import grpc
from google.protobuf.timestamp_pb2 import Timestamp

from tandem.common.metrics import version
from tandem.inference.v1 import admin_pb2 as pb
from tandem.inference.v1 import admin_pb2_grpc

if TYPE_CHECKING:
    from tandem.worker.server import WorkerService


class AdminServicer(admin_pb2_grpc.WorkerAdminServiceServicer):
    """See admin.proto."""

    def __init__(self, worker: WorkerService) -> None:
        self._worker = worker

    async def GetModel(  # noqa: N802
        self, request: pb.GetModelRequest, context: grpc.aio.ServicerContext[pb.GetModelRequest, pb.GetModelResponse]
    ) -> pb.GetModelResponse:
        worker = self._worker
        worker.serves(request.model)
        info = worker.supervisor.require_info()
        return pb.GetModelResponse(
            name=worker.model_name,
            architecture=info.architecture,
            checkpoint_format=info.checkpoint_format,
            vocabulary_size=info.vocabulary_size,
            context_length=info.context_length,
            eos_ids=info.eos_ids,
            bos_id=info.bos_id,
            parameters=info.parameters,
            dtype=info.dtype,
            quantization=info.quantization,
            layers=info.layers,
            hidden_size=info.hidden_size,
            attention_heads=info.attention_heads,
            kv_heads=info.kv_heads,
            head_dim=info.head_dim,
            tokenizer_fingerprint=worker.fingerprint,
        )

    async def GetServer(  # noqa: N802
        self, request: pb.GetServerRequest, context: grpc.aio.ServicerContext[pb.GetServerRequest, pb.GetServerResponse]
    ) -> pb.GetServerResponse:
        worker, settings = self._worker, self._worker.settings
        response = pb.GetServerResponse(
            version=version(),
            state=self._state(),
            start_time=Timestamp(seconds=int(worker.started_at)),
            max_batch_tokens=settings.step_tokens,
            max_running_requests=settings.max_running_requests,
            max_waiting_requests=settings.max_waiting_requests,
            max_waiting_tokens=settings.max_waiting_tokens,
            engine_restarts=worker.supervisor.restarts,
        )
        info = worker.supervisor.info
        if info is not None:
            response.MergeFrom(
                pb.GetServerResponse(
                    device=info.device,
                    device_name=info.device_name,
                    torch_version=info.torch_version,
                    threads=info.threads,
                    weight_bytes=info.weight_bytes,
                    kv_cache_bytes=info.kv_cache_bytes,
                    kv_cache_tokens=info.kv_cache_tokens,
                    kv_bytes_per_token=info.kv_bytes_per_token,
                    kv_cache_dtype=info.kv_cache_dtype,
                    page_size=info.page_size,
                    row_invariant=info.row_invariant,
                    tensor_parallel_ranks=info.ranks,
                )
            )
        return response

    async def GetLoad(  # noqa: N802
        self, request: pb.GetLoadRequest, context: grpc.aio.ServicerContext[pb.GetLoadRequest, pb.GetLoadResponse]
    ) -> pb.GetLoadResponse:
        supervisor = self._worker.supervisor
        reply = await supervisor.command("check") if request.check_integrity else None
        load = supervisor.load
        return pb.GetLoadResponse(
            running_requests=load.running,
            waiting_requests=load.waiting,
            waiting_tokens=load.waiting_tokens,
            pages_total=load.pages_total,
            pages_free=load.pages_free,
            pages_cached=load.pages_cached,
            pages_referenced=load.pages_referenced,
            steps=load.steps,
            prompt_tokens=load.prompt_tokens,
            cached_prompt_tokens=load.cached_prompt_tokens,
            output_tokens=load.output_tokens,
            preemptions=load.preemptions,
            evictions=load.evictions,
            merged_pages=load.merged_pages,
            moved_pages=load.moved_pages,
            draft_tokens_proposed=load.drafts_proposed,
            draft_tokens_accepted=load.drafts_accepted,
            integrity_ok=None if reply is None else not reply.error,
            integrity_error="" if reply is None else reply.error,
        )

    async def ClearPrefixCache(  # noqa: N802
        self,
        request: pb.ClearPrefixCacheRequest,
        context: grpc.aio.ServicerContext[pb.ClearPrefixCacheRequest, pb.ClearPrefixCacheResponse],
    ) -> pb.ClearPrefixCacheResponse:
        reply = await self._worker.supervisor.command("clear_cache")
        return pb.ClearPrefixCacheResponse(pages_cleared=reply.value)

    async def SetDraining(  # noqa: N802
        self,
        request: pb.SetDrainingRequest,
        context: grpc.aio.ServicerContext[pb.SetDrainingRequest, pb.SetDrainingResponse],
    ) -> pb.SetDrainingResponse:
        assert self._worker.lifecycle is not None
        self._worker.lifecycle.set_draining(request.draining)
        return pb.SetDrainingResponse(state=self._state())

    def _state(self) -> pb.ServerState.ValueType:
        worker = self._worker
        assert worker.lifecycle is not None
        if worker.lifecycle.state == "draining":
            return pb.SERVER_STATE_DRAINING
        if worker.supervisor.running:
            return pb.SERVER_STATE_SERVING if worker.lifecycle.state == "serving" else pb.SERVER_STATE_STARTING
        return pb.SERVER_STATE_ENGINE_RESTARTING if worker.supervisor.info else pb.SERVER_STATE_STARTING
