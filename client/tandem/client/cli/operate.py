"""`tandem drain` and `tandem clear-cache`: operators' commands for running workers."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Coroutine
from typing import Annotated, Any, TypeVar

import typer
from rich.text import Text

from tandem.client.async_client import AsyncClient
from tandem.client.cli import options as o
from tandem.client.cli.connection_flags import ConnectionFlags, with_connection_flags
from tandem.client.cli.run import progress_on_terminal
from tandem.client.cli.services import interruptible
from tandem.client.cli.terminal import CommandError, output, reporting_errors
from tandem.client.operators import WorkerLoad
from tandem.client.settings import ConnectionSettings

T = TypeVar("T")

_LOOK_SECONDS = 0.5


@with_connection_flags
def drain(
    connection: ConnectionFlags,
    worker_address: o.WorkerAddresses = None,
    end: Annotated[bool, typer.Option("--end", help="Take requests again.")] = False,
    wait: Annotated[bool, typer.Option("--wait", help="Wait until no request runs or waits.")] = False,
    timeout: o.Timeout = 600.0,
) -> None:
    """Have workers refuse new requests while running ones finish, or take requests again."""
    with reporting_errors():
        if end and wait:
            raise CommandError("--wait cannot be used with --end", exit_code=2)
        if not timeout >= 0:  # NaN neither
            raise CommandError(f"--timeout must be at least 0 seconds, not {timeout:g}", exit_code=2)
        deadline = time.monotonic() + timeout if timeout else None
        _with_workers(connection, worker_address, lambda client: _drain(client, not end, wait, deadline))


@with_connection_flags
def clear_cache(
    connection: ConnectionFlags, worker_address: o.WorkerAddresses = None, timeout: o.Timeout = 60.0
) -> None:
    """Have workers forget the prefixes that no running request uses."""
    with reporting_errors():
        _with_workers(connection, worker_address, lambda client: _clear(client, timeout or None))


def _with_workers(
    connection: ConnectionFlags,
    worker_address: list[str] | None,
    work: Callable[[AsyncClient], Coroutine[Any, Any, T]],
) -> T:
    # Names are looked up once: a platform takes a worker that drains out of its name, and we still mean the same ones.
    once = ConnectionSettings(resolve_seconds=math.inf)
    client = AsyncClient(worker=o.worker_addresses(worker_address), connection=once, credentials=connection())

    async def run() -> T:
        async with client:
            return await work(client)

    return interruptible(run())


async def _drain(client: AsyncClient, draining: bool, wait: bool, deadline: float | None) -> None:
    def left() -> float | None:
        return None if deadline is None else max(0.1, deadline - time.monotonic())

    for address, state in (await client.set_draining(draining, timeout=left())).items():
        output().print(Text(f"{address}: {state.value}"))
    if not wait:
        return
    with progress_on_terminal(spinner=True) as progress:
        told = ""
        while busy := _busy(await client.get_loads(timeout=left())):
            if deadline is not None and time.monotonic() >= deadline:
                raise CommandError(f"not idle in time: {busy}")
            if busy != told:
                progress(busy)
                told = busy
            await asyncio.sleep(_LOOK_SECONDS)
        progress("")
    output().print(Text("idle"))


def _busy(loads: dict[str, WorkerLoad]) -> str:
    """Describes the workers that are not idle."""
    return ", ".join(
        f"{address}: {load.running_requests} running, {load.waiting_requests} waiting"
        for address, load in loads.items()
        if not load.idle
    )


async def _clear(client: AsyncClient, timeout: float | None) -> None:
    for address, pages in (await client.clear_prefix_cache(timeout=timeout)).items():
        output().print(Text(f"{address}: {pages} pages cleared"))
