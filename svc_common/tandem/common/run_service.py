"""Runs a server as a process (`run_service`, `run_server`), or within a test's event loop (`run_in_loop`)."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Protocol

import prometheus_client

from tandem.common.core_lines import take_core_lines
from tandem.common.errors import StartError
from tandem.common.interruption import done_unless
from tandem.common.logs import configure_logging
from tandem.common.server import RunningService
from tandem.common.service import Lifecycle, Service
from tandem.common.settings import ServerSettings, ServiceSettings
from tandem.common.stop_signals import stop_on_end_of_stdin, stop_on_signals
from tandem.common.tracing import start_tracing, stop_tracing
from tandem.common.version import version

__all__ = ["Lifecycle", "RunningService", "Server", "Service", "run_in_loop", "run_server", "run_service"]

logger = logging.getLogger("tandem.common.run_service")

_TEARDOWN_SECONDS = 5.0  # for the last spans, and for tasks and threads that nobody waited for
_ORPHAN_GRACE = 2.0  # seconds for running requests when our parent is gone


class Server(Protocol):
    """What runs as a process, whatever protocol it speaks; `RunningService` is one."""

    lifecycle: Lifecycle
    address: str  # "host:port", once bound
    metrics_address: str | None

    async def bind(self) -> None:
        """Opens the ports; from here on probes are answered and work is refused. Raises StartError."""
        ...

    async def start(self) -> None:
        """Makes ready for work. May be cancelled."""
        ...

    async def drain(self, *, propagation: float, grace: float) -> None:
        """Lets running work finish within `grace` seconds, and takes nothing new after `propagation` seconds."""
        ...

    async def stop(self) -> None:
        """Ends what still runs, closes the ports and releases all resources. A second call does nothing."""
        ...


def run_service(service: Service, settings: ServiceSettings) -> int:
    """Serves a gRPC service until its end, like `run_server`."""
    name = service.metrics.service

    def make() -> RunningService:
        take_core_lines(settings.log_format, settings.log_level, name)
        return RunningService(service, settings)

    return run_server(make, settings, name)


def run_server(make: Callable[[], Server], settings: ServerSettings, name: str) -> int:
    """Serves until a signal, the end of standard input (if so set) or the server itself asks for the end.

    `make` is called within the event loop. Answers the exit code: 0 after a clean stop, 1 when the start failed, else
    what `request_stop` was given.
    """
    configure_logging(settings.log_format, settings.log_level, name)
    given = settings.model_dump(mode="json", exclude_defaults=True)
    logger.info("%s %s: these settings are not the default", name, version(), extra={"settings": given})
    # Otherwise every counter and histogram has a second series that nobody uses.
    prometheus_client.disable_created_metrics()  # type: ignore[no-untyped-call]
    start_tracing(name, settings.otlp_endpoint, settings.trace_share)
    with asyncio.Runner() as runner:
        try:
            exit_code = runner.run(_run(make, settings, name))
        except BaseException:
            stop_tracing()
            raise
        # Closing the runner waits for every task and thread that is left; one that never ends must not keep us here.
        last_resort = threading.Timer(_TEARDOWN_SECONDS, _leave_anyway, (exit_code,))
        last_resort.daemon = True
        last_resort.start()
        stop_tracing()
    last_resort.cancel()
    return exit_code


@asynccontextmanager
async def run_in_loop(service: Service, settings: ServiceSettings) -> AsyncIterator[str]:
    """Serves within the running event loop: yields "host:port" once started, cuts what runs and stops on exit.

    Raises what the service's start raises.
    """
    running = RunningService(service, settings)
    try:
        await running.bind()
        await running.start()
        yield running.address
    finally:
        await running.stop()


async def _run(make: Callable[[], Server], settings: ServerSettings, name: str) -> int:
    running = make()
    lifecycle = running.lifecycle
    written: Path | None = None
    with stop_on_signals(lifecycle, supervised=settings.exit_when_stdin_closes):
        orphaned = stop_on_end_of_stdin(lifecycle) if settings.exit_when_stdin_closes else None
        try:
            await running.bind()
            logger.info("%s is starting; health answers on %s", name, running.address)
            if await done_unless(lifecycle.wait_stop_requested(), running.start()):
                if settings.address_file is not None:
                    _write_address_file(settings.address_file, running)
                    written = settings.address_file
                logger.info("%s listening on %s (metrics %s)", name, running.address, running.metrics_address or "off")
                await lifecycle.wait_stop_requested()
            if orphaned is not None and orphaned.is_set():
                await running.drain(propagation=0.0, grace=min(_ORPHAN_GRACE, settings.drain_grace_seconds))
            else:
                await running.drain(propagation=settings.drain_propagation_seconds, grace=settings.drain_grace_seconds)
            exit_code = lifecycle.exit_code
        except StartError as error:
            logger.critical("%s cannot start: %s", name, " ".join(str(error).split()))
            exit_code = 1
        except (KeyboardInterrupt, SystemExit, asyncio.CancelledError):
            raise
        except BaseException as error:  # also a panic in Rust code
            logger.critical("%s failed with an unexpected %s", name, type(error).__name__, exc_info=error)
            exit_code = 1
        finally:
            await running.stop()
            if written is not None:  # and not merely configured: it may be another process's
                with suppress(OSError):
                    written.unlink()
    logger.info("%s has stopped", name)
    return exit_code


def _leave_anyway(exit_code: int) -> None:
    os.write(2, b"tasks or threads do not end: leaving without them\n")
    os._exit(exit_code)


def _write_address_file(path: Path, running: Server) -> None:
    """Writes the file whole or not at all: a parent that waits for it never reads half of it."""
    content = {"address": running.address, "metrics": running.metrics_address, "pid": os.getpid()}
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        temporary.write_text(json.dumps(content) + "\n")
        temporary.replace(path)
    except OSError as error:
        with suppress(OSError):
            temporary.unlink()
        raise StartError(f"cannot write the address file {path}: {error.strerror}") from None
