"""Limits the elements of a large request to the worker (`tandem.common.message_limits`), by the contract."""

from __future__ import annotations

from tandem.common.message_limits import MessageLimits, limits_of_service
from tandem.inference.v1 import admin_pb2, inference_pb2


def request_limits() -> dict[str, MessageLimits]:
    """Returns the limits by the path of the method."""
    services = (
        inference_pb2.DESCRIPTOR.services_by_name["InferenceService"],
        admin_pb2.DESCRIPTOR.services_by_name["WorkerAdminService"],
    )
    return {path: limits for service in services for path, limits in limits_of_service(service).items()}
