"""`python -m svc_common.healthcheck HOST:PORT [SERVICE]`: exit code 0 when the service says SERVING, 1 otherwise.

For container health checks: needs nothing that a server's image does not have. Without SERVICE it asks for liveness,
with one for readiness (grpc.health.v1).
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc  # type: ignore[import-untyped]


def serving_status(address: str, service: str, timeout: float) -> str:
    """SERVING, NOT_SERVING, SERVICE_UNKNOWN or UNKNOWN. Raises grpc.RpcError when there is no answer in `timeout` s."""
    with grpc.insecure_channel(address, options=[("grpc.enable_http_proxy", 0)]) as channel:
        request = health_pb2.HealthCheckRequest(service=service)
        response = health_pb2_grpc.HealthStub(channel).Check(request, timeout=timeout)
    return str(health_pb2.HealthCheckResponse.ServingStatus.Name(response.status))


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line."""
    parser = argparse.ArgumentParser(prog="svc_common.healthcheck", description="Ask a server for its health.")
    parser.add_argument("address", help="HOST:PORT")
    parser.add_argument("service", nargs="?", default="", help="full service name (readiness); none: liveness")
    parser.add_argument("--timeout", type=float, default=3.0, help="seconds (default %(default)s)")
    options = parser.parse_args(arguments)
    try:
        status = serving_status(options.address, options.service, options.timeout)
    except grpc.RpcError as error:
        status = f"{error.code().name}: {error.details()}"  # an error of a call is a Call
    print(f"{options.address} {options.service}: {status}", file=sys.stderr)  # noqa: T201
    return 0 if status == "SERVING" else 1


if __name__ == "__main__":
    raise SystemExit(main())
