"""Resolves names that stand for several workers: `dns:///tandem-worker:50052` is every address that the name has.

So a client needs only the name of a headless Kubernetes service or of a scaled compose service. A name without the
prefix is one worker: it may be that of a load balancer.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Self
from urllib.parse import urlsplit

from tandem.client.errors import ConfigurationError

PREFIX = "dns:///"
LOOKUP_SECONDS = 5.0  # longest wait for a name


@dataclass(frozen=True, slots=True)
class Target:
    """The address of one worker."""

    address: str  # of gRPC: "10.0.0.7:50052"
    authority: str = ""  # "name:port" that it was found under: what its certificate is for, and what proxies are told


@dataclass(frozen=True, slots=True)
class WorkersName:
    """A name that several workers have, and their port."""

    host: str
    port: int

    @classmethod
    def parse(cls, address: str) -> Self | None:
        """Parses dns:///NAME:PORT, and returns None for an address of another kind. Raises ConfigurationError."""
        if not address.startswith(PREFIX):
            return None
        try:
            parts = urlsplit(f"//{address.removeprefix(PREFIX)}")
            host, port = parts.hostname, parts.port
            (host or "").encode("idna")  # what a lookup would raise for labels that are empty or too long
        except ValueError:
            host = port = None
        if not host or not port or not host.isprintable() or parts.netloc.count("@") or parts.path or parts.query:
            raise ConfigurationError(f"the address {address!r} must be dns:///NAME:PORT")
        return cls(host, port)

    def __str__(self) -> str:
        return f"{PREFIX}{_join(self.host, self.port)}"

    def targets(self, hosts: Sequence[str]) -> list[Target]:
        """Returns the targets of its workers."""
        authority = _join(self.host, self.port)
        return [Target(_join(host, self.port), authority) for host in hosts]


Resolve = Callable[[WorkersName], Awaitable[list[str]]]
"""Finds the IP addresses of a name; raises OSError."""


async def resolve(name: WorkersName) -> list[str]:
    """Resolves a name as the system does, and sorts the addresses, because name servers rotate their order. A worker
    with addresses of both families would be found twice, so only one family counts: IPv4 where there is any.

    A name server that does not answer blocks a lookup for half a minute. So each lookup has a thread of its own, which
    nobody waits for: asyncio's threads would delay the end of the program.
    """
    loop = asyncio.get_running_loop()
    answer: asyncio.Future[list[str]] = loop.create_future()

    def tell(hosts: list[str], error: Exception | None) -> None:
        if answer.done():  # the caller has left
            return
        if error is None:
            answer.set_result(hosts)
        else:
            answer.set_exception(error)

    def work() -> None:
        hosts: list[str] = []
        failed: Exception | None = None
        try:
            found = socket.getaddrinfo(name.host, name.port, type=socket.SOCK_STREAM)
            fours = {str(address[0]) for family, _, _, _, address in found if family == socket.AF_INET}
            hosts = sorted(fours or {str(one[0]) for family, _, _, _, one in found if family == socket.AF_INET6})
        except Exception as error:  # raised where it was asked for
            failed = error
        with contextlib.suppress(RuntimeError):  # the event loop has ended meanwhile
            loop.call_soon_threadsafe(tell, hosts, failed)

    threading.Thread(target=work, name=f"lookup of {name.host}", daemon=True).start()
    return await answer


async def expand(addresses: Sequence[str], within: float, find: Resolve = resolve) -> list[Target]:
    """Returns all targets that `addresses` stand for now; a name that cannot be resolved `within` so many seconds stays
    as it is."""
    targets: dict[str, Target] = {}
    for address in addresses:
        name = WorkersName.parse(address)
        found = [Target(address)]
        if name is not None:
            with contextlib.suppress(OSError):  # (TimeoutError is one) connecting will raise the error
                async with asyncio.timeout(within):
                    found = name.targets(await find(name)) or found
        for target in found:
            targets.setdefault(target.address, target)
    return list(targets.values())


def _join(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
