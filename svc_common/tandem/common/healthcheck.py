"""`python -m tandem.common.healthcheck HOST:PORT [SERVICE]`: exit code 0 when the service says SERVING, 1 otherwise.

For container health checks: needs nothing that a server's image does not have. Without SERVICE it asks for liveness,
with one for readiness (grpc.health.v1). Health asks for no bearer token; a server with TLS needs `--tls-ca`, one with
mutual TLS also a client's certificate and key.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from tandem.common.peers import PeerFiles


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line; returns its exit code."""
    parser = argparse.ArgumentParser(prog="tandem.common.healthcheck", description="Ask a server for its health.")
    parser.add_argument("address", help="HOST:PORT")
    parser.add_argument("service", nargs="?", default="", help="full service name (readiness); none: liveness")
    parser.add_argument("--timeout", type=float, default=3.0, help="seconds (default %(default)s)")
    parser.add_argument("--tls-ca", type=Path, help="PEM file of the authority that signed the server's certificate")
    parser.add_argument("--tls-server-name", help="name in that certificate, when it is not HOST")
    parser.add_argument("--tls-certificate", type=Path, help="PEM file of our own certificate (mutual TLS)")
    parser.add_argument("--tls-key", type=Path, help="PEM file of its key")
    options = parser.parse_args(arguments)
    try:
        with _channel(options) as channel:
            request = health_pb2.HealthCheckRequest(service=options.service)
            response = health_pb2_grpc.HealthStub(channel).Check(request, timeout=options.timeout)
        status = health_pb2.HealthCheckResponse.ServingStatus.Name(response.status)
    except grpc.RpcError as error:
        status = f"{error.code().name}: {error.details()}"  # an error of a call is a Call
    except OSError as error:
        status = f"{error.filename}: {error.strerror}"
    except ValueError as error:
        status = str(error)
    print(f"{options.address} {options.service}: {status}", file=sys.stderr)  # noqa: T201
    return 0 if status == "SERVING" else 1


def _channel(options: argparse.Namespace) -> grpc.Channel:
    peer = PeerFiles(
        ca=options.tls_ca, server_name=options.tls_server_name or "", certificate=options.tls_certificate,
        key=options.tls_key,
    )  # fmt: skip
    arguments = [("grpc.enable_http_proxy", 0), *peer.options()]
    credentials = peer.credentials()
    if credentials is None:
        return grpc.insecure_channel(options.address, arguments)
    return grpc.secure_channel(options.address, credentials, arguments)


if __name__ == "__main__":
    raise SystemExit(main())
