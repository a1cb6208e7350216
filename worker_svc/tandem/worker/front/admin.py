"""Serves the worker's control plane: the front answers what it knows itself, and passes the rest on to the engine."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Protocol

import grpc
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass
from google.protobuf.timestamp_pb2 import Timestamp

from tandem.common.by_name import fields_of
from tandem.common.callers import Metadata
from tandem.common.contract import limit_violations
from tandem.common.errors import ServiceError, invalid_argument
from tandem.common.run_service import Lifecycle
from tandem.common.version import version
from tandem.inference.v1 import admin_pb2 as pb
from tandem.inference.v1 import admin_pb2_grpc
from tandem.limits.fields import limits_of
from tandem.worker.front.admission import Admission
from tandem.worker.front.supervisor import EngineSupervisor
from tandem.worker.settings import WorkerSettings

_SERVICE = pb.DESCRIPTOR.services_by_name["WorkerAdminService"]
# What only looks is for everybody.
OPERATOR_METHODS = tuple(
    f"/{_SERVICE.full_name}/{rpc}" for rpc in _SERVICE.methods_by_name if not rpc.startswith("Get")
)


class Worker(Protocol):
    """What the control plane needs of the worker; `WorkerService` has it."""

    settings: WorkerSettings
    supervisor: EngineSupervisor
    admission: Admission
    lifecycle: Lifecycle | None
    model_name: str
    fingerprint: str
    started_at: float

    def serves(self, model: str) -> None:
        """Raises NOT_FOUND unless `model` is empty, or the one that is served or an adapter beside it."""
        ...

    def operator_refusal(self, metadata: Metadata) -> ServiceError | None:
        """Returns why a caller that was let in may not do what operators do."""
        ...


class AdminServicer(admin_pb2_grpc.WorkerAdminServiceServicer):
    """Implements admin.proto. RPCs that are not here are methods of the engine's `Commands`."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker

    async def GetModel(  # noqa: N802
        self, request: pb.GetModelRequest, context: grpc.aio.ServicerContext[pb.GetModelRequest, pb.GetModelResponse]
    ) -> pb.GetModelResponse:
        worker = self._worker
        worker.serves(request.model)
        known = fields_of(pb.GetModelResponse, worker.supervisor.require_info())
        name = request.model or worker.model_name
        return pb.GetModelResponse(name=name, tokenizer_fingerprint=worker.fingerprint, **known)

    async def GetServer(  # noqa: N802
        self, request: pb.GetServerRequest, context: grpc.aio.ServicerContext[pb.GetServerRequest, pb.GetServerResponse]
    ) -> pb.GetServerResponse:
        worker, settings = self._worker, self._worker.settings
        return pb.GetServerResponse(
            version=version(),
            state=self._state(),
            start_time=Timestamp(seconds=int(worker.started_at)),
            max_waiting_requests=settings.max_waiting_requests,
            max_waiting_tokens=settings.max_waiting_tokens,
            engine_restarts=worker.supervisor.restarts,
            **fields_of(pb.GetServerResponse, worker.supervisor.info),
        )

    async def GetLoad(  # noqa: N802
        self, request: pb.GetLoadRequest, context: grpc.aio.ServicerContext[pb.GetLoadRequest, pb.GetLoadResponse]
    ) -> pb.GetLoadResponse:
        if request.check_integrity:
            refusal = self._worker.operator_refusal(tuple(context.invocation_metadata() or ()))
            if refusal is not None:
                raise refusal
            response = pb.GetLoadResponse.FromString(await self.forward("GetLoad", request))
        else:
            load = self._worker.supervisor.load
            response = pb.GetLoadResponse(**fields_of(pb.GetLoadResponse, load, load.statistics))
        response.held_requests = self._worker.admission.requests
        return response

    async def SetDraining(  # noqa: N802
        self,
        request: pb.SetDrainingRequest,
        context: grpc.aio.ServicerContext[pb.SetDrainingRequest, pb.SetDrainingResponse],
    ) -> pb.SetDrainingResponse:
        assert self._worker.lifecycle is not None
        self._worker.lifecycle.set_draining(request.draining)
        return pb.SetDrainingResponse(state=self._state())

    async def forward(self, rpc: str, request: Message) -> bytes:
        """Passes an RPC on to the engine and returns its serialized response."""
        if violations := list(limit_violations(request, limits_of(_SERVICE.methods_by_name[rpc].input_type))):
            raise invalid_argument(violations)
        return await self._worker.supervisor.command(rpc, request.SerializeToString())

    def _state(self) -> pb.ServerState.ValueType:
        worker = self._worker
        assert worker.lifecycle is not None
        if worker.lifecycle.state == "draining":
            return pb.SERVER_STATE_DRAINING
        if worker.supervisor.running:
            return pb.SERVER_STATE_SERVING if worker.lifecycle.state == "serving" else pb.SERVER_STATE_STARTING
        return pb.SERVER_STATE_ENGINE_RESTARTING if worker.supervisor.info else pb.SERVER_STATE_STARTING


def admin_servicer(worker: Worker) -> AdminServicer:
    """Makes a servicer with a method for every RPC of the service."""
    others = _SERVICE.methods_by_name.keys() - vars(AdminServicer).keys()
    complete = type("AdminServicer", (AdminServicer,), {rpc: _forwarding(rpc) for rpc in others})
    servicer: AdminServicer = complete(worker)
    return servicer


def _forwarding(rpc: str) -> Callable[[AdminServicer, Message, object], Awaitable[Message]]:
    response = GetMessageClass(_SERVICE.methods_by_name[rpc].output_type)

    async def forwarded(self: AdminServicer, request: Message, context: object) -> Message:
        return response.FromString(await self.forward(rpc, request))

    return forwarded
