"""`tandem run` and `tandem serve`: both services from one command."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Annotated

import typer
from rich.text import Text

from tandem.client.async_client import AsyncClient
from tandem.client.cli import options as o
from tandem.client.cli.generate import stream_to_terminal
from tandem.client.cli.generation_flags import GenerationFlags, with_generation_flags
from tandem.client.cli.services import ServicePlan, find_model, interruptible, running_services
from tandem.client.cli.terminal import CommandError, errors, output, print_statistics, reporting_errors
from tandem.client.environment import TOKENIZER_VARIABLE, WORKER_VARIABLE
from tandem.client.params import GenerateOptions
from tandem.client.types import GenerationResult

DEFAULT_PROMPT = "Once upon a time"
DEFAULT_MAX_TOKENS = 200


@with_generation_flags(max_tokens=DEFAULT_MAX_TOKENS)
def run(
    flags: GenerationFlags,
    prompt: Annotated[str | None, typer.Argument(help='The text to continue; "-": standard input.')] = None,
    model: o.Model = None,
    tokenizer: o.TokenizerPath = None,
    quantize: o.Quantize = None,
    worker_flag: o.WorkerFlags = None,
    tokenizer_flag: o.TokenizerFlags = None,
    special: o.Special = "text",
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Show the logs of both services.")] = False,
) -> None:
    """Start both services, generate a continuation of a text, show statistics, and stop the services."""
    with reporting_errors():
        folder, tokenizer_path = find_model(model, tokenizer)
        text = o.text_argument(prompt, default=DEFAULT_PROMPT)
        wanted = flags()
        wanted["special_tokens"] = special  # type: ignore[typeddict-item]  # checked with everything else
        plan = ServicePlan(
            model=folder,
            tokenizer=tokenizer_path,
            log_level="info" if verbose else "warning",
            worker_flags=o.worker_flags(quantize, worker_flag),
            tokenizer_flags=tokenizer_flag or (),
        )
        print_statistics(interruptible(_run(plan, text, wanted, verbose)))


async def _run(plan: ServicePlan, prompt: str, wanted: GenerateOptions, verbose: bool) -> GenerationResult:
    with progress_on_terminal(spinner=not verbose) as progress:
        async with running_services(plan, progress=progress, on_line=print_line if verbose else None) as services:
            progress("")
            async with AsyncClient(services.tokenizer_address, services.worker_address) as client:
                result = await services.run(stream_to_terminal(client, prompt, wanted, show_prompt=True))
            progress("stopping")
    return result


def serve(
    model: o.Model = None,
    tokenizer: o.TokenizerPath = None,
    host: Annotated[str, typer.Option("--host", help="Address to listen on; 0.0.0.0 for all.")] = "127.0.0.1",
    tokenizer_port: Annotated[int, typer.Option("--tokenizer-port", min=0, max=65535, help="0: a free one.")] = 50051,
    worker_port: Annotated[int, typer.Option("--worker-port", min=0, max=65535, help="0: a free one.")] = 50052,
    tokenizer_metrics_port: Annotated[
        int, typer.Option("--tokenizer-metrics-port", min=0, max=65535, help="0: a free one, which the log tells.")
    ] = 0,
    worker_metrics_port: Annotated[
        int, typer.Option("--worker-metrics-port", min=0, max=65535, help="0: a free one, which the log tells.")
    ] = 0,
    http_port: Annotated[
        int | None,
        typer.Option("--http-port", min=0, max=65535, help="Serve OpenAI's interface there, too; 0: a free one."),
    ] = None,
    http_metrics_port: Annotated[
        int, typer.Option("--http-metrics-port", min=0, max=65535, help="0: a free one, which the log tells.")
    ] = 0,
    drain: Annotated[
        float, typer.Option("--drain", min=0, help="Seconds that running requests get at the end.")
    ] = 10.0,
    quantize: o.Quantize = None,
    worker_flag: o.WorkerFlags = None,
    tokenizer_flag: o.TokenizerFlags = None,
    http_flag: o.HttpFlags = None,
) -> None:
    """Run both services in this terminal until Ctrl-C; their logs go to standard error."""
    with reporting_errors():
        if http_port is None and http_flag:
            raise CommandError("--http-flag is for the HTTP server, which --http-port starts", exit_code=2)
        folder, tokenizer_path = find_model(model, tokenizer)
        plan = ServicePlan(
            model=folder,
            tokenizer=tokenizer_path,
            host=host,
            tokenizer_port=tokenizer_port,
            worker_port=worker_port,
            metrics=True,
            tokenizer_metrics_port=tokenizer_metrics_port,
            worker_metrics_port=worker_metrics_port,
            http_port=http_port,
            http_metrics_port=http_metrics_port,
            http_flags=http_flag or (),
            log_level="info",
            drain_seconds=drain,
            worker_flags=o.worker_flags(quantize, worker_flag),
            tokenizer_flags=tokenizer_flag or (),
        )
        interruptible(_serve(plan))


async def _serve(plan: ServicePlan) -> None:
    async with running_services(plan, progress=lambda words: None, on_line=print_line) as services:
        out = output()
        out.print(Text(f"{TOKENIZER_VARIABLE}={services.tokenizer_address}"))
        out.print(Text(f"{WORKER_VARIABLE}={services.worker_address}"))
        if services.http_address:
            out.print(Text(f"{o.HTTP_VARIABLE}=http://{services.http_address}/v1"))
            errors.print(Text(f"a page to try it: http://{services.http_address}/"))
        out.print(Text("ready"))
        sys.stdout.flush()
        await services.watch()


_line_lock = threading.Lock()


def print_line(service: str, line: str) -> None:
    """Prints a line of a service's log on standard error. Called from one thread for each service."""
    colour = {"tokenizer": "cyan", "worker": "magenta"}.get(service, "green")
    with _line_lock:
        errors.print(Text.assemble((f"{service:>9} | ", colour), line))


@contextmanager
def progress_on_terminal(*, spinner: bool) -> Iterator[Callable[[str], None]]:
    """Returns a function that shows progress: with a spinner on a terminal, as lines elsewhere; "" clears it."""
    if not spinner or not errors.is_terminal:
        yield lambda words: errors.print(Text(words)) if words else None
        return
    status = errors.status("")

    def show(words: str) -> None:
        if words:
            status.update(Text(words))
            status.start()
        else:
            status.stop()

    try:
        yield show
    finally:
        status.stop()
