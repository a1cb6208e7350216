"""`tandem top`: shows the workers' load live."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from dataclasses import dataclass, field
from typing import Annotated

import grpc.aio
import typer
from rich.console import Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from tandem.client.cli import options as o
from tandem.client.cli.connection_flags import ConnectionFlags, with_connection_flags
from tandem.client.cli.services import interruptible
from tandem.client.cli.terminal import output, reporting_errors
from tandem.client.deadline import Deadline
from tandem.client.discovery import LOOKUP_SECONDS, Target, expand
from tandem.client.errors import StatusError
from tandem.client.rpc import CallContext, unary
from tandem.client.settings import ConnectionSettings, Credentials, open_channel
from tandem.inference.v1 import admin_pb2, admin_pb2_grpc

_BAR = 48  # characters
_HISTORY = 48  # looks that the curves remember
_LEVELS = " ▁▂▃▄▅▆▇█"


@dataclass(slots=True)
class WorkerView:
    """The load of one worker. Rates are between the last two looks."""

    address: str
    server: admin_pb2.GetServerResponse | None = None
    load: admin_pb2.GetLoadResponse | None = None
    error: str = ""
    output_rates: deque[float] = field(default_factory=lambda: deque(maxlen=_HISTORY))
    prompt_rates: deque[float] = field(default_factory=lambda: deque(maxlen=_HISTORY))
    _seen_at: float = 0.0

    def look(self, server: admin_pb2.GetServerResponse, load: admin_pb2.GetLoadResponse, now: float) -> None:
        """Takes the responses of one look at `now`, in seconds of a monotonic clock."""
        if self.load is not None and load.steps >= self.load.steps and now > self._seen_at:
            seconds = now - self._seen_at
            self.output_rates.append((load.output_tokens - self.load.output_tokens) / seconds)
            self.prompt_rates.append((load.prompt_tokens - self.load.prompt_tokens) / seconds)
        self.server, self.load, self.error, self._seen_at = server, load, "", now


@with_connection_flags
def top(
    connection: ConnectionFlags,
    worker_address: o.WorkerAddresses = None,
    interval: Annotated[float, typer.Option(min=0.1, max=60, help="Seconds between two looks.")] = 1.0,
    looks: Annotated[int, typer.Option(min=0, help="Stop after so many looks; 0: at Ctrl-C.")] = 0,
    timeout: o.Timeout = 10.0,
) -> None:
    """Show live what runs, what waits and how the pages of each worker's KV cache are used."""
    with reporting_errors():
        addresses = o.worker_addresses(worker_address)
        credentials = connection()
        if not interruptible(_watch(addresses, interval, looks, timeout or None, credentials)):
            raise typer.Exit(1)


async def _watch(
    addresses: list[str], interval: float, looks: int, timeout: float | None, credentials: Credentials | None
) -> bool:
    """Returns True when all workers answered at the last look. Names are looked up at each look, because workers come
    and go."""
    known: dict[Target, tuple[WorkerView, grpc.aio.Channel]] = {}
    try:
        with Live(console=output(), auto_refresh=False) as live:
            done = 0
            while True:
                context = CallContext(deadline=Deadline.after(timeout), closed=lambda: False, credentials=credentials)
                targets = await expand(addresses, context.deadline.cap(LOOKUP_SECONDS))
                for target in targets:
                    if target not in known:
                        channel = open_channel(target.address, ConnectionSettings(), credentials, target.authority)
                        known[target] = WorkerView(target.address), channel
                for target in known.keys() - targets:
                    await known.pop(target)[1].close()
                views = [known[target][0] for target in targets]
                await asyncio.gather(
                    *(
                        _look(view, admin_pb2_grpc.WorkerAdminServiceStub(channel), context)
                        for view, channel in known.values()
                    )
                )
                live.update(Group(*(picture(view) for view in views)), refresh=True)
                done += 1
                if done == looks:
                    return not any(view.error for view in views)
                await asyncio.sleep(interval)
    finally:
        for _, channel in known.values():
            await channel.close()


async def _look(view: WorkerView, stub: admin_pb2_grpc.WorkerAdminServiceAsyncStub, context: CallContext) -> None:
    try:
        server, load = await asyncio.gather(
            unary(stub.GetServer, admin_pb2.GetServerRequest(), context, service="worker"),
            unary(stub.GetLoad, admin_pb2.GetLoadRequest(), context, service="worker"),
        )
    except StatusError as error:
        view.error = str(error)
    else:
        view.look(server, load, time.monotonic())


def picture(view: WorkerView) -> RenderableType:
    """Returns one worker as a panel."""
    if view.error or view.load is None or view.server is None:
        # Our console wraps nothing by itself, and the end of an error is what tells most.
        words = Text(view.error or "waiting for an answer", style="red", no_wrap=False, overflow="fold")
        return Panel(words, title=view.address, title_align="left")
    load, server = view.load, view.server
    state = admin_pb2.ServerState.Name(server.state).removeprefix("SERVER_STATE_").lower()
    table = Table(show_header=False, box=None, padding=(0, 1))
    table.add_column(style="dim", justify="right")
    table.add_column(no_wrap=True)
    table.add_column()
    running = f"{load.running_requests} of {server.max_running_requests}"
    table.add_row("running", _bar([(load.running_requests, "green")], server.max_running_requests), running)
    waiting = f"{load.waiting_requests}, {load.waiting_tokens} tokens"
    table.add_row("waiting", _bar([(load.waiting_requests, "yellow")], server.max_waiting_requests), waiting)
    pages = [(load.pages_referenced, "green"), (load.pages_cached, "blue")]
    used = f"{load.pages_referenced} used, {load.pages_cached} cached, {load.pages_free} free"
    table.add_row("pages", _bar(pages, load.pages_total), used)
    table.add_row("output", _curve(view.output_rates), _rate(view.output_rates))
    table.add_row("prompt", _curve(view.prompt_rates), _rate(view.prompt_rates))
    hits = 100 * load.cached_prompt_tokens / load.prompt_tokens if load.prompt_tokens else 0.0
    table.add_row("prefix", f"{hits:.1f} % of prompt tokens were cached", f"{load.merged_pages} pages merged")
    table.add_row(
        "cache", f"{load.evictions} evictions, {load.preemptions} preemptions", f"{load.moved_pages} pages moved"
    )
    if load.draft_tokens_proposed:
        share = 100 * load.draft_tokens_accepted / load.draft_tokens_proposed
        table.add_row(
            "drafts", f"{share:.1f} % accepted", f"{load.draft_tokens_accepted} of {load.draft_tokens_proposed}"
        )
    style = "green" if server.state == admin_pb2.SERVER_STATE_SERVING else "yellow"
    title = Text.assemble(f"{view.address}  ", (state, style), f"  {server.device}")
    return Panel(table, title=title, title_align="left")


def _bar(parts: list[tuple[int, str]], whole: int) -> Text:
    """Returns the shares of a whole as a coloured bar; a share above zero is at least one character."""
    bar = Text()
    for amount, colour in parts:
        width = min(_BAR - len(bar), max(amount > 0, round(_BAR * amount / max(1, whole))))
        bar.append("█" * width, style=colour)
    bar.append("·" * (_BAR - len(bar)), style="dim")
    return bar


def _curve(values: deque[float]) -> Text:
    """Returns the last values as a line of blocks; the largest is a full one."""
    largest = max(values, default=0.0)
    if largest <= 0:
        return Text(" " * _BAR)
    top_level = len(_LEVELS) - 1
    return Text("".join(_LEVELS[round(top_level * value / largest)] for value in values).rjust(_BAR), style="cyan")


def _rate(values: deque[float]) -> str:
    return f"{values[-1]:.0f} tokens/s" if values else ""
