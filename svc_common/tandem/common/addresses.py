"""Writes and checks addresses of the form host:port."""

from __future__ import annotations

import ipaddress
import socket

from tandem.common.errors import StartError


def join(host: str, port: int) -> str:
    """Joins host and port: `127.0.0.1:80`, `[::1]:80`."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def connectable(address: str) -> str:
    """Returns an address on which a server of this machine is reached, which may listen on all interfaces."""
    host, _, port = address.rpartition(":")
    return f"{ {'0.0.0.0': '127.0.0.1', '[::]': '[::1]'}.get(host, host) }:{port}"  # noqa: S104


def is_loopback(host: str) -> bool:
    """Tells whether only this machine can connect."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def check_bindable(host: str, port: int, what: str) -> None:
    """Raises StartError with the operating system's reason when nobody could listen there.

    gRPC's own error does not say why, and its core writes lines of its own to standard error.
    """
    try:
        candidates = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except socket.gaierror as error:
        raise StartError(f"cannot serve {what} on {join(host, port)}: {error.strerror}") from None
    reason = ""
    for family, kind, protocol, _, address in candidates:
        with socket.socket(family, kind, protocol) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(address)
                return
            except OSError as error:
                reason = error.strerror or str(error)
    raise StartError(f"cannot serve {what} on {join(host, port)}: {reason}")
