"""The addresses that a client may be given, and what is wrong with the others."""

from __future__ import annotations

import re
from collections.abc import Sequence

from tandem.client.discovery import WorkersName
from tandem.client.errors import ConfigurationError

Address = str | int

# gRPC's own; what stands behind them is its business. dns:///NAME:PORT of workers is ours.
_SCHEMES = ("unix:", "unix-abstract:", "dns:", "ipv4:", "ipv6:", "xds:", "vsock:")
_HOST_AND_PORT = re.compile(r"(?P<host>\[[^\[\]\s]+\]|[^\[\]\s:/,]+):(?P<port>[0-9]+)")
_EXAMPLE = "'localhost:50051'"


def tokenizer_address(given: Address) -> str:
    """Returns gRPC's target for the address of a tokenizer service. Raises ConfigurationError."""
    found = _several(given, "tokenizer")
    if len(found) != 1:
        raise ConfigurationError(f"tokenizer is one address, and {given!r} has {len(found)}")
    return found[0]


def worker_addresses(given: Address | Sequence[Address]) -> list[str]:
    """Returns gRPC's targets, and names of several workers, for the addresses of workers. Raises ConfigurationError."""
    parts = [given] if isinstance(given, str | int) else list(given)
    found = [address for part in parts for address in _several(part, "worker")]
    for address in found:
        WorkersName.parse(address)  # or say what is wrong with it
    if len(set(found)) != len(found):
        raise ConfigurationError("each worker address may be given only once")
    return found


def _several(given: object, name: str) -> list[str]:
    """Returns the addresses of a port number, or of a text with commas."""
    if isinstance(given, int) and not isinstance(given, bool):
        return [_one(f"localhost:{given}", name, given)]
    if not isinstance(given, str) or not given.strip():
        raise ConfigurationError(f"{name}: an address is a text such as {_EXAMPLE} or a port number, not {given!r}")
    text = given.strip()
    if text.startswith(_SCHEMES):
        return [text]
    if text.isascii() and text.isdigit():
        return [_one(f"localhost:{text}", name, given)]
    return [_one(part.strip(), name, given) for part in text.split(",")]


def _one(address: str, name: str, given: object) -> str:
    if address.startswith(_SCHEMES):
        return address
    scheme, separator, rest = address.partition("://")
    if separator:
        bare = rest.partition("/")[0] or "HOST:PORT"
        secure = ", with Credentials() for TLS" if scheme in ("https", "grpcs") else ""
        raise ConfigurationError(f"{name}: {address!r} is a URL; give {bare!r}{secure}")
    match = _HOST_AND_PORT.fullmatch(address)
    if match is None:
        if address.count(":") > 1 and "[" not in address:
            raise ConfigurationError(f"{name}: {address!r}: an IPv6 address stands in brackets, as in '[::1]:50051'")
        if ":" not in address.rpartition("]")[2] and not re.search(r"[\s/]", address) and address:
            raise ConfigurationError(f"{name}: {address!r} has no port; give HOST:PORT, such as {_EXAMPLE}")
        raise ConfigurationError(f"{name}: {given!r} is not HOST:PORT, such as {_EXAMPLE}")
    if not 1 <= int(match["port"]) <= 65535:
        raise ConfigurationError(f"{name}: the port of {given!r} must be 1 to 65535")
    return address
