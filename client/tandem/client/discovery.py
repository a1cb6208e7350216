"""Names that stand for several workers: `dns:///tandem-worker:50052` is every address that the name has.

So a headless Kubernetes service, or the name of a scaled compose service, is all that a client has to know. A name
without the prefix is one worker: it may be that of a load balancer.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Self
from urllib.parse import urlsplit

from .errors import ConfigurationError

PREFIX = "dns:///"


@dataclass(frozen=True, slots=True)
class Target:
    """Where one worker is."""

    address: str  # of gRPC: "10.0.0.7:50052"
    authority: str = ""  # "name:port" that it was found under: what its certificate is for, and what proxies are told


@dataclass(frozen=True, slots=True)
class WorkersName:
    """A name of several workers, and their port."""

    host: str
    port: int

    @classmethod
    def parse(cls, address: str) -> Self | None:
        """None for an address of another kind. Raises ConfigurationError."""
        if not address.startswith(PREFIX):
            return None
        try:
            parts = urlsplit(f"//{address.removeprefix(PREFIX)}")
            host, port = parts.hostname, parts.port
        except ValueError:
            host = port = None
        if not host or not port or parts.netloc.count("@") or parts.path or parts.query:
            raise ConfigurationError(f"the address {address!r} must be dns:///NAME:PORT")
        return cls(host, port)

    def __str__(self) -> str:
        return f"{PREFIX}{self.host}:{self.port}"

    def targets(self, hosts: Sequence[str]) -> list[Target]:
        """Where its workers are."""
        authority = f"{self.host}:{self.port}"
        return [Target(f"[{host}]:{self.port}" if ":" in host else f"{host}:{self.port}", authority) for host in hosts]


Resolve = Callable[[WorkersName], Awaitable[list[str]]]
"""Finds the IP addresses of a name; raises OSError."""


async def resolve(name: WorkersName) -> list[str]:
    """As the system does it. A worker with addresses of both families would be found twice, so only one family counts:
    IPv4 where there is any."""
    found = await asyncio.get_running_loop().getaddrinfo(name.host, name.port, type=socket.SOCK_STREAM)
    fours = [str(address[0]) for family, _, _, _, address in found if family == socket.AF_INET]
    return fours or [str(address[0]) for family, _, _, _, address in found if family == socket.AF_INET6]


async def expand(addresses: Sequence[str], find: Resolve = resolve) -> list[Target]:
    """All that is meant by `addresses` now; a name that cannot be resolved stays as it is."""
    targets: dict[str, Target] = {}
    for address in addresses:
        name = WorkersName.parse(address)
        found = [Target(address)]
        if name is not None:
            with contextlib.suppress(OSError):  # whoever connects is told
                found = name.targets(await find(name)) or found
        for target in found:
            targets.setdefault(target.address, target)
    return list(targets.values())
