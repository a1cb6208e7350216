"""`tandem inspect` and `tandem convert`: describe a checkpoint, and write its weights in another format."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from rich.progress import BarColumn, DownloadColumn, Progress, TaskProgressColumn, TransferSpeedColumn
from rich.table import Table
from rich.text import Text

from tandem.client.cli.spawning import child_environment
from tandem.client.cli.terminal import CommandError, Stopped, amount, errors, output, reporting_errors

Report = dict[str, Any]
_PRECISIONS = ("float32", "bfloat16", "fp8", "int8", "int4", "as stored")


class Family(StrEnum):
    """The formats of checkpoints that can be written."""

    META = "meta"
    HUGGING_FACE = "hugging-face"
    GGUF = "gguf"


class Dtype(StrEnum):
    """The dtypes of the written matrices."""

    AUTO = "auto"
    FLOAT32 = "float32"
    FLOAT16 = "float16"
    BFLOAT16 = "bfloat16"


def inspect(
    model: Annotated[Path, typer.Argument(help="A checkpoint folder or a GGUF file.")],
    group: Annotated[
        Literal["0", "32", "64", "128"],
        typer.Option(
            "--quantize-group", help="Group size of int8 and int4: inputs that share a scale; 0: the worker's default."
        ),
    ] = "0",
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Describe a checkpoint: sizes, memory at each precision, KV-cache bytes per token, what fits on this machine."""
    with reporting_errors():
        (report,) = _reports("tandem.worker.convert.inspection", model, [f"--quantize-group={group}"])
        if as_json:
            output().print_json(json.dumps(report), highlight=False, indent=None if not output().is_terminal else 2)
        else:
            _show(report)


def convert(
    source: Annotated[Path, typer.Argument(help="A checkpoint folder or a GGUF file.")],
    target: Annotated[Path, typer.Argument(help="A new folder, or a new file that ends in .gguf.")],
    to: Annotated[Family, typer.Option("--to", help="The format to write.")],
    dtype: Annotated[
        Dtype, typer.Option("--dtype", help="Dtype of the matrices; auto: that of most of the source's.")
    ] = Dtype.AUTO,
    adapter: Annotated[
        Path | None,
        typer.Option("--adapter", help="The folder of a LoRA adapter, whose changes are added to the weights."),
    ] = None,
) -> None:
    """Write a checkpoint in another format. The target appears only when it is complete."""
    with reporting_errors():
        arguments = [str(target), f"--to={to.value}", f"--dtype={dtype.value}"]
        arguments += [] if adapter is None else [f"--adapter={adapter}"]
        columns = (BarColumn(), TaskProgressColumn(), DownloadColumn(binary_units=True), TransferSpeedColumn())
        with Progress(*columns, console=errors, disable=not errors.is_terminal, transient=True) as bar:
            task = bar.add_task("", total=None)
            for report in _reports("tandem.worker.convert.run", source, arguments):
                if "done" in report:
                    bar.update(task, completed=report["done"], total=report["total"])
        out = output()
        out.print(Text(f"{report['path']}: {amount(report['bytes'])}, {', '.join(report['files'])}"))
        for note in report["notes"]:
            errors.print(Text(f"note: {note}"))


def _reports(module: str, model: Path, arguments: Sequence[str]) -> Iterator[Report]:
    """Yields the output lines of one of the worker's programs about a model. Raises CommandError with the program's own
    message, which takes seconds: of a model that is not there, at once."""
    if missing := [
        name for name in ("tandem.worker", "torch", "safetensors") if importlib.util.find_spec(name) is None
    ]:
        raise CommandError(
            f"this needs the worker's code ({', '.join(missing)} not installed): pip install 'tandem-llm[worker]'"
        )
    try:
        model.stat()
    except FileNotFoundError:
        raise CommandError(f"{model}: no such file or folder") from None
    except OSError:
        pass  # the program says what is wrong
    process = subprocess.Popen(  # noqa: S603  (our own interpreter and modules)
        [sys.executable, "-P", "-m", module, str(model), *arguments],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env=child_environment(os.environ),
    )
    assert process.stdout is not None and process.stderr is not None
    with _stopping(process):
        for line in process.stdout:
            report: Report = json.loads(line)
            if "error" in report:
                raise CommandError(report["error"])
            yield report
        words = process.stderr.read().strip().splitlines()
        if process.wait():
            raise CommandError(words[-1] if words else f"{module} ended with exit code {process.returncode}")


@contextlib.contextmanager
def _stopping(process: subprocess.Popen[str]) -> Iterator[None]:
    """Ends the process on a signal, so that it removes its unfinished files; then Stopped is raised."""

    def stop(number: int, frame: object) -> None:
        raise Stopped(number)

    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = {number: signal.signal(number, stop) for number in numbers}
    try:
        with process:
            try:
                yield
            finally:
                process.terminate()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _show(report: Report) -> None:
    """Prints the report as three tables of plain text."""
    out = output()
    facts = Table.grid(padding=(0, 2))
    for name, value in _facts(report):
        facts.add_row(Text(name, style="dim"), Text(value))
    out.print(facts)
    out.print()
    memory = Table(box=None, pad_edge=False, padding=(0, 1), header_style="dim")
    memory.add_column("memory", no_wrap=True)
    columns = [name for name in _PRECISIONS if name in report["weight_bytes"]]
    for name in columns:
        memory.add_column(name, justify="right")
    memory.add_row("weights", *(amount(report["weight_bytes"][name]) for name in columns))
    cache = report["kv_bytes_per_token"]
    memory.add_row("KV cache, a token", *(amount(cache.get(name, cache["bfloat16"])) for name in columns))
    for device in report["machine"]:
        where = f"tokens on {device['device']}, {amount(device['free_bytes'])} free"
        memory.add_row(where, *(_count(device["fits"][name]) if device["fits"][name] else "-" for name in columns))
    out.print(memory)


def _facts(report: Report) -> Iterator[tuple[str, str]]:
    yield "model", f"{report['path']} ({report['format']}, {report['architecture']})"
    active = report["active_parameters"]
    experts = report["experts"]
    of_experts = f", {experts[1]} of {experts[0]} experts: {_count(active)} active" if experts else ""
    yield "parameters", f"{_count(report['parameters'])}{of_experts}"
    stored = ", ".join(f"{name} {amount(size)}" for name, size in report["stored_as"].items())
    yield "stored", f"{amount(report['stored_bytes'])}: {stored}"
    yield "layers", f"{report['layers']} of {report['hidden_size']}, feed-forward {report['intermediate_size']}"
    yield "heads", f"{report['heads']} of {report['head_dim']}, {report['kv_heads']} for keys and values"
    windows = f", window {', '.join(map(str, report['windows']))}" if report["windows"] else ""
    scaling = f", {report['rope_scaling']} scaling" if report["rope_scaling"] else ""
    yield "context", f"{report['context_length']:,} tokens (theta {report['rope_theta']:g}{scaling}{windows})"
    tied = ", output tied to the embedding" if report["tied_embeddings"] else ""
    yield "vocabulary", f"{report['vocabulary']:,}{tied}"
    ends = ", ".join(map(str, report["eos_ids"])) or "none"
    yield "special ids", f"begin {'none' if report['bos_id'] is None else report['bos_id']}, end {ends}"
    yield "tokenizer", report["tokenizer"] or "none here"


def _count(number: int) -> str:
    """Formats a number of parameters."""
    for unit, scale in (("B", 10**9), ("M", 10**6), ("K", 10**3)):
        if number >= scale:
            return f"{number / scale:.2f} {unit}"
    return str(number)
