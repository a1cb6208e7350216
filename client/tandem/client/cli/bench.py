"""`tandem bench`: puts a load on services that run somewhere, and tells what their users would have felt."""

from __future__ import annotations

import math
import os
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from tandem.client.async_client import AsyncClient
from tandem.client.bench.lengths import ALLOWED, Lengths
from tandem.client.bench.load import Load, Record, calibrate, limited
from tandem.client.bench.report import TIMES, Run
from tandem.client.bench.targets import Refused, Services, Target, openai_server
from tandem.client.bench.workload import Conversation, MadeUp, from_file
from tandem.client.cli import options as o
from tandem.client.cli.connection_flags import ConnectionFlags, with_connection_flags
from tandem.client.cli.services import interruptible
from tandem.client.cli.terminal import CommandError, Stopped, errors, output, reporting_errors
from tandem.client.params import GenerateOptions

_LOAD, _ASKED, _RESULT = "Load", "What is asked", "Result"
_TARGET = "Who is asked"


@with_connection_flags
def bench(
    connection: ConnectionFlags,
    tokenizer_address: o.TokenizerAddress = "",
    worker_address: o.WorkerAddresses = None,
    base_url: Annotated[
        str,
        typer.Option(
            help="Ask this server with OpenAI's interface instead, such as http://localhost:8000/v1; its key: "
            "OPENAI_API_KEY.",
            rich_help_panel=_TARGET,
        ),
    ] = "",
    model: Annotated[
        str, typer.Option(help="Model to name; default: the one that is served.", rich_help_panel=_TARGET)
    ] = "",
    chat: Annotated[
        bool, typer.Option("--chat", help="Send messages instead of texts to continue.", rich_help_panel=_TARGET)
    ] = False,
    rate: Annotated[
        float | None,
        typer.Option(min=0.001, help="Open: conversations that begin a second (Poisson).", rich_help_panel=_LOAD),
    ] = None,
    concurrency: Annotated[
        int | None, typer.Option(min=1, help="Closed: conversations at any time; default 1.", rich_help_panel=_LOAD)
    ] = None,
    conversations: Annotated[int, typer.Option(min=1, help="How many in all.", rich_help_panel=_LOAD)] = 100,
    seconds: Annotated[
        float | None, typer.Option(min=0.1, help="Begin none after so many seconds.", rich_help_panel=_LOAD)
    ] = None,
    think: Annotated[
        float, typer.Option(min=0.0, help="Seconds between an answer and the next turn.", rich_help_panel=_LOAD)
    ] = 0.0,
    prompts: Annotated[
        Path | None,
        typer.Option(
            help="File of prompts, one a line; .jsonl: objects with prompt (a text, or a list: turns) and max_tokens.",
            rich_help_panel=_ASKED,
        ),
    ] = None,
    prompt_tokens: Annotated[
        str, typer.Option(help=f"Tokens of a made-up turn: {ALLOWED}.", rich_help_panel=_ASKED)
    ] = "256",
    output_tokens: Annotated[
        str, typer.Option(help="Tokens of an answer, in the same forms.", rich_help_panel=_ASKED)
    ] = "64",
    turns: Annotated[str, typer.Option(help="Turns of a conversation, likewise.", rich_help_panel=_ASKED)] = "1",
    prefixes: Annotated[
        int, typer.Option(min=0, help="How many shared prefixes there are.", rich_help_panel=_ASKED)
    ] = 0,
    prefix_tokens: Annotated[
        int, typer.Option(min=1, help="Tokens of each shared prefix.", rich_help_panel=_ASKED)
    ] = 512,
    stop_early: Annotated[
        bool,
        typer.Option("--stop-early", help="Let answers end by themselves.", rich_help_panel=_ASKED),
    ] = False,
    temperature: Annotated[float | None, typer.Option(help="Default: the model's.", rich_help_panel=_ASKED)] = None,
    seed: Annotated[int, typer.Option(help="Of prompts, lengths and moments.", rich_help_panel=_ASKED)] = 0,
    timeout: Annotated[float, typer.Option(min=0.1, help="Seconds a request may take.", rich_help_panel=_LOAD)] = 600.0,
    slo: Annotated[
        list[str] | None,
        typer.Option(
            help="Objective of a request, for goodput: ttft, gap (the longest), tpot or e2e =SECONDS; repeatable.",
            rich_help_panel=_RESULT,
        ),
    ] = None,
    json_file: Annotated[
        Path | None, typer.Option("--json", help="Keep the result in this file.", rich_help_panel=_RESULT)
    ] = None,
    plot: Annotated[Path | None, typer.Option(help="Draw it into this PNG.", rich_help_panel=_RESULT)] = None,
    kept: Annotated[
        Path | None,
        typer.Option("--from", help="Ask nobody: show the result kept in this file.", rich_help_panel=_RESULT),
    ] = None,
    compare: Annotated[
        Path | None, typer.Option(help="Show an earlier result beside it.", rich_help_panel=_RESULT)
    ] = None,
) -> None:
    """Put a load on services and measure what their users would feel."""
    with reporting_errors():
        earlier = None if compare is None else _kept("--compare", compare)
        limits = _objectives(slo or [])
        if plot is not None:
            _needs("matplotlib", "drawing")
        for flag, path in (("--json", json_file), ("--plot", plot)):
            if path is not None:
                _check_writable(flag, path)
        if kept is not None:
            run = _kept("--from", kept)
            run = Run(run.target, run.started, run.settings, limits or run.slo, run.seconds, run.records)
            _show(run, earlier, json_file, plot)
            return
        if rate is not None and concurrency is not None:
            raise CommandError("give --rate (open) or --concurrency (closed), not both", exit_code=2)
        lengths = {
            flag: _lengths(flag, text)
            for flag, text in (
                ("--prompt-tokens", prompt_tokens),
                ("--output-tokens", output_tokens),
                ("--turns", turns),
            )
        }
        read: list[Conversation] = []
        if prompts is not None:
            try:
                read = from_file(prompts, lengths["--output-tokens"], seed)
            except OSError as error:
                raise CommandError(f"--prompts {prompts}: {error.strerror}") from None
            except ValueError as error:
                raise CommandError(f"--prompts {prompts}: {error}") from None
        asked: dict[str, Any] = {} if stop_early else {"ignore_eos": True}
        if temperature is not None:
            asked["temperature"] = temperature
        server: AbstractAsyncContextManager[Target]
        if base_url:
            _needs("httpx", "asking OpenAI's interface")
            server = openai_server(
                base_url, model, os.environ.get("OPENAI_API_KEY", ""), timeout, chat=chat, fixed=asked
            )
        else:
            tokenizer, workers = o.required_tokenizer(tokenizer_address), o.worker_addresses(worker_address)
            client = AsyncClient(tokenizer, workers, credentials=connection(), timeout=timeout)
            fixed: GenerateOptions = {**asked, "model": model}  # type: ignore[typeddict-item]  # of two known keys
            server = _services(client, ",".join(workers), chat=chat, fixed=fixed)
        settings = {
            "rate": rate,
            "concurrency": concurrency or (None if rate else 1),
            "conversations": conversations,
            "seconds": seconds,
            "think": think,
            "prompts": None if prompts is None else prompts.name,
            "prompt_tokens": prompt_tokens,
            "output_tokens": output_tokens,
            "turns": turns,
            "prefixes": prefixes,
            "prefix_tokens": prefix_tokens,
            "chat": chat,
            "stop_early": stop_early,
            "temperature": temperature,
            "seed": seed,
        }
        loads: list[Load] = []
        started = datetime.now(UTC).isoformat(timespec="seconds")

        async def work(ended: Callable[[Record], None]) -> None:
            async with server as target:
                wanted: Sequence[Conversation] | MadeUp = read
                if not read:
                    wanted = MadeUp(
                        lengths["--prompt-tokens"], lengths["--output-tokens"], lengths["--turns"],
                        prefixes, prefix_tokens, await calibrate(target), seed,
                    )  # fmt: skip
                load = Load(target, think=think, on_end=ended)
                loads.append(load)
                chosen = limited(wanted, conversations, seconds)
                if rate is not None:
                    await load.run_open(chosen, rate, seed)
                else:
                    await load.run_closed(chosen, concurrency or 1)

        stopped: Stopped | None = None
        try:
            with _progress() as ended:
                interruptible(work(ended))
        except Stopped as signal:
            stopped = signal
        except Refused as refused:
            raise CommandError(f"{base_url or 'the services'}: {refused}") from None
        if loads and loads[0].records:  # also of a run that was stopped
            name = base_url or ",".join(o.given_workers(worker_address))
            run = Run(name, started, settings, limits, loads[0].seconds, loads[0].records)
            _show(run, earlier, json_file, plot)
            if stopped is None and any(record.error for record in run.records):
                raise typer.Exit(1)
        if stopped is not None:
            raise stopped


@asynccontextmanager
async def _services(client: AsyncClient, name: str, *, chat: bool, fixed: GenerateOptions) -> AsyncIterator[Target]:
    async with client:
        yield Services(client, name, chat=chat, fixed=fixed)


def _lengths(flag: str, text: str) -> Lengths:
    try:
        return Lengths.parse(text)
    except ValueError as error:
        raise CommandError(f"{flag}: {error}", exit_code=2) from None


def _objectives(given: list[str]) -> dict[str, float]:
    found = {}
    for each in given:
        name, _, value = each.partition("=")
        try:
            found[name] = float(value)
        except ValueError:
            found[name] = -1.0
        if name not in TIMES or not found[name] > 0:
            raise CommandError(f"--slo {each}: give {', '.join(TIMES)} and seconds, such as ttft=0.5", exit_code=2)
    return found


def _kept(flag: str, path: Path) -> Run:
    try:
        return Run.load(path)
    except OSError as error:
        raise CommandError(f"{flag} {path}: {error.strerror}") from None
    except ValueError as error:
        raise CommandError(f"{flag} {path}: {error}") from None


def _check_writable(flag: str, path: Path) -> None:
    """Finds out before a load, which may take hours, that its result cannot be kept there."""
    try:
        if path.exists() and not path.is_file() and not path.is_dir():
            return  # a pipe, whose reader would take the end of our look for the end of all
        new = not path.exists()
        with path.open("ab"):
            pass
        if new:
            path.unlink()
    except OSError as error:
        raise CommandError(f"{flag} {path}: {error.strerror}") from None


def _needs(package: str, what: str) -> None:
    try:
        __import__(package)
    except ImportError:
        raise CommandError(f"{what} needs {package}: pip install 'tandem-llm[bench]'", exit_code=2) from None


@contextmanager
def _progress() -> Iterator[Callable[[Record], None]]:
    """A bar on standard error, on a terminal alone; gives what is to be called with each record."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    failed = 0
    with Progress(*columns, console=errors, transient=True, disable=not errors.is_terminal) as bar:
        task = bar.add_task("requests", total=None)

        def ended(record: Record) -> None:
            nonlocal failed
            failed += bool(record.error)
            bar.update(task, advance=1, description=f"requests, {failed} failed" if failed else "requests")

        yield ended


def _show(run: Run, earlier: Run | None, json_file: Path | None, plot: Path | None) -> None:
    if earlier is not None:  # whatever it was judged by then
        earlier = replace(earlier, slo=run.slo)
    unwritten = []  # told last: what was measured is shown whatever becomes of the files
    try:
        if json_file is not None:
            run.save(json_file)
    except OSError as error:
        unwritten.append(f"--json {json_file}: {error.strerror}")
    try:
        if plot is not None:
            from tandem.client.bench.plots import draw

            draw({"this run": run} if earlier is None else {"before": earlier, "this run": run}, plot)
    except OSError as error:
        unwritten.append(f"--plot {plot}: {error.strerror}")
    now, before = run.summary(), None if earlier is None else earlier.summary()

    def row(words: str, number: Callable[[dict[str, Any]], float]) -> None:
        rows.append((words, number(now), None if before is None else number(before)))

    rows: list[tuple[str, float, float | None]] = []
    failures = ", ".join(f"{count} {error}" for error, count in now["errors"].items())
    output().print(f"{now['answered']} of {now['requests']} answered" + (f"; {failures}" if failures else ""))
    row("requests/s", lambda of: of["requests_per_second"])
    row("output tokens/s", lambda of: of["output_tokens_per_second"])
    row("prompt tokens cached, %", lambda of: 100 * of["cached_share"])
    if run.slo:
        row("goodput, requests/s", lambda of: of["goodput"])
        words = ", ".join(f"{name} {limit:g} s" for name, limit in run.slo.items())
        row(f"within {words}, %", lambda of: 100 * of["good_share"])
    table = Table(box=None, show_header=before is not None, pad_edge=False)
    for title in ("", "this run", "before", "ratio")[: 2 if before is None else 4]:
        table.add_column(title, justify="right" if title else "left")
    for words, value, old in rows:
        table.add_row(words, _number(value), *([] if old is None else [_number(old), _ratio(value, old)]))
    output().print(table)
    table = Table(box=None, pad_edge=False)
    table.add_column("milliseconds")
    for share in now["e2e"]:
        table.add_column(share, justify="right")
    for name, words in TIMES.items():
        times = now[name]
        table.add_row(words, *(_number(1e3 * value) for value in times.values()))
        if before is not None:
            table.add_row("  before", *(_number(1e3 * value) for value in before[name].values()), style="dim")
            table.add_row("  ratio", *(_ratio(value, before[name][share]) for share, value in times.items()))
    output().print(table)
    if unwritten:
        raise CommandError("; ".join(unwritten))


def _ratio(value: float, old: float) -> str:
    return "" if not old or math.isnan(value / old) else f"{value / old:.2f}"


def _number(value: float) -> str:
    return "" if math.isnan(value) else f"{value:,.1f}" if value < 1000 else f"{value:,.0f}"
